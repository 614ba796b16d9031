package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ExecEnv names the emulator that runs the test binary, as go test's -exec does,
// where the system cannot run it.
const ExecEnv = "SAFETENSORS_TEST_EXEC"

// ChildProcess returns a command that runs the test binary once more.
func ChildProcess(args ...string) *exec.Cmd {
	args = append(append(strings.Fields(os.Getenv(ExecEnv)), os.Args[0]), args...)
	return exec.Command(args[0], args[1:]...)
}

// goodFiles are small files that use much of the format.
func goodFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range []string{"meta_json_in_string", "name_order_not_offset_order", "zero_size_middle"} {
		data, err := os.ReadFile("testdata/" + name + ".safetensors")
		require.NoError(t, err)
		files[name] = data
	}
	var b bytes.Buffer
	_, err := Write(&b, map[string]Tensor{
		"a":   New(F32, []int{2, 1}, []byte("01234567")),
		"é\n": New(F4, []int{2}, []byte("x")),
		"":    New(U8, []int{0, 3}, nil),
	}, WithMetadata(map[string]string{"k": "v"}))
	require.NoError(t, err)
	files["written"] = b.Bytes()
	files["spaced"] = append(withLength([]byte(` { "a" : { "x" : [ { } , -1e2 , "\ud83d\ude00" ] , "shape" : [ 2 ] , "data_offsets" : [ 0 , 2 ] , "dtype" : "U8" } } `)), 1, 2)
	return files
}

func TestTruncated(t *testing.T) {
	for name, data := range goodFiles(t) {
		header := int(binary.LittleEndian.Uint64(data))
		for n := range data {
			want := ErrDataTruncated
			switch {
			case n < 8:
				want = ErrFileTooShort
			case n < 8+header:
				want = ErrHeaderLengthExceedsFile
			}
			for _, opts := range [][]Option{{WithCompat()}, nil} {
				_, err := Parse(data[:n], opts...)
				if name == "spaced" && opts == nil && n >= 8+header {
					want = ErrHeaderNotObject
				}
				require.ErrorIs(t, err, want, "%s cut to %d bytes", name, n)
			}
			checkParse(t, data[:n])
		}
		for _, extra := range []string{"\x00", "more"} {
			_, err := Parse(append(bytes.Clone(data), extra...), WithCompat())
			require.ErrorIs(t, err, ErrTrailingBytes, name)
		}
	}
}

func TestFlipped(t *testing.T) {
	accepted := 0
	for name, data := range goodFiles(t) {
		header := 8 + int(binary.LittleEndian.Uint64(data))
		for i, old := range data[:header] {
			for bit := range 8 {
				if testing.Short() && bit%4 != i%4 {
					continue
				}
				data[i] = old ^ 1<<bit
				checkParse(t, data)
				if _, err := Parse(data); err == nil {
					accepted++
				}
			}
			if name != "spaced" {
				data[i] = old
				continue
			}
			for _, c := range []byte(",:[]{}\"\\0 \xff\x00") {
				data[i] = c
				checkParse(t, data)
			}
			data[i] = old
		}
	}
	require.NotZero(t, accepted, "a changed letter in a name is no fault")
}

// allocated returns how many bytes fn allocates, freed or not.
func allocated(fn func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// A length that claims far more than is there costs next to nothing.
func TestClaimedLength(t *testing.T) {
	const most = 256 << 10
	claim := binary.LittleEndian.AppendUint64(nil, DefaultMaxHeaderSize)
	claim = append(claim, `{"a":{"dtyp`...)
	name := filepath.Join(t.TempDir(), "claim.safetensors")
	require.NoError(t, os.WriteFile(name, claim, 0o666))
	for how, open := range map[string]func() error{
		"Open":        func() error { _, err := Open(name); return err },
		"WithoutMmap": func() error { _, err := Open(name, WithoutMmap()); return err },
		"Parse":       func() error { _, err := Parse(claim); return err },
		"NewFile":     func() error { _, err := NewFile(bytes.NewReader(claim), int64(len(claim))); return err },
		"ReadHeader":  func() error { _, err := ReadHeader(bytes.NewReader(claim)); return err },
		"ReadHeader from a pipe": func() error {
			r, w := io.Pipe()
			go func() {
				w.Write(claim)
				w.Close()
			}()
			_, err := ReadHeader(r)
			return err
		},
	} {
		var err error
		require.Less(t, allocated(func() { err = open() }), int64(most), how)
		require.ErrorIs(t, err, ErrHeaderLengthExceedsFile, how)
	}

	// What is really there may cost a few times its size, not what is claimed.
	there := int64(1 << 20)
	r := io.MultiReader(bytes.NewReader(claim), bytes.NewReader(make([]byte, there)))
	var err error
	require.Less(t, allocated(func() { _, err = ReadHeader(r) }), 9*there)
	require.ErrorIs(t, err, ErrHeaderLengthExceedsFile)
}

// filled returns a header of about size bytes: head, then units, then tail.
func filled(size int, head string, unit func(i int) string, tail string) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	for i := 0; b.Len()+len(tail) < size; i++ {
		b.WriteString(unit(i))
	}
	b.WriteString(tail)
	return b.Bytes()
}

