package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-safetensors/safetensors"
	nlpodyssey "github.com/nlpodyssey/safetensors"
)

func saveTopic(s *settings, p *peers, r *report) error {
	total := int64(2) << 30
	if s.quick {
		total = 128 << 20
	}
	for free() > 0 && total > 64<<20 && free() < total*4 {
		total /= 2
	}
	head, data := header(modelOf(total), form{})
	from := filepath.Join(s.scratch, "save-from.safetensors")
	to := filepath.Join(s.scratch, "save-to.safetensors")
	defer os.Remove(from)
	defer os.Remove(to)
	if err := writeFull(from, head, data); err != nil {
		return err
	}
	if err := warm(from); err != nil {
		return err
	}
	r.section("Saving", fmt.Sprintf(`
%s of half-precision tensors that are in memory, to a new file. With sync, the file and its folder are on the disk
when the clock stops, as Save does it: a temporary file, synced, renamed, the folder synced; the plain write does the
same steps, and the peers, which do not sync by themselves, get both syncs afterwards. Without sync the bytes are in the
page cache; there this library is Write to an *os.File. Before each run the disk is given time to settle, and memory is
used, as for loading.`, size(data)))

	fresh := func(run func() (sample, error)) func(int) (sample, error) {
		return func(int) (sample, error) {
			if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
				return sample{}, err
			}
			settle()
			if err := useMemory(data * 5 / 2); err != nil { // the tensors, the file in the page cache, and some
				return sample{}, err
			}
			return run()
		}
	}
	inTask := func(name string, args ...string) func(int) (sample, error) {
		return fresh(func() (sample, error) { return inChild(name, args...) })
	}
	var groups []group
	for _, mode := range []string{"sync", "no sync"} {
		oursName := "this library: Save"
		if mode != "sync" {
			oursName = "this library: Write"
		}
		all := s.measure("save, "+mode, []contender{
			{name: oursName, once: true, run: inTask("save", from, to, mode)},
			{name: "plain write", once: true, run: inTask("write", from, to, mode)},
			{name: "Rust: serialize_to_file", once: true, run: fresh(func() (sample, error) {
				return p.rust.ask("save", from, to, mode)
			})},
			{name: "Python: save_file, numpy", once: true, run: fresh(func() (sample, error) {
				return p.python.ask("save", from, to, mode)
			})},
			{name: "nlpodyssey: SerializeToWriter", once: true, run: inTask("save-nlpodyssey", from, to, mode)},
		})
		p.rust.stop()
		p.python.stop()
		groups = append(groups, saveResults(r, "save", mode, all, data))
		r.require("save, "+mode+": speed ÷ that of a plain write", ratio(all[1], all[0]), atLeast(0.95))
		r.require("save, "+mode+": Rust ÷ ours", ratio(all[2], all[0]), atLeast(1))
	}
	r.heading("From file to file")
	r.text("All tensors of a file, which is in the page cache, saved to another one, beside reading the file into memory and " +
		"writing it. How the bytes go from one to the other is the file system's choice: some can share them.")
	for _, mode := range []string{"sync", "no sync"} {
		all := s.measure("copy, "+mode, []contender{
			{name: "this library: Save of an open file's tensors", once: true, run: inTask("copy", from, to, mode)},
			{name: "os.ReadFile, then write", once: true, run: inTask("read-write", from, to, mode)},
			{name: "Rust: mmap, serialize_to_file", once: true, run: fresh(func() (sample, error) {
				return p.rust.ask("copy", from, to, mode)
			})},
		})
		p.rust.stop()
		groups = append(groups, saveResults(r, "copy", mode, all, data))
		r.require("copy from file to file, "+mode+": read-then-write ÷ ours", ratio(all[1], all[0]), atLeast(1.5))
	}
	r.chart("save", "Speed of saving", barChart("Saving", "GB/s", groups))
	return nil
}

// saveResults writes a table and gives the bars of it.
func saveResults(r *report, what, mode string, all []*series, data int64) group {
	title := map[string]string{"save": "Save from memory, ", "copy": "File to file, "}[what] + mode
	r.results(title, all, all[0], data)
	bars := group{title: title}
	for i, one := range all {
		b := bar{label: one.name, ours: i == 0}
		if one.ok() {
			b.value = float64(data) / one.median()
		}
		bars.bars = append(bars.bars, b)
	}
	return bars
}

// create opens the file that fill writes, in place or, with sync, as a
// temporary file that is synced and renamed.
func create(name, mode string, fill func(*os.File) error) error {
	temp := name
	if mode == "sync" {
		temp = name + ".tmp"
	}
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := fill(f); err != nil || mode != "sync" {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close(), os.Rename(temp, name)); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// inMemory gives a file's bytes and its tensors over them.
func inMemory(name string) ([]byte, map[string]safetensors.Tensor, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	f, err := safetensors.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	all := map[string]safetensors.Tensor{}
	start := f.Header().DataStart()
	for _, t := range f.Header().Tensors() {
		all[t.Name] = safetensors.New(t.DType, t.Shape, data[start+t.Begin:start+t.End])
	}
	return data, all, nil
}

func save(name, mode string, tensors map[string]safetensors.Tensor) error {
	if mode == "sync" {
		return safetensors.Save(name, tensors)
	}
	return create(name, mode, func(f *os.File) error {
		_, err := safetensors.Write(f, tensors)
		return err
	})
}

func init() {
	tasks["save"] = func(args []string) (time.Duration, error) {
		_, tensors, err := inMemory(args[0])
		if err != nil {
			return 0, err
		}
		start := time.Now()
		err = save(args[1], args[2], tensors)
		return time.Since(start), err
	}
	tasks["copy"] = func(args []string) (time.Duration, error) {
		start := time.Now()
		f, err := safetensors.Open(args[0])
		if err != nil {
			return 0, err
		}
		defer f.Close()
		all := map[string]safetensors.Tensor{}
		for name, t := range f.All() {
			all[name] = t
		}
		err = save(args[1], args[2], all)
		return time.Since(start), err
	}
	tasks["write"] = func(args []string) (time.Duration, error) {
		data, _, err := inMemory(args[0])
		if err != nil {
			return 0, err
		}
		start := time.Now()
		err = create(args[1], args[2], func(f *os.File) error {
			_, err := f.Write(data)
			return err
		})
		return time.Since(start), err
	}
	tasks["read-write"] = func(args []string) (time.Duration, error) {
		start := time.Now()
		data, err := os.ReadFile(args[0])
		if err != nil {
			return 0, err
		}
		err = create(args[1], args[2], func(f *os.File) error {
			_, err := f.Write(data)
			return err
		})
		return time.Since(start), err
	}
	tasks["save-nlpodyssey"] = func(args []string) (time.Duration, error) {
		data, err := os.ReadFile(args[0])
		if err != nil {
			return 0, err
		}
		st, err := nlpodyssey.Deserialize(data)
		if err != nil {
			return 0, err
		}
		views := map[string]nlpodyssey.TensorView{}
		for _, t := range st.Tensors() {
			views[t.Name] = t.TensorView
		}
		start := time.Now()
		err = create(args[1], args[2], func(f *os.File) error {
			return nlpodyssey.SerializeToWriter(views, nil, f)
		})
		return time.Since(start), err
	}
}
