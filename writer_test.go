package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// pattern is n bytes that differ from place to place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8*13) + seed
	}
	return b
}

// someTensors are of every kind of source, small and large.
func someTensors() map[string]safetensors.Tensor {
	large := pattern(3<<20+5, 3)
	return map[string]safetensors.Tensor{
		"small":    safetensors.New(safetensors.F32, []int{2, 3}, pattern(24, 1)),
		"scalar":   safetensors.New(safetensors.I64, nil, pattern(8, 2)),
		"empty":    safetensors.New(safetensors.BF16, []int{4, 0}, nil),
		"large":    safetensors.New(safetensors.U8, []int{len(large)}, large),
		"reader":   safetensors.FromReaderAt(safetensors.U8, []int{1 << 21}, bytes.NewReader(pattern(1<<21, 4))),
		"function": safetensors.FromFunc(safetensors.I8, []int{100_000}, writes(pattern(100_000, 5))),
		"f4":       safetensors.New(safetensors.F4, []int{2, 3}, pattern(3, 6)),
	}
}

// writes is a function for FromFunc that writes b in odd pieces.
func writes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		rest := b
		for n := 1; len(rest) > 0; n = n*3 + 1 {
			p := rest[:min(n, len(rest))]
			if _, err := w.Write(p); err != nil {
				return err
			}
			rest = rest[len(p):]
		}
		return nil
	}
}

func written(t *testing.T, tensors map[string]safetensors.Tensor, opts ...safetensors.SaveOption) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := safetensors.Write(&b, tensors, opts...)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

func one(tensor safetensors.Tensor) map[string]safetensors.Tensor {
	return map[string]safetensors.Tensor{"t": tensor}
}

func tiny() safetensors.Tensor { return safetensors.New(safetensors.U8, []int{3}, []byte{1, 2, 3}) }

func TestWriteOrderAndText(t *testing.T) {
	data := written(t, map[string]safetensors.Tensor{
		"b":                         safetensors.New(safetensors.U8, []int{1}, []byte{1}),
		"a":                         safetensors.New(safetensors.U8, []int{1}, []byte{2}),
		"B":                         safetensors.New(safetensors.U8, []int{1}, []byte{3}),
		"é\"\\\x01\x7f\n<&>\u2028/": safetensors.New(safetensors.U16, nil, []byte{4, 5}),
		"wide":                      safetensors.New(safetensors.U64, []int{0, 7}, nil),
		"bool":                      safetensors.New(safetensors.Bool, []int{1, 1}, []byte{1}),
	}, safetensors.WithMetadata(map[string]string{"z": "\t", "a": "\x1f\b\f\r"}))
	header := `{"__metadata__":{"a":"\u001f\b\f\r","z":"\t"},` +
		`"wide":{"dtype":"U64","shape":[0,7],"data_offsets":[0,0]},` +
		`"é\"\\\u0001` + "\x7f" + `\n<&>` + "\u2028" + `/":{"dtype":"U16","shape":[],"data_offsets":[0,2]},` +
		`"B":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},` +
		`"a":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},` +
		`"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},` +
		`"bool":{"dtype":"BOOL","shape":[1,1],"data_offsets":[5,6]}}`
	header += strings.Repeat(" ", (8-len(header)%8)%8)
	require.Equal(t, string(file(header, 4, 5, 3, 2, 1, 1)), string(data))
}

// The same tensors give the same bytes, whatever they come from.
func TestWriteDeterminism(t *testing.T) {
	metadata := map[string]string{"format": "pt", "a": "1", "b": "2", "c": "3"}
	first := written(t, someTensors(), safetensors.WithMetadata(metadata))
	for range 5 {
		require.True(t, bytes.Equal(first, written(t, someTensors(), safetensors.WithMetadata(maps.Clone(metadata)))))
	}
	name := filepath.Join(t.TempDir(), "first.safetensors")
	require.NoError(t, safetensors.Save(name, someTensors(), safetensors.WithMetadata(metadata)))
	saved, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, saved))
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		require.Equal(t, len(someTensors()), f.Len())
		again := written(t, maps.Collect(f.All()), safetensors.WithMetadata(f.Metadata()))
		require.True(t, bytes.Equal(first, again), how)
		copied := filepath.Join(t.TempDir(), "copied.safetensors")
		require.NoError(t, safetensors.Save(copied, maps.Collect(f.All()), safetensors.WithMetadata(f.Metadata())))
		again, err = os.ReadFile(copied)
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, again), how)
		require.NoError(t, f.Close())
	}
}

