package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-safetensors/safetensors"
	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

// An opinion is what the library says of one file.
type opinion struct {
	header *safetensors.Header
	err    error
}

func (o opinion) String() string {
	if o.err != nil {
		return "refused, " + o.err.Error()
	}
	return "accepted, " + describe(o.header.Tensors(), o.header.Metadata())
}

// kind gives the kind of a refusal; "" where the file is accepted.
func (o opinion) kind() safetensors.Kind {
	if fe := (*safetensors.FormatError)(nil); errors.As(o.err, &fe) {
		return fe.Kind
	}
	return ""
}

// A finding is a disagreement. Its class is the same for all cases with the same cause, as far as
// that can be told.
type finding struct {
	class   string
	library opinions
	verdict reference.Verdict
}

// hostile stands behind every file in memory: what a scanner that reads past the end would like to
// see there.
const hostile = `00000000000000000000"}]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`

// opinions are what the library's ways of reading a header say of one file. The header alone, from a
// stream, is read with WithCompat and cannot see a fault in the size of the data.
type opinions struct {
	compat, strict, stream opinion
}

// ask has the library read a file, in a place of its own before bytes that must not matter.
func ask(file []byte) opinions {
	memory := append(slices.Clone(file), hostile...)
	parse := func(opts ...safetensors.Option) opinion {
		return guarded(func() (*safetensors.Header, error) {
			f, err := safetensors.Parse(memory[:len(file):len(file)], opts...)
			if err != nil {
				return nil, err
			}
			return f.Header(), nil
		})
	}
	o := opinions{
		compat: parse(safetensors.WithCompat()),
		strict: parse(),
		stream: guarded(func() (*safetensors.Header, error) {
			// Behind a MultiReader it cannot ask how much there is.
			return safetensors.ReadHeader(io.MultiReader(bytes.NewReader(file)), safetensors.WithCompat())
		}),
	}
	if !bytes.Equal(memory[:len(file)], file) || string(memory[len(file):]) != hostile {
		o.compat = opinion{err: errors.New("the parser wrote into its input")}
	}
	return o
}

func guarded(read func() (*safetensors.Header, error)) (o opinion) {
	defer func() {
		if r := recover(); r != nil {
			o = opinion{err: fmt.Errorf("panic: %v", r)}
		}
	}()
	h, err := read()
	return opinion{h, err}
}

// A result is what one comparison came to.
type result struct {
	compat, strict safetensors.Kind // "" where accepted
	excused        []string
	found          *finding
}

// judge compares the library with the reference's verdict.
func judge(file []byte, v reference.Verdict) result {
	o := ask(file)
	res := result{compat: o.compat.kind(), strict: o.strict.kind()}
	if class := compare(file, o, v); class != "" {
		if res.excused = excuse(file, o, v); res.excused == nil {
			res.found = &finding{class, o, v}
		}
	}
	return res
}

// compare gives the class of a disagreement, "" where all is well.
func compare(file []byte, o opinions, v reference.Verdict) string {
	for _, one := range []opinion{o.compat, o.strict, o.stream} {
		if one.err != nil && one.kind() == "" {
			return "the error is no FormatError: " + one.err.Error()
		}
	}
	for _, class := range []string{
		compareCompat(o.compat, v),
		compareStream(o.stream, o.compat, v),
		compareStrict(file, o.strict, o.compat, v),
	} {
		if class != "" {
			return class
		}
	}
	return ""
}

// compareCompat: WithCompat says what the reference says.
func compareCompat(o opinion, v reference.Verdict) string {
	switch {
	case v.Accepted && o.err != nil:
		return "the reference accepts, compat refuses: " + string(o.kind())
	case !v.Accepted && o.err == nil:
		return "the reference refuses, compat accepts: " + v.Refusal + ": " + withoutPlace(v.Message)
	case o.err != nil && !rightKind(o.kind(), v.Refusal):
		return "refused for another reason: " + v.Refusal + ", compat " + string(o.kind())
	case o.err != nil:
		return ""
	}
	return difference(o.header, v)
}

// compareStream: ReadHeader says what Parse says, short of the size of the data.
func compareStream(o, compat opinion, v reference.Verdict) string {
	right := v.Accepted || v.Refusal == reference.OnlySize
	switch {
	case right && o.err != nil:
		return "a right header, ReadHeader refuses: " + string(o.kind())
	case !right && o.err == nil:
		return "a wrong header, ReadHeader accepts: " + v.Refusal + ": " + withoutPlace(v.Message)
	case o.err != nil && compat.err != nil && o.kind() != compat.kind():
		return "ReadHeader gives another kind: " + string(o.kind()) + ", Parse " + string(compat.kind())
	case o.err != nil:
		return ""
	}
	if d := difference(o.header, v); d != "" {
		return "ReadHeader: " + d
	}
	return ""
}

