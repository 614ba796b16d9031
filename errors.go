package safetensors

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Kind says what is wrong. It is an error itself, so that
// errors.Is(err, [ErrBadOffsets]) holds for every error of that kind.
type Kind string

// Error returns the kind as it is spelled in reports, such as "bad-offsets".
func (k Kind) Error() string { return string(k) }

// The kinds of a file that breaks the format, in the order in which the rules
// are checked. Errors of these kinds are a [*FormatError].
const (
	ErrFileTooShort            Kind = "file-too-short"             // shorter than the 8 bytes of the header length
	ErrHeaderTooLarge          Kind = "header-too-large"           // header length over the limit
	ErrHeaderLengthExceedsFile Kind = "header-length-exceeds-file" // header length runs past the end of the file
	ErrHeaderNotUTF8           Kind = "header-not-utf8"            // header is not valid UTF-8
	ErrHeaderNotObject         Kind = "header-not-object"          // header does not begin with '{'
	ErrHeaderNotJSON           Kind = "header-not-json"            // header is not one RFC 8259 JSON object
	ErrDuplicateKey            Kind = "duplicate-key"              // a key stands twice in one object
	ErrMetadataNotStringMap    Kind = "metadata-not-string-map"    // __metadata__ is not an object of strings
	ErrBadTensorInfo           Kind = "bad-tensor-info"            // a tensor entry lacks a field, or one has the wrong type
	ErrUnknownDType            Kind = "unknown-dtype"              // dtype is none of the 22
	ErrSizeOverflow            Kind = "size-overflow"              // shape times bit width does not fit 64 bits
	ErrSubByteMisaligned       Kind = "sub-byte-misaligned"        // elements times bit width is not a whole number of bytes
	ErrSizeMismatch            Kind = "size-mismatch"              // END-BEGIN is not what dtype and shape need
	ErrBadOffsets              Kind = "bad-offsets"                // inverted, overlapping, or leaving a hole
	ErrDataTruncated           Kind = "data-truncated"             // file ends before the last tensor does
	ErrTrailingBytes           Kind = "trailing-bytes"             // file goes on after the last tensor
)

// The kinds of the other errors.
const (
	ErrBadName  Kind = "bad-name"         // a name or metadata string that cannot be written
	ErrNotFound Kind = "tensor-not-found" // no tensor has that name
	ErrClosed   Kind = "closed"           // the File was closed
	ErrFault    Kind = "fault"            // a mapped file was cut short, or its disk failed, while it was read
	ErrRange    Kind = "out-of-range"     // a slice or shape that the tensor does not have
)

// A FormatError says which rule of the format a file breaks, and where.
type FormatError struct {
	Kind   Kind   // the rule that is broken
	File   string // name of the file as it was opened, or ""
	Tensor string // name of the tensor, or "" where it is not about one
	Offset int64  // byte of the file where the fault was seen, or -1
	Want   string // what the format asks for
	Got    string // what was found
	Hint   string // what the file seems to be instead, or what may mend it
	Cause  Kind   // with ErrShardInvalid: the rule that the shard breaks
}

