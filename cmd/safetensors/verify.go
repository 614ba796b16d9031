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
	short: "check that files keep to the format",
	long: `
Checks all rules of the format, for each file of a model, and that its index
agrees with them. Reads headers only, whatever the size of the files. A PATH that
breaks a rule makes the exit code 1, one that cannot be read makes it 3.

With --json, a document {"path", "valid", "errors": [{"kind", "tensor", "file",
"message", "hint"}, ...]} for each PATH, on a line of its own. There is none for
a PATH that cannot be read. What no reader stumbles over, such as a wrong
total_size in an index, is in "warnings", which is there if there are any.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			var worst error
			for _, path := range args {
				r, err := verify(path, opts())
				if r != nil {
					if worst == nil && !r.Valid {
						worst = errInvalid
					}
					if err := r.print(e, *asJSON); err != nil {
						return err
					}
				}
				if err != nil {
					if err := e.stdout.Flush(); err != nil {
						return err
					}
					e.complain(err)
					worst = errReported
				}
			}
			return worst
		}
	},
}

// A verdict is the document of verify.
type verdict struct {
	Path     string  `json:"path"`
	Valid    bool    `json:"valid"`
	Errors   []fault `json:"errors"`
	Warnings []fault `json:"warnings,omitempty"`

	summary string
}

type fault struct {
	Kind    safetensors.Kind `json:"kind"`
	Tensor  string           `json:"tensor"`
	File    string           `json:"file"`
	Message string           `json:"message"`
	Hint    string           `json:"hint"`
	Cause   safetensors.Kind `json:"cause,omitempty"` // of shard-invalid
}

// verify returns a verdict, an error for what cannot be read, or both: of a
// model, one shard may be broken and another one out of reach.
func verify(path string, opts []safetensors.Option) (*verdict, error) {
	r := &verdict{Path: path, Errors: []fault{}}
	m, err := open(path, opts...)
	if err != nil {
		broken, unread := split(err)
		if broken == nil {
			return nil, unread
		}
		for _, fe := range broken {
			r.Errors = append(r.Errors, faultOf(fe))
		}
		if m, err := open(path, safetensors.WithCompat()); err == nil && r.Errors[0].Hint == "" {
			m.Close()
			r.Errors[0].Hint = "the reference reader accepts it all the same, as --compat does"
		}
		return r, unread
	}
	defer m.Close()
	var bytes int64
	for _, t := range m.All() {
		bytes += t.Size()
	}
	r.summary = fmt.Sprintf("%s, %s", count(m.Len(), "tensor"), size(bytes))
	if n := shardCount(m); n > 1 {
		r.summary += fmt.Sprintf(" in %d files", n)
	}
	for _, found := range m.Verify() {
		if found.Warning {
			r.Warnings = append(r.Warnings, faultOf(found.FormatError))
		} else {
			r.Errors = append(r.Errors, faultOf(found.FormatError))
		}
	}
	r.Valid = len(r.Errors) == 0
	return r, nil
}

// split takes an error apart: into what breaks the format, and the rest.
func split(err error) (broken []*safetensors.FormatError, unread error) {
	if fe, ok := err.(*safetensors.FormatError); ok {
		return []*safetensors.FormatError{fe}, nil
	}
	var parts []error
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		parts = []error{e.Unwrap()}
	}
	for _, part := range parts {
		some, other := split(part)
		broken = append(broken, some...)
		unread = errors.Join(unread, other)
	}
	if broken == nil {
		return nil, err
	}
	return broken, unread
}

// faultOf says what is said in fields of their own just once.
func faultOf(fe *safetensors.FormatError) fault {
	bare := *fe
	bare.File, bare.Hint = "", ""
	return fault{fe.Kind, fe.Tensor, fe.File, strings.TrimPrefix(bare.Error(), "safetensors: "), fe.Hint, fe.Cause}
}

func (r *verdict) print(e *env, asJSON bool) error {
	if asJSON {
		j := newJSONWriter(e.stdout)
		if err := j.value(r); err != nil {
			return err
		}
		return j.raw("\n")
	}
	if r.Valid {
		fmt.Fprintf(e.stdout, "%s: valid, %s\n", printable(r.Path), r.summary)
	} else {
		fmt.Fprintf(e.stdout, "%s: INVALID\n", printable(r.Path))
	}
	var err error
	for i, bad := range append(r.Errors, r.Warnings...) {
		what := bad.Message
		if i >= len(r.Errors) {
			what = "warning: " + what
		}
		if bad.File != "" && bad.File != r.Path {
			what = bad.File + ": " + what
		}
		_, err = fmt.Fprintf(e.stdout, "  %s\n", printable(what))
		if bad.Hint != "" {
			_, err = fmt.Fprintf(e.stdout, "    hint: %s\n", printable(bad.Hint))
		}
	}
	return err
}
