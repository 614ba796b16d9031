package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// show makes a string out of a file fit for a column of a terminal: as it is
// where nothing in it could be mistaken, else quoted, with everything escaped
// that does not print, such as control characters and changes of direction.
func show(s string) string {
	if s != "" && !strings.ContainsAny(s, ` "\`) && printable(s) == s {
		return s
	}
	return strconv.Quote(s)
}

// cut is show for text that may be of any length.
func cut(s string, most int) string {
	if len(s) <= most {
		return show(s)
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes)", show(s[:most]), len(s))
}

// printable escapes what does not print, line breaks included.
func printable(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, notPrinted) < 0 {
		return s
	}
	var b strings.Builder
	for i, n := 0, 0; i < len(s); i += n {
		var r rune
		r, n = utf8.DecodeRuneInString(s[i:])
		if part := s[i : i+n]; r == utf8.RuneError && n == 1 || notPrinted(r) {
			q := strconv.Quote(part)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteString(part)
		}
	}
	return b.String()
}

func notPrinted(r rune) bool { return !strconv.IsPrint(r) }

// size writes a count of bytes with three or four digits.
func size(n int64) string {
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n)/(1<<10), 0
	for ; v >= 1023.95; unit++ {
		v /= 1 << 10
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + "KMGTPE"[unit:unit+1] + "iB"
}

// bothSizes is size with the exact count, where that says more.
func bothSizes(n int64) string {
	if n < 1<<10 {
		return size(n)
	}
	return fmt.Sprintf("%s (%d bytes)", size(n), n)
}

// shape writes dimensions without spaces, so that columns stay columns.
func shape(dims []int) string {
	b := []byte{'['}
	for i, d := range dims {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return string(append(b, ']'))
}

// count writes a number and its noun.
func count[T int | uint64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// A decimal is a number that may be none: JSON has null for what is not finite.
type decimal float64

func (d decimal) MarshalJSON() ([]byte, error) {
	if f := float64(d); f-f != 0 {
		return []byte("null"), nil
	}
	return json.Marshal(float64(d))
}

// A jsonWriter writes a document piece by piece, so that one of a million
// tensors takes no memory. What does not print is escaped, so that it is safe
// on a terminal too.
type jsonWriter struct {
	w   io.Writer
	buf bytes.Buffer
	enc *json.Encoder
}

func newJSONWriter(w io.Writer) *jsonWriter {
	j := &jsonWriter{w: w}
	j.enc = json.NewEncoder(&j.buf)
	j.enc.SetEscapeHTML(false)
	return j
}

func (j *jsonWriter) raw(s string) error {
	_, err := io.WriteString(j.w, s)
	return err
}

func (j *jsonWriter) value(v any) error {
	j.buf.Reset()
	if err := j.enc.Encode(v); err != nil {
		return err
	}
	_, err := j.w.Write(escapeJSON(bytes.TrimSuffix(j.buf.Bytes(), []byte("\n"))))
	return err
}

// escapeJSON escapes the characters of a JSON text that do not print. Such stand
// in its strings only, save line breaks, which never do.
func escapeJSON(b []byte) []byte {
	bad := func(r rune) bool { return notPrinted(r) && r != '\n' }
	if bytes.IndexFunc(b, bad) < 0 {
		return b
	}
	var out []byte
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case !bad(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}
