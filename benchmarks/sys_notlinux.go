//go:build !linux

package main

func prepareHuge(n int) ([]byte, error) { return prepare(n) }
