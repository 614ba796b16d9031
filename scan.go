package safetensors

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// scanPad is how many zero bytes follow the header in a scanner's buffer, so
// that eight bytes can be loaded at any place of the header. A zero byte is no
// part of any JSON token, so every loop stops at the end by itself.
const scanPad = 16

// maxDepth is how deep the reference's JSON library lets arrays and objects
// nest, the header object included (serde_json's recursion limit).
const maxDepth = 127

// beyond stands in for a number in the header that no int64 (an offset) or int
// (a dimension) can hold. The rules refuse it, unless a repeated name that
// WithCompat allows replaces the entry.
const beyond = -1

// A scanner reads the JSON text of a header. What every writer writes is taken
// by [scanner.compact]; whatever differs from it goes the general way, which is
// the plain statement of the grammar. Strings are not copied: those with
// escapes are unescaped where they stand, which never makes them longer.
type scanner struct {
	buf      []byte // the header, then scanPad zero bytes
	end      int    // length of the header
	compat   bool
	seed     maphash.Seed // of the names' hashes
	metadata map[string]string
	hasMeta  bool // a __metadata__ key was seen, though it may have been null
	tensors  []record
	dims     []int
	misses   int      // entries in a row that compact did not take
	keys     []string // of the objects around p that are not in maps

	forms [256]form // see formAt
	last  uint8     // the place of the one that was there last

	// How many tensors, of those at the start, compact has seen to begin where the
	// one before ends and to be of the right size, so that rules 11 to 14 hold.
	checked int

	// The end offset that compact read last, and where its digits stand: the next
	// tensor's data mostly begins there.
	end64         uint64
	endAt, endLen int
}

// scan fills in metadata and tensors, in the order of the header (rules 4 to 6,
// 8 to 10, and 7 within entries and metadata).
func (s *scanner) scan() error {
	err := s.header()
	if err == nil {
		return nil
	}
	// Only strings may hold bytes over 0x7f, and those that were read are
	// checked; an error may stand before a worse one that explains it.
	if at := invalidUTF8(s.buf[:s.end]); at >= 0 {
		return s.fail(at, ErrHeaderNotUTF8, "valid UTF-8", fmt.Sprintf("byte %#02x", s.buf[at]))
	}
	return err
}

func (s *scanner) header() error {
	p := 0
	if s.compat {
		p = s.space(p)
	}
	if s.end == 0 {
		return s.fail(0, ErrHeaderNotJSON, "a JSON object", "an empty header")
	}
	if s.buf[p] != '{' {
		return s.fail(p, ErrHeaderNotObject, "'{'", s.found(p))
	}
	s.reserve()
	p = s.space(p + 1)
	if s.buf[p] == '}' {
		return s.finish(p + 1)
	}
	for {
		var err error
		next := p
		if s.misses < maxMisses {
			next = s.compact(p)
		}
		if next == p {
			if next, err = s.member(p); err != nil {
				return err
			}
		}
		p = s.space(next)
		switch s.buf[p] {
		case ',':
			p = s.space(p + 1)
		case '}':
			return s.finish(p + 1)
		default:
			return s.fail(p, ErrHeaderNotJSON, "',' or '}'", s.found(p))
		}
	}
}

// finish checks that only JSON whitespace follows.
func (s *scanner) finish(p int) error {
	if p = s.space(p); p < s.end {
		return s.fail(p, ErrHeaderNotJSON, "only whitespace after the header object", s.found(p))
	}
	return nil
}

// reserve sizes the arenas by the first part of the header. A wrong guess costs
// an allocation more, and none is larger than the header can justify: no entry
// is shorter than 50 bytes. Shapes are few where entries share them, as those
// that compact reads do.
func (s *scanner) reserve() {
	const sample, shortest, shapes = 1 << 14, 50, 128
	head := s.buf[:min(s.end, sample)]
	braces := bytes.Count(head, []byte("{"))
	scale := float64(s.end) / float64(len(head)) * 1.02
	n := min(int(float64(braces)*scale)+1, s.end/shortest+1)
	s.tensors = make([]record, 0, n)
	s.dims = make([]int, 0, min(2*n, shapes))
}

