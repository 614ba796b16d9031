package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The kinds of errors and findings about the index of a sharded model.
const (
	ErrIndexNotJSON         Kind = "index-not-json"         // the index is not the JSON object that it should be
	ErrIndexUnsafePath      Kind = "index-unsafe-path"      // a shard's name could lead out of the folder
	ErrIndexMissingShard    Kind = "index-missing-shard"    // shards that the index names are not there
	ErrIndexMissingTensor   Kind = "index-missing-tensor"   // a tensor is not in the shard that the index names
	ErrIndexDuplicateTensor Kind = "index-duplicate-tensor" // a tensor is in more than one shard
	ErrIndexUnlistedTensor  Kind = "index-unlisted-tensor"  // a tensor of a shard is not in the index
	ErrIndexTotalSize       Kind = "index-total-size"       // total_size is not the sum of the tensors
	ErrShardInvalid         Kind = "shard-invalid"          // a shard breaks the format
)

// A shardIndex is what an index file says.
type shardIndex struct {
	shards   []string          // names, each once
	where    *Header           // from a tensor to its place in shards
	metadata map[string]string // strings in the index's metadata
	total    string            // metadata.total_size as it stands there, or ""
}

// readIndex reads an index file as it streams by: only names are kept, each
// shard's once. A key that stands twice in one object is refused, since
// readers differ in which one they take. Of the metadata, which others write
// in many ways or not at all, what is not understood is left alone.
func readIndex(r io.Reader, maxString int64) (*shardIndex, error) {
	d := jsonStream{r: r, most: maxString}
	x := &shardIndex{}
	err := d.object(0, func(key string) error {
		switch key {
		case "weight_map":
			return x.weightMap(&d)
		case "metadata":
			return x.readMetadata(&d)
		}
		return d.skip(1)
	})
	if err == nil {
		if d.peek(); d.p < d.end {
			err = d.fail(d.offset(), "nothing after the object", d.found())
		}
	}
	if d.err != nil && d.err != io.EOF {
		err = fmt.Errorf("safetensors: reading the index: %w", d.err)
	}
	if err == nil && x.where == nil {
		err = d.fail(-1, `an object with a "weight_map"`, "none")
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (x *shardIndex) weightMap(d *jsonStream) error {
	x.where = newPlaces()
	places := map[string]int{}
	err := d.members(func() error {
		name, err := d.str()
		if err != nil {
			return err
		}
		if !addPlace(x.where, name) {
			return d.fail(d.offset(), "names of less than 4 GiB in all", "more")
		}
		added := &x.where.tensors[len(x.where.tensors)-1]
		if err := d.colon(); err != nil {
			return err
		}
		if d.peek() != '"' {
			e := d.fail(d.offset(), "the name of a shard, a string", d.found())
			e.Tensor = x.where.name(added)
			return e
		}
		at := d.offset()
		shard, err := d.str()
		if err != nil {
			return err
		}
		place, known := places[string(shard)]
		if !known {
			if why := unsafeShard(string(shard)); why != "" {
				return &FormatError{Kind: ErrIndexUnsafePath, Tensor: x.where.name(added), Offset: at,
					Want: "the name of a file in the folder of the index", Got: quote(string(shard)) + ", " + why}
			}
			place = len(x.shards)
			x.shards = append(x.shards, string(shard))
			places[x.shards[place]] = place
		}
		added.begin = int64(place)
		return nil
	})
	if err != nil {
		return err
	}
	var twice *FormatError
	if errors.As(x.where.buildIndex(false), &twice) {
		e := d.fail(-1, "each tensor once in weight_map", "it again")
		e.Tensor = twice.Tensor
		return e
	}
	return nil
}

// newPlaces returns an empty table from names to places. What a Header has for
// its names serves: of each record the name counts, and begin, the place.
func newPlaces() *Header { return &Header{seed: maphash.MakeSeed()} }

// addPlace appends a name, with the place 0, to a table that is then finished by
// buildIndex. It reports false if the table is full.
func addPlace(h *Header, name []byte) bool {
	at := len(h.text)
	if uint64(at)+uint64(len(name)) > math.MaxUint32 || len(h.tensors) == math.MaxInt32 {
		return false
	}
	h.text = append(h.text, name...)
	h.tensors = append(h.tensors, record{name: uint32(at), nameLen: uint32(len(name)), hash: hashName(h.seed, stringOf(name))})
	return true
}

func (x *shardIndex) readMetadata(d *jsonStream) error {
	if d.peek() != '{' {
		return d.skip(1)
	}
	return d.object(1, func(key string) error {
		switch c := d.peek(); {
		case c == '"':
			value, err := d.str()
			if err != nil {
				return err
			}
			if x.metadata == nil {
				x.metadata = map[string]string{}
			}
			x.metadata[key] = string(value)
			return nil
		case key == "total_size" && (c == '-' || c-'0' <= 9):
			number, err := d.number()
			x.total = string(number)
			return err
		}
		return d.skip(2)
	})
}

// unsafeShard says why a shard's name cannot be trusted, on any system: an
// index travels.
func unsafeShard(name string) string {
	drive := len(name) >= 2 && name[1] == ':' && (name[0]|0x20)-'a' < 26
	switch {
	case name == "":
		return "which is empty"
	case strings.ContainsRune(name, 0):
		return "which has a NUL"
	case strings.ContainsRune(name, '\\'):
		return "which has a backslash"
	case name[0] == '/' || drive || filepath.IsAbs(name):
		return "which is absolute"
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "which has a parent step"
		}
	}
	if !filepath.IsLocal(name) {
		return "which this system reserves"
	}
	return ""
}

// A jsonStream reads JSON through a window that grows only for a string that
// does not fit.
type jsonStream struct {
	r    io.Reader
	buf  []byte // the window: bytes up to end, then at least scanPad zero bytes
	p    int    // the next byte
	end  int
	base int64 // where in the file buf begins
	most int64 // longest string
	err  error // of the reader, io.EOF included
}

// fill brings in more bytes after those from p on, which move to the front. It
// reports false where there are no more.
func (d *jsonStream) fill() bool {
	const window = 64 << 10
	have := d.end - d.p
	if d.err != nil {
		return false
	}
	to := d.buf
	if have >= len(d.buf)/2 {
		to = make([]byte, max(window, 2*len(d.buf)))
	}
	copy(to, d.buf[d.p:d.end])
	d.buf = to
	d.base += int64(d.p)
	d.p, d.end = 0, have
	for tries := 0; d.end == have && d.err == nil; tries++ {
		n, err := d.r.Read(d.buf[d.end : len(d.buf)-scanPad])
		if n < 0 || n > len(d.buf)-scanPad-d.end {
			n, err = 0, fmt.Errorf("the reader returned an impossible count")
		}
		if d.end, d.err = d.end+n, err; tries == 100 && n == 0 && err == nil {
			d.err = io.ErrNoProgress
		}
	}
	clear(d.buf[d.end : d.end+scanPad])
	return d.end > have
}

func (d *jsonStream) offset() int64 { return d.base + int64(d.p) }

// peek returns the next byte that is not whitespace, without taking it, or 0 at
// the end.
func (d *jsonStream) peek() byte {
	for {
		for d.p < d.end {
			switch c := d.buf[d.p]; c {
			case ' ', '\t', '\r', '\n':
				d.p++
			default:
				return c
			}
		}
		if !d.fill() {
			return 0
		}
	}
}

// take takes c, which must come next.
func (d *jsonStream) take(c byte, want string) error {
	if d.peek() != c || d.p == d.end {
		return d.fail(d.offset(), want, d.found())
	}
	d.p++
	return nil
}

func (d *jsonStream) colon() error { return d.take(':', "':'") }

// members calls read for each member of an object, its key included.
func (d *jsonStream) members(read func() error) error {
	if err := d.take('{', "an object"); err != nil {
		return err
	}
	if d.peek() == '}' {
		d.p++
		return nil
	}
	for {
		if d.peek() != '"' {
			return d.fail(d.offset(), "a string", d.found())
		}
		if err := read(); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.p++
		case '}':
			d.p++
			return nil
		default:
			return d.fail(d.offset(), "',' or '}'", d.found())
		}
	}
}

