//go:build !linux

package safetensors

import "os"

// A copier has the system copy from other files where it can; here it cannot.
type copier struct{}

func (*copier) copy(*os.File, *File, int64, int64) (int64, error) { return 0, nil }

func (*copier) close() {}

func startWriteback(*os.File, int64, int64) {}
