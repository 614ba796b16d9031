package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// DefaultMaxHeaderSize is the longest header, in bytes, that is read or written
// unless an option says otherwise. It is the reference's limit.
const DefaultMaxHeaderSize = 100_000_000

// TensorInfo is what a header says of one tensor.
type TensorInfo struct {
	Name  string
	DType DType
	Shape []int // empty for a scalar
	Begin int64 // where its bytes begin, counted from the start of the data
	End   int64 // where they end
}

// A Header is the checked header of a file. It is safe for use by many
// goroutines, since nothing changes it. It takes about twice the memory of its
// text, none of which the garbage collector has to look through.
type Header struct {
	metadata map[string]string
	text     []byte   // the JSON, which names are parts of
	dims     []int    // shapes, which tensors may share
	tensors  []record // in data order
	index    []uint32 // open-addressed table of names: place in tensors plus one, low bits of the hash above it
	shift    uint8    // from a hash to its slot in index
	place    uint8    // bits that a place takes in index
	seed     maphash.Seed
	size     int64 // bytes of JSON, padding included
}

// A record is a TensorInfo without pointers.
type record struct {
	begin, end    int64
	name, nameLen uint32 // in text
	dims, rank    uint32 // in dims
	dtype         DType
	hash          uint32 // of the name
}

func (h *Header) name(t *record) string {
	return stringOf(h.text[t.name : t.name+t.nameLen])
}

func (h *Header) shape(t *record) []int {
	return h.dims[t.dims : t.dims+t.rank : t.dims+t.rank]
}

// An Option changes how a file is read.
type Option func(*options)

type options struct {
	compat    bool
	noMmap    bool
	maxHeader int64
}

func optionsOf(opts []Option) options {
	o := options{maxHeader: DefaultMaxHeaderSize}
	for _, set := range opts {
		set(&o)
	}
	return o
}

// WithCompat accepts what the reference implementation accepts beyond the
// format's own text: JSON whitespace before the header object; a tensor name, a
// metadata key or an unknown key that stands twice (the last one counts); and
// "__metadata__":null as no metadata. Two accidents of the reference stay
// refused: a tensor entry written as an array and a dtype written as an object.
// So does a dimension over the largest int.
func WithCompat() Option { return func(o *options) { o.compat = true } }

// WithMaxHeaderSize sets the longest header, in bytes, that is accepted. The
// default is [DefaultMaxHeaderSize].
func WithMaxHeaderSize(n int64) Option { return func(o *options) { o.maxHeader = n } }

// WithoutMmap makes [Open] read with plain reads instead of a memory map. What
// Bytes returns is then memory of its own, which outlives Close, and a file
// that is cut short while it is open gives an error wherever it is noticed.
// It suits network file systems.
func WithoutMmap() Option { return func(o *options) { o.noMmap = true } }

// Metadata returns a copy of the file's __metadata__: nil where there is none.
func (h *Header) Metadata() map[string]string { return maps.Clone(h.metadata) }

// Tensors returns the tensors in data order: by Begin, then End, then place in
// the header. The slice is made for this call.
func (h *Header) Tensors() []TensorInfo {
	infos := make([]TensorInfo, len(h.tensors))
	n := 0
	for i := range h.tensors {
		n += int(h.tensors[i].rank)
	}
	dims := make([]int, 0, n) // not shared as in h
	for i := range h.tensors {
		t := &h.tensors[i]
		from := len(dims)
		dims = append(dims, h.shape(t)...)
		infos[i] = TensorInfo{h.name(t), t.dtype, dims[from:len(dims):len(dims)], t.begin, t.end}
	}
	return infos
}

// Lookup returns the tensor of that name and whether there is one.
func (h *Header) Lookup(name string) (TensorInfo, bool) {
	i := h.find(name)
	if i < 0 {
		return TensorInfo{}, false
	}
	t := &h.tensors[i]
	return TensorInfo{h.name(t), t.dtype, append([]int{}, h.shape(t)...), t.begin, t.end}, true
}

