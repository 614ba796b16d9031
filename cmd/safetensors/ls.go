package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-safetensors/safetensors"
)

var lsCommand = &command{
	name: "ls", args: "PATH", least: 1, most: 1,
	short: "list the tensors of a file",
	long: `
Lists the tensors of PATH in the order of their data, its metadata, and totals.
Reads the header only.

With --json, a document {"path", "metadata", "tensors": [{"name", "dtype",
"shape", "begin", "end", "file"}, ...]}. "metadata" is null where the file has
none and {} where it has an empty one. "begin" and "end" count bytes from the
start of the file's data, as its header does.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		compat := compatFlag(flags)
		return func(e *env, args []string) error {
			f, err := open(args[0], compat)
			if err != nil {
				return err
			}
			defer f.Close()
			if *asJSON {
				return listJSON(e.stdout, args[0], f)
			}
			return list(e.stdout, f)
		}
	},
}

func compatFlag(flags *flag.FlagSet) *bool {
	return flags.Bool("compat", false, "accept what the reference reader accepts beyond the format's text")
}

func open(path string, compat *bool) (*safetensors.File, error) {
	var opts []safetensors.Option
	if *compat {
		opts = append(opts, safetensors.WithCompat())
	}
	return safetensors.Open(path, opts...)
}

// A tensorLine is one tensor of a document.
type tensorLine struct {
	Name   string            `json:"name"`
	DType  safetensors.DType `json:"dtype"`
	Shape  []int             `json:"shape"`
	Begin  int64             `json:"begin"`
	End    int64             `json:"end"`
	File   string            `json:"file"`
	SHA256 string            `json:"sha256,omitempty"`
}

// lines returns the tensors in data order.
func lines(path string, f *safetensors.File) []tensorLine {
	infos := f.Header().Tensors()
	all := make([]tensorLine, len(infos))
	for i, t := range infos {
		all[i] = tensorLine{Name: t.Name, DType: t.DType, Shape: t.Shape, Begin: t.Begin, End: t.End, File: filepath.Base(path)}
		if all[i].Shape == nil {
			all[i].Shape = []int{}
		}
	}
	return all
}

func listJSON(w io.Writer, path string, f *safetensors.File) error {
	return document(w, path, f.Metadata(), func(add func(tensorLine) error) error {
		for _, l := range lines(path, f) {
			if err := add(l); err != nil {
				return err
			}
		}
		return nil
	})
}

// document prints the JSON that ls and hash share, a tensor a line.
func document(w io.Writer, path string, metadata map[string]string, each func(add func(tensorLine) error) error) error {
	j := newJSONWriter(w)
	j.raw(`{"path":`)
	j.value(path)
	j.raw(`,"metadata":`)
	j.value(metadata)
	j.raw(`,"tensors":[`)
	sep := "\n"
	err := each(func(l tensorLine) error {
		j.raw(sep)
		sep = ",\n"
		return j.value(l)
	})
	if err != nil {
		return err
	}
	if sep != "\n" {
		j.raw("\n")
	}
	return j.raw("]}\n")
}

func list(w io.Writer, f *safetensors.File) error {
	infos := f.Header().Tensors()
	if err := table(w, infos); err != nil {
		return err
	}
	printMetadata(w, f.Metadata())
	return totals(w, infos)
}

// table prints a line for each tensor. A name that is wider than most does not
// widen the lines of all others.
func table(w io.Writer, infos []safetensors.TensorInfo) error {
	const widest = 72
	var cells [3]int
	row := func(use func(name, dtype, shape, size string) error) error {
		if err := use("NAME", "DTYPE", "SHAPE", "SIZE"); err != nil {
			return err
		}
		for _, t := range infos {
			if err := use(cut(t.Name, 4*widest), t.DType.String(), shape(t.Shape), size(t.End-t.Begin)); err != nil {
				return err
			}
		}
		return nil
	}
	_ = row(func(name, dtype, shape, _ string) error {
		for i, s := range [...]string{name, dtype, shape} {
			if n := utf8.RuneCountInString(s); n <= widest {
				cells[i] = max(cells[i], n)
			}
		}
		return nil
	})
	return row(func(name, dtype, shape, size string) error {
		_, err := fmt.Fprintf(w, "%-*s  %-*s  %-*s  %10s\n", cells[0], name, cells[1], dtype, cells[2], shape, size)
		return err
	})
}

// printMetadata prints as much of the metadata as a person would read.
func printMetadata(w io.Writer, m map[string]string) {
	if len(m) == 0 {
		return
	}
	const most, width = 24, 120
	fmt.Fprintf(w, "\nmetadata:\n")
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i == most {
			fmt.Fprintf(w, "  … and %d more\n", len(m)-most)
			break
		}
		fmt.Fprintf(w, "  %s = %s\n", cut(k, width), cut(m[k], width))
	}
}

func totals(w io.Writer, infos []safetensors.TensorInfo) error {
	type total struct {
		dtype      safetensors.DType
		tensors    int
		parameters uint64
		bytes      int64
	}
	var all total
	byDType := map[safetensors.DType]*total{}
	for _, t := range infos {
		of := byDType[t.DType]
		if of == nil {
			of = &total{dtype: t.DType}
			byDType[t.DType] = of
		}
		n := t.End - t.Begin
		for _, sum := range []*total{of, &all} {
			sum.tensors++
			sum.parameters += uint64(n) * 8 / uint64(t.DType.Bits())
			sum.bytes += n
		}
	}
	line := func(t *total) string {
		return fmt.Sprintf("%s, %s, %s", count(t.tensors, "tensor"), count(t.parameters, "parameter"), bothSizes(t.bytes))
	}
	_, err := fmt.Fprintf(w, "\n%s\n", line(&all))
	if len(byDType) < 2 {
		return err
	}
	widest := 0
	for d := range byDType {
		widest = max(widest, len(d.String()))
	}
	for _, t := range slices.SortedFunc(maps.Values(byDType), func(a, b *total) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.dtype, b.dtype))
	}) {
		_, err = fmt.Fprintf(w, "  %s%s  %s\n", t.dtype, strings.Repeat(" ", widest-len(t.dtype.String())), line(t))
	}
	return err
}
