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
	p = plainASCII(buf, from)
	name := buf[from:p]
	if len(name) == len("__metadata__") && string(name) == "__metadata__" {
		return 0
	}
	at := s.forms[s.last].next
	if !s.forms[at].standsAt(buf, p) {
		var ok bool
		if at, ok = s.formAt(p); !ok {
			return 0
		}
		s.forms[s.last].next = at
	}
	s.last = at
	f := &s.forms[at]
	p += int(f.len)

	begin := s.end64
	if n := s.endLen; n > 0 && same(buf, s.endAt, p, n) && buf[p+n] == ',' {
		p += n
	} else if begin, p = digits(buf, p); p == 0 || buf[p] != ',' {
		return 0
	}
	endAt := p + 1
	end, p := digits(buf, endAt)
	if p == 0 || buf[p] != ']' || buf[p+1] != '}' {
		return 0
	}
	if begin == s.end64 && end-begin == f.size && s.checked == len(s.tensors) {
		s.checked++
	}
	s.endAt, s.endLen, s.end64 = endAt, p-endAt, end
	// Field by field: a whole record would be made elsewhere and copied in wider
	// pieces than it was written in, which stalls.
	s.tensors = append(s.tensors, record{})
	t := &s.tensors[len(s.tensors)-1]
	t.begin, t.end = int64(begin), int64(end)
	t.name, t.nameLen = uint32(from), uint32(len(name))
	t.dims, t.rank = f.dims, f.rank
	t.dtype = f.dtype
	t.hash = hashName(s.seed, stringOf(name))
	return p + 2
}

// A form is a dtype and a shape as an entry has them: the text between the name
// and the first offset. A model repeats few of them over and over, mostly in the
// same order, so that text which stood before need not be read again.
type form struct {
	at, len    uint32 // of the text; no text is empty
	dims, rank uint32
	size       uint64 // of the tensor's data
	dtype      DType
	next       uint8 // the place of the one that came after it last
}

func (f *form) standsAt(buf []byte, p int) bool {
	n := int(f.len)
	return n > 0 && p+n <= len(buf) && string(buf[p:p+n]) == string(buf[f.at:f.at+f.len])
}

// formAt returns the place in forms of the one at p, and whether there is one.
// Tensors whose names end alike mostly have the same, whatever the numbers of
// their layers and experts are, so that is where each is kept, in one of four
// places, until newer ones take them.
func (s *scanner) formAt(p int) (uint8, bool) {
	const places = 4
	at := uint8(0)
	if buf := s.buf; p >= 24 {
		// Odd numbers with bits everywhere: the golden ratio's, and two of splitmix64.
		x := letters(load8(buf, p-8)) * 0x9e3779b97f4a7c15
		y := letters(load8(buf, p-16)) * 0xbf58476d1ce4e5b9
		z := letters(load8(buf, p-24)) * 0x94d049bb133111eb
		at = uint8((x+y+z)>>58) * places
	}
	near := s.forms[at:][:places]
	for i := range near {
		if near[i].standsAt(s.buf, p) {
			return at + uint8(i), true
		}
	}
	f := s.readForm(p)
	if f.len == 0 {
		return 0, false
	}
	copy(near[1:], near)
	near[0] = f
	return at, true
}

// letters puts zeros in the place of digits, points and the like in x.
func letters(x uint64) uint64 {
	m := x & 0x4040404040404040
	return x & (m - m>>6)
}

// readForm reads the form at p. Without a length there is none.
func (s *scanner) readForm(p int) form {
	buf, from := s.buf, p
	// What matches lies within the header, and a load that begins in the header
	// may reach into the padding, so none of these can go out of bounds.
	if load8(buf, p) != afterName || load4(buf, p+8) != afterName2 {
		return form{}
	}
	p += 12
	dtype := p
	if p, _ = plain(buf, p); p-dtype > 12 {
		return form{}
	}
	d, ok := dtypeByName[string(buf[dtype:p])]
	if !ok || load8(buf, p) != afterType || load4(buf, p+7) != afterType2 {
		return form{}
	}
	p += 11

	held := len(s.dims)
	p = s.compactDims(p)
	if load8(buf, p) != afterDims || load8(buf, p+8) != afterDims2 || buf[p+16] != ':' || buf[p+17] != '[' {
		s.dims = s.dims[:held]
		return form{}
	}
	p += 18
	size, kind := sizeOf(d, s.dims[held:])
	if kind != "" {
		s.dims = s.dims[:held]
		return form{}
	}
	return form{at: uint32(from), len: uint32(p - from), dims: uint32(held), rank: uint32(len(s.dims) - held),
		size: uint64(size), dtype: d}
}

// compactDims appends the dimensions at p and returns the place after the last
// that it could read.
func (s *scanner) compactDims(p int) int {
	for s.buf[p] != ']' {
		v, next := digits(s.buf, p)
		if next == 0 || v > math.MaxInt {
			break
		}
		if len(s.dims) == cap(s.dims) {
			s.growDims(p)
		}
		s.dims = append(s.dims, int(v))
		p = next
		if s.buf[p] == ',' && s.buf[p+1] != ']' {
			p++
		}
	}
	return p
}

// plainASCII returns the first place from p on that is a quote, a backslash, a
// control character or no ASCII.
func plainASCII(buf []byte, p int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for {
		v := load8(buf, p)
		// As in plain, but for one step that only other than ASCII needs.
		stop := (v ^ ones*'"' - ones) | (v ^ ones*'\\' - ones) | (v - ones*0x20) | v
		if stop &= highs; stop != 0 {
			return p + bits.TrailingZeros64(stop)>>3
		}
		p += 8
	}
}

func load8(buf []byte, p int) uint64 { return binary.LittleEndian.Uint64(buf[p : p+8 : p+8]) }
func load4(buf []byte, p int) uint32 { return binary.LittleEndian.Uint32(buf[p : p+4 : p+4]) }

// same reports whether the n bytes at a and b are equal, for n up to 16.
func same(buf []byte, a, b, n int) bool {
	x := load8(buf, a) ^ load8(buf, b)
	if n <= 8 {
		return x<<uint(64-8*n) == 0
	}
	return x == 0 && (load8(buf, a+8)^load8(buf, b+8))<<uint(128-8*n) == 0
}

// digits reads an integer of at most 15 digits without a leading zero and
// returns it with the place after it, or 0 as that place.
func digits(buf []byte, p int) (uint64, int) {
	x := load8(buf, p) ^ zeros
	n := leadingDigits(x)
	if n == 0 || x&0xff == 0 && n > 1 {
		return 0, 0
	}
	if n < 8 {
		return decimal(x << (64 - 8*n)), p + n
	}
	v := decimal(x)
	x = load8(buf, p+8) ^ zeros
	m := leadingDigits(x)
	if m == 8 {
		return 0, 0
	}
	return v*pow10[m] + decimal(x<<(64-8*m)), p + 8 + m
}

var pow10 = [...]uint64{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000}

// zeros turns the characters 0 to 9 into these numbers and back.
const zeros = 0x3030303030303030

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