func TestWriteMetadata(t *testing.T) {
	for _, c := range []struct {
		metadata map[string]string
		header   string
	}{
		{nil, `{}`},
		{map[string]string{}, `{"__metadata__":{}}`},
		{map[string]string{"": ""}, `{"__metadata__":{"":""}}`},
		{map[string]string{"__metadata__": "x"}, `{"__metadata__":{"__metadata__":"x"}}`},
	} {
		data := written(t, nil, safetensors.WithMetadata(c.metadata))
		require.Equal(t, c.header, strings.TrimRight(string(data[8:]), " "))
		f, err := safetensors.Parse(data)
		require.NoError(t, err)
		require.Equal(t, c.metadata, f.Metadata())
	}
	// With none given, none is written.
	require.Equal(t, "{}      ", string(written(t, map[string]safetensors.Tensor{})[8:]))
}

func TestWriteAlignment(t *testing.T) {
	for _, n := range []int{1, 2, 8, 64, 4096, 1 << 16} {
		for length := range 9 {
			name := strings.Repeat("n", length)
			data := written(t, map[string]safetensors.Tensor{name: tiny()}, safetensors.WithAlignment(n))
			f, err := safetensors.Parse(data)
			require.NoError(t, err)
			require.Zero(t, f.Header().DataStart()%int64(n))
			text := strings.TrimRight(string(data[8:f.Header().DataStart()]), " ")
			require.Less(t, int(f.Header().DataStart())-8-len(text), n, "no more padding than is needed")
		}
	}
	for _, n := range []int{0, -1, -8, 3, 7, 100, math.MinInt, math.MaxInt, 1 << 27} {
		var b bytes.Buffer
		_, err := safetensors.Write(&b, nil, safetensors.WithAlignment(n))
		require.ErrorContains(t, err, "alignment", n)
		require.Zero(t, b.Len())
		name := filepath.Join(t.TempDir(), "x")
		require.ErrorContains(t, safetensors.Save(name, nil, safetensors.WithAlignment(n)), "alignment")
		require.NoFileExists(t, name)
	}
}

func TestWriteProgress(t *testing.T) {
	for _, tensors := range []map[string]safetensors.Tensor{nil, one(tiny()), someTensors()} {
		whole := int64(len(written(t, tensors)))
		var calls []int64
		progress := safetensors.WithProgress(func(done, total int64) {
			require.Equal(t, whole, total)
			calls = append(calls, done)
		})
		check := func() {
			require.NotEmpty(t, calls)
			require.IsNonDecreasing(t, append([]int64{0}, calls...))
			require.Equal(t, whole, calls[len(calls)-1])
			calls = nil
		}
		written(t, tensors, progress)
		check()
		name := filepath.Join(t.TempDir(), "x.safetensors")
		require.NoError(t, safetensors.Save(name, tensors, progress))
		check()
		require.NoError(t, safetensors.Save(name, tensors, progress, safetensors.WithInPlace()))
		check()
		f, err := safetensors.Open(name)
		require.NoError(t, err)
		require.NoError(t, safetensors.Save(filepath.Join(t.TempDir(), "y"), maps.Collect(f.All()), progress))
		check()
		require.NoError(t, f.Close())
	}
}

