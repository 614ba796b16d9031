package reference

import (
	"encoding/binary"
	"errors"
)

// First byte of an answer.
const (
	refused  = 0
	accepted = 1
)

// OnlySize is the refusal of a file whose header is right and whose data has another size.
const OnlySize = "MetadataIncompleteBuffer"

// A Verdict is what the reference says of one file. It has tensors and metadata where the header is
// right: in an accepted file, and in one that is refused with OnlySize.
type Verdict struct {
	Accepted bool
	Refusal  string // the error's variant in the crate, where it is refused
	Message  string // the error's text
	Tensors  []Tensor
	Metadata map[string]string // nil where the header has none
}

// A Tensor is an entry of a header. Begin and End count from the start of the data.
type Tensor struct {
	Name       string
	DType      string
	Shape      []uint64
	Begin, End uint64
}

// A Description is what the reference shall write.
type Description struct {
	Tensors  []Data
	Metadata map[string]string // nil for none; the order of several is the reference's chance
}

// Data is one tensor to write.
type Data struct {
	Name  string
	DType string
	Shape []int
	Bytes []byte
}

func (d Description) encode() []byte {
	out := []byte{0}
	if d.Metadata != nil {
		out[0] = 1
		out = appendUint32(out, len(d.Metadata))
		for k, v := range d.Metadata {
			out = appendString(appendString(out, k), v)
		}
	}
	out = appendUint32(out, len(d.Tensors))
	for _, t := range d.Tensors {
		out = appendString(appendString(out, t.Name), t.DType)
		out = appendUint32(out, len(t.Shape))
		for _, n := range t.Shape {
			out = binary.LittleEndian.AppendUint64(out, uint64(n))
		}
		out = append(appendUint32(out, len(t.Bytes)), t.Bytes...)
	}
	return out
}

func appendUint32(out []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(out, uint32(n))
}

func appendString(out []byte, s string) []byte {
	return append(appendUint32(out, len(s)), s...)
}

func decodeVerdict(answer []byte) (Verdict, error) {
	f := fields{rest: answer}
	var v Verdict
	switch f.byte() {
	case refused:
		v.Refusal, v.Message = f.string(), f.string()
	case accepted:
		v.Accepted = true
	default:
		f.bad = true
	}
	if v.Accepted || v.Refusal == OnlySize {
		v.decodeHeader(&f)
	}
	if f.bad || len(f.rest) != 0 {
		return Verdict{}, errors.New("an answer of the reference that is not understood")
	}
	return v, nil
}

func (v *Verdict) decodeHeader(f *fields) {
	v.Tensors = make([]Tensor, f.count())
	for i := range v.Tensors {
		t := &v.Tensors[i]
		t.Name, t.DType = f.string(), f.string()
		t.Shape = make([]uint64, f.count())
		for j := range t.Shape {
			t.Shape[j] = f.uint64()
		}
		t.Begin, t.End = f.uint64(), f.uint64()
	}
	if f.byte() == 1 {
		n := f.count()
		v.Metadata = make(map[string]string, n)
		for range n {
			k := f.string()
			v.Metadata[k] = f.string()
		}
	}
}

// fields reads an answer front to back. Past a fault it gives zeros and bad is set.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.rest) {
		f.bad, f.rest = true, nil
		return nil
	}
	head := f.rest[:n]
	f.rest = f.rest[n:]
	return head
}

func (f *fields) byte() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) uint64() uint64 {
	if b := f.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the number of things that follow; each takes at least one byte.
func (f *fields) count() int {
	b := f.take(4)
	if b == nil {
		return 0
	}
	n := binary.LittleEndian.Uint32(b)
	if uint64(n) > uint64(len(f.rest)) {
		f.bad, f.rest = true, nil
		return 0
	}
	return int(n)
}

func (f *fields) string() string { return string(f.take(f.count())) }
