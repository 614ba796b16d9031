package main

import (
	"bytes"
	"fmt"

	"github.com/go-safetensors/safetensors"
)

// sliceTopic measures columns of a matrix.
func sliceTopic(s *settings, p *peers, r *report) error {
	rows, cols := 8192, 8192
	if s.quick {
		rows, cols = 2048, 2048
	}
	r.section("Slices", fmt.Sprintf(`
Columns of a %d by %d matrix of F32 in memory, as one of several processes takes its share: Slice and ReadAt into
memory that is in use already, beside a loop that copies row by row and beside numpy's copyto.`, rows, cols))
	matrix := safetensors.New(safetensors.F32, []int{rows, cols}, weights(rows*cols))
	data, err := matrix.Bytes()
	if err != nil {
		return err
	}
	var groups []group
	for _, width := range []int{cols / 4, 64} {
		start, stop := cols/4, cols/4+width
		out := bytes.Repeat([]byte{1}, 4*rows*width)
		byHand := bytes.Repeat([]byte{2}, 4*rows*width)
		label := fmt.Sprintf("%d of %d columns", width, cols)
		all := s.measure("slice, "+label, []contender{
			{name: "this library: Slice, ReadAt", local: true, run: timed(func() error {
				t, err := matrix.Slice(safetensors.Range{Stop: safetensors.End}, safetensors.Range{Start: start, Stop: stop})
				if err != nil {
					return err
				}
				_, err = t.ReadAt(out, 0)
				return ignoreEOF(err)
			})},
			{name: "hand-written loop of copies", local: true, run: timed(func() error {
				for row := range rows {
					copy(byHand[4*row*width:4*(row+1)*width], data[4*(row*cols+start):])
				}
				return nil
			})},
			{name: "numpy: copyto", run: func(n int) (sample, error) {
				return p.python.ask("slice", rows, cols, start, stop, n)
			}},
		})
		if !bytes.Equal(out, byHand) && all[0].ok() {
			return fmt.Errorf("slice, %s: not the bytes that a loop of copies gives", label)
		}
		r.results(label, all, all[0], int64(len(out)))
		r.require("slice, "+label+": speed ÷ that of a loop of copies", ratio(all[1], all[0]), atLeast(0.8))
		bars := group{title: label}
		for i, one := range all {
			b := bar{label: one.name, ours: i == 0}
			if one.ok() {
				b.value = float64(len(out)) / one.median()
			}
			bars.bars = append(bars.bars, b)
		}
		groups = append(groups, bars)
	}
	r.chart("slice", "Speed of taking columns", barChart("Columns of a matrix", "GB/s", groups))
	return nil
}
