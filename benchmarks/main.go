// Command benchmarks measures the library beside its peers and writes
// docs/benchmarks.md. README.md says what it measures and how.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ours begins the name of each contender that is this library.
const ours = "this library"

var topics = []struct {
	name string
	run  func(*settings, *peers, *report) error
}{
	{"header", headerTopic},
	{"open", openTopic},
	{"load", loadTopic},
	{"save", saveTopic},
	{"convert", convertTopic},
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == childFlag {
		os.Exit(child(os.Args[2], os.Args[3:]))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

func run() error {
	var names []string
	for _, t := range topics {
		names = append(names, t.name)
	}
	chosen := flag.String("topics", strings.Join(names, ","), "what to measure")
	quick := flag.Bool("quick", false, "small inputs and few rounds, to see that everything works")
	rounds := flag.Int("rounds", 0, "how often each contender runs (default 9, or 3 with -quick)")
	out := flag.String("o", filepath.Join("..", "docs"), "folder for benchmarks.md and its pictures")
	scratch := flag.String("scratch", filepath.Join(os.TempDir(), "safetensors-benchmarks"),
		"folder for peers, which are kept, and inputs, which are not; at least 15 GB free")
	torch := flag.Bool("torch", false, "install and measure torch as well (several GB)")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	}

	s := &settings{quick: *quick, rounds: 9, batch: 50 * time.Millisecond, budget: 20 * time.Second}
	if *quick {
		s.rounds, s.batch, s.budget = minRounds, 5*time.Millisecond, time.Second
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	for _, name := range strings.Split(*chosen, ",") {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown topic %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	dir, err := filepath.Abs(*scratch)
	if err != nil {
		return err
	}
	p, err := build(dir, *torch)
	if err != nil {
		return err
	}
	if s.scratch, err = os.MkdirTemp(dir, "inputs-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.scratch)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.RemoveAll(s.scratch) // the inputs may be gigabytes
		os.Exit(1)
	}()
	s.threads = runtime.GOMAXPROCS(0)

	r := &report{charts: map[string]string{}}
	for _, t := range topics {
		if !slices.Contains(strings.Split(*chosen, ","), t.name) {
			continue
		}
		if err := t.run(s, p, r); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		p.rust.stop()
		p.python.stop()
		// After each topic, so that a failure later on loses nothing.
		if err := r.write(*out, describe(dir), p, s); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr, "wrote", filepath.Join(*out, "benchmarks.md"))
	if r.failed {
		return fmt.Errorf("a run of this library failed, see the report")
	}
	return nil
}