// compareStrict: without WithCompat, what is refused besides is what the format's text forbids.
func compareStrict(file []byte, strict, compat opinion, v reference.Verdict) string {
	if compat.err != nil {
		if strict.err == nil {
			return "strict accepts, compat refuses: " + string(compat.kind())
		}
		return ""
	}
	d, _ := split(file)
	reason := onlyCompat(d.header)
	switch {
	case strict.err == nil && reason != "":
		return "strict accepts " + reason
	case strict.err != nil && reason == "":
		return "strict refuses what breaks no rule: " + string(strict.kind())
	case strict.err != nil:
		return ""
	}
	if d := difference(strict.header, v); d != "" {
		return "strict: " + d
	}
	return ""
}

// rightKind holds the library to a kind where the reference's refusal leaves only one: its checks
// before the header is read come in the same order, and its last one is reached only where
// everything else is right.
func rightKind(k safetensors.Kind, refusal string) bool {
	switch refusal {
	case "HeaderTooSmall":
		return k == safetensors.ErrFileTooShort
	case "HeaderTooLarge":
		return k == safetensors.ErrHeaderTooLarge
	case "InvalidHeaderLength":
		return k == safetensors.ErrHeaderLengthExceedsFile
	case "InvalidHeader":
		return k == safetensors.ErrHeaderNotUTF8 || k == safetensors.ErrHeaderNotJSON || k == safetensors.ErrHeaderNotObject
	case reference.OnlySize:
		return k == safetensors.ErrDataTruncated || k == safetensors.ErrTrailingBytes
	}
	return true
}

// difference compares every tensor and the metadata.
func difference(h *safetensors.Header, v reference.Verdict) string {
	tensors := h.Tensors()
	if len(tensors) != len(v.Tensors) {
		return "another number of tensors"
	}
	want := make(map[string]reference.Tensor, len(v.Tensors))
	for _, t := range v.Tensors {
		want[t.Name] = t
	}
	var end int64
	for _, t := range tensors {
		w, ok := want[t.Name]
		delete(want, t.Name)
		same := ok && t.DType.String() == w.DType && uint64(t.Begin) == w.Begin && uint64(t.End) == w.End &&
			slices.EqualFunc(t.Shape, w.Shape, func(a int, b uint64) bool { return a >= 0 && uint64(a) == b })
		if !same {
			return "another tensor"
		}
		if t.Begin != end {
			return "tensors out of data order"
		}
		end = t.End
		if found, ok := h.Lookup(t.Name); !ok || found.Begin != t.Begin || found.End != t.End {
			return "Lookup does not find a tensor"
		}
	}
	if m := h.Metadata(); !maps.Equal(m, v.Metadata) || (m == nil) != (v.Metadata == nil) {
		return "other metadata"
	}
	return ""
}

// onlyCompat says what in an accepted header is for compat alone; "" where it is plainly right.
func onlyCompat(header string) string {
	if !strings.HasPrefix(header, "{") {
		return "white space before the header"
	}
	root := parseTree(header)
	if root == nil {
		return "a header that is not built like JSON"
	}
	if m := root.get("__metadata__"); m != nil && m.text == "null" {
		return "null for metadata"
	}
	twice := false
	root.walk(func(n *node) {
		if len(n.members) < 2 {
			return
		}
		seen := make(map[string]bool, len(n.members))
		for _, m := range n.members {
			k := unquote(m.key)
			twice = twice || seen[k]
			seen[k] = true
		}
	})
	if twice {
		return "a key twice in one object"
	}
	return ""
}

// withoutPlace cuts where in the text the reference's JSON reader stood.
func withoutPlace(message string) string {
	if i := strings.LastIndex(message, " at line "); i >= 0 {
		return message[:i]
	}
	return message
}

func describe(tensors []safetensors.TensorInfo, metadata map[string]string) string {
	var b strings.Builder
	for _, t := range tensors {
		fmt.Fprintf(&b, "%q %s %v [%d,%d] ", t.Name, t.DType, t.Shape, t.Begin, t.End)
	}
	fmt.Fprintf(&b, "metadata %q", metadata)
	return b.String()
}

func describeVerdict(v reference.Verdict) string {
	if !v.Accepted {
		return "refused, " + v.Refusal + ": " + v.Message
	}
	var b strings.Builder
	b.WriteString("accepted, ")
	for _, t := range v.Tensors {
		fmt.Fprintf(&b, "%q %s %d [%d,%d] ", t.Name, t.DType, t.Shape, t.Begin, t.End)
	}
	fmt.Fprintf(&b, "metadata %q", v.Metadata)
	return b.String()
}