// member reads one "key":value of the header object at p.
func (s *scanner) member(p int) (int, error) {
	name, next, err := s.str(p, ErrHeaderNotJSON)
	if err != nil {
		return 0, err
	}
	if next, err = s.colon(next); err != nil {
		return 0, err
	}
	if name == "__metadata__" {
		if s.hasMeta {
			return 0, s.fail(p, ErrDuplicateKey, "__metadata__ once", "it again")
		}
		s.hasMeta = true
		return s.meta(next)
	}
	return s.entry(p, next, name)
}

// meta reads the value of __metadata__ (rule 8).
func (s *scanner) meta(p int) (int, error) {
	const want = "an object whose values are all strings"
	if s.compat && s.literal(p, "null") {
		return p + 4, nil
	}
	if s.buf[p] != '{' {
		return 0, s.unexpected(p, ErrMetadataNotStringMap, want)
	}
	s.metadata = map[string]string{}
	p = s.space(p + 1)
	if s.buf[p] == '}' {
		return p + 1, nil
	}
	for {
		at := p
		key, next, err := s.str(p, ErrHeaderNotJSON)
		if err != nil {
			return 0, err
		}
		if p, err = s.colon(next); err != nil {
			return 0, err
		}
		if s.buf[p] != '"' {
			return 0, s.unexpected(p, ErrMetadataNotStringMap, want)
		}
		value, next, err := s.str(p, ErrHeaderNotJSON)
		if err != nil {
			return 0, err
		}
		if _, twice := s.metadata[key]; twice && !s.compat {
			return 0, s.fail(at, ErrDuplicateKey, "each metadata key once", quote(key)+" again")
		}
		s.metadata[key] = value
		p = s.space(next)
		switch s.buf[p] {
		case ',':
			p = s.space(p + 1)
		case '}':
			return p + 1, nil
		default:
			return 0, s.fail(p, ErrHeaderNotJSON, "',' or '}'", s.found(p))
		}
	}
}

// The fields of a tensor entry.
const (
	hasDType = 1 << iota
	hasShape
	hasOffsets
)

// entry reads the value of a tensor (rules 9 and 10) and appends it. at is
// where its name stands.
func (s *scanner) entry(at, p int, name string) (int, error) {
	if s.buf[p] != '{' {
		return 0, s.ofTensor(name, s.unexpected(p, ErrBadTensorInfo, "an object with dtype, shape and data_offsets"))
	}
	info := record{name: uint32(at + 1), nameLen: uint32(len(name)), hash: hashName(s.seed, name)}
	seen := 0
	unknown := s.newKeys()
	p = s.space(p + 1)
	for first := true; s.buf[p] != '}' || !first; first = false {
		key, next, err := s.str(p, ErrHeaderNotJSON)
		if err != nil {
			return 0, s.ofTensor(name, err)
		}
		keyAt, field := p, 0
		if p, err = s.colon(next); err != nil {
			return 0, s.ofTensor(name, err)
		}
		switch key {
		case "dtype":
			field = hasDType
			info.dtype, p, err = s.dtype(p)
		case "shape":
			field = hasShape
			info.dims = uint32(len(s.dims))
			p, err = s.shape(p)
			info.rank = uint32(len(s.dims)) - info.dims
		case "data_offsets":
			field = hasOffsets
			info.begin, info.end, p, err = s.offsets(p)
		default:
			if !s.compat && !unknown.add(key) {
				return 0, s.ofTensor(name, s.fail(keyAt, ErrDuplicateKey, "each key once", quote(key)+" again"))
			}
			p, err = s.skip(p, 3)
		}
		if err != nil {
			return 0, s.ofTensor(name, err)
		}
		if seen&field != 0 {
			return 0, s.ofTensor(name, s.fail(keyAt, ErrDuplicateKey, "each key once", quote(key)+" again"))
		}
		seen |= field
		p = s.space(p)
		if s.buf[p] == '}' {
			break
		}
		if s.buf[p] != ',' {
			return 0, s.ofTensor(name, s.fail(p, ErrHeaderNotJSON, "',' or '}'", s.found(p)))
		}
		p = s.space(p + 1)
	}
	if seen != hasDType|hasShape|hasOffsets {
		missing := "no data_offsets"
		if seen&hasDType == 0 {
			missing = "no dtype"
		} else if seen&hasShape == 0 {
			missing = "no shape"
		}
		return 0, s.ofTensor(name, s.fail(at, ErrBadTensorInfo, "dtype, shape and data_offsets", missing))
	}
	unknown.drop()
	s.tensors = append(s.tensors, info)
	return p + 1, nil
}

