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

// prepare gives memory outside of Go's heap that is ready: every page is there.
func prepare(n int) ([]byte, error) {
	data, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	touch(data)
	return data, err
}

func touch(data []byte) {
	for i := 0; i < len(data); i += 4096 {
		data[i] = 1
	}
}

// settle waits until what was written so far is on the disk, so that it does
// not slow the next one down.
func settle() { syscall.Sync() }
