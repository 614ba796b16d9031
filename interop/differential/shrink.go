package main

import (
	"slices"
	"strconv"

	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

// shrinkTries bounds the work on one finding.
const shrinkTries = 5000

// A checker gives the reference's verdict on a file.
type checker = func(file []byte) (reference.Verdict, error)

// shrink looks for a smaller file with a finding of the same class. It leaves out members and items
// of the header while that can be read as a tree, then ever smaller pieces of its text, then data.
func shrink(file []byte, f finding, check checker) ([]byte, finding, error) {
	d, ok := split(file)
	if !ok {
		return file, f, nil
	}
	s := shrinker{d, f, check, 0}
	err := s.tree()
	if err == nil {
		err = s.pieces(func() string { return s.header }, func(t string) draft { return draft{t, s.data} })
	}
	if err == nil {
		err = s.pieces(func() string { return string(s.data) }, func(t string) draft { return draft{s.header, []byte(t)} })
	}
	return s.file(), s.found, err
}

type shrinker struct {
	draft // the smallest so far
	found finding
	check checker
	tries int
}

// try takes a candidate if it shows the same.
func (s *shrinker) try(d draft) (bool, error) {
	if s.tries++; s.tries > shrinkTries {
		return false, nil
	}
	file := d.file()
	v, err := s.check(file)
	if err != nil {
		return false, err
	}
	res := judge(file, v)
	if res.found == nil || res.found.class != s.found.class {
		return false, nil
	}
	s.draft, s.found = d, *res.found
	return true, nil
}

func (s *shrinker) tree() error {
	root := parseTree(s.header)
	if root == nil {
		return nil
	}
	for at := 0; ; {
		smaller := root.clone()
		gone, ok := removeAt(smaller, at)
		if !ok {
			return nil
		}
		d := draft{smaller.render(), s.data}
		if begin, end, ok := offsets(gone); ok && end <= len(d.data) {
			closeGap(smaller, begin, end)
			d = draft{smaller.render(), slices.Delete(slices.Clone(d.data), begin, end)}
		}
		yes, err := s.try(d)
		switch {
		case err != nil:
			return err
		case yes:
			root = smaller
		default:
			at++
		}
	}
}

// removeAt takes out the member or item with that number, counted through the whole tree.
func removeAt(root *node, number int) (gone *node, ok bool) {
	root.walk(func(n *node) {
		if size := len(n.members) + len(n.items); ok || number >= size {
			number -= size
			return
		}
		if ok = true; n.kind == object {
			gone = n.members[number].value
			n.members = slices.Delete(n.members, number, number+1)
		} else {
			gone = n.items[number]
			n.items = slices.Delete(n.items, number, number+1)
		}
	})
	return gone, ok
}

// offsets gives the data_offsets of a tensor's entry.
func offsets(entry *node) (begin, end int, ok bool) {
	at := entry.get("data_offsets")
	if at == nil || len(at.items) != 2 {
		return 0, 0, false
	}
	begin, err := strconv.Atoi(at.items[0].text)
	if err != nil {
		return 0, 0, false
	}
	end, err = strconv.Atoi(at.items[1].text)
	return begin, end, err == nil && begin >= 0 && begin <= end
}

// closeGap moves the tensors behind a removed one forward.
func closeGap(root *node, begin, end int) {
	root.walk(func(n *node) {
		at := n.get("data_offsets")
		if at == nil {
			return
		}
		for _, item := range at.items {
			if x, err := strconv.Atoi(item.text); err == nil && x >= end {
				item.text = strconv.Itoa(x - (end - begin))
			}
		}
	})
}

// pieces leaves out parts of a text, halves first and single bytes last.
func (s *shrinker) pieces(get func() string, with func(string) draft) error {
	for piece := max(1, len(get())/2); piece > 0; piece /= 2 {
		for at := 0; at+piece <= len(get()); {
			t := get()
			yes, err := s.try(with(t[:at] + t[at+piece:]))
			if err != nil {
				return err
			}
			if !yes {
				at += piece
			}
		}
	}
	return nil
}
