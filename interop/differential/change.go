package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// A change of a tree works in place and may find nothing to do.
type treeChange = func(*rand.Rand, *node)

// A change of text gives the new text.
type textChange = func(*rand.Rand, string) string

type weighted[T any] struct {
	weight int
	change T
}

func pickChange[T any](r *rand.Rand, from []weighted[T]) T {
	total := 0
	for _, w := range from {
		total += w.weight
	}
	at := r.IntN(total)
	for _, w := range from {
		if at -= w.weight; at < 0 {
			return w.change
		}
	}
	panic("unreachable")
}

var treeChanges = []weighted[treeChange]{
	{6, repeatMember},
	{4, shuffleMembers},
	{2, dropMember},
	{3, renameMember},
	{10, addUnknown},
	{3, replaceValue},
	{8, editNumber},
	{3, entryAsArray},
	{3, dtypeAsObject},
	{4, oddMetadata},
	{3, otherDType},
	{3, hugeAfterZero},
	{2, swapValues},
	{4, escapeString},
	{4, spoilString},
	{1, wrapValue},
	{3, growArray},
	{4, addEmptyTensor},
	{2, copyEntry},
	{3, reshape},
	{2, manyKeys},
}

var textChanges = []weighted[textChange]{
	{3, flipBit},
	{2, func(r *rand.Rand, s string) string { return insertAt(r, s, string([]byte{byte(r.IntN(256))})) }},
	{2, dropByte},
	{1, func(r *rand.Rand, s string) string { return s[:r.IntN(len(s)+1)] }},
	{4, func(r *rand.Rand, s string) string { return between(r, s, pick(r, space)) }},
	{2, func(r *rand.Rand, s string) string { return between(r, s, pick(r, oddSpace)) }},
	{2, func(r *rand.Rand, s string) string { return pick(r, space) + s }},
	{2, func(r *rand.Rand, s string) string { return s + pick(r, space) }},
	{1, func(r *rand.Rand, s string) string { return pick(r, oddSpace) + s }},
	{2, func(r *rand.Rand, s string) string { return s + pick(r, append(glue, oddSpace...)) }},
	{2, func(r *rand.Rand, s string) string { return insertAt(r, s, pick(r, badUTF8)) }},
	{3, changeTokens(func(r *rand.Rand, ts []string, i int) { j := r.IntN(len(ts)); ts[i], ts[j] = ts[j], ts[i] })},
	{2, changeTokens(func(r *rand.Rand, ts []string, i int) { ts[i] = "" })},
	{2, changeTokens(func(r *rand.Rand, ts []string, i int) { ts[i] += ts[i] })},
	{3, changeTokens(func(r *rand.Rand, ts []string, i int) { ts[i] = pick(r, glue) })},
	{1, func(r *rand.Rand, s string) string { return between(r, s, pick(r, glue)) }},
}

func flipBit(r *rand.Rand, s string) string {
	if s == "" {
		return s
	}
	b := []byte(s)
	b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	return string(b)
}

func dropByte(r *rand.Rand, s string) string {
	if s == "" {
		return s
	}
	at := r.IntN(len(s))
	return s[:at] + s[at+1:]
}

func insertAt(r *rand.Rand, s, piece string) string {
	at := r.IntN(len(s) + 1)
	return s[:at] + piece + s[at:]
}

// between puts a piece between two tokens.
func between(r *rand.Rand, s, piece string) string {
	ts := tokens(s)
	return strings.Join(slices.Insert(ts, r.IntN(len(ts)+1), piece), "")
}

func changeTokens(change func(r *rand.Rand, ts []string, i int)) textChange {
	return func(r *rand.Rand, s string) string {
		ts := tokens(s)
		if len(ts) > 0 {
			change(r, ts, r.IntN(len(ts)))
		}
		return strings.Join(ts, "")
	}
}

