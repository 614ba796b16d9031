package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

func cast(t *testing.T, in safetensors.Tensor, d safetensors.DType) safetensors.Tensor {
	t.Helper()
	out, err := in.Cast(d)
	require.NoError(t, err)
	require.Equal(t, d, out.DType())
	require.Equal(t, in.Shape(), out.Shape())
	require.EqualValues(t, in.Len()*int64(d.Bits())/8, out.Size())
	return out
}

// everySource has the same elements from everywhere that a tensor can be.
func everySource(t *testing.T, d safetensors.DType, shape []int, data []byte) map[string]safetensors.Tensor {
	t.Helper()
	all := map[string]safetensors.Tensor{
		"New":          safetensors.New(d, shape, data),
		"FromReaderAt": safetensors.FromReaderAt(d, shape, bytes.NewReader(data)),
		"FromFunc": safetensors.FromFunc(d, shape, func(w io.Writer) error {
			_, err := io.Copy(w, iotest.HalfReader(bytes.NewReader(data)))
			return err
		}),
		"FromFunc, by bytes": safetensors.FromFunc(d, shape, func(w io.Writer) error {
			_, err := io.CopyBuffer(struct{ io.Writer }{w}, iotest.OneByteReader(bytes.NewReader(data)), make([]byte, 1))
			return err
		}),
	}
	for how, open := range opened(t, saved(t, map[string]safetensors.Tensor{"t": all["New"], "u": safetensors.Of([]byte{1})})) {
		f, err := open()
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		all[how] = tensorOf(t, f, "t")
	}
	return all
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// However a cast is read, it is the same bytes.
func TestCastEveryWay(t *testing.T) {
	for _, c := range []struct{ from, via, to safetensors.DType }{
		{safetensors.BF16, 0, safetensors.F32},
		{safetensors.F16, 0, safetensors.F8E5M2},
		{safetensors.F4, 0, safetensors.F32},
		{safetensors.F6E2M3, 0, safetensors.F16},
		{safetensors.F4, 0, safetensors.F6E3M2},
		{safetensors.I8, 0, safetensors.F6E2M3},
		{safetensors.F6E3M2, safetensors.F64, safetensors.F4},
		{safetensors.U16, safetensors.BF16, safetensors.C64},
	} {
		n := 12_000
		if testing.Short() {
			n = 2_400
		}
		data := noise(n * c.from.Bits() / 8)
		var want []byte
		for how, in := range everySource(t, c.from, []int{n / 100, 100}, data) {
			if c.via != 0 {
				in = cast(t, in, c.via)
			}
			out := cast(t, in, c.to)
			got, err := out.Bytes()
			require.NoError(t, err, how)
			if want == nil {
				want = got
			}
			require.True(t, bytes.Equal(want, got), "%v from %s", c, how)

			var written bytes.Buffer
			size, err := out.WriteTo(&written)
			require.NoError(t, err)
			require.Equal(t, out.Size(), size)
			require.True(t, bytes.Equal(want, written.Bytes()), "%v from %s", c, how)

			for range 50 {
				off := rand.Int64N(out.Size())
				p := make([]byte, rand.Int64N(min(out.Size()-off, 40))+1)
				if off+int64(len(p)) > out.Size() {
					p = p[:out.Size()-off]
				}
				read, err := out.ReadAt(p, off)
				require.NoError(t, err)
				require.Equal(t, len(p), read)
				require.Equal(t, want[off:off+int64(read)], p, "%v from %s at %d", c, how, off)
			}
			if c.to != safetensors.C64 {
				values, err := safetensors.Values[float64](out)
				require.NoError(t, err)
				again, err := safetensors.Values[float64](safetensors.New(c.to, out.Shape(), want))
				require.NoError(t, err)
				for i := range values {
					require.Equal(t, math.Float64bits(again[i]), math.Float64bits(values[i]))
				}
			}
		}
	}
}

// Tensors of many blocks, which several goroutines convert.
func TestCastLarge(t *testing.T) {
	const n = 4<<20 + 8 // more than fits the caches, as float32
	data := noise(2 * n)
	want := make([]byte, 4*n)
	for i := range n {
		copy(want[4*i+2:], data[2*i:2*i+2])
	}
	for how, in := range everySource(t, safetensors.BF16, []int{n}, data) {
		if how == "FromFunc, by bytes" {
			continue
		}
		out := cast(t, in, safetensors.F32)
		var written bytes.Buffer
		_, err := out.WriteTo(&written)
		require.NoError(t, err, how)
		require.True(t, bytes.Equal(want, written.Bytes()), how)
		got, err := out.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), how)
		values, err := safetensors.Values[float32](in)
		require.NoError(t, err)
		got, err = safetensors.Of(values).Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), how)
		values, err = safetensors.AppendFloat32(make([]float32, 1, n+1), in) // at an odd address
		require.NoError(t, err)
		got, err = safetensors.Of(values[1:]).Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), how)
		p := make([]byte, 2<<20)
		_, err = out.ReadAt(p, 1_000_001)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[1_000_001:1_000_001+len(p)], p), how)
	}
}

