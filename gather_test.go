package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// Slices larger than the blocks in which they are read, with gaps on both sides
// of what is worth reading over.
func TestSliceLarge(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		d      safetensors.DType
		shape  []int
		ranges [][]safetensors.Range
	}{
		{safetensors.U16, []int{2500, 1500}, [][]safetensors.Range{
			{all, {1, 1500, 1}}, {all, {0, 1500, 2}}, {all, {700, 760, 1}}, {all, {1499, 1500, 1}}, {{1, 2400, 7}, {5, 1400, 5}},
		}},
		{safetensors.U8, []int{3, 5, 500, 1000}, [][]safetensors.Range{
			{{0, 3, 2}, {1, 4, 1}, {3, 499, 1}, {1, 999, 1}}, {{0, 3, 2}, {0, 5, 3}, {1, 2, 1}, {7, 9, 1}}, {all, all, {0, 500, 100}}, {all, {1, 3, 1}},
		}},
		{safetensors.F64, []int{12, 70_000}, [][]safetensors.Range{
			{all, {1, 69_999, 1}}, {all, {3, 9, 1}}, {all, {0, 70_000, 3}}, {{1, 12, 5}, {10_000, 60_000, 1}},
		}},
		{safetensors.F4, []int{1100, 3000}, [][]safetensors.Range{{all, {2, 3000, 1}}, {{0, 1100, 2}, {1000, 1100, 1}}}},
	} {
		whole := everything(c.shape)
		data := randomBytes(r, len(whole.places)*c.d.Bits()/8)
		tensors := origins(t, c.d, c.shape, data)
		for _, ranges := range c.ranges {
			picked, ok := whole.slice(ranges)
			require.True(t, ok)
			want, ok := picked.bytes(data, c.d.Bits())
			require.True(t, ok)
			for how, tensor := range tensors {
				t.Run(fmt.Sprint(c.d, c.shape, ranges, how), func(t *testing.T) {
					got, err := tensor.Slice(ranges...)
					require.NoError(t, err)
					requireTensor(t, r, want, picked.shape, got)
				})
			}
		}
	}
}

// A slice of a cast is the cast of a slice, but where the cast alone makes
// elements that lie at whole bytes.
func TestSliceOfCast(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	dtypes := []safetensors.DType{safetensors.F4, safetensors.F6E3M2, safetensors.U8, safetensors.BF16, safetensors.F32, safetensors.F64}
	taken := 0
	for range 150 {
		from, to := dtypes[r.IntN(len(dtypes))], dtypes[r.IntN(len(dtypes))]
		shape := []int{1 + r.IntN(5), 1 + r.IntN(4), 4 * (1 + r.IntN(5))}
		whole := everything(shape)
		numbers := make([]float32, len(whole.places))
		for i := range numbers {
			numbers[i] = float32(r.IntN(5))
		}
		source, err := safetensors.Of(numbers, shape...).Cast(from)
		require.NoError(t, err)
		data, err := source.Bytes()
		require.NoError(t, err)
		t.Run(fmt.Sprint(from, to, shape), func(t *testing.T) {
			for _, origin := range origins(t, from, shape, data) {
				cast, err := origin.Cast(to)
				require.NoError(t, err)
				b, err := cast.Bytes()
				require.NoError(t, err)
				from, s := cast, whole
				for range 4 {
					ranges := make([]safetensors.Range, len(s.shape))
					for i := range ranges {
						ranges[i] = randomRange(r, s.shape[i])
						if r.IntN(2) == 0 {
							ranges[i] = all
						}
					}
					next, picked, ok := requireSlice(t, r, b, from, s, ranges)
					if ok && r.IntN(3) > 0 {
						from, s = next, picked
					}
					if ok {
						taken++
					}
				}
			}
		})
	}
	require.Greater(t, taken, 1000)
}

// A cast of a few columns converts those alone.
func TestSliceOfCastConvertsNoMore(t *testing.T) {
	var r countingReader
	whole := safetensors.FromReaderAt(safetensors.U8, []int{1000, 100_000}, &r)
	cast, err := whole.Cast(safetensors.F32)
	require.NoError(t, err)
	flat, err := cast.Reshape(10, 100, 100_000)
	require.NoError(t, err)
	part, err := flat.Slice(safetensors.Range{Stop: 1}, all, safetensors.Range{Stop: 2})
	require.NoError(t, err)
	_, err = part.Bytes()
	require.NoError(t, err)
	require.Equal(t, 200, r.bytes)
}