// What cannot be written is refused before the first byte, and the name with it.
// The ids are those of the writer_cases in testdata/cases.json.
func TestWriteRefused(t *testing.T) {
	wide := safetensors.FromReaderAt(safetensors.U8, []int{math.MaxInt}, bytes.NewReader(nil))
	for _, c := range []struct {
		id       string
		tensors  map[string]safetensors.Tensor
		metadata map[string]string
		want     error
	}{
		{"w_shape_overflow", one(safetensors.New(safetensors.U8, []int{math.MaxInt, math.MaxInt, 2}, []byte{0, 0})), nil, safetensors.ErrSizeOverflow},
		{"w_shape_overflow_in_bits", one(safetensors.New(safetensors.U64, []int{math.MaxInt, 2}, nil)), nil, overflow64(safetensors.ErrSizeOverflow, safetensors.ErrSizeMismatch)},
		{"w_shape_overflow_of_nothing", one(safetensors.New(safetensors.U64, []int{math.MaxInt, math.MaxInt, math.MaxInt, 0}, nil)), nil, safetensors.ErrSizeOverflow},
		{"w_invalid_utf8_name", map[string]safetensors.Tensor{"a\xffb": tiny()}, nil, safetensors.ErrBadName},
		{"w_surrogate_name", map[string]safetensors.Tensor{"\xed\xa0\x80": tiny()}, nil, safetensors.ErrBadName},
		{"w_metadata_name", map[string]safetensors.Tensor{"__metadata__": tiny()}, nil, safetensors.ErrBadName},
		{"w_invalid_utf8_metadata_key", nil, map[string]string{"\xff": ""}, safetensors.ErrBadName},
		{"w_invalid_utf8_metadata_value", nil, map[string]string{"k": "\xff"}, safetensors.ErrBadName},
		{"w_f4_odd", one(safetensors.New(safetensors.F4, []int{3}, []byte{1, 2})), nil, safetensors.ErrSubByteMisaligned},
		{"w_f6_odd", one(safetensors.New(safetensors.F6E2M3, []int{2}, []byte{1, 2})), nil, safetensors.ErrSubByteMisaligned},
		{"w_negative_dimension", one(safetensors.New(safetensors.U8, []int{-1}, nil)), nil, safetensors.ErrSizeOverflow},
		{"w_two_negative_dimensions", one(safetensors.New(safetensors.U8, []int{-1, -1}, []byte{1})), nil, safetensors.ErrSizeOverflow},
		{"w_too_few_bytes", one(safetensors.New(safetensors.F32, []int{2}, []byte{1, 2, 3, 4})), nil, safetensors.ErrSizeMismatch},
		{"w_too_many_bytes", one(safetensors.New(safetensors.F32, nil, make([]byte, 5))), nil, safetensors.ErrSizeMismatch},
		{"w_bytes_for_nothing", one(safetensors.New(safetensors.F32, []int{0}, make([]byte, 4))), nil, safetensors.ErrSizeMismatch},
		{"w_no_dtype", one(safetensors.New(0, []int{1}, []byte{1})), nil, safetensors.ErrUnknownDType},
		{"w_unknown_dtype", one(safetensors.New(safetensors.U64+1, []int{1}, []byte{1})), nil, safetensors.ErrUnknownDType},
		{"w_zero_tensor", one(safetensors.Tensor{}), nil, safetensors.ErrUnknownDType},
		{"w_total_overflow", map[string]safetensors.Tensor{"a": wide, "b": wide, "t": wide}, nil, overflow64(safetensors.ErrSizeOverflow, nil)},
	} {
		if c.want == nil {
			continue // on 32 bits no three tensors have so many bytes
		}
		var b bytes.Buffer
		n, err := safetensors.Write(&b, c.tensors, safetensors.WithMetadata(c.metadata))
		require.ErrorIs(t, err, c.want, c.id)
		require.Zero(t, n, c.id)
		require.Zero(t, b.Len(), c.id)
		var fe *safetensors.FormatError
		require.ErrorAs(t, err, &fe, c.id)
		if len(c.tensors) == 1 {
			for name, tensor := range c.tensors {
				require.Equal(t, name, fe.Tensor, c.id)
				_, err = tensor.Bytes()
				if c.want != safetensors.ErrBadName {
					require.ErrorIs(t, err, c.want, c.id)
					_, err = tensor.ReadAt(make([]byte, 1), 0)
					require.ErrorIs(t, err, c.want, c.id)
					_, err = tensor.WriteTo(io.Discard)
					require.ErrorIs(t, err, c.want, c.id)
					require.Zero(t, tensor.Len())
					require.Zero(t, tensor.Size())
				}
			}
		}

		dir := t.TempDir()
		name := filepath.Join(dir, "old.safetensors")
		require.NoError(t, os.WriteFile(name, []byte("old"), 0o666))
		for _, opts := range [][]safetensors.SaveOption{{safetensors.WithMetadata(c.metadata)}, {safetensors.WithMetadata(c.metadata), safetensors.WithInPlace()}} {
			require.ErrorIs(t, safetensors.Save(name, c.tensors, opts...), c.want, c.id)
			onlyOld(t, dir)
		}
	}
}

