package safetensors_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// The cases of testdata/cases.json, which testdata/README.md describes.
type fileCase struct {
	ID          string
	File        string
	Category    string
	Expectation string
	Reference   string
	Differs     bool
	Ambiguous   bool
	ErrorKind   string `json:"error_kind"`
	Hint        string
	Metadata    map[string]string
	Tensors     []caseTensor
}

type caseTensor struct {
	Name   string
	DType  safetensors.DType
	Shape  []int
	NBytes int64
	SHA256 string
	Hex    *string
}

type writerCase struct {
	ID     string
	Inputs []struct {
		Name  string
		DType safetensors.DType
		Shape []int
		Hex   string
	}
	Metadata     map[string]string
	Expectation  string
	ReferenceHex string `json:"reference_hex"`
}

var cases = func() (c struct {
	FileCases   []fileCase   `json:"file_cases"`
	WriterCases []writerCase `json:"writer_cases"`
}) {
	b, err := os.ReadFile("testdata/cases.json")
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	var wide *json.UnmarshalTypeError
	if errors.As(err, &wide) && math.MaxInt == math.MaxInt32 {
		err = nil // see tooWide; the rest was read
	}
	if err != nil {
		panic(err)
	}
	return c
}()

// tooWide is the one case with a dimension that an int of 32 bits cannot hold,
// which is refused there.
func tooWide(c fileCase) bool { return c.ID == "zero_then_huge" && math.MaxInt == math.MaxInt32 }

// opened opens one file in every way there is.
func opened(t *testing.T, name string, opts ...safetensors.Option) map[string]func() (*safetensors.File, error) {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	return map[string]func() (*safetensors.File, error){
		"Open": func() (*safetensors.File, error) { return safetensors.Open(name, opts...) },
		"WithoutMmap": func() (*safetensors.File, error) {
			return safetensors.Open(name, append(opts, safetensors.WithoutMmap())...)
		},
		"Parse": func() (*safetensors.File, error) { return safetensors.Parse(data, opts...) },
		"NewFile": func() (*safetensors.File, error) {
			return safetensors.NewFile(bytes.NewReader(data), int64(len(data)), opts...)
		},
	}
}

func TestFileCases(t *testing.T) {
	require.NotEmpty(t, cases.FileCases)
	for _, c := range cases.FileCases {
		t.Run(c.ID, func(t *testing.T) {
			name := filepath.Join("testdata", c.File)
			for how, open := range opened(t, name) {
				f, err := open()
				if tooWide(c) {
					require.ErrorIs(t, err, safetensors.ErrSizeOverflow, how)
					continue
				}
				if c.Expectation == "reject" {
					require.Error(t, err, how)
					var fe *safetensors.FormatError
					require.ErrorAs(t, err, &fe, how)
					require.Equal(t, c.ErrorKind, string(fe.Kind), "%s: %v", how, err)
					require.ErrorIs(t, err, fe.Kind)
					if c.Hint != "" {
						require.NotEmpty(t, fe.Hint, how)
					}
					continue
				}
				require.NoError(t, err, how)
				sameTensors(t, c, f)
				require.NoError(t, f.Close())
			}
		})
	}
}

func TestFileCasesCompat(t *testing.T) {
	for _, c := range cases.FileCases {
		for how, open := range opened(t, filepath.Join("testdata", c.File), safetensors.WithCompat()) {
			f, err := open()
			require.Equal(t, c.Reference == "accept" && !tooWide(c), err == nil, "%s by %s: %v", c.ID, how, err)
			if err == nil {
				if c.Expectation == "accept" {
					sameTensors(t, c, f)
				}
				require.NoError(t, f.Close())
			}
		}
	}
}

func sameTensors(t *testing.T, c fileCase, f *safetensors.File) {
	t.Helper()
	require.Equal(t, c.Metadata, f.Metadata())
	require.Equal(t, len(c.Tensors), f.Len())
	require.Len(t, f.Names(), f.Len())
	for _, want := range c.Tensors {
		got, err := f.Tensor(want.Name)
		require.NoError(t, err)
		require.Equal(t, want.DType, got.DType())
		require.Equal(t, want.Shape, got.Shape())
		require.Equal(t, want.NBytes, got.Size())
		b, err := got.Bytes()
		require.NoError(t, err)
		require.Equal(t, len(b), cap(b), "bytes must not reach into the next tensor")
		sum := sha256.Sum256(b)
		require.Equal(t, want.SHA256, hex.EncodeToString(sum[:]))
		if want.Hex != nil {
			require.Equal(t, *want.Hex, hex.EncodeToString(b))
		}
		all, err := io.ReadAll(io.NewSectionReader(got, 0, got.Size()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, all))
		var out bytes.Buffer
		n, err := got.WriteTo(&out)
		require.NoError(t, err)
		require.Equal(t, want.NBytes, n)
		require.True(t, bytes.Equal(b, out.Bytes()))
	}
	var end int64
	for name, tensor := range f.All() {
		info, ok := f.Header().Lookup(name)
		require.True(t, ok)
		require.Equal(t, end, info.Begin)
		require.Equal(t, tensor.Size(), info.End-info.Begin)
		end = info.End
	}
}

func TestWriterCases(t *testing.T) {
	tried := 0
	for _, c := range cases.WriterCases {
		if c.Expectation != "accept" {
			continue // made by hand in writer_test.go, each by its name
		}
		tried++
		tensors := map[string]safetensors.Tensor{}
		for _, in := range c.Inputs {
			data, err := hex.DecodeString(in.Hex)
			require.NoError(t, err)
			tensors[in.Name] = safetensors.New(in.DType, in.Shape, data)
		}
		var first, second bytes.Buffer
		for _, w := range []*bytes.Buffer{&first, &second} {
			n, err := safetensors.Write(w, tensors, safetensors.WithMetadata(c.Metadata))
			require.NoError(t, err, c.ID)
			require.EqualValues(t, w.Len(), n)
		}
		require.Equal(t, first.Bytes(), second.Bytes(), c.ID)
		if c.ReferenceHex != "" {
			require.Equal(t, c.ReferenceHex, hex.EncodeToString(first.Bytes()), c.ID)
		}
		f, err := safetensors.Parse(first.Bytes())
		require.NoError(t, err, c.ID)
		require.Equal(t, c.Metadata, f.Metadata())
		require.Equal(t, len(tensors), f.Len())
	}
	require.NotZero(t, tried)
}
