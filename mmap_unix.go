//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package safetensors

import (
	"errors"
	"os"
	"syscall"
)

// mmap maps the first size bytes of f, which are more than none.
func mmap(f *os.File, size int) ([]byte, error) {
	return syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
}

func munmap(data []byte) error { return syscall.Munmap(data) }

// isFault reports whether a write failed since the memory it was given is no
// longer there.
func isFault(err error) bool { return errors.Is(err, syscall.EFAULT) }
