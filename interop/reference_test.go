package interop

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/go-safetensors/safetensors/interop/internal/need"
	"github.com/go-safetensors/safetensors/interop/internal/reference"
	"github.com/stretchr/testify/require"
)

func startReference(t *testing.T, mode string) *reference.Process {
	t.Helper()
	p, err := reference.Start(need.Reference(t), mode)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// referenceFiles are what both writers must agree on, to the byte.
func referenceFiles() map[string]file {
	r := rand.New(rand.NewPCG(22, 0))
	files := map[string]file{
		"no tensors":             {},
		"empty map":              {tensors: []tensor{randomTensor(r, "a", safetensors.U8, 1)}, metadata: map[string]string{}},
		"metadata only":          {metadata: map[string]string{"format": "pt"}},
		"odd metadata":           {metadata: map[string]string{"\x00\"\\\u2028<": "\b\t\n\f\r\x1f\x7f é😀/"}},
		"every dtype in one":     {tensors: each(r, allDTypes), metadata: map[string]string{"format": "pt"}},
		"scalars":                {tensors: []tensor{randomTensor(r, "s", safetensors.F32), randomTensor(r, "b", safetensors.Bool)}},
		"nothing in any of them": {tensors: []tensor{randomTensor(r, "z", safetensors.F32, 0), randomTensor(r, "y", safetensors.U64, 4, 0)}},
		"many dimensions":        {tensors: []tensor{randomTensor(r, "n", safetensors.U8, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1)}},
	}
	for _, x := range each(r, allDTypes) {
		files[x.Name] = file{tensors: []tensor{x}}
	}
	var names []tensor
	for _, name := range oddNames {
		names = append(names, randomTensor(r, name, safetensors.U8, 3))
		files["name "+name] = file{tensors: names[len(names)-1:]}
	}
	files["odd names"] = file{tensors: names}
	// Header lengths of every remainder by 8, so that the padding is seen to be right.
	for i := range 9 {
		files["padding"+string(rune('0'+i))] = file{tensors: []tensor{randomTensor(r, "0123456789"[:i], safetensors.I16, 2)}}
	}
	return files
}

func TestWriterGivesTheReferencesBytes(t *testing.T) {
	ref := startReference(t, "write")
	for name, f := range referenceFiles() {
		t.Run(name, func(t *testing.T) {
			want, err := ref.Write(reference.Description{Tensors: f.tensors, Metadata: f.metadata})
			require.NoError(t, err)
			require.Equal(t, want, f.write(t))
			f.requireRead(t, want)
		})
	}
}

func TestWriterGivesTheReferencesBytesForRandomFiles(t *testing.T) {
	ref := startReference(t, "write")
	for seed := range uint64(5000) {
		f := randomFile(rand.New(rand.NewPCG(seed, 1)), allDTypes)
		want, err := ref.Write(reference.Description{Tensors: f.tensors, Metadata: f.metadata})
		require.NoError(t, err)
		require.Equal(t, want, f.write(t), "seed %d", seed)
		f.requireRead(t, want)
	}
}

// The one file that the reference writes wrongly: no tensors and an empty map make it begin with
// "{}," and it does not read that itself. The library's file for the same is right.
func TestEmptyMetadataAlone(t *testing.T) {
	f := file{metadata: map[string]string{}}
	theirs, err := startReference(t, "write").Write(reference.Description{Metadata: f.metadata})
	require.NoError(t, err)
	require.Equal(t, `{},"__metadata__":{}}   `, string(theirs[8:]))

	ref := startReference(t, "check")
	v, err := ref.Check(theirs)
	require.NoError(t, err)
	require.False(t, v.Accepted)

	ours := f.write(t)
	require.Equal(t, `{"__metadata__":{}}     `, string(ours[8:]))
	v, err = ref.Check(ours)
	require.NoError(t, err)
	require.True(t, v.Accepted)
	f.requireRead(t, ours)
}

// The reference reads what it would not have written itself: other padding, sorted metadata.
func TestReferenceReadsOurFiles(t *testing.T) {
	ref := startReference(t, "check")
	metadata := map[string]string{}
	for i, k := range oddNames {
		metadata[k] = oddNames[len(oddNames)-1-i]
	}
	for name, f := range referenceFiles() {
		f.metadata = metadata
		for _, alignment := range []int{1, 8, 64, 4096} {
			file := f.write(t, safetensors.WithAlignment(alignment))
			v, err := ref.Check(file)
			require.NoError(t, err)
			require.True(t, v.Accepted, "%s, aligned to %d: %s", name, alignment, v.Message)
			require.Equal(t, metadata, v.Metadata)
			require.Len(t, v.Tensors, len(f.tensors))

			want := byName(f.tensors)
			parsed, err := safetensors.Parse(file)
			require.NoError(t, err)
			start := uint64(parsed.Header().DataStart())
			require.Zero(t, start%uint64(alignment))
			for _, x := range v.Tensors {
				shape := make([]int, len(x.Shape))
				for i, n := range x.Shape {
					shape[i] = int(n)
				}
				f.requireSame(t, want[x.Name], x.DType, shape, file[start+x.Begin:start+x.End])
			}
		}
	}
}

// The reference writes several metadata keys in an order of chance: the same header but for that.
func TestMetadataOfSeveralKeys(t *testing.T) {
	ref := startReference(t, "write")
	f := randomFile(rand.New(rand.NewPCG(3, 3)), allDTypes)
	f.metadata = map[string]string{"format": "pt", "b": "1", "a": "2", "é": "\n"}
	want, err := ref.Write(reference.Description{Tensors: f.tensors, Metadata: f.metadata})
	require.NoError(t, err)
	got := f.write(t)
	f.requireRead(t, want)
	require.Equal(t, len(want), len(got))
	require.Equal(t, sorted(want), sorted(got), "the same bytes in another order")
	require.Equal(t, got, f.write(t), "the same input gives the same bytes")
}

func sorted(b []byte) []byte {
	b = slices.Clone(b)
	slices.Sort(b)
	return b
}
