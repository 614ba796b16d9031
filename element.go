package safetensors

import (
	"math/bits"
	"reflect"
	"sync"
)

// Element is what a Go slice of a tensor's elements may hold: the predeclared
// types below, types of one's own made of them, and the half-precision types of
// other packages, which are made of uint16.
//
// A type whose underlying type is uint16 and that has a method
// Float32() float32 is taken for F16 or BF16, whichever that method decodes;
// one made of uint8, for the F8 kind whose 256 codes it decodes. All others are
// plain integers. int and uint are 64 bits wide or 32, as the platform has them.
type Element interface {
	~bool |
		~int | ~int8 | ~int16 | ~int32 | ~int64 |
		~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~float32 | ~float64 | ~complex64
}

var dtypeOfKind = [...]DType{
	reflect.Bool:      Bool,
	reflect.Int8:      I8,
	reflect.Int16:     I16,
	reflect.Int32:     I32,
	reflect.Int64:     I64,
	reflect.Int:       I32 + (I64-I32)*(bits.UintSize/64),
	reflect.Uint8:     U8,
	reflect.Uint16:    U16,
	reflect.Uint32:    U32,
	reflect.Uint64:    U64,
	reflect.Uint:      U32 + (U64-U32)*(bits.UintSize/64),
	reflect.Float32:   F32,
	reflect.Float64:   F64,
	reflect.Complex64: C64,
}

// A narrowFloat is a type of another package that holds the bits of a float.
type narrowFloat interface{ Float32() float32 }

// narrowFloats remembers what dtypeFor found out, by reflect.Type.
var narrowFloats sync.Map

// dtypeFor returns the dtype that T holds an element of.
func dtypeFor[T Element]() DType {
	var zero T
	typ := reflect.TypeFor[T]()
	d := dtypeOfKind[typ.Kind()]
	if d != U8 && d != U16 {
		return d
	}
	if _, ok := any(zero).(narrowFloat); !ok {
		return d
	}
	if known, ok := narrowFloats.Load(typ); ok {
		return known.(DType)
	}
	decode := func(code uint16) float32 { return any(ofBits[T](code)).(narrowFloat).Float32() }
	if d == U16 {
		d = probeHalf(decode)
	} else {
		d = probeByte(decode)
	}
	narrowFloats.Store(typ, d)
	return d
}

// probeHalf goes by the code of 1, which is far from it in the other kind.
func probeHalf(decode func(uint16) float32) DType {
	switch {
	case decode(0x3c00) == 1:
		return F16
	case decode(0x3f80) == 1:
		return BF16
	}
	return U16
}

// probeByte compares all codes: two kinds can agree on most of them.
func probeByte(decode func(uint16) float32) DType {
	for d := F8E5M2; d <= F8E5M2FNUZ; d++ {
		same := true
		for code := uint16(0); code < 256 && same; code++ {
			got, want := decode(code), decodeNarrow(d, code)
			same = got == want || got != got && want != want
		}
		if same {
			return d
		}
	}
	return U8
}
