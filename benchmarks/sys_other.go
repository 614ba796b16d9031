//go:build !unix

package main

import "errors"

var errUnix = errors.New("the benchmarks need a Unix system")

func mapFile(string) ([]byte, error) { return nil, errUnix }
func unmap([]byte)                   {}
func mapFresh(int) ([]byte, error)   { return nil, errUnix }
func settle()                        {}
