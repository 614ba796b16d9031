package safetensors

import "unsafe"

// stringOf returns b as a string without a copy. The caller owns b and never
// changes it again, so the string keeps the promise that strings do not change.
func stringOf(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// offsetIn returns where s lies in buf, or -1 where s is memory of its own.
// The addresses are only compared, never turned back into pointers.
func offsetIn(buf []byte, s string) int {
	at := uintptr(unsafe.Pointer(unsafe.StringData(s))) - uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	if len(s) == 0 || at >= uintptr(len(buf)) {
		return -1
	}
	return int(at)
}

// addressOf returns the address of b's first byte, to tell whether a fault was
// in b. It is only compared, never turned back into a pointer.
func addressOf(b []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}
