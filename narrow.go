package safetensors

import "math"

// A floatFormat says how a dtype of 16 bits or less spells numbers: from the
// top a sign bit, exp bits of exponent and man of mantissa. [F8E8M0] has no
// sign, no mantissa and no zero.
type floatFormat struct {
	exp, man, bias int
	special        specials
}

type specials uint8

const (
	ieee     specials = iota + 1 // exponent all ones: infinities, and NaNs where the mantissa is not 0
	lastNaN                      // all ones but for the sign is NaN; no infinities
	zeroNaN                      // the code that would be -0 is NaN; no infinities
	noNaN                        // numbers only
	exponent                     // all ones is NaN, all else a power of two
)

var floatFormats = [U64 + 1]floatFormat{
	F4:         {2, 1, 1, noNaN},
	F6E2M3:     {2, 3, 1, noNaN},
	F6E3M2:     {3, 2, 3, noNaN},
	F8E5M2:     {5, 2, 15, ieee},
	F8E4M3:     {4, 3, 7, lastNaN},
	F8E8M0:     {8, 0, 127, exponent},
	F8E4M3FNUZ: {4, 3, 8, zeroNaN},
	F8E5M2FNUZ: {5, 2, 16, zeroNaN},
	F16:        {5, 10, 15, ieee},
	BF16:       {8, 7, 127, ieee},
}

// decodeNarrow returns the number that code spells in one of floatFormats,
// which a float32 holds exactly. It is the plain statement of the formats;
// what runs on tensors is tested against it.
func decodeNarrow(d DType, code uint16) float32 {
	f := &floatFormats[d]
	man := uint32(code) & (1<<f.man - 1)
	exp := int(code) >> f.man & (1<<f.exp - 1)
	sign := uint32(code) >> (f.exp + f.man) << 31
	top := exp == 1<<f.exp-1
	switch f.special {
	case exponent:
		if top {
			return float32(math.NaN())
		}
		return float32(math.Ldexp(1, exp-f.bias))
	case lastNaN:
		if top && man == 1<<f.man-1 {
			return math.Float32frombits(sign | quietNaN)
		}
	case zeroNaN:
		if sign != 0 && exp == 0 && man == 0 {
			return math.Float32frombits(quietNaN)
		}
	case ieee:
		if top && man == 0 {
			return math.Float32frombits(sign | infinity)
		}
		if top && d == BF16 {
			return math.Float32frombits(uint32(code) << 16) // even a signalling one, bit for bit
		}
		if top {
			return math.Float32frombits(sign | quietNaN | man<<(23-f.man))
		}
	}
	scale := exp - f.bias - f.man
	if exp == 0 {
		scale++
	} else {
		man |= 1 << f.man
	}
	return math.Float32frombits(sign | math.Float32bits(float32(math.Ldexp(float64(man), scale))))
}

const (
	infinity = 0x7f800000
	quietNaN = 0x7fc00000
)

// encodeNarrow returns the code of d nearest to x, of two as near the even one.
// What is beyond the largest number, and NaN, go as the table at [Tensor.Cast]
// says; ok is false for NaN where d has none. It is the plain statement of the
// rules, as decodeNarrow is.
func encodeNarrow(d DType, x float64) (code uint16, ok bool) {
	f := &floatFormats[d]
	most := uint16(1)<<(f.exp+f.man) - 1
	sign := uint16(math.Float64bits(x)>>63) << (f.exp + f.man)
	var largest, over, nan uint16
	switch f.special {
	case ieee:
		over = sign | most>>f.man<<f.man
		largest, nan = most>>f.man<<f.man-1, over|1<<(f.man-1)
	case lastNaN:
		largest, over, nan = most-1, sign|most, sign|most
	case zeroNaN:
		largest, over, nan = most, most+1, most+1
	case noNaN:
		largest, over = most, sign|most
	case exponent:
		largest, over, nan = most-1, most, most
		if x <= 0 {
			return nan, true
		}
		if x > 0x1p-127 && x < 0x1p-126 {
			return 1, true // as the other tools do, though it is not always nearest
		}
	}
	switch {
	case math.IsNaN(x):
		return nan, f.special != noNaN
	case math.IsInf(x, 0):
		return over, true
	case x == 0 && f.special == zeroNaN:
		return 0, true
	case x == 0:
		return sign, true
	}

	// |x| is m units of 2^(exp-53). Kept are units of 2^unit.
	frac, exp := math.Frexp(math.Abs(x))
	m := uint64(math.Ldexp(frac, 53))
	top, least := exp-1, 1-f.bias // the exponents of x and of the smallest normal number
	if f.special == exponent {
		least = -f.bias
	}
	top = max(top, least)
	unit := top - f.man
	drop := min(unit-(exp-53), 60) // over 53 leaves nothing
	q := m >> drop
	if rest, half := m&(1<<drop-1), uint64(1)<<(drop-1); rest > half || rest == half && q&1 == 1 {
		q++
	}
	// The first unit of a normal number adds one to the exponent field, as does
	// one that rounding carried into.
	n := uint64(top-least)<<f.man + q
	if f.special == exponent && n > 0 {
		n--
	}
	switch {
	case n > uint64(largest):
		return over, true
	case n == 0 && f.special == zeroNaN:
		return 0, true
	}
	return sign | uint16(n), true
}