// DataStart returns where in the file the data begins, which is also how many
// bytes come before it. It need not be a multiple of anything.
func (h *Header) DataStart() int64 { return 8 + h.size }

// DataSize returns how many bytes of data the tensors have together.
func (h *Header) DataSize() int64 {
	if len(h.tensors) == 0 {
		return 0
	}
	return h.tensors[len(h.tensors)-1].end
}

// ReadHeader reads the 8 bytes of length and the header from r and not a byte
// more, and checks every rule but the last: that the data ends with the file.
// It serves pipes and remote files. Its memory grows with what r really gives,
// whatever the length says. A file that breaks the format is a [*FormatError];
// an error of r comes back wrapped.
func ReadHeader(r io.Reader, opts ...Option) (*Header, error) {
	o := optionsOf(opts)
	var length [8]byte
	if n, err := io.ReadFull(r, length[:]); err != nil {
		return nil, readFailure(err, 0, func() error { return tooShort(length[:n]) })
	}
	n, err := headerLength(length[:], math.MaxInt64, o)
	if err != nil {
		return nil, err
	}
	// Growing from a small start keeps a claim from being believed, unless r can
	// say what it holds.
	room := min(n, 64<<10)
	if sized, ok := r.(interface{ Len() int }); ok && int64(sized.Len()) >= n {
		room = n
	}
	buf := headerBytes(room)
	have := 0
	for {
		m, err := io.ReadFull(r, buf[have:len(buf)-scanPad])
		if have += m; err != nil {
			return nil, readFailure(err, int64(have), func() error {
				return &FormatError{Kind: ErrHeaderLengthExceedsFile, Offset: 0,
					Want: fmt.Sprintf("a header of %d bytes", n), Got: fmt.Sprintf("an end after %d", have),
					Hint: hint(slices.Concat(length[:], buf[:have]))}
			})
		}
		if int64(have) == n {
			return parseHeader(buf, have, -1, o)
		}
		grown := headerBytes(min(n, 8*int64(have)))
		copy(grown, buf[:have])
		buf = grown
	}
}

// headerBytes returns room for n bytes of header, with the padding after it.
func headerBytes(n int64) []byte {
	buf := uncleared(int(n) + scanPad)
	clear(buf[n:])
	return buf
}

// readFailure tells an end of the file, which short describes, from a failed read.
func readFailure(err error, have int64, short func() error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return short()
	}
	return fmt.Errorf("safetensors: reading the header after %d bytes: %w", have, err)
}

// readHeader reads and checks the header of a file of size bytes.
func readHeader(r io.ReaderAt, size int64, o options) (*Header, error) {
	if size < 0 {
		return nil, fmt.Errorf("safetensors: negative size %d", size)
	}
	head := make([]byte, min(size, 64))
	if err := readFullAt(r, head, 0); err != nil {
		return nil, fmt.Errorf("safetensors: reading the header length: %w", err)
	}
	if size < 8 {
		return nil, tooShort(head)
	}
	n, err := headerLength(head, size, o)
	if err != nil {
		return nil, err
	}
	buf := headerBytes(n)
	if err := readFullAt(r, buf[:n], 8); err != nil {
		return nil, fmt.Errorf("safetensors: reading the header: %w", err)
	}
	h, err := parseHeader(buf, int(n), size, o)
	if fe, ok := err.(*FormatError); ok && fe.Offset < 16 {
		fe.Hint = hint(head)
	}
	return h, err
}

// tooShort is rule 1.
func tooShort(head []byte) error {
	return &FormatError{Kind: ErrFileTooShort, Offset: 0, Want: "at least 8 bytes",
		Got: strconv.Itoa(len(head)), Hint: hint(head)}
}

