package interop

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// A chain of slices, each a slice of the one before.
type chain [][]safetensors.Range

// python is what a chain is in Python, where nil is the end.
func (c chain) python() [][][3]any {
	out := make([][][3]any, len(c))
	for i, ranges := range c {
		out[i] = [][3]any{}
		for _, r := range ranges {
			var stop any
			if r.Stop != safetensors.End {
				stop = r.Stop
			}
			out[i] = append(out[i], [3]any{r.Start, stop, max(r.Step, 1)})
		}
	}
	return out
}

func (c chain) of(t safetensors.Tensor) (safetensors.Tensor, error) {
	for _, ranges := range c {
		var err error
		if t, err = t.Slice(ranges...); err != nil {
			return t, err
		}
	}
	return t, nil
}

func randomChain(r *rand.Rand, shape []int) chain {
	c := make(chain, 1+r.IntN(3))
	shape = slices.Clone(shape)
	for i := range c {
		for k := range r.IntN(len(shape) + 1) {
			size := shape[k]
			x := safetensors.Range{Stop: safetensors.End, Step: r.IntN(4)}
			if r.IntN(3) > 0 {
				x.Start = r.IntN(size + 1)
			}
			stop := size
			if r.IntN(3) > 0 {
				x.Stop = x.Start + r.IntN(size-x.Start+1)
				stop = x.Stop
			}
			step := max(x.Step, 1)
			shape[k] = (stop - x.Start + step - 1) / step
			c[i] = append(c[i], x)
		}
	}
	return c
}

// unpacked has one byte for each element under 8 bits, as numpy has them.
func unpacked(data []byte, bits int) []byte {
	out := make([]byte, len(data)*8/bits)
	for i := range out {
		for b := range bits {
			at := i*bits + b
			out[i] |= data[at/8] >> (at % 8) & 1 << b
		}
	}
	return out
}

func TestSlicesAreNumpys(t *testing.T) {
	p := startPeer(t, "slices")
	r := rand.New(rand.NewPCG(11, 12))
	compared, refused := 0, 0
	for i := range 440 {
		d := allDTypes[i%len(allDTypes)]
		shape := make([]int, r.IntN(5))
		for k := range shape {
			shape[k] = r.IntN(9)
		}
		if d.Bits() < 8 {
			shape = append(shape, 4*r.IntN(5))
		}
		x := randomTensor(r, "x", d, shape...)
		numpys := x.Bytes
		if d.Bits() < 8 {
			numpys = unpacked(x.Bytes, d.Bits())
		}

		chains := make([]chain, 20)
		python := make([][][][3]any, len(chains))
		for k := range chains {
			chains[k] = randomChain(r, shape)
			python[k] = chains[k].python()
		}
		var shapes [][]int
		want := p.must("slices", map[string]any{
			"tensor": describedTensor{Name: x.Name, DType: x.DType, Shape: shape}, "chains": python,
		}, &shapes, numpys)

		for _, whole := range []safetensors.Tensor{
			safetensors.New(d, shape, x.Bytes),
			safetensors.FromReaderAt(d, shape, bytes.NewReader(x.Bytes)),
		} {
			for k, c := range chains {
				got, err := c.of(whole)
				if errors.Is(err, safetensors.ErrSubByteMisaligned) {
					require.Less(t, d.Bits(), 8)
					refused++
					continue
				}
				require.NoError(t, err, "%s %v %v", d, shape, c)
				require.Equal(t, shapes[k], got.Shape(), "%s %v %v", d, shape, c)
				b, err := got.Bytes()
				require.NoError(t, err)
				if d.Bits() < 8 {
					b = unpacked(b, d.Bits())
				}
				require.True(t, bytes.Equal(want[k], b), "%s %v %v", d, shape, c)
				compared++
			}
		}
	}
	t.Log(compared, "slices compared,", refused, "refused for elements that share a byte")
	require.Greater(t, compared, 10_000)
}

func TestSlicesAreThoseOfSafeOpen(t *testing.T) {
	p := startPeer(t, "slices")
	r := rand.New(rand.NewPCG(13, 14))
	path := filepath.Join(t.TempDir(), "x.safetensors")
	for _, d := range numpyLoads {
		shape := []int{1 + r.IntN(6), 1 + r.IntN(6), 1 + r.IntN(6)}
		f := file{tensors: []tensor{randomTensor(r, "x", d, shape...)}}
		require.NoError(t, safetensors.Save(path, f.ours(t)))
		var chains []chain
		var python [][][][3]any
		for range 20 {
			var ranges []safetensors.Range
			for _, size := range shape {
				start := r.IntN(size)
				ranges = append(ranges, safetensors.Range{Start: start, Stop: start + 1 + r.IntN(size-start)})
			}
			chains = append(chains, chain{ranges})
			python = append(python, chain{ranges}.python())
		}
		var shapes [][]int
		want := p.must("file_slices", map[string]any{"path": path, "name": "x", "chains": python}, &shapes)

		opened, err := safetensors.Open(path)
		require.NoError(t, err)
		whole, err := opened.Tensor("x")
		require.NoError(t, err)
		for k, c := range chains {
			got, err := c.of(whole)
			require.NoError(t, err)
			require.Equal(t, shapes[k], got.Shape())
			b, err := got.Bytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[k], b), "%s %v %v", d, shape, c)
		}
		require.NoError(t, opened.Close())
	}
}
