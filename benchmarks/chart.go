package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Colours that people who do not see all colours can tell apart; ours is always
// the first.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#999933", "#882255"}

// A line is one contender in a line chart.
type line struct {
	name string
	ours bool
	x, y []float64
}

func (l *line) add(x, y float64) { l.x, l.y = append(l.x, x), append(l.y, y) }

// A bar is one contender in a bar chart. A bar without a value is not drawn.
type bar struct {
	label string
	value float64
	ours  bool
}

// A group is the bars of one task.
type group struct {
	title string
	bars  []bar
}

type svg struct{ strings.Builder }

func newSVG(width, height float64, title string) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" `+
		`font-family="system-ui, sans-serif" font-size="12" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(s, "<title>%s</title>\n", html.EscapeString(title))
	fmt.Fprintf(s, `<rect width="%.0f" height="%.0f" fill="#ffffff"/>`+"\n", width, height)
	s.text(16, 24, "start", `font-size="15" font-weight="600"`, title)
	return s
}

func (s *svg) text(x, y float64, anchor, attr, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222" %s>%s</text>`+"\n",
		x, y, anchor, attr, html.EscapeString(text))
}

func (s *svg) rule(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

func (s *svg) done() string {
	s.WriteString("</svg>\n")
	return s.String()
}

// barChart draws a horizontal bar for each contender, group by group, on one
// scale that starts at zero.
func barChart(title, unit string, groups []group) string {
	const width, left, right, row, gap = 820.0, 280.0, 90.0, 22.0, 34.0
	height, top := 48.0, 0.0
	for _, g := range groups {
		height += gap + row*float64(len(g.bars))
		for _, b := range g.bars {
			top = max(top, b.value)
		}
	}
	s := newSVG(width, height, title+" ("+unit+")")
	y := 40.0
	for _, g := range groups {
		s.text(16, y+18, "start", `font-weight="600"`, g.title)
		y += gap - 6
		for _, b := range g.bars {
			s.text(left-8, y+15, "end", "", b.label)
			if b.value > 0 {
				colour := "#9aa5b1"
				if b.ours {
					colour = palette[0]
				}
				w := (width - left - right) * b.value / top
				fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", left, y+3, w, row-6, colour)
				s.text(left+w+6, y+15, "start", "", short3(b.value))
			} else {
				s.text(left+6, y+15, "start", "", "not measured")
			}
			y += row
		}
		y += 6
	}
	return s.done()
}

// A scale says how the y axis of a line chart is drawn.
type scale struct {
	label string
	log   bool // else it starts at zero
	tick  func(float64) string
}

// lineChart draws lines over a logarithmic x axis.
func lineChart(title, xlabel string, lines []*line, y scale) string {
	const width, height, left, right, top, bottom = 820.0, 460.0, 80.0, 230.0, 56.0, 52.0
	xmin, xmax, ymin, ymax := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for i := range l.x {
			xmin, xmax = min(xmin, l.x[i]), max(xmax, l.x[i])
			ymin, ymax = min(ymin, l.y[i]), max(ymax, l.y[i])
		}
	}
	s := newSVG(width, height, title)
	if !(xmin < xmax) || !(ymin <= ymax) {
		s.text(width/2, height/2, "middle", "", "not measured")
		return s.done()
	}
	px := func(v float64) float64 {
		return left + (width-left-right)*math.Log(v/xmin)/math.Log(xmax/xmin)
	}
	py, ticks := y.place(ymin, ymax, top, height-bottom)
	for _, v := range ticks {
		s.rule(left, py(v), width-right, py(v), "#dddddd")
		s.text(left-8, py(v)+4, "end", "", y.tick(v))
	}
	for _, x := range longest(lines) {
		s.rule(px(x), top, px(x), height-bottom, "#eeeeee")
		s.text(px(x), height-bottom+18, "middle", "", thousands(x))
	}
	s.text(left+(width-left-right)/2, height-12, "middle", "", xlabel)
	s.text(16, top-12, "start", "", y.label)

	drawn := slices.DeleteFunc(slices.Clone(lines), func(l *line) bool { return len(l.x) == 0 })
	colours := map[*line]string{}
	for _, l := range drawn {
		colour, stroke := palette[0], 3.0
		if !l.ours {
			colour, stroke = palette[1+len(colours)%(len(palette)-1)], 1.5
			colours[l] = colour
		}
		points := make([]string, len(l.x))
		for i := range l.x {
			points[i] = fmt.Sprintf("%.1f,%.1f", px(l.x[i]), py(l.y[i]))
			fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px(l.x[i]), py(l.y[i]), colour)
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`+"\n",
			strings.Join(points, " "), colour, stroke)
	}
	// Each line is named at its end, from the top down; names move down so that
	// they do not overlap.
	last := func(l *line) float64 { return py(l.y[len(l.y)-1]) }
	slices.SortStableFunc(drawn, func(a, b *line) int { return cmp.Compare(last(a), last(b)) })
	free := 0.0
	for _, l := range drawn {
		colour := palette[0]
		if !l.ours {
			colour = colours[l]
		}
		at := max(last(l), free)
		fmt.Fprintf(s, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", width-right+10, at+4, colour, html.EscapeString(l.name))
		free = at + 15
	}
	return s.done()
}

// place gives where values from low to high go between the pixels top and
// bottom, and the values to mark.
func (y scale) place(low, high, top, bottom float64) (func(float64) float64, []float64) {
	var ticks []float64
	if y.log {
		from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
		to = max(to, from+1)
		for e := from; e <= to; e++ {
			ticks = append(ticks, math.Pow(10, e))
		}
		return func(v float64) float64 { return bottom - (bottom-top)*(math.Log10(v)-from)/(to-from) }, ticks
	}
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for high/step < 4 {
		step /= 2
	}
	to := step * math.Ceil(high/step)
	for v := 0.0; v <= to; v += step {
		ticks = append(ticks, v)
	}
	return func(v float64) float64 { return bottom - (bottom-top)*v/to }, ticks
}

// longest gives the x values of the line that has most.
func longest(lines []*line) []float64 {
	var xs []float64
	for _, l := range lines {
		if len(l.x) > len(xs) {
			xs = l.x
		}
	}
	return xs
}
