package safetensors

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// loadChunk is what one read of Load asks for: a multiple of the size of huge
// pages, so that each is first touched by one worker, and small enough that a
// cancelled context is noticed at once.
const loadChunk = 8 << 20

// readers is how many reads run at once: more than there are processors, since
// on a cold file they wait for the storage.
func readers() int { return max(4, min(2*runtime.GOMAXPROCS(0), 32)) }

// Load reads the named tensors, or all without names, into memory of their own
// and returns them by name. They outlive Close, and View works on each: a
// tensor that lies askew in the file does not in memory. The file is read in
// large parallel reads, in file order; the tensors share one allocation, which
// lives as long as any of them. An unknown name is [ErrNotFound], a file that
// was cut short [ErrFault]. A cancelled ctx ends it with ctx's error.
func (f *File) Load(ctx context.Context, names ...string) (map[string]Tensor, error) {
	places, err := f.selected(names)
	if err != nil {
		return nil, err
	}
	spans, total := f.spans(places)
	if total > math.MaxInt {
		return nil, f.wrap(fmt.Errorf("%w: %d bytes do not fit the memory of this platform", ErrRange, total))
	}
	buf := hugeBytes(int(total))
	if err := f.readSpans(ctx, buf, spans); err != nil {
		return nil, err
	}
	loaded := make(map[string]Tensor, len(places))
	src := source(bytesSource(buf)) // boxed once for all
	next := 0
	for _, i := range places {
		t := f.at(i)
		for spans[next].off+spans[next].n < t.off+t.size {
			next++
		}
		t.off += spans[next].at - spans[next].off
		t.src = src
		loaded[f.header.name(&f.header.tensors[i])] = t
	}
	return loaded, nil
}

// selected returns the places of the named tensors in data order, each once.
func (f *File) selected(names []string) ([]int, error) {
	if f.closed.Load() {
		return nil, f.errClosed()
	}
	if len(names) == 0 {
		places := make([]int, f.Len())
		for i := range places {
			places[i] = i
		}
		return places, nil
	}
	places := make([]int, len(names))
	for k, name := range names {
		if places[k] = f.header.find(name); places[k] < 0 {
			return nil, &notFoundError{name: name, file: f.name, header: f.header}
		}
	}
	slices.Sort(places)
	return slices.Compact(places), nil
}

// A span is n bytes of a file from off on that go to a buffer at at.
type span struct{ off, n, at int64 }

// spans lays the tensors out in a buffer of total bytes as they lie in the
// file, in one span as far as they lie side by side and all are aligned then.
func (f *File) spans(places []int) (spans []span, total int64) {
	const alignment = 64
	spans = append(spans, span{off: f.header.DataStart()})
	for _, i := range places {
		t := f.at(i)
		last := &spans[len(spans)-1]
		width := max(int64(dtypes[t.dtype].bits)/8, 1)
		if t.off != last.off+last.n || total%width != 0 {
			total = (total + alignment - 1) / alignment * alignment
			spans = append(spans, span{t.off, t.size, total})
		} else {
			last.n += t.size
		}
		total += t.size
	}
	return spans, total
}

// readSpans fills buf from the file, in parallel.
func (f *File) readSpans(ctx context.Context, buf []byte, spans []span) error {
	var chunks []span
	for _, s := range spans {
		for s.n > 0 {
			// Up to a multiple of loadChunk in memory.
			n := min(s.n, loadChunk-int64(addressOf(buf)+uintptr(s.at))%loadChunk)
			chunks = append(chunks, span{s.off, n, s.at})
			s = span{s.off + n, s.n - n, s.at + n}
		}
	}
	var in *os.File
	if f.mapped {
		// Reading is faster than faulting a map in page by page.
		if in = f.reopen(); in != nil {
			defer in.Close()
		}
	}
	return inParallel(ctx, len(chunks), func(i int) error {
		c := chunks[i]
		p := buf[c.at : c.at+c.n]
		if in == nil {
			return f.read(p, c.off)
		}
		if f.closed.Load() {
			return f.errClosed()
		}
		if err := readFullAt(in, p, c.off); err != nil {
			return f.readError(err)
		}
		return nil
	})
}