func TestCastToItself(t *testing.T) {
	in := safetensors.New(safetensors.Bool, []int{2}, []byte{0, 7})
	same := cast(t, in, safetensors.Bool)
	b, err := same.Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{0, 7}, b, "the bytes as they are")
	b, err = cast(t, in, safetensors.U8).Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1}, b)
}

func TestCastErrors(t *testing.T) {
	in := safetensors.Of([]float32{1, 2, 3})
	for _, c := range []struct {
		in   safetensors.Tensor
		to   safetensors.DType
		kind error
	}{
		{in, 0, safetensors.ErrUnknownDType},
		{in, 99, safetensors.ErrUnknownDType},
		{in, safetensors.F4, safetensors.ErrSubByteMisaligned},
		{in, safetensors.F6E3M2, safetensors.ErrSubByteMisaligned},
		{safetensors.Of([]complex64{1}), safetensors.F32, safetensors.ErrDType},
		{safetensors.Of([]complex64{1}), safetensors.Bool, safetensors.ErrDType},
		{safetensors.New(safetensors.F32, []int{2}, nil), safetensors.F16, safetensors.ErrSizeMismatch},
		{safetensors.FromReaderAt(safetensors.U8, []int{math.MaxInt32, 1 << 28}, nil), safetensors.F64, safetensors.ErrSizeOverflow},
	} {
		_, err := c.in.Cast(c.to)
		require.ErrorIs(t, err, c.kind)
	}
	_, err := safetensors.Tensor{}.Cast(safetensors.F32)
	require.Error(t, err)

	// What a number cannot become is seen when it is read.
	bad := cast(t, safetensors.Of([]float32{1, 2, 300, 4}), safetensors.U8)
	_, err = bad.Bytes()
	require.ErrorIs(t, err, safetensors.ErrValueRange)
	require.ErrorContains(t, err, "element 2 is 300, which U8 cannot hold")
	b := make([]byte, 2)
	_, err = bad.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2}, b)
	name := filepath.Join(t.TempDir(), "x.safetensors")
	err = safetensors.Save(name, map[string]safetensors.Tensor{"bad": bad})
	require.ErrorIs(t, err, safetensors.ErrValueRange)
	require.ErrorContains(t, err, "bad")
	_, err = os.Stat(name)
	require.ErrorIs(t, err, os.ErrNotExist)

	for _, d := range []safetensors.DType{safetensors.F4, safetensors.F6E2M3, safetensors.F6E3M2} {
		nan := cast(t, safetensors.Of([]float32{1, 2, 3, float32(math.NaN())}), d)
		_, err = nan.Bytes()
		require.ErrorIs(t, err, safetensors.ErrValueRange)
		require.ErrorContains(t, err, "element 3 is NaN")
	}
}