// What a function makes is made once for each use, however the slice gathers,
// and no further than it is needed.
func TestSliceOfFunc(t *testing.T) {
	data := randomBytes(rand.New(rand.NewPCG(5, 6)), 3000*1000)
	calls, written, fail := 0, 0, error(nil)
	whole := safetensors.FromFunc(safetensors.U8, []int{3000, 1000}, func(w io.Writer) error {
		calls, written = calls+1, 0
		for row := range 3000 {
			if row == 2000 && fail != nil {
				return fail
			}
			n, err := w.Write(data[row*1000:][:1000])
			if written += n; err != nil {
				return err
			}
		}
		return nil
	})
	columns, err := whole.Slice(safetensors.Range{Stop: 2500}, safetensors.Range{Start: 100, Stop: 900})
	require.NoError(t, err)
	steps, err := columns.Reshape(2500*800/10, 10)
	require.NoError(t, err)
	steps, err = steps.Slice(all, safetensors.Range{Stop: 10, Step: 3})
	require.NoError(t, err)
	for _, s := range []safetensors.Tensor{columns, steps} {
		calls = 0
		b, err := s.Bytes()
		require.NoError(t, err)
		require.Equal(t, 1, calls)
		require.LessOrEqual(t, written, 2501*1000)
		var w bytes.Buffer
		_, err = s.WriteTo(&w)
		require.NoError(t, err)
		require.Equal(t, 2, calls)
		require.True(t, bytes.Equal(b, w.Bytes()))
		_, err = safetensors.Write(io.Discard, map[string]safetensors.Tensor{"t": s})
		require.NoError(t, err)
		require.Equal(t, 3, calls)

		stop := errors.New("stop")
		n, err := s.WriteTo(&stuckWriter{1 << 19, stop})
		require.ErrorIs(t, err, stop)
		require.EqualValues(t, 1<<19, n)
		_, err = s.WriteTo(&stuckWriter{1 << 19, nil})
		require.ErrorIs(t, err, io.ErrShortWrite)

		fail = errors.New("no more")
		_, err = s.Bytes()
		require.ErrorIs(t, err, fail)
		_, err = s.WriteTo(io.Discard)
		require.ErrorIs(t, err, fail)
		fail = nil
	}

	short := safetensors.FromFunc(safetensors.U8, []int{3, 2}, func(w io.Writer) error {
		_, err := w.Write([]byte{0, 1, 2})
		return err
	})
	s, err := short.Slice(all, safetensors.Range{Stop: 1})
	require.NoError(t, err)
	_, err = s.Bytes()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = s.WriteTo(io.Discard)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A stuck writer takes that many bytes.
type stuckWriter struct {
	left int
	err  error
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	if w.left -= n; n < len(p) {
		return n, w.err
	}
	return n, nil
}

// A slice of columns is read over its gaps, in few reads, where that is not
// much more than what is wanted.
func TestSliceReadsOverGaps(t *testing.T) {
	var r countingReader
	whole := safetensors.FromReaderAt(safetensors.U8, []int{1000, 8000}, &r)
	for _, c := range []struct {
		from, to int
		calls    int
		bytes    int
	}{
		{0, 4000, 8, 8_000_000},   // half of it
		{0, 1000, 8, 8_000_000},   // an eighth, as one rank of eight has it
		{0, 100, 1000, 100_000},   // too little of it
		{0, 7999, 8, 8_000_000},   // nearly all
		{0, 8000, 8, 8_000_000},   // all
		{7999, 8000, 1000, 1_000}, // one column
	} {
		s, err := whole.Slice(all, safetensors.Range{Start: c.from, Stop: c.to})
		require.NoError(t, err)
		p := make([]byte, s.Size()-1)
		for _, read := range []func() error{
			func() error { _, err := s.WriteTo(io.Discard); return err },
			func() error { _, err := s.ReadAt(p, 1); return err },
		} {
			r = countingReader{}
			require.NoError(t, read())
			require.LessOrEqual(t, r.calls, c.calls)
			require.LessOrEqual(t, r.bytes, c.bytes)
		}
	}
}

type countingReader struct{ calls, bytes int }

func (r *countingReader) ReadAt(p []byte, off int64) (int, error) {
	r.calls++
	r.bytes += len(p)
	return farReader{}.ReadAt(p, off)
}

func TestSliceOfFile(t *testing.T) {
	data := randomBytes(rand.New(rand.NewPCG(7, 8)), 300*4096)
	name := filepath.Join(t.TempDir(), "t.safetensors")
	whole := safetensors.New(safetensors.U8, []int{300, 4096}, data)
	require.NoError(t, safetensors.Save(name, map[string]safetensors.Tensor{"t": whole}))
	whole, err := whole.Slice(safetensors.Range{Start: 1, Stop: 300, Step: 2}, safetensors.Range{Start: 1, Stop: 4096, Step: 3})
	require.NoError(t, err)
	want, err := whole.Bytes()
	require.NoError(t, err)
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		from, err := f.Tensor("t")
		require.NoError(t, err)
		s, err := from.Slice(safetensors.Range{Start: 1, Stop: 300, Step: 2}, safetensors.Range{Start: 1, Stop: 4096, Step: 3})
		require.NoError(t, err)

		// Saved beside, over its own file, and refused in place.
		other := name + ".slice"
		tensors := map[string]safetensors.Tensor{"t": s}
		require.NoError(t, safetensors.Save(other, tensors))
		g, err := safetensors.Open(other)
		require.NoError(t, err)
		saved, err := g.Tensor("t")
		require.NoError(t, err)
		require.Equal(t, []int{150, 1365}, saved.Shape())
		b, err := saved.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, b))
		require.NoError(t, g.Close())
		require.ErrorContains(t, safetensors.Save(name, tensors, safetensors.WithInPlace()), `tensor "t" comes from that file`)

		require.NoError(t, f.Close())
		_, err = s.Bytes()
		require.ErrorIs(t, err, safetensors.ErrClosed)
		_, err = s.WriteTo(io.Discard)
		require.ErrorIs(t, err, safetensors.ErrClosed)
		_, err = from.Slice()
		require.NoError(t, err)
	}
}

