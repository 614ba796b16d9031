package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The kinds of error of tensors that do not become Go slices as they are asked
// to, or numbers of another dtype.
const (
	ErrDType      Kind = "dtype-mismatch"     // elements of another dtype than the type asked for
	ErrSubByte    Kind = "sub-byte-view"      // elements under 8 bits: no Go type is like that
	ErrMisaligned Kind = "misaligned-view"    // the tensor lies where Go's elements cannot
	ErrByteOrder  Kind = "byte-order"         // the host has its numbers the other way round
	ErrValueRange Kind = "value-out-of-range" // a number that the dtype asked for does not have
)

// bigEndian is whether the host has its numbers the other way round than files.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// Of returns a tensor of the elements of data, with the dtype that fits T (see
// [Element]). On little-endian hosts data is not copied, so what the caller
// changes in it changes the tensor; on big-endian ones it is copied here.
//
// Without a shape the tensor has one dimension, len(data). An empty shape, as
// t.Shape()... of a scalar gives, makes a scalar. That shape and length agree is
// checked when the tensor is first used or saved.
func Of[T Element](data []T, shape ...int) Tensor {
	if shape == nil {
		shape = []int{len(data)}
	}
	d, b := dtypeFor[T](), bytesOf(data)
	if bigEndian {
		b = slices.Clone(b)
		swapBytes(b, d)
	}
	return New(d, shape, b)
}

// View returns the tensor's elements as a slice of T, without a copy where they
// lie in memory, which is not to be changed then. Its capacity ends with the
// tensor.
//
// T is the Go type of the dtype, or one made of it (see [Element]). An unsigned
// integer of the width of the elements will do for any dtype, and gives their
// bits. What cannot be is an error that wraps [ErrDType], [ErrSubByte],
// [ErrMisaligned] or [ErrByteOrder]; [Values] works in the last two cases. Only
// a big-endian host gives the last, for elements of more than a byte. Bytes
// other than 0 and 1 are never taken for a bool: they are [ErrValueRange].
//
// A view of a tensor of a memory-mapped file is the map itself: it is no longer
// there after [File.Close], and what [Tensor.Bytes] says of it holds here.
// Tensors made by [New] and [Of], or opened by [Parse], share the caller's
// memory. All others are read into memory of their own.
func View[T Element](t Tensor) ([]T, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	want, width := dtypeFor[T](), int(dtypes[t.dtype].bits)/8
	bits := dtypes[want].class == classUint && dtypes[want].bits == dtypes[t.dtype].bits
	switch {
	case width == 0:
		return nil, t.errorf("%w: elements of %s have %d bits (Bytes gives them packed, Values converts them)",
			ErrSubByte, t.dtype, t.dtype.Bits())
	case want != t.dtype && !bits:
		return nil, t.errorf("%w: want %s for a slice of %T, got %s (Values converts)",
			ErrDType, want, *new(T), t.dtype)
	case bigEndian && width > 1:
		return nil, t.errorf("%w: %s is little-endian in files and this host is not (Values converts)",
			ErrByteOrder, t.dtype)
	}
	b, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	if want == Bool {
		if err := t.checkBools(b); err != nil {
			return nil, err
		}
	}
	if len(b) == 0 {
		return []T{}, nil
	}
	if addressOf(b)%alignOf[T]() != 0 {
		return nil, t.errorf("%w: the %s elements begin at byte %d, in memory no multiple of %d (Values copies them)",
			ErrMisaligned, t.dtype, t.off, alignOf[T]())
	}
	return sliceOf[T](b), nil
}

// checkBools looks for bytes that are no bool in b, which Bytes returned.
func (t Tensor) checkBools(b []byte) error {
	bad := -1
	find := func(b []byte) error {
		for i, x := range b {
			if x > 1 {
				bad = i
				return nil
			}
		}
		return nil
	}
	if ok, err := t.src.memory(t.off, t.size, find); err != nil {
		return err
	} else if !ok {
		find(b)
	}
	if bad < 0 {
		return nil
	}
	return t.errorf("%w: element %d is neither 0 nor 1, so it is no bool (Values takes it for true)", ErrValueRange, bad)
}

// errorf makes an error that names the tensor's file, if it has one.
func (t Tensor) errorf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if f := fileOf(t.src); f != nil {
		return f.wrap(err)
	}
	return fmt.Errorf("safetensors: %w", err)
}

// Values returns the tensor's elements as a slice of T of their own, converted
// as [Tensor.Cast] to the dtype of T does it. It works for every dtype,
// whatever the alignment and the host's byte order, and uses all processors for
// large tensors. Elements that are T already keep their bits, but for BOOL,
// where any byte but 0 is true.
//
// Errors wrap [ErrDType] for C64 as anything else, and [ErrValueRange] for a
// number that T does not have.
func Values[T Element](t Tensor) ([]T, error) {
	v, err := appendValues([]T{}, t)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// AppendFloat32 appends the tensor's elements to dst as float32, as [Values]
// would give them, and returns the longer slice. It converts straight from
// where they lie into dst, and allocates nothing for them where dst has room.
// On an error it returns dst as it was, though what follows its elements may
// have changed.
func AppendFloat32(dst []float32, t Tensor) ([]float32, error) {
	return appendValues(dst, t)
}

func appendValues[T Element](dst []T, t Tensor) ([]T, error) {
	if err := t.usable(); err != nil {
		return dst, err
	}
	to := dtypeFor[T]()
	c, err := newConversion(t.dtype, to)
	if err != nil {
		return dst, err
	}
	n, size := t.Len(), int64(to.Bits()/8)
	if n > int64(math.MaxInt/8-len(dst)) {
		return dst, t.errorf("%w: %d elements do not fit the memory of this platform", ErrRange, n)
	}
	var long []T
	if _, made := bottom(t.src).(funcSource); made {
		// A function that does not write what it should must not cost what the
		// shape claims.
		g := grower[T]{dst, size}
		_, err = c.stream(&g, t, 0, n*size)
		long = g.s
	} else if err = t.there(); err == nil {
		long = dst
		if n*size >= blockSize && cap(dst) == 0 {
			long = sliceOf[T](hugeBytes(int(n * size)))[:0]
		}
		long = slices.Grow(long, int(n))[:len(dst)+int(n)]
		err = c.fill(bytesOf(long[len(dst):]), t, 0)
	}
	if err != nil {
		return dst, err
	}
	if bigEndian {
		swapBytes(bytesOf(long[len(dst):]), to)
	}
	return long, nil
}

// there reads the last byte of a large tensor of [FromReaderAt], so that memory
// for what is not there is not asked for.
func (t Tensor) there() error {
	if _, claimed := bottom(t.src).(readerSource); !claimed || t.size <= 16*blockSize {
		return nil
	}
	var last [1]byte
	return t.src.read(last[:], t.off+t.size-1)
}

// A grower appends what is written to it, which is whole elements.
type grower[T Element] struct {
	s    []T
	size int64 // bytes of a T
}

func (g *grower[T]) Write(b []byte) (int, error) {
	have := len(g.s)
	n := len(b) / int(g.size)
	g.s = slices.Grow(g.s, n)[:have+n]
	return copy(bytesOf(g.s[have:]), b), nil
}

// swapBytes turns each number in b around: from the file's byte order to that
// of a big-endian host, or back.
func swapBytes(b []byte, d DType) {
	width := int(dtypes[d].bits) / 8
	if d == C64 {
		width = 4 // two numbers
	}
	if width < 2 {
		return
	}
	for ; len(b) >= width; b = b[width:] {
		slices.Reverse(b[:width])
	}
}
