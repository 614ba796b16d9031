package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

type tensors = map[string]safetensors.Tensor

func save(t *testing.T, path string, tensors tensors, opts ...safetensors.SaveOption) string {
	t.Helper()
	require.NoError(t, safetensors.Save(path, tensors, opts...))
	return path
}

// saved writes tensors to a file of their own.
func saved(t *testing.T, tensors tensors, opts ...safetensors.SaveOption) string {
	t.Helper()
	return save(t, filepath.Join(t.TempDir(), "model.safetensors"), tensors, opts...)
}

type diffDocument struct {
	A, B      string
	Equal     bool
	Same      int
	OnlyA     []outline `json:"only_in_a"`
	OnlyB     []outline `json:"only_in_b"`
	Different []change
	Metadata  []struct {
		Key  string
		A, B *string
	}
}

func diffOf(t *testing.T, want int, args ...string) (d diffDocument) {
	t.Helper()
	code, out, errs := call(append([]string{"diff", "--json"}, args...)...)
	require.Equal(t, want, code, errs)
	decode(t, out, &d)
	require.Equal(t, want == exitFine, d.Equal)
	return d
}

func TestEqualFindsEveryByte(t *testing.T) {
	// More than one block and more than one unit of work.
	data := make([]byte, 16*blockBytes*2+blockBytes+5)
	for i := 0; i+8 <= len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rand.Uint64())
	}
	other := slices.Clone(data)
	var done atomic.Int64
	c := newComparer(func(n int64) { done.Add(n) })
	same, err := c.equal(safetensors.Of(data), safetensors.Of(other))
	require.NoError(t, err)
	require.True(t, same)
	require.EqualValues(t, 2*len(data), done.Load())
	for _, at := range []int{0, 1, blockBytes - 1, blockBytes, 16*blockBytes - 1, 16 * blockBytes, len(data) - 1} {
		other[at]++
		same, err := c.equal(safetensors.Of(data), safetensors.Of(other))
		require.NoError(t, err)
		require.False(t, same, "byte %d", at)
		other[at]--
	}
}

