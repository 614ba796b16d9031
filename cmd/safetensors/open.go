package main

import (
	"flag"

	"github.com/go-safetensors/safetensors"
)

// open opens what a PATH of the command line names: whatever kinds of PATH there
// are is decided here, for all commands.
func open(path string, opts ...safetensors.Option) (*safetensors.Model, error) {
	return safetensors.OpenModel(path, opts...)
}

// compatFlag declares --compat and returns the options that follow from it.
func compatFlag(flags *flag.FlagSet) func() []safetensors.Option {
	compat := flags.Bool("compat", false, "accept what the reference reader accepts beyond the format's text")
	return func() []safetensors.Option {
		if *compat {
			return []safetensors.Option{safetensors.WithCompat()}
		}
		return nil
	}
}
