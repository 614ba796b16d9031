package main

import (
	"flag"

	"github.com/go-safetensors/safetensors"
)

var mergeCommand = &command{
	name: "merge", args: "IN... OUT", least: 2, most: -1,
	short: "put the tensors of several files or models into one",
	long: `
Writes the tensors of all INs to OUT: a file, or a folder if --max-shard-size is
given, OUT is one, or it ends in a slash. One IN of several files becomes one file.
A name that two INs have is an error, and so is a
metadata key that has two values, unless flags decide on it.
`,
}

var splitCommand = &command{
	name: "split", args: "IN OUT", least: 2, most: 2,
	short: "split a file or model into files of a size, with an index",
	long: `
Writes the tensors of IN to the folder OUT, in files of at most --max-shard-size,
5GB unless it is given, with an index if there is more than one: the names and the
index are those that huggingface_hub gives. A tensor over the size has a file of
its own. OUT may be the folder IN.
`,
}

func init() {
	mergeCommand.define = func(flags *flag.FlagSet) func(*env, []string) error {
		w := writingFlags(mergeCommand, flags)
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			ins, out := args[:len(args)-1], args[len(args)-1]
			var inputs []input
			var parts []map[string]safetensors.Tensor
			for _, in := range ins {
				m, err := open(in, opts()...)
				if err != nil {
					return err
				}
				defer m.Close()
				inputs, parts = append(inputs, input{in, m}), append(parts, all(m))
			}
			tensors, err := safetensors.Merge(parts...)
			if err != nil {
				return refusal{err}
			}
			metadata, err := w.merged(inputs...)
			if err != nil {
				return err
			}
			return w.save(e, out, w.folder(out, false), tensors, metadata, inputs...)
		}
	}
	splitCommand.define = func(flags *flag.FlagSet) func(*env, []string) error {
		w := writingFlags(splitCommand, flags)
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			m, err := open(args[0], opts()...)
			if err != nil {
				return err
			}
			defer m.Close()
			in := input{args[0], m}
			metadata, err := w.merged(in)
			if err != nil {
				return err
			}
			return w.save(e, args[1], true, all(m), metadata, in)
		}
	}
}