// inParallel calls do for 0 to n-1, begun in that order, from several
// goroutines. The first error, or the end of ctx, stops it.
func inParallel(ctx context.Context, n int, do func(int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var workers sync.WaitGroup
	for range min(readers(), n) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	workers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

// reopen returns a descriptor of the very file that f has mapped, or nil: a map
// needs none, so f gave its own back.
func (f *File) reopen() *os.File {
	if f.info == nil || f.path == "" {
		return nil
	}
	// Looked at before it is opened too, since opening a named pipe would wait.
	if info, err := os.Stat(f.path); err != nil || !os.SameFile(info, f.info) {
		return nil
	}
	in, err := os.Open(f.path)
	if err != nil {
		return nil
	}
	if info, err := in.Stat(); err != nil || !os.SameFile(info, f.info) {
		in.Close()
		return nil
	}
	return in
}

// prefetchWindow is how much is brought in by one call to the system.
const prefetchWindow = 32 << 20

// Prefetch brings the named tensors, or all without names, into the system's
// cache and into the map, so that touching their bytes neither waits nor, unless
// someone cuts the file short after it, faults. A file that is too short by now
// is [ErrFault]. Without a map the bytes are read and dropped, which fills the
// system's cache. A cancelled ctx ends it with ctx's error.
func (f *File) Prefetch(ctx context.Context, names ...string) error {
	places, err := f.selected(names)
	if err != nil {
		return err
	}
	if f.data != nil && !f.mapped {
		return ctx.Err()
	}
	spans, _ := f.spans(places)
	for _, s := range spans {
		if err := f.prefetch(ctx, s.off, s.n); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *File) prefetch(ctx context.Context, off, n int64) error {
	windows := int((n + prefetchWindow - 1) / prefetchWindow)
	return inParallel(ctx, windows, func(i int) error {
		at := off + int64(i)*prefetchWindow
		size := min(prefetchWindow, off+n-at)
		if !f.mapped {
			return f.discard(ctx, at, size)
		}
		if err := f.acquire(); err != nil {
			return err
		}
		defer f.release()
		// The map begins at a page, and windows may begin anywhere in one.
		from := at &^ int64(os.Getpagesize()-1)
		err := populate(f.data[from : at+size])
		if err == nil || isFault(err) {
			if err != nil {
				err = fmt.Errorf("%w: the file was cut short while it was mapped: %w", ErrFault, err)
			}
			return f.wrap(err)
		}
		return f.wrap(guard(f.data, func() error {
			touch(f.data[at : at+size])
			return nil
		}))
	})
}

// touch reads a byte of every page.
func touch(mem []byte) {
	var sum byte
	for i := 0; i < len(mem); i += os.Getpagesize() {
		sum += mem[i]
	}
	if len(mem) > 0 {
		sum += mem[len(mem)-1]
	}
	touched.Store(uint32(sum))
}

// touched keeps the compiler from leaving the reads out.
var touched atomic.Uint32

// discard reads n bytes from off on for the sake of the system's cache.
func (f *File) discard(ctx context.Context, off, n int64) error {
	buf := make([]byte, min(n, blockSize))
	for n > 0 && ctx.Err() == nil {
		b := buf[:min(n, int64(len(buf)))]
		if err := f.read(b, off); err != nil {
			return err
		}
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return ctx.Err()
}

// streamAhead is how many bytes Stream has under way beyond the tensor that fn
// works on.
const streamAhead = 128 << 20

// Stream calls fn for the named tensors, or all without names, one after the
// other in data order, while the next ones are already on their way. A tensor
// of a mapped file was prefetched by then; without a map it was read into memory
// of its own. Tensors that are ahead take up to 128 MiB, or one larger tensor.
// The first error of fn, of reading or of ctx ends it.
func (f *File) Stream(ctx context.Context, fn func(name string, t Tensor) error, names ...string) error {
	places, err := f.selected(names)
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	type arrival struct {
		i   int
		t   Tensor
		err error
	}
	arrived := make(chan arrival, 256)
	ahead := newBudget(streamAhead)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(arrived)
		for _, i := range places {
			t := f.at(i)
			if !ahead.take(reading, t.size) {
				return
			}
			t, err := f.bring(reading, t)
			select {
			case arrived <- arrival{i, t, err}:
			case <-reading.Done():
				return
			}
		}
	})
	defer reader.Wait()
	defer stop()
	for a := range arrived {
		if ctx.Err() != nil {
			break
		}
		if a.err != nil {
			return a.err
		}
		ahead.give(a.t.size)
		if err := fn(f.header.name(&f.header.tensors[a.i]), a.t); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// bring returns t with its bytes in memory.
func (f *File) bring(ctx context.Context, t Tensor) (Tensor, error) {
	if f.mapped {
		return t, f.prefetch(ctx, t.off, t.size)
	}
	if f.data != nil {
		return t, nil
	}
	if t.size > math.MaxInt {
		return t, f.wrap(fmt.Errorf("%w: %d bytes do not fit the memory of this platform", ErrRange, t.size))
	}
	buf := hugeBytes(int(t.size))
	err := f.readSpans(ctx, buf, []span{{t.off, t.size, 0}})
	return Tensor{dtype: t.dtype, shape: t.shape, src: bytesSource(buf), size: t.size}, err
}

// A budget lets one goroutine run ahead of another by so many bytes, or by one
// tensor of any size.
type budget struct {
	most  int64
	used  int64
	mu    sync.Mutex
	freed chan struct{}
}

func newBudget(most int64) *budget { return &budget{most: most, freed: make(chan struct{}, 1)} }

func (b *budget) take(ctx context.Context, n int64) bool {
	for ctx.Err() == nil {
		b.mu.Lock()
		if b.used == 0 || b.used+n <= b.most {
			b.used += n
			b.mu.Unlock()
			return true
		}
		b.mu.Unlock()
		select {
		case <-b.freed:
		case <-ctx.Done():
		}
	}
	return false
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
