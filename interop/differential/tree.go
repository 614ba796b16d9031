package main

import (
	"encoding/json"
	"slices"
	"strings"
)

// A node is a JSON value with its text kept: keys twice, odd numbers and escapes stay as they were
// written, which a decoder would not allow.
type node struct {
	kind    kind
	text    string   // of a string (with quotes) or another scalar
	members []member // of an object, in order
	items   []*node  // of an array
}

type member struct {
	key   string // with quotes, as written
	value *node
}

type kind byte

const (
	scalar kind = iota // number, true, false, null, and what a mutation put in their place
	str
	array
	object
)

func text(s string) *node            { return &node{kind: scalar, text: s} }
func quoted(s string) *node          { return &node{kind: str, text: quote(s)} }
func list(items ...*node) *node      { return &node{kind: array, items: items} }
func record(members ...member) *node { return &node{kind: object, members: members} }

// quote writes s as the reference does, short of the control characters, which get \u00xx.
func quote(s string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20:
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// unquote gives the value of a string token.
func unquote(token string) string {
	if !strings.Contains(token, `\`) {
		return strings.Trim(token, `"`)
	}
	var s string
	if json.Unmarshal([]byte(token), &s) != nil {
		return token
	}
	return s
}

// tokens cuts a text into runs of white space, strings, words (numbers too) and single bytes. The
// parts together are always the text.
func tokens(s string) []string {
	var out []string
	for len(s) > 0 {
		n := tokenLength(s)
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func tokenLength(s string) int {
	run := func(in func(byte) bool) int {
		n := 0
		for n < len(s) && in(s[n]) {
			n++
		}
		return n
	}
	switch c := s[0]; {
	case isSpace(c):
		return run(isSpace)
	case isWord(c):
		return run(isWord)
	case c == '"':
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
		return len(s)
	}
	return 1
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '+' || c == '-' || c == '.'
}

// parseTree reads one JSON value; nil where the text is not built like one. It is no validator:
// scalars and strings are taken as they come.
func parseTree(s string) *node {
	p := parser{rest: tokens(s)}
	n := p.value()
	if p.peek() != "" {
		return nil
	}
	return n
}

type parser struct{ rest []string }

func (p *parser) peek() string {
	for len(p.rest) > 0 && isSpace(p.rest[0][0]) {
		p.rest = p.rest[1:]
	}
	if len(p.rest) == 0 {
		return ""
	}
	return p.rest[0]
}

func (p *parser) next() string {
	t := p.peek()
	if t != "" {
		p.rest = p.rest[1:]
	}
	return t
}

func (p *parser) value() *node {
	t := p.next()
	switch {
	case t == "":
		return nil
	case t == "{":
		n := record()
		ok := p.series("}", func() bool {
			key := p.next()
			if key == "" || key[0] != '"' || p.next() != ":" {
				return false
			}
			v := p.value()
			n.members = append(n.members, member{key, v})
			return v != nil
		})
		if !ok {
			return nil
		}
		return n
	case t == "[":
		n := list()
		ok := p.series("]", func() bool {
			v := p.value()
			n.items = append(n.items, v)
			return v != nil
		})
		if !ok {
			return nil
		}
		return n
	case t[0] == '"':
		return &node{kind: str, text: t}
	case isWord(t[0]):
		return text(t)
	}
	return nil
}

func (p *parser) series(end string, one func() bool) bool {
	if p.peek() == end {
		p.next()
		return true
	}
	for one() {
		switch p.next() {
		case end:
			return true
		case ",":
		default:
			return false
		}
	}
	return false
}

// render writes the value compactly.
func (n *node) render() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

func (n *node) write(b *strings.Builder) {
	switch n.kind {
	case array:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.write(b)
		}
		b.WriteByte(']')
	case object:
		b.WriteByte('{')
		for i, m := range n.members {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(m.key)
			b.WriteByte(':')
			m.value.write(b)
		}
		b.WriteByte('}')
	default:
		b.WriteString(n.text)
	}
}

func (n *node) clone() *node {
	c := &node{kind: n.kind, text: n.text, members: slices.Clone(n.members), items: slices.Clone(n.items)}
	for i := range c.members {
		c.members[i].value = c.members[i].value.clone()
	}
	for i := range c.items {
		c.items[i] = c.items[i].clone()
	}
	return c
}

// walk calls f for the value and all values inside it.
func (n *node) walk(f func(*node)) {
	f(n)
	for _, m := range n.members {
		m.value.walk(f)
	}
	for _, item := range n.items {
		item.walk(f)
	}
}

// get gives the last value of a key, nil where there is none.
func (n *node) get(key string) *node {
	for _, m := range slices.Backward(n.members) {
		if unquote(m.key) == key {
			return m.value
		}
	}
	return nil
}
