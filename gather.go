package safetensors

import "io"

// A gather is the source of a slice whose bytes do not lie together: runs of
// its base, in the order of the base. It finds them anew for every read and
// keeps nothing. A base that can only be passed through from its start, as that
// of [FromFunc], is passed through once for each read or write.
type gather struct {
	base source
	off  int64  // where the first run begins in base
	run  int64  // bytes of a run
	dims []dim  // at least one, the outermost first; no two can be walked as one
	size int64  // bytes of all runs
	room [3]dim // for dims: there are rarely more
}

// A dim is a dimension of a gather.
type dim struct {
	n      int64 // how many indices
	stride int64 // from one to the next in the base: more than what lies within
	size   int64 // bytes gathered for one
}

// at returns where in the base the gathered byte off lies.
func (g *gather) at(off int64) int64 {
	pos := g.off
	for i := range g.dims {
		d := &g.dims[i]
		pos += off / d.size * d.stride
		off %= d.size
	}
	return pos + off
}

// before returns how many gathered bytes lie before pos in the base.
func (g *gather) before(pos int64) int64 {
	var n int64
	pos -= g.off
	for i := range g.dims {
		d := &g.dims[i]
		if pos >= d.n*d.stride {
			return n + d.n*d.size
		}
		n += pos / d.stride * d.size
		pos %= d.stride
	}
	return n + min(pos, g.run)
}

// span returns the part [lo, hi) of the base that the n gathered bytes from off
// on lie in. n is not 0.
func (g *gather) span(off, n int64) (lo, hi int64) { return g.at(off), g.at(off+n-1) + 1 }

func (g *gather) memory(int64, int64, func([]byte) error) (bool, error) { return false, nil }

func (g *gather) read(p []byte, off int64) error {
	for len(p) > 0 {
		b := p[:min(len(p), blockSize)]
		lo, hi := g.span(off, int64(len(b)))
		ok, err := g.base.memory(lo, hi-lo, func(mem []byte) error {
			g.pick(b, mem, lo, off)
			return nil
		})
		if err != nil {
			return err
		}
		if !ok {
			return g.fetch(p, off)
		}
		p, off = p[len(b):], off+int64(len(b))
	}
	return nil
}

func (g *gather) writeTo(w io.Writer, off, n int64) (int64, error) {
	inMemory, err := g.base.memory(g.off, 0, func([]byte) error { return nil })
	if err != nil {
		return 0, err
	}
	if inMemory || n == 0 || g.reach() < g.size {
		return copyBlocks(w, g, off, n, blockSize)
	}
	s := sieve{g: g, off: off, buf: make([]byte, min(n, blockSize)), w: w}
	err = s.take(n)
	if err == nil {
		err = s.flush()
	}
	return s.done, err
}

// fetch is read for a base that does not lie in memory.
func (g *gather) fetch(p []byte, off int64) error {
	reach := g.reach()
	for len(p) > 0 {
		b := p[:min(int64(len(p)), reach-off%reach)]
		var err error
		if off%g.run+int64(len(b)) <= g.run {
			err = g.base.read(b, g.at(off))
		} else {
			s := sieve{g: g, off: off, buf: b}
			err = s.take(int64(len(b)))
		}
		if err != nil {
			return err
		}
		p, off = p[len(b):], off+int64(len(b))
	}
	return nil
}

// reach returns how many gathered bytes are worth fetching by passing through
// all of the base between them, instead of run by run. A base that is read may
// be a disk or a network, where going back for the next run costs more than
// reading on over a gap, unless that would read much more than is wanted.
func (g *gather) reach() int64 {
	if _, once := bottom(g.base).(funcSource); once {
		return g.size
	}
	const always, never, share = 4 << 10, 64 << 10, 16
	within := g.run
	for i := len(g.dims) - 1; i >= 0; i-- {
		d := &g.dims[i]
		if gap := d.stride - within; gap > never || gap > always && gap/share > within {
			return d.size
		}
		within += (d.n - 1) * d.stride
	}
	return g.size
}

// bottom returns the source below all slices and casts.
func bottom(s source) source {
	for {
		switch of := s.(type) {
		case *gather:
			s = of.base
		case castSource:
			s = of.in.src
		default:
			return s
		}
	}
}

