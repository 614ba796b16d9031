package safetensors_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/gomlx/gopjrt/dtypes/bfloat16"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
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

var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// raceDetector is whether the tests run with it.
var raceDetector bool

// saved writes the tensors to a file of its own and returns its name.
func saved(t *testing.T, tensors map[string]safetensors.Tensor) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "t.safetensors")
	require.NoError(t, safetensors.Save(name, tensors))
	return name
}

func tensorOf(t *testing.T, f *safetensors.File, name string) safetensors.Tensor {
	t.Helper()
	tensor, err := f.Tensor(name)
	require.NoError(t, err)
	return tensor
}

// viewErr is what View says, whatever T makes of it.
func viewErr[T safetensors.Element](tensor safetensors.Tensor) error {
	_, err := safetensors.View[T](tensor)
	return err
}

func TestViewSharesMemory(t *testing.T) {
	if bigEndian {
		t.Skip("no views of more than a byte on a big-endian host: see TestViewTypes")
	}
	want := []float32{1, -2, 3.5, 0}
	data := slices.Clone(want)
	view, err := safetensors.View[float32](safetensors.Of(data, 2, 2))
	require.NoError(t, err)
	require.Equal(t, want, view)
	data[1] = 7
	require.EqualValues(t, 7, view[1])
	require.Equal(t, len(view), cap(view), "a view must not reach into what follows")

	name := saved(t, map[string]safetensors.Tensor{"a": safetensors.Of(want), "b": safetensors.Of(want[:2])})
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		tensor := tensorOf(t, f, "a")
		view, err := safetensors.View[float32](tensor)
		require.NoError(t, err, how)
		require.Equal(t, want, view)
		require.Equal(t, len(view), cap(view))
		if (how == "Open" && runtime.GOOS != "js" || how == "Parse") && !raceDetector {
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if _, err := safetensors.View[float32](tensor); err != nil {
					t.Fatal(err)
				}
				if _, err := safetensors.View[uint32](tensor); err != nil {
					t.Fatal(err)
				}
			}), how)
		}
		require.NoError(t, f.Close())
		_, err = safetensors.View[float32](tensor)
		require.ErrorIs(t, err, safetensors.ErrClosed, how)
		_, err = safetensors.Values[float32](tensor)
		require.ErrorIs(t, err, safetensors.ErrClosed, how)
	}
}

// Which types see which dtypes: their own, and unsigned integers of that width.
func TestViewTypes(t *testing.T) {
	for d := safetensors.Bool; d <= safetensors.U64; d++ {
		tensor := safetensors.New(d, []int{8}, make([]byte, d.Bits()))
		for as, err := range map[safetensors.DType]error{
			safetensors.Bool:       viewErr[switched](tensor),
			safetensors.I8:         viewErr[level](tensor),
			safetensors.I16:        viewErr[int16](tensor),
			safetensors.I32:        viewErr[int32](tensor),
			safetensors.I64:        viewErr[int64](tensor),
			safetensors.F8E4M3:     viewErr[fp8](tensor),
			safetensors.F8E4M3FNUZ: viewErr[fp8fnuz](tensor),
			safetensors.F16:        viewErr[half](tensor),
			safetensors.BF16:       viewErr[brain](tensor),
			safetensors.F32:        viewErr[float32](tensor),
			safetensors.F64:        viewErr[float64](tensor),
			safetensors.C64:        viewErr[complex64](tensor),
			safetensors.U8:         viewErr[grade](tensor),
			safetensors.U16:        viewErr[plain](tensor),
			safetensors.U32:        viewErr[uint32](tensor),
			safetensors.U64:        viewErr[uint64](tensor),
		} {
			unsigned := as == safetensors.U8 || as == safetensors.U16 || as == safetensors.U32 || as == safetensors.U64
			switch {
			case d.Bits() < 8:
				require.ErrorIs(t, err, safetensors.ErrSubByte, "%s as %s", d, as)
			case as != d && !(unsigned && as.Bits() == d.Bits()):
				require.ErrorIs(t, err, safetensors.ErrDType, "%s as %s", d, as)
				require.ErrorContains(t, err, d.String())
			case bigEndian && d.Bits() > 8:
				require.ErrorIs(t, err, safetensors.ErrByteOrder, "%s as %s", d, as)
			default:
				require.NoError(t, err, "%s as %s", d, as)
			}
		}
	}
}

