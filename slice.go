package safetensors

import (
	"fmt"
	"slices"
)

// End as the Stop of a [Range] is the end of the dimension, whatever its size.
const End = -1

// A Range picks the indices Start, Start+Step, Start+2*Step and so on of one
// dimension, as far as they are below Stop. Stop may be [End], and a Step of 0
// is 1.
//
// The zero Range stops where it starts, so it picks nothing. Range{Stop: End}
// is the whole dimension.
type Range struct{ Start, Stop, Step int }

// count returns how many indices r picks of a dimension of that size, or what
// is wrong with it.
func (r Range) count(size int) (n int, wrong string) {
	if r.Stop == End {
		r.Stop = size
	}
	switch {
	case r.Start < 0:
		return 0, "its start is negative"
	case r.Stop < 0:
		return 0, "its stop is negative and not End"
	case r.Step < 0:
		return 0, "its step is negative"
	case r.Stop > size:
		return 0, "it stops past the end"
	case r.Start > r.Stop:
		return 0, "it starts after its stop"
	case r.Start == r.Stop:
		return 0, ""
	}
	return (r.Stop-r.Start-1)/max(r.Step, 1) + 1, ""
}

// Slice returns the part of the tensor that the ranges pick, one for each
// dimension from the first on; dimensions without a Range are whole. No data is
// touched. A range that the tensor does not have is an error that wraps
// [ErrRange].
//
// A part whose bytes lie together shares them with t, as zero-copy as t is. Any
// other is gathered whenever it is read, in runs as long as the layout allows,
// and Bytes gives memory of its own. A slice of a slice gathers once, and a
// slice of a cast converts only what it picks.
//
// Of the dtypes under 8 bits, every run must begin and end at a whole byte;
// else the error wraps [ErrSubByteMisaligned].
func (t Tensor) Slice(ranges ...Range) (Tensor, error) {
	if err := t.usable(); err != nil {
		return Tensor{}, err
	}
	if len(ranges) > len(t.shape) {
		return Tensor{}, fmt.Errorf("safetensors: %w: %d ranges for the %d dimensions of %s",
			ErrRange, len(ranges), len(t.shape), shapeText(t.shape))
	}
	shape := slices.Clone(t.shape)
	for i, r := range ranges {
		n, wrong := r.count(t.shape[i])
		if wrong != "" {
			return Tensor{}, fmt.Errorf("safetensors: %w: range %+v of dimension %d, whose size is %d: %s",
				ErrRange, r, i, t.shape[i], wrong)
		}
		shape[i] = n
	}
	if slices.Contains(shape, 0) {
		// Before strides, which may overflow where a dimension is 0.
		return Tensor{dtype: t.dtype, shape: shape, src: nothing}, nil
	}
	s, err := t.pick(shape, ranges)
	if c, ok := t.src.(castSource); ok && err == nil && t.Len() == c.in.Len() {
		if under, err := c.slice(t.shape, ranges); err == nil {
			return under, nil
		}
	}
	return s, err
}

// slice is the cast of a slice, in place of the slice of a cast of that shape:
// the slice may be zero-copy, and casts in order. It fails where elements under
// 8 bits are cast to some that can be sliced anywhere.
func (s castSource) slice(shape []int, ranges []Range) (Tensor, error) {
	in, err := s.in.Reshape(shape...)
	if err == nil {
		in, err = in.Slice(ranges...)
	}
	if err != nil {
		return Tensor{}, err
	}
	return in.Cast(s.to)
}

// nothing is the source of tensors without bytes.
var nothing source = bytesSource{}