func TestDiffDistance(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	floats := func(v ...float64) safetensors.Tensor { return safetensors.Of(v) }
	cast := func(d safetensors.DType, v ...float64) safetensors.Tensor {
		c, err := floats(v...).Cast(d)
		require.NoError(t, err)
		return c
	}
	for name, c := range map[string]struct {
		a, b           safetensors.Tensor
		differing, nan int64
		most, mean     any
		cosine         any
	}{
		"apart":          {floats(1, 2, 3, 4), floats(1, 2, 5, 3), 2, 0, 2.0, 0.75, 32 / math.Sqrt(30) / math.Sqrt(39)},
		"opposite":       {floats(1, -2), floats(-1, 2), 2, 0, 4.0, 3.0, -1.0},
		"zero":           {floats(0, 0), floats(3, 4), 2, 0, 4.0, 3.5, 0.0},
		"signs of zero":  {floats(0), floats(math.Copysign(0, -1)), 0, 0, 0.0, 0.0, 1.0},
		"NaN in one":     {floats(nan, 1), floats(1, 1), 1, 1, 0.0, 0.0, 1.0},
		"NaN in all":     {floats(nan, 3), floats(math.Float64frombits(math.Float64bits(nan)^2), 3), 0, 0, 0.0, 0.0, 1.0},
		"only NaN":       {floats(nan), floats(0), 1, 1, 0.0, 0.0, 1.0},
		"infinite":       {floats(inf, 2), floats(2, 2), 1, 0, nil, nil, nil},
		"same infinity":  {floats(inf, 2), floats(inf, 3), 1, 0, 1.0, 0.5, nil},
		"another dtype":  {floats(1, 2.5), cast(safetensors.BF16, 1, 2.5), 0, 0, 0.0, 0.0, 1.0},
		"rounded":        {floats(1, 256), cast(safetensors.BF16, 1, 257), 0, 0, 0.0, 0.0, 1.0},
		"narrow":         {cast(safetensors.F4, 1, 6), cast(safetensors.F4, 1, 4), 1, 0, 2.0, 1.0, 25 / math.Sqrt(37) / math.Sqrt(17)},
		"six bits":       {cast(safetensors.F6E2M3, 1, 6, 0, 0), cast(safetensors.F6E2M3, 1, 4, 0, 0), 1, 0, 2.0, 0.5, 25 / math.Sqrt(37) / math.Sqrt(17)},
		"integers":       {safetensors.Of([]int64{-5}), safetensors.Of([]int64{5}), 1, 0, 10.0, 10.0, -1.0},
		"unsigned":       {safetensors.Of([]uint64{1 << 63}), safetensors.Of([]uint64{0}), 1, 0, 1.0 * (1 << 63), 1.0 * (1 << 63), 0.0},
		"integer, float": {safetensors.Of([]int8{5}), floats(4), 1, 0, 1.0, 1.0, 1.0},
		"booleans":       {safetensors.Of([]bool{true, false}), safetensors.Of([]bool{true, true}), 1, 0, 1.0, 0.5, 1 / math.Sqrt2},
		"complex":        {safetensors.Of([]complex64{1 + 2i}), safetensors.Of([]complex64{1 + 4i}), 1, 0, 2.0, 1.0, 9 / math.Sqrt(5) / math.Sqrt(17)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := saved(t, tensors{"t": c.a}), saved(t, tensors{"t": c.b})
			d := diffOf(t, exitInvalid, a, b)
			require.Len(t, d.Different, 1)
			got := d.Different[0].Distance
			require.NotNil(t, got)
			require.Equal(t, c.differing, got.Differing)
			require.Equal(t, c.nan, got.NaNs)
			// Decoding cannot tell null from 0.
			_, out, _ := call("diff", "--json", a, b)
			var raw struct {
				Different []struct{ Distance map[string]any }
			}
			require.NoError(t, json.Unmarshal([]byte(out), &raw))
			for key, want := range map[string]any{"max_abs": c.most, "mean_abs": c.mean, "cosine": c.cosine} {
				got := raw.Different[0].Distance[key]
				if want == nil {
					require.Nil(t, got, key)
				} else {
					require.InDelta(t, want, got, 1e-14*math.Abs(want.(float64)), key)
				}
			}
			code, out, _ := call("diff", a, b)
			require.Equal(t, exitInvalid, code)
			require.Equal(t, c.differing == 0, strings.Contains(out, "the values are equal"))
		})
	}
}

// A tensor of several units of work has the distance that a plain loop finds.
func TestDiffLarge(t *testing.T) {
	n := 1<<20*2 + 12345
	x, y := make([]float32, n), make([]float32, n)
	var most, sum, dot, aa, bb float64
	for i := range x {
		x[i] = rand.Float32() - 0.5
		y[i] = x[i] + (rand.Float32()-0.5)/64
		a, b := float64(x[i]), float64(y[i])
		most = max(most, math.Abs(a-b))
		sum += math.Abs(a - b)
		dot, aa, bb = dot+a*b, aa+a*a, bb+b*b
	}
	a, b := saved(t, tensors{"t": safetensors.Of(x)}), saved(t, tensors{"t": safetensors.Of(y)})
	d := diffOf(t, exitInvalid, a, b).Different[0].Distance
	require.EqualValues(t, most, d.MaxAbs)
	require.InEpsilon(t, sum/float64(n), float64(d.MeanAbs), 1e-9)
	require.InEpsilon(t, dot/math.Sqrt(aa)/math.Sqrt(bb), float64(d.Cosine), 1e-9)
	for range 3 {
		require.Equal(t, d, diffOf(t, exitInvalid, a, b).Different[0].Distance, "the same sums whoever adds them")
	}
}

