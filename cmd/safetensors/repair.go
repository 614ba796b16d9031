package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/go-safetensors/safetensors"
)

var repairCommand = &command{
	name: "repair", args: "IN OUT", least: 2, most: 2,
	short: "write a sound file of one that breaks the format",
	long: `
Reads the file IN and writes what it holds to OUT, another file, if all bytes of its
tensors are there. It drops bytes after the last tensor, closes holes between
tensors, cleans the surroundings of the header, aligns the data, and puts tensors
and entries in the usual order; it prints what it did. A file that is broken in any
other way is refused, with the exit code 1.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		dryRun := dryRunFlag(flags)
		inPlace := inPlaceFlag(flags)
		return func(e *env, args []string) error {
			out := args[1]
			var opts []safetensors.SaveOption
			if *dryRun {
				out = os.DevNull
			}
			if *dryRun || *inPlace {
				opts = append(opts, safetensors.WithInPlace())
			}
			bar := newProgress(e, "writing", 0)
			if bar != nil {
				opts = append(opts, safetensors.WithProgress(bar.set))
			}
			var changes []string
			err := interruptible(func(ctx context.Context) (err error) {
				defer bar.end()
				changes, err = safetensors.Repair(args[0], out, append(opts, safetensors.WithContext(ctx))...)
				return err
			})
			if err != nil {
				return err
			}
			for _, change := range changes {
				fmt.Fprintln(e.stdout, printable(change))
			}
			if len(changes) == 0 {
				_, err = fmt.Fprintln(e.stdout, "nothing to repair")
			}
			return err
		}
	},
}