// object calls value for each member of an object of which no key stands twice.
func (d *jsonStream) object(depth int, value func(key string) error) error {
	if depth > maxDepth {
		return d.fail(d.offset(), fmt.Sprintf("nesting of at most %d", maxDepth), "more")
	}
	seen := map[string]bool{}
	return d.members(func() error {
		at := d.offset()
		text, err := d.str()
		if err != nil {
			return err
		}
		key := string(text)
		if seen[key] {
			return d.fail(at, "each key once", quote(key)+" again")
		}
		seen[key] = true
		if err := d.colon(); err != nil {
			return err
		}
		return value(key)
	})
}

// str reads the string that is next and returns it without its escapes. It is
// good until the next read.
func (d *jsonStream) str() ([]byte, error) {
	escaped, wide := false, false
	for n := 1; ; {
		stop, over := plain(d.buf, d.p+n)
		wide = wide || over
		n = min(stop, d.end) - d.p
		switch {
		case int64(n-1) > d.most:
			return nil, d.fail(d.offset(), fmt.Sprintf("a string of at most %d bytes", d.most), "more")
		case stop >= d.end || d.buf[stop] == '\\' && stop+1 == d.end:
			if !d.fill() {
				return nil, d.fail(d.offset()+int64(n), "'\"'", "the end of the index")
			}
		case d.buf[stop] == '\\':
			escaped = true
			n += 2
		case d.buf[stop] == '"':
			text := d.buf[d.p : stop+1]
			if escaped || wide {
				// The scanner has the rules; it may write to what it is given.
				text = append(bytes.Clone(text), make([]byte, scanPad)...)
				s := scanner{buf: text, end: stop + 1 - d.p}
				plain, _, err := s.str(0, ErrIndexNotJSON)
				if err != nil {
					return nil, d.scanned(err)
				}
				d.p = stop + 1
				return []byte(plain), nil
			}
			d.p = stop + 1
			return text[1 : len(text)-1], nil
		default:
			return nil, d.fail(d.base+int64(stop), "no bare control character in a string", fmt.Sprintf("byte %#02x", d.buf[stop]))
		}
	}
}

