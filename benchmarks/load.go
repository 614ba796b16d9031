package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-safetensors/safetensors"
	nlpodyssey "github.com/nlpodyssey/safetensors"
)

const (
	oursLoad    = "this library: Load"
	oursAgain   = "this library: Load, memory used before"
	rawPrepared = "parallel preads, memory prepared"
	rawHuge     = "parallel preads, fresh huge pages"
	rawFresh    = "parallel preads, fresh memory"
	readFile    = "os.ReadFile"
	pythonLoad  = "Python: load_file, numpy"
)

func loadTopic(s *settings, p *peers, r *report) error {
	total := int64(4) << 30
	if s.quick {
		total = 256 << 20
	}
	// The file in the page cache, a copy in memory, and room for the rest.
	for free() > 0 && total > 64<<20 && free() < total*5/2 {
		total /= 2
	}
	head, data := header(modelOf(total), form{})
	name := filepath.Join(s.scratch, "load.safetensors")
	defer os.Remove(name)
	if err := writeFull(name, head, data); err != nil {
		return err
	}
	if err := warm(name); err != nil {
		return err
	}
	r.section("Loading a file into memory", fmt.Sprintf(`
All tensors of a file of %s, which is in the page cache, into memory of the program's own. Each run is a fresh
process, so memory is too: the system has to clear every page of it before it is written, which no reader can save.
Beside it stands a Load into memory that the process used before, as in a server that changes models. Three bounds are
given for what reading can reach: as many preads of 8 MiB by as many goroutines as Load uses, into memory whose pages
are already there, into fresh memory on huge pages, and into a plain slice of Go.`, size(data)))

	readers := strconv.Itoa(max(4, min(2*s.threads, 32))) // as Load
	ready := func(run func() (sample, error)) func(int) (sample, error) {
		return func(int) (sample, error) {
			if err := useMemory(data * 5 / 4); err != nil {
				return sample{}, err
			}
			return run()
		}
	}
	inTask := func(name string, args ...string) func(int) (sample, error) {
		return ready(func() (sample, error) { return inChild(name, args...) })
	}
	all := s.measure("load", []contender{
		{name: oursLoad, once: true, run: inTask("load", name)},
		{name: oursAgain, once: true, run: inTask("load", name, "again")},
		{name: rawPrepared, once: true, run: inTask("preads", name, readers, "prepared")},
		{name: rawHuge, once: true, run: inTask("preads", name, readers, "huge")},
		{name: rawFresh, once: true, run: inTask("preads", name, readers, "fresh")},
		{name: readFile, once: true, run: inTask("readfile", name)},
		{name: pythonLoad, once: true, run: ready(func() (sample, error) { return p.python.askOnce("load", name) })},
		{name: "Rust: fs::read, deserialize", once: true, run: ready(func() (sample, error) { return p.rust.askOnce("load", name) })},
		{name: "nlpodyssey: os.ReadFile, Deserialize", once: true, run: inTask("load-nlpodyssey", name)},
		{name: "go-huggingface: IterTensors", once: true, run: inTask("load-hub", name, s.scratch)},
	})
	ours := find(all, oursLoad)
	r.results(fmt.Sprintf("Load %s", size(data)), all, ours, data)
	r.require("load into fresh memory: speed ÷ that of parallel preads into prepared memory", ratio(find(all, rawPrepared), ours), atLeast(0.9))
	r.require("load into used memory: speed ÷ that of parallel preads into prepared memory", ratio(find(all, rawPrepared), find(all, oursAgain)), atLeast(0.9))
	r.require("load into fresh memory: speed ÷ that of parallel preads into fresh huge pages", ratio(find(all, rawHuge), ours), atLeast(0.9))
	r.require("load into fresh memory: speed ÷ that of parallel preads into a fresh slice", ratio(find(all, rawFresh), ours), atLeast(0.9))
	r.require("load: os.ReadFile ÷ ours", ratio(find(all, readFile), ours), atLeast(2))
	r.require("load: Python ÷ ours", ratio(find(all, pythonLoad), ours), atLeast(1.5))
	if ours.ok() && ours.memory > 0 {
		r.require("load: peak memory ÷ data", float64(ours.memory)/float64(data), atMost(1.05, "x"))
	}
	bars := group{title: size(data) + ", in the page cache"}
	for _, one := range all {
		b := bar{label: one.name, ours: one == ours}
		if one.ok() {
			b.value = float64(data) / one.median()
		}
		bars.bars = append(bars.bars, b)
	}
	if !s.quick {
		if err := loadAsIs(s, p, r, name, data); err != nil {
			return err
		}
	}
	r.chart("load", "Speed of loading a file into memory", barChart("Loading into memory", "GB/s", []group{bars}))
	return loadGrowth(s, r, name, data)
}