func (s *scanner) dtype(p int) (DType, int, error) {
	if s.buf[p] != '"' {
		return 0, 0, s.unexpected(p, ErrBadTensorInfo, "dtype as a string")
	}
	text, next, err := s.str(p, ErrHeaderNotJSON)
	if err != nil {
		return 0, 0, err
	}
	d, ok := dtypeByName[text]
	if !ok {
		return 0, 0, s.fail(p, ErrUnknownDType, "one of the 22 dtypes of the format", quote(text))
	}
	return d, next, nil
}

// shape appends the dimensions to dims.
func (s *scanner) shape(p int) (int, error) {
	const want = "shape as an array of integers >= 0"
	if s.buf[p] != '[' {
		return 0, s.unexpected(p, ErrBadTensorInfo, want)
	}
	p = s.space(p + 1)
	if s.buf[p] == ']' {
		return p + 1, nil
	}
	for {
		v, next, err := s.integer(p, want)
		if err != nil {
			return 0, err
		}
		d := beyond
		if v <= math.MaxInt {
			d = int(v)
		}
		if len(s.dims) == cap(s.dims) {
			s.growDims(p)
		}
		s.dims = append(s.dims, d)
		p = s.space(next)
		switch s.buf[p] {
		case ',':
			p = s.space(p + 1)
		case ']':
			return p + 1, nil
		default:
			return 0, s.fail(p, ErrHeaderNotJSON, "',' or ']'", s.found(p))
		}
	}
}

// growDims makes room for all dimensions that can follow from p on, of which
// each has its comma but the last. So it is done once, and a header of little
// but dimensions costs no more than they take.
func (s *scanner) growDims(p int) {
	dims := make([]int, len(s.dims), len(s.dims)+bytes.Count(s.buf[p:s.end], []byte(","))+1)
	copy(dims, s.dims)
	s.dims = dims
}

func (s *scanner) offsets(p int) (begin, end int64, next int, err error) {
	const want = "data_offsets as an array of two integers >= 0"
	if s.buf[p] != '[' {
		return 0, 0, 0, s.unexpected(p, ErrBadTensorInfo, want)
	}
	at := p
	p = s.space(p + 1)
	var pair [2]int64
	for i := range pair {
		if s.buf[p] == ']' {
			return 0, 0, 0, s.fail(at, ErrBadTensorInfo, want, fmt.Sprintf("%d of them", i))
		}
		v, next, err := s.integer(p, want)
		if err != nil {
			return 0, 0, 0, err
		}
		pair[i] = beyond
		if v <= math.MaxInt64 {
			pair[i] = int64(v)
		}
		p = s.space(next)
		if i > 0 || s.buf[p] == ']' {
			continue
		}
		if s.buf[p] != ',' {
			break // to the error below
		}
		p = s.space(p + 1)
		if s.buf[p] == ']' {
			return 0, 0, 0, s.fail(p, ErrHeaderNotJSON, "an integer", s.found(p))
		}
	}
	switch s.buf[p] {
	case ']':
		return pair[0], pair[1], p + 1, nil
	case ',':
		return 0, 0, 0, s.fail(p, ErrBadTensorInfo, want, "more than two")
	}
	return 0, 0, 0, s.fail(p, ErrHeaderNotJSON, "',' or ']'", s.found(p))
}

// integer reads plain digits. Other JSON values are ErrBadTensorInfo.
func (s *scanner) integer(p int, want string) (uint64, int, error) {
	at := p
	v, p := digits(s.buf, at)
	if p == 0 { // and v
		p = at
	}
	for c := s.buf[p] - '0'; c <= 9; c = s.buf[p] - '0' {
		hi, lo := bits.Mul64(v, 10)
		lo, carry := bits.Add64(lo, uint64(c), 0)
		if hi+carry != 0 {
			return 0, 0, s.unexpected(at, ErrBadTensorInfo, want)
		}
		v = lo
		p++
	}
	switch s.buf[p] {
	case '.', 'e', 'E':
		return 0, 0, s.unexpected(at, ErrBadTensorInfo, want)
	}
	if p == at || s.buf[at] == '0' && p > at+1 {
		return 0, 0, s.unexpected(at, ErrBadTensorInfo, want)
	}
	return v, p, nil
}