// anyNode picks a value that passes the filter; nil where none does.
func anyNode(r *rand.Rand, root *node, filter func(*node) bool) *node {
	var found []*node
	root.walk(func(n *node) {
		if filter(n) {
			found = append(found, n)
		}
	})
	if len(found) == 0 {
		return nil
	}
	return pick(r, found)
}

func hasMembers(n *node) bool { return len(n.members) > 0 }

// anyObject picks an object with members: the header itself half of the time, as there is only one.
func anyObject(r *rand.Rand, root *node) *node {
	if hasMembers(root) && chance(r, 2) {
		return root
	}
	return anyNode(r, root, hasMembers)
}

// anyEntry picks a value of the header that looks like a tensor's.
func anyEntry(r *rand.Rand, root *node) *node {
	return anyNode(r, root, func(n *node) bool { return n.kind == object && n.get("data_offsets") != nil })
}

func addMember(r *rand.Rand, n *node, m member) {
	n.members = slices.Insert(n.members, r.IntN(len(n.members)+1), m)
}

func repeatMember(r *rand.Rand, root *node) {
	n := anyObject(r, root)
	if n == nil {
		return
	}
	m := pick(r, n.members)
	m.value = m.value.clone()
	if chance(r, 3) {
		m.key = reescape(r, m.key)
	}
	switch r.IntN(4) {
	case 0:
		editNumber(r, m.value)
	case 1:
		m.value = pick(r, n.members).value.clone()
	}
	addMember(r, n, m)
}

func shuffleMembers(r *rand.Rand, root *node) {
	if n := anyObject(r, root); n != nil {
		r.Shuffle(len(n.members), func(i, j int) { n.members[i], n.members[j] = n.members[j], n.members[i] })
	}
}

func dropMember(r *rand.Rand, root *node) {
	if n := anyObject(r, root); n != nil {
		at := r.IntN(len(n.members))
		n.members = slices.Delete(n.members, at, at+1)
	}
}

func renameMember(r *rand.Rand, root *node) {
	if n := anyObject(r, root); n != nil {
		n.members[r.IntN(len(n.members))].key = quote(pick(r, keys))
	}
}

// addUnknown gives a tensor's entry a key that the format does not know.
func addUnknown(r *rand.Rand, root *node) {
	n := anyEntry(r, root)
	if n == nil {
		return
	}
	addMember(r, n, member{quote(pick(r, []string{"x", "y", "note", "", "Dtype", "__metadata__", "é"})), anyValue(r)})
}

// anyValue makes a value for an unknown key.
func anyValue(r *rand.Rand) *node {
	switch r.IntN(9) {
	case 0, 1, 2:
		return text(oddNumber(r))
	case 3:
		return nested(r)
	case 4:
		return text(pick(r, []string{"null", "true", "false"}))
	case 5:
		return &node{kind: str, text: `"` + pick(r, escapes) + `"`}
	case 6:
		return quoted(pick(r, names))
	case 7:
		n := list()
		for range r.IntN(4) {
			n.items = append(n.items, anyValue(r))
		}
		return n
	}
	n := record()
	for range r.IntN(4) {
		n.members = append(n.members, member{quote(pick(r, keys)), anyValue(r)})
	}
	return n
}

// nested makes arrays and objects as deep as the reference just takes, or just not.
func nested(r *rand.Rand) *node {
	n := pick(r, []*node{list(), record(), text("1"), text("1e5"), quoted("in")})
	objects := []int{0, 0, 1, 2}[r.IntN(4)] // of every two levels
	for range 120 + r.IntN(11) {
		if r.IntN(2) < objects {
			n = record(member{`"k"`, n})
		} else {
			n = list(n)
		}
	}
	return n
}