// number reads the number that is next and returns its text.
func (d *jsonStream) number() ([]byte, error) { return d.word("+-.eE0123456789", (*scanner).number) }

// word reads bytes of the given ones, which check must all take.
func (d *jsonStream) word(of string, check func(*scanner, int) (int, error)) ([]byte, error) {
	const longest = 1 << 16
	n := 0
	for d.p+n < d.end || d.fill() {
		if strings.IndexByte(of, d.buf[d.p+n]) < 0 || n == longest {
			break
		}
		n++
	}
	text := append(bytes.Clone(d.buf[d.p:d.p+n]), make([]byte, scanPad)...)
	s := scanner{buf: text, end: n}
	end, err := check(&s, 0)
	if err == nil && end < n {
		err = s.fail(end, ErrIndexNotJSON, "',' or an end", s.found(end))
	}
	if err != nil {
		return nil, d.scanned(err)
	}
	d.p += n
	return text[:n], nil
}

// skip reads any value.
func (d *jsonStream) skip(depth int) error {
	var err error
	switch c := d.peek(); {
	case c == '{':
		return d.object(depth, func(string) error { return d.skip(depth + 1) })
	case c == '[':
		return d.array(depth)
	case c == '"':
		_, err = d.str()
	case c == '-' || c-'0' <= 9:
		_, err = d.number()
	case c == 't' || c == 'f' || c == 'n':
		_, err = d.word("aeflnrstu", func(s *scanner, p int) (int, error) { return s.skip(p, 0) })
	default:
		return d.fail(d.offset(), "a JSON value", d.found())
	}
	return err
}

func (d *jsonStream) array(depth int) error {
	if depth > maxDepth {
		return d.fail(d.offset(), fmt.Sprintf("nesting of at most %d", maxDepth), "more")
	}
	d.p++
	if d.peek() == ']' {
		d.p++
		return nil
	}
	for {
		if err := d.skip(depth + 1); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.p++
		case ']':
			d.p++
			return nil
		default:
			return d.fail(d.offset(), "',' or ']'", d.found())
		}
	}
}

