package interop

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// Floats that numpy or ml_dtypes hold in 16 bits or less.
var narrowFloats = []safetensors.DType{
	safetensors.F4, safetensors.F6E2M3, safetensors.F6E3M2, safetensors.F8E5M2, safetensors.F8E4M3, safetensors.F8E8M0,
	safetensors.F8E4M3FNUZ, safetensors.F8E5M2FNUZ, safetensors.F16, safetensors.BF16,
}

func flat(d safetensors.DType, data []byte) safetensors.Tensor {
	return safetensors.New(d, []int{len(data) * 8 / d.Bits()}, data)
}

// requireCast converts the tensor here and in Python. Every bit is to be the
// same, but for the bits of a NaN.
func (p *peer) requireCast(in safetensors.Tensor, to safetensors.DType) {
	p.t.Helper()
	data, err := in.Bytes()
	require.NoError(p.t, err)
	out, err := in.Cast(to)
	require.NoError(p.t, err)
	got, err := out.Bytes()
	require.NoError(p.t, err)
	theirs := p.must("cast", map[string]any{"from": in.DType(), "to": to}, nil, data)
	want, nans := theirs[0], theirs[1]
	require.Equal(p.t, len(want), len(got))
	require.EqualValues(p.t, in.Len(), len(nans))
	if string(want) == string(got) {
		return
	}
	isNaN := func(i int) bool {
		x := math.Float32frombits(binary.LittleEndian.Uint32(got[8*i:]))
		return x != x && binary.LittleEndian.Uint32(got[8*i+4:]) == 0
	}
	if to != safetensors.C64 {
		values, err := safetensors.Values[float64](out)
		require.NoError(p.t, err)
		isNaN = func(i int) bool { return values[i] != values[i] }
	}
	bits := to.Bits()
	for i := range nans {
		if nans[i] == 1 && isNaN(i) {
			continue
		}
		lo, hi := i*bits/8, (i*bits+bits+7)/8 // whole bytes: a neighbour may be at fault
		if string(want[lo:hi]) != string(got[lo:hi]) {
			values, _ := safetensors.Values[float64](in)
			p.t.Fatalf("%s to %s: element %d, %v: got %x, want %x", in.DType(), to, i, values[i], got[lo:hi], want[lo:hi])
		}
	}
}

// packed has these codes of a dtype of up to 16 bits.
func packed(d safetensors.DType, codes []int) safetensors.Tensor {
	data := make([]byte, len(codes)*d.Bits()/8)
	for i, code := range codes {
		for bit := range d.Bits() {
			at := i*d.Bits() + bit
			data[at/8] |= byte(code>>bit&1) << (at % 8)
		}
	}
	return flat(d, data)
}

// numbers is codes without those that are NaN, and without up to three more so
// that their number is right for every dtype.
func numbers(t *testing.T, d safetensors.DType, codes []int) []int {
	values, err := safetensors.Values[float32](packed(d, codes))
	require.NoError(t, err)
	var kept []int
	for i, x := range values {
		if x == x {
			kept = append(kept, codes[i])
		}
	}
	return kept[:len(kept)&^3]
}

// All codes that there are, to all floats and back to bool.
func TestEveryCode(t *testing.T) {
	p := startPeer(t, "casts")
	for _, from := range append(narrowFloats, safetensors.Bool, safetensors.U8, safetensors.I8, safetensors.U16, safetensors.I16) {
		codes := make([]int, 1<<from.Bits())
		for i := range codes {
			codes[i] = i
		}
		if from == safetensors.Bool {
			codes = []int{0, 1, 1, 0}
		}
		in := packed(from, codes)
		for _, to := range append(narrowFloats, safetensors.F32, safetensors.F64, safetensors.C64, safetensors.Bool) {
			if to.Bits() < 8 {
				p.requireCast(packed(from, numbers(t, from, codes)), to) // NaN is an error here
			} else {
				p.requireCast(in, to)
			}
		}
	}
}

// Around every number that a dtype has and halfway between each two, to the
// last bit.
func TestEncodeBoundaries(t *testing.T) {
	p := startPeer(t, "casts")
	for _, to := range narrowFloats {
		codes := make([]int, 1<<to.Bits())
		for i := range codes {
			codes[i] = i
		}
		values, err := safetensors.Values[float32](packed(to, codes))
		require.NoError(t, err)
		var in []float32
		add := func(x float32) {
			for _, x := range []float32{x, math.Nextafter32(x, float32(math.Inf(1))), math.Nextafter32(x, float32(math.Inf(-1)))} {
				if x == x || to.Bits() >= 8 {
					in = append(in, x)
				}
			}
		}
		for i, x := range values {
			add(x)
			if i > 0 {
				add(float32((float64(values[i-1]) + float64(x)) / 2))
			}
		}
		largest := map[safetensors.DType][2]float32{ // and the step to it
			safetensors.F8E5M2: {57344, 8192}, safetensors.F8E5M2FNUZ: {57344, 8192}, safetensors.F16: {65504, 32},
			safetensors.F8E4M3: {448, 32}, safetensors.F8E4M3FNUZ: {240, 16}, safetensors.BF16: {0x1.fep127, 0x1p120},
			safetensors.F8E8M0: {0x1p127, 0}, safetensors.F4: {6, 2}, safetensors.F6E2M3: {7.5, 0.5}, safetensors.F6E3M2: {28, 4},
		}[to]
		for _, x := range []float32{0, 1, -1, largest[0] + largest[1]/2, largest[0] + largest[1], math.MaxFloat32,
			math.SmallestNonzeroFloat32, float32(math.Inf(1))} {
			add(x)
			add(-x)
		}
		p.requireCast(safetensors.Of(in[:len(in)&^3]), to)
	}
}

