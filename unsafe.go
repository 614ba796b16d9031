package safetensors

import (
	"strings"
	"unsafe"
)

// stringOf returns b as a string without a copy. The caller owns b and never
// changes it again, so the string keeps the promise that strings do not change.
func stringOf(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// addressOf returns the address of b's first byte, to tell whether a fault was
// in b. It is only compared, never turned back into a pointer.
func addressOf(b []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// bytesOf returns the memory of s. Every Element is free of pointers and
// padding, and any address will do for bytes.
func bytesOf[T Element](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// sliceOf returns b as a slice of the whole T in it, with no room to grow into
// what follows. b is not empty, lies at a multiple of alignOf[T], and has what
// every T may be: any bits for numbers, 0 or 1 for a bool.
func sliceOf[T Element](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func alignOf[T Element]() uintptr {
	var t T
	return unsafe.Alignof(t)
}

// ofBits returns the T of one or two bytes with these bits.
func ofBits[T Element](bits uint16) T {
	var t T
	if unsafe.Sizeof(t) == 1 {
		*(*uint8)(unsafe.Pointer(&t)) = uint8(bits)
	} else {
		*(*uint16)(unsafe.Pointer(&t)) = bits
	}
	return t
}

// uncleared returns n bytes that may hold anything, for callers that fill all
// of them. Clearing gigabytes first would take as long as reading them.
// strings.Builder has the standard library's only such memory.
func uncleared(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)
	// The builder is dropped, so nothing else refers to its capacity of n.
	return unsafe.Slice(unsafe.StringData(b.String()), n)
}

// unitsOf returns the whole units that lie in b. An array of bytes may lie at
// any address.
func unitsOf[E unit](b []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/len(e))
}
