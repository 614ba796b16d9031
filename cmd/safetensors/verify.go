package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/go-safetensors/safetensors"
)

var verifyCommand = &command{
	name: "verify", args: "PATH...", least: 1, most: -1,
	short: "check that a file keeps to the format",
	long: `
Checks all rules of the format. Reads the header only, whatever the size of the
file. A file that breaks a rule makes the exit code 1, one that cannot be read
makes it 3.

With --json, a document {"path", "valid", "errors": [{"kind", "tensor", "file",
"message", "hint"}, ...]} for each PATH, on a line of its own. There is none for
a PATH that cannot be read.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		compat := compatFlag(flags)
		return func(e *env, args []string) error {
			var worst error
			for _, path := range args {
				r, err := verify(path, compat)
				if err != nil {
					if e.stdout.Flush() != nil {
						return err
					}
					// The last one is printed by whoever called.
					if worst != nil && !errors.Is(worst, errInvalid) {
						e.report(worst)
					}
					worst = err
					continue
				}
				if *asJSON {
					err = r.json(e)
				} else {
					err = r.text(e)
				}
				if err != nil {
					return err
				}
				if !r.Valid && worst == nil {
					worst = errInvalid
				}
			}
			return worst
		}
	},
}

// A verdict is the document of verify.
type verdict struct {
	Path   string  `json:"path"`
	Valid  bool    `json:"valid"`
	Errors []fault `json:"errors"`

	tensors int
	bytes   int64
}

type fault struct {
	Kind    safetensors.Kind `json:"kind"`
	Tensor  string           `json:"tensor"`
	File    string           `json:"file"`
	Message string           `json:"message"`
	Hint    string           `json:"hint"`
}

// verify returns an error only where the file cannot be read.
func verify(path string, compat *bool) (*verdict, error) {
	r := &verdict{Path: path, Errors: []fault{}}
	f, err := open(path, compat)
	if err == nil {
		defer f.Close()
		r.Valid, r.tensors, r.bytes = true, f.Len(), f.Header().DataSize()
		return r, nil
	}
	var fe *safetensors.FormatError
	if !errors.As(err, &fe) {
		return nil, err
	}
	bad := faultOf(fe)
	if !*compat && bad.Hint == "" {
		anyway := true
		if f, err := open(path, &anyway); err == nil {
			f.Close()
			bad.Hint = "the reference reader accepts it all the same, as --compat does"
		}
	}
	r.Errors = append(r.Errors, bad)
	return r, nil
}

// faultOf says what is said in fields of their own just once.
func faultOf(fe *safetensors.FormatError) fault {
	bare := *fe
	bare.File, bare.Hint = "", ""
	return fault{fe.Kind, fe.Tensor, fe.File, strings.TrimPrefix(bare.Error(), "safetensors: "), fe.Hint}
}

func (r *verdict) json(e *env) error {
	j := newJSONWriter(e.stdout)
	if err := j.value(r); err != nil {
		return err
	}
	return j.raw("\n")
}

func (r *verdict) text(e *env) error {
	if r.Valid {
		_, err := fmt.Fprintf(e.stdout, "%s: valid, %s, %s\n", printable(r.Path), count(r.tensors, "tensor"), size(r.bytes))
		return err
	}
	for _, bad := range r.Errors {
		fmt.Fprintf(e.stdout, "%s: INVALID: %s\n", printable(r.Path), printable(bad.Message))
		if bad.Hint != "" {
			fmt.Fprintf(e.stdout, "  hint: %s\n", printable(bad.Hint))
		}
	}
	return nil
}
