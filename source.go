package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"slices"
)

// blockSize is how much the library moves at once where it has to go through
// memory of its own: large enough for full speed, small enough that Close and
// a cancelled context are noticed at once.
const blockSize = 1 << 20

// A source is where the bytes of tensors come from. A Tensor is a range of one.
// All offsets and lengths are bytes of the source, within it.
type source interface {
	// read fills p with the bytes at off, or fails.
	read(p []byte, off int64) error
	// writeTo writes n bytes from off on, in order. It returns how many.
	writeTo(w io.Writer, off, n int64) (int64, error)
	// memory calls use with the bytes [off, off+n) where they lie in memory
	// already, and reports whether they do. They are good for that call only,
	// which runs under guard: it must not hand them to other goroutines.
	memory(off, n int64, use func([]byte) error) (bool, error)
}

// bytesSource is memory that the caller gave.
type bytesSource []byte

func (s bytesSource) read(p []byte, off int64) error {
	copy(p, s[off:])
	return nil
}

func (s bytesSource) writeTo(w io.Writer, off, n int64) (int64, error) {
	return writeBlocks(w, s[off:off+n])
}

func (s bytesSource) memory(off, n int64, use func([]byte) error) (bool, error) {
	return true, use(s[off : off+n])
}

// readerSource is an io.ReaderAt that the caller gave.
type readerSource struct{ io.ReaderAt }

func (s readerSource) read(p []byte, off int64) error { return readFullAt(s.ReaderAt, p, off) }

func (s readerSource) writeTo(w io.Writer, off, n int64) (int64, error) {
	return copyBlocks(w, s, off, n, blockSize)
}

func (readerSource) memory(int64, int64, func([]byte) error) (bool, error) { return false, nil }

// funcSource makes its bytes anew whenever they are asked for. It is meant for
// saving, which asks once and in order.
type funcSource struct {
	make func(io.Writer) error
	size int64
}

func (s funcSource) read(p []byte, off int64) error {
	var buf window
	buf.p, buf.skip = p, off
	if err := s.make(&buf); err != nil && buf.err == nil {
		return err
	}
	if len(buf.p) > 0 {
		return s.short(off + int64(len(p)-len(buf.p)))
	}
	return nil
}

func (s funcSource) writeTo(w io.Writer, off, n int64) (int64, error) {
	out := window{w: w, skip: off, left: n, whole: off+n == s.size}
	err := s.make(&out)
	switch {
	case out.over:
		err = fmt.Errorf("%w: the function wrote more than the tensor's %d bytes", ErrSizeMismatch, s.size)
	case out.err == errEnough:
		err = nil
	case out.err != nil && !errors.Is(err, out.err):
		err = out.err // the function kept it to itself
	}
	if err == nil && out.left > 0 {
		err = s.short(off + n - out.left)
	}
	return n - out.left, err
}

func (s funcSource) short(have int64) error {
	return fmt.Errorf("the function wrote %d of the tensor's %d bytes: %w", have, s.size, io.ErrUnexpectedEOF)
}

func (funcSource) memory(int64, int64, func([]byte) error) (bool, error) { return false, nil }

var errEnough = errors.New("safetensors: no more of this tensor is needed")

// A window passes on the part of what is written to it that follows skip
// bytes: into p, or left bytes into w. Then it stops the writer, unless the
// whole is wanted: there one byte more is a fault. After an error it takes no
// more, so that nothing is left out in between.
type window struct {
	p     []byte
	w     io.Writer
	skip  int64
	left  int64
	whole bool
	over  bool
	err   error
}