func repeated(size int, head, unit, tail string) []byte {
	return filled(size, head, func(int) string { return unit }, tail)
}

// Headers made to cost more than they weigh: their memory must stay a small
// multiple of their size, and grow with it. A step that takes the square of the
// size would not end before the test's time limit.
func TestHeaderMemory(t *testing.T) {
	const (
		shape    = `{"t":{"dtype":"U8","shape":[0`
		shapeEnd = `],"data_offsets":[0,0]}}`
		extra    = `{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":`
		last     = `"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`
	)
	object := func(keys int) string {
		var b strings.Builder
		for i := range keys {
			fmt.Fprintf(&b, `,"%c":0`, 'A'+i)
		}
		return ",{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	deep := func(open, shut string) string {
		return "," + strings.Repeat(open, 123) + "0" + strings.Repeat(shut, 123)
	}
	entry := func(format string, last ...any) func(i int) string {
		return func(i int) string { return fmt.Sprintf(`"%x":`+format+",", append([]any{i}, last...)...) }
	}
	// Go's maps take several times what the shortest keys do.
	const small, maps = 6, 16
	for _, c := range []struct {
		name   string
		most   float64 // bytes allocated for each byte of header
		want   Kind
		header func(size int) []byte
	}{
		{"braces", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, "{", "{", "") }},
		{"commas", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, "{", ",", "") }},
		{"zeros", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, "{", "\x00", "") }},
		{"spaces", small, "", func(n int) []byte { return repeated(n, "{", " ", "}") }},
		{"quotes", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, "{", `"`, "") }},
		{"backslashes", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, `{"`, `\\`, "") }},
		{"one long shape", small, "", func(n int) []byte { return repeated(n, shape, ",0", shapeEnd) }},
		{"one long shape, not compact", small, "", func(n int) []byte { return repeated(n, strings.Replace(shape, "[", "[ ", 1), ",0", shapeEnd) }},
		{"shapes after a long name", small, "", func(n int) []byte {
			return repeated(n, `{"`+strings.Repeat("n", 1<<16)+shape[2:], ",0", shapeEnd)
		}},
		{"shapes of 30", small, "", func(n int) []byte {
			return filled(n, "{", entry(`{"dtype":"U8","shape":[%s0],"data_offsets":[0,0]}`, strings.Repeat("0,", 29)), last)
		}},
		{"shapes of 30, half of them compact", small, "", func(n int) []byte {
			odd := 0
			return filled(n, "{", func(i int) string {
				odd = 1 - odd
				return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[%s0]%s,"data_offsets":[0,0]},`, i, strings.Repeat("0,", 29), strings.Repeat(" ", odd))
			}, last)
		}},
		{"tensors in order", small, "", func(n int) []byte {
			return filled(n, "{", func(i int) string {
				return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]},`, i, i, i+1)
			}, last)
		}},
		{"tensors in reverse", small, ErrBadOffsets, func(n int) []byte {
			return filled(n, "{", func(i int) string {
				return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]},`, i, n-i, n-i+1)
			}, last)
		}},
		{"tensors that overlap", small, ErrBadOffsets, func(n int) []byte {
			return filled(n, "{", entry(`{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`), last)
		}},
		{"tensors after long metadata", small, "", func(n int) []byte {
			return filled(n, `{"__metadata__":{"":"`+strings.Repeat("m", 1<<16)+`"},`, entry(`{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`), last)
		}},
		{"one name", small, ErrDuplicateKey, func(n int) []byte {
			return repeated(n, "{", `"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`, last)
		}},
		{"escapes in a name", small, "", func(n int) []byte { return repeated(n, `{"`, `\u00e9`, `":{`+shape[6:]+shapeEnd) }},
		{"escapes in a value", small, "", func(n int) []byte { return repeated(n, extra+`"`, `\n`, `"}}`) }},
		{"one long dtype", small, ErrUnknownDType, func(n int) []byte { return repeated(n, shape[:15], "x", `"}}`) }},
		{"one long number", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, extra, "1", "}}") }},
		{"one long dimension", small, ErrHeaderNotJSON, func(n int) []byte { return repeated(n, shape[:len(shape)-1], "1", shapeEnd) }},
		{"one long fraction", small, "", func(n int) []byte { return repeated(n, extra+"0.", "1", "}}") }},
		{"one long exponent", small, "", func(n int) []byte { return repeated(n, extra+"0e", "1", "}}") }},
		{"many numbers", small, "", func(n int) []byte { return repeated(n, extra+"[0", ",0", "]}}") }},
		{"many empty objects", small, "", func(n int) []byte { return repeated(n, extra+"[0", ",{}", "]}}") }},
		{"objects of a key", small, "", func(n int) []byte { return repeated(n, extra+"[0", object(1), "]}}") }},
		{"objects of 17 keys", small, "", func(n int) []byte { return repeated(n, extra+"[0", object(17), "]}}") }},
		{"objects of 25 keys", small, "", func(n int) []byte { return repeated(n, extra+"[0", object(25), "]}}") }},
		{"objects of 33 keys", maps, "", func(n int) []byte {
			return repeated(n, extra+"[0", strings.ReplaceAll(object(33), `\`, "~"), "]}}")
		}},
		{"deep arrays", small, "", func(n int) []byte { return repeated(n, extra+"[0", deep("[", "]"), "]}}") }},
		{"deep objects", small, "", func(n int) []byte { return repeated(n, extra+"[0", deep(`{"":`, "}"), "]}}") }},
		{"keys of an entry", maps, "", func(n int) []byte {
			return filled(n, extra+"0", func(i int) string { return fmt.Sprintf(`,"%x":0`, i) }, "}}")
		}},
		{"keys of metadata", maps, "", func(n int) []byte {
			return filled(n, `{"__metadata__":{"":""`, func(i int) string { return fmt.Sprintf(`,"%x":""`, i) }, "}}")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, opts := range [][]Option{nil, {WithCompat()}} {
				var spent [2]float64
				unit := 1 << 20
				if testing.Short() {
					unit = 1 << 18
				}
				for i, size := range []int{unit, 2 * unit} {
					data := withLength(c.header(size))
					require.InDelta(t, size, len(data), 5000)
					spent[i] = float64(allocated(func() {
						_, err := ReadHeader(bytes.NewReader(data), opts...)
						if want := c.want; want == "" || want == ErrDuplicateKey && opts != nil {
							require.NoError(t, err)
						} else {
							require.ErrorIs(t, err, want)
						}
					}))
					require.Less(t, spent[i], c.most*float64(len(data)))
				}
				// Tables double now and then, and so may be twice as large for less.
				require.Less(t, spent[1], 3*spent[0])
			}
		})
	}
}

// An error that is kept must not keep the header with it.
func TestErrorKeepsNoHeader(t *testing.T) {
	header := repeated(32<<20, `{`, " ", `"t":{"dtype":"U8","shape":[1],"data_offsets":[0,7]}}`)
	_, err := ReadHeader(bytes.NewReader(withLength(header)))
	header = nil
	var fe *FormatError
	require.ErrorAs(t, err, &fe)
	require.Equal(t, "t", fe.Tensor)
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	require.Less(t, stats.HeapAlloc, uint64(24<<20))
	require.Equal(t, "t", fe.Tensor)
}

// tensorsHeader returns a header of n one-byte tensors, which begin where
// begin says.
func tensorsHeader(n int, begin func(i int) int) []byte {
	b := []byte("{")
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `"model.layers.`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `.w":{"dtype":"U8","shape":[1],"data_offsets":[`...)
		b = strconv.AppendInt(b, int64(begin(i)), 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, int64(begin(i)+1), 10)
		b = append(b, "]}"...)
	}
	return append(b, '}')
}

// tensors_1m: memory is a small multiple of the header.
func TestMillionTensors(t *testing.T) {
	if testing.Short() {
		t.Skip("a header of 80 MB")
	}
	const n = 1_000_000
	for name, begin := range map[string]func(i int) int{
		"in order":   func(i int) int { return i },
		"in reverse": func(i int) int { return n - 1 - i },
		"all over":   func(i int) int { return i * 7919 % n }, // a prime, so each place once
	} {
		data := append(withLength(tensorsHeader(n, begin)), make([]byte, n)...)
		var f *File
		var err error
		spent := allocated(func() { f, err = Parse(data) })
		require.NoError(t, err, name)
		require.Less(t, spent, int64(4*len(data)), name)
		require.Equal(t, n, f.Len())
		for _, i := range []int{0, 1, 499_999, n - 1} {
			info, ok := f.Header().Lookup(fmt.Sprintf("model.layers.%d.w", i))
			require.True(t, ok)
			require.EqualValues(t, begin(i), info.Begin, name)
		}
		_, ok := f.Header().Lookup("model.layers.1000000.w")
		require.False(t, ok)
	}
}

func TestOverlappingTensors(t *testing.T) {
	data := append(withLength(tensorsHeader(100_000, func(int) int { return 0 })), 7)
	var err error
	spent := allocated(func() { _, err = Parse(data) })
	require.ErrorIs(t, err, ErrBadOffsets)
	require.Less(t, spent, int64(6*len(data)))
}