// manyKeys adds an object of more keys than are compared one by one: to an entry, under an unknown
// key, or as the metadata. Sometimes the last of them stands twice.
func manyKeys(r *rand.Rand, root *node) {
	n := record()
	for i := range 12 + r.IntN(30) {
		n.members = append(n.members, member{quote("k" + strconv.Itoa(i)), quoted("")})
	}
	if chance(r, 2) {
		addMember(r, n, pick(r, n.members))
	}
	if e := anyEntry(r, root); e != nil && !chance(r, 3) {
		if chance(r, 2) {
			e.members = append(e.members, n.members...)
		} else {
			addMember(r, e, member{`"x"`, n})
		}
		return
	}
	if old := root.get("__metadata__"); old != nil {
		*old = *n
	} else if root.kind == object {
		addMember(r, root, member{`"__metadata__"`, n})
	}
}

func replaceValue(r *rand.Rand, root *node) {
	*anyNode(r, root, func(*node) bool { return true }) = *anyValue(r)
}

func editNumber(r *rand.Rand, root *node) {
	n := anyNode(r, root, func(n *node) bool { return n.kind == scalar })
	if n == nil {
		return
	}
	v, err := strconv.Atoi(n.text)
	switch {
	case err == nil && chance(r, 3):
		n.text = strconv.Itoa(v + r.IntN(9) - 4)
	case err == nil && chance(r, 4): // the same number in another spelling
		n.text = pick(r, []string{"0" + n.text, n.text + ".0", n.text + "e0", n.text + "E0", "-" + n.text, "+" + n.text, `"` + n.text + `"`})
	case chance(r, 4):
		n.text = oddNumber(r)
	default:
		n.text = pick(r, integers)
	}
}

func entryAsArray(r *rand.Rand, root *node) {
	n := anyEntry(r, root)
	if n == nil || n.get("dtype") == nil || n.get("shape") == nil {
		return
	}
	items := []*node{n.get("dtype"), n.get("shape"), n.get("data_offsets")}
	switch r.IntN(8) {
	case 0:
		items = append(items, anyValue(r))
	case 1:
		items = items[:2]
	case 2:
		r.Shuffle(3, func(i, j int) { items[i], items[j] = items[j], items[i] })
	}
	*n = *list(items...)
}

func dtypeAsObject(r *rand.Rand, root *node) {
	n := anyNode(r, root, func(n *node) bool { return n.kind == str && n.text != `""` })
	if e := anyEntry(r, root); e != nil && e.get("dtype") != nil && !chance(r, 8) {
		n = e.get("dtype")
	}
	if n == nil || n.kind != str {
		return
	}
	value := text("null")
	if chance(r, 2) {
		value = pick(r, []*node{record(), list(), text("0"), text("true"), quoted(""), record(member{`"a"`, text("null")})})
	}
	o := record(member{n.text, value})
	if chance(r, 8) {
		o.members = append(o.members, member{pick(r, []string{n.text, `"U8"`}), value.clone()})
	}
	*n = *o
}

func oddMetadata(r *rand.Rand, root *node) {
	if root.kind != object {
		return
	}
	value := record(member{quote(pick(r, names)), quoted(pick(r, names))})
	switch r.IntN(4) {
	case 0:
		value = text("null")
	case 1:
		value = anyValue(r)
	case 2:
		addMember(r, value, member{quote(pick(r, names)), anyValue(r)})
	}
	if old := root.get("__metadata__"); old != nil && !chance(r, 3) {
		*old = *value
		return
	}
	key := `"__metadata__"`
	if chance(r, 5) {
		key = reescape(r, key)
	}
	addMember(r, root, member{key, value})
}

func otherDType(r *rand.Rand, root *node) {
	e := anyEntry(r, root)
	if e == nil || e.get("dtype") == nil {
		return
	}
	if chance(r, 2) {
		*e.get("dtype") = *quoted(pick(r, oddDTypes))
	} else {
		*e.get("dtype") = *quoted(pick(r, dtypes).name)
	}
}

// hugeAfterZero makes an empty tensor of enormous dimensions, in an order that overflows or not.
func hugeAfterZero(r *rand.Rand, root *node) {
	addEmptyTensor(r, root)
	e := anyNode(r, root, isEmptyTensor)
	if e == nil {
		return
	}
	shape := list(text("0"))
	for range 1 + r.IntN(2) {
		at := r.IntN(len(shape.items) + 1)
		if !chance(r, 4) {
			at = len(shape.items)
		}
		shape.items = slices.Insert(shape.items, at, text(pick(r, dimensions)))
	}
	*e.get("shape") = *shape
}

