package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A report collects what is measured, as Markdown, and the pictures beside it.
type report struct {
	body   strings.Builder
	checks []check
	charts map[string]string
	failed bool // one of our own runs failed
}

// A bound is what a figure must be.
type bound struct {
	limit float64
	least bool
	unit  string
}

func atLeast(x float64) bound             { return bound{x, true, "x"} }
func atMost(x float64, unit string) bound { return bound{x, false, unit} }

func (b bound) met(got float64) bool {
	if b.least {
		return got >= b.limit
	}
	return got <= b.limit
}

func (b bound) String() string {
	sign := "≤"
	if b.least {
		sign = "≥"
	}
	return fmt.Sprintf("%s %g%s", sign, b.limit, b.unit)
}

// A check is a requirement beside what was measured; got is NaN where nothing
// was.
type check struct {
	what  string
	got   float64
	bound bound
}

func (c check) verdict() string {
	switch {
	case math.IsNaN(c.got):
		return "not measured"
	case c.bound.met(c.got):
		return "yes"
	}
	return "**no**"
}

func (r *report) section(title, text string) {
	fmt.Fprintf(&r.body, "\n## %s\n\n%s\n", title, strings.TrimSpace(text))
}

func (r *report) heading(title string) { fmt.Fprintf(&r.body, "\n### %s\n", title) }

func (r *report) text(format string, args ...any) {
	fmt.Fprintf(&r.body, "\n"+format+"\n", args...)
}

func (r *report) require(what string, got float64, b bound) {
	r.checks = append(r.checks, check{what, got, b})
}

func (r *report) requireAllocs(what string, s *series, header int64) {
	allocs, bytes := math.NaN(), math.NaN()
	if s.ok() {
		allocs, bytes = float64(s.allocs), float64(s.bytes)/float64(header)
	}
	r.require(what+": allocations", allocs, atMost(12, ""))
	r.require(what+": bytes allocated ÷ header", bytes, atMost(3, "x"))
}

// ratio is how many times as long a took as b.
func ratio(a, b *series) float64 {
	if !a.ok() || !b.ok() {
		return math.NaN()
	}
	return a.median() / b.median()
}

// results writes the table of a task. base is what the others are compared to.
// A run that moves bytes, moved of them, has columns for speed and memory.
func (r *report) results(title string, all []*series, base *series, moved int64) {
	memory := moved > 0 && slices.ContainsFunc(all, func(s *series) bool { return s.memory > 0 })
	local := slices.ContainsFunc(all, func(s *series) bool { return s.local })
	head := []string{"", "median", "min … max", "time ÷ ours"}
	if moved > 0 {
		head = append(head, "GB/s")
	}
	if local {
		head = append(head, "allocations", "bytes allocated")
	}
	if memory {
		head = append(head, "peak memory")
	}
	fmt.Fprintf(&r.body, "\n**%s**\n\n", title)
	var rows [][]string
	for _, s := range all {
		if !s.ok() {
			row := make([]string, len(head))
			row[0], row[1] = s.name, "failed"
			if s.err == errMissing {
				row[1] = "missing"
			}
			rows = append(rows, row)
			continue
		}
		row := []string{s.name, duration(s.median()), duration(s.min()) + " … " + duration(s.max()), short3(ratio(s, base))}
		if moved > 0 {
			row = append(row, short3(float64(moved)/s.median()))
		}
		if local {
			row = append(row, only(s.local, thousands(float64(s.allocs))), only(s.local, size(int64(s.bytes))))
		}
		if memory {
			row = append(row, only(s.memory > 0, size(s.memory)))
		}
		rows = append(rows, row)
	}
	r.table(head, rows)
	for _, s := range all {
		if s.err != nil && s.err != errMissing {
			fmt.Fprintf(&r.body, "\n%s failed: %v\n", s.name, s.err)
			r.failed = r.failed || strings.HasPrefix(s.name, ours)
		}
	}
}

// lines writes what a line chart shows as a table.
func (r *report) lines(xlabel string, lines []*line, write func(float64) string) {
	head := []string{xlabel}
	for _, l := range lines {
		head = append(head, l.name)
	}
	var rows [][]string
	for _, x := range longest(lines) {
		row := []string{thousands(x)}
		for _, l := range lines {
			cell := ""
			for i := range l.x {
				if l.x[i] == x {
					cell = write(l.y[i])
				}
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	r.body.WriteByte('\n')
	r.table(head, rows)
}

func (r *report) table(head []string, rows [][]string) {
	fmt.Fprintf(&r.body, "| %s |\n|---%s\n", strings.Join(head, " | "), strings.Repeat("|--:", len(head)-1)+"|")
	for _, row := range rows {
		fmt.Fprintf(&r.body, "| %s |\n", strings.Join(row, " | "))
	}
}

// chart adds a picture, which is written to benchmark-NAME.svg.
func (r *report) chart(name, alt, picture string) {
	file := "benchmark-" + name + ".svg"
	r.charts[file] = picture
	fmt.Fprintf(&r.body, "\n![%s](%s)\n", alt, file)
}

// write puts the report and its pictures into dir.
func (r *report) write(dir string, m machine, p *peers, s *settings) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n" +
		"Made by `go -C benchmarks run .`, which builds the peers with their own package managers, makes its\n" +
		"inputs and runs all contenders in turn, round by round, so that a machine that gets slower or faster\n" +
		"meanwhile does so for all alike. Each figure is the median of the rounds, with the least and the most beside\n" +
		"it; ratios are of medians. Peers measure themselves, so that starting a process does not count. What is\n" +
		"measured, and how to run it, is in [benchmarks/README.md](../benchmarks/README.md).\n\n")
	if s.quick {
		b.WriteString("**This is a quick run on small inputs, to see that everything works. Its figures say little.**\n\n")
	}
	fmt.Fprintf(&b, "Machine: %s. Measured on %s, up to %d rounds.\n\n", m, time.Now().UTC().Format(time.DateOnly), s.rounds)
	for _, v := range append(goVersions(), p.versions...) {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	for _, v := range p.missing {
		fmt.Fprintf(&b, "- Missing: %s\n", v)
	}
	if len(r.checks) > 0 {
		b.WriteString("\n## Requirements\n\nWhat the library promises itself, and where it falls short of it.\n\n")
		inner := &report{}
		var rows [][]string
		for _, c := range r.checks {
			got := ""
			if !math.IsNaN(c.got) {
				got = short3(c.got) + c.bound.unit
			}
			rows = append(rows, []string{c.what, c.bound.String(), got, c.verdict()})
		}
		inner.table([]string{"", "required", "measured", "met"}, rows)
		b.WriteString(inner.body.String())
	}
	b.WriteString(r.body.String())
	for file, picture := range r.charts {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(picture), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(b.String()), 0o644)
}

func only(show bool, text string) string {
	if show {
		return text
	}
	return ""
}

// duration writes nanoseconds with three digits and a unit.
func duration(ns float64) string {
	for _, u := range []struct {
		name string
		ns   float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if ns >= u.ns {
			return short3(ns/u.ns) + " " + u.name
		}
	}
	return short3(ns) + " ns"
}

// size writes a number of bytes.
func size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if float64(n) >= u.bytes {
			return short3(float64(n)/u.bytes) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}

// short3 writes a number with three digits, or as an integer if it has more.
func short3(x float64) string {
	switch {
	case math.IsNaN(x):
		return ""
	case x >= 100:
		return thousands(math.Round(x))
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case x >= 1:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// thousands writes an integer with commas; smaller numbers as they are.
func thousands(x float64) string {
	if x < 1000 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	text := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