// skip checks a value of an unknown key that is of no use here. depth counts
// the arrays and objects that it would be the innermost of.
func (s *scanner) skip(p, depth int) (int, error) {
	switch c := s.buf[p]; {
	case c == '"':
		_, next, err := s.str(p, ErrHeaderNotJSON)
		return next, err
	case c == '-' || c-'0' <= 9:
		return s.number(p)
	case c == '{' || c == '[':
		if depth > maxDepth {
			return 0, s.fail(p, ErrHeaderNotJSON, fmt.Sprintf("at most %d levels", maxDepth), "one more")
		}
		return s.skipInside(p, depth)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if s.literal(p, word) {
			return p + len(word), nil
		}
	}
	return 0, s.fail(p, ErrHeaderNotJSON, "a JSON value", s.found(p))
}

func (s *scanner) skipInside(p, depth int) (int, error) {
	open := s.buf[p]
	shut := open + 2 // ']' follows '[' by two, and '}' follows '{'
	p = s.space(p + 1)
	if s.buf[p] == shut {
		return p + 1, nil
	}
	keys := s.newKeys()
	for {
		if open == '{' {
			at := p
			key, next, err := s.str(p, ErrHeaderNotJSON)
			if err != nil {
				return 0, err
			}
			if !s.compat && !keys.add(key) {
				return 0, s.fail(at, ErrDuplicateKey, "each key once", quote(key)+" again")
			}
			if p, err = s.colon(next); err != nil {
				return 0, err
			}
		}
		next, err := s.skip(p, depth+1)
		if err != nil {
			return 0, err
		}
		p = s.space(next)
		switch s.buf[p] {
		case ',':
			p = s.space(p + 1)
		case shut:
			keys.drop()
			return p + 1, nil
		default:
			return 0, s.fail(p, ErrHeaderNotJSON, "',' or '"+string(rune(shut))+"'", s.found(p))
		}
	}
}

// number checks a JSON number. One that the reference takes for infinite is
// refused, as it does.
func (s *scanner) number(p int) (int, error) {
	at := p
	digits := func() bool {
		from := p
		for s.buf[p]-'0' <= 9 {
			p++
		}
		return p > from
	}
	if s.buf[p] == '-' {
		p++
	}
	first := p
	ok := digits() && (s.buf[first] != '0' || p == first+1)
	if ok && s.buf[p] == '.' {
		p++
		ok = digits()
	}
	if ok && s.buf[p]|0x20 == 'e' {
		p++
		if s.buf[p] == '+' || s.buf[p] == '-' {
			p++
		}
		ok = digits()
	}
	if !ok {
		return 0, s.fail(p, ErrHeaderNotJSON, "a JSON number", s.found(p))
	}
	if !referenceHolds(s.buf[first:p]) {
		return 0, s.fail(at, ErrHeaderNotJSON, "a number that the reference takes", quote(string(s.buf[at:p])))
	}
	return p, nil
}

func (s *scanner) literal(p int, word string) bool {
	return p+len(word) <= s.end && string(s.buf[p:p+len(word)]) == word
}

// space returns the first place from p on that is not JSON whitespace.
func (s *scanner) space(p int) int {
	if s.buf[p] > ' ' {
		return p
	}
	return s.spaces(p)
}

func (s *scanner) spaces(p int) int {
	const blanks = 0x2020202020202020
	for {
		switch s.buf[p] {
		case ' ', '\t', '\r', '\n':
			// An indentation at once.
			p += 1 + bits.TrailingZeros64(load8(s.buf, p+1)^blanks)>>3
		default:
			return p
		}
	}
}

func (s *scanner) colon(p int) (int, error) {
	if p = s.space(p); s.buf[p] != ':' {
		return 0, s.fail(p, ErrHeaderNotJSON, "':'", s.found(p))
	}
	return s.space(p + 1), nil
}