// overflow64 is what is wanted where an int has 64 bits, else other.
func overflow64(want, other error) error {
	if math.MaxInt > math.MaxInt32 {
		return want
	}
	return other
}

// onlyOld checks that dir holds the old file as it was and nothing else.
func onlyOld(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	b, err := os.ReadFile(filepath.Join(dir, "old.safetensors"))
	require.NoError(t, err)
	require.Equal(t, "old", string(b))
}

// A map cannot hold a name twice, so the case w_duplicate_name cannot be
// written; two names that a careless writer makes one of stay apart.
func TestWriteNamesStayApart(t *testing.T) {
	data := written(t, map[string]safetensors.Tensor{"\ufffd": tiny(), "?": tiny(), "": tiny()})
	f, err := safetensors.Parse(data)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"\ufffd", "?", ""}, f.Names())
}

// w_header_over_cap: 1.3 million tensors have a header that no reader opens.
func TestWriteHeaderOverLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("1.3 million tensors")
	}
	tensors := make(map[string]safetensors.Tensor, 1_300_000)
	empty := safetensors.New(safetensors.U8, []int{0}, nil)
	for i := range 1_300_000 {
		tensors[fmt.Sprintf("model.layers.%023d.weight", i)] = empty
	}
	name := filepath.Join(t.TempDir(), "x")
	err := safetensors.Save(name, tensors)
	require.ErrorIs(t, err, safetensors.ErrHeaderTooLarge)
	require.NoFileExists(t, name)

	// One long string will do as well, and one byte decides.
	exact := safetensors.DefaultMaxHeaderSize - len(`{"__metadata__":{"":""}}`)
	n, err := safetensors.Write(io.Discard, nil, safetensors.WithMetadata(map[string]string{"": strings.Repeat("x", exact)}))
	require.NoError(t, err)
	require.EqualValues(t, 8+safetensors.DefaultMaxHeaderSize, n)
	_, err = safetensors.Write(io.Discard, nil, safetensors.WithMetadata(map[string]string{"": strings.Repeat("x", exact+1)}))
	require.ErrorIs(t, err, safetensors.ErrHeaderTooLarge)
}

var errSource = errors.New("the source gave up")

// failingReaderAt gives zeros up to limit bytes and then fails.
type failingReaderAt struct {
	limit int64
	err   error
}

func (r failingReaderAt) ReadAt(p []byte, off int64) (int, error) {
	n := int(max(0, min(int64(len(p)), r.limit-off)))
	clear(p[:n])
	if n < len(p) {
		return n, r.err
	}
	return n, nil
}

