package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/go-safetensors/safetensors"
)

var cpCommand = &command{
	name: "cp", args: "IN OUT", least: 2, most: 2,
	short: "make a new file or model of the tensors of another",
	long: `
Writes the tensors of IN to OUT, which is a file, or a folder with files of at most
5GB and an index: if --max-shard-size is given, OUT is a folder, it ends in a
slash, or IN is a folder or an index and OUT does not end in ".safetensors". The
metadata is kept unless flags say otherwise. OUT may be IN. It is replaced at once
when all is written; until then, and if anything fails, it is as it was.

--include and --exclude take patterns in which * stands for any characters, ? for
one and [a-z] for one of those; each may be given several times. A tensor is
copied if it matches an --include, if there are any, and no --exclude.

--cast converts floating-point tensors to a floating-point DTYPE and integer ones
to an integer DTYPE; all others are copied as they are, and a note says how many.
`,
}

func init() {
	// Here, since the help of a command that its flags point to would be a cycle.
	cpCommand.define = func(flags *flag.FlagSet) func(*env, []string) error {
		cast := flags.String("cast", "", "convert to `DTYPE`, such as BF16 or F8_E4M3")
		var include, exclude names
		flags.Var(&include, "include", "copy only tensors that match `PATTERN`")
		flags.Var(&exclude, "exclude", "leave out tensors that match `PATTERN`")
		w := writingFlags(cpCommand, flags)
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			var to safetensors.DType
			if *cast != "" {
				var err error
				if to, err = safetensors.ParseDType(strings.ToUpper(*cast)); err != nil {
					return cpCommand.misuse("--cast: no dtype %s", show(*cast))
				}
			}
			m, err := open(args[0], opts()...)
			if err != nil {
				return err
			}
			defer m.Close()
			tensors, err := choose(all(m), include, exclude)
			if errors.Is(err, path.ErrBadPattern) {
				return cpCommand.misuse("%s", strings.TrimPrefix(err.Error(), "safetensors: "))
			}
			if err != nil {
				return err
			}
			if *cast != "" {
				kept, err := castAll(tensors, to)
				if err != nil {
					return err
				}
				if kept > 0 {
					fmt.Fprintf(e.stderr, "note: %s kept: not of the kind of %s\n", count(kept, "tensor"), to)
				}
			}
			in, out := input{args[0], m}, args[1]
			metadata, err := w.merged(in)
			if err != nil {
				return err
			}
			return w.save(e, out, w.folder(out, in.folder() != ""), tensors, metadata, in)
		}
	}
}

func choose(tensors map[string]safetensors.Tensor, include, exclude []string) (map[string]safetensors.Tensor, error) {
	var err error
	if exclude != nil {
		tensors, err = safetensors.Drop(tensors, exclude...)
	}
	if err == nil && include != nil {
		tensors, err = safetensors.Keep(tensors, include...)
	}
	return tensors, err
}

// castAll casts the tensors of the same kind of number and counts the others.
func castAll(tensors map[string]safetensors.Tensor, to safetensors.DType) (kept int, err error) {
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		t := tensors[name]
		if t.DType() == to {
			continue
		}
		if kindOf(t.DType()) != kindOf(to) {
			kept++
			continue
		}
		if tensors[name], err = t.Cast(to); err != nil {
			return 0, refusal{fmt.Errorf("casting tensor %s: %w", show(name), err)}
		}
	}
	return kept, nil
}

// kindOf tells floating-point numbers, integers, booleans and complex numbers
// apart, going by the letter that a dtype's name begins with.
func kindOf(d safetensors.DType) byte {
	switch c := d.String()[0]; {
	case d == safetensors.BF16:
		return 'F'
	case c == 'U':
		return 'I'
	default:
		return c
	}
}
