package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// scanResult is what a scanner makes of a header, in a form to compare.
type scanResult struct {
	Tensors  []TensorInfo
	Metadata map[string]string
	Err      *FormatError
}

// scanOnly scans a copy of text, with the compact form tried or not. Hashes of
// names are not compared but worked out again, for the place of a name in text
// is what counts.
func scanOnly(t require.TestingT, text []byte, compat, tryCompact bool) scanResult {
	s := scanner{buf: slices.Concat(text, make([]byte, scanPad)), end: len(text), compat: compat, seed: maphash.MakeSeed()}
	if !tryCompact {
		s.misses = maxMisses
	}
	if err := s.scan(); err != nil {
		fe, ok := err.(*FormatError)
		require.True(t, ok, "%T: %v", err, err)
		require.NotEmpty(t, fe.Kind)
		require.GreaterOrEqual(t, fe.Offset, int64(8))
		require.LessOrEqual(t, fe.Offset, int64(8+len(text)))
		return scanResult{Err: fe}
	}
	require.Equal(t, make([]byte, scanPad), s.buf[len(text):], "the padding must stay zero")
	h := Header{text: s.buf[:s.end], dims: s.dims, tensors: s.tensors}
	for _, r := range s.tensors {
		require.Equal(t, hashName(s.seed, h.name(&r)), r.hash)
	}
	return scanResult{Tensors: h.Tensors(), Metadata: s.metadata}
}

// checkScan scans text in every way and holds the ways against each other and
// against encoding/json, which knows nothing of this format.
func checkScan(t require.TestingT, text []byte) {
	var results [2]scanResult
	for i, compat := range []bool{false, true} {
		quick, general := scanOnly(t, text, compat, true), scanOnly(t, text, compat, false)
		require.Equal(t, general, quick, "the compact form read %q otherwise", text)
		if results[i] = quick; quick.Err == nil {
			agreesWithJSON(t, text, quick)
		}
	}
	strict := results[0]
	switch {
	case strict.Err == nil:
		require.Equal(t, strict, results[1], "compat read %q otherwise", text)
	case strict.Err.Kind == ErrHeaderNotUTF8:
		require.False(t, utf8.Valid(text), "%q: %v", text, strict.Err)
	case strict.Err.Kind == ErrHeaderNotJSON && !slices.Contains([]string{wantPair, wantNumber, wantLevels}, strict.Err.Want):
		require.False(t, json.Valid(text), "%q: %v", text, strict.Err)
	}
}

// What this package asks of JSON and encoding/json does not.
const (
	wantPair   = "a pair of surrogates"
	wantNumber = "a number that the reference takes"
	wantLevels = "at most 127 levels"
)

// agreesWithJSON checks a result against what encoding/json reads, where the
// last of two equal names wins.
func agreesWithJSON(t require.TestingT, text []byte, got scanResult) {
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &members), "%q was accepted", text)
	var metadata map[string]string
	if raw, ok := members["__metadata__"]; ok {
		require.NoError(t, json.Unmarshal(raw, &metadata))
		delete(members, "__metadata__")
	}
	require.Equal(t, metadata, got.Metadata, "%q", text)
	last := map[string]TensorInfo{}
	for _, info := range got.Tensors {
		last[info.Name] = info
	}
	require.Equal(t, slices.Sorted(maps.Keys(members)), slices.Sorted(maps.Keys(last)), "%q", text)
	for name, info := range last {
		// A map, since struct fields would match in any case.
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(members[name], &fields))
		var dtype DType
		var shape, offsets []uint64
		require.NoError(t, json.Unmarshal(fields["dtype"], &dtype))
		require.NoError(t, json.Unmarshal(fields["shape"], &shape))
		require.NoError(t, json.Unmarshal(fields["data_offsets"], &offsets))
		require.Equal(t, dtype, info.DType)
		require.Len(t, info.Shape, len(shape))
		for i, dim := range shape {
			if int64(dim) >= 0 && uint64(int(dim)) == dim {
				require.EqualValues(t, dim, info.Shape[i], "%q", text)
			} else {
				require.Equal(t, beyond, info.Shape[i], "%q", text)
			}
		}
		require.Len(t, offsets, 2)
		for i, at := range []int64{info.Begin, info.End} {
			require.EqualValues(t, max(int64(offsets[i]), beyond), max(at, beyond), "%q", text)
		}
	}
}

// seeds are the headers, or whole files, of testdata.
func seeds(f *testing.F, add func(file []byte)) {
	names, err := filepath.Glob("testdata/*.safetensors")
	require.NoError(f, err)
	require.NotEmpty(f, names)
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(f, err)
		add(data)
	}
}

