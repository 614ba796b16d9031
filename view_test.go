package safetensors_test

import (
	"math"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// Types of other packages, as far as they matter here.
type (
	half     uint16
	brain    uint16
	plain    uint16
	level    int8
	fp8      uint8
	fp8fnuz  uint8
	grade    uint8
	switched bool
)

func (h half) Float32() float32 {
	if exp := h >> 10 & 31; exp > 0 && exp < 31 {
		return math.Float32frombits(uint32(h&0x8000)<<16 | uint32(exp+112)<<23 | uint32(h&1023)<<13)
	}
	return 0
}
func (b brain) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }
func (g grade) Float32() float32 { return float32(g) / 10 }

func (f fp8) Float32() float32     { return smallFloat(uint8(f), 7, f&0x7f == 0x7f) }
func (f fp8fnuz) Float32() float32 { return smallFloat(uint8(f), 8, f == 0x80) }

// smallFloat decodes one sign bit, four of exponent, three of mantissa.
func smallFloat(code uint8, bias int, nan bool) float32 {
	if nan {
		return float32(math.NaN())
	}
	exp, man := int(code>>3&15), float64(code&7)
	if exp == 0 {
		exp = 1
	} else {
		man += 8
	}
	return float32(math.Ldexp(man, exp-bias-3)) * (1 - 2*float32(code>>7))
}

func TestOfDType(t *testing.T) {
	wide := func(narrow, wide safetensors.DType) safetensors.DType {
		if math.MaxInt > math.MaxInt32 {
			return wide
		}
		return narrow
	}
	for want, got := range map[safetensors.DType][]safetensors.Tensor{
		safetensors.Bool:       {safetensors.Of([]bool{true}), safetensors.Of([]switched{true})},
		safetensors.I8:         {safetensors.Of([]int8{1}), safetensors.Of([]level{1})},
		safetensors.U8:         {safetensors.Of([]uint8{1}), safetensors.Of([]grade{1})},
		safetensors.I16:        {safetensors.Of([]int16{1})},
		safetensors.U16:        {safetensors.Of([]uint16{1}), safetensors.Of([]plain{1})},
		safetensors.F16:        {safetensors.Of([]half{1}), safetensors.Of([]half{2})},
		safetensors.BF16:       {safetensors.Of([]brain{1})},
		safetensors.F8E4M3:     {safetensors.Of([]fp8{1})},
		safetensors.F8E4M3FNUZ: {safetensors.Of([]fp8fnuz{1})},
		safetensors.F32:        {safetensors.Of([]float32{1})},
		safetensors.C64:        {safetensors.Of([]complex64{1})},
		safetensors.F64:        {safetensors.Of([]float64{1})},
	} {
		for _, tensor := range got {
			require.Equal(t, want, tensor.DType())
			require.EqualValues(t, want.Bits()/8, tensor.Size())
		}
	}
	require.Equal(t, safetensors.I32, safetensors.Of([]int32{1}).DType())
	require.Equal(t, safetensors.U32, safetensors.Of([]uint32{1}).DType())
	require.Equal(t, safetensors.I64, safetensors.Of([]int64{1}).DType())
	require.Equal(t, safetensors.U64, safetensors.Of([]uint64{1}).DType())
	require.Equal(t, wide(safetensors.I32, safetensors.I64), safetensors.Of([]int{1}).DType())
	require.Equal(t, wide(safetensors.U32, safetensors.U64), safetensors.Of([]uint{1}).DType())
}

func TestOfShape(t *testing.T) {
	data := []float32{1, 2, 3, 4, 5, 6}
	require.Equal(t, []int{6}, safetensors.Of(data).Shape())
	require.Equal(t, []int{2, 3}, safetensors.Of(data, 2, 3).Shape())
	require.Equal(t, []int{0}, safetensors.Of([]float32(nil)).Shape())
	scalar := safetensors.Of(data[:1], []int{}...)
	require.Empty(t, scalar.Shape())
	require.EqualValues(t, 1, scalar.Len())
	require.Empty(t, safetensors.Of(data[:1], scalar.Shape()...).Shape())

	for _, shape := range [][]int{{5}, {2, 4}, {}, {7}} {
		_, err := safetensors.Of(data, shape...).Bytes()
		require.ErrorIs(t, err, safetensors.ErrSizeMismatch, "%v", shape)
	}
	_, err := safetensors.Of(data, -6).Bytes()
	require.ErrorIs(t, err, safetensors.ErrSizeOverflow)
}

func TestOfBytes(t *testing.T) {
	for _, c := range []struct {
		of   safetensors.Tensor
		want []byte
	}{
		{safetensors.Of([]bool{true, false}), []byte{1, 0}},
		{safetensors.Of([]int8{-1, 2}), []byte{0xff, 2}},
		{safetensors.Of([]uint16{0x0102, 0x0304}), []byte{2, 1, 4, 3}},
		{safetensors.Of([]float32{1}), []byte{0, 0, 0x80, 0x3f}},
		{safetensors.Of([]float64{-2}), []byte{0, 0, 0, 0, 0, 0, 0, 0xc0}},
		{safetensors.Of([]complex64{complex(1, -2)}), []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}},
		{safetensors.Of([]int64{0x0102030405060708}), []byte{8, 7, 6, 5, 4, 3, 2, 1}},
		{safetensors.Of([]float32{}), []byte{}},
	} {
		b, err := c.of.Bytes()
		require.NoError(t, err)
		require.Equal(t, c.want, b)
	}
}