// loadAsIs measures the same without using memory before each run.
func loadAsIs(s *settings, p *peers, r *report, name string, data int64) error {
	r.heading("With memory as the system has it")
	r.text("The same without using memory before each run, three seconds after the last one. On a virtual machine this " +
		"may measure its host: memory that was free for seconds may have to be given back by it first.")
	later := func(run func() (sample, error)) func(int) (sample, error) {
		return func(int) (sample, error) {
			time.Sleep(3 * time.Second)
			return run()
		}
	}
	few := *s
	few.rounds = max(minRounds, s.rounds/2)
	all := few.measure("load, memory as it is", []contender{
		{name: oursLoad, once: true, run: later(func() (sample, error) { return inChild("load", name) })},
		{name: readFile, once: true, run: later(func() (sample, error) { return inChild("readfile", name) })},
		{name: pythonLoad, once: true, run: later(func() (sample, error) { return p.python.askOnce("load", name) })},
	})
	r.results(fmt.Sprintf("Load %s, memory as it is", size(data)), all, all[0], data)
	return nil
}

// loadGrowth draws the speed over the number of goroutines that read at once.
func loadGrowth(s *settings, r *report, name string, data int64) error {
	f, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	list := f.Header().Tensors()
	memory, err := prepare(int(data))
	if err != nil {
		return err
	}
	defer unmap(memory)
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()

	r.heading("Growth by goroutines")
	r.text("Tensors shared out among that many goroutines, each of which reads its own with ReadAt into memory that is "+
		"prepared, beside as many that call pread. The machine has %d cores.", runtime.NumCPU())
	few := *s
	few.rounds = max(minRounds, s.rounds/2)
	oursLine, rawLine := &line{name: "this library: ReadAt", ours: true}, &line{name: "pread"}
	start := f.Header().DataStart()
	for n := 1; n <= 64; n *= 2 {
		all := few.measure(fmt.Sprintf("load, %d goroutines", n), []contender{
			{name: oursLine.name, once: true, run: timed(func() error {
				return share(n, len(list), func(i int) error {
					t, err := f.Tensor(list[i].Name)
					if err != nil {
						return err
					}
					_, err = t.ReadAt(memory[list[i].Begin:list[i].End], 0)
					return ignoreEOF(err)
				})
			})},
			{name: rawLine.name, once: true, run: timed(func() error {
				return share(n, len(list), func(i int) error {
					_, err := file.ReadAt(memory[list[i].Begin:list[i].End], start+list[i].Begin)
					return ignoreEOF(err)
				})
			})},
		})
		for i, l := range []*line{oursLine, rawLine} {
			if all[i].ok() {
				l.add(float64(n), float64(data)/all[i].median())
			}
		}
	}
	lines := []*line{oursLine, rawLine}
	r.chart("load-goroutines", "Speed of reading by number of goroutines",
		lineChart("Reading by number of goroutines", "goroutines", lines, scale{"GB/s", false, short3}))
	r.lines("goroutines", lines, func(v float64) string { return short3(v) + " GB/s" })
	return nil
}

