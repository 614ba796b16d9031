package safetensors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// loadFile writes a file of n tensors, small and large ones of all alignments,
// and returns its name and contents.
func loadFile(t testing.TB, n, largest int) (string, map[string][]byte) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	dtypes := []safetensors.DType{safetensors.U8, safetensors.F32, safetensors.BF16, safetensors.F64}
	want := map[string][]byte{}
	tensors := map[string]safetensors.Tensor{}
	for i := range n {
		d := dtypes[i%len(dtypes)]
		count := rnd.IntN(200)
		if i%7 == 0 {
			count = rnd.IntN(largest)
		}
		b := make([]byte, count*d.Bits()/8)
		for k := 0; k < len(b); k += 61 {
			b[k] = byte(rnd.Uint32())
		}
		name := fmt.Sprintf("t%03d", i)
		want[name] = b
		tensors[name] = safetensors.New(d, []int{count}, b)
	}
	name := filepath.Join(t.TempDir(), "load.safetensors")
	require.NoError(t, safetensors.Save(name, tensors))
	return name, want
}

func TestLoadAndStream(t *testing.T) {
	ctx := context.Background()
	name, want := loadFile(t, 60, 1<<20)
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err, how)
		require.NoError(t, f.Prefetch(ctx), how)
		require.NoError(t, f.Prefetch(ctx, "t003", "t010"), how)

		for _, names := range [][]string{nil, {"t059", "t000", "t021", "t000"}, {"t007"}} {
			loaded, err := f.Load(ctx, names...)
			require.NoError(t, err, how)
			expected := slices.Compact(slices.Sorted(slices.Values(names)))
			if names == nil {
				expected = slices.Sorted(slices.Values(f.Names()))
			}
			require.Len(t, loaded, len(expected), how)
			streamed := []string{}
			require.NoError(t, f.Stream(ctx, func(name string, tensor safetensors.Tensor) error {
				b, err := tensor.Bytes()
				require.NoError(t, err)
				require.True(t, bytes.Equal(want[name], b), name)
				streamed = append(streamed, name)
				return nil
			}, names...), how)
			require.True(t, slices.IsSortedFunc(streamed, func(a, b string) int {
				ia, _ := f.Header().Lookup(a)
				ib, _ := f.Header().Lookup(b)
				return int(ia.Begin - ib.Begin)
			}), "data order: %v", streamed)
			slices.Sort(streamed)
			require.Equal(t, expected, streamed, how)
		}

		loaded, err := f.Load(ctx)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		for name, tensor := range loaded { // they outlive Close
			b, err := tensor.Bytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[name], b), name)
		}
		_, err = f.Load(ctx)
		require.ErrorIs(t, err, safetensors.ErrClosed)
		require.ErrorIs(t, f.Prefetch(ctx), safetensors.ErrClosed)
		require.ErrorIs(t, f.Stream(ctx, func(string, safetensors.Tensor) error { return nil }), safetensors.ErrClosed)
	}
}

func TestLoadStops(t *testing.T) {
	name, _ := loadFile(t, 20, 1<<20)
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err, how)
		_, err = f.Load(context.Background(), "t001", "nothing")
		require.ErrorIs(t, err, safetensors.ErrNotFound, how)

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = f.Load(ctx)
		require.ErrorIs(t, err, context.Canceled, how)
		require.ErrorIs(t, f.Prefetch(ctx), context.Canceled, how)
		calls := 0
		count := func(string, safetensors.Tensor) error { calls++; return nil }
		require.ErrorIs(t, f.Stream(ctx, count), context.Canceled, how)
		require.Zero(t, calls)

		stop := errors.New("stop")
		require.ErrorIs(t, f.Stream(context.Background(), func(string, safetensors.Tensor) error {
			calls++
			if calls == 3 {
				return stop
			}
			return nil
		}), stop, how)
		require.Equal(t, 3, calls, how)
		require.NoError(t, f.Close())
	}
}

// A file that someone cuts short is an error on every path, never the end of
// the process.
func TestLoadCutShort(t *testing.T) {
	needFaults(t)
	ctx := context.Background()
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		name, _ := loadFile(t, 40, 1<<20)
		f, err := safetensors.Open(name, opts...)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, os.Truncate(name, 4096*3))
		_, err = f.Load(ctx)
		require.ErrorIs(t, err, safetensors.ErrFault)
		require.ErrorIs(t, f.Prefetch(ctx), safetensors.ErrFault)
		require.ErrorIs(t, f.Stream(ctx, func(string, safetensors.Tensor) error { return nil }), safetensors.ErrFault)
	}
}

func BenchmarkLoad(b *testing.B) {
	name := filepath.Join(b.TempDir(), "load.safetensors")
	tensors := map[string]safetensors.Tensor{}
	for i := range 16 {
		tensors[fmt.Sprint(i)] = safetensors.New(safetensors.U8, []int{16 << 20}, make([]byte, 16<<20))
	}
	require.NoError(b, safetensors.Save(name, tensors))
	f, err := safetensors.Open(name)
	require.NoError(b, err)
	defer f.Close()
	b.SetBytes(256 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Load(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTensor(b *testing.B) {
	name, _ := loadFile(b, 1000, 1000)
	f, err := safetensors.Open(name)
	require.NoError(b, err)
	defer f.Close()
	b.ReportAllocs()
	for b.Loop() {
		t, err := f.Tensor("t500")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := t.Bytes(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSave(b *testing.B) {
	dir := b.TempDir()
	tensors := map[string]safetensors.Tensor{}
	for i := range 16 {
		tensors[fmt.Sprint(i)] = safetensors.New(safetensors.U8, []int{16 << 20}, make([]byte, 16<<20))
	}
	run := func(name string, tensors map[string]safetensors.Tensor) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(256 << 20)
			b.ReportAllocs()
			for b.Loop() {
				if err := safetensors.Save(filepath.Join(dir, "out.safetensors"), tensors); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("memory", tensors)
	in := filepath.Join(dir, "in.safetensors")
	require.NoError(b, safetensors.Save(in, tensors))
	f, err := safetensors.Open(in)
	require.NoError(b, err)
	defer f.Close()
	for name, t := range f.All() {
		tensors[name] = t
	}
	run("file", tensors)
}
