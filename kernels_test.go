package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var narrowDTypes = []DType{F4, F6E2M3, F6E3M2, F8E5M2, F8E4M3, F8E8M0, F8E4M3FNUZ, F8E5M2FNUZ, F16, BF16}

// codeAt and putCode go by bits, one by one: the first is the lowest of the
// first byte.
func codeAt(b []byte, d DType, i int) (x uint64) {
	for j := range d.Bits() {
		at := i*d.Bits() + j
		x |= uint64(b[at/8]>>(at%8)&1) << j
	}
	return x
}

func putCode(b []byte, d DType, i int, x uint64) {
	for j := range d.Bits() {
		at := i*d.Bits() + j
		b[at/8] = b[at/8]&^(1<<(at%8)) | byte(x>>j&1)<<(at%8)
	}
}

// codes packs as many codes of d, padded with zeros to whole groups.
func codes(d DType, list []uint64) []byte {
	n := (len(list) + 3) &^ 3
	b := make([]byte, sizeOfElements(int64(n), d))
	for i, x := range list {
		putCode(b, d, i, x)
	}
	return b
}

func isNaN(d DType, code uint64) bool {
	x := decodeNarrow(d, uint16(code))
	return x != x
}

// everyWay calls f with the vector kernels and, if there are any, without.
func everyWay(t *testing.T, f func(t *testing.T)) {
	if setVector == nil {
		f(t)
		return
	}
	for name, on := range map[string]bool{"vector": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			if on && !setVector(true) {
				t.Skip("this processor has no AVX2 and F16C")
			}
			setVector(on)
			defer setVector(true)
			f(t)
		})
	}
}

// setVector, where there are vector kernels, says whether to use them, as far
// as the processor has them. It returns whether they are used then.
var setVector func(on bool) bool

func TestNarrowRoundTrip(t *testing.T) {
	for _, d := range narrowDTypes {
		for code := range uint64(1) << d.Bits() {
			x := decodeNarrow(d, uint16(code))
			back, ok := encodeNarrow(d, float64(x))
			if x == x {
				require.True(t, ok)
				require.EqualValues(t, code, back, "%s", d)
			} else {
				require.True(t, isNaN(d, uint64(back)), "%s %#x: NaN became %#x", d, code, back)
			}
		}
	}
}

// Every code comes out as decodeNarrow says, at every place in a block.
func TestDecodeKernels(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		for _, d := range narrowDTypes {
			list := make([]uint64, 1<<d.Bits())
			for i := range list {
				list[i] = uint64(i)
			}
			for _, skip := range []int{0, 4, 8, 12, 20} {
				list := list[min(skip, len(list)-4):]
				src := codes(d, list)
				dst := make([]byte, 4*len(list))
				s := step{opDecode, d, F32}
				require.Equal(t, -1, s.run(dst, src, skip%8 == 0))
				for i, code := range list {
					want := math.Float32bits(decodeNarrow(d, uint16(code)))
					if got := binary.LittleEndian.Uint32(dst[4*i:]); got != want {
						t.Fatalf("%s %#x is %#x, want %#x", d, code, got, want)
					}
				}
			}
		}
	})
}

// Floats that are told apart by no more than the last bit that counts, among
// them all numbers that lie halfway between two that a narrow dtype has.
func edgeFloats(d DType) (list []uint32) {
	kept := 23 - 10
	if d != F16 {
		kept = 16
	}
	half := uint32(1) << (kept - 1)
	step := uint32(1)
	if testing.Short() {
		step = 7
	}
	for top := uint32(0); top < 1<<(32-kept); top += step {
		for _, low := range []uint32{0, 1, half - 1, half, half + 1, 2*half - 1} {
			list = append(list, top<<kept|low)
		}
	}
	return list
}

