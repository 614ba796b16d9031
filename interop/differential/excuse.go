package main

import (
	"math"
	"slices"
	"strconv"

	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

// The accidents of the reference that the library does not follow, all of them. interop/README.md
// says why for each.
const (
	entryArray  = "a tensor entry written as an array"
	dtypeObject = "a dtype written as an object"
	hugeInEmpty = "a dimension over the host's int in an empty tensor"
)

// excuse says which accidents explain a disagreement; nil where they do not. It takes nobody's word
// for it: the accidents are written properly, and then the library must say just what the reference
// said of the file as it was.
func excuse(file []byte, o opinions, v reference.Verdict) []string {
	if o.compat.err == nil || o.stream.err == nil || o.strict.err == nil {
		return nil
	}
	d, ok := split(file)
	if !ok {
		return nil
	}
	root := parseTree(d.header)
	if root == nil {
		return nil
	}
	reasons := writeProperly(root)
	if reasons == nil {
		return nil
	}
	d.header = root.render()
	v.Tensors = slices.Clone(v.Tensors)
	for i, t := range v.Tensors {
		v.Tensors[i].Shape = slices.Clone(t.Shape)
		for j := range t.Shape {
			if t.Shape[j] > math.MaxInt {
				v.Tensors[i].Shape[j] = 1
			}
		}
	}
	proper := d.file()
	if compare(proper, ask(proper), v) != "" {
		return nil
	}
	return reasons
}

// writeProperly takes the accidents out of a header and says which ones there were.
func writeProperly(root *node) []string {
	var reasons []string
	add := func(reason string) {
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	for _, m := range root.members {
		entry := m.value
		if unquote(m.key) == "__metadata__" {
			continue
		}
		if entry.kind == array && len(entry.items) == 3 {
			*entry = *record(
				member{`"dtype"`, entry.items[0]},
				member{`"shape"`, entry.items[1]},
				member{`"data_offsets"`, entry.items[2]})
			add(entryArray)
		}
		if dtype := entry.get("dtype"); dtype != nil && dtype.kind == object && len(dtype.members) == 1 {
			*dtype = node{kind: str, text: dtype.members[0].key}
			add(dtypeObject)
		}
		if shape := entry.get("shape"); shape != nil {
			empty := slices.ContainsFunc(shape.items, func(item *node) bool { return item.text == "0" })
			for _, item := range shape.items {
				if n, err := strconv.ParseUint(item.text, 10, 64); empty && err == nil && n > math.MaxInt {
					item.text = "1"
					add(hugeInEmpty)
				}
			}
		}
	}
	slices.Sort(reasons)
	return reasons
}