// headerLength is rules 2 and 3.
func headerLength(head []byte, size int64, o options) (int64, error) {
	n := binary.LittleEndian.Uint64(head)
	if n > uint64(max(o.maxHeader, 0)) || n > min(math.MaxInt, math.MaxUint32)-scanPad {
		return 0, &FormatError{Kind: ErrHeaderTooLarge, Offset: 0, Hint: hint(head),
			Want: fmt.Sprintf("a header length of at most %d", o.maxHeader), Got: strconv.FormatUint(n, 10)}
	}
	if int64(n) > size-8 {
		return 0, &FormatError{Kind: ErrHeaderLengthExceedsFile, Offset: 0, Hint: hint(head),
			Want: fmt.Sprintf("a header of %d bytes", n), Got: fmt.Sprintf("a file of %d bytes with %d after the length", size, size-8)}
	}
	return int64(n), nil
}

// parseHeader checks the header in buf[:n], which scanPad zero bytes follow and
// which the Header keeps (rules 4 to 15). A size below 0 is not known.
func parseHeader(buf []byte, n int, size int64, o options) (_ *Header, err error) {
	defer func() {
		if fe, ok := err.(*FormatError); ok {
			fe.Tensor = strings.Clone(fe.Tensor) // an error must not keep all of buf
		}
	}()
	// Seeded anew for every header: strangers choose the names.
	s := scanner{buf: buf, end: n, compat: o.compat, seed: maphash.MakeSeed()}
	if err := s.scan(); err != nil {
		return nil, err
	}
	h := &Header{metadata: s.metadata, text: buf[:n], dims: s.dims, tensors: s.tensors, seed: s.seed, size: int64(n)}
	if err := h.buildIndex(o.compat); err != nil {
		return nil, err
	}
	checked := s.checked
	if len(h.tensors) < len(s.tensors) { // replaced by later ones of their names
		checked = 0
	}
	sorted, err := h.checkSizes(checked)
	if err != nil {
		return nil, err
	}
	if !sorted {
		h.sort()
		if err := h.buildIndex(o.compat); err != nil {
			return nil, err
		}
		checked = 0
	}
	if err := h.checkOffsets(checked); err != nil {
		return nil, err
	}
	if size >= 0 {
		return h, h.checkEnd(size)
	}
	return h, nil
}

// checkSizes is rules 11 to 13, on tensors from the given one on. It reports
// whether they stand in data order already.
func (h *Header) checkSizes(from int) (sorted bool, err error) {
	sorted = true
	begin, end := h.before(from)
	for i := from; i < len(h.tensors); i++ {
		t := &h.tensors[i]
		if t.begin < begin || t.begin == begin && t.end < end {
			sorted = false
		}
		begin, end = t.begin, t.end
		size, kind := sizeOf(t.dtype, h.shape(t))
		if kind == "" && t.end-t.begin != size && t.begin <= t.end && t.begin >= 0 {
			kind = ErrSizeMismatch
		}
		if kind != "" {
			return false, h.badSize(t, kind, size)
		}
	}
	return sorted, nil
}

// sizeOf returns how many bytes a tensor takes, or the rule of 11 and 12 that
// it breaks.
func sizeOf(d DType, shape []int) (int64, Kind) {
	n := uint64(1)
	for _, dim := range shape {
		hi, lo := bits.Mul64(n, uint64(dim))
		if dim < 0 || hi != 0 {
			return 0, ErrSizeOverflow
		}
		n = lo
	}
	hi, lo := bits.Mul64(n, uint64(dtypes[d].bits))
	if hi != 0 {
		return 0, ErrSizeOverflow
	}
	if lo%8 != 0 {
		return 0, ErrSubByteMisaligned
	}
	return int64(lo / 8), ""
}

func (h *Header) badSize(t *record, kind Kind, size int64) error {
	e := &FormatError{Kind: kind, Tensor: h.name(t), Offset: h.nameOffset(t)}
	describeSize(e, t.dtype, h.shape(t), size)
	if kind == ErrSizeMismatch {
		e.Got = fmt.Sprintf("%d (data_offsets [%d, %d])", t.end-t.begin, t.begin, t.end)
	}
	return e
}

