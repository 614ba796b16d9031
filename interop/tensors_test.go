package interop

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/go-safetensors/safetensors/interop/internal/reference"
	"github.com/stretchr/testify/require"
)

// allDTypes are the 22, in the order of the format's reference.
var allDTypes = []safetensors.DType{
	safetensors.Bool, safetensors.F4, safetensors.F6E2M3, safetensors.F6E3M2, safetensors.U8, safetensors.I8,
	safetensors.F8E5M2, safetensors.F8E4M3, safetensors.F8E8M0, safetensors.F8E4M3FNUZ, safetensors.F8E5M2FNUZ,
	safetensors.I16, safetensors.U16, safetensors.F16, safetensors.BF16, safetensors.I32, safetensors.U32,
	safetensors.F32, safetensors.C64, safetensors.F64, safetensors.I64, safetensors.U64,
}

// oddNames are names that a writer may get wrong.
var oddNames = []string{
	"", " ", "a", "b", "A", "a.b", "a/b", `q"uote`, `back\slash`, "\b\t\n\f\r", "\x00\x01\x0b\x1f", "\x7f", "é", "e\u0301",
	"日本語", "😀", "\u2028\u2029", "<>&'", "\ufeff", "\ufffd", "\uffff", "__metadata", "dtype", strings.Repeat("long.", 60),
}

// A tensor is what each side is told to write and expected to read.
type tensor = reference.Data

// A file is a set of tensors with metadata, nil for none.
type file struct {
	tensors  []tensor
	metadata map[string]string
}

// randomTensor makes a tensor of random bytes, as the dtype allows: every bit pattern is one of its
// values, save that a bool is 0 or 1. The last dimension is even, so that all dtypes come out in
// whole bytes; for the 6-bit ones it is a multiple of 4.
func randomTensor(r *rand.Rand, name string, d safetensors.DType, shape ...int) tensor {
	bits := d.Bits()
	for _, n := range shape {
		bits *= n
	}
	data := make([]byte, bits/8)
	for i := range data {
		data[i] = byte(r.Uint32())
		if d == safetensors.Bool {
			data[i] &= 1
		}
	}
	return tensor{Name: name, DType: d.String(), Shape: shape, Bytes: data}
}

func randomShape(r *rand.Rand, d safetensors.DType) []int {
	shape := make([]int, r.IntN(4))
	for i := range shape {
		shape[i] = r.IntN(5)
	}
	if d.Bits() < 8 {
		shape = append(shape, 4*r.IntN(3))
	}
	return shape
}

// randomFile makes a few tensors of the given dtypes, with at most one metadata key: the reference
// writes several in an order of chance.
func randomFile(r *rand.Rand, from []safetensors.DType) file {
	var f file
	used := map[string]bool{}
	for range r.IntN(7) {
		name := oddNames[r.IntN(len(oddNames))]
		if r.IntN(2) == 0 {
			name += strconv.Itoa(r.IntN(1000))
		}
		if used[name] {
			continue
		}
		used[name] = true
		d := from[r.IntN(len(from))]
		f.tensors = append(f.tensors, randomTensor(r, name, d, randomShape(r, d)...))
	}
	if r.IntN(2) == 0 {
		f.metadata = map[string]string{}
		if len(f.tensors) == 0 || r.IntN(4) > 0 { // for the exception see TestEmptyMetadataAlone
			f.metadata[oddNames[r.IntN(len(oddNames))]] = oddNames[r.IntN(len(oddNames))]
		}
	}
	return f
}

// ours gives the tensors as the library takes them.
func (f file) ours(t testing.TB) map[string]safetensors.Tensor {
	t.Helper()
	tensors := map[string]safetensors.Tensor{}
	for _, x := range f.tensors {
		d, err := safetensors.ParseDType(x.DType)
		require.NoError(t, err)
		tensors[x.Name] = safetensors.New(d, x.Shape, x.Bytes)
	}
	return tensors
}

// write gives the bytes that the library writes.
func (f file) write(t testing.TB, opts ...safetensors.SaveOption) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := safetensors.Write(&b, f.ours(t), append(opts, safetensors.WithMetadata(f.metadata))...)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

// requireRead has the library read a file and expects these tensors with these bytes.
func (f file) requireRead(t testing.TB, data []byte) {
	t.Helper()
	got, err := safetensors.Parse(data)
	require.NoError(t, err)
	require.Equal(t, f.metadata, got.Metadata())
	require.Equal(t, len(f.tensors), got.Len())
	for _, want := range f.tensors {
		x, err := got.Tensor(want.Name)
		require.NoError(t, err)
		b, err := x.Bytes()
		require.NoError(t, err)
		f.requireSame(t, want, x.DType().String(), x.Shape(), b)
	}
}

func (f file) requireSame(t testing.TB, want tensor, dtype string, shape []int, data []byte) {
	t.Helper()
	require.Equal(t, want.DType, dtype, "%q", want.Name)
	require.True(t, slices.Equal(want.Shape, shape), "%q: shape %v, not %v", want.Name, shape, want.Shape)
	require.True(t, bytes.Equal(want.Bytes, data), "%q: % x, not % x", want.Name, data, want.Bytes)
}

// each gives every dtype in several shapes.
func each(r *rand.Rand, dtypes []safetensors.DType) []tensor {
	var out []tensor
	for _, d := range dtypes {
		shapes := [][]int{{}, {1}, {16}, {3, 4}, {0}, {0, 4}, {2, 0, 4}, {1, 1, 8}}
		if d.Bits() < 8 {
			shapes = [][]int{{4}, {16}, {3, 4}, {0}, {0, 4}, {2, 0, 4}, {1, 1, 8}}
		}
		for i, shape := range shapes {
			out = append(out, randomTensor(r, d.String()+"."+strconv.Itoa(i), d, shape...))
		}
	}
	return out
}

// without gives the dtypes that are not among some.
func without(all []safetensors.DType, some ...safetensors.DType) []safetensors.DType {
	return slices.DeleteFunc(slices.Clone(all), func(d safetensors.DType) bool { return slices.Contains(some, d) })
}

func byName(tensors []tensor) map[string]tensor {
	out := map[string]tensor{}
	for _, x := range tensors {
		out[x.Name] = x
	}
	return out
}
