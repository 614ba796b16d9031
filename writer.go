package safetensors

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A SaveOption changes how tensors are written.
type SaveOption func(*saveOptions)

type saveOptions struct {
	metadata  map[string]string
	alignment int
	progress  func(done, total int64)
	ctx       context.Context
	inPlace   bool
	maxShard  int64
	order     []string
}

func saveOptionsOf(opts []SaveOption) (saveOptions, error) {
	o := saveOptions{alignment: 8, maxShard: DefaultMaxShardSize, ctx: context.Background()}
	for _, set := range opts {
		set(&o)
	}
	if n := o.alignment; n < 1 || n&(n-1) != 0 || n > DefaultMaxHeaderSize {
		return o, fmt.Errorf("safetensors: alignment of %d: want a power of two up to %d", n, DefaultMaxHeaderSize)
	}
	return o, nil
}

// WithMetadata writes m as the file's __metadata__. A nil map writes none, an
// empty one an empty object. Many readers want {"format": "pt"}.
func WithMetadata(m map[string]string) SaveOption {
	return func(o *saveOptions) { o.metadata = m }
}

// WithAlignment pads the header so that the data starts at a multiple of n
// bytes, a power of two: 4096 lets others map the data by pages, 1 pads nothing.
// The default is 8, as the reference has it. The format allows no padding
// between tensors; that the widest dtypes come first aligns each to its own
// width, as far as the data start is aligned.
func WithAlignment(n int) SaveOption { return func(o *saveOptions) { o.alignment = n } }

// WithProgress calls fn now and then while the file is written, and once at its
// end, with the bytes written so far and the size of the whole file. It is
// called from the goroutine that saves.
func WithProgress(fn func(done, total int64)) SaveOption {
	return func(o *saveOptions) { o.progress = fn }
}

// WithContext ends a write with ctx's error soon after ctx is done, as any error
// ends it. What follows once all bytes are written is not interrupted.
func WithContext(ctx context.Context) SaveOption { return func(o *saveOptions) { o.ctx = ctx } }

// WithInPlace makes [Save] write over the file itself, for file systems without
// rename. A write that fails then leaves a broken file and what was there is
// lost. Tensors that come from that very file are refused.
func WithInPlace() SaveOption { return func(o *saveOptions) { o.inPlace = true } }

// A layout is what a file will hold, settled before its first byte is written.
type layout struct {
	head    []byte // length and header
	entries []entry
	total   int64 // size of the file
}

type entry struct {
	name string
	Tensor
}

// layOut orders the tensors as the reference does, by dtype from the last to
// the first and then by name, and checks all that can be checked beforehand.
func layOut(tensors map[string]Tensor, o saveOptions) (*layout, error) {
	l := &layout{entries: make([]entry, 0, len(tensors))}
	for name, t := range tensors {
		l.entries = append(l.entries, entry{name, t})
	}
	slices.SortFunc(l.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.dtype, a.dtype), cmp.Compare(a.name, b.name))
	})
	text := 0
	for _, e := range l.entries {
		if err := checkEntry(e.name, e.Tensor); err != nil {
			return nil, err
		}
		text += len(e.name) + 64 + 8*len(e.shape)
	}
	for k, v := range o.metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, &FormatError{Kind: ErrBadName, Offset: -1, Want: "metadata in valid UTF-8", Got: quote(k) + ": " + quote(v)}
		}
		text += len(k) + len(v) + 8
	}

	b := append(make([]byte, 8, 8+text+o.alignment), '{')
	if o.metadata != nil {
		b = appendMetadata(b, o.metadata)
	}
	var data int64
	for i, e := range l.entries {
		if i > 0 || o.metadata != nil {
			b = append(b, ',')
		}
		end := data + e.size
		if end < data {
			return nil, &FormatError{Kind: ErrSizeOverflow, Tensor: e.name, Offset: -1, Want: "data of at most 2^63-1 bytes", Got: "more"}
		}
		b = appendEntry(b, e, data, end)
		data = end
	}
	b = append(b, '}')
	for len(b)%o.alignment != 0 {
		b = append(b, ' ')
	}
	n := len(b) - 8
	if n > DefaultMaxHeaderSize {
		return nil, &FormatError{Kind: ErrHeaderTooLarge, Offset: -1,
			Want: fmt.Sprintf("a header of at most %d bytes", DefaultMaxHeaderSize), Got: strconv.Itoa(n)}
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	l.head = b
	if l.total = data + int64(len(b)); l.total < data {
		return nil, &FormatError{Kind: ErrSizeOverflow, Offset: -1, Want: "a file of at most 2^63-1 bytes", Got: "more"}
	}
	return l, nil
}

func checkEntry(name string, t Tensor) error {
	if name == "__metadata__" {
		return &FormatError{Kind: ErrBadName, Tensor: name, Offset: -1, Want: "a tensor name", Got: "the key that metadata has"}
	}
	if !utf8.ValidString(name) {
		return &FormatError{Kind: ErrBadName, Tensor: name, Offset: -1, Want: "a name in valid UTF-8", Got: quote(name)}
	}
	err := t.usable()
	var fe *FormatError
	if errors.As(err, &fe) {
		named := *fe
		named.Tensor = name
		return &named
	}
	if err != nil {
		return fmt.Errorf("safetensors: tensor %s: %w", quote(name), err)
	}
	return nil
}

func appendMetadata(b []byte, m map[string]string) []byte {
	b = append(b, `"__metadata__":{`...)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendString(b, m[k])
	}
	return append(b, '}')
}