// Sources that fail (w_reader_error_midway, w_short_source): the old file stays
// as it was, and no temporary one is left.
func TestSaveFailingSources(t *testing.T) {
	const size = 3 << 20
	type fn = func(w io.Writer) error
	u8 := func(write fn) safetensors.Tensor { return safetensors.FromFunc(safetensors.U8, []int{size}, write) }
	zeros := make([]byte, size)
	for _, c := range []struct {
		name string
		t    safetensors.Tensor
		want error
	}{
		{"reader ends at once", safetensors.FromReaderAt(safetensors.U8, []int{size}, bytes.NewReader(nil)), io.ErrUnexpectedEOF},
		{"reader ends early", safetensors.FromReaderAt(safetensors.U8, []int{size}, bytes.NewReader(zeros[:size-1])), io.ErrUnexpectedEOF},
		{"small reader ends early", safetensors.FromReaderAt(safetensors.U8, []int{10}, bytes.NewReader(zeros[:9])), io.ErrUnexpectedEOF},
		{"reader fails", safetensors.FromReaderAt(safetensors.U8, []int{size}, failingReaderAt{size / 2, errSource}), errSource},
		{"reader makes no progress", safetensors.FromReaderAt(safetensors.U8, []int{size}, failingReaderAt{size / 2, nil}), io.ErrNoProgress},
		{"function fails at once", u8(func(io.Writer) error { return errSource }), errSource},
		{"function fails midway", u8(func(w io.Writer) error { w.Write(zeros[:size/2]); return errSource }), errSource},
		{"function fails at its end", u8(func(w io.Writer) error { w.Write(zeros); return errSource }), errSource},
		{"function writes nothing", u8(func(io.Writer) error { return nil }), io.ErrUnexpectedEOF},
		{"function writes too little", u8(writes(zeros[:size-1])), io.ErrUnexpectedEOF},
		{"function writes too much", u8(writes(make([]byte, size+1))), safetensors.ErrSizeMismatch},
		{"function writes too much at once", u8(func(w io.Writer) error { _, err := w.Write(make([]byte, size+1)); return err }), safetensors.ErrSizeMismatch},
		{"function writes too much and hides it", u8(func(w io.Writer) error { w.Write(zeros); w.Write(zeros); return nil }), safetensors.ErrSizeMismatch},
		{"function writes into nothing", safetensors.FromFunc(safetensors.U8, []int{0}, writes([]byte{1})), safetensors.ErrSizeMismatch},
	} {
		for _, where := range []string{"a", "zz"} { // before and after another tensor
			tensors := map[string]safetensors.Tensor{where: c.t, "m": safetensors.New(safetensors.U8, []int{size}, zeros)}
			dir := t.TempDir()
			name := filepath.Join(dir, "old.safetensors")
			require.NoError(t, os.WriteFile(name, []byte("old"), 0o666))
			err := safetensors.Save(name, tensors)
			require.ErrorIs(t, err, c.want, c.name)
			require.ErrorContains(t, err, `"`+where+`"`, "the tensor is named")
			require.ErrorContains(t, err, "old.safetensors", "the file is named")
			onlyOld(t, dir)
			_, err = safetensors.Write(io.Discard, tensors)
			require.ErrorIs(t, err, c.want, c.name)
		}
		_, err := c.t.WriteTo(io.Discard)
		require.ErrorIs(t, err, c.want, c.name)
		if c.want != safetensors.ErrSizeMismatch { // what comes after the tensor is not its bytes
			_, err = c.t.Bytes()
			require.ErrorIs(t, err, c.want, c.name)
		}
	}
}

// A panic of a function goes on to the caller, and takes the temporary file along.
func TestSavePanickingSource(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "old.safetensors")
	require.NoError(t, os.WriteFile(name, []byte("old"), 0o666))
	save := func(leave func()) {
		safetensors.Save(name, one(safetensors.FromFunc(safetensors.U8, []int{3}, func(w io.Writer) error {
			w.Write([]byte{1})
			leave()
			return nil
		})))
	}
	require.PanicsWithValue(t, "no more", func() { save(func() { panic("no more") }) })
	onlyOld(t, dir)
	done := make(chan struct{})
	go func() {
		defer close(done)
		save(runtime.Goexit)
	}()
	<-done
	onlyOld(t, dir)
}

// A function may say what it likes of the error that its writer gave.
func TestFromFuncParts(t *testing.T) {
	data := pattern(1000, 9)
	made := 0
	tensor := safetensors.FromFunc(safetensors.U8, []int{10, 100}, func(w io.Writer) error {
		made++
		if err := writes(data)(w); err != nil {
			return fmt.Errorf("hidden: %v", err)
		}
		return nil
	})
	for _, r := range [][2]int{{0, 1}, {0, 1000}, {999, 1}, {1, 998}, {500, 3}, {40, 0}} {
		p := make([]byte, r[1])
		n, err := tensor.ReadAt(p, int64(r[0]))
		require.NoError(t, err, r)
		require.Equal(t, data[r[0]:r[0]+n], p)
	}
	b, err := tensor.Bytes()
	require.NoError(t, err)
	require.Equal(t, data, b)
	made = 0
	require.True(t, bytes.HasSuffix(written(t, one(tensor)), data))
	require.Equal(t, 1, made, "saving makes the bytes once")
}

