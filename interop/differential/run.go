package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

// A config says what to run.
type config struct {
	cases     int
	seed      uint64
	workers   int
	corpus    []draft
	reference string // path of the binary
}

// A report is what came of a run.
type report struct {
	tried   int
	found   int
	excused map[string]int    // by reason
	kinds   map[[3]string]int // by the reference's word, compat's and strict's
	classes map[string]*example
}

// An example stands for all the disagreements of one class.
type example struct {
	finding
	file  []byte
	count int
}

// batch is how many files go to the reference at a time. A batch is the unit of the seed as well,
// so that the cases do not depend on the number of workers.
const batch = 512

// run compares cfg.cases files.
func run(cfg config) (*report, error) {
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		total = newReport()
	)
	for range cfg.workers {
		wg.Go(func() {
			part := newReport()
			err := work(cfg, &next, part)
			mu.Lock()
			defer mu.Unlock()
			first = cmp.Or(first, err)
			total.add(part)
		})
	}
	wg.Wait()
	return total, first
}

func work(cfg config, next *atomic.Int64, part *report) error {
	ref, err := reference.Start(cfg.reference, "check")
	if err != nil {
		return err
	}
	for {
		number := int(next.Add(1) - 1)
		size := min(batch, cfg.cases-number*batch)
		if size <= 0 {
			return ref.Close()
		}
		g := generator{rand.New(rand.NewPCG(cfg.seed, uint64(number))), cfg.corpus}
		files := make([][]byte, size)
		for i := range files {
			files[i] = g.next()
		}
		verdicts, err := ref.CheckAll(files)
		if err != nil {
			return err
		}
		for i, file := range files {
			if err := part.record(file, verdicts[i], ref.Check); err != nil {
				return err
			}
		}
	}
}

func newReport() *report {
	return &report{excused: map[string]int{}, kinds: map[[3]string]int{}, classes: map[string]*example{}}
}

func (rep *report) record(file []byte, v reference.Verdict, check checker) error {
	res := judge(file, v)
	rep.tried++
	rep.kinds[[3]string{word(v.Refusal), word(string(res.compat)), word(string(res.strict))}]++
	if res.excused != nil {
		rep.excused[strings.Join(res.excused, " and ")]++
	}
	if res.found == nil {
		return nil
	}
	rep.found++
	if e := rep.classes[res.found.class]; e != nil {
		e.count++
		return nil
	}
	small, found, err := shrink(file, *res.found, check)
	rep.classes[res.found.class] = &example{found, small, 1}
	return err
}

func word(s string) string { return cmp.Or(s, "accepted") }

func (rep *report) add(part *report) {
	rep.tried += part.tried
	rep.found += part.found
	for k, n := range part.excused {
		rep.excused[k] += n
	}
	for k, n := range part.kinds {
		rep.kinds[k] += n
	}
	for class, e := range part.classes {
		old := rep.classes[class]
		if old == nil {
			rep.classes[class] = e
			continue
		}
		count := old.count + e.count
		if len(e.file) < len(old.file) {
			*old = *e
		}
		old.count = count
	}
}

// sum adds up the cases by one of the three words.
func (rep *report) sum(by int) map[string]int {
	out := map[string]int{}
	for k, n := range rep.kinds {
		out[k[by]] += n
	}
	return out
}

// print writes the whole report; the last line says what passed and what failed.
func (rep *report) print(w io.Writer) {
	for i, who := range []string{"reference", "compat", "strict"} {
		counts := rep.sum(i)
		fmt.Fprintf(w, "%s: %d tried, %d accepted, %d refused\n", who, rep.tried, counts["accepted"], rep.tried-counts["accepted"])
		delete(counts, "accepted")
		for _, k := range byCount(counts) {
			fmt.Fprintf(w, "  %9d %s\n", counts[k], k)
		}
	}
	fmt.Fprintln(w, "excused, where the reference takes something by accident:")
	for _, k := range byCount(rep.excused) {
		fmt.Fprintf(w, "  %9d %s\n", rep.excused[k], k)
	}
	for _, class := range slices.Sorted(maps.Keys(rep.classes)) {
		e := rep.classes[class]
		fmt.Fprintf(w, "\nDISAGREEMENT, %d times: %s\n", e.count, class)
		fmt.Fprintf(w, "  text       %q\n  hex        %x\n", e.file, e.file)
		fmt.Fprintf(w, "  reference  %s\n  compat     %s\n  strict     %s\n", describeVerdict(e.verdict), e.library.compat, e.library.strict)
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", rep.tried-rep.found, rep.found)
}

func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
