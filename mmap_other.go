//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package safetensors

import (
	"errors"
	"os"
)

func mmap(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func munmap([]byte) error { return nil }

func isFault(error) bool { return false }
