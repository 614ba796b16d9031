package safetensors

import (
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
)

// DefaultMaxHeaderSize is the longest header, in bytes, that is read or written
// unless an option says otherwise. It is the reference's limit.
const DefaultMaxHeaderSize = 100_000_000

// TensorInfo is what a header says of one tensor.
type TensorInfo struct {
	Name  string
	DType DType
	Shape []int // empty for a scalar; not to be changed
	Begin int64 // where its bytes begin, counted from the start of the data
	End   int64 // where they end
}

// A Header is the checked header of a file. It is safe for use by many
// goroutines, since nothing changes it.
type Header struct {
	metadata map[string]string
	tensors  []TensorInfo // in data order
	index    []uint64     // open-addressed table: hash tag above, place in tensors plus one below
	seed     maphash.Seed
	size     int64 // bytes of JSON, padding included
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
// the header. The slice is the header's own and not to be changed.
func (h *Header) Tensors() []TensorInfo { return h.tensors[:len(h.tensors):len(h.tensors)] }

// Lookup returns the tensor of that name and whether there is one.
func (h *Header) Lookup(name string) (TensorInfo, bool) {
	if i := h.find(name); i >= 0 {
		return h.tensors[i], true
	}
	return TensorInfo{}, false
}

// DataStart returns where in the file the data begins, which is also how many
// bytes come before it. It need not be a multiple of anything.
func (h *Header) DataStart() int64 { return 8 + h.size }

// DataSize returns how many bytes of data the tensors have together.
func (h *Header) DataSize() int64 {
	if len(h.tensors) == 0 {
		return 0
	}
	return h.tensors[len(h.tensors)-1].End
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
	// Doubling from a small start keeps a claim from being believed.
	buf := make([]byte, min(n, 64<<10)+scanPad)
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
		grown := make([]byte, min(n, 4*int64(have))+scanPad)
		copy(grown, buf[:have])
		buf = grown
	}
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
	buf := make([]byte, n+scanPad)
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
	if n > uint64(max(o.maxHeader, 0)) || n > math.MaxInt-scanPad {
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
func parseHeader(buf []byte, n int, size int64, o options) (*Header, error) {
	s := scanner{buf: buf, end: n, compat: o.compat}
	if err := s.scan(); err != nil {
		return nil, err
	}
	h := &Header{metadata: s.metadata, tensors: s.tensors, seed: maphash.MakeSeed(), size: int64(n)}
	if err := h.buildIndex(buf, o.compat); err != nil {
		return nil, err
	}
	sorted, err := h.checkSizes(buf)
	if err != nil {
		return nil, err
	}
	if !sorted {
		h.sort()
		if err := h.buildIndex(buf, o.compat); err != nil {
			return nil, err
		}
	}
	if err := h.checkOffsets(buf); err != nil {
		return nil, err
	}
	if size >= 0 {
		return h, h.checkEnd(size)
	}
	return h, nil
}

// checkSizes is rules 11 to 13. It reports whether the tensors stand in data
// order already.
func (h *Header) checkSizes(buf []byte) (sorted bool, err error) {
	sorted = true
	var begin, end int64
	for i := range h.tensors {
		t := &h.tensors[i]
		if t.Begin < begin || t.Begin == begin && t.End < end {
			sorted = false
		}
		begin, end = t.Begin, t.End
		size, kind := sizeOf(t.DType, t.Shape)
		if kind == "" && t.End-t.Begin != size && t.Begin <= t.End && t.Begin >= 0 {
			kind = ErrSizeMismatch
		}
		if kind != "" {
			return false, h.badSize(buf, t, kind, size)
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

func (h *Header) badSize(buf []byte, t *TensorInfo, kind Kind, size int64) error {
	e := &FormatError{Kind: kind, Tensor: t.Name, Offset: nameOffset(buf, t)}
	describeSize(e, t.DType, t.Shape, size)
	if kind == ErrSizeMismatch {
		e.Got = fmt.Sprintf("%d (data_offsets [%d, %d])", t.End-t.Begin, t.Begin, t.End)
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

// checkOffsets is rule 14, on tensors in data order.
func (h *Header) checkOffsets(buf []byte) error {
	var at int64
	for i := range h.tensors {
		t := &h.tensors[i]
		if t.Begin == at && t.End >= t.Begin {
			at = t.End
			continue
		}
		e := &FormatError{Kind: ErrBadOffsets, Tensor: t.Name, Offset: nameOffset(buf, t),
			Want: fmt.Sprintf("data_offsets that begin at %d, where the tensor before ends", at),
			Got:  fmt.Sprintf("[%d, %d]", t.Begin, t.End)}
		switch {
		case t.Begin < 0 || t.End < 0:
			e.Got = "an offset over 2^63-1"
		case t.End < t.Begin:
			e.Got += ", which is inverted"
		case t.Begin > at:
			e.Got += fmt.Sprintf(", which leaves a hole of %d bytes", t.Begin-at)
		default:
			e.Got += ", which overlaps it"
		}
		if i == 0 && t.Begin != 0 {
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
		if t := &h.tensors[i]; t.End > room {
			e.Tensor = t.Name
			break
		}
	}
	return e
}

// nameOffset returns where in the file the tensor's name stands, or -1 where
// escapes keep it from being found.
func nameOffset(buf []byte, t *TensorInfo) int64 {
	if at := offsetIn(buf, t.Name); at >= 0 {
		return 8 + int64(at) - 1
	}
	return -1
}

// sort brings the tensors into data order. Only places are moved while sorting.
func (h *Header) sort() {
	type key struct {
		begin, end int64
		place      int
	}
	keys := make([]key, len(h.tensors))
	for i, t := range h.tensors {
		keys[i] = key{t.Begin, t.End, i}
	}
	slices.SortFunc(keys, func(a, b key) int {
		switch {
		case a.begin != b.begin:
			return less(a.begin < b.begin)
		case a.end != b.end:
			return less(a.end < b.end)
		}
		return less(a.place < b.place)
	})
	ordered := make([]TensorInfo, len(keys))
	for i, k := range keys {
		ordered[i] = h.tensors[k.place]
	}
	h.tensors = ordered
}

func less(is bool) int {
	if is {
		return -1
	}
	return 1
}

// buildIndex makes the table of names (rule 7 for tensor names). With compat
// the last entry of a name takes the place of those before it.
func (h *Header) buildIndex(buf []byte, compat bool) error {
	const spare = 3 // at most three quarters of the slots are taken
	size := 1 << bits.Len(uint(len(h.tensors)+len(h.tensors)/spare))
	h.index = make([]uint64, size)
	kept := 0
	for i := range h.tensors {
		t := &h.tensors[i]
		tag, slot := h.hash(t.Name)
		for h.index[slot] != 0 && (h.index[slot]&^placeMask != tag || h.tensors[h.index[slot]&placeMask-1].Name != t.Name) {
			slot = (slot + 1) & (size - 1)
		}
		if h.index[slot] != 0 {
			if !compat {
				return &FormatError{Kind: ErrDuplicateKey, Tensor: t.Name, Offset: nameOffset(buf, t),
					Want: "each tensor name once", Got: "it again"}
			}
			h.tensors[h.index[slot]&placeMask-1] = *t
			continue
		}
		if kept != i {
			h.tensors[kept] = *t
		}
		kept++
		h.index[slot] = tag | uint64(kept)
	}
	h.tensors = h.tensors[:kept]
	return nil
}

// A slot of the index holds 24 bits of the hash over 40 bits of place, so that
// a probe hardly ever reads a name in vain.
const placeMask = 1<<40 - 1

// hash returns the tag of a name and its first slot. The seed differs from
// process to process: strangers choose the names.
func (h *Header) hash(name string) (tag uint64, slot int) {
	sum := maphash.String(h.seed, name)
	return sum &^ placeMask, int(sum) & (len(h.index) - 1)
}

// find returns the place of a name in tensors, or -1.
func (h *Header) find(name string) int {
	for tag, slot := h.hash(name); ; slot = (slot + 1) & (len(h.index) - 1) {
		v := h.index[slot]
		if v == 0 {
			return -1
		}
		if i := int(v&placeMask) - 1; v&^placeMask == tag && h.tensors[i].Name == name {
			return i
		}
	}
}
