package safetensors

import (
	"encoding/binary"
	"math"
	"sync"
)

// What runs over whole tensors. All of these take and give little-endian bytes
// at any address, on any host, and go by as many elements as src holds. The
// plain statement of what they do is in narrow.go.

var le = binary.LittleEndian

// bf16ToF32 moves each element to the upper half of a float32, NaNs included:
// four elements a word, a few words at a time. Where far is true, dst is not
// worth keeping in the caches.
func bf16ToF32(dst, src []byte, far bool) {
	n := bf16ToF32Vector(dst, src, far)
	src, dst = src[n:], dst[2*n:]
	for len(src) >= 32 && len(dst) >= 64 {
		s, d := (*[32]byte)(src), (*[64]byte)(dst)
		bf16ToF32x4(d[:16], s[:8])
		bf16ToF32x4(d[16:32], s[8:16])
		bf16ToF32x4(d[32:48], s[16:24])
		bf16ToF32x4(d[48:], s[24:])
		src, dst = src[32:], dst[64:]
	}
	for len(src) >= 2 {
		le.PutUint32(dst, uint32(le.Uint16(src))<<16)
		src, dst = src[2:], dst[4:]
	}
}

func bf16ToF32x4(dst, src []byte) {
	x := le.Uint64(src)
	le.PutUint64(dst, x<<16&0xffff0000|x<<32&(0xffff<<48))
	le.PutUint64(dst[8:], x>>16&0xffff0000|x&(0xffff<<48))
}

func f32ToBF16(dst, src []byte) {
	n := f32ToBF16Vector(dst, src)
	src, dst = src[n:], dst[n/2:]
	for len(src) >= 16 && len(dst) >= 8 {
		s, d := (*[16]byte)(src), (*[8]byte)(dst)
		le.PutUint16(d[0:], bf16Of(le.Uint32(s[0:])))
		le.PutUint16(d[2:], bf16Of(le.Uint32(s[4:])))
		le.PutUint16(d[4:], bf16Of(le.Uint32(s[8:])))
		le.PutUint16(d[6:], bf16Of(le.Uint32(s[12:])))
		src, dst = src[16:], dst[8:]
	}
	for len(src) >= 4 {
		le.PutUint16(dst, bf16Of(le.Uint32(src)))
		src, dst = src[4:], dst[2:]
	}
}

// bf16Of rounds the bits of a float32. A NaN keeps the top of its payload and
// is made quiet, lest it become an infinity.
func bf16Of(x uint32) uint16 {
	if x&^(1<<31) > infinity {
		return uint16(x>>16) | 0x40
	}
	return uint16((x + 0x7fff + x>>16&1) >> 16)
}

// f16ToF32 looks up large amounts: the table takes longer to make than small
// ones take. Where far is true, dst is not worth keeping in the caches.
func f16ToF32(dst, src []byte, far bool) {
	n := f16ToF32Vector(dst, src, far)
	src, dst = src[n:], dst[2*n:]
	if len(src) >= 64<<10 {
		t := f16Table()
		for len(src) >= 8 && len(dst) >= 16 {
			s, d := (*[8]byte)(src), (*[16]byte)(dst)
			le.PutUint32(d[0:], t[le.Uint16(s[0:])])
			le.PutUint32(d[4:], t[le.Uint16(s[2:])])
			le.PutUint32(d[8:], t[le.Uint16(s[4:])])
			le.PutUint32(d[12:], t[le.Uint16(s[6:])])
			src, dst = src[8:], dst[16:]
		}
	}
	for len(src) >= 2 {
		le.PutUint32(dst, f32OfF16(le.Uint16(src)))
		src, dst = src[2:], dst[4:]
	}
}

var f16Table = sync.OnceValue(func() *[1 << 16]uint32 {
	var t [1 << 16]uint32
	for i := range t {
		t[i] = f32OfF16(uint16(i))
	}
	return &t
})

// f32OfF16 returns the bits of the float32. NaNs are made quiet, as processors
// that have an instruction for this do.
func f32OfF16(h uint16) uint32 {
	sign, abs := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case abs > 0x7c00:
		return sign | quietNaN | abs<<13
	case abs == 0x7c00:
		return sign | infinity
	case abs < 0x400:
		return sign | math.Float32bits(float32(abs)*0x1p-24)
	}
	return sign | (abs<<13 + (127-15)<<23)
}

func f32ToF16(dst, src []byte) {
	n := f32ToF16Vector(dst, src)
	src, dst = src[n:], dst[n/2:]
	for len(src) >= 16 && len(dst) >= 8 {
		s, d := (*[16]byte)(src), (*[8]byte)(dst)
		le.PutUint16(d[0:], f16Of(le.Uint32(s[0:])))
		le.PutUint16(d[2:], f16Of(le.Uint32(s[4:])))
		le.PutUint16(d[4:], f16Of(le.Uint32(s[8:])))
		le.PutUint16(d[6:], f16Of(le.Uint32(s[12:])))
		src, dst = src[16:], dst[8:]
	}
	for len(src) >= 4 {
		le.PutUint16(dst, f16Of(le.Uint32(src)))
		src, dst = src[4:], dst[2:]
	}
}

// f16Of rounds the bits of a float32. NaNs go as in bf16Of. Sign and exponent
// say how far the mantissa goes to the right and what is added to it, so that
// no branch depends on the size of the number.
func f16Of(x uint32) uint16 {
	if x&^(1<<31) > infinity {
		return uint16(x>>16)&0x8000 | 0x7e00 | uint16(x>>13)&0x3ff
	}
	t := &f16Shifts[x>>23]
	m := x&(1<<23-1) | 1<<23
	half := uint32(1) << t.drop >> 1
	return t.add + uint16((m+half-1+m>>t.drop&1)>>t.drop)
}