// str reads the string at p and returns it without its escapes. It shares the
// header's memory where it has none.
func (s *scanner) str(p int, kind Kind) (string, int, error) {
	if s.buf[p] != '"' {
		return "", 0, s.fail(p, kind, "a string", s.found(p))
	}
	from := p + 1
	p, wide := plain(s.buf, from)
	switch {
	case p >= s.end:
		return "", 0, s.fail(p, kind, "'\"'", "the end of the header")
	case s.buf[p] == '\\':
		return s.escaped(from, p, wide)
	case s.buf[p] != '"':
		return "", 0, s.fail(p, kind, "no bare control character in a string", s.found(p))
	}
	if wide {
		if at := invalidUTF8(s.buf[from:p]); at >= 0 {
			return "", 0, s.fail(from+at, ErrHeaderNotUTF8, "valid UTF-8", s.found(from+at))
		}
	}
	return stringOf(s.buf[from:p]), p + 1, nil
}

// plain returns the first place from p on that is a quote, a backslash or a
// control character, and whether a byte over 0x7f stands before it (it may say
// so too where one stands up to seven bytes after).
func plain(buf []byte, p int) (int, bool) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	var wide uint64
	for {
		v := load8(buf, p)
		quotes, slashes := v^ones*'"', v^ones*'\\'
		// Each term has the high bit set in its lowest byte that is a quote, a
		// backslash or below 0x20; borrows only spoil bytes above that one.
		stop := ((quotes - ones) &^ quotes) | ((slashes - ones) &^ slashes) | ((v - ones*0x20) &^ v)
		stop &= highs
		wide |= v & highs
		if stop != 0 {
			return p + bits.TrailingZeros64(stop)>>3, wide != 0
		}
		p += 8
	}
}

// escaped reads on in a string that began at from, from its first backslash on.
func (s *scanner) escaped(from, p int, wide bool) (string, int, error) {
	to, p, wide, err := s.unescape(p, wide)
	str := s.buf[from:to]
	for i := to; i < p; i++ {
		s.buf[i] = ' ' // no half of a character stays behind
	}
	if err != nil {
		return "", 0, err
	}
	if wide && !utf8.Valid(str) {
		return "", 0, s.fail(from, ErrHeaderNotUTF8, "valid UTF-8", "a string that is not")
	}
	return stringOf(str), p + 1, nil
}

// unescape moves the rest of a string down over the escapes in it and returns
// where it ends now, how far it was read, and whether it has bytes over 0x7f.
func (s *scanner) unescape(p int, wide bool) (to, next int, _ bool, err error) {
	to = p
	for s.buf[p] != '"' {
		if p >= s.end {
			return to, p, wide, s.fail(p, ErrHeaderNotJSON, "'\"'", "the end of the header")
		}
		if s.buf[p] != '\\' {
			return to, p, wide, s.fail(p, ErrHeaderNotJSON, "no bare control character in a string", s.found(p))
		}
		r, next, err := s.escape(p)
		if err != nil {
			return to, p, wide, err
		}
		to += utf8.EncodeRune(s.buf[to:p+6], r)
		stop, more := plain(s.buf, next)
		to += copy(s.buf[to:], s.buf[next:stop])
		p, wide = stop, wide || more
	}
	return to, p, wide, nil
}

// escape reads the escape at p.
func (s *scanner) escape(p int) (rune, int, error) {
	switch c := s.buf[p+1]; c {
	case '"', '\\', '/':
		return rune(c), p + 2, nil
	case 'b':
		return '\b', p + 2, nil
	case 'f':
		return '\f', p + 2, nil
	case 'n':
		return '\n', p + 2, nil
	case 'r':
		return '\r', p + 2, nil
	case 't':
		return '\t', p + 2, nil
	case 'u':
		r, ok := s.hex4(p + 2)
		if !ok {
			return 0, 0, s.fail(p, ErrHeaderNotJSON, "four hexadecimal digits after \\u", s.found(p+2))
		}
		next := p + 6
		switch {
		case r < 0xd800 || r > 0xdfff:
			return r, next, nil
		case r < 0xdc00 && s.buf[next] == '\\' && s.buf[next+1] == 'u':
			if low, ok := s.hex4(next + 2); ok && low >= 0xdc00 && low <= 0xdfff {
				return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, next + 6, nil
			}
		}
		return 0, 0, s.fail(p, ErrHeaderNotJSON, "a pair of surrogates", "a lone one")
	}
	return 0, 0, s.fail(p, ErrHeaderNotJSON, "an escape that JSON has", s.found(p+1))
}

