package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// file puts the length of a header before it and data after it.
func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// withExtra is a file of one byte of data whose entry has further fields.
func withExtra(fields string) []byte {
	return file(`{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],`+fields+`}}`, 7)
}

// kindOf returns the kind of the FormatError that Parse gives, or "".
func kindOf(t *testing.T, data []byte, opts ...safetensors.Option) safetensors.Kind {
	t.Helper()
	f, err := safetensors.Parse(data, opts...)
	if err == nil {
		require.NoError(t, f.Close())
		return ""
	}
	var fe *safetensors.FormatError
	require.ErrorAs(t, err, &fe)
	require.ErrorIs(t, err, fe.Kind)
	require.LessOrEqual(t, fe.Offset, int64(len(data)))
	require.Less(t, len(err.Error()), 1000, "the message must stay readable")
	return fe.Kind
}

// Values of unknown keys and forms of entries: the kind of error that they are
// with the defaults and WithCompat, "" where they are fine.
func TestHeaderGrammar(t *testing.T) {
	const (
		ok      = safetensors.Kind("")
		notJSON = safetensors.ErrHeaderNotJSON
		notUTF8 = safetensors.ErrHeaderNotUTF8
		badInfo = safetensors.ErrBadTensorInfo
		dup     = safetensors.ErrDuplicateKey
	)
	nest := func(open, inner, shut string, n int) string {
		return `"x":` + strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
	}
	mixed := func(n int) string {
		return `"x":` + strings.Repeat(`[{"k":`, n) + "0" + strings.Repeat("}]", n)
	}
	for _, c := range []struct {
		name           string
		extra          string
		strict, compat safetensors.Kind
	}{
		// Nesting, counted as the reference's JSON library does.
		{"125 arrays", nest("[", "", "]", 125), ok, ok},
		{"126 arrays", nest("[", "", "]", 126), notJSON, notJSON},
		{"125 objects", nest(`{"k":`, "0", "}", 125), ok, ok},
		{"126 objects", nest(`{"k":`, "0", "}", 126), notJSON, notJSON},
		{"124 of each in turn", mixed(62), ok, ok},
		{"125 of each in turn", nest("[", `{"k":`+strings.Repeat(`[{"k":`, 61)+"[0]"+strings.Repeat("}]", 61)+"}", "]", 1), ok, ok},
		{"126 of each in turn", mixed(63), notJSON, notJSON},
		{"125 arrays twice", nest("[", "", "]", 125) + "," + strings.Replace(nest("[", "", "]", 125), "x", "y", 1), ok, ok},
		{"a million arrays", nest("[", "", "]", 1_000_000), notJSON, notJSON},
		{"a million open arrays", nest("[", "", "", 1_000_000), notJSON, notJSON},
		{"a million open objects", nest(`{"":`, "", "", 1_000_000), notJSON, notJSON},

		// Numbers.
		{"zero", `"x":0`, ok, ok},
		{"minus zero", `"x":-0`, ok, ok},
		{"minus zero point zero", `"x":-0.0e-0`, ok, ok},
		{"all parts", `"x":-12.034E+05`, ok, ok},
		{"largest float64", `"x":1.7976931348623157e308`, ok, ok},
		{"over a float64", `"x":1e400`, notJSON, notJSON},
		{"under a float64", `"x":-1e400`, notJSON, notJSON},
		{"too small for a float64", `"x":1e-400`, ok, ok},
		{"zero to a huge power", `"x":0e999999999999`, ok, ok},
		{"300 digits", `"x":` + strings.Repeat("9", 300), ok, ok},
		{"400 digits", `"x":` + strings.Repeat("9", 400), notJSON, notJSON},
		{"400 digits after the point", `"x":0.` + strings.Repeat("9", 400), ok, ok},
		{"leading zero", `"x":01`, notJSON, notJSON},
		{"two zeros", `"x":00`, notJSON, notJSON},
		{"minus and leading zero", `"x":-01`, notJSON, notJSON},
		{"minus alone", `"x":-`, notJSON, notJSON},
		{"plus", `"x":+1`, notJSON, notJSON},
		{"no digit before the point", `"x":.5`, notJSON, notJSON},
		{"no digit after the point", `"x":1.`, notJSON, notJSON},
		{"no exponent", `"x":1e`, notJSON, notJSON},
		{"no exponent after its sign", `"x":1e+`, notJSON, notJSON},
		{"hexadecimal", `"x":0x10`, notJSON, notJSON},
		{"two points", `"x":1.2.3`, notJSON, notJSON},
		{"infinity", `"x":Infinity`, notJSON, notJSON},
		{"not a number", `"x":NaN`, notJSON, notJSON},

		// Words.
		{"words", `"x":[true,false,null]`, ok, ok},
		{"capitals", `"x":True`, notJSON, notJSON},
		{"short word", `"x":tru`, notJSON, notJSON},
		{"long word", `"x":nullx`, notJSON, notJSON},
		{"no value", `"x":`, notJSON, notJSON},
		{"no colon", `"x" 1`, notJSON, notJSON},
		{"two colons", `"x"::1`, notJSON, notJSON},
		{"no quotes", `x:1`, notJSON, notJSON},
		{"single quotes", `'x':1`, notJSON, notJSON},
		{"comment", `"x":1/**/`, notJSON, notJSON},

		// Strings.
		{"all escapes", `"x":"\"\\\/\b\f\n\r\t\u00e9\u65e5\uFFFF"`, ok, ok},
		{"pair of surrogates", `"x":"\ud83d\ude00"`, ok, ok},
		{"pair in capitals", `"x":"\uD83D\uDE00"`, ok, ok},
		{"first and last pair", `"x":"\ud800\udc00\udbff\udfff"`, ok, ok},
		{"lone high surrogate", `"x":"\ud83d"`, notJSON, notJSON},
		{"lone low surrogate", `"x":"\ude00"`, notJSON, notJSON},
		{"high surrogate and a letter", `"x":"\ud83dx"`, notJSON, notJSON},
		{"high surrogate and another escape", `"x":"\ud83d\n"`, notJSON, notJSON},
		{"high surrogate and a usual code", `"x":"\ud83d\u0041"`, notJSON, notJSON},
		{"two high surrogates", `"x":"\ud83d\ud83d"`, notJSON, notJSON},
		{"pair the wrong way round", `"x":"\ude00\ud83d"`, notJSON, notJSON},
		{"lone surrogate in a key", `"\ud83d":0`, notJSON, notJSON},
		{"unknown escape", `"x":"\x"`, notJSON, notJSON},
		{"escape in capitals", `"x":"\N"`, notJSON, notJSON},
		{"three digits", `"x":"\u12g"`, notJSON, notJSON},
		{"escape at the end", `"x":"\`, notJSON, notJSON},
		{"bad escape after characters moved", `"x":"\u0041日本日本日本\x"`, notJSON, notJSON},
		{"control character after characters moved", `"x":"\u00e9日本日本日本` + "\n\"", notJSON, notJSON},
		{"end after characters moved", `"x":"\ud83d\ude00日本日本日本`, notJSON, notJSON},
		{"newline", "\"x\":\"\n\"", notJSON, notJSON},
		{"NUL", "\"x\":\"\x00\"", notJSON, notJSON},
		{"control character", "\"x\":\"\x1f\"", notJSON, notJSON},
		{"DEL", "\"x\":\"\x7f\"", ok, ok},
		{"escaped NUL", `"x":"\u0000"`, ok, ok},
		{"unclosed", `"x":"`, notJSON, notJSON},
		{"bad UTF-8", "\"x\":\"\xff\"", notUTF8, notUTF8},
		{"bad UTF-8 after an escape", "\"x\":\"\\n\xff\"", notUTF8, notUTF8},
		{"cut UTF-8", "\"x\":\"\xe6\x97\"", notUTF8, notUTF8},
		{"cut UTF-8 before an escape", "\"x\":\"\xe6\x97\\u00a5\"", notUTF8, notUTF8},
		{"overlong UTF-8", "\"x\":\"\xc0\xaf\"", notUTF8, notUTF8},
		{"surrogate in UTF-8", "\"x\":\"\xed\xa0\x80\"", notUTF8, notUTF8},
		{"UTF-8 over U+10FFFF", "\"x\":\"\xf4\x90\x80\x80\"", notUTF8, notUTF8},
		{"bad UTF-8 between tokens", "\"x\":0\xff", notUTF8, notUTF8},
		{"NUL between tokens", "\"x\":0\x00", notJSON, notJSON},
		{"no-break space between tokens", "\"x\":0\u00a0", notJSON, notJSON},
		{"form feed between tokens", "\"x\":0\f", notJSON, notJSON},
		{"all white space between tokens", " \t\r\n\"x\" \t\r\n: \t\r\n0 \t\r\n", ok, ok},

		// Commas.
		{"trailing comma", `"x":0,`, notJSON, notJSON},
		{"two commas", `"x":0,,"y":0`, notJSON, notJSON},
		{"comma that trails in an array", `"x":[0,]`, notJSON, notJSON},
		{"comma that leads in an array", `"x":[,0]`, notJSON, notJSON},
		{"comma alone in an array", `"x":[,]`, notJSON, notJSON},
		{"no comma in an array", `"x":[0 0]`, notJSON, notJSON},
		{"comma that trails in an object", `"x":{"y":0,}`, notJSON, notJSON},
		{"no comma in an object", `"x":{"y":0 "z":0}`, notJSON, notJSON},
		{"no comma between fields", `"x":0 "y":0`, notJSON, notJSON},
		{"wrong bracket", `"x":[0}`, notJSON, notJSON},
		{"wrong brace", `"x":{"y":0]`, notJSON, notJSON},

		// Keys that stand twice.
		{"unknown key twice", `"x":0,"x":0`, dup, ok},
		{"unknown key twice by an escape", `"x":0,"\u0078":0`, dup, ok},
		{"twice one level down", `"x":{"y":0,"y":0}`, dup, ok},
		{"twice in an object in an array", `"x":[{"y":0},{"y":0,"y":1}]`, dup, ok},
		{"same key at two levels", `"x":{"x":{"x":0}}`, ok, ok},
		{"same key in two objects", `"x":[{"y":0},{"y":0}]`, ok, ok},
		{"twice among many", `"x":{` + manyKeys(100) + `,"k7":0}`, dup, ok},
		{"once among many", `"x":{` + manyKeys(100) + `}`, ok, ok},
		{"names that differ in case", `"Dtype":0,"DTYPE":0,"Shape":0`, ok, ok},
		{"dtype twice", `"dtype":"U8"`, dup, dup},
		{"shape twice", `"shape":[1]`, dup, dup},
		{"data_offsets twice", `"data_offsets":[0,1]`, dup, dup},
		{"dtype twice by an escape", `"dt\u0079pe":"U8"`, dup, dup},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.strict, kindOf(t, withExtra(c.extra)))
			require.Equal(t, c.compat, kindOf(t, withExtra(c.extra), safetensors.WithCompat()))
		})
	}

	for _, c := range []struct {
		name           string
		header         string
		strict, compat safetensors.Kind
	}{
		{"no comma between offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0 1]}}`, notJSON, notJSON},
		{"three offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}`, badInfo, badInfo},
		{"one offset", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[1]}}`, badInfo, badInfo},
		{"no offset", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[]}}`, badInfo, badInfo},
		{"comma after the offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,]}}`, badInfo, badInfo},
		{"comma after one offset", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,]}}`, notJSON, notJSON},
		{"comma before the offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[,0,1]}}`, notJSON, notJSON},
		{"nested offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[[0,1]]}}`, badInfo, badInfo},
		{"comma after the shape", `{"t":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"comma before the shape", `{"t":{"dtype":"U8","shape":[,1],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"no comma in the shape", `{"t":{"dtype":"U8","shape":[1 1],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"comma in the braces", `{,}`, notJSON, notJSON},
		{"comma after the entry", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},}`, notJSON, notJSON},
		{"comma before the entry", `{,"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"comma in the entry", `{"t":{,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"comma after the object", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},`, notJSON, notJSON},
		{"leading zero in the shape", `{"t":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"leading zero in an offset", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[00,1]}}`, notJSON, notJSON},
		{"leading zero in the other offset", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,01]}}`, notJSON, notJSON},
		{"minus zero in the shape", `{"t":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}`, badInfo, badInfo},
		{"minus one in the shape", `{"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"point zero in the shape", `{"t":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"exponent in the shape", `{"t":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"string in the shape", `{"t":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"null in the shape", `{"t":{"dtype":"U8","shape":[null],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"cut number in the shape", `{"t":{"dtype":"U8","shape":[1.],"data_offsets":[0,1]}}`, notJSON, notJSON},
		{"dimension over 64 bits", `{"t":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}`, badInfo, badInfo},
		{"dimension of 64 bits", `{"t":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}}`, safetensors.ErrSizeOverflow, safetensors.ErrSizeOverflow},
		{"offset over 64 bits", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}}`, badInfo, badInfo},
		{"offset of 64 bits", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]}}`, safetensors.ErrBadOffsets, safetensors.ErrBadOffsets},
		{"inverted offsets", `{"t":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, safetensors.ErrBadOffsets, safetensors.ErrBadOffsets},
		{"nothing", ``, notJSON, safetensors.ErrHeaderNotJSON},
		{"two objects", `{}{}`, notJSON, notJSON},
		{"NUL after the object", "{}\x00", notJSON, notJSON},
		{"NULs after the object", "{}      \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", notJSON, notJSON},
		{"NUL in the object", "{\x00}", notJSON, notJSON},
		{"byte order mark", "\ufeff{}", safetensors.ErrHeaderNotObject, safetensors.ErrHeaderNotObject},
		{"UTF-16", "{\x00}\x00", notJSON, notJSON},
		{"space before the object", " \t\r\n{}", safetensors.ErrHeaderNotObject, ok},
		{"space after the object", "{} \t\r\n", ok, ok},
		{"only space", "        ", safetensors.ErrHeaderNotObject, safetensors.ErrHeaderNotObject},
		{"array", "[]", safetensors.ErrHeaderNotObject, safetensors.ErrHeaderNotObject},
		{"open brace", "{", notJSON, notJSON},
		{"eight open braces", "{{{{{{{{", notJSON, notJSON},
		{"metadata null", `{"__metadata__":null}`, safetensors.ErrMetadataNotStringMap, ok},
		{"metadata twice", `{"__metadata__":{},"__metadata__":{}}`, dup, dup},
		{"metadata null and then not", `{"__metadata__":null,"__metadata__":{}}`, safetensors.ErrMetadataNotStringMap, dup},
		{"metadata twice by an escape", `{"__metadata__":{},"__metadata_\u005f":{}}`, dup, dup},
		{"metadata key twice", `{"__metadata__":{"a":"","a":""}}`, dup, ok},
		{"metadata key twice by an escape", `{"__metadata__":{"a":"","\u0061":""}}`, dup, ok},
		{"metadata of a number", `{"__metadata__":{"a":1}}`, safetensors.ErrMetadataNotStringMap, safetensors.ErrMetadataNotStringMap},
		{"metadata of null", `{"__metadata__":{"a":null}}`, safetensors.ErrMetadataNotStringMap, safetensors.ErrMetadataNotStringMap},
		{"metadata with a trailing comma", `{"__metadata__":{"a":"",}}`, notJSON, notJSON},
		{"name twice", `{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, dup, ok},
		{"name twice by an escape", `{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0074":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, dup, ok},
		{"bad entry of a name that comes again", `{"t":{"dtype":"U8","shape":[9],"data_offsets":[5,2]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, dup, ok},
		{"dimension over an int of a name that comes again", `{"t":{"dtype":"U8","shape":[9999999999999999999],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, dup, ok},
		{"entry of a name that comes again without a shape", `{"t":{"dtype":"U8","data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, badInfo, badInfo},
	} {
		t.Run(c.name, func(t *testing.T) {
			var data []byte
			if strings.Contains(c.header, "0,1") || strings.Contains(c.header, "0 1") {
				data = []byte{7}
			}
			require.Equal(t, c.strict, kindOf(t, file(c.header, data...)))
			require.Equal(t, c.compat, kindOf(t, file(c.header, data...), safetensors.WithCompat()))
		})
	}
}

func manyKeys(n int) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":%d`, i, i)
	}
	return strings.Join(keys, ",")
}

// With a name that stands twice, the last entry counts and the rules apply to
// what is left.
func TestCompatLastCounts(t *testing.T) {
	data := file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]},`+
		`"__metadata__":{"k":"1","k":"2"},"a":{"dtype":"BOOL","shape":[1,1],"data_offsets":[0,1]}}`, 7, 8, 9)
	f, err := safetensors.Parse(data, safetensors.WithCompat())
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, f.Names())
	require.Equal(t, map[string]string{"k": "2"}, f.Metadata())
	info, ok := f.Header().Lookup("a")
	require.True(t, ok)
	require.Equal(t, safetensors.TensorInfo{Name: "a", DType: safetensors.Bool, Shape: []int{1, 1}, Begin: 0, End: 1}, info)

	// The same where the table of names is large enough to be filled in parts.
	var b strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&b, `"n%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]},`, i, i, i+1)
	}
	again := `"n7":{"dtype":"I8","shape":[1],"data_offsets":[7,8]}`
	data = file("{"+b.String()+again+"}", make([]byte, 40_000)...)
	require.Equal(t, safetensors.ErrDuplicateKey, kindOf(t, data))
	f, err = safetensors.Parse(data, safetensors.WithCompat())
	require.NoError(t, err)
	require.Equal(t, 40_000, f.Len())
	tensor, err := f.Tensor("n7")
	require.NoError(t, err)
	require.Equal(t, safetensors.I8, tensor.DType())
}

