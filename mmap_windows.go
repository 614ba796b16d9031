package safetensors

import (
	"errors"
	"os"
	"syscall"
)

// mmap maps the first size bytes of f, which are more than none. The view keeps
// the mapping alive after its handle and the file's are closed.
func mmap(f *os.File, size int) ([]byte, error) {
	handle, err := syscall.CreateFileMapping(syscall.Handle(f.Fd()), nil, syscall.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, os.NewSyscallError("CreateFileMapping", err)
	}
	defer syscall.CloseHandle(handle)
	addr, err := syscall.MapViewOfFile(handle, syscall.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return nil, os.NewSyscallError("MapViewOfFile", err)
	}
	return mapped(addr, size), nil
}

func munmap(data []byte) error {
	return os.NewSyscallError("UnmapViewOfFile", syscall.UnmapViewOfFile(addressOf(data)))
}

// isFault reports whether a write failed since the memory it was given is no
// longer there (ERROR_NOACCESS).
func isFault(err error) bool { return errors.Is(err, syscall.Errno(998)) }
