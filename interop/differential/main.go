// Command differential compares the library's verdicts with the reference's, the safetensors crate,
// on files made from a seed: good ones and ones changed a little, from a corpus and of its own.
//
//	go run ./interop/differential -n 1000000 -seed 7
//
// It prints each class of disagreement with the smallest file found for it and ends with code 1 if
// there is one. Three accidents of the reference are excused, and counted; interop/README.md lists
// them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

func command(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("differential", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var cfg config
	flags.IntVar(&cfg.cases, "n", 1_000_000, "how many files to try")
	flags.Uint64Var(&cfg.seed, "seed", 1, "which files")
	flags.IntVar(&cfg.workers, "workers", runtime.GOMAXPROCS(0), "how many run at once, each with a reference of its own")
	flags.StringVar(&cfg.reference, "reference", "", "the reference's binary; without it, the one of "+reference.Env+" or the one that cargo builds here")
	corpus := flags.String("corpus", "testdata", "folder of files to start from besides generated ones; empty for none")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 || cfg.cases < 1 || cfg.workers < 1 {
		fmt.Fprintln(stderr, "differential: takes no arguments; -n and -workers are at least 1")
		return 2
	}
	rep, err := prepareAndRun(cfg, *corpus, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "differential:", err)
		return 1
	}
	rep.print(stdout)
	if rep.found > 0 {
		return 1
	}
	return 0
}

func prepareAndRun(cfg config, corpus string, stdout io.Writer) (*report, error) {
	var err error
	if corpus != "" {
		if cfg.corpus, err = readCorpus(corpus); err != nil {
			return nil, err
		}
		if len(cfg.corpus) == 0 {
			return nil, fmt.Errorf("no usable .safetensors file in %s", corpus)
		}
	}
	if cfg.reference == "" {
		if cfg.reference, err = reference.FindOrBuild(); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	rep, err := run(cfg)
	fmt.Fprintf(stdout, "seed %d, %d corpus files, %d workers, %.1fs\n", cfg.seed, len(cfg.corpus), cfg.workers, time.Since(start).Seconds())
	return rep, err
}