// Ten million floats, half of them of any bits, half such as models have.
func TestEncodeRandom(t *testing.T) {
	n := 10_000_000
	if testing.Short() {
		n = 400_000
		t.Logf("%d floats with -short", n)
	}
	p := startPeer(t, "casts")
	r := rand.New(rand.NewPCG(8, 8))
	in := make([]float32, n)
	for i := range in {
		if i%2 == 0 {
			in[i] = math.Float32frombits(r.Uint32())
		} else {
			in[i] = float32(r.NormFloat64()) * []float32{0.02, 1, 100, 30000}[i/2%4]
		}
	}
	for _, to := range []safetensors.DType{
		safetensors.F16, safetensors.BF16, safetensors.F8E5M2, safetensors.F8E4M3, safetensors.F8E8M0, safetensors.F8E4M3FNUZ,
		safetensors.F8E5M2FNUZ, safetensors.F64, safetensors.Bool, safetensors.F4, safetensors.F6E2M3, safetensors.F6E3M2,
	} {
		if to.Bits() < 8 {
			for i, x := range in {
				if x != x {
					in[i] = 1 // from here on: NaN is an error there
				}
			}
		}
		p.requireCast(safetensors.Of(in), to)
	}
}

// The wide dtypes: what numpy converts itself. It wraps what does not fit an
// integer, so only what fits is asked for.
func TestWide(t *testing.T) {
	p := startPeer(t, "casts")
	r := rand.New(rand.NewPCG(9, 9))
	const n = 100_000
	doubles, singles := make([]float64, n), make([]float32, n)
	signed, unsigned := make([]int64, n), make([]uint64, n)
	for i := range n {
		doubles[i] = math.Float64frombits(r.Uint64())
		if i%2 == 0 {
			doubles[i] = math.Ldexp(r.NormFloat64(), r.IntN(300)-150)
		}
		singles[i] = math.Float32frombits(r.Uint32())
		signed[i] = int64(r.Uint64()) >> r.IntN(64)
		unsigned[i] = r.Uint64() >> r.IntN(64)
	}
	for _, to := range []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.C64, safetensors.Bool} {
		p.requireCast(safetensors.Of(doubles), to)
		p.requireCast(safetensors.Of(singles), to)
		if to != safetensors.F16 { // which numpy comes to by way of F32, or F64
			p.requireCast(safetensors.Of(signed), to)
			p.requireCast(safetensors.Of(unsigned), to)
		}
	}
	for _, to := range []safetensors.DType{
		safetensors.I8, safetensors.U8, safetensors.I16, safetensors.U16, safetensors.I32, safetensors.U32, safetensors.I64, safetensors.U64,
	} {
		least, most := 0.0, math.Ldexp(1, to.Bits())
		if to == safetensors.I8 || to == safetensors.I16 || to == safetensors.I32 || to == safetensors.I64 {
			least, most = -most/2, most/2
		}
		var d []float64
		var s []float32
		var i []int64
		var u []uint64
		for range n {
			x := least + r.Float64()*(most-least)
			if x = math.Ldexp(x, -r.IntN(to.Bits())); x < most {
				d = append(d, x)
			}
			if y := float32(x); float64(y) < most {
				s = append(s, y)
			}
			if x < 1<<63 {
				i = append(i, int64(x))
			}
			if x >= 0 && x < most {
				u = append(u, uint64(x))
			}
		}
		for _, in := range []safetensors.Tensor{safetensors.Of(d), safetensors.Of(s), safetensors.Of(i), safetensors.Of(u)} {
			p.requireCast(in, to)
		}
	}
}

// ml_dtypes goes from F64 to the narrow kinds by way of F32 and so rounds some
// numbers twice. The documentation says so; this fails when it is mended.
func TestPythonRoundsTwice(t *testing.T) {
	p := startPeer(t, "casts")
	in := []float64{1 + 0x1p-8 + 0x1p-40} // just over half way between two BF16
	out, err := safetensors.Of(in).Cast(safetensors.BF16)
	require.NoError(t, err)
	b, err := out.Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 0x3f81, binary.LittleEndian.Uint16(b))
	data, err := safetensors.Of(in).Bytes()
	require.NoError(t, err)
	theirs := p.must("cast", map[string]any{"from": "F64", "to": "BF16"}, nil, data)
	require.EqualValues(t, 0x3f80, binary.LittleEndian.Uint16(theirs[0]))
}