// A file that is cut short while it is open is an error, whatever reads it.
func TestSliceOfShortenedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not cut a mapped file")
	}
	needFaults(t)
	name := filepath.Join(t.TempDir(), "t.safetensors")
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		require.NoError(t, safetensors.Save(name, map[string]safetensors.Tensor{
			"t": safetensors.New(safetensors.U8, []int{64, 65536}, make([]byte, 64*65536)),
		}))
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		from, err := f.Tensor("t")
		require.NoError(t, err)
		require.NoError(t, os.Truncate(name, 1<<20))
		for _, r := range []safetensors.Range{{1, 5, 1}, {0, 65536, 2}, {1, 65536, 1}} {
			s, err := from.Slice(all, r)
			require.NoError(t, err)
			_, err = s.Bytes()
			require.ErrorIs(t, err, safetensors.ErrFault)
			_, err = s.WriteTo(io.Discard)
			require.ErrorIs(t, err, safetensors.ErrFault)
		}
		require.NoError(t, f.Close())
	}
}

// The loops that one would write by hand are what slices are measured against.
func BenchmarkSlice(b *testing.B) {
	const size = 8192
	data := make([]float32, size*size)
	for i := range data {
		data[i] = float32(i)
	}
	matrix := safetensors.Of(data, size, size)
	for _, c := range []struct {
		name   string
		ranges []safetensors.Range
		hand   func(to, row []float32)
	}{
		{"columns", []safetensors.Range{all, {1000, 2000, 1}}, func(to, row []float32) { copy(to, row[1000:2000]) }},
		{"four", []safetensors.Range{all, {1000, 1004, 1}}, func(to, row []float32) { copy(to, row[1000:1004]) }},
		{"column", []safetensors.Range{all, {1000, 1001, 1}}, func(to, row []float32) { to[0] = row[1000] }},
		{"step", []safetensors.Range{all, {0, size, 2}}, func(to, row []float32) {
			for i := range to {
				to[i] = row[2*i]
			}
		}},
		{"corner", []safetensors.Range{{0, 1024, 1}, {1, 100, 3}}, func(to, row []float32) {
			for i := range to {
				to[i] = row[1+3*i]
			}
		}},
	} {
		s, err := matrix.Slice(c.ranges...)
		require.NoError(b, err)
		p := make([]float32, s.Len())
		mem, err := safetensors.Of(p).Bytes() // the same memory, so that neither has the better
		require.NoError(b, err)
		b.Run(c.name+"/slice", func(b *testing.B) {
			b.SetBytes(s.Size())
			for b.Loop() {
				if n, err := s.ReadAt(mem, 0); n != len(mem) {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/hand", func(b *testing.B) {
			b.SetBytes(s.Size())
			for b.Loop() {
				rows, cols := s.Shape()[0], s.Shape()[1]
				for i := range rows {
					c.hand(p[i*cols:(i+1)*cols], data[i*size:(i+1)*size])
				}
			}
		})
	}
}
