package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-safetensors/safetensors"
)

var lsCommand = &command{
	name: "ls", args: "PATH", least: 1, most: 1,
	short: "list the tensors",
	long: `
Lists the tensors of PATH in the order of their data, its metadata, and totals.
Reads headers only.

With --json, a document {"path", "metadata", "tensors": [{"name", "dtype",
"shape", "begin", "end", "file"}, ...]}. "metadata" is null where the file has
none and {} where it has an empty one. "begin" and "end" count bytes from the
start of the data of "file", as its header does; "file" is the shard's name as the
index has it, or the last part of PATH.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			m, err := open(args[0], opts()...)
			if err != nil {
				return err
			}
			defer m.Close()
			if *asJSON {
				return listJSON(e.stdout, args[0], m)
			}
			return list(e.stdout, m)
		}
	},
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

// lines returns the tensors in data order, shard by shard.
func lines(m *safetensors.Model) []tensorLine {
	all := make([]tensorLine, 0, m.Len())
	for shard, f := range m.Shards() {
		for _, t := range f.Header().Tensors() {
			if of, _ := m.Shard(t.Name); of != shard {
				continue // the index takes it from another shard
			}
			all = append(all, tensorLine{t.Name, t.DType, append([]int{}, t.Shape...), t.Begin, t.End, shard, ""})
		}
	}
	return all
}

func shardCount(m *safetensors.Model) (n int) {
	for range m.Shards() {
		n++
	}
	return n
}

func listJSON(w io.Writer, path string, m *safetensors.Model) error {
	return document(w, path, m.Metadata(), func(add func(tensorLine) error) error {
		for _, l := range lines(m) {
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

func list(w io.Writer, m *safetensors.Model) error {
	all, shards := lines(m), shardCount(m)
	if err := table(w, all, shards > 1); err != nil {
		return err
	}
	printMetadata(w, m.Metadata())
	return totals(w, all, shards)
}

// table prints a line for each tensor. A name that is wider than most does not
// widen the lines of all others.
func table(w io.Writer, all []tensorLine, withFile bool) error {
	const widest = 72
	cells := func(l tensorLine) [4]string {
		return [4]string{cut(l.Name, 4*widest), l.DType.String(), shape(l.Shape), size(l.End - l.Begin)}
	}
	head := [4]string{"NAME", "DTYPE", "SHAPE", "SIZE"}
	var width [4]int
	measure := func(row [4]string) {
		for i, s := range row {
			if n := utf8.RuneCountInString(s); n <= widest {
				width[i] = max(width[i], n)
			}
		}
	}
	measure(head)
	for _, l := range all {
		measure(cells(l))
	}
	line := func(row [4]string, file string) error {
		if withFile {
			file = "  " + file
		}
		_, err := fmt.Fprintf(w, "%-*s  %-*s  %-*s  %*s%s\n", width[0], row[0], width[1], row[1], width[2], row[2], width[3], row[3], file)
		return err
	}
	fileOf := func(l tensorLine) string {
		if withFile {
			return show(l.File)
		}
		return ""
	}
	err := line(head, fileOf(tensorLine{File: "FILE"}))
	for _, l := range all {
		if err == nil {
			err = line(cells(l), fileOf(l))
		}
	}
	return err
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

func totals(w io.Writer, lines []tensorLine, files int) error {
	type total struct {
		dtype      safetensors.DType
		tensors    int
		parameters uint64
		bytes      int64
	}
	var all total
	byDType := map[safetensors.DType]*total{}
	for _, t := range lines {
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
	in := ""
	if files > 1 {
		in = " in " + count(files, "file")
	}
	_, err := fmt.Fprintf(w, "\n%s%s\n", line(&all), in)
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
