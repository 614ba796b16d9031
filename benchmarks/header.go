package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-safetensors/safetensors"
	nlpodyssey "github.com/nlpodyssey/safetensors"
)

const (
	oursParse      = "this library: Parse"
	oursReadHeader = "this library: ReadHeader"
	rustHeader     = "Rust: read_metadata"
	nlpHeader      = "nlpodyssey: ReadMetadata"
	hubHeader      = "go-huggingface: GetSafetensor"
	jsonHeader     = "encoding/json: map of structs"
)

// jsonInfo is what a program without a library would decode a header into.
type jsonInfo struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// A headerCase is one header to parse. Its entries are made when they are
// needed and then dropped, so that the collector does not scan them meanwhile.
type headerCase struct {
	label   string
	entries func() []entry
	form    form
}

func headerTopic(s *settings, p *peers, r *report) error {
	r.section("Headers", `
Time to read a header that is in memory: every rule checked and every tensor ready to be looked up. The
files are sparse: shapes and offsets are those of real models, the data is a hole that nobody touches.
All but go-huggingface, which has no way in but a file, get the same memory map; ReadHeader reads it through
an io.Reader. The Rust time does not include freeing what was parsed; the Go times include the garbage
collection that runs meanwhile.`)
	denseOf := func(n int) func() []entry {
		return func() []entry { return dense(n, "BF16", 4096, 14336, 128256) }
	}
	loraOf := func(n int) func() []entry { return func() []entry { return lora(n) } }
	moeOf := func(n, experts int, parts []part) func() []entry {
		return func() []entry { return moe(n, experts, parts) }
	}
	cases := []headerCase{
		{"dense model, 300 tensors", denseOf(300), form{}},
		{"LoRA adapter, 448 tensors", loraOf(448), form{}},
		{"mixture of experts, 19,000 tensors", moeOf(19_000, 128, plainParts), form{}},
		{"mixture of experts, 100,000 tensors", moeOf(100_000, 256, plainParts), form{}},
		{"mixture of experts, 4-bit, 700,000 tensors", moeOf(700_000, 1275, int4Parts), form{}},
		{"mixture of experts with scales (FP8), 100,000 tensors", moeOf(100_000, 256, fp8Parts), form{}},
	}
	odd := []headerCase{
		{"pretty-printed, 19,000 tensors", moeOf(19_000, 128, plainParts), form{pretty: true}},
		{"fields in another order, 19,000 tensors", moeOf(19_000, 128, plainParts), form{reorder: true}},
		{"an escape in each name, 19,000 tensors", moeOf(19_000, 128, plainParts), form{escape: true}},
		{"all three, 19,000 tensors", moeOf(19_000, 128, plainParts), form{pretty: true, reorder: true, escape: true}},
		{"entries in another order than the data, 19,000 tensors", moeOf(19_000, 128, plainParts), form{shuffled: true}},
	}
	if s.quick {
		cases, odd = cases[:3], odd[:3]
	}
	for _, c := range cases {
		all, size, err := headerRun(s, p, c, true)
		if err != nil {
			return err
		}
		ours := find(all, oursParse)
		r.results(fmt.Sprintf("%s, %.1f kB header", c.label, float64(size)/1e3), all, ours, 0)
		r.require(c.label+": Rust ÷ ours", ratio(find(all, rustHeader), ours), atLeast(5))
		if find(all, nlpHeader).ok() { // it does not know F8_E4M3
			r.require(c.label+": nlpodyssey ÷ ours", ratio(find(all, nlpHeader), ours), atLeast(20))
		}
		r.require(c.label+": encoding/json ÷ ours", ratio(find(all, jsonHeader), ours), atLeast(10))
		r.requireAllocs(c.label, ours, size)
	}
	r.heading("Odd but legal headers")
	for _, c := range odd {
		all, size, err := headerRun(s, p, c, true)
		if err != nil {
			return err
		}
		ours := find(all, oursParse)
		r.results(fmt.Sprintf("%s, %.1f kB header", c.label, float64(size)/1e3), all, ours, 0)
		r.require(c.label+": Rust ÷ ours", ratio(find(all, rustHeader), ours), atLeast(2))
	}
	return headerGrowth(s, p, r)
}

// headerGrowth draws the time over the number of tensors.
func headerGrowth(s *settings, p *peers, r *report) error {
	r.heading("Growth")
	top := 1_000_000
	if s.quick {
		top = 10_000
	}
	few := *s
	few.rounds = minRounds
	lines := map[string]*line{}
	var order []*line
	for n := 10; n <= top; n *= 10 {
		all, _, err := headerRun(&few, p, headerCase{fmt.Sprintf("growth, %d tensors", n), func() []entry { return short(n) }, form{}}, false)
		if err != nil {
			return err
		}
		for _, one := range all {
			if lines[one.name] == nil {
				lines[one.name] = &line{name: one.name, ours: one.name == oursParse}
				order = append(order, lines[one.name])
			}
			if one.ok() {
				lines[one.name].add(float64(n), one.median())
			}
		}
	}
	r.chart("header", "Time to parse a header by number of tensors",
		lineChart("Time to parse a header", "tensors", order, scale{"time", true, duration}))
	r.lines("tensors", order, duration)
	return nil
}

// headerRun measures all contenders on one header.
func headerRun(s *settings, p *peers, c headerCase, withReader bool) ([]*series, int64, error) {
	entries := c.entries()
	n := len(entries)
	head, data := header(entries, c.form)
	entries = nil
	name := filepath.Join(s.scratch, "header.safetensors")
	defer os.Remove(name)
	if err := writeSparse(name, head, data); err != nil {
		return nil, 0, err
	}
	mapped, err := mapFile(name)
	if err != nil {
		return nil, 0, err
	}
	defer unmap(mapped)
	head = mapped[:len(head)]
	model, err := newHubModel(s.scratch, name)
	if err != nil {
		return nil, 0, err
	}
	defer model.close()

	contenders := []contender{
		{name: oursParse, local: true, run: timed(func() error {
			f, err := safetensors.Parse(mapped)
			if err != nil {
				return err
			}
			return same(f.Len(), n)
		})},
		{name: oursReadHeader, local: true, run: timed(func() error {
			h, err := safetensors.ReadHeader(bytes.NewReader(head))
			if err != nil {
				return err
			}
			if h.DataSize() != data {
				return fmt.Errorf("%d bytes of data where there are %d", h.DataSize(), data)
			}
			return nil
		})},
		{name: rustHeader, run: func(n int) (sample, error) { return p.rust.ask("header", name, n) }},
		{name: nlpHeader, local: true, run: timed(func() error {
			_, m, err := nlpodyssey.ReadMetadata(mapped)
			_ = m
			return err
		})},
		{name: hubHeader, local: true, run: timed(model.header)},
		{name: jsonHeader, local: true, run: timed(func() error {
			m := map[string]jsonInfo{}
			size := binary.LittleEndian.Uint64(mapped)
			if err := json.Unmarshal(mapped[8:8+size], &m); err != nil {
				return err
			}
			return same(len(m), n+1) // and __metadata__
		})},
	}
	if !withReader {
		contenders = append(contenders[:1], contenders[2:]...)
	}
	all := s.measure(c.label, contenders)
	p.rust.stop() // it has the file mapped
	return all, int64(len(head)) - 8, nil
}

func same(got, want int) error {
	if got != want {
		return fmt.Errorf("%d tensors where there are %d", got, want)
	}
	return nil
}