func TestEncodeKernels(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		for _, d := range narrowDTypes {
			var list []uint32
			for _, x := range edgeFloats(d) {
				if f := math.Float32frombits(x); d.Bits() == 8 || d.Bits() == 16 || f == f {
					list = append(list, x)
				}
			}
			list = list[:len(list)&^3]
			src := make([]byte, 4*len(list))
			for i, x := range list {
				binary.LittleEndian.PutUint32(src[4*i:], x)
			}
			dst := make([]byte, sizeOfElements(int64(len(list)), d))
			s := step{opEncode, d, d}
			require.Equal(t, -1, s.run(dst, src, false))
			for i, x := range list {
				f := math.Float32frombits(x)
				want, _ := encodeNarrow(d, float64(f))
				got := codeAt(dst, d, i)
				if got == uint64(want) || isNaN(d, got) && isNaN(d, uint64(want)) {
					continue
				}
				t.Fatalf("%s of %v (%#x) is %#x, want %#x", d, f, x, got, want)
			}
		}
	})
}

// Lengths that are no whole blocks, and any alignment.
func TestKernelEdges(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		for _, d := range narrowDTypes {
			for n := 4; n < 100; n += 4 {
				for shift := range 4 {
					room := bytes.Repeat([]byte{0xa5}, 4*n+2*shift)
					wide := room[shift : shift+4*n]
					for i := range n {
						binary.LittleEndian.PutUint32(wide[4*i:], math.Float32bits(float32(rand.NormFloat64())))
					}
					size := int(sizeOfElements(int64(n), d))
					narrowRoom := bytes.Repeat([]byte{0xa5}, size+2*shift)
					narrow := narrowRoom[shift : shift+size]
					enc, dec := step{opEncode, d, d}, step{opDecode, d, F32}
					require.Equal(t, -1, enc.run(narrow, wide, false))
					for i := range n {
						want, _ := encodeNarrow(d, float64(math.Float32frombits(binary.LittleEndian.Uint32(wide[4*i:]))))
						require.EqualValues(t, want, codeAt(narrow, d, i))
					}
					require.Equal(t, -1, dec.run(wide, narrow, shift == 0))
					for i := range n {
						want := math.Float32bits(decodeNarrow(d, uint16(codeAt(narrow, d, i))))
						require.Equal(t, want, binary.LittleEndian.Uint32(wide[4*i:]))
					}
					for _, b := range [][]byte{room[:shift], room[shift+4*n:], narrowRoom[:shift], narrowRoom[shift+size:]} {
						require.Equal(t, bytes.Repeat([]byte{0xa5}, shift), b, "wrote beside its output")
					}
				}
			}
		}
	})
}

// The vector kernels give the same bits as the plain ones for every float32:
// all of them where SAFETENSORS_TEST_ALL is set, else one block in so many.
func TestVectorKernels(t *testing.T) {
	if setVector == nil || !setVector(true) {
		t.Skip("no vector kernels on this processor")
	}
	const block = 1 << 20
	step := 64
	if testing.Short() {
		step = 1024
	}
	first := rand.IntN(step)
	if os.Getenv("SAFETENSORS_TEST_ALL") != "" {
		first, step = 0, 1
	} else {
		t.Logf("one block of floats in %d, from number %d on; SAFETENSORS_TEST_ALL=1 takes all", step, first)
	}
	var list []int
	for i := first; i < 1<<32/block; i += step {
		list = append(list, i)
	}
	for name, k := range map[string]struct {
		vector func(dst, src []byte) int
		plain  func(uint32) uint16
	}{"BF16": {f32ToBF16Vector, bf16Of}, "F16": {f32ToF16Vector, f16Of}} {
		require.NoError(t, parallel(len(list), func(i int) error {
			src, dst := make([]byte, 4*block), make([]byte, 2*block)
			base := uint32(list[i]) * block
			for j := range uint32(block) {
				binary.LittleEndian.PutUint32(src[4*j:], base+j)
			}
			if n := k.vector(dst, src); n != len(src) {
				return fmt.Errorf("%s: took %d bytes of %d", name, n, len(src))
			}
			for j := range uint32(block) {
				if got, want := binary.LittleEndian.Uint16(dst[2*j:]), k.plain(base+j); got != want {
					return fmt.Errorf("%s: %#x gives %#x, want %#x", name, base+j, got, want)
				}
			}
			return nil
		}))
	}
}