// limitedWriter takes limit bytes, then fails, at once or after part of a write.
type limitedWriter struct {
	bytes.Buffer
	limit int
	err   error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if left := w.limit - w.Len(); len(p) > left {
		n, _ := w.Buffer.Write(p[:left])
		return n, w.err
	}
	return w.Buffer.Write(p)
}

func TestWriteFailingWriters(t *testing.T) {
	broken := errors.New("the disk is gone")
	small := map[string]safetensors.Tensor{
		"a": tiny(),
		"b": safetensors.FromFunc(safetensors.U8, []int{3}, writes([]byte{1, 2, 3})),
		"c": safetensors.FromReaderAt(safetensors.U8, []int{3}, bytes.NewReader([]byte{1, 2, 3})),
	}
	whole := written(t, small)
	for k := range whole {
		for _, want := range []error{broken, io.ErrShortWrite} {
			w := &limitedWriter{limit: k, err: want}
			if want == io.ErrShortWrite {
				w.err = nil // a count that is short and no error
			}
			n, err := safetensors.Write(w, small)
			require.ErrorIs(t, err, want, k)
			require.EqualValues(t, w.Len(), n)
			require.Equal(t, string(whole[:k]), w.String())
		}
	}

	large := someTensors()
	whole = written(t, large)
	for k := 0; k < len(whole); k += 300_007 {
		for _, want := range []error{broken, io.ErrShortWrite} {
			w := &limitedWriter{limit: k, err: want}
			if want == io.ErrShortWrite {
				w.err = nil
			}
			n, err := safetensors.Write(w, large)
			require.ErrorIs(t, err, want, k)
			require.EqualValues(t, w.Len(), n)
			require.True(t, bytes.Equal(whole[:k], w.Bytes()))
		}
	}

	// The function that keeps the writer's error to itself does not hide it.
	for _, size := range []int{10, 4_000_000} {
		deaf := safetensors.FromFunc(safetensors.U8, []int{size}, func(w io.Writer) error {
			for range size / 10 {
				w.Write(make([]byte, 10))
			}
			return nil
		})
		_, err := safetensors.Write(&limitedWriter{limit: 40, err: broken}, one(deaf))
		require.ErrorIs(t, err, broken)
		_, err = deaf.WriteTo(&limitedWriter{limit: 5, err: broken})
		require.ErrorIs(t, err, broken)
	}
	for _, n := range []int{-1, 1 << 30} {
		_, err := safetensors.Write(lyingWriter(n), large)
		require.Error(t, err)
	}
}

// lyingWriter says that it took so many bytes.
type lyingWriter int

func (n lyingWriter) Write(p []byte) (int, error) { return int(n), nil }

// overwrite_while_mapped and, on Windows, windows_1224.
func TestSaveOntoItself(t *testing.T) {
	if runtime.GOOS == "windows" {
		saveOntoMapped(t)
		return
	}
	name := filepath.Join(t.TempDir(), "x.safetensors")
	want := someTensors()
	require.NoError(t, safetensors.Save(name, want))
	before, err := os.ReadFile(name)
	require.NoError(t, err)
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		tensors := maps.Collect(f.All())
		tensors["new"] = tiny()
		held, err := tensors["large"].Bytes()
		require.NoError(t, err)
		require.NoError(t, safetensors.Save(name, tensors))

		// What is open stays as it was, and can be saved again.
		wantLarge, err := want["large"].Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(wantLarge, held))
		require.NotContains(t, f.Names(), "new")
		delete(tensors, "new")
		require.NoError(t, safetensors.Save(name, tensors))
		require.NoError(t, f.Close())
		after, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after))
	}
}