// describeSize fills in what rules 11 to 13 want of a dtype and a shape.
func describeSize(e *FormatError, d DType, shape []int, size int64) {
	what := fmt.Sprintf("%s %s", d, shapeText(shape))
	switch e.Kind {
	case ErrSizeOverflow:
		e.Want, e.Got = "a size that fits 64 bits, of dimensions that fit an int", what
	case ErrSubByteMisaligned:
		e.Want, e.Got = "a whole number of bytes", what+" of "+strconv.Itoa(d.Bits())+" bits each"
	case ErrSizeMismatch:
		e.Want = fmt.Sprintf("%d bytes for %s", size, what)
	}
}

// shapeText prints a shape as the format does, cut to a sane length.
func shapeText(shape []int) string {
	b := []byte{'['}
	for i, dim := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		if i == 16 {
			b = append(b, "…"...)
			break
		}
		if dim == beyond {
			b = append(b, "a number over the largest int"...)
		} else {
			b = strconv.AppendInt(b, int64(dim), 10)
		}
	}
	return string(append(b, ']'))
}

// before returns the place of the tensor before the i-th in the data.
func (h *Header) before(i int) (begin, end int64) {
	if i == 0 {
		return 0, 0
	}
	return h.tensors[i-1].begin, h.tensors[i-1].end
}

// checkOffsets is rule 14, on tensors from the given one on, in data order.
func (h *Header) checkOffsets(from int) error {
	_, at := h.before(from)
	for i := from; i < len(h.tensors); i++ {
		t := &h.tensors[i]
		if t.begin == at && t.end >= t.begin {
			at = t.end
			continue
		}
		e := &FormatError{Kind: ErrBadOffsets, Tensor: h.name(t), Offset: h.nameOffset(t),
			Want: fmt.Sprintf("data_offsets that begin at %d, where the tensor before ends", at),
			Got:  fmt.Sprintf("[%d, %d]", t.begin, t.end)}
		switch {
		case t.begin < 0 || t.end < 0:
			e.Got = "an offset over 2^63-1"
		case t.end < t.begin:
			e.Got += ", which is inverted"
		case t.begin > at:
			e.Got += fmt.Sprintf(", which leaves a hole of %d bytes", t.begin-at)
		default:
			e.Got += ", which overlaps it"
		}
		if i == 0 && t.begin != 0 {
			e.Want = "data_offsets that begin at 0 for the first tensor"
		}
		return e
	}
	return nil
}

// checkEnd is rule 15.
func (h *Header) checkEnd(size int64) error {
	data, room := h.DataSize(), size-h.DataStart()
	if data == room {
		return nil
	}
	// The end may lie past what an int64 can count.
	want := strconv.FormatUint(uint64(h.DataStart())+uint64(data), 10)
	e := &FormatError{Kind: ErrDataTruncated, Offset: size,
		Want: "a file of " + want + " bytes", Got: strconv.FormatInt(size, 10)}
	if data < room {
		e.Kind, e.Offset = ErrTrailingBytes, h.DataStart()+data
		e.Got += fmt.Sprintf(", %d more than the tensors have", room-data)
		return e
	}
	for i := range h.tensors {
		if t := &h.tensors[i]; t.end > room {
			e.Tensor = h.name(t)
			break
		}
	}
	return e
}

// nameOffset returns where in the file the tensor's entry stands.
func (h *Header) nameOffset(t *record) int64 { return 8 + int64(t.name) - 1 }

// sort brings the tensors into data order. Only places are moved while sorting.
func (h *Header) sort() {
	type key struct {
		begin, end int64
		place      int
	}
	keys := make([]key, len(h.tensors))
	for i, t := range h.tensors {
		keys[i] = key{t.begin, t.end, i}
	}
	slices.SortFunc(keys, func(a, b key) int {
		switch {
		case a.begin != b.begin:
			return cmp.Compare(a.begin, b.begin)
		case a.end != b.end:
			return cmp.Compare(a.end, b.end)
		}
		return cmp.Compare(a.place, b.place)
	})
	ordered := make([]record, len(keys))
	for i, k := range keys {
		ordered[i] = h.tensors[k.place]
	}
	h.tensors = ordered
}