func appendEntry(b []byte, e entry, begin, end int64) []byte {
	b = appendString(b, e.name)
	b = append(b, `:{"dtype":"`...)
	b = append(b, e.dtype.String()...)
	b = append(b, `","shape":[`...)
	for i, dim := range e.shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(dim), 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = strconv.AppendInt(b, begin, 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, end, 10)
	return append(b, "]}"...)
}

// appendString quotes s as the reference's JSON library does: only what RFC
// 8259 asks for is escaped.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\f':
			b = append(b, `\f`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// Write writes the tensors to w as one file and returns how many bytes it
// wrote. They are laid out as the reference does it, so the same tensors and
// metadata give the same bytes. What the format does not allow is refused before
// the first byte: a tensor that does not agree with its dtype and shape, a name
// that is not UTF-8 or is __metadata__, a header over the limit. Memory stays at
// a few MiB besides the header.
func Write(w io.Writer, tensors map[string]Tensor, opts ...SaveOption) (int64, error) {
	o, err := saveOptionsOf(opts)
	if err != nil {
		return 0, err
	}
	l, err := layOut(tensors, o)
	if err != nil {
		return 0, err
	}
	return l.write(newOutput(w, l.total, o))
}

// writeFile writes all of f, which the caller syncs then. Much of it is on its
// way to the disk by that time.
func (l *layout) writeFile(f *os.File, o saveOptions) error {
	out := newOutput(f, l.total, o)
	out.synced = true
	_, err := l.write(out)
	return err
}

// write writes the file that was laid out.
func (l *layout) write(out *output) (int64, error) {
	defer out.close()
	if _, err := out.Write(l.head); err != nil {
		return out.done, fmt.Errorf("safetensors: writing the header: %w", err)
	}
	for _, e := range l.entries {
		if err := out.tensor(e.Tensor); err != nil {
			return out.done, fmt.Errorf("safetensors: writing tensor %s: %w", quote(e.name), err)
		}
	}
	if err := out.flush(); err != nil {
		return out.done, fmt.Errorf("safetensors: writing: %w", err)
	}
	out.report()
	return out.done, nil
}

// An output gathers small writes, passes large ones on as they are, counts, and
// reports progress.
type output struct {
	w        io.Writer
	file     *os.File // w, where it is one
	buf      []byte
	done     int64 // bytes that w took
	total    int64
	progress func(done, total int64)
	ctx      context.Context
	copier   copier
	synced   bool  // w is a file from its start on, which will be synced
	started  int64 // up to where the system was told to write it back
}

// smallTensor is the size up to which tensors are gathered in the buffer.
const smallTensor = 128 << 10

// writeMost is how much is written at once, so that a context is asked in time.
// It is also how much of a file that will be synced is written before the disk
// is set to work on it.
const writeMost = 8 * blockSize

func newOutput(w io.Writer, total int64, o saveOptions) *output {
	out := &output{w: w, total: total, progress: o.progress, ctx: o.ctx, buf: make([]byte, 0, min(total, blockSize))}
	out.file, _ = w.(*os.File)
	return out
}

func (o *output) close() { o.copier.close() }

// tensor writes all of t.
func (o *output) tensor(t Tensor) error {
	if _, once := t.src.(funcSource); t.size <= smallTensor && !once {
		if int64(cap(o.buf)-len(o.buf)) < t.size {
			if err := o.flush(); err != nil {
				return err
			}
		}
		end := len(o.buf) + int(t.size)
		if err := t.src.read(o.buf[len(o.buf):end], t.off); err != nil {
			return err
		}
		o.buf = o.buf[:end]
		return nil
	}
	n, err := t.src.writeTo(o, t.off, t.size)
	if err == nil && n != t.size {
		err = fmt.Errorf("%d of %d bytes: %w", n, t.size, io.ErrUnexpectedEOF)
	}
	return err
}

func (o *output) Write(p []byte) (int, error) {
	if len(p) <= cap(o.buf)-len(o.buf) {
		o.buf = append(o.buf, p...)
		return len(p), nil
	}
	if err := o.flush(); err != nil {
		return 0, err
	}
	if len(p) < cap(o.buf)/2 {
		o.buf = append(o.buf, p...)
		return len(p), nil
	}
	return o.direct(p)
}

// direct passes p on without reading it. The buffer must be empty.
func (o *output) direct(p []byte) (int, error) {
	done := 0
	for {
		if err := o.ctx.Err(); err != nil {
			return done, err
		}
		b := p[done:]
		b = b[:min(len(b), writeMost)]
		n, err := o.w.Write(b)
		if n < 0 || n > len(b) {
			return done, errors.New("the writer returned an impossible count")
		}
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		done += n
		o.wrote(int64(n))
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

func (o *output) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	b := o.buf
	o.buf = o.buf[:0]
	_, err := o.direct(b)
	return err
}

// wrote counts n bytes that w took.
func (o *output) wrote(n int64) {
	o.done += n
	if n := o.done - o.started; o.synced && n >= writeMost {
		startWriteback(o.file, o.started, n)
		o.started = o.done
	}
	o.report()
}

func (o *output) report() {
	if o.progress != nil {
		o.progress(o.done, o.total)
	}
}

// mapWriter returns a writer that takes memory of a map as it is, without
// reading it in this process, or nil if w has none.
func mapWriter(w io.Writer) io.Writer {
	switch w := w.(type) {
	case *os.File:
		return w
	case *output:
		if w.file != nil {
			return unbuffered{w}
		}
	}
	return nil
}

type unbuffered struct{ *output }

func (u unbuffered) Write(p []byte) (int, error) {
	if err := u.flush(); err != nil {
		return 0, err
	}
	return u.direct(p)
}