func TestViewMisaligned(t *testing.T) {
	if bigEndian {
		t.Skip("no views of more than a byte on a big-endian host")
	}
	for file, want := range map[string]string{
		"testdata/misaligned_f64_4.safetensors": "byte 68,",
		"testdata/misaligned_f64_6.safetensors": "byte 70,",
		"testdata/misaligned_f64_7.safetensors": "byte 71,",
	} {
		f, err := safetensors.Open(file)
		require.NoError(t, err)
		for _, tensor := range f.All() {
			if bits.UintSize == 64 || want != "byte 68," { // 32-bit hosts have float64 at multiples of 4
				err := viewErr[float64](tensor)
				require.ErrorIs(t, err, safetensors.ErrMisaligned)
				require.ErrorContains(t, err, want)
				require.ErrorContains(t, err, file)
			}
			require.NoError(t, viewErr[uint8](safetensors.New(safetensors.U8, []int{3}, []byte{1, 2, 3})))
			values, err := safetensors.Values[float64](tensor)
			require.NoError(t, err)
			b, err := tensor.Bytes()
			require.NoError(t, err)
			for i, x := range values {
				require.Equal(t, binary.LittleEndian.Uint64(b[8*i:]), math.Float64bits(x))
			}
		}
		require.NoError(t, f.Close())
	}
}

func TestViewBool(t *testing.T) {
	good := safetensors.New(safetensors.Bool, []int{3}, []byte{0, 1, 1})
	view, err := safetensors.View[bool](good)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, true}, view)

	name := filepath.Join("testdata", "bool_other_values.safetensors")
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		for _, tensor := range f.All() {
			b, err := tensor.Bytes()
			require.NoError(t, err)
			require.ErrorIs(t, viewErr[bool](tensor), safetensors.ErrValueRange, how)
			raw, err := safetensors.View[uint8](tensor)
			require.NoError(t, err)
			require.Equal(t, b, raw)
			bools, err := safetensors.Values[bool](tensor)
			require.NoError(t, err)
			for i := range bools {
				require.Equal(t, b[i] != 0, bools[i])
			}
			held, err := safetensors.Of(bools).Bytes()
			require.NoError(t, err)
			require.LessOrEqual(t, slices.Max(held), byte(1), "a bool of another byte")
			numbers, err := safetensors.Values[int](tensor)
			require.NoError(t, err)
			for i := range numbers {
				require.Equal(t, min(int(b[i]), 1), numbers[i])
			}
		}
		require.NoError(t, f.Close())
	}
}

func TestViewEmpty(t *testing.T) {
	for _, shape := range [][]int{{0}, {3, 0}} {
		view, err := safetensors.View[bool](safetensors.Of([]bool{}, shape...))
		require.NoError(t, err)
		require.NotNil(t, view)
		require.Empty(t, view)
		values, err := safetensors.Values[float32](safetensors.New(safetensors.F8E4M3, shape, nil))
		require.NoError(t, err)
		require.NotNil(t, values)
		require.Empty(t, values)
	}
	_, err := safetensors.View[float32](safetensors.Tensor{})
	require.Error(t, err)
	_, err = safetensors.Values[float32](safetensors.Tensor{})
	require.Error(t, err)
}