var f16Shifts = func() (t [512]struct {
	add  uint16
	drop uint8
}) {
	for i := range t {
		exp := i&255 - 127
		switch {
		case exp < -25: // under half the smallest number
			t[i].drop = 31
		case exp < -14: // subnormal
			t[i].drop = uint8(-1 - exp)
		case exp <= 15: // the leading 1 of the mantissa adds one to the exponent
			t[i].drop = 13
			t[i].add = uint16(exp+14) << 10
		default: // infinity
			t[i].drop = 31
			t[i].add = 31 << 10
		}
		t[i].add |= uint16(i>>8) << 15
	}
	return t
}()

// A decodeTable has the float32 bits of every code of a dtype of up to 8 bits.
type decodeTable [256]uint32

var decodeTables = perDType(func(d DType) *decodeTable {
	var t decodeTable
	for code := range 1 << d.Bits() {
		x := float32(code)
		switch dtypes[d].class {
		case classFloat:
			x = decodeNarrow(d, uint16(code))
		case classInt:
			x = float32(int8(code))
		case classBool:
			x = min(x, 1)
		}
		t[code] = math.Float32bits(x)
	}
	return &t
})

func byteToF32(dst, src []byte, d DType) {
	t := decodeTables[d]()
	for len(src) >= 8 && len(dst) >= 32 {
		s, d := (*[8]byte)(src), (*[32]byte)(dst)
		le.PutUint32(d[0:], t[s[0]])
		le.PutUint32(d[4:], t[s[1]])
		le.PutUint32(d[8:], t[s[2]])
		le.PutUint32(d[12:], t[s[3]])
		le.PutUint32(d[16:], t[s[4]])
		le.PutUint32(d[20:], t[s[5]])
		le.PutUint32(d[24:], t[s[6]])
		le.PutUint32(d[28:], t[s[7]])
		src, dst = src[8:], dst[32:]
	}
	for i, b := range src {
		le.PutUint32(dst[4*i:], t[b])
	}
}

func f4ToF32(dst, src []byte) {
	t := decodeTables[F4]()
	for i, b := range src {
		le.PutUint64(dst[8*i:], uint64(t[b&15])|uint64(t[b>>4])<<32)
	}
}

func f6ToF32(dst, src []byte, d DType) {
	t := decodeTables[d]()
	for len(src) >= 3 {
		x := uint32(src[0]) | uint32(src[1])<<8 | uint32(src[2])<<16
		le.PutUint64(dst, uint64(t[x&63])|uint64(t[x>>6&63])<<32)
		le.PutUint64(dst[8:], uint64(t[x>>12&63])|uint64(t[x>>18])<<32)
		src, dst = src[3:], dst[16:]
	}
}

// An encodeTable has the code for every upper half of a float32 whose last bit
// also stands for any bits below it. That is rounding to odd, at six significant
// bits or more: at least two over what is kept, so rounding again is exact.
type encodeTable [1 << 16]uint8

// noCode marks what a dtype of less than 8 bits cannot hold.
const noCode = 0xff

var encodeTables = perDType(func(d DType) *encodeTable {
	var t encodeTable
	for i := range t {
		code, ok := encodeNarrow(d, float64(math.Float32frombits(uint32(i)<<16)))
		if t[i] = uint8(code); !ok {
			t[i] = noCode
		}
	}
	return &t
})

func (t *encodeTable) code(x uint32) uint8 {
	return t[(x|(x&0xffff+0xffff))>>16]
}

func f32ToByte(dst, src []byte, d DType) {
	t := encodeTables[d]()
	for len(src) >= 16 && len(dst) >= 4 {
		s, d := (*[16]byte)(src), (*[4]byte)(dst)
		d[0] = t.code(le.Uint32(s[0:]))
		d[1] = t.code(le.Uint32(s[4:]))
		d[2] = t.code(le.Uint32(s[8:]))
		d[3] = t.code(le.Uint32(s[12:]))
		src, dst = src[16:], dst[4:]
	}
	for len(src) >= 4 {
		dst[0] = t.code(le.Uint32(src))
		src, dst = src[4:], dst[1:]
	}
}

// f32ToF4 returns the index of the first NaN, or -1.
func f32ToF4(dst, src []byte) int {
	t := encodeTables[F4]()
	for i := range dst {
		x := le.Uint64(src[8*i:])
		a, b := t.code(uint32(x)), t.code(uint32(x>>32))
		if a == noCode {
			return 2 * i
		}
		if b == noCode {
			return 2*i + 1
		}
		dst[i] = a | b<<4
	}
	return -1
}

// f32ToF6 returns the index of the first NaN, or -1.
func f32ToF6(dst, src []byte, d DType) int {
	t := encodeTables[d]()
	for i := 0; 16*i < len(src); i++ {
		var x uint32
		for j := range 4 {
			code := t.code(le.Uint32(src[16*i+4*j:]))
			if code == noCode {
				return 4*i + j
			}
			x |= uint32(code) << (6 * j)
		}
		dst[3*i], dst[3*i+1], dst[3*i+2] = uint8(x), uint8(x>>8), uint8(x>>16)
	}
	return -1
}

// perDType returns for each dtype a function that makes its table when it is
// first needed.
func perDType[T any](make func(DType) *T) (tables [U64 + 1]func() *T) {
	for d := range tables {
		tables[d] = sync.OnceValue(func() *T { return make(DType(d)) })
	}
	return tables
}