// Error names the file, the kind, the tensor, the place, what was wanted and
// what was found. Names out of the file are quoted and cut to a sane length.
func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: ")
	if e.File != "" {
		b.WriteString(quoteName(e.File))
		b.WriteString(": ")
	}
	b.WriteString(string(e.Kind))
	if e.Cause != "" {
		b.WriteString(": ")
		b.WriteString(string(e.Cause))
	}
	if e.Tensor != "" {
		b.WriteString(": tensor ")
		b.WriteString(quote(e.Tensor))
	}
	if e.Offset >= 0 {
		b.WriteString(" at byte ")
		b.WriteString(strconv.FormatInt(e.Offset, 10))
	}
	if e.Want != "" {
		b.WriteString(": want ")
		b.WriteString(e.Want)
	}
	if e.Got != "" {
		b.WriteString(", got ")
		b.WriteString(e.Got)
	}
	if e.Hint != "" {
		b.WriteString(" (")
		b.WriteString(e.Hint)
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap returns the Kind.
func (e *FormatError) Unwrap() error { return e.Kind }

// Is makes the error of a shard one of its cause's kind too.
func (e *FormatError) Is(target error) bool { return e.Cause != "" && target == e.Cause }

// inFile sets the file name of the FormatErrors made below the caller.
func inFile(err error, name string) error {
	if fe, ok := err.(*FormatError); ok && fe.File == "" {
		fe.File = name
	}
	return err
}

// quote makes a string out of a file safe to print and short enough to read.
func quote(s string) string {
	const most = 120
	if len(s) <= most {
		return strconv.Quote(s)
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// quoteName leaves a usual file name as it is, the backslashes of Windows too.
func quoteName(s string) string {
	if q := strconv.Quote(s); strings.ReplaceAll(q[1:len(q)-1], `\\`, `\`) != s {
		return q
	}
	return s
}

// hint says what a file that is not safetensors is, going by its first bytes.
func hint(head []byte) string {
	// A header length under 4 GiB may look like the first bytes of much else.
	if len(head) >= 8 && len(bytes.Trim(head[4:8], "\x00")) == 0 {
		switch {
		case len(bytes.Trim(head, "\x00")) == 0:
			return "the file begins with NUL bytes: a download or copy that was never filled in"
		case !bytes.HasPrefix(head, []byte("PK\x03\x04")):
			return ""
		}
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	lower := bytes.ToLower(text[:min(len(text), 16)])
	has := func(prefix string) bool { return bytes.HasPrefix(head, []byte(prefix)) }
	switch {
	case has("version https://git-lfs"):
		return "this is a git-lfs pointer, not the file: run git lfs pull"
	case bytes.HasPrefix(lower, []byte("<!doctype")), bytes.HasPrefix(lower, []byte("<html")):
		return "this looks like an HTML page: a login or error page saved in place of the file"
	case bytes.HasPrefix(lower, []byte("<?xml")), bytes.HasPrefix(lower, []byte("<error")):
		return "this looks like an XML document: a store's error message saved in place of the file"
	case has("PK\x03\x04"), has("PK\x05\x06"):
		return "this is a zip archive, such as a PyTorch .bin, .pt or .ckpt file"
	case has("GGUF"):
		return "this is a GGUF file"
	case has("\x1f\x8b"):
		return "this is gzip data: decompress it first"
	case has("\x80\x02"), has("\x80\x03"), has("\x80\x04"), has("\x80\x05"):
		return "this is a Python pickle, such as an old PyTorch file"
	case has("\x93NUMPY"):
		return "this is a NumPy .npy file"
	case has("\x89HDF\r\n\x1a\n"):
		return "this is an HDF5 file, such as a Keras .h5 model"
	case len(text) > 0 && (text[0] == '{' || text[0] == '['):
		return "this looks like JSON without the 8-byte header length before it"
	}
	return ""
}

// notFoundError finds the names that may have been meant only when it is
// printed: looking a name up to see whether it is there must stay cheap.
type notFoundError struct {
	name, file string
	header     *Header
}

func (e *notFoundError) Unwrap() error { return ErrNotFound }

func (e *notFoundError) Error() string {
	msg := "safetensors: "
	if e.file != "" {
		msg += quoteName(e.file) + ": "
	}
	msg += "no tensor " + quote(e.name) + " among " + strconv.Itoa(len(e.header.tensors))
	for i, name := range closeNames(e.name, e.header) {
		if i == 0 {
			msg += "; did you mean "
		} else {
			msg += " or "
		}
		msg += quote(name)
	}
	return msg
}

// closeNames returns up to three names near to name, the nearest first.
func closeNames(name string, h *Header) []string {
	const most, farthest = 3, 4
	var names [most]string
	var ranks [most]int
	n := 0
	for i := range h.tensors[:min(len(h.tensors), 200_000)] {
		have := h.name(&h.tensors[i])
		rank := distance(name, have, farthest)
		if rank >= farthest {
			// A prefix such as "model." that is there or not is a usual slip.
			if len(name) < 4 || len(have) < 4 || !strings.HasSuffix(have, name) && !strings.HasSuffix(name, have) {
				continue
			}
			rank = farthest
		}
		at := n
		for at > 0 && ranks[at-1] > rank {
			at--
		}
		if at == most {
			continue
		}
		n = min(n+1, most)
		copy(names[at+1:], names[at:])
		copy(ranks[at+1:], ranks[at:])
		names[at], ranks[at] = have, rank
	}
	return names[:n]
}

// distance is how many bytes must be added, dropped or changed to make b of a,
// case aside, or most if that many are not enough. Only a band of the usual
// table that is 2*most wide is worked out.
func distance(a, b string, most int) int {
	if len(a)-len(b) >= most || len(b)-len(a) >= most || len(a) > 200 || len(b) > 200 {
		return most
	}
	fold := func(c byte) byte {
		if c-'A' < 26 {
			c |= 0x20
		}
		return c
	}
	var rows [2][202]int
	prev, row := &rows[0], &rows[1]
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		from, to := max(1, i-most), min(len(b), i+most)
		row[from-1] = most
		if from == 1 {
			row[0] = i
		}
		least := row[from-1]
		for j := from; j <= to; j++ {
			d := prev[j-1]
			if fold(a[i-1]) != fold(b[j-1]) {
				d++
			}
			row[j] = min(d, prev[j]+1, row[j-1]+1)
			least = min(least, row[j])
		}
		row[to+1] = most
		if least >= most {
			return most
		}
		prev, row = row, prev
	}
	return min(prev[len(b)], most)
}