// A sieve keeps, of what its base writes to it, the bytes that are gathered: in
// buf, and whenever that is full in w.
type sieve struct {
	g    *gather
	pos  int64 // of the next byte of the base
	off  int64 // of the next byte gathered
	end  int64 // of those wanted
	buf  []byte
	have int // bytes in buf
	w    io.Writer
	done int64 // bytes that w took
}

// take gathers the next n bytes.
func (s *sieve) take(n int64) error {
	lo, hi := s.g.span(s.off, n)
	s.pos, s.end = lo, s.off+n
	_, err := s.g.base.writeTo(s, lo, hi-lo)
	if err == nil && s.off < s.end {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (s *sieve) Write(b []byte) (int, error) {
	next := s.pos + int64(len(b))
	for end := min(s.g.before(next), s.end); s.off < end; {
		if s.have == len(s.buf) {
			if err := s.flush(); err != nil {
				return 0, err
			}
		}
		p := s.buf[s.have:]
		p = p[:min(int64(len(p)), end-s.off)]
		s.g.pick(p, b, s.pos, s.off)
		s.have, s.off = s.have+len(p), s.off+int64(len(p))
	}
	s.pos = next
	return len(b), nil
}

func (s *sieve) flush() error {
	n, err := s.w.Write(s.buf[:s.have])
	s.done += int64(n)
	if err == nil && n < s.have {
		err = io.ErrShortWrite
	}
	s.have = 0
	return err
}

// pick fills p with the gathered bytes from off on. mem is the base from lo on.
func (g *gather) pick(p, mem []byte, lo, off int64) {
	pickDims(p, mem, g.off-lo, off, g.run, g.dims)
}

// pickDims fills p with what dims gather, from skip on. The first run is at pos
// of mem, which may be before it where it is skipped.
func pickDims(p, mem []byte, pos, skip, run int64, dims []dim) {
	d := &dims[0]
	if skip > 0 {
		pos += skip / d.size * d.stride
		skip %= d.size
	}
	if len(dims) == 1 {
		pickRuns(p, mem, pos, skip, run, d.stride)
		return
	}
	for len(p) > 0 {
		n := min(int64(len(p)), d.size-skip)
		pickDims(p[:n], mem, pos, skip, run, dims[1:])
		p, pos, skip = p[n:], pos+d.stride, 0
	}
}

// pickRuns fills p with runs a stride apart, from skip bytes into the first.
func pickRuns(p, mem []byte, pos, skip, run, stride int64) {
	if skip > 0 {
		n := copy(p[:min(int64(len(p)), run-skip)], mem[pos+skip:])
		p, pos = p[n:], pos+stride
	}
	// A copy costs five times what the few bytes of an element do. Not where each
	// is on a page of its own: there, elements that are asked for that fast wait
	// a quarter longer (measured on an AMD EPYC 7003).
	if stride < 4096 && int64(len(p)) >= 2*run && stride&(run-1) == 0 {
		n := 0
		switch from := mem[pos:]; run {
		case 1:
			n = pickEvery[[1]byte](p, from, stride)
		case 2:
			n = pickEvery[[2]byte](p, from, stride)
		case 4:
			n = pickEvery[[4]byte](p, from, stride)
		case 8:
			n = pickEvery[[8]byte](p, from, stride)
		case 16:
			n = pickEvery[[16]byte](p, from, stride)
		}
		p, pos = p[int64(n)*run:], pos+int64(n)*stride
	}
	for len(p) > 0 {
		n := copy(p[:min(int64(len(p)), run)], mem[pos:])
		p, pos = p[n:], pos+stride
	}
}

// pickEvery fills p, as far as whole units go, with those a stride apart in
// mem, and returns how many. The stride is a multiple of their size.
func pickEvery[E unit](p, mem []byte, stride int64) int {
	to, from := unitsOf[E](p), unitsOf[E](mem)
	n, at, step := len(to), 0, int(stride)/len(to[0])
	for ; len(to) >= 4; to = to[4:] {
		to[0] = from[at]
		to[1] = from[at+step]
		to[2] = from[at+2*step]
		to[3] = from[at+3*step]
		at += 4 * step
	}
	for i := range to {
		to[i] = from[at]
		at += step
	}
	return n
}

// A unit is moved as bytes, so that it may lie at any address.
type unit interface {
	[1]byte | [2]byte | [4]byte | [8]byte | [16]byte
}
