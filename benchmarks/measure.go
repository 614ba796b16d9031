package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// A contender is one way to do a task.
type contender struct {
	name string
	// run does the task n times and says how long that took. Whoever does the
	// work holds the clock: this process, a child of it, or a peer.
	run func(n int) (sample, error)
	// local says that run works in this process, so that its allocations can be
	// counted.
	local bool
	// once says that a sample is one run, because the task is long or leaves
	// something behind.
	once bool
}

// A sample is what one run took.
type sample struct {
	elapsed time.Duration
	memory  int64 // the most memory resident, in bytes; 0 if not measured
}

// A series is what a contender's runs took.
type series struct {
	name   string
	perOp  []float64 // nanoseconds, one a round
	memory int64     // the most of all rounds
	allocs uint64    // of one run; with counted only
	bytes  uint64
	local  bool
	err    error
}

func (s *series) median() float64 {
	sorted := slices.Sorted(slices.Values(s.perOp))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (s *series) min() float64 { return slices.Min(s.perOp) }
func (s *series) max() float64 { return slices.Max(s.perOp) }
func (s *series) ok() bool     { return s != nil && s.err == nil && len(s.perOp) > 0 }

// A settings says how long to measure.
type settings struct {
	quick   bool
	rounds  int
	batch   time.Duration // a sample of a short task repeats it for this long
	budget  time.Duration // a contender that took this long rests after minRounds
	scratch string
	threads int
}

const minRounds = 3

// measure runs the contenders in turn, so that a machine that gets slower or
// faster meanwhile does so for all alike. Each round begins with another one,
// so that none always follows the same. A contender that fails is kept with its
// error.
func (s *settings) measure(what string, contenders []contender) []*series {
	all := make([]*series, len(contenders))
	counts := make([]int, len(contenders))
	spent := make([]time.Duration, len(contenders))
	for i, c := range contenders {
		all[i] = &series{name: c.name, local: c.local}
		counts[i], all[i].err = s.calibrate(c)
		if c.local && all[i].err == nil {
			all[i].allocs, all[i].bytes, all[i].err = count(c)
		}
	}
	for round := range s.rounds {
		for turn := range contenders {
			i := (turn + round) % len(contenders)
			c, r := contenders[i], all[i]
			if r.err != nil || round >= minRounds && spent[i] > s.budget {
				continue
			}
			runtime.GC()
			got, err := c.run(counts[i])
			if err != nil {
				r.err = err
				continue
			}
			spent[i] += got.elapsed
			r.perOp = append(r.perOp, float64(got.elapsed)/float64(counts[i]))
			r.memory = max(r.memory, got.memory)
		}
	}
	fmt.Fprintln(os.Stderr, what)
	for _, r := range all {
		if r.err != nil {
			fmt.Fprintf(os.Stderr, "  %-45s %v\n", r.name, r.err)
		} else {
			fmt.Fprintf(os.Stderr, "  %-45s %s\n", r.name, duration(r.median()))
		}
	}
	return all
}

// calibrate finds how often to repeat a task so that a sample takes s.batch. It
// warms the contender up as well.
func (s *settings) calibrate(c contender) (int, error) {
	if c.once {
		return 1, nil
	}
	n := 1
	for {
		got, err := c.run(n)
		if err != nil {
			return 0, err
		}
		if got.elapsed >= s.batch || n >= 1<<24 {
			return n, nil
		}
		n = int(min(float64(n)*100, float64(n)*1.2*float64(s.batch)/float64(max(got.elapsed, 1)))) + 1
	}
}

// count measures the allocations of one run, the least of three where it is
// short, because other goroutines of the runtime allocate too now and then.
func count(c contender) (allocs, bytes uint64, err error) {
	allocs, bytes = math.MaxUint64, math.MaxUint64
	start := time.Now()
	for i := 0; i < 3 && time.Since(start) < time.Second; i++ {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := c.run(1); err != nil {
			return 0, 0, err
		}
		runtime.ReadMemStats(&after)
		allocs = min(allocs, after.Mallocs-before.Mallocs)
		bytes = min(bytes, after.TotalAlloc-before.TotalAlloc)
	}
	return allocs, bytes, nil
}

// timed makes a run of a task in this process.
func timed(task func() error) func(int) (sample, error) {
	return func(n int) (sample, error) {
		start := time.Now()
		for range n {
			if err := task(); err != nil {
				return sample{}, err
			}
		}
		return sample{elapsed: time.Since(start)}, nil
	}
}

var errMissing = errors.New("not available, see above")

// find gives the series of that name, nil if there is none.
func find(all []*series, name string) *series {
	i := slices.IndexFunc(all, func(s *series) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return all[i]
}