func (o *window) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	given := len(b)
	if drop := min(o.skip, int64(len(b))); drop > 0 {
		o.skip -= drop
		b = b[drop:]
	}
	if o.w == nil {
		n := copy(o.p, b)
		if o.p = o.p[n:]; len(o.p) == 0 {
			o.err = errEnough
		}
		return given, o.err
	}
	if int64(len(b)) > o.left {
		if o.whole {
			o.over, o.err = true, errEnough
			return 0, o.err
		}
		b = b[:o.left]
	}
	n, err := o.w.Write(b)
	o.left -= int64(n)
	switch {
	case err != nil:
		o.err = err
	case n < len(b):
		o.err = io.ErrShortWrite
	case o.left == 0 && !o.whole:
		o.err = errEnough
	default:
		return given, nil
	}
	return n, o.err
}

// readFullAt is io.ReadFull for an io.ReaderAt. An end of file before p is full
// is io.ErrUnexpectedEOF.
func readFullAt(r io.ReaderAt, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := r.ReadAt(p, off)
		if n < 0 || n > len(p) {
			return fmt.Errorf("reader at %d returned a count of %d for %d bytes", off, n, len(p))
		}
		if n == len(p) {
			return nil
		}
		if err == io.EOF {
			return fmt.Errorf("at byte %d: %w", off+int64(n), io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrNoProgress
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// copyBlocks writes n bytes of s from off on through one buffer of size bytes.
func copyBlocks(w io.Writer, s source, off, n, size int64) (int64, error) {
	buf := make([]byte, min(n, size))
	var done int64
	for done < n {
		b := buf[:min(n-done, int64(len(buf)))]
		if err := s.read(b, off+done); err != nil {
			return done, err
		}
		m, err := w.Write(b)
		done += int64(m)
		if err != nil {
			return done, err
		}
		if m < len(b) {
			return done, io.ErrShortWrite
		}
	}
	return done, nil
}

// writeBlocks writes b in pieces, so that progress is seen on the way.
func writeBlocks(w io.Writer, b []byte) (int64, error) {
	const piece = 16 * blockSize
	var done int64
	for len(b) > 0 {
		p := b[:min(len(b), piece)]
		n, err := w.Write(p)
		done += int64(n)
		if err != nil {
			return done, err
		}
		if n < len(p) {
			return done, io.ErrShortWrite
		}
		b = b[n:]
	}
	return done, nil
}

// allBytes returns n bytes of s from off on in memory of their own.
func allBytes(s source, off, n int64) ([]byte, error) {
	if n > math.MaxInt {
		return nil, fmt.Errorf("%w: %d bytes do not fit the memory of this platform", ErrRange, n)
	}
	if _, ok := bottom(s).(funcSource); ok {
		// Made in one go; a function that does not write what it should must not
		// cost what the shape claims.
		var b bytes.Buffer
		if _, err := s.writeTo(&b, off, n); err != nil {
			return nil, err
		}
		return slices.Clip(b.Bytes()), nil
	}
	if n > 16*blockSize {
		// Memory for what is not there would be had for nothing.
		if err := s.read(make([]byte, 1), off+n-1); err != nil {
			return nil, err
		}
	}
	b := make([]byte, n)
	if err := s.read(b, off); err != nil {
		return nil, err
	}
	return b, nil
}

// guard calls fn, in which a fault in mem is the error ErrFault instead of the
// end of the process. A fault is what the system gives where a mapped file was
// cut short or its disk cannot be read.
func guard(mem []byte, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface {
			error
			Addr() uintptr
		})
		if !ok || fault.Addr()-addressOf(mem) >= uintptr(len(mem)) {
			panic(r)
		}
		err = fmt.Errorf("%w at byte %d: the file was cut short, or its storage failed, while it was mapped",
			ErrFault, fault.Addr()-addressOf(mem))
	}()
	return fn()
}

// hugeBytes returns n bytes for data that is about to be read into them, on
// huge pages where the system has them and it pays.
func hugeBytes(n int) []byte {
	const page = 2 << 20
	b := uncleared(n)
	if n >= 4*page {
		skip := int(-addressOf(b) & (page - 1))
		adviseHuge(b[skip : skip+(n-skip)&^(page-1)])
	}
	return b
}
