package interop

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// Python's package cannot write the 6-bit dtypes at all, writes F4 at its lower level only, and gives
// numpy arrays for what numpy itself has.
var (
	sixBits    = []safetensors.DType{safetensors.F6E2M3, safetensors.F6E3M2}
	serialized = without(allDTypes, sixBits...)
	numpySaves = without(serialized, safetensors.F4)
	numpyLoads = without(numpySaves, safetensors.BF16, safetensors.F8E5M2, safetensors.F8E4M3, safetensors.F8E8M0,
		safetensors.F8E4M3FNUZ, safetensors.F8E5M2FNUZ)
)

// numpyNames are the names that numpy has for what safetensors.numpy gives.
var numpyNames = map[string]string{
	"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
	"I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}

// described is a file as it goes to peer.py: the descriptions, and the bytes as blobs.
type described struct {
	Tensors  []describedTensor `json:"tensors"`
	Metadata map[string]string `json:"metadata"`
}

type describedTensor struct {
	Name   string `json:"name"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	SHA256 string `json:"sha256,omitempty"`
	Values []any  `json:"values,omitempty"`
}

func (f file) describe() (described, [][]byte) {
	d := described{Tensors: []describedTensor{}, Metadata: f.metadata}
	var blobs [][]byte
	for _, x := range f.tensors {
		d.Tensors = append(d.Tensors, describedTensor{Name: x.Name, DType: x.DType, Shape: x.Shape})
		blobs = append(blobs, x.Bytes)
	}
	return d, blobs
}

// saved has Python write the file, by one of its ops for that.
func (p *peer) saved(op string, f file) []byte {
	p.t.Helper()
	d, blobs := f.describe()
	return p.must(op, d, nil, blobs...)[0]
}

// requireLoads has Python read a file, by one of its ops for that, and expects these tensors.
func (p *peer) requireLoads(op string, f file, args any, blobs ...[]byte) described {
	p.t.Helper()
	var got described
	data := p.must(op, args, &got, blobs...)
	require.Len(p.t, got.Tensors, len(f.tensors))
	want := byName(f.tensors)
	for i, x := range got.Tensors {
		w := want[x.Name]
		if op != "deserialize" {
			w.DType = numpyNames[w.DType]
		}
		f.requireSame(p.t, w, x.DType, x.Shape, data[i])
	}
	return got
}

func TestVersions(t *testing.T) {
	var versions map[string]string
	startPeer(t).must("versions", nil, &versions)
	t.Log(versions)
	require.NotEmpty(t, versions["safetensors"])
}

func TestWeReadWhatPythonWrites(t *testing.T) {
	p := startPeer(t)
	for _, way := range []struct {
		op     string
		dtypes []safetensors.DType
	}{{"save", numpySaves}, {"serialize", serialized}} {
		r := rand.New(rand.NewPCG(4, 4))
		all := each(r, way.dtypes)
		files := []file{{tensors: all}, {tensors: all, metadata: map[string]string{"format": "np"}}, {}, {metadata: map[string]string{"é": "\x00"}}}
		for _, x := range all {
			files = append(files, file{tensors: []tensor{x}})
		}
		for _, f := range files {
			theirs := p.saved(way.op, f)
			f.requireRead(t, theirs)
			require.Equal(t, theirs, f.write(t), "we write the same bytes as Python's %s", way.op)
		}
	}
}

// If Python learns to write these, the lists above are out of date.
func TestWhatPythonCannotWrite(t *testing.T) {
	p := startPeer(t)
	for op, dtypes := range map[string][]safetensors.DType{"serialize": sixBits, "save": append(sixBits, safetensors.F4)} {
		for _, d := range dtypes {
			args, blobs := file{tensors: []tensor{randomTensor(rand.New(rand.NewPCG(0, 0)), "t", d, 4)}}.describe()
			if op == "save" {
				blobs[0] = make([]byte, 4) // as numpy holds them: a byte an element
			}
			_, err := p.call(op, args, nil, blobs...)
			require.ErrorContains(t, err, "Unknown dtype", "%s %s", op, d)
		}
	}
}

func TestPythonReadsWhatWeWrite(t *testing.T) {
	p := startPeer(t)
	r := rand.New(rand.NewPCG(5, 5))
	metadata := map[string]string{"format": "np", "b": "\u2028", "a": `"`}
	for _, way := range []struct {
		op     string
		dtypes []safetensors.DType
	}{{"deserialize", allDTypes}, {"load", numpyLoads}} {
		f := file{tensors: each(r, way.dtypes), metadata: metadata}
		p.requireLoads(way.op, f, map[string]any{"values": false}, f.write(t))
	}

	f := file{tensors: each(r, append(numpyLoads, safetensors.BF16)), metadata: metadata}
	path := filepath.Join(t.TempDir(), "ours.safetensors")
	require.NoError(t, safetensors.Save(path, f.ours(t), safetensors.WithMetadata(metadata)))
	got := p.requireLoads("load_file", f, map[string]any{"path": path, "values": false})
	require.Equal(t, metadata, got.Metadata)
}

// Numbers, not bytes: what a Go slice holds is what numpy has.
func TestPythonSeesTheSameNumbers(t *testing.T) {
	p := startPeer(t)
	var b bytes.Buffer
	_, err := safetensors.Write(&b, map[string]safetensors.Tensor{
		"f64":  safetensors.Of([]float64{0.5, -1e300, 1.0 / 3}, 3),
		"f32":  safetensors.Of([]float32{1.5, -2, 16777216, 0.25}, 2, 2),
		"i64":  safetensors.Of([]int64{-1 << 53, 1 << 53}, 2),
		"i32":  safetensors.Of([]int32{-1 << 31, 1<<31 - 1}, 2),
		"i16":  safetensors.Of([]int16{-1 << 15, 258}, 2, 1),
		"i8":   safetensors.Of([]int8{-128, 127}, 2),
		"u64":  safetensors.Of([]uint64{0, 1 << 53}, 2),
		"u32":  safetensors.Of([]uint32{1, 1<<32 - 1}, 2),
		"u16":  safetensors.Of([]uint16{1, 1<<16 - 1}, 2),
		"u8":   safetensors.Of([]uint8{0, 255}, 2),
		"bool": safetensors.Of([]bool{true, false, true}, 3),
	})
	require.NoError(t, err)
	want := map[string][]any{
		"f64": {0.5, -1e300, 1.0 / 3}, "f32": {1.5, -2.0, 16777216.0, 0.25},
		"i64": {-9007199254740992.0, 9007199254740992.0}, "i32": {-2147483648.0, 2147483647.0},
		"i16": {-32768.0, 258.0}, "i8": {-128.0, 127.0}, "u64": {0.0, 9007199254740992.0},
		"u32": {1.0, 4294967295.0}, "u16": {1.0, 65535.0}, "u8": {0.0, 255.0}, "bool": {true, false, true},
	}
	var got described
	p.must("load", map[string]any{"values": true}, &got, b.Bytes())
	require.Len(t, got.Tensors, len(want))
	for _, x := range got.Tensors {
		require.Equal(t, want[x.Name], x.Values, x.Name)
	}
}

func TestRandomFilesWithPython(t *testing.T) {
	p := startPeer(t)
	for seed := range uint64(2000) {
		f := randomFile(rand.New(rand.NewPCG(seed, 2)), serialized)
		ours := f.write(t)
		require.Equal(t, p.saved("serialize", f), ours, "seed %d", seed)
		f.requireRead(t, ours)
		p.requireLoads("deserialize", f, nil, ours)
	}
}