// The half types of other packages: what they hold is what the file has.
func TestOtherPackages(t *testing.T) {
	halves := []float16.Float16{float16.Fromfloat32(1.5), float16.Fromfloat32(-65504), float16.Inf(1), 1}
	brains := []bfloat16.BFloat16{bfloat16.FromFloat32(1.5), bfloat16.FromFloat32(-3e38), bfloat16.Inf(1), 1}
	h, b := safetensors.Of(halves), safetensors.Of(brains)
	require.Equal(t, safetensors.F16, h.DType())
	require.Equal(t, safetensors.BF16, b.DType())
	if !bigEndian {
		view, err := safetensors.View[float16.Float16](h)
		require.NoError(t, err)
		require.Equal(t, halves, view)
		brainView, err := safetensors.View[bfloat16.BFloat16](b)
		require.NoError(t, err)
		require.Equal(t, brains, brainView)
		require.ErrorIs(t, viewErr[float16.Float16](b), safetensors.ErrDType)
		require.ErrorIs(t, viewErr[bfloat16.BFloat16](h), safetensors.ErrDType)
	}
	values, err := safetensors.Values[float16.Float16](h)
	require.NoError(t, err)
	require.Equal(t, halves, values)
	floats, err := safetensors.Values[float32](h)
	require.NoError(t, err)
	for i, x := range halves {
		require.Equal(t, x.Float32(), floats[i])
	}
	floats, err = safetensors.Values[float32](b)
	require.NoError(t, err)
	for i, x := range brains {
		require.Equal(t, x.Float32(), floats[i])
	}
	crossed, err := safetensors.Values[bfloat16.BFloat16](h)
	require.NoError(t, err)
	require.Equal(t, bfloat16.FromFloat32(1.5), crossed[0])
	require.EqualValues(t, -65536, crossed[1].Float32(), "to the nearest")
	// A plain uint16 is a number.
	numbers, err := safetensors.Values[uint16](safetensors.Of(halves[:1]))
	require.NoError(t, err)
	require.Equal(t, []uint16{1}, numbers)
}

func TestValuesConvert(t *testing.T) {
	ints, err := safetensors.Values[int8](safetensors.Of([]float64{-128.9, -0.5, 0.99, 127.999}))
	require.NoError(t, err)
	require.Equal(t, []int8{-128, 0, 0, 127}, ints)
	floats, err := safetensors.Values[float32](safetensors.Of([]float64{1e300, -1e-300, 1 + 1e-9}))
	require.NoError(t, err)
	require.Equal(t, []float32{float32(math.Inf(1)), 0, 1}, floats)
	bools, err := safetensors.Values[bool](safetensors.Of([]float32{0, float32(math.Copysign(0, -1)), 0.1, float32(math.NaN())}))
	require.NoError(t, err)
	require.Equal(t, []bool{false, false, true, true}, bools)
	complexes, err := safetensors.Values[complex64](safetensors.Of([]int16{3, -4}))
	require.NoError(t, err)
	require.Equal(t, []complex64{3, -4}, complexes)
	same, err := safetensors.Values[complex64](safetensors.Of([]complex64{1 + 2i}))
	require.NoError(t, err)
	require.Equal(t, []complex64{1 + 2i}, same)

	for want, bad := range map[string]func() error{
		"element 2 is NaN, which I32 cannot hold": func() error {
			_, err := safetensors.Values[int32](safetensors.Of([]float32{1, 2, float32(math.NaN())}))
			return err
		},
		"element 0 is +Inf, which I64": func() error {
			_, err := safetensors.Values[int64](safetensors.Of([]half{0x7c00}))
			return err
		},
		"element 1 is 300, which U8": func() error {
			_, err := safetensors.Values[uint8](safetensors.Of([]int64{255, 300}))
			return err
		},
		"element 1 is -1, which U64": func() error {
			_, err := safetensors.Values[uint64](safetensors.Of([]int8{1, -1}))
			return err
		},
		"element 0 is 18446744073709551615, which I64": func() error {
			_, err := safetensors.Values[int64](safetensors.Of([]uint64{math.MaxUint64}))
			return err
		},
		"element 0 is -1e+300, which I8": func() error {
			_, err := safetensors.Values[int8](safetensors.Of([]float64{-1e300}))
			return err
		},
	} {
		err := bad()
		require.ErrorIs(t, err, safetensors.ErrValueRange)
		require.ErrorContains(t, err, want)
	}
	_, err = safetensors.Values[float32](safetensors.Of([]complex64{1}))
	require.ErrorIs(t, err, safetensors.ErrDType)
	_, err = safetensors.Values[bool](safetensors.Of([]complex64{1}))
	require.ErrorIs(t, err, safetensors.ErrDType)
}

