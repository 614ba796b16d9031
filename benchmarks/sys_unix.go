//go:build unix

package main

import (
	"os"
	"syscall"
)

// mapFile maps a file to read, the whole of it, so that a header with terabytes
// of holes behind it can be given to those that want the file as one slice.
func mapFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
}

func unmap(data []byte) { syscall.Munmap(data) }

// mapFresh gives memory outside of Go's heap that nobody has touched.
func mapFresh(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// settle waits until what was written so far is on the disk, so that it does
// not slow the next one down.
func settle() { syscall.Sync() }