func FuzzHeader(f *testing.F) {
	seeds(f, func(file []byte) {
		if len(file) >= 8 {
			n := min(binary.LittleEndian.Uint64(file), uint64(len(file)-8))
			f.Add(file[8 : 8+n])
		}
	})
	for _, text := range []string{
		`{"a":{"dtype":"U8","shape":[],"data_offsets":[0 1]}}`,
		`{"a":{"dtype":"F4","shape":[2,0,99999999999999999999],"data_offsets":[18446744073709551615,9223372036854775808]}}`,
		`{"\ud83d\ude00":{"data_offsets":[0,4],"x":[{"y":-1.5e-3},null,true,false,"\/"],"dtype":"\u0046\u0033\u0032","shape":[1]}}`,
		`{"é日本":{"dtype":"BF16","shape":[12345678,123456789012345],"data_offsets":[0,0]},"é":{}}`,
		` {"__metadata__":null,"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}} `,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkScan(t, text) })
}

func FuzzParse(f *testing.F) {
	seeds(f, func(file []byte) { f.Add(file) })
	f.Fuzz(checkParse)
}

// checkParse reads all of whatever is accepted.
func checkParse(t *testing.T, data []byte) {
	before := bytes.Clone(data)
	file, err := Parse(data)
	loose, looseErr := Parse(data, WithCompat())
	h, headerErr := ReadHeader(bytes.NewReader(data))
	_, readErr := NewFile(bytes.NewReader(data), int64(len(data)))
	require.Equal(t, before, data, "the caller's memory was changed")
	require.Equal(t, err, readErr)
	if err != nil {
		var fe *FormatError
		require.ErrorAs(t, err, &fe)
		require.ErrorIs(t, err, fe.Kind)
		if headerErr == nil {
			require.Contains(t, []Kind{ErrDataTruncated, ErrTrailingBytes}, fe.Kind)
		}
	} else {
		require.NoError(t, looseErr)
		require.NoError(t, headerErr)
		require.Equal(t, h.Tensors(), file.Header().Tensors())
		require.Equal(t, file.Header().Tensors(), loose.Header().Tensors())
		require.Equal(t, file.Metadata(), loose.Metadata())
		walk(t, file, data)
	}
	if looseErr == nil {
		walk(t, loose, data)
	}
}

// walk checks that the tensors of file are what data has, one after the other.
func walk(t *testing.T, file *File, data []byte) {
	t.Helper()
	at := file.Header().DataStart()
	count := 0
	for name, tensor := range file.All() {
		count++
		again, err := file.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, tensor, again)
		bits := uint64(tensor.DType().Bits())
		for _, dim := range tensor.Shape() {
			bits *= uint64(dim)
		}
		require.Equal(t, bits, 8*uint64(tensor.Size()))
		require.Equal(t, bits, uint64(tensor.Len())*uint64(tensor.DType().Bits()))
		b, err := tensor.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[at:at+tensor.Size()], b))
		require.Equal(t, len(b), cap(b))
		p := make([]byte, len(b)+1)
		n, err := tensor.ReadAt(p, 0)
		require.Equal(t, io.EOF, err)
		require.True(t, bytes.Equal(b, p[:n]))
		at += tensor.Size()
	}
	require.Equal(t, count, file.Len())
	require.EqualValues(t, len(data), at)
}

func FuzzRoundTrip(f *testing.F) {
	seeds(f, func(file []byte) { f.Add(file, true) })
	f.Add([]byte("\x00\x01\x02\x03abcdefghijklmnop"), false)
	f.Fuzz(func(t *testing.T, data []byte, withMetadata bool) {
		tensors, metadata := tensorsFrom(data)
		if !withMetadata {
			metadata = nil
		}
		var out bytes.Buffer
		n, err := Write(&out, tensors, WithMetadata(metadata))
		require.NoError(t, err)
		require.EqualValues(t, out.Len(), n)
		file, err := Parse(out.Bytes())
		require.NoError(t, err)
		require.Equal(t, metadata, file.Metadata())
		require.Equal(t, len(tensors), file.Len())
		require.Zero(t, file.Header().DataStart()%8)
		read := maps.Collect(file.All())
		for name, want := range tensors {
			got := read[name]
			require.Equal(t, want.DType(), got.DType())
			require.Equal(t, want.Shape(), got.Shape())
			wantBytes, err := want.Bytes()
			require.NoError(t, err)
			gotBytes, err := got.Bytes()
			require.NoError(t, err)
			require.Equal(t, wantBytes, gotBytes)
		}
		var again bytes.Buffer
		_, err = Write(&again, read, WithMetadata(file.Metadata()))
		require.NoError(t, err)
		require.Equal(t, out.Bytes(), again.Bytes())
	})
}