// The table at Cast.
func TestCastSpecials(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for d, want := range map[safetensors.DType]struct{ largest, above, infinity, zero float64 }{
		safetensors.F64:        {math.MaxFloat64, inf, inf, math.Copysign(0, -1)},
		safetensors.F32:        {math.MaxFloat32, inf, inf, math.Copysign(0, -1)},
		safetensors.BF16:       {0x1.fep127, inf, inf, math.Copysign(0, -1)},
		safetensors.F16:        {65504, inf, inf, math.Copysign(0, -1)},
		safetensors.F8E5M2:     {57344, inf, inf, math.Copysign(0, -1)},
		safetensors.F8E4M3:     {448, nan, nan, math.Copysign(0, -1)},
		safetensors.F8E5M2FNUZ: {57344, nan, nan, 0},
		safetensors.F8E4M3FNUZ: {240, nan, nan, 0},
		safetensors.F8E8M0:     {0x1p127, nan, nan, nan},
		safetensors.F6E3M2:     {28, 28, 28, math.Copysign(0, -1)},
		safetensors.F6E2M3:     {7.5, 7.5, 7.5, math.Copysign(0, -1)},
		safetensors.F4:         {6, 6, 6, math.Copysign(0, -1)},
	} {
		out := cast(t, safetensors.Of([]float64{want.largest, min(want.largest*1.5, math.MaxFloat64), inf, math.Copysign(0, -1)}), d)
		got, err := safetensors.Values[float64](out)
		require.NoError(t, err)
		if d == safetensors.F64 {
			got[1] = inf // there is nothing above
		}
		for i, x := range []float64{want.largest, want.above, want.infinity, want.zero} {
			require.Equal(t, x != x, got[i] != got[i], "%s %d: %v", d, i, got[i])
			if x == x {
				require.Equal(t, math.Float64bits(x), math.Float64bits(got[i]), "%s %d: %v", d, i, got[i])
			}
		}
	}
}

// Slices and casts go together: the values are those of the whole.
func TestCastSliced(t *testing.T) {
	const rows, columns = 64, 48
	data := noise(rows * columns * 2)
	for how, in := range everySource(t, safetensors.F16, []int{rows, columns}, data) {
		all, err := safetensors.Values[float32](in)
		require.NoError(t, err)
		part, err := in.Slice(safetensors.Range{Start: 3, Stop: 60, Step: 7}, safetensors.Range{Start: 8, Stop: 40})
		require.NoError(t, err)
		first := cast(t, part, safetensors.F64)
		last, err := cast(t, in, safetensors.F64).Slice(safetensors.Range{Start: 3, Stop: 60, Step: 7}, safetensors.Range{Start: 8, Stop: 40})
		require.NoError(t, err)
		for _, out := range []safetensors.Tensor{part, first, last} {
			got, err := safetensors.Values[float32](out)
			require.NoError(t, err, how)
			require.Len(t, got, 9*32)
			for i, x := range got {
				want := all[(3+i/32*7)*columns+8+i%32]
				require.True(t, x == want || x != x && want != want, "%s: %v is not %v", how, x, want)
			}
		}
	}
}

// A cast is no way around the check that a file is not written over itself.
func TestCastInPlace(t *testing.T) {
	name := saved(t, map[string]safetensors.Tensor{"w": safetensors.Of([]float32{1, 2})})
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	defer f.Close()
	before, err := os.ReadFile(name)
	require.NoError(t, err)
	half := map[string]safetensors.Tensor{"w": cast(t, tensorOf(t, f, "w"), safetensors.F16)}
	require.Error(t, safetensors.Save(name, half, safetensors.WithInPlace()))
	after, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, before, after)
	if runtime.GOOS != "windows" {
		require.NoError(t, safetensors.Save(name, half))
	}
}

