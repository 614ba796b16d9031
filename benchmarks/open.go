package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-safetensors/safetensors"
	nlpodyssey "github.com/nlpodyssey/safetensors"
)

const (
	oursOpen     = "this library: Open"
	oursTensor   = "this library: Tensor, Bytes"
	rustTensor   = "Rust: tensor, data"
	openedTensor = "model.norm.weight"
)

func openTopic(s *settings, p *peers, r *report) error {
	r.section("Opening a file and one tensor", `
Open, find one small tensor, touch its first byte, close: on a file of about 60 MB and on a sparse one of about
60 GB whose header has the same tensors. Then the tensor alone, in a file that is open.
Python's get_tensor makes a copy of the tensor; the others give a view.`)
	small, err := openRun(s, p, r, "300 tensors, 60 MB", dense(300, "BF16", 256, 896, 8000))
	if err != nil {
		return err
	}
	large, err := openRun(s, p, r, "300 tensors, 60 GB", dense(300, "BF16", 8192, 27648, 128256))
	if err != nil {
		return err
	}
	r.require("open: 60 GB ÷ 60 MB", ratio(find(large, oursOpen), find(small, oursOpen)), atMost(1.5, "x"))

	var groups []group
	for _, g := range []struct {
		title string
		all   []*series
	}{{"60 MB", small}, {"60 GB, sparse", large}} {
		bars := group{title: g.title}
		for _, one := range g.all {
			if one.ok() && one.name != oursTensor && one.name != rustTensor {
				bars.bars = append(bars.bars, bar{one.name, one.median() / 1e3, one.name == oursOpen})
			}
		}
		groups = append(groups, bars)
	}
	r.chart("open", "Time to open a file and touch one tensor",
		barChart("Open, one tensor, close", "microseconds", groups))
	return nil
}

// openRun measures one file and gives what opening it took.
func openRun(s *settings, p *peers, r *report, label string, entries []entry) ([]*series, error) {
	head, data := header(entries, form{})
	name := filepath.Join(s.scratch, "open.safetensors")
	defer os.Remove(name)
	if err := writeSparse(name, head, data); err != nil {
		return nil, err
	}
	var sink byte
	all := s.measure("open, "+label, []contender{
		{name: oursOpen, local: true, run: timed(func() error {
			f, err := safetensors.Open(name)
			if err != nil {
				return err
			}
			t, err := f.Tensor(openedTensor)
			if err != nil {
				return err
			}
			b, err := t.Bytes()
			if err != nil {
				return err
			}
			sink += b[0]
			return f.Close()
		})},
		{name: "Rust: mmap, deserialize", run: func(n int) (sample, error) {
			return p.rust.ask("open", name, openedTensor, n)
		}},
		{name: "Python: safe_open, get_tensor", run: func(n int) (sample, error) {
			return p.python.ask("open", name, openedTensor, n)
		}},
		{name: "nlpodyssey: Deserialize, of a map", local: true, run: timed(func() error {
			mapped, err := mapFile(name)
			if err != nil {
				return err
			}
			defer unmap(mapped)
			st, err := nlpodyssey.Deserialize(mapped)
			if err != nil {
				return err
			}
			t, ok := st.Tensor(openedTensor)
			if !ok {
				return fmt.Errorf("no tensor %s", openedTensor)
			}
			sink += t.Data()[0]
			return nil
		})},
	})
	r.results(fmt.Sprintf("Open, one tensor, close: %s (%.4g GB)", label, float64(data)/1e9), all, find(all, oursOpen), 0)

	f, err := safetensors.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mapped, err := mapFile(name)
	if err != nil {
		return nil, err
	}
	defer unmap(mapped)
	st, err := nlpodyssey.Deserialize(mapped)
	if err != nil {
		return nil, err
	}
	one := s.measure("tensor, "+label, []contender{
		{name: oursTensor, local: true, run: timed(func() error {
			t, err := f.Tensor(openedTensor)
			if err != nil {
				return err
			}
			b, err := t.Bytes()
			sink += b[0]
			return err
		})},
		{name: rustTensor, run: func(n int) (sample, error) {
			return p.rust.ask("tensor", name, openedTensor, n)
		}},
		{name: "Python: get_tensor", run: func(n int) (sample, error) {
			return p.python.ask("tensor", name, openedTensor, n)
		}},
		{name: "nlpodyssey: Tensor", local: true, run: timed(func() error {
			t, ok := st.Tensor(openedTensor)
			if !ok {
				return fmt.Errorf("no tensor %s", openedTensor)
			}
			sink += t.Data()[0]
			return nil
		})},
	})
	ours := find(one, oursTensor)
	r.results("One tensor of the open file, "+label, one, ours, 0)
	if ours.ok() {
		r.require("tensor of an open file, "+label+": allocations", float64(ours.allocs), atMost(0, ""))
	}
	p.rust.stop()
	p.python.stop()
	return all, nil
}
