package main

import "syscall"

// mapHuge is mapFresh on huge pages, where the system has them.
func mapHuge(n int) ([]byte, error) {
	data, err := mapFresh(n)
	if err == nil {
		_ = syscall.Madvise(data, syscall.MADV_HUGEPAGE) // not on every kernel
	}
	return data, err
}