// saveOntoMapped is for where a file that is mapped cannot be replaced: the
// error says so, and the old file stays.
func saveOntoMapped(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, safetensors.Save(name, someTensors()))
	before, err := os.ReadFile(name)
	require.NoError(t, err)
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	err = safetensors.Save(name, maps.Collect(f.All()))
	require.ErrorContains(t, err, "mapped")
	require.ErrorContains(t, err, "Close")
	after, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	require.NoError(t, f.Close())
	require.NoError(t, safetensors.Save(name, one(tiny())))
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestSaveInPlace(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "x.safetensors")
	require.NoError(t, safetensors.Save(name, one(tiny()), safetensors.WithInPlace()))
	before, err := os.Stat(name)
	require.NoError(t, err)
	require.NoError(t, safetensors.Save(name, someTensors(), safetensors.WithInPlace()))
	require.NoError(t, safetensors.Save(name, one(tiny()), safetensors.WithInPlace()), "a shorter file leaves nothing behind")
	after, err := os.Stat(name)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "the file is written over, not replaced")
	want := written(t, one(tiny()))
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, want, got)

	// Its own tensors would be gone before they are read.
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		link := filepath.Join(dir, "link")
		_ = os.Symlink("x.safetensors", link)
		if _, err := os.Lstat(link); err == nil { // not every system has links
			require.ErrorContains(t, safetensors.Save(link, maps.Collect(f.All()), safetensors.WithInPlace()), "comes from that file")
			require.NoError(t, os.Remove(link))
		}
		require.ErrorContains(t, safetensors.Save(name, maps.Collect(f.All()), safetensors.WithInPlace()), "comes from that file")
		require.NoError(t, f.Close())
		got, err = os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Error(t, safetensors.Save(dir, one(tiny()), safetensors.WithInPlace()))
	require.Error(t, safetensors.Save(filepath.Join(dir, "no", "such"), one(tiny()), safetensors.WithInPlace()))
	require.ErrorIs(t, safetensors.Save(name, one(safetensors.FromFunc(safetensors.U8, []int{9}, func(io.Writer) error { return errSource })), safetensors.WithInPlace()), errSource)
}

func TestSaveTargets(t *testing.T) {
	dir := t.TempDir()
	require.ErrorContains(t, safetensors.Save(dir, one(tiny())), "directory")
	require.ErrorContains(t, safetensors.Save(dir+"/", one(tiny())), "directory")
	require.ErrorIs(t, safetensors.Save(filepath.Join(dir, "no", "such", "x"), one(tiny())), os.ErrNotExist)
	require.Error(t, safetensors.Save("", one(tiny())))
	require.Error(t, safetensors.Save(filepath.Join(dir, "not/a/file/"), one(tiny())))
	require.Error(t, safetensors.Save(filepath.Join(dir, "nul\x00"), one(tiny())))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	// The longest names that file systems take, and a name without a folder.
	for _, base := range []string{strings.Repeat("n", 255), strings.Repeat("é", 127), "x"} {
		name := filepath.Join(dir, base)
		require.NoError(t, safetensors.Save(name, one(tiny())))
		require.NoError(t, safetensors.Save(name, one(tiny())))
		require.NoError(t, os.Remove(name))
	}
	t.Chdir(dir)
	require.NoError(t, safetensors.Save("x", one(tiny())))
	require.NoError(t, safetensors.Save("x", one(tiny())))
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// A tensor's bytes cannot be appended to into those of the next.
func TestBytesEndWithTheTensor(t *testing.T) {
	data := written(t, map[string]safetensors.Tensor{"a": tiny(), "b": tiny()})
	f, err := safetensors.Parse(data)
	require.NoError(t, err)
	a, err := f.Tensor("a")
	require.NoError(t, err)
	b, err := a.Bytes()
	require.NoError(t, err)
	before := bytes.Clone(data)
	_ = append(b, 0xee)
	require.Equal(t, before, data)
	require.Equal(t, binary.LittleEndian.Uint64(data), uint64(f.Header().DataStart()-8))
}
