package safetensors

import (
	"fmt"
	"io"
	"slices"
)

// A Tensor is a dtype, a shape and a place that its bytes come from. It is a
// small value to be passed around and kept in maps; making one, slicing it and
// casting it touch no data. Elements are in row-major (C) order and
// little-endian, as the file has them.
//
// A Tensor of a [File] reads from that file and is good until the File is
// closed. It is safe for use by many goroutines, as far as the reader or
// function that it was made from is.
type Tensor struct {
	dtype DType
	shape []int
	src   source
	off   int64 // where it begins in src
	size  int64 // bytes
	err   error // why it cannot be used: what New and its like were given
}

// New returns a tensor over data, which is not copied. Dtype, shape and length
// are checked when the tensor is first used or saved: they must agree as the
// format's rules 11 to 13 say.
func New(d DType, shape []int, data []byte) Tensor {
	t := made(d, shape, bytesSource(data))
	if t.err == nil && t.size != int64(len(data)) {
		e := &FormatError{Kind: ErrSizeMismatch, Offset: -1}
		describeSize(e, d, t.shape, t.size)
		e.Got = fmt.Sprintf("%d", len(data))
		t.err = e
	}
	return t
}

// FromReaderAt returns a tensor whose bytes are the first bytes of r, read when
// they are needed. Dtype and shape are checked when it is first used. An r that
// ends too early is io.ErrUnexpectedEOF then.
func FromReaderAt(d DType, shape []int, r io.ReaderAt) Tensor {
	return made(d, shape, readerSource{r})
}

// FromFunc returns a tensor whose bytes write makes, in order, when they are
// needed: once while saving, and once for each other use. It must write exactly
// the bytes of the dtype and shape and return an error that its writer gives.
func FromFunc(d DType, shape []int, write func(io.Writer) error) Tensor {
	t := made(d, shape, nil)
	t.src = funcSource{write, t.size}
	return t
}

func made(d DType, shape []int, src source) Tensor {
	t := Tensor{dtype: d, shape: slices.Clone(shape), src: src}
	if !d.valid() {
		t.err = &FormatError{Kind: ErrUnknownDType, Offset: -1, Want: "one of the 22 dtypes of the format", Got: d.String()}
		return t
	}
	var kind Kind
	if t.size, kind = sizeOf(d, shape); kind != "" {
		e := &FormatError{Kind: kind, Offset: -1}
		describeSize(e, d, shape, 0)
		t.err = e
	}
	return t
}

// usable returns why the tensor cannot be read, if so.
func (t Tensor) usable() error {
	if t.err == nil && t.src == nil {
		return &FormatError{Kind: ErrUnknownDType, Offset: -1, Want: "a tensor", Got: "the zero Tensor"}
	}
	return t.err
}

// DType returns the type of the elements.
func (t Tensor) DType() DType { return t.dtype }

// Shape returns a copy of the dimensions: empty for a scalar.
func (t Tensor) Shape() []int { return append([]int{}, t.shape...) }

// Len returns the number of elements: 1 for a scalar, 0 where a dimension is 0.
func (t Tensor) Len() int64 {
	if t.usable() != nil {
		return 0
	}
	// A size in bits that fits 64 bits was checked for.
	return int64(uint64(t.size) * 8 / uint64(dtypes[t.dtype].bits))
}

// Size returns the number of bytes.
func (t Tensor) Size() int64 {
	if t.usable() != nil {
		return 0
	}
	return t.size
}

// Bytes returns the tensor's bytes, whose capacity ends with the tensor. They
// are not to be changed.
//
// For a tensor of a memory-mapped file they are the map itself: no copy, no
// allocation, and no longer there after [File.Close], where touching them ends
// the process. So does touching them after someone else cut the file short;
// use [File.Prefetch] first or [WithoutMmap] where that can happen. Tensors
// made by [New] and [Of], or opened by [Parse], likewise share the caller's
// memory. All others are read into memory of their own.
func (t Tensor) Bytes() ([]byte, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	switch src := t.src.(type) {
	case *File:
		if src.data != nil {
			if src.closed.Load() {
				return nil, src.errClosed()
			}
			return src.data[t.off : t.off+t.size : t.off+t.size], nil
		}
	case bytesSource:
		return src[t.off : t.off+t.size : t.off+t.size], nil
	}
	return allBytes(t.src, t.off, t.size)
}

// ReadAt reads len(p) bytes from byte off of the tensor on, as [io.ReaderAt]
// asks: fewer only with an error, which is io.EOF at the tensor's end.
func (t Tensor) ReadAt(p []byte, off int64) (int, error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fmt.Errorf("%w: offset %d", ErrRange, off)
	}
	if off >= t.size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), t.size-off))
	if err := t.src.read(p[:n], t.off+off); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteTo writes the tensor's bytes to w through at most a few MiB of memory
// and returns how many it wrote.
func (t Tensor) WriteTo(w io.Writer) (int64, error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	return t.src.writeTo(w, t.off, t.size)
}
