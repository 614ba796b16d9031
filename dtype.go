package safetensors

import "strconv"

// DType is the type of a tensor's elements, one of the 22 of the format. The
// constants stand in the reference's order, by which written files are sorted.
// The zero DType is not valid.
type DType uint8

// The dtypes of the format. The F4, F6 and F8 kinds and the scale type E8M0
// are those of the OCP microscaling specification
// (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)
// and of the OCP 8-bit floating point one; the FNUZ kinds have no negative
// zero and no infinities, and one NaN (https://arxiv.org/abs/2206.02915).
const (
	Bool       DType = iota + 1 // one byte an element, 0 or 1
	F4                          // E2M1, two elements a byte, the low nibble first
	F6E2M3                      // four elements in three bytes
	F6E3M2                      // four elements in three bytes
	U8                          // unsigned, 8 bits
	I8                          // two's complement, 8 bits
	F8E5M2                      // with infinities and NaNs
	F8E4M3                      // E4M3FN: no infinities, 0x7f and 0xff are NaN
	F8E8M0                      // a power of two, 2^(code-127); 0xff is NaN
	F8E4M3FNUZ                  // 0x80 is the only NaN
	F8E5M2FNUZ                  // 0x80 is the only NaN
	I16                         // two's complement, 16 bits
	U16                         // unsigned, 16 bits
	F16                         // IEEE 754 binary16
	BF16                        // the upper half of a binary32
	I32                         // two's complement, 32 bits
	U32                         // unsigned, 32 bits
	F32                         // IEEE 754 binary32
	C64                         // two F32, real part first
	F64                         // IEEE 754 binary64
	I64                         // two's complement, 64 bits
	U64                         // unsigned, 64 bits
)

// class groups the dtypes by how their bits are read.
type class uint8

const (
	classBool class = iota
	classUint
	classInt
	classFloat
	classComplex
)

var dtypes = [...]struct {
	name  string
	bits  uint8
	class class
}{
	Bool:       {"BOOL", 8, classBool},
	F4:         {"F4", 4, classFloat},
	F6E2M3:     {"F6_E2M3", 6, classFloat},
	F6E3M2:     {"F6_E3M2", 6, classFloat},
	U8:         {"U8", 8, classUint},
	I8:         {"I8", 8, classInt},
	F8E5M2:     {"F8_E5M2", 8, classFloat},
	F8E4M3:     {"F8_E4M3", 8, classFloat},
	F8E8M0:     {"F8_E8M0", 8, classFloat},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8, classFloat},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 8, classFloat},
	I16:        {"I16", 16, classInt},
	U16:        {"U16", 16, classUint},
	F16:        {"F16", 16, classFloat},
	BF16:       {"BF16", 16, classFloat},
	I32:        {"I32", 32, classInt},
	U32:        {"U32", 32, classUint},
	F32:        {"F32", 32, classFloat},
	C64:        {"C64", 64, classComplex},
	F64:        {"F64", 64, classFloat},
	I64:        {"I64", 64, classInt},
	U64:        {"U64", 64, classUint},
}

var dtypeByName = func() map[string]DType {
	m := make(map[string]DType, len(dtypes))
	for d := Bool; d.valid(); d++ {
		m[d.String()] = d
	}
	return m
}()

// ParseDType returns the dtype that the format spells s, such as "BF16" or
// "F8_E4M3". Case counts. Any other string is an error that wraps
// [ErrUnknownDType].
func ParseDType(s string) (DType, error) {
	d, ok := dtypeByName[s]
	if !ok {
		return 0, &FormatError{Kind: ErrUnknownDType, Offset: -1, Want: "one of the 22 dtypes of the format", Got: quote(s)}
	}
	return d, nil
}

func (d DType) valid() bool { return d >= Bool && d <= U64 }

// String returns the format's own spelling, or "DType(n)" for a value that is
// none of the constants.
func (d DType) String() string {
	if !d.valid() {
		return "DType(" + strconv.Itoa(int(d)) + ")"
	}
	return dtypes[d].name
}

// Bits returns the width of one element in bits: 4 and 6 for the sub-byte
// kinds, else a multiple of 8; 0 for a value that is none of the constants.
func (d DType) Bits() int {
	if !d.valid() {
		return 0
	}
	return int(dtypes[d].bits)
}

// MarshalText returns the format's spelling. An invalid dtype is an error that
// wraps [ErrUnknownDType].
func (d DType) MarshalText() ([]byte, error) {
	if !d.valid() {
		return nil, &FormatError{Kind: ErrUnknownDType, Offset: -1, Want: "one of the 22 dtypes of the format", Got: d.String()}
	}
	return []byte(d.String()), nil
}

// UnmarshalText sets d to the dtype that text spells, as [ParseDType] does.
func (d *DType) UnmarshalText(text []byte) error {
	v, err := ParseDType(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}