// pick is Slice for checked ranges, which give shape, of which no dimension is
// 0. All strides are in elements: there are under 2^62 of them, so that no
// product below overflows.
func (t Tensor) pick(shape []int, ranges []Range) (Tensor, error) {
	var room [8]dim
	dims := room[:min(len(shape), len(room))]
	if len(shape) > len(room) {
		dims = make([]dim, len(shape))
	}
	bits := uint64(t.dtype.Bits())

	whole := gather{base: t.src, off: t.off, run: t.size}
	in, ok := t.src.(*gather)
	if !ok || t.off != 0 || t.size != in.size || !in.split(dims, t.shape, bits) {
		in = &whole
		in.split(dims, t.shape, bits)
	}
	var first int64
	for i, r := range ranges {
		d := &dims[i]
		first += int64(r.Start) * d.stride
		d.n = int64(shape[i])
		if d.n > 1 {
			d.stride *= int64(max(r.Step, 1))
		}
	}
	dims, run := merge(dims)

	if bits%8 != 0 {
		odd := uint64(first)*bits%8 != 0 || uint64(run)*bits%8 != 0
		for _, d := range dims {
			odd = odd || uint64(d.stride)*bits%8 != 0
		}
		if odd {
			return Tensor{}, &FormatError{Kind: ErrSubByteMisaligned, Offset: -1,
				Want: "a slice whose runs of neighbouring elements begin and end at a whole byte",
				Got:  fmt.Sprintf("%+v of %s %s of %d bits each", slices.Clone(ranges), t.dtype, shapeText(t.shape), bits)}
		}
	}
	bytes := func(elements int64) int64 { return int64(uint64(elements) * bits / 8) }
	s := Tensor{dtype: t.dtype, shape: shape, src: in.base, off: in.off + bytes(first), size: bytes(run)}
	if len(dims) == 0 {
		return s, nil
	}
	g := &gather{base: s.src, off: s.off, run: s.size}
	g.dims = append(g.room[:0], dims...)
	for i := len(g.dims) - 1; i >= 0; i-- {
		d := &g.dims[i]
		d.stride, d.size = bytes(d.stride), s.size
		s.size *= d.n
	}
	g.size = s.size
	s.src, s.off = g, 0
	return s, nil
}

// split fills dims with the dimensions of shape, whose elements are those that
// g gathers, and their strides in elements of that many bits in the base of g.
// It reports whether there are any: a reshaped gather may have none.
func (g *gather) split(dims []dim, shape []int, bits uint64) bool {
	elements := func(bytes int64) int64 { return int64(uint64(bytes) * 8 / bits) }
	left, stride := elements(g.run), int64(1)
	outer := len(g.dims)
	for i := len(shape) - 1; i >= 0; i-- {
		n := int64(shape[i])
		dims[i] = dim{n: n}
		if n == 1 {
			continue
		}
		for left == 1 {
			outer--
			left, stride = g.dims[outer].n, elements(g.dims[outer].stride)
		}
		if left%n != 0 {
			return false
		}
		dims[i].stride = stride
		left, stride = left/n, stride*n
	}
	return true
}

// merge makes one dimension of neighbours that can be walked as one, drops
// those of size 1, and takes off the innermost where it is a run of elements
// side by side. What is left is in the same memory.
func merge(dims []dim) (outer []dim, run int64) {
	at := len(dims)
	for i := len(dims) - 1; i >= 0; i-- {
		switch d := dims[i]; {
		case d.n == 1:
		case at < len(dims) && d.stride == dims[at].n*dims[at].stride:
			dims[at].n *= d.n
		default:
			at--
			dims[at] = d
		}
	}
	dims = dims[at:]
	if last := len(dims) - 1; last >= 0 && dims[last].stride == 1 {
		return dims[:last], dims[last].n
	}
	return dims, 1
}

// Reshape returns the tensor with the same elements, in row-major order, in
// another shape; none for a scalar. It touches no data and is as zero-copy as t
// is. A shape of another number of elements is an error that wraps [ErrRange].
func (t Tensor) Reshape(shape ...int) (Tensor, error) {
	if err := t.usable(); err != nil {
		return Tensor{}, err
	}
	// The same dtype and size make the same number of elements.
	if size, kind := sizeOf(t.dtype, shape); kind != "" || size != t.size {
		return Tensor{}, fmt.Errorf("safetensors: %w: shape %s for the %d elements of %s",
			ErrRange, shapeText(shape), t.Len(), shapeText(t.shape))
	}
	t.shape = slices.Clone(shape)
	return t, nil
}