// found says what is next.
func (d *jsonStream) found() string {
	for d.end-d.p < scanPad*2 && d.fill() {
	}
	if d.p == d.end {
		return "the end of the index"
	}
	s := scanner{buf: d.buf, end: d.end}
	return s.found(d.p)
}

func (d *jsonStream) fail(at int64, want, got string) *FormatError {
	return &FormatError{Kind: ErrIndexNotJSON, Offset: at, Want: want, Got: got}
}

// scanned makes an error of the scanner, which was given what stands at p, one
// of the index.
func (d *jsonStream) scanned(err error) error {
	fe := err.(*FormatError)
	fe.Kind, fe.Offset = ErrIndexNotJSON, fe.Offset-8+d.offset()
	return fe
}

// editIndex has change edit the strings in the metadata of an index, text, and
// returns the new text, or nil if nothing is new. What change adds stays out of
// it: an index need not have it. All else stays as it is, to the byte.
func editIndex(text []byte, change func(map[string]string) error) ([]byte, error) {
	type member struct {
		key             string
		from, value, to int64 // the value begins at 0 where it is no string
	}
	var members []member
	var from, to int64 // between the braces
	had := map[string]string{}
	d := jsonStream{r: bytes.NewReader(text), most: int64(len(text))}
	err := d.object(0, func(key string) error {
		if c := d.peek(); key != "metadata" || c != '{' {
			return d.skip(1)
		}
		from = d.offset() + 1
		err := d.members(func() error {
			m := member{from: d.offset()}
			text, err := d.str()
			if err != nil {
				return err
			}
			m.key = string(text)
			if err := d.colon(); err != nil {
				return err
			}
			if d.peek() == '"' {
				m.value = d.offset()
				text, err = d.str()
				had[m.key] = string(text)
			} else {
				err = d.skip(2)
			}
			m.to = d.offset()
			members = append(members, m)
			return err
		})
		to = d.offset() - 1
		return err
	})
	if err != nil {
		return nil, err
	}
	has := maps.Clone(had)
	if err := change(has); err != nil {
		return nil, err
	}

	b := slices.Clone(text[:from])
	changed, kept, before := false, false, from
	for _, m := range members {
		between := text[before:m.from]
		before = m.to
		value, ok := has[m.key]
		if m.value > 0 && !ok {
			changed = true
			continue
		}
		if !kept {
			kept, between = true, text[from:members[0].from]
		}
		b = append(b, between...)
		if m.value > 0 && value != had[m.key] {
			changed = true
			b = appendASCII(append(b, text[m.from:m.value]...), value)
		} else {
			b = append(b, text[m.from:m.to]...)
		}
	}
	if !changed {
		return nil, nil
	}
	if kept {
		b = append(b, text[before:to]...)
	}
	return append(b, text[to:]...), nil
}

// appendIndex appends the index file that huggingface_hub writes for the
// shards, byte for byte.
func appendIndex(b []byte, total int64, metadata [][2]string, shards []string, tensors [][]string) []byte {
	b = append(b, "{\n  \"metadata\": {\n    \"total_size\": "...)
	b = strconv.AppendInt(b, total, 10)
	for _, m := range metadata {
		b = append(b, ",\n    "...)
		b = appendASCII(b, m[0])
		b = append(b, ": "...)
		b = appendASCII(b, m[1])
	}
	b = append(b, "\n  },\n  \"weight_map\": {"...)
	for i, names := range tensors {
		shard := appendASCII(nil, shards[i])
		for j, name := range names {
			if i > 0 || j > 0 {
				b = append(b, ',')
			}
			b = append(b, "\n    "...)
			b = appendASCII(b, name)
			b = append(b, ": "...)
			b = append(b, shard...)
		}
	}
	return append(b, "\n  }\n}"...)
}

// appendASCII quotes s as Python's json does, with all but printable ASCII
// escaped.
func appendASCII(b []byte, s string) []byte {
	const short = "\b\t\n\f\r\"\\"
	b = append(b, '"')
	for _, r := range s {
		switch i := strings.IndexRune(short, r); {
		case i >= 0:
			b = append(b, '\\', `btnfr"\`[i])
		case r >= ' ' && r <= '~':
			b = append(b, byte(r))
		case r > 0xffff:
			r -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"')
}