// tensorsFrom makes tensors of arbitrary bytes: names, dtypes, shapes and data.
func tensorsFrom(b []byte) (tensors map[string]Tensor, metadata map[string]string) {
	tensors, metadata = map[string]Tensor{}, map[string]string{}
	next := func() int {
		if len(b) == 0 {
			return 0
		}
		v := b[0]
		b = b[1:]
		return int(v)
	}
	text := func() string {
		n := min(next()%24, len(b))
		s := string(bytes.ToValidUTF8(b[:n], []byte("\x00é\"")))
		b = b[n:]
		return s
	}
	for len(b) > 0 {
		metadata[text()] = text()
		d := DType(next())%U64 + 1
		shape := make([]int, next()%4)
		size := uint64(d.Bits())
		for i := range shape {
			shape[i] = next() % 6
			size *= uint64(shape[i])
		}
		if size%8 != 0 {
			shape = append(shape, 4)
			size *= 4
		}
		name := text()
		if name == "__metadata__" {
			name = ""
		}
		data := make([]byte, size/8)
		b = b[copy(data, b):]
		tensors[name] = New(d, shape, data)
	}
	return tensors, metadata
}

// A headerModel is what a rendered header says.
type headerModel struct {
	metadata map[string]string
	tensors  []TensorInfo
}

// newModel makes a valid header of up to n tensors, which tile their data.
func newModel(r *rand.Rand, n int) headerModel {
	var m headerModel
	if r.IntN(2) == 0 {
		m.metadata = map[string]string{}
		for range r.IntN(4) {
			m.metadata[randomText(r)] = randomText(r)
		}
	}
	used := map[string]bool{"__metadata__": true}
	var at int64
	for i := range r.IntN(n + 1) {
		name := fmt.Sprintf("model.layers.%d.weight", i)
		if r.IntN(3) == 0 {
			name = randomText(r)
		}
		if used[name] {
			continue
		}
		used[name] = true
		info := TensorInfo{Name: name, DType: DType(r.IntN(int(U64))) + 1, Shape: []int{}, Begin: at}
		for range r.IntN(5) {
			info.Shape = append(info.Shape, r.IntN(1<<(1+r.IntN(12)))*4)
		}
		if len(m.tensors) > 0 && r.IntN(2) == 0 { // as models do, which the compact form makes use of
			had := m.tensors[r.IntN(len(m.tensors))]
			info.DType, info.Shape = had.DType, had.Shape
		}
		size, kind := sizeOf(info.DType, info.Shape)
		if kind != "" {
			continue
		}
		at += size
		info.End = at
		m.tensors = append(m.tensors, info)
	}
	return m
}

