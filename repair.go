package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Repair reads the file in, which may break the format or lie badly, and writes
// what it holds to the file out as [Save] does. It returns what it changed, a
// sentence each: nothing if in was fine. It mends
//
//   - bytes after the last tensor, which it drops
//   - whitespace, NULs or a byte order mark before the header object, and
//     padding other than whitespace after it, in the header
//   - holes between tensors
//   - a data start that is not a multiple of 8 bytes
//   - tensors or entries in another order than the reference writes them
//
// Names, dtypes, shapes, bytes and metadata stay as they are; keys that the
// format does not know are left out. All else that breaks the format, above all
// tensors whose bytes are missing or shared with others, is refused with the
// [*FormatError] that opening gives. In is never written to and may not be out.
func Repair(in, out string, opts ...SaveOption) (changes []string, err error) {
	f, changes, err := openDamaged(in)
	if err != nil {
		return nil, inFile(err, in)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := os.Stat(out); err == nil && os.SameFile(info, f.info) {
		return nil, fmt.Errorf("safetensors: repairing %s: want another file to write to", quoteName(in))
	}
	o, err := saveOptionsOf(append([]SaveOption{WithAlignment(f.header.alignment()), WithMetadata(f.Metadata())}, opts...))
	if err != nil {
		return nil, err
	}
	l, err := layOut(maps.Collect(f.All()), o)
	if err != nil {
		return nil, inFile(err, in)
	}
	if f.header.DataStart()%8 != 0 {
		changes = append(changes, fmt.Sprintf("moved the data from byte %d to byte %d, so that it is aligned", f.header.DataStart(), len(l.head)))
	}
	for i, e := range l.entries {
		if e.name != f.header.name(&f.header.tensors[i]) {
			changes = append(changes, "put the tensors in the order of the reference: by dtype, widest first, then by name")
			break
		}
	}
	if o.inPlace {
		return changes, l.saveInPlace(out, o)
	}
	return changes, l.save(out, o)
}

// openDamaged opens a file by what its header says, so far as all bytes of its
// tensors are there. It never maps it.
func openDamaged(name string) (f *File, changes []string, err error) {
	osFile, err := openRegular(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			osFile.Close()
		}
	}()
	info, err := osFile.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("safetensors: %w", err)
	}
	h, changes, err := readDamaged(osFile, info.Size())
	if err != nil {
		return nil, nil, err
	}
	f = &File{header: h, r: osFile, file: osFile, name: name, info: info}
	if f.path, err = filepath.Abs(name); err != nil {
		f.path = ""
	}
	f.users.Store(1)
	return f, changes, nil
}

func readDamaged(r *os.File, size int64) (*Header, []string, error) {
	head := make([]byte, min(size, 64))
	if err := readFullAt(r, head, 0); err != nil {
		return nil, nil, fmt.Errorf("safetensors: reading the header length: %w", err)
	}
	if size < 8 {
		return nil, nil, tooShort(head)
	}
	n, err := headerLength(head, size, optionsOf(nil))
	if err != nil {
		return nil, nil, err
	}
	text := make([]byte, n)
	if err := readFullAt(r, text, 8); err != nil {
		return nil, nil, fmt.Errorf("safetensors: reading the header: %w", err)
	}
	from, to, changes := stripHeader(text)
	s := scanner{buf: append(text[from:to:to], make([]byte, scanPad)...), end: to - from, seed: maphash.MakeSeed()}
	h, moved, err := s.damaged(n, size)
	if fe, ok := err.(*FormatError); ok {
		if fe.Offset >= 8 && fe.Kind != ErrDataTruncated {
			fe.Offset += int64(from)
		}
		if fe.Offset < 16 {
			fe.Hint = hint(head)
		}
	}
	return h, append(changes, moved...), err
}

// stripHeader finds the header object among what surrounds it in the header.
func stripHeader(text []byte) (from, to int, changes []string) {
	const space = " \t\r\n"
	const bom = "\xef\xbb\xbf"
	from = len(text) - len(bytes.TrimLeft(text, space+"\x00"+bom))
	if from > 0 {
		changes = append(changes, fmt.Sprintf("dropped %s before the header object", count(from, "byte")))
	}
	to = len(text)
	// The object ends with the last brace, unless it is cut short, which the
	// scanner finds out. Padding has no printable characters.
	last := bytes.LastIndexByte(text, '}') + 1
	if last > from && !slices.ContainsFunc(text[last:], func(c byte) bool { return c > ' ' && c < 0x7f }) {
		if n := len(bytes.Trim(text[last:], space)); n > 0 {
			changes = append(changes, fmt.Sprintf("dropped %s of padding that JSON does not allow after the header object", count(n, "byte")))
			to = last
		}
	}
	return from, to, changes
}

// damaged is parseHeader with other places for the tensors allowed. The header
// has n bytes in all.
func (s *scanner) damaged(n, size int64) (h *Header, changes []string, err error) {
	if err := s.scan(); err != nil {
		return nil, nil, err
	}
	h = &Header{metadata: s.metadata, text: s.buf[:s.end], dims: s.dims, tensors: s.tensors, seed: s.seed, size: n}
	if err := h.buildIndex(false); err != nil {
		return nil, nil, err
	}
	sorted, err := h.checkSizes(0)
	if err != nil {
		return nil, nil, err
	}
	if !sorted {
		changes = append(changes, "put the entries of the header in the order of the data")
		h.sort()
		if err := h.buildIndex(false); err != nil {
			return nil, nil, err
		}
	}
	holes, err := h.fillHoles()
	if err != nil {
		return nil, nil, err
	}
	if holes > 0 {
		changes = append(changes, fmt.Sprintf("closed holes of %s in the data", count64(holes, "byte")))
	}
	err = h.checkEnd(size)
	if errors.Is(err, ErrTrailingBytes) {
		changes = append(changes, fmt.Sprintf("dropped %s after the last tensor", count64(size-h.DataStart()-h.DataSize(), "byte")))
		err = nil
	}
	return h, changes, err
}

// fillHoles is rule 14 but for holes, whose bytes it counts.
func (h *Header) fillHoles() (holes int64, err error) {
	var at int64
	for i := range h.tensors {
		t := &h.tensors[i]
		if t.begin < at || t.end < t.begin {
			return 0, &FormatError{Kind: ErrBadOffsets, Tensor: h.name(t), Offset: h.nameOffset(t),
				Want: fmt.Sprintf("data_offsets that begin at %d, where the tensor before ends, or after it", at),
				Got:  fmt.Sprintf("[%d, %d]", t.begin, t.end)}
		}
		holes += t.begin - at
		at = t.end
	}
	return holes, nil
}

func count(n int, what string) string { return count64(int64(n), what) }

func count64(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}