// Of several numbers that do not fit, the first is named, however many
// processors are at it.
func TestValuesNamesTheFirst(t *testing.T) {
	data := make([]float32, 5<<20)
	for _, i := range []int{4_900_000, 3_000_001, 1_234_567} {
		data[i] = 1e10
		_, err := safetensors.Values[int16](safetensors.Of(data))
		require.ErrorContains(t, err, fmt.Sprintf("element %d is 1e+10", i))
	}
}

// What is not there costs no memory.
func TestValuesOfNothing(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("no claims beyond memory with 32 bits")
	}
	const huge = math.MaxInt>>19 + 1 // 2^44
	some := func(w io.Writer) error { _, err := w.Write(make([]byte, 10)); return err }
	made := safetensors.FromFunc(safetensors.F32, []int{huge}, some)
	for what, in := range map[string]safetensors.Tensor{
		"function":         made,
		"cast of function": cast(t, made, safetensors.F16),
		"reader":           safetensors.FromReaderAt(safetensors.F32, []int{huge}, bytes.NewReader(make([]byte, 10))),
		"cast of reader":   cast(t, safetensors.FromReaderAt(safetensors.F32, []int{huge}, bytes.NewReader(make([]byte, 10))), safetensors.F16),
	} {
		_, err := safetensors.Values[float32](in)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, what)
	}
	_, err := safetensors.Values[float64](safetensors.FromReaderAt(safetensors.U8, []int{math.MaxInt/8 + 1}, nil))
	require.ErrorIs(t, err, safetensors.ErrRange)
}

// Every way to open gives the same values, for every dtype.
func TestValuesEveryDType(t *testing.T) {
	for how, open := range opened(t, filepath.Join("testdata", "dtype_all_in_one.safetensors")) {
		f, err := open()
		require.NoError(t, err)
		require.Equal(t, 22, f.Len())
		for name, tensor := range f.All() {
			b, err := tensor.Bytes()
			require.NoError(t, err)
			again := safetensors.New(tensor.DType(), tensor.Shape(), b)
			if tensor.DType() == safetensors.C64 {
				got, err := safetensors.Values[complex64](tensor)
				require.NoError(t, err)
				want, err := safetensors.Values[complex64](again)
				require.NoError(t, err)
				require.Equal(t, want, got)
				continue
			}
			got, err := safetensors.Values[float64](tensor)
			require.NoError(t, err, "%s by %s", name, how)
			require.EqualValues(t, tensor.Len(), len(got))
			want, err := safetensors.Values[float64](again)
			require.NoError(t, err)
			for i := range want {
				require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "%s by %s", name, how)
			}
		}
		require.NoError(t, f.Close())
	}
}

// The cases of testdata/cases.json that are about values.
var valueCases = func() (c struct {
	Decode []struct {
		ID, File, Tensor string
		DType            safetensors.DType
		Count            int
		SHA256           string   `json:"f32_le_sha256_with_nan_as_7fc00000"`
		F32Bits          []string `json:"f32_bits"`
	} `json:"decode_cases"`
	Encode []struct{ F32, BF16, F16 string } `json:"encode_vectors"`
}) {
	b, err := os.ReadFile("testdata/cases.json")
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		panic(err)
	}
	return c
}()

func TestDecodeCases(t *testing.T) {
	require.NotEmpty(t, valueCases.Decode)
	for _, c := range valueCases.Decode {
		for how, open := range opened(t, filepath.Join("testdata", c.File)) {
			f, err := open()
			require.NoError(t, err)
			tensor := tensorOf(t, f, c.Tensor)
			require.Equal(t, c.DType, tensor.DType())
			values, err := safetensors.Values[float32](tensor)
			require.NoError(t, err)
			require.Len(t, values, c.Count)
			h := sha256.New()
			for i, x := range values {
				code := math.Float32bits(x)
				if x != x {
					code = 0x7fc00000
				}
				if c.F32Bits != nil {
					want := c.F32Bits[i]
					if x != x {
						require.Equal(t, "nan", want, "%s[%d] by %s", c.ID, i, how)
					} else {
						require.Equal(t, want, fmt.Sprintf("%08x", code), "%s[%d] by %s", c.ID, i, how)
					}
				}
				require.NoError(t, binary.Write(h, binary.LittleEndian, code))
			}
			require.Equal(t, c.SHA256, hex.EncodeToString(h.Sum(nil)), c.ID)
			require.NoError(t, f.Close())
		}
	}
}