func isEmptyTensor(n *node) bool {
	if n.kind != object || n.get("shape") == nil || n.get("data_offsets") == nil {
		return false
	}
	at := n.get("data_offsets").items
	return len(at) == 2 && at[0].text == at[1].text
}

// addEmptyTensor adds a tensor without bytes at the edge of another.
func addEmptyTensor(r *rand.Rand, root *node) {
	if root.kind != object {
		return
	}
	at := "0"
	if e := anyEntry(r, root); e != nil {
		if o := e.get("data_offsets").items; len(o) == 2 && o[0].kind == scalar {
			at = o[r.IntN(2)].text
		}
	}
	addMember(r, root, member{quote(pick(r, names) + strconv.Itoa(r.IntN(20))), record(
		member{`"dtype"`, quoted(pick(r, dtypes).name)},
		member{`"shape"`, list(text("3"), text("0"))},
		member{`"data_offsets"`, list(text(at), text(at))},
	)})
}

func copyEntry(r *rand.Rand, root *node) {
	if e := anyEntry(r, root); e != nil && root.kind == object {
		addMember(r, root, member{quote(pick(r, names)), e.clone()})
	}
}

// reshape puts ones into a shape, which keeps the size, or changes the order of its dimensions.
func reshape(r *rand.Rand, root *node) {
	e := anyEntry(r, root)
	if e == nil || e.get("shape") == nil {
		return
	}
	s := e.get("shape")
	if chance(r, 2) {
		r.Shuffle(len(s.items), func(i, j int) { s.items[i], s.items[j] = s.items[j], s.items[i] })
		return
	}
	for range 1 + r.IntN(3) {
		s.items = slices.Insert(s.items, r.IntN(len(s.items)+1), text("1"))
	}
}

func swapValues(r *rand.Rand, root *node) {
	inner := func(n *node) bool { return n != root && n.kind != object }
	a, b := anyNode(r, root, inner), anyNode(r, root, inner)
	if a == nil || b == nil {
		return
	}
	x, y := a.clone(), b.clone()
	*a, *b = *y, *x
}

func escapeString(r *rand.Rand, root *node) {
	changeString(r, root, func(token string) string { return reescape(r, token) })
}

func spoilString(r *rand.Rand, root *node) {
	changeString(r, root, func(token string) string {
		at := 1 + r.IntN(max(1, len(token)-1))
		return token[:at] + pick(r, escapes) + token[at:]
	})
}

// changeString changes the text of a key or of a string value.
func changeString(r *rand.Rand, root *node, change func(string) string) {
	if chance(r, 2) {
		if n := anyObject(r, root); n != nil {
			m := &n.members[r.IntN(len(n.members))]
			m.key = change(m.key)
		}
		return
	}
	if n := anyNode(r, root, func(n *node) bool { return n.kind == str }); n != nil {
		n.text = change(n.text)
	}
}

func wrapValue(r *rand.Rand, root *node) {
	n := anyNode(r, root, func(*node) bool { return true })
	inner := n.clone()
	if chance(r, 2) {
		*n = *list(inner)
	} else {
		*n = *record(member{quote(pick(r, keys)), inner})
	}
}

func growArray(r *rand.Rand, root *node) {
	n := anyNode(r, root, func(n *node) bool { return n.kind == array })
	if n == nil {
		return
	}
	if len(n.items) > 0 && chance(r, 3) {
		at := r.IntN(len(n.items))
		n.items = slices.Delete(n.items, at, at+1)
		return
	}
	item := text(pick(r, integers))
	if chance(r, 4) {
		item = anyValue(r)
	}
	n.items = slices.Insert(n.items, r.IntN(len(n.items)+1), item)
}
