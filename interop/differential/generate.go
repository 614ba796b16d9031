package main

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A generator makes files from a seed: good ones of its own or from a corpus, then changed a little.
type generator struct {
	r      *rand.Rand
	corpus []draft
}

// A draft is a file in its parts. The length prefix is the header's, until a last step spoils it.
type draft struct {
	header string
	data   []byte
}

func (d draft) file() []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(d.header)))
	return append(append(out, d.header...), d.data...)
}

// split cuts a file by its prefix; false where the prefix does not fit.
func split(file []byte) (draft, bool) {
	if len(file) < 8 {
		return draft{}, false
	}
	n, rest := binary.LittleEndian.Uint64(file), file[8:]
	if n > uint64(len(rest)) {
		return draft{}, false
	}
	return draft{string(rest[:n]), rest[n:]}, true
}

// readCorpus takes the case files whose prefix fits; the broken prefixes are made here again.
func readCorpus(folder string) ([]draft, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil {
		return nil, err
	}
	var out []draft
	for _, path := range paths {
		file, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if d, ok := split(file); ok && len(d.header) > 0 {
			out = append(out, d)
		}
	}
	return out, nil
}

// next makes one file.
func (g *generator) next() []byte {
	r := g.r
	var d draft
	if len(g.corpus) > 0 && chance(r, 3) {
		d = pick(r, g.corpus)
		if len(d.header) > 4096 && !chance(r, 20) {
			d = g.fresh() // the few long ones would take most of the time
		}
	} else {
		d = g.fresh()
	}
	if root := parseTree(d.header); root != nil {
		for range []int{0, 1, 1, 1, 1, 2, 2, 3}[r.IntN(8)] {
			pickChange(r, treeChanges)(r, root)
		}
		d.header = g.style(root)
	}
	for range []int{0, 0, 0, 0, 0, 1, 1, 2}[r.IntN(8)] {
		d.header = pickChange(r, textChanges)(r, d.header)
	}
	if chance(r, 16) {
		return spoilFrame(r, d)
	}
	return d.file()
}

// style renders compactly, or with white space between tokens, or with strings escaped anew.
func (g *generator) style(root *node) string {
	r := g.r
	s := root.render()
	if chance(r, 8) {
		ts := tokens(s)
		for i, t := range ts {
			if t[0] == '"' {
				ts[i] = reescape(r, t)
			}
		}
		s = strings.Join(ts, "")
	}
	if chance(r, 8) {
		var b strings.Builder
		for _, t := range tokens(s) {
			b.WriteString(t)
			if chance(r, 3) {
				b.WriteString(pick(r, space))
			}
		}
		s = b.String()
	}
	if chance(r, 4) {
		s += strings.Repeat(" ", 7-(len(s)+7)%8)
	}
	return s
}

// fresh makes a good file, or once in a while one whose only fault is that its enormous data is not
// there.
func (g *generator) fresh() draft {
	r := g.r
	count := []int{0, 1, 1, 2, 2, 3, 4, 7}[r.IntN(8)]
	if chance(r, 40) {
		count = 20 + r.IntN(30)
	}
	huge := chance(r, 12)
	var members []member
	var size int64
	used := map[string]bool{}
	for range count {
		name := pick(r, names)
		if count > 7 || chance(r, 4) {
			name += strconv.Itoa(r.IntN(100))
		}
		if used[name] {
			continue
		}
		used[name] = true
		entry, n := g.entry(size, huge)
		members = append(members, member{quote(name), entry})
		size += n
	}
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	if chance(r, 2) {
		at := r.IntN(len(members) + 1)
		members = slices.Insert(members, at, member{`"__metadata__"`, g.metadata()})
	}
	if huge {
		size = 0
	}
	return draft{record(members...).render(), make([]byte, size)}
}

// entry makes a tensor that begins there and tells its size.
func (g *generator) entry(begin int64, huge bool) (*node, int64) {
	r := g.r
	dtype := pick(r, dtypes)
	bits := int64(dtype.bits)
	var shape []*node
	for range r.IntN(5) {
		n := pick(r, []int64{0, 1, 1, 2, 3, 4, 5, 12})
		if huge {
			n = r.Int64N(1 << r.IntN(50))
		}
		if bits > 1<<56/max(n, 1) { // 50 of them stay below the largest int64
			n = 1
		}
		bits *= n
		shape = append(shape, text(strconv.FormatInt(n, 10)))
	}
	if bits%8 != 0 {
		shape = append(shape, text("4"))
		bits *= 4
	}
	end := begin + bits/8
	members := []member{
		{`"dtype"`, quoted(dtype.name)},
		{`"shape"`, list(shape...)},
		{`"data_offsets"`, list(text(strconv.FormatInt(begin, 10)), text(strconv.FormatInt(end, 10)))},
	}
	if chance(r, 4) {
		r.Shuffle(3, func(i, j int) { members[i], members[j] = members[j], members[i] })
	}
	return record(members...), bits / 8
}

func (g *generator) metadata() *node {
	r := g.r
	n := record()
	for range r.IntN(4) {
		key := pick(r, names)
		if n.get(key) == nil {
			n.members = append(n.members, member{quote(key), quoted(pick(r, names))})
		}
	}
	return n
}

// spoilFrame breaks what surrounds the header: the prefix, or the size of the data.
func spoilFrame(r *rand.Rand, d draft) []byte {
	file := d.file()
	n := uint64(len(d.header))
	switch r.IntN(8) {
	case 0:
		n += uint64(r.IntN(9)) - 4
	case 1:
		n = pick(r, []uint64{0, 1, 2, 99_999_999, 100_000_000, 100_000_001, 1 << 31, 1 << 32, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 8, 1<<64 - 1})
	case 2:
		n = uint64(r.IntN(len(file) + 8))
	case 3:
		return file[:r.IntN(len(file)+1)]
	case 4:
		return file[:r.IntN(min(len(file), 12)+1)]
	case 5:
		return append(file, make([]byte, 1+r.IntN(9))...)
	default:
		return file[:len(file)-min(len(d.data), 1+r.IntN(4))]
	}
	binary.LittleEndian.PutUint64(file, n)
	return file
}
