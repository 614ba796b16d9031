package main

import (
	"flag"
	"fmt"
	"maps"
	"slices"

	"github.com/go-safetensors/safetensors"
)

var diffCommand = &command{
	name: "diff", args: "A B", least: 2, most: 2,
	short: "compare the tensors of two files or models",
	long: `
Compares A and B: which tensors are in one only, and which have another dtype,
shape or other bytes. Where the bytes differ it says how far the values are apart:
the largest and the mean absolute difference, and the cosine of both as vectors.
Values of different dtypes are compared as numbers, those of C64 as pairs. The
order of the tensors and how they are split into files make no difference. Memory
stays small, whatever the size of the tensors. The exit code is 1 if anything
differs.

With --json, a document {"a", "b", "equal", "same", "only_in_a": [{"name", "dtype",
"shape"}, ...], "only_in_b": [...], "different": [{"name", "dtype": {"a", "b"},
"shape": {"a", "b"}, "distance": {"values", "differing", "nans", "max_abs",
"mean_abs", "cosine"}}, ...], "metadata": [{"key", "a", "b"}, ...]}. "same" counts
the tensors that do not differ. "distance" is null where values were not compared,
and a number in it that is not finite is null. "a" or "b" of a metadata key is null
where it is not there.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		structure := flags.Bool("structure", false, "compare names, dtypes and shapes only, and read no data")
		noMetadata := flags.Bool("no-metadata", false, "leave metadata out of the comparison")
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			// Plain reads: nearly all of both files is read just once.
			a, err := open(args[0], append(opts(), safetensors.WithoutMmap())...)
			if err != nil {
				return err
			}
			defer a.Close()
			b, err := open(args[1], append(opts(), safetensors.WithoutMmap())...)
			if err != nil {
				return err
			}
			defer b.Close()
			d := &difference{A: args[0], B: args[1]}
			if err := d.compare(e, a, b, !*structure); err != nil {
				return err
			}
			if !*noMetadata {
				d.compareMetadata(a.Metadata(), b.Metadata())
			}
			d.Equal = len(d.OnlyA)+len(d.OnlyB)+len(d.Different)+len(d.Metadata) == 0
			if *asJSON {
				err = d.json(e)
			} else {
				err = d.text(e)
			}
			if err == nil && !d.Equal {
				err = errInvalid
			}
			return err
		}
	},
}

// A difference is the document of diff.
type difference struct {
	A         string             `json:"a"`
	B         string             `json:"b"`
	Equal     bool               `json:"equal"`
	Same      int                `json:"same"`
	OnlyA     []outline          `json:"only_in_a"`
	OnlyB     []outline          `json:"only_in_b"`
	Different []change           `json:"different"`
	Metadata  []metadataOfEither `json:"metadata"`
}

type outline struct {
	Name  string            `json:"name"`
	DType safetensors.DType `json:"dtype"`
	Shape []int             `json:"shape"`
}

type both[T any] struct {
	A T `json:"a"`
	B T `json:"b"`
}

type change struct {
	Name     string                  `json:"name"`
	DType    both[safetensors.DType] `json:"dtype"`
	Shape    both[[]int]             `json:"shape"`
	Distance *distance               `json:"distance"`
}

type metadataOfEither struct {
	Key string `json:"key"`
	both[*string]
}

// compare goes through the tensors of a in data order, then through those that
// only b has.
func (d *difference) compare(e *env, a, b *safetensors.Model, values bool) error {
	d.OnlyA, d.OnlyB, d.Different = []outline{}, []outline{}, []change{}
	var total int64
	common := map[string]safetensors.Tensor{}
	for name, t := range b.All() {
		common[name] = t
	}
	if values {
		for name, t := range a.All() {
			if u, ok := common[name]; ok && sameOutline(t, u) {
				total += 2 * t.Size()
			}
		}
	}
	bar := newProgress(e, "comparing", total)
	defer bar.end()
	c := newComparer(bar.add)
	for name, t := range a.All() {
		u, ok := common[name]
		if !ok {
			d.OnlyA = append(d.OnlyA, outline{name, t.DType(), t.Shape()})
			continue
		}
		same := sameOutline(t, u)
		if same && values {
			var err error
			if same, err = c.equal(t, u); err != nil {
				return fmt.Errorf("comparing tensor %s: %w", show(name), err)
			}
		}
		if same {
			d.Same++
			continue
		}
		diff := change{Name: name, DType: both[safetensors.DType]{t.DType(), u.DType()}, Shape: both[[]int]{t.Shape(), u.Shape()}}
		if values && slices.Equal(t.Shape(), u.Shape()) {
			var err error
			if diff.Distance, err = c.distance(t, u); err != nil {
				return fmt.Errorf("comparing tensor %s: %w", show(name), err)
			}
		}
		d.Different = append(d.Different, diff)
	}
	for name, t := range b.All() {
		if _, err := a.Tensor(name); err != nil {
			d.OnlyB = append(d.OnlyB, outline{name, t.DType(), t.Shape()})
		}
	}
	return nil
}

func sameOutline(a, b safetensors.Tensor) bool {
	return a.DType() == b.DType() && slices.Equal(a.Shape(), b.Shape())
}

func (d *difference) compareMetadata(a, b map[string]string) {
	keys := maps.Clone(a)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, b)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		x, inA := a[k]
		y, inB := b[k]
		if inA && inB && x == y {
			continue
		}
		m := metadataOfEither{Key: k}
		if inA {
			m.A = &x
		}
		if inB {
			m.B = &y
		}
		d.Metadata = append(d.Metadata, m)
	}
}

func (d *difference) json(e *env) error {
	if d.Metadata == nil {
		d.Metadata = []metadataOfEither{}
	}
	j := newJSONWriter(e.stdout)
	if err := j.value(d); err != nil {
		return err
	}
	return j.raw("\n")
}

func (d *difference) text(e *env) error {
	w := e.stdout
	for _, t := range d.OnlyA {
		fmt.Fprintf(w, "only in A: %s %s %s\n", show(t.Name), t.DType, shape(t.Shape))
	}
	for _, t := range d.OnlyB {
		fmt.Fprintf(w, "only in B: %s %s %s\n", show(t.Name), t.DType, shape(t.Shape))
	}
	for _, t := range d.Different {
		fmt.Fprintf(w, "differs: %s %s", show(t.Name), t.DType.A)
		if t.DType.A != t.DType.B {
			fmt.Fprintf(w, " and %s", t.DType.B)
		}
		fmt.Fprintf(w, " %s", shape(t.Shape.A))
		if !slices.Equal(t.Shape.A, t.Shape.B) {
			fmt.Fprintf(w, " and %s", shape(t.Shape.B))
		}
		if t.Distance != nil {
			fmt.Fprintf(w, ": %s", t.Distance.text(t.DType.A == t.DType.B))
		}
		fmt.Fprintln(w)
	}
	const width = 60
	value := func(s *string) string {
		if s == nil {
			return "none"
		}
		return cut(*s, width)
	}
	for _, m := range d.Metadata {
		fmt.Fprintf(w, "metadata: %s: %s in A, %s in B\n", cut(m.Key, width), value(m.A), value(m.B))
	}
	_, err := fmt.Fprintf(w, "%s the same, %d different, %d only in A, %d only in B\n",
		count(d.Same, "tensor"), len(d.Different), len(d.OnlyA), len(d.OnlyB))
	return err
}

func (d *distance) text(sameDType bool) string {
	switch {
	case d.Differing > 0:
	case sameDType:
		return "the values are equal, their bytes are not"
	default:
		return "the values are equal"
	}
	s := fmt.Sprintf("%d of %s differ, max-abs %.6g, mean-abs %.6g, cosine %.9g",
		d.Differing, count(uint64(d.Values), "value"), d.MaxAbs, d.MeanAbs, d.Cosine)
	if d.NaNs > 0 {
		s += fmt.Sprintf(", %d NaN in one only", d.NaNs)
	}
	return s
}
