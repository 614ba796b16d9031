package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/go-safetensors/safetensors"
)

var hashCommand = &command{
	name: "hash", args: "PATH", least: 1, most: 1,
	short: "print the SHA-256 of each tensor's bytes",
	long: `
Prints the SHA-256 of the bytes of each tensor of PATH, in the order of their
data, with dtype and shape. Two files that hold the same tensors print the same
lines, in whatever order.

With --json, the document of ls with a "sha256" in each tensor.
`,
	define: func(flags *flag.FlagSet) func(*env, []string) error {
		asJSON := flags.Bool("json", false, "print JSON")
		opts := compatFlag(flags)
		return func(e *env, args []string) error {
			// Plain reads: all is read just once.
			m, err := open(args[0], append(opts(), safetensors.WithoutMmap())...)
			if err != nil {
				return err
			}
			defer m.Close()
			each := func(add func(tensorLine) error) error { return hashAll(m, lines(m), add) }
			if *asJSON {
				return document(e.stdout, args[0], m.Metadata(), each)
			}
			return each(func(l tensorLine) error {
				_, err := fmt.Fprintf(e.stdout, "%s  %s %s %s\n", l.SHA256, l.DType, shape(l.Shape), show(l.Name))
				return err
			})
		}
	},
}

// hashAll hashes on all processors and gives add the lines in their order. Each
// processor holds one buffer, whatever the size of the tensors.
func hashAll(m *safetensors.Model, all []tensorLine, add func(tensorLine) error) error {
	var (
		next atomic.Int64
		stop atomic.Bool
		wait sync.WaitGroup
		mu   sync.Mutex
		done = sync.NewCond(&mu)
		errs = make(map[int]error)
	)
	work := func() {
		defer wait.Done()
		buf := make([]byte, 1<<20)
		for !stop.Load() {
			i := int(next.Add(1)) - 1
			if i >= len(all) {
				return
			}
			sum, err := hashTensor(m, all[i].Name, buf, &stop)
			mu.Lock()
			all[i].SHA256 = sum
			if err != nil {
				errs[i] = err
			}
			done.Broadcast()
			mu.Unlock()
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		wait.Add(1)
		go work()
	}
	defer wait.Wait()
	defer stop.Store(true)
	for i := range all {
		mu.Lock()
		for all[i].SHA256 == "" && errs[i] == nil {
			done.Wait()
		}
		err := errs[i]
		mu.Unlock()
		if err == nil {
			err = add(all[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errStopped = errors.New("stopped")

func hashTensor(m *safetensors.Model, name string, buf []byte, stop *atomic.Bool) (string, error) {
	t, err := m.Tensor(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for off := int64(0); off < t.Size(); off += int64(len(buf)) {
		if stop.Load() {
			return "", errStopped
		}
		n, err := t.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			return "", fmt.Errorf("reading tensor %s: %w", show(name), err)
		}
		h.Write(buf[:n])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