func (s *scanner) hex4(p int) (rune, bool) {
	var r rune
	for _, c := range s.buf[p : p+4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unexpected is for a value of the wrong type: a fault of the given kind if it
// is a JSON value at all.
func (s *scanner) unexpected(p int, kind Kind, want string) error {
	if _, err := s.skip(p, 3); err != nil {
		return err
	}
	return s.fail(p, kind, want, s.found(p))
}

// found says what stands at p.
func (s *scanner) found(p int) string {
	if p >= s.end {
		return "the end of the header"
	}
	switch c := s.buf[p]; {
	case c == '"':
		return "a string"
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '-' || c-'0' <= 9:
		to := p + 1
		for to < s.end && to < p+24 && (s.buf[to]-'0' <= 9 || s.buf[to]|0x20 == 'e' || s.buf[to] == '.' || s.buf[to] == '-' || s.buf[to] == '+') {
			to++
		}
		return string(s.buf[p:to])
	case s.literal(p, "true"), s.literal(p, "null"):
		return string(s.buf[p : p+4])
	case s.literal(p, "false"):
		return "false"
	case c < 0x7f && c > ' ':
		return "'" + string(rune(c)) + "'"
	default:
		return fmt.Sprintf("byte %#02x", c)
	}
}

func (s *scanner) fail(p int, kind Kind, want, got string) error {
	return &FormatError{Kind: kind, Offset: 8 + int64(p), Want: want, Got: got}
}

func (s *scanner) ofTensor(name string, err error) error {
	if fe, ok := err.(*FormatError); ok && fe.Tensor == "" {
		fe.Tensor = name
	}
	return err
}

// invalidUTF8 returns the first place that is not valid UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	p := 0
	for p < len(b) {
		r, size := utf8.DecodeRune(b[p:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		p += size
	}
	return p
}

// A keySet holds the keys of one object, to find one that stands twice: few at
// the end of a list that it shares with the objects around it, so that small
// objects cost nothing, or many in a map. The zero keySet has a list of its own.
type keySet struct {
	list  *[]string
	first int // of its keys in list
	many  map[string]struct{}
}

// newKeys returns the set of an object that begins, which drop ends.
func (s *scanner) newKeys() keySet { return keySet{list: &s.keys, first: len(s.keys)} }

func (k *keySet) drop() { *k.list = (*k.list)[:k.first] }

// add reports whether key was new.
func (k *keySet) add(key string) bool {
	const few = 32
	if k.list == nil {
		k.list = new([]string)
	}
	if k.many == nil {
		for _, have := range (*k.list)[k.first:] {
			if have == key {
				return false
			}
		}
		*k.list = append(*k.list, key)
		if mine := (*k.list)[k.first:]; len(mine) > few {
			k.many = make(map[string]struct{}, len(mine))
			for _, have := range mine {
				k.many[have] = struct{}{}
			}
			k.drop()
		}
		return true
	}
	before := len(k.many)
	k.many[key] = struct{}{}
	return len(k.many) > before
}

// referenceHolds reports whether the reference takes n, a valid JSON number less
// its sign, for a float64. Its JSON library keeps the digits that fit 64 bits and
// multiplies by a power of ten, which near 1.797e308 rounds otherwise than
// strconv does, so its steps are followed.
func referenceHolds(n []byte) bool {
	var significand uint64
	var exponent int64
	full, fraction := false, false
	i := 0
	for ; i < len(n) && n[i]|0x20 != 'e'; i++ {
		if n[i] == '.' {
			full, fraction = false, true
			continue
		}
		digit := uint64(n[i] - '0')
		const most = math.MaxUint64
		if full = full || significand > most/10 || significand == most/10 && digit > most%10; full {
			if !fraction {
				exponent++
			}
			continue
		}
		significand = significand*10 + digit
		if fraction {
			exponent--
		}
	}
	if i < len(n) {
		i++
		minus := n[i] == '-'
		if minus || n[i] == '+' {
			i++
		}
		written := int64(0)
		for ; i < len(n); i++ {
			if written = written*10 + int64(n[i]-'0'); written > math.MaxInt32 {
				return significand == 0 || minus
			}
		}
		if minus {
			written = -written
		}
		exponent += written
	}
	switch {
	case significand == 0 || exponent <= 0:
		return true
	case exponent > 308:
		return false
	}
	power, _ := strconv.ParseFloat("1e"+strconv.FormatInt(exponent, 10), 64)
	return !math.IsInf(float64(significand)*power, 0)
}
