package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/go-safetensors/safetensors"
)

// A comparer compares tensors block by block on all processors. What it holds is
// two buffers for each of them.
type comparer struct {
	buffers [][2][]byte
	done    func(bytes int64) // from any goroutine
}

// blockBytes stays in the cache of one processor, together with its twin.
const blockBytes = 256 << 10

func newComparer(done func(int64)) *comparer {
	c := &comparer{done: done, buffers: make([][2][]byte, runtime.GOMAXPROCS(0))}
	for i := range c.buffers {
		c.buffers[i] = [2][]byte{make([]byte, blockBytes), make([]byte, blockBytes)}
	}
	return c
}

// errFound ends a search early.
var errFound = errors.New("found")

// equal reports whether two tensors of one size have the same bytes.
func (c *comparer) equal(a, b safetensors.Tensor) (bool, error) {
	err := c.parallel(a.Size(), 16*blockBytes, func(worker int, from, to int64) error {
		p, q := c.buffers[worker][0], c.buffers[worker][1]
		for off := from; off < to; off += int64(len(p)) {
			n := min(to-off, int64(len(p)))
			if err := fill(a, p[:n], off); err != nil {
				return err
			}
			if err := fill(b, q[:n], off); err != nil {
				return err
			}
			if !bytes.Equal(p[:n], q[:n]) {
				return errFound
			}
			c.done(2 * n)
		}
		return nil
	})
	if err == errFound {
		return false, nil
	}
	return err == nil, err
}

// fill reads all of p, which lies within the tensor.
func fill(t safetensors.Tensor, p []byte, off int64) error {
	_, err := t.ReadAt(p, off)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// A distance is how far the values of two tensors are apart. A value that is NaN
// in both is the same; one that is NaN in one of them only is counted in NaNs
// and left out of all else.
type distance struct {
	Values    int64   `json:"values"`
	Differing int64   `json:"differing"`
	NaNs      int64   `json:"nans"`
	MaxAbs    decimal `json:"max_abs"`
	MeanAbs   decimal `json:"mean_abs"`
	Cosine    decimal `json:"cosine"`
}

// sums are what a distance is made of.
type sums struct {
	differing, nans int64
	compared        int64
	most, abs       float64
	dot, aa, bb     float64
}

func (s *sums) add(t sums) {
	s.differing += t.differing
	s.nans += t.nans
	s.compared += t.compared
	s.most = math.Max(s.most, t.most)
	s.abs += t.abs
	s.dot += t.dot
	s.aa += t.aa
	s.bb += t.bb
}

// distance compares the values of two tensors of one shape. It returns nil for
// dtypes that are not both numbers of one kind.
func (c *comparer) distance(a, b safetensors.Tensor) (*distance, error) {
	x, y, ok := numbers(a, b)
	if !ok {
		return nil, nil
	}
	width := int64(x.DType().Bits()) / 8
	// The sums of each unit are added up in order, so that the last digits do not
	// depend on which processor was faster.
	const unit = 1 << 20
	units := make([]sums, (x.Len()+unit-1)/unit)
	err := c.parallel(x.Len(), unit, func(worker int, from, to int64) error {
		p, q := c.buffers[worker][0], c.buffers[worker][1]
		s := &units[from/unit]
		for at := from; at < to; {
			n := min(to-at, blockBytes/width)
			p, q := p[:n*width], q[:n*width]
			if err := fill(x, p, at*width); err != nil {
				return err
			}
			if err := fill(y, q, at*width); err != nil {
				return err
			}
			s.block(p, q, int(width))
			at += n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all sums
	for _, s := range units {
		all.add(s)
	}
	d := &distance{Values: x.Len(), Differing: all.differing, NaNs: all.nans,
		MaxAbs: decimal(all.most), Cosine: decimal(all.cosine())}
	if all.compared > 0 {
		d.MeanAbs = decimal(all.abs / float64(all.compared))
	}
	return d, nil
}

// numbers returns both tensors as F32, if that holds all of their values, or as
// F64; C64 as pairs.
func numbers(a, b safetensors.Tensor) (x, y safetensors.Tensor, ok bool) {
	if a.DType() == safetensors.C64 && b.DType() == safetensors.C64 {
		a, b = parts(a), parts(b)
	}
	to := safetensors.F64
	if single(a.DType()) && single(b.DType()) {
		to = safetensors.F32
	}
	x, err := a.Cast(to)
	if err != nil {
		return x, y, false
	}
	y, err = b.Cast(to)
	return x, y, err == nil
}

func single(d safetensors.DType) bool { return d.Bits() <= 16 || d == safetensors.F32 }

func parts(t safetensors.Tensor) safetensors.Tensor {
	return safetensors.FromReaderAt(safetensors.F32, append(t.Shape(), 2), t)
}

// block adds two blocks of little-endian floats of that many bytes each.
func (s *sums) block(p, q []byte, width int) {
	var t sums
	for len(p) >= width && len(q) >= width {
		var x, y float64
		if width == 4 {
			x = float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))
			y = float64(math.Float32frombits(binary.LittleEndian.Uint32(q)))
		} else {
			x = math.Float64frombits(binary.LittleEndian.Uint64(p))
			y = math.Float64frombits(binary.LittleEndian.Uint64(q))
		}
		p, q = p[width:], q[width:]
		if x != x || y != y {
			if x == x || y == y {
				t.differing++
				t.nans++
			}
			continue
		}
		t.compared++
		if x != y { // equal infinities have no difference
			d := math.Abs(x - y)
			t.differing++
			t.most = max(t.most, d)
			t.abs += d
		}
		t.dot += x * y
		t.aa += x * x
		t.bb += y * y
	}
	s.add(t)
}

// cosine is 1 for two vectors of zeros, and 0 for one against anything else.
func (s *sums) cosine() float64 {
	if s.aa == 0 || s.bb == 0 {
		if s.aa == s.bb {
			return 1
		}
		return 0
	}
	return s.dot / (math.Sqrt(s.aa) * math.Sqrt(s.bb))
}

// parallel calls fn for [0,n) in units, in order of their start, and returns the
// first error, after which no new ones begin.
func (c *comparer) parallel(n, unit int64, fn func(worker int, from, to int64) error) error {
	if n <= unit {
		return fn(0, 0, n)
	}
	var (
		next atomic.Int64
		wait sync.WaitGroup
		once sync.Once
		err  error
	)
	for worker := range min(int64(len(c.buffers)), (n+unit-1)/unit) {
		wait.Go(func() {
			for {
				from := next.Add(unit) - unit
				if from >= n {
					return
				}
				if failed := fn(int(worker), from, min(from+unit, n)); failed != nil {
					once.Do(func() { err = failed })
					next.Store(n)
					return
				}
			}
		})
	}
	wait.Wait()
	return err
}
