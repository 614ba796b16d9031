package safetensors

import (
	"fmt"
	"io"
)

// Cast returns the tensor with its elements converted to d. No data is touched:
// elements are converted block by block whenever they are read or saved, so
// that saving a cast tensor of any size takes a few MiB. A cast to the dtype
// that the tensor has is the tensor itself.
//
// Floats are rounded once, to the nearest and of two as near to the even one,
// from whatever dtype they come. (ml_dtypes and numpy go from F64 and the
// integers to the narrower floats by way of F32, and so round some twice.) What
// is beyond the largest number, infinities and NaN become what they become in
// ml_dtypes and, of the kinds that it has, in PyTorch:
//
//	dtype        largest  above it   infinity  NaN    also
//	F64, F32              infinity   infinity  NaN
//	BF16         3.39e38  infinity   infinity  NaN
//	F16          65504    infinity   infinity  NaN
//	F8_E5M2      57344    infinity   infinity  NaN
//	F8_E4M3      448      NaN        NaN       NaN
//	F8_E5M2FNUZ  57344    NaN        NaN       NaN    -0 becomes 0
//	F8_E4M3FNUZ  240      NaN        NaN       NaN    -0 becomes 0
//	F8_E8M0      2^127    NaN        NaN       NaN    0 and less become NaN; see below
//	F6_E3M2      28       28         28        error
//	F6_E2M3      7.5      7.5        7.5       error
//	F4           6        6          6         error
//
// "Above" is what would round to a number above. None of the F8 kinds saturates:
// whoever wants that clamps, or scales, before. To F8_E8M0, what is halfway
// between two powers becomes the larger, as does all between 2^-127 and 2^-126,
// and what is less than 2^-127 becomes that. (Of 0 and negative numbers PyTorch
// makes other scales than ml_dtypes.)
//
// To an integer dtype, fractions are dropped. NaN, infinities and numbers that
// the dtype does not have are errors that wrap [ErrValueRange] and name the
// element, when it is read; so are the errors in the table. BOOL becomes 0 or
// 1, where any byte but 0 is 1; and all but 0 becomes true, NaN as well. C64
// becomes nothing but C64: that is an [ErrDType] at once, as is
// [ErrSubByteMisaligned] for a shape whose elements are no whole number of bytes
// of d.
//
// Elements under 8 bits lie in order from the low bits up: of two F4 in a byte,
// the first has the low four bits, and of four F6 in three bytes (least first)
// the first has the low six. The OCP microscaling specification does not say how
// they lie in memory. PyTorch's float4_e2m1fn_x2 is as here. For F6, AMD's
// processors and libraries are as here; ml_dtypes gives each element a byte. A
// file may come from a tool that does otherwise.
func (t Tensor) Cast(d DType) (Tensor, error) {
	if err := t.usable(); err != nil {
		return Tensor{}, err
	}
	if d == t.dtype {
		return t, nil
	}
	cast := made(d, t.shape, castSource{t, d})
	if cast.err != nil {
		return Tensor{}, cast.err
	}
	if _, err := newConversion(t.dtype, d); err != nil {
		return Tensor{}, err
	}
	return cast, nil
}

// A castSource is the elements of another tensor, converted.
type castSource struct {
	in Tensor
	to DType
}

func (s castSource) conversion() conversion {
	c, _ := newConversion(s.in.dtype, s.to) // which Cast has seen to be there
	return c
}

func (s castSource) memory(int64, int64, func([]byte) error) (bool, error) { return false, nil }

func (s castSource) read(p []byte, off int64) error {
	c := s.conversion()
	if !anyPlace(s.in.src) {
		_, err := c.stream(&filler{p}, s.in, off, int64(len(p)))
		return err
	}
	group := c.group()
	size := c.bytesTo(group)
	if skip := off % size; skip > 0 {
		n, err := s.readPart(c, p, off-skip, skip)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	whole := int64(len(p)) / size * size
	if whole > 0 {
		if err := c.fill(p[:whole], s.in, off/size*group); err != nil {
			return err
		}
	}
	if p = p[whole:]; len(p) > 0 {
		_, err := s.readPart(c, p, off+whole, 0)
		return err
	}
	return nil
}

// readPart fills p from the group at off, skip bytes into it, and returns how
// many that gave.
func (s castSource) readPart(c conversion, p []byte, off, skip int64) (int, error) {
	var room [4 * 8]byte // the largest group there is
	group := c.group()
	size := c.bytesTo(group)
	if err := c.fill(room[:size], s.in, off/size*group); err != nil {
		return 0, err
	}
	return copy(p, room[skip:size]), nil
}

func (s castSource) writeTo(w io.Writer, off, n int64) (int64, error) {
	if !anyPlace(s.in.src) {
		return s.conversion().stream(w, s.in, off, n)
	}
	return copyBlocks(w, s, off, n, 4*blockSize) // some blocks, for some processors
}

// stream writes n of the converted bytes of t to w, from off on. It reads t in
// order, once.
func (c conversion) stream(w io.Writer, t Tensor, off, n int64) (int64, error) {
	group := c.group()
	size := c.bytesTo(group)
	lo, hi := off/size*group, (off+n+size-1)/size*group
	per := min(c.perBlock(), hi-lo)
	cw := castWriter{
		c: c, w: w, first: lo, skip: off % size, left: n,
		in:  make([]byte, 0, c.bytesFrom(per)),
		out: make([]byte, c.bytesTo(per)),
	}
	_, err := t.src.writeTo(&cw, t.off+c.bytesFrom(lo), c.bytesFrom(hi-lo))
	if err == nil {
		err = cw.convert(cw.in)
	}
	if err == nil && cw.left > 0 {
		err = fmt.Errorf("safetensors: casting: %w", io.ErrUnexpectedEOF)
	}
	return n - cw.left, err
}

// A castWriter converts what is written to it.
type castWriter struct {
	c     conversion
	w     io.Writer
	in    []byte // not converted yet; never full between calls
	out   []byte // room for what a full in gives
	first int64  // number of the first element of in
	skip  int64  // converted bytes to drop
	left  int64  // converted bytes to write
}

func (cw *castWriter) Write(b []byte) (int, error) {
	given := len(b)
	for len(b) > 0 {
		if len(cw.in) == 0 && len(b) >= cap(cw.in) {
			if err := cw.convert(b[:cap(cw.in)]); err != nil {
				return given - len(b), err
			}
			b = b[cap(cw.in):]
			continue
		}
		n := min(len(b), cap(cw.in)-len(cw.in))
		cw.in, b = append(cw.in, b[:n]...), b[n:]
		if len(cw.in) == cap(cw.in) {
			if err := cw.convert(cw.in); err != nil {
				return given - len(b), err
			}
			cw.in = cw.in[:0]
		}
	}
	return given, nil
}

// convert converts and writes b.
func (cw *castWriter) convert(b []byte) error {
	c := cw.c
	group := c.group()
	n := int64(len(b)) / c.bytesFrom(group) * group
	out := cw.out[:c.bytesTo(n)]
	if bad := c.run(out, b, false); bad >= 0 {
		return c.valueError(b, bad, cw.first)
	}
	cw.first += n
	drop := min(cw.skip, int64(len(out)))
	cw.skip -= drop
	out = out[drop:]
	out = out[:min(int64(len(out)), cw.left)]
	if len(out) == 0 {
		return nil
	}
	m, err := cw.w.Write(out)
	cw.left -= int64(m)
	if err == nil && m < len(out) {
		err = io.ErrShortWrite
	}
	return err
}