// share calls work for 0 to n-1 from a number of goroutines, each of which
// takes the next one when it is done.
func share(goroutines, n int, work func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[g] == nil; i = int(next.Add(1)) - 1 {
				errs[g] = work(i)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// warm brings a file into the page cache.
func warm(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 4<<20))
	return err
}

// useMemory uses and frees as many bytes of memory. A virtual machine's host may
// take back memory that is free, and give it again page by page, slowly: before
// each run, so that this is not what is measured.
func useMemory(n int64) error {
	_, err := inChild("touch", strconv.FormatInt(n, 10))
	return err
}

// prepare gives memory outside of Go's heap that is ready: every page is there.
func prepare(n int) ([]byte, error) {
	data, err := mapHuge(n)
	for i := 0; i < len(data); i += 4096 {
		data[i] = 1
	}
	return data, err
}

func init() {
	tasks["touch"] = func(args []string) (time.Duration, error) {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return 0, err
		}
		start := time.Now()
		memory, err := prepare(n)
		if err == nil {
			unmap(memory)
		}
		return time.Since(start), err
	}
	tasks["load"] = func(args []string) (took time.Duration, err error) {
		for range len(args) { // the last one counts
			runtime.GC()
			start := time.Now()
			f, err := safetensors.Open(args[0])
			if err != nil {
				return 0, err
			}
			defer f.Close()
			all, err := f.Load(context.Background())
			if err != nil {
				return 0, err
			}
			took = time.Since(start)
			if err := same(len(all), f.Len()); err != nil {
				return 0, err
			}
		}
		return took, nil
	}
	tasks["preads"] = func(args []string) (time.Duration, error) {
		goroutines, err := strconv.Atoi(args[1])
		if err != nil {
			return 0, err
		}
		f, err := safetensors.Open(args[0])
		if err != nil {
			return 0, err
		}
		defer f.Close()
		file, err := os.Open(args[0])
		if err != nil {
			return 0, err
		}
		defer file.Close()
		offset, size := f.Header().DataStart(), f.Header().DataSize()
		var memory []byte
		if args[2] == "prepared" {
			if memory, err = prepare(int(size)); err != nil {
				return 0, err
			}
			defer unmap(memory)
		}
		start := time.Now()
		switch args[2] {
		case "huge":
			if memory, err = mapHuge(int(size)); err != nil {
				return 0, err
			}
			defer unmap(memory)
		case "fresh":
			memory = make([]byte, size)
		}
		const chunk = 8 << 20
		err = share(goroutines, int((size+chunk-1)/chunk), func(i int) error {
			at := int64(i) * chunk
			_, err := file.ReadAt(memory[at:min(at+chunk, size)], offset+at)
			return ignoreEOF(err)
		})
		took := time.Since(start)
		runtime.KeepAlive(memory)
		return took, err
	}
	tasks["readfile"] = func(args []string) (time.Duration, error) {
		start := time.Now()
		data, err := os.ReadFile(args[0])
		took := time.Since(start)
		runtime.KeepAlive(data)
		return took, err
	}
	tasks["load-nlpodyssey"] = func(args []string) (time.Duration, error) {
		start := time.Now()
		data, err := os.ReadFile(args[0])
		if err != nil {
			return 0, err
		}
		st, err := nlpodyssey.Deserialize(data)
		took := time.Since(start)
		runtime.KeepAlive(st)
		return took, err
	}
	tasks["load-hub"] = func(args []string) (time.Duration, error) {
		h, err := newHubModel(args[1], args[0])
		if err != nil {
			return 0, err
		}
		defer h.close()
		// The first question to the hub is not what is measured.
		if err := h.model.Repo.DownloadInfo(true); err != nil {
			return 0, err
		}
		start := time.Now()
		_, err = h.load()
		return time.Since(start), err
	}
}