// A function is called once for each use, whatever of the cast is read.
func TestCastCallsOnce(t *testing.T) {
	calls := 0
	data := noise(3000)
	in := safetensors.FromFunc(safetensors.F6E2M3, []int{4000}, func(w io.Writer) error {
		calls++
		_, err := w.Write(data)
		return err
	})
	out := cast(t, cast(t, in, safetensors.F32), safetensors.F16)
	for name, use := range map[string]func() error{
		"Bytes":   func() error { _, err := out.Bytes(); return err },
		"WriteTo": func() error { _, err := out.WriteTo(io.Discard); return err },
		"ReadAt":  func() error { _, err := out.ReadAt(make([]byte, 501), 333); return err },
		"Values":  func() error { _, err := safetensors.Values[float32](out); return err },
		"View":    func() error { _, err := safetensors.View[uint8](cast(t, out, safetensors.F8E4M3)); return err },
		"Write": func() error {
			_, err := safetensors.Write(io.Discard, map[string]safetensors.Tensor{"t": out})
			return err
		},
	} {
		calls = 0
		require.NoError(t, use(), name)
		require.Equal(t, 1, calls, name)
	}
}

func TestCastFuncFails(t *testing.T) {
	gone := errors.New("gone")
	for what, write := range map[string]func(io.Writer) error{
		"short": func(w io.Writer) error { _, err := w.Write(make([]byte, 999)); return err },
		"long":  func(w io.Writer) error { _, err := w.Write(make([]byte, 2001)); return err },
		"fails": func(w io.Writer) error {
			if _, err := w.Write(make([]byte, 11)); err != nil {
				return err
			}
			return gone
		},
	} {
		kind := map[string]error{"short": io.ErrUnexpectedEOF, "long": safetensors.ErrSizeMismatch, "fails": gone}[what]
		out := cast(t, safetensors.FromFunc(safetensors.F16, []int{1000}, write), safetensors.F32)
		_, err := out.WriteTo(io.Discard)
		require.ErrorIs(t, err, kind, what)
		_, err = out.Bytes()
		require.ErrorIs(t, err, kind, what)
		_, err = safetensors.Values[int32](out)
		require.ErrorIs(t, err, kind, what)
	}
	// The writer's error comes back, and the count of what it took.
	full := &limited{n: 1000}
	for how, in := range everySource(t, safetensors.F16, []int{4, 1000}, make([]byte, 8000)) {
		full.n = 1000
		n, err := cast(t, in, safetensors.F32).WriteTo(full)
		require.ErrorIs(t, err, errFull, how)
		require.EqualValues(t, 1000, n, how)
	}
}

var errFull = errors.New("full")

type limited struct{ n int }

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.n)
	l.n -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// Saving a cast costs a few MiB, however large it is.
func TestCastMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector has pools forget what they hold")
	}
	size := 256 << 20
	if testing.Short() {
		size = 64 << 20
	}
	name := filepath.Join(t.TempDir(), "large.safetensors")
	zeros := safetensors.FromFunc(safetensors.BF16, []int{size / 2}, func(w io.Writer) error {
		b := make([]byte, 1<<20)
		for range size / len(b) {
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, safetensors.Save(name, map[string]safetensors.Tensor{"w": zeros}))
	for how, open := range map[string]func() (*safetensors.File, error){
		"map":      func() (*safetensors.File, error) { return safetensors.Open(name) },
		"no map":   func() (*safetensors.File, error) { return safetensors.Open(name, safetensors.WithoutMmap()) },
		"function": nil,
	} {
		in := zeros
		if open != nil {
			f, err := open()
			require.NoError(t, err)
			defer f.Close()
			in = tensorOf(t, f, "w")
		}
		out := cast(t, cast(t, in, safetensors.F16), safetensors.F8E4M3)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := safetensors.Write(io.Discard, map[string]safetensors.Tensor{"w": out})
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Greater(t, n, int64(size/2))
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(24<<20), how)
	}
}

func TestCastClosed(t *testing.T) {
	name := saved(t, map[string]safetensors.Tensor{"w": safetensors.Of(make([]uint16, 8<<20))})
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		out := cast(t, tensorOf(t, f, "w"), safetensors.F32)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					_, err := out.WriteTo(io.Discard)
					if err == nil {
						_, err = safetensors.Values[int32](out)
					}
					if err != nil {
						if !errors.Is(err, safetensors.ErrClosed) {
							t.Error(fmt.Errorf("not ErrClosed: %w", err))
						}
						return
					}
				}
			})
		}
		require.NoError(t, f.Close())
		wg.Wait()
	}
}