func TestDiffStructure(t *testing.T) {
	one := safetensors.Of([]float32{1, 2, 3, 4})
	wide, err := one.Reshape(2, 2)
	require.NoError(t, err)
	a := saved(t, tensors{"same": one, "a": one, "shape": one, "dtype": one, "values": one},
		safetensors.WithMetadata(map[string]string{"k": "1", "only a": ""}))
	b := saved(t, tensors{"same": one, "b": one, "shape": wide, "dtype": safetensors.Of([]int32{1, 2, 3, 4}),
		"values": safetensors.Of([]float32{1, 2, 3, 5})}, safetensors.WithMetadata(map[string]string{"k": "2"}))
	d := diffOf(t, exitInvalid, a, b)
	require.Equal(t, 1, d.Same)
	require.Equal(t, []outline{{"a", safetensors.F32, []int{4}}}, d.OnlyA)
	require.Equal(t, []outline{{"b", safetensors.F32, []int{4}}}, d.OnlyB)
	require.Len(t, d.Different, 3)
	for _, c := range d.Different {
		require.Equal(t, c.Name == "shape", c.Distance == nil)
	}
	require.Len(t, d.Metadata, 2)
	require.Equal(t, "k", d.Metadata[0].Key)
	require.Equal(t, "1", *d.Metadata[0].A)
	require.Equal(t, "2", *d.Metadata[0].B)
	require.Equal(t, "", *d.Metadata[1].A)
	require.Nil(t, d.Metadata[1].B)

	d = diffOf(t, exitInvalid, "--structure", "--no-metadata", a, b)
	require.Equal(t, 2, d.Same, "values are not compared")
	require.Empty(t, d.Metadata)
	for _, c := range d.Different {
		require.Nil(t, c.Distance)
	}

	t.Chdir(t.TempDir())
	require.NoError(t, os.Link(a, "a"))
	require.NoError(t, os.Link(b, "b"))
	golden(t, "diff_text", "diff", "a", "b")

	// Metadata alone makes a difference, unless it is not asked for.
	c := saved(t, tensors{"same": one}, safetensors.WithMetadata(map[string]string{}))
	e := saved(t, tensors{"same": one}, safetensors.WithMetadata(map[string]string{"format": "pt"}))
	diffOf(t, exitInvalid, c, e)
	diffOf(t, exitFine, c, e, "--no-metadata")
}

func TestDiffUnreadable(t *testing.T) {
	good := saved(t, tensors{"t": safetensors.Of([]uint8{1})})
	missing := filepath.Join(t.TempDir(), "missing")
	bad := filepath.Join(shared, "gap_between.safetensors")
	for _, c := range []struct {
		a, b string
		want int
	}{{good, missing, exitFailed}, {missing, good, exitFailed}, {good, bad, exitInvalid}, {bad, good, exitInvalid}} {
		code, out, errs := call("diff", c.a, c.b)
		require.Equal(t, c.want, code)
		require.Empty(t, out)
		require.NotEmpty(t, errs)
	}
}

// A file that is cut short while it is compared is an error, not a difference.
func TestDiffCutShort(t *testing.T) {
	data := make([]byte, 1<<20)
	a, b := saved(t, tensors{"t": safetensors.Of(data)}), saved(t, tensors{"t": safetensors.Of(data)})
	f, err := open(a, safetensors.WithoutMmap())
	require.NoError(t, err)
	defer f.Close()
	g, err := open(b, safetensors.WithoutMmap())
	require.NoError(t, err)
	defer g.Close()
	require.NoError(t, os.Truncate(b, 1<<19))
	x, err := f.Tensor("t")
	require.NoError(t, err)
	y, err := g.Tensor("t")
	require.NoError(t, err)
	c := newComparer(func(int64) {})
	_, err = c.equal(x, y)
	require.ErrorIs(t, err, safetensors.ErrFault)
	_, err = c.distance(x, y)
	require.ErrorIs(t, err, safetensors.ErrFault)
}

func BenchmarkDiffEqual(b *testing.B) {
	const n = 256 << 20
	dir := b.TempDir()
	for _, name := range []string{"a", "b"} {
		require.NoError(b, safetensors.Save(filepath.Join(dir, name), tensors{"t": safetensors.Of(make([]byte, n))}))
	}
	b.SetBytes(2 * n)
	for b.Loop() {
		code, _, errs := call("diff", filepath.Join(dir, "a"), filepath.Join(dir, "b"))
		require.Equal(b, exitFine, code, errs)
	}
}