// randomText returns a string that needs escapes more often than most.
func randomText(r *rand.Rand) string {
	pieces := []string{"a", "weight", ".", "\"", "\\", "/", "\n", "\x00", "\x1f", "\x7f", "é", "日本", "\u2028", "😀", "\U0010ffff", "dtype", "{", "]", " "}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// compactForm renders m as the reference writes it.
func (m headerModel) compactForm() []byte {
	b := []byte{'{'}
	if m.metadata != nil {
		b = appendMetadata(b, m.metadata)
	}
	for i, info := range m.tensors {
		if i > 0 || m.metadata != nil {
			b = append(b, ',')
		}
		b = appendEntry(b, entry{info.Name, Tensor{dtype: info.DType, shape: info.Shape}}, info.Begin, info.End)
	}
	return append(b, '}')
}

// oddForm renders m in some other way that means the same.
func (m headerModel) oddForm(r *rand.Rand) []byte {
	o := oddWriter{r: r, rate: r.IntN(12) + 1}
	var members []func()
	if m.metadata != nil {
		members = append(members, func() {
			o.text("__metadata__")
			o.token(":")
			var pairs []func()
			for k, v := range m.metadata {
				pairs = append(pairs, func() { o.text(k); o.token(":"); o.text(v) })
			}
			o.list("{", "}", pairs)
		})
	}
	for _, info := range m.tensors {
		members = append(members, func() { o.tensor(info) })
	}
	if o.odd() { // else in data order
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	}
	o.list("{", "}", members)
	o.space()
	return o.b
}

// An oddWriter departs from the compact form at about one in rate chances.
type oddWriter struct {
	b    []byte
	r    *rand.Rand
	rate int
}

func (o *oddWriter) odd() bool { return o.r.IntN(o.rate) == 0 && o.rate < 12 }

func (o *oddWriter) space() {
	for o.odd() && o.r.IntN(3) > 0 {
		o.b = append(o.b, " \t\r\n"[o.r.IntN(4)])
	}
}

func (o *oddWriter) token(s string) {
	if len(o.b) > 0 {
		o.space()
	}
	o.b = append(o.b, s...)
	o.space()
}

func (o *oddWriter) list(open, shut string, items []func()) {
	o.token(open)
	for i, item := range items {
		if i > 0 {
			o.token(",")
		}
		item()
	}
	o.token(shut)
}

func (o *oddWriter) text(s string) {
	o.b = append(o.b, '"')
	for _, c := range s {
		switch {
		case o.odd() && c == '/':
			o.b = append(o.b, `\/`...)
		case o.odd() && c > 0xffff:
			hi, lo := utf16.EncodeRune(c)
			o.b = fmt.Appendf(o.b, `\u%04x\u%04X`, hi, lo)
		case o.odd() && c <= 0xffff:
			o.b = fmt.Appendf(o.b, []string{`\u%04x`, `\u%04X`}[o.r.IntN(2)], c)
		default:
			quoted := appendString(nil, string(c))
			o.b = append(o.b, quoted[1:len(quoted)-1]...)
		}
	}
	o.b = append(o.b, '"')
}

func (o *oddWriter) number(n int64) func() {
	return func() { o.token(strconv.FormatInt(n, 10)) }
}

func (o *oddWriter) tensor(info TensorInfo) {
	o.text(info.Name)
	o.token(":")
	fields := []func(){
		func() { o.text("dtype"); o.token(":"); o.text(info.DType.String()) },
		func() {
			o.text("shape")
			o.token(":")
			var dims []func()
			for _, dim := range info.Shape {
				dims = append(dims, o.number(int64(dim)))
			}
			o.list("[", "]", dims)
		},
		func() {
			o.text("data_offsets")
			o.token(":")
			o.list("[", "]", []func(){o.number(info.Begin), o.number(info.End)})
		},
	}
	for i := 0; o.odd() && i < 3; i++ {
		fields = append(fields, func() {
			o.text(fmt.Sprintf("unknown%d%s", i, randomText(o.r)))
			o.token(":")
			o.value(0)
		})
	}
	if o.odd() {
		o.r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	}
	o.list("{", "}", fields)
}

// value writes any JSON value.
func (o *oddWriter) value(depth int) {
	kind := o.r.IntN(10)
	var items []func()
	if kind > 7 && depth < 5 {
		for i := range o.r.IntN(4) {
			items = append(items, func() {
				if kind == 9 {
					o.text(fmt.Sprintf("%d%s", i, randomText(o.r)))
					o.token(":")
				}
				o.value(depth + 1)
			})
		}
	}
	switch kind {
	case 9:
		o.list("{", "}", items)
	case 8:
		o.list("[", "]", items)
	case 7:
		o.text(randomText(o.r))
	default:
		o.token([]string{"null", "true", "false", "0", "-0", "-12.5E+3", "1e-400"}[kind])
	}
}

// TestForms demands that a header reads the same in the compact form and in any
// other that means the same.
func TestForms(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newModel(r, 12)
		for _, text := range [][]byte{m.compactForm(), m.oddForm(r), m.oddForm(r)} {
			checkScan(t, text)
			for _, opts := range [][]Option{nil, {WithCompat()}} {
				h, err := ReadHeader(bytes.NewReader(withLength(text)), opts...)
				require.NoError(t, err, "%q", text)
				require.Equal(t, m.metadata, h.Metadata(), "%q", text)
				require.Len(t, h.Tensors(), len(m.tensors))
				for _, info := range m.tensors {
					same, ok := h.Lookup(info.Name)
					require.True(t, ok)
					require.Equal(t, info, same)
				}
			}
		}
	}
}

// TestFormsBroken breaks headers token by token, which random bytes seldom do.
func TestFormsBroken(t *testing.T) {
	tokens := []string{"", " ", ",", ":", "[", "]", "{", "}", "\"", "\\", "0", "1", "-", ".", "e", "E9", "\x00", "\t", "\\u", "\\ud800", "\x80", "é",
		"null", "true", `"x":1,`, `"dtype":"U8",`, `"shape":[],`, `,"shape":[0]`, `"__metadata__":{},`, "99999999999999999999", "[[", "{}"}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := newModel(r, 4)
		text := m.compactForm()
		if r.IntN(2) == 0 {
			text = m.oddForm(r)
		}
		for range 1 + r.IntN(3) {
			from := r.IntN(len(text) + 1)
			to := min(from+r.IntN(3)*r.IntN(3), len(text))
			text = slices.Concat(text[:from], []byte(tokens[r.IntN(len(tokens))]), text[to:])
			checkScan(t, text)
		}
	}
}

// withLength puts the length of a header before it.
func withLength(text []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
}