// A name is compared after its escapes are read, and read back as it is meant.
func TestHeaderNames(t *testing.T) {
	for quoted, want := range map[string]string{
		`""`:                                  "",
		`"\u0000"`:                            "\x00",
		`"a\u0000b"`:                          "a\x00b",
		`"\"\\\/\b\f\n\r\t"`:                  "\"\\/\b\f\n\r\t",
		`"\ud83d\ude00 caf\u00e9"`:            "😀 café",
		"\"日本\u2028\"":                        "日本\u2028",
		`"` + strings.Repeat("x", 9000) + `"`: strings.Repeat("x", 9000),
		`"__METADATA__"`:                      "__METADATA__",
		`"dtype"`:                             "dtype",
	} {
		f, err := safetensors.Parse(file(`{`+quoted+`:{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 7))
		require.NoError(t, err, quoted)
		require.Equal(t, []string{want}, f.Names())
		_, err = f.Tensor(want)
		require.NoError(t, err)
		_, err = f.Tensor(want + "x")
		require.ErrorIs(t, err, safetensors.ErrNotFound)
	}
}

// counted counts the bytes that were asked of a reader.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func TestReadHeaderReaders(t *testing.T) {
	small := file(`{"__metadata__":{"k":"v"},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 7)
	var many strings.Builder
	for i := range 10_000 { // several steps of growth
		fmt.Fprintf(&many, `"model.layers.%d.weight":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]},`, i, i, i+1)
	}
	large := file("{" + strings.TrimSuffix(many.String(), ",") + "}")
	for _, data := range [][]byte{small, large} {
		want, err := safetensors.ReadHeader(bytes.NewReader(data))
		require.NoError(t, err)
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"OneByteReader": iotest.OneByteReader,
			"HalfReader":    iotest.HalfReader,
			"DataErrReader": iotest.DataErrReader,
			"only a Reader": func(r io.Reader) io.Reader { return struct{ io.Reader }{r} },
		} {
			// What follows the header must be left for the caller.
			rest := "the data that follows"
			header := data[:want.DataStart()]
			c := &counted{Reader: wrap(io.MultiReader(bytes.NewReader(header), strings.NewReader(rest)))}
			got, err := safetensors.ReadHeader(c)
			require.NoError(t, err, name)
			require.Equal(t, want.Tensors(), got.Tensors(), name)
			require.Equal(t, want.Metadata(), got.Metadata(), name)
			if name != "DataErrReader" { // which reads ahead itself
				require.EqualValues(t, want.DataStart(), c.n, name)
			}
			left, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, rest, string(left), name)

			// The header ends together with the stream.
			_, err = safetensors.ReadHeader(wrap(bytes.NewReader(header)))
			require.NoError(t, err, name)
		}
	}
	for _, data := range [][]byte{nil, small[:1], small[:7]} {
		_, err := safetensors.ReadHeader(iotest.OneByteReader(bytes.NewReader(data)))
		require.ErrorIs(t, err, safetensors.ErrFileTooShort)
	}
	for n := 8; n < len(small)-1; n++ {
		_, err := safetensors.ReadHeader(iotest.HalfReader(bytes.NewReader(small[:n])))
		require.ErrorIs(t, err, safetensors.ErrHeaderLengthExceedsFile, n)
	}

	broken := errors.New("the line is dead")
	_, err := safetensors.ReadHeader(iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
	for n := range len(small) - 1 {
		_, err := safetensors.ReadHeader(io.MultiReader(bytes.NewReader(small[:n]), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken, n)
		var fe *safetensors.FormatError
		require.NotErrorAs(t, err, &fe, "a failed read says nothing of the format")
	}
	_, err = safetensors.ReadHeader(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(small))))
	require.ErrorIs(t, err, iotest.ErrTimeout)
}

// The limit is checked before anything else about the header. header_100000 is
// a length at which readers that fetch a first part have cut it.
func TestHeaderLimit(t *testing.T) {
	exact := func(n int) []byte { return file("{}" + strings.Repeat(" ", n-2)) }
	require.Equal(t, safetensors.Kind(""), kindOf(t, exact(100_000)))
	require.Equal(t, safetensors.Kind(""), kindOf(t, exact(100_000), safetensors.WithMaxHeaderSize(100_000)))
	require.Equal(t, safetensors.ErrHeaderTooLarge, kindOf(t, exact(100_001), safetensors.WithMaxHeaderSize(100_000)))
	require.Equal(t, safetensors.ErrHeaderTooLarge, kindOf(t, exact(2), safetensors.WithMaxHeaderSize(0)))
	require.Equal(t, safetensors.ErrHeaderTooLarge, kindOf(t, exact(2), safetensors.WithMaxHeaderSize(-1)))
	for _, n := range []uint64{safetensors.DefaultMaxHeaderSize + 1, 1 << 31, 1 << 32, 1 << 63, 1<<64 - 1} {
		claim := binary.LittleEndian.AppendUint64(nil, n)
		require.Equal(t, safetensors.ErrHeaderTooLarge, kindOf(t, claim))
		_, err := safetensors.ReadHeader(bytes.NewReader(claim))
		require.ErrorIs(t, err, safetensors.ErrHeaderTooLarge)
		// No limit is so high that a header needs more than 32 bits for a place in it.
		kind := kindOf(t, claim, safetensors.WithMaxHeaderSize(1<<62))
		require.Contains(t, []safetensors.Kind{safetensors.ErrHeaderTooLarge, safetensors.ErrHeaderLengthExceedsFile}, kind)
	}
}

// TestShapesAreTheCallers has tensors whose shapes the header keeps once.
func TestShapesAreTheCallers(t *testing.T) {
	h, err := safetensors.ReadHeader(bytes.NewReader(modelHeader(2000)))
	require.NoError(t, err)
	want := h.Tensors()
	got := h.Tensors()
	for i := range got {
		got[i].Shape[0]++
		_ = append(got[i].Shape, 7)
	}
	for i, info := range got {
		require.Equal(t, want[i].Shape[0]+1, info.Shape[0])
		require.Equal(t, want[i].Shape[1:], info.Shape[1:])
	}
	require.Equal(t, want, h.Tensors())
	one, _ := h.Lookup(want[5].Name)
	one.Shape[0]++
	require.Equal(t, want, h.Tensors())
}
