package safetensors

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// maxMisses is how many entries in a row may differ from the compact form
// before it is no longer tried.
const maxMisses = 16

// The pieces between the values of an entry as the reference and everyone else
// writes it, in words as they are loaded.
//
//	"name":{"dtype":"BF16","shape":[4096,4096],"data_offsets":[0,33554432]},
var (
	afterName  = word8(`":{"dtyp`)
	afterName2 = word4(`e":"`)
	afterType  = word8(`","shape`)
	afterType2 = word4(`e":[`)
	afterDims  = word8(`],"data_`)
	afterDims2 = word8(`offsets"`)
)

func word8(s string) uint64 { return binary.LittleEndian.Uint64([]byte(s)) }
func word4(s string) uint32 { return binary.LittleEndian.Uint32([]byte(s)) }

// compact reads as many entries as stand in the compact form from p on and
// returns the place after the last one's value, or p if there is none. It
// predicts every byte that is not a value and gives up at the first that
// differs, so it decides nothing: what it does not take, the general way reads
// again from the start of the entry.
func (s *scanner) compact(p int) int {
	done := p
	for {
		next := s.compactEntry(p)
		if next == 0 {
			s.misses++
			return done
		}
		s.misses = 0
		done = next
		if s.buf[next] != ',' || s.buf[next+1] != '"' {
			return done
		}
		p = next + 1
	}
}

// compactEntry appends the entry at p and returns the place after it, or 0.
func (s *scanner) compactEntry(p int) int {
	buf := s.buf
	if buf[p] != '"' {
		return 0
	}
	from := p + 1
	p, wide := plain(buf, from)
	// What matches lies within the header, and a load that begins in the header
	// may reach into the padding, so none of these can go out of bounds.
	if wide || load8(buf, p) != afterName || load4(buf, p+8) != afterName2 {
		return 0
	}
	name := buf[from:p]
	if len(name) == len("__metadata__") && string(name) == "__metadata__" {
		return 0
	}
	p += 12

	var d DType
	switch load4(buf, p) {
	case 'B' | 'F'<<8 | '1'<<16 | '6'<<24:
		d, p = BF16, p+4
	case 'F' | '3'<<8 | '2'<<16 | '"'<<24:
		d, p = F32, p+3
	case 'F' | '1'<<8 | '6'<<16 | '"'<<24:
		d, p = F16, p+3
	case 'U' | '8'<<8 | '"'<<16 | ','<<24:
		d, p = U8, p+2
	default:
		from := p
		if p, _ = plain(buf, p); p-from > 12 {
			return 0
		}
		var ok bool
		if d, ok = dtypeByName[string(buf[from:p])]; !ok {
			return 0
		}
	}
	if load8(buf, p) != afterType || load4(buf, p+7) != afterType2 {
		return 0
	}
	p += 11

	dims := s.dims
	for buf[p] != ']' {
		v, next := digits(buf, p)
		if next == 0 || v > math.MaxInt {
			return 0
		}
		if len(dims) == cap(dims) {
			held := len(s.dims)
			s.dims = dims
			s.growDims(p)
			dims, s.dims = s.dims, s.dims[:held]
		}
		dims = append(dims, int(v))
		p = next
		if buf[p] == ',' && buf[p+1] != ']' {
			p++
		}
	}
	if load8(buf, p) != afterDims || load8(buf, p+8) != afterDims2 || buf[p+16] != ':' || buf[p+17] != '[' {
		return 0
	}
	begin, p := digits(buf, p+18)
	if p == 0 || buf[p] != ',' {
		return 0
	}
	end, p := digits(buf, p+1)
	if p == 0 || buf[p] != ']' || buf[p+1] != '}' {
		return 0
	}
	s.tensors = append(s.tensors, record{
		begin:   int64(begin),
		end:     int64(end),
		name:    uint32(from),
		nameLen: uint32(len(name)),
		dims:    uint32(len(s.dims)),
		rank:    uint32(len(dims) - len(s.dims)),
		dtype:   d,
		hash:    hashName(s.seed, stringOf(name)),
	})
	s.dims = dims
	return p + 2
}

func load8(buf []byte, p int) uint64 { return binary.LittleEndian.Uint64(buf[p:]) }
func load4(buf []byte, p int) uint32 { return binary.LittleEndian.Uint32(buf[p:]) }

// digits reads an integer of at most 15 digits without a leading zero and
// returns it with the place after it, or 0 as that place.
func digits(buf []byte, p int) (uint64, int) {
	x := load8(buf, p) ^ 0x3030303030303030
	n := leadingDigits(x)
	if n == 0 || x&0xff == 0 && n > 1 {
		return 0, 0
	}
	if n < 8 {
		return decimal(x << (64 - 8*n)), p + n
	}
	v := decimal(x)
	x = load8(buf, p+8) ^ 0x3030303030303030
	m := leadingDigits(x)
	if m == 8 {
		return 0, 0
	}
	if m > 0 {
		v = v*pow10[m] + decimal(x<<(64-8*m))
	}
	return v, p + 8 + m
}

var pow10 = [8]uint64{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000}

// leadingDigits counts the bytes 0 to 9 from the lowest byte of x up.
func leadingDigits(x uint64) int {
	over := (x + 0x7676767676767676 | x) & 0x8080808080808080
	return bits.TrailingZeros64(over) >> 3
}

// decimal adds up eight digits, the most significant in the lowest byte, two
// and two at once.
func decimal(x uint64) uint64 {
	x = (x*10 + x>>8) & 0x00ff00ff00ff00ff
	x = (x*100 + x>>16) & 0x0000ffff0000ffff
	return (x*10_000 + x>>32) & 0xffffffff
}
