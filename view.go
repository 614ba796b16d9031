package safetensors

import (
	"encoding/binary"
	"slices"
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
