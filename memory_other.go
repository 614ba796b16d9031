//go:build !linux

package safetensors

import "errors"

func populate([]byte) error { return errors.ErrUnsupported }

func adviseHuge([]byte) {}
