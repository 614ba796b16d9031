package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// A progress draws a line on a terminal while something takes its time. A nil
// one does nothing.
type progress struct {
	w     io.Writer
	width func() int
	what  string
	now   func() time.Time

	mu      sync.Mutex
	total   int64
	done    int64
	started time.Time
	drawn   time.Time // when last, zero for never
	long    int       // columns of what stands there
}

// newProgress returns nil unless standard error is a terminal.
func newProgress(e *env, what string, total int64) *progress {
	f, ok := e.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	width := func() int {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
		return 80
	}
	return &progress{w: f, width: width, what: what, total: total, now: time.Now, started: time.Now()}
}

// add counts bytes that are done.
func (p *progress) add(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.draw()
}

// set takes both numbers, as the library reports them.
func (p *progress) set(done, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
	p.draw()
}

// draw draws now and then. What is done soon is not worth a flicker.
func (p *progress) draw() {
	const patience, every = 400 * time.Millisecond, 100 * time.Millisecond
	now := p.now()
	if now.Sub(p.started) < patience || now.Sub(p.drawn) < every {
		return
	}
	p.drawn = now
	line := p.line(now)
	// A line that fills the last column may wrap.
	if most := p.width() - 1; len(line) > most {
		line = line[:max(most, 0)]
	}
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(p.long-len(line), 0)))
	p.long = len(line)
}

func (p *progress) line(now time.Time) string {
	const cells = 24
	part := 1.0
	if p.total > 0 {
		part = min(float64(p.done)/float64(p.total), 1)
	}
	full := int(part * cells)
	line := fmt.Sprintf("%s [%s%s] %3.0f%%  %s of %s", p.what,
		strings.Repeat("#", full), strings.Repeat(".", cells-full), 100*part, size(p.done), size(p.total))
	if took := now.Sub(p.started).Seconds(); took > 0 && p.done > 0 {
		rate := float64(p.done) / took
		left := time.Duration(float64(max(p.total-p.done, 0)) / rate * float64(time.Second))
		line += fmt.Sprintf("  %s/s  %s left", size(int64(rate)), left.Round(time.Second))
	}
	return line
}

// end wipes the line out.
func (p *progress) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.long > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.long))
		p.long = 0
	}
}
