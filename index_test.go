package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// weightMap returns what an index says, the plain way.
func (x *shardIndex) weights() map[string]string {
	m := map[string]string{}
	for i := range x.where.tensors {
		t := &x.where.tensors[i]
		m[x.where.name(t)] = x.shards[t.begin]
	}
	return m
}

func parseIndex(t testing.TB, text string) (*shardIndex, error) {
	t.Helper()
	x, err := readIndex(strings.NewReader(text), 1000)
	for how, r := range map[string]io.Reader{
		"one byte":  iotest.OneByteReader(strings.NewReader(text)),
		"half":      iotest.HalfReader(strings.NewReader(text)),
		"data, err": iotest.DataErrReader(strings.NewReader(text)),
	} {
		y, err2 := readIndex(r, 1000)
		require.Equal(t, err, err2, how)
		if err == nil {
			require.Equal(t, x.weights(), y.weights(), how)
			require.Equal(t, x.metadata, y.metadata, how)
			require.Equal(t, x.total, y.total, how)
		}
	}
	return x, err
}

func TestReadIndex(t *testing.T) {
	deep := strings.Repeat("[", 126) + strings.Repeat("]", 126)
	for _, c := range []struct {
		text string
		want map[string]string
	}{
		{`{"weight_map":{}}`, map[string]string{}},
		{" \t\r\n{ \"weight_map\" : { \"a\" : \"b\" , \"c\" : \"b\" } } \n", map[string]string{"a": "b", "c": "b"}},
		{`{"metadata":{"total_size":1},"weight_map":{"":"b"}}`, map[string]string{"": "b"}},
		{`{"weight_map":{"\u0061\n\ud83d\ude00é/":"\u0062\/c"},"x":[1,-2.5e3,true,false,null,"",{"a":{}}]}`, map[string]string{"a\n😀é/": "b/c"}},
		{`{"weight_map":{"a":"b"},"deep":` + deep + `}`, map[string]string{"a": "b"}},
		{`{"weight_map":{"` + strings.Repeat("a", 1000) + `":"b"}}`, map[string]string{strings.Repeat("a", 1000): "b"}},
	} {
		x, err := parseIndex(t, c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, x.weights(), c.text)
		for cut := range len(strings.TrimRight(c.text, " \n")) {
			_, err := readIndex(strings.NewReader(c.text[:cut]), 1000)
			require.ErrorIs(t, err, ErrIndexNotJSON, c.text[:cut])
		}
	}
}

func TestReadIndexRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                      "want an object, got the end of the index",
		`[]`:                                    "at byte 0: want an object, got an array",
		`null`:                                  "want an object",
		"\xef\xbb\xbf{}":                        "at byte 0",
		`{}`:                                    `want an object with a "weight_map", got none`,
		`{"metadata":{}}`:                       `want an object with a "weight_map"`,
		`{"weight_map":null}`:                   "at byte 14: want an object",
		`{"weight_map":[]}`:                     "want an object, got an array",
		`{"weight_map":{"a":1}}`:                `tensor "a" at byte 19: want the name of a shard, a string, got 1`,
		`{"weight_map":{"a":null}}`:             "got null",
		`{"weight_map":{"a":["b"]}}`:            "got an array",
		`{"weight_map":{"a":"b","a":"c"}}`:      `tensor "a": want each tensor once`,
		`{"weight_map":{"a":"b","\u0061":"b"}}`: `tensor "a": want each tensor once`,
		`{"weight_map":{"a":"b"},"weight_map":{}}`:                 `"weight_map" again`,
		`{"weight_map":{},"x":1,"x":2}`:                            `at byte 23: want each key once, got "x" again`,
		`{"weight_map":{},"x":{"y":1,"\u0079":2}}`:                 `"y" again`,
		`{"weight_map":{},"metadata":{"y":1,"y":2}}`:               `"y" again`,
		`{"weight_map":{}}{}`:                                      "at byte 17: want nothing after the object",
		`{"weight_map":{}},`:                                       "want nothing after the object",
		"{\"weight_map\":{}}\x00":                                  "want nothing after the object, got byte 0x00",
		`{"weight_map":{"a":"b",}}`:                                "want a string, got '}'",
		`{"weight_map":{"a" "b"}}`:                                 "want ':'",
		`{"weight_map":{"a":"b" "c":"d"}}`:                         "want ',' or '}'",
		`{weight_map:{}}`:                                          "want a string",
		`{"weight_map":{},"x":01}`:                                 "want",
		`{"weight_map":{},"x":1.}`:                                 "want",
		`{"weight_map":{},"x":+1}`:                                 "want",
		`{"weight_map":{},"x":1e999}`:                              "want a number",
		`{"weight_map":{},"x":NaN}`:                                "want",
		`{"weight_map":{},"x":nul}`:                                "want",
		`{"weight_map":{},"x":nulls}`:                              "want",
		`{"weight_map":{},"x":truetrue}`:                           "want",
		`{"weight_map":{},"x":[1,]}`:                               "want",
		`{"weight_map":{},"x":[1 2]}`:                              "',' or ']'",
		"{\"weight_map\":{\"a\nb\":\"c\"}}":                        "at byte 17: want no bare control character",
		"{\"weight_map\":{\"a\xff\":\"c\"}}":                       "want valid UTF-8",
		`{"weight_map":{"\ud800":"c"}}`:                            "surrogate",
		`{"weight_map":{"\x":"c"}}`:                                "at byte 16: want an escape that JSON has",
		`{"weight_map":{"` + strings.Repeat("a", 1100) + `":"c"}}`: "want a string of at most 1000 bytes",
		`{"weight_map":{},"x":` + strings.Repeat("[", 1000):        "nesting",
		`{"weight_map":{},"x":` + strings.Repeat(`{"a":`, 1000):    "nesting",
		`{"weight_map":{"a":"b"`:                                   "',' or '}', got the end of the index",
	} {
		_, err := parseIndex(t, text)
		require.ErrorIs(t, err, ErrIndexNotJSON, text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestReadIndexFails(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, head := range []string{``, `{`, `{"weight_map":{"a`, `{"weight_map":{}`, `{"weight_map":{}}`, `{"weight_map":{},"x":12`} {
		_, err := readIndex(io.MultiReader(strings.NewReader(head), iotest.ErrReader(broken)), 1000)
		require.ErrorIs(t, err, broken, head)
		require.NotErrorIs(t, err, ErrIndexNotJSON, head)
	}
	_, err := readIndex(readerFunc(func([]byte) (int, error) { return 0, nil }), 1000)
	require.ErrorIs(t, err, io.ErrNoProgress)
	_, err = readIndex(readerFunc(func(p []byte) (int, error) { return len(p) + 1, nil }), 1000)
	require.ErrorContains(t, err, "impossible count")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An index far larger than the window, whose tokens lie across its edges.
func TestReadLongIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	want := map[string]string{}
	for i := range 20_000 {
		name := fmt.Sprintf("%d.%s", i, strings.Repeat(`é"\`, r.IntN(20)))
		want[name] = fmt.Sprintf("shard %d", r.IntN(300))
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 7}, "weight_map": want})
	require.NoError(t, err)
	x, err := readIndex(strings.NewReader(string(text)), 1000)
	require.NoError(t, err)
	require.Equal(t, want, x.weights())
	require.Len(t, x.shards, 300)
	require.Equal(t, "7", x.total)

	name := strings.Repeat("long", 100_000)
	x, err = readIndex(strings.NewReader(`{"weight_map":{"`+name+`":"b"}}`), 1<<20)
	require.NoError(t, err)
	require.Equal(t, map[string]string{name: "b"}, x.weights())
}

// What huggingface_hub writes is what json.dump(indent=2) writes.
func TestIndexText(t *testing.T) {
	got := appendIndex(nil, 22, [][2]string{{"a", "b\"\\\b\f\n\r\t\x00\x1f\x7f~"}, {"é", "\u2028😀\U0010ffff"}},
		[]string{"1", "2"}, [][]string{{"x", "y"}, {"z"}})
	require.Equal(t, `{
  "metadata": {
    "total_size": 22,
    "a": "b\"\\\b\f\n\r\t\u0000\u001f\u007f~",
    "\u00e9": "\u2028\ud83d\ude00\udbff\udfff"
  },
  "weight_map": {
    "x": "1",
    "y": "1",
    "z": "2"
  }
}`, string(got))
}

// FuzzIndex compares with encoding/json, which is looser: what is taken here it
// takes too, for the same.
func FuzzIndex(f *testing.F) {
	f.Add(`{"metadata":{"total_size":1.0},"weight_map":{"a":"b\u00e9","c":"d"},"x":[{},null,-1e5]}`)
	f.Add(`{"weight_map":{"a":"b","a":"c"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		x, err := parseIndex(t, text)
		if err != nil {
			var fe *FormatError
			require.ErrorAs(t, err, &fe)
			require.LessOrEqual(t, fe.Offset, int64(len(text)))
			return
		}
		var want struct {
			WeightMap map[string]string `json:"weight_map"`
		}
		var all map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(text), &all))
		require.NoError(t, json.Unmarshal(all["weight_map"], &want.WeightMap))
		require.True(t, maps.Equal(want.WeightMap, x.weights()))
		for _, shard := range x.shards {
			require.Empty(t, unsafeShard(shard))
		}
		again := appendIndex(nil, 0, nil, []string{"s"}, [][]string{{text}})
		require.True(t, json.Valid(again))
	})
}