func TestEncodeVectors(t *testing.T) {
	require.NotEmpty(t, valueCases.Encode)
	for _, c := range valueCases.Encode {
		code, err := strconv.ParseUint(c.F32, 16, 32)
		require.NoError(t, err)
		in := safetensors.Of([]float32{math.Float32frombits(uint32(code))})
		for d, want := range map[safetensors.DType]string{safetensors.BF16: c.BF16, safetensors.F16: c.F16} {
			cast, err := in.Cast(d)
			require.NoError(t, err)
			b, err := cast.Bytes()
			require.NoError(t, err)
			back, err := safetensors.Values[float32](cast)
			require.NoError(t, err)
			if want == "nan" {
				require.True(t, back[0] != back[0], "%s as %s", c.F32, d)
			} else {
				require.Equal(t, want, fmt.Sprintf("%04x", binary.LittleEndian.Uint16(b)), "%s as %s", c.F32, d)
			}
		}
	}
}

func TestAppendFloat32(t *testing.T) {
	tensor := safetensors.Of([]int8{3, -4})
	got, err := safetensors.AppendFloat32([]float32{1, 2}, tensor)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, -4}, got)

	// On an error nothing is lost.
	before := []float32{1, 2}
	got, err = safetensors.AppendFloat32(before, safetensors.Of([]complex64{1}))
	require.ErrorIs(t, err, safetensors.ErrDType)
	require.Equal(t, before, got)
	got, err = safetensors.AppendFloat32(before, safetensors.FromReaderAt(safetensors.F16, []int{3}, bytes.NewReader([]byte{1, 2, 3})))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, before, got)

	if raceDetector {
		t.Skip("the race detector allocates on its own")
	}
	// One allocation where dst has no room, none where it has.
	name := saved(t, map[string]safetensors.Tensor{"w": safetensors.Of(make([]half, 10_000))})
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	defer f.Close()
	w := tensorOf(t, f, "w")
	require.EqualValues(t, 1, testing.AllocsPerRun(50, func() {
		if _, err := safetensors.AppendFloat32(nil, w); err != nil {
			t.Fatal(err)
		}
	}))
	room := make([]float32, 0, 10_000)
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if _, err := safetensors.AppendFloat32(room, w); err != nil {
			t.Fatal(err)
		}
	}))
}

// A file that someone cuts short while it is mapped is an error wherever the
// library itself reads, in whichever goroutine.
func TestValuesFault(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" && runtime.GOOS != "freebsd" {
		t.Skip("a mapped file cannot be cut short here")
	}
	needFaults(t)
	name := saved(t, map[string]safetensors.Tensor{
		"w":    safetensors.New(safetensors.BF16, []int{4 << 20}, make([]byte, 8<<20)),
		"bool": safetensors.New(safetensors.Bool, []int{1 << 20}, make([]byte, 1<<20)),
	})
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(name, 4096))
	_, err = safetensors.Values[float32](tensorOf(t, f, "w"))
	require.ErrorIs(t, err, safetensors.ErrFault)
	_, err = safetensors.Values[bool](tensorOf(t, f, "w"))
	require.ErrorIs(t, err, safetensors.ErrFault)
	_, err = safetensors.AppendFloat32(nil, tensorOf(t, f, "w"))
	require.ErrorIs(t, err, safetensors.ErrFault)
	require.ErrorIs(t, viewErr[bool](tensorOf(t, f, "bool")), safetensors.ErrFault)
	cast, err := tensorOf(t, f, "w").Cast(safetensors.F16)
	require.NoError(t, err)
	_, err = cast.WriteTo(io.Discard)
	require.ErrorIs(t, err, safetensors.ErrFault)
}