// buildIndex makes the table of names (rule 7 for tensor names). With compat
// the last entry of a name takes the place of those before it.
func (h *Header) buildIndex(compat bool) error {
	const spare = 2 // at most half of the slots are taken
	n := len(h.tensors)
	width := bits.Len(uint(spare * n))
	h.index = make([]uint32, 1<<width)
	h.shift = uint8(32 - width)
	h.place = uint8(bits.Len(uint(n)))
	if n > inCache {
		if h.insertByParts() {
			return nil
		}
		clear(h.index)
	}
	kept := 0
	for i := range h.tensors {
		t := &h.tensors[i]
		twin := h.insert(t.hash, kept, i)
		if twin < 0 {
			if kept < i {
				h.tensors[kept] = *t
			}
			kept++
			continue
		}
		if !compat {
			return &FormatError{Kind: ErrDuplicateKey, Tensor: h.name(t), Offset: h.nameOffset(t),
				Want: "each tensor name once", Got: "it again"}
		}
		h.tensors[twin] = *t
	}
	h.tensors = h.tensors[:kept]
	return nil
}

// insert enters the name of tensors[i], which has that hash and will be at
// place, unless the name is there already: then it returns the place that it
// has, else -1. It looks at tensors only then.
func (h *Header) insert(hash uint32, place, i int) (twin int) {
	index := h.index
	mask := uint32(len(index) - 1)
	v := hash<<h.place | uint32(place+1)
	for slot := hash >> h.shift; ; slot++ {
		u := index[slot&mask]
		if u == 0 {
			index[slot&mask] = v
			return -1
		}
		if (u^v)>>h.place != 0 {
			continue
		}
		if had := h.placeIn(u); h.tensors[had].hash == hash && h.name(&h.tensors[had]) == h.name(&h.tensors[i]) {
			return had
		}
	}
}

// placeIn returns the place in tensors that a taken slot of index has.
func (h *Header) placeIn(slot uint32) int { return int(slot&(1<<h.place-1)) - 1 }

// inCache is up to how many names the index is small enough to be filled in any
// order.
const inCache = 1 << 15

// insertByParts fills a large index one part after the other, since a cache miss
// for each name took half of the time that a header of 700,000 tensors takes.
// It reports false, leaving the index unfinished, if a name is there twice.
func (h *Header) insertByParts() bool {
	const parts = 64
	part := func(i int) uint32 { return h.tensors[i].hash / (1 << 32 / parts) }
	var ends [parts]int
	for i := range h.tensors {
		ends[part(i)]++
	}
	at := 0
	for p, n := range ends {
		ends[p] = at
		at += n
	}
	slots := make([]uint64, len(h.tensors))
	for i := range h.tensors {
		slots[ends[part(i)]] = uint64(h.tensors[i].hash)<<32 | uint64(i)
		ends[part(i)]++
	}
	for _, v := range slots {
		if i := int(uint32(v)); h.insert(uint32(v>>32), i, i) >= 0 {
			return false
		}
	}
	return true
}

// find returns the place of a name in tensors, or -1.
func (h *Header) find(name string) int {
	hash, mask := hashName(h.seed, name), uint32(len(h.index)-1)
	for slot := hash >> h.shift; ; slot++ {
		v := h.index[slot&mask]
		if v == 0 {
			return -1
		}
		if i := h.placeIn(v); (v>>h.place^hash)<<h.place == 0 && h.name(&h.tensors[i]) == name {
			return i
		}
	}
}

func hashName(seed maphash.Seed, name string) uint32 {
	return uint32(maphash.String(seed, name))
}
