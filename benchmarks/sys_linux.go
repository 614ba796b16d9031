package main

import "syscall"

// prepareHuge is prepare on huge pages, where the system has them.
func prepareHuge(n int) ([]byte, error) {
	data, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	_ = syscall.Madvise(data, syscall.MADV_HUGEPAGE) // not on every kernel
	touch(data)
	return data, nil
}
