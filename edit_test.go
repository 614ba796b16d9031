package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

func set(key, value string) func(map[string]string) error {
	return func(m map[string]string) error {
		m[key] = value
		return nil
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// editable are tensors large enough for the system to copy them.
func editable() map[string]safetensors.Tensor {
	big := make([]float32, 300_000)
	for i := range big {
		big[i] = float32(i)
	}
	return map[string]safetensors.Tensor{
		"big": safetensors.Of(big, 300, 1000), "big too": safetensors.Of(big[1:], 299_999),
		"small": safetensors.Of([]uint8{1, 2, 3}, 3), "none": safetensors.Of([]int64{}, 0), "ünï": safetensors.Of([]int16{5}),
	}
}

func TestUpdateMetadata(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	tensors := editable()
	var metadata map[string]string
	require.NoError(t, safetensors.Save(path, tensors))
	update := func(change func(map[string]string) error, want map[string]string, opts ...safetensors.SaveOption) {
		t.Helper()
		require.NoError(t, safetensors.UpdateMetadata(path, func(m map[string]string) error {
			require.NotNil(t, m)
			require.Equal(t, len(metadata), len(m))
			return change(m)
		}, opts...))
		metadata = want
		require.Equal(t, written(t, tensors, append(opts, safetensors.WithMetadata(want))...), read(t, path))
	}
	update(set("format", "pt"), map[string]string{"format": "pt"})
	update(set("é\x00", strings.Repeat("long", 1000)), map[string]string{"format": "pt", "é\x00": strings.Repeat("long", 1000)})
	update(func(m map[string]string) error { delete(m, "é\x00"); return nil }, map[string]string{"format": "pt"})
	update(func(m map[string]string) error { return nil }, map[string]string{"format": "pt"}, safetensors.WithMetadata(map[string]string{"not": "this"}))
	update(set("format", "np"), map[string]string{"format": "np"}, safetensors.WithAlignment(4096))
	update(func(m map[string]string) error { clear(m); return nil }, nil, safetensors.WithAlignment(8))

	require.NoError(t, safetensors.Save(path, tensors, safetensors.WithMetadata(map[string]string{})))
	update(func(m map[string]string) error { return nil }, map[string]string{})

	// What fails changes nothing.
	was := read(t, path)
	stop := errors.New("stop")
	require.ErrorIs(t, safetensors.UpdateMetadata(path, func(m map[string]string) error { m["a"] = "b"; return stop }), stop)
	require.ErrorIs(t, safetensors.UpdateMetadata(path, set("a", "\xff")), safetensors.ErrBadName)
	require.ErrorContains(t, safetensors.UpdateMetadata(path, set("\xff", "a")), path)
	require.ErrorContains(t, safetensors.UpdateMetadata(path, set("a", "b"), safetensors.WithAlignment(7)), "alignment of 7")
	require.Equal(t, was, read(t, path))
	require.Equal(t, []string{"m.safetensors"}, folder(t, filepath.Dir(path)))

	require.NoError(t, os.WriteFile(path, was[:len(was)-1], 0o666))
	require.ErrorIs(t, safetensors.UpdateMetadata(path, set("a", "b"), safetensors.WithInPlace()), safetensors.ErrDataTruncated)
	require.Equal(t, was[:len(was)-1], read(t, path))
	require.ErrorIs(t, safetensors.UpdateMetadata(path+"2", set("a", "b")), os.ErrNotExist)
}

func TestUpdateMetadataKeepsAlignment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	for n := 1; n <= 8192; n *= 2 {
		require.NoError(t, safetensors.Save(path, editable(), safetensors.WithAlignment(n)))
		require.NoError(t, safetensors.UpdateMetadata(path, set("a", strings.Repeat("b", 5000))))
		f, err := safetensors.Open(path)
		require.NoError(t, err)
		require.Zero(t, f.Header().DataStart()%int64(max(n, 8)), "%d", n)
		require.NoError(t, f.Close())
	}
}

func TestUpdateMetadataInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	tensors := editable()
	require.NoError(t, safetensors.Save(path, tensors, safetensors.WithAlignment(512), safetensors.WithMetadata(map[string]string{"a": "b"})))
	link := path + ".link"
	require.NoError(t, os.Link(path, link)) // a file that is replaced leaves its other name behind
	was := read(t, path)
	start := dataStart(t, path)
	open, err := safetensors.Open(path)
	require.NoError(t, err)
	defer open.Close()

	for _, v := range []string{"longer", "", strings.Repeat("x", 30)} {
		require.NoError(t, safetensors.UpdateMetadata(path, set("a", v), safetensors.WithInPlace()))
		require.Equal(t, read(t, path), read(t, link), "in place")
		now := read(t, path)
		require.Equal(t, was[start:], now[start:])
		require.Equal(t, start, dataStart(t, path))
		sameAs(t, path, tensors, map[string]string{"a": v})
	}
	// Not without being asked for, and not where it does not fit.
	room := int(start) - len(bytes.TrimRight(read(t, path)[:start], " "))
	require.NoError(t, safetensors.UpdateMetadata(path, set("a", strings.Repeat("y", 30+room)), safetensors.WithInPlace()))
	require.Equal(t, read(t, path), read(t, link), "it fits to the byte")
	sameAs(t, path, tensors, map[string]string{"a": strings.Repeat("y", 30+room)})
	last := read(t, link)
	if runtime.GOOS == "windows" {
		require.NoError(t, open.Close())
	}
	require.NoError(t, safetensors.UpdateMetadata(path, set("a", strings.Repeat("y", 31+room)), safetensors.WithInPlace()))
	require.Equal(t, last, read(t, link))
	sameAs(t, path, tensors, map[string]string{"a": strings.Repeat("y", 31+room)})
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Link(path, link))
	last = read(t, link)
	require.NoError(t, safetensors.UpdateMetadata(path, set("a", "z")))
	require.Equal(t, last, read(t, link))
	sameAs(t, path, tensors, map[string]string{"a": "z"})
}

func dataStart(t testing.TB, path string) int64 {
	t.Helper()
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	return f.Header().DataStart()
}

// sameAs expects a file of these tensors and metadata.
func sameAs(t testing.TB, path string, tensors map[string]safetensors.Tensor, metadata map[string]string) {
	t.Helper()
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, metadata, f.Metadata())
	require.Equal(t, len(tensors), f.Len())
	for name, want := range tensors {
		got, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want.DType(), got.DType())
		require.Equal(t, want.Shape(), got.Shape())
		require.Equal(t, sum(t, want), sum(t, got), name)
	}
}

// In place also where the tensors do not lie as Save lays them out.
func TestUpdateMetadataInPlaceOfAnyLayout(t *testing.T) {
	data := []byte("\x01\x02\x03\x04\x05\x06\x07\x08")
	file := header(`{ "b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}, "a":{"data_offsets":[4,8],"shape":[1],"dtype":"F32"}, "e\u0301":{"dtype":"U8","shape":[0],"data_offsets":[8,8]} }                                        `, data)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, os.WriteFile(path, file, 0o666))
	require.NoError(t, safetensors.UpdateMetadata(path, set("k", "v"), safetensors.WithInPlace()))
	require.Equal(t, len(file), len(read(t, path)))
	sameAs(t, path, map[string]safetensors.Tensor{
		"b": safetensors.Of(data[:4], 4), "a": safetensors.New(safetensors.F32, []int{1}, data[4:]), "e\u0301": safetensors.Of([]uint8{}, 0),
	}, map[string]string{"k": "v"})
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "a", "e\u0301"}, f.Names())
	require.NoError(t, f.Close())
}

// header makes a file of a header and data.
func header(text string, data []byte) []byte {
	b := []byte{byte(len(text)), byte(len(text) >> 8), byte(len(text) >> 16), 0, 0, 0, 0, 0}
	return append(append(b, text...), data...)
}

func names(tensors map[string]safetensors.Tensor) []string {
	return slices.Sorted(maps.Keys(tensors))
}

func TestKeepAndDrop(t *testing.T) {
	all := sized(1, map[string]int{"model.layers.0.weight": 1, "model.layers.10.weight": 1, "model.layers.10.bias": 1, "a/b/c": 1, "lm_head": 1, "": 1, "[x]": 1})
	for _, c := range []struct{ patterns, want []string }{
		{[]string{"*"}, names(all)},
		{[]string{"model.*"}, []string{"model.layers.0.weight", "model.layers.10.bias", "model.layers.10.weight"}},
		{[]string{"*.weight", "lm_head"}, []string{"lm_head", "model.layers.0.weight", "model.layers.10.weight"}},
		{[]string{"model.layers.?.*"}, []string{"model.layers.0.weight"}},
		{[]string{"model.layers.[1-9]*"}, []string{"model.layers.10.bias", "model.layers.10.weight"}},
		{[]string{"a/*"}, []string{"a/b/c"}},
		{[]string{"a*c"}, []string{"a/b/c"}},
		{[]string{"a?b[/]c"}, []string{"a/b/c"}},
		{[]string{`\[x]`}, []string{"[x]"}},
		{[]string{""}, []string{""}},
		{nil, nil},
	} {
		kept, err := safetensors.Keep(all, c.patterns...)
		require.NoError(t, err)
		require.Equal(t, c.want, names(kept), c.patterns)
		rest, err := safetensors.Drop(all, c.patterns...)
		require.NoError(t, err)
		both, err := safetensors.Merge(kept, rest)
		require.NoError(t, err)
		require.Equal(t, names(all), names(both), c.patterns)
		require.Len(t, both, len(kept)+len(rest))
	}
	for _, f := range []func(map[string]safetensors.Tensor, ...string) (map[string]safetensors.Tensor, error){safetensors.Keep, safetensors.Drop} {
		_, err := f(all, "*", "lm_haed")
		require.ErrorIs(t, err, safetensors.ErrNotFound)
		require.ErrorContains(t, err, `"lm_haed"`)
		for _, bad := range []string{"[", "a[", `\`} {
			_, err = f(all, bad)
			require.ErrorIs(t, err, path.ErrBadPattern)
			require.ErrorContains(t, err, fmt.Sprintf("%q", bad))
			_, err = f(nil, bad)
			require.ErrorIs(t, err, path.ErrBadPattern)
		}
	}
}

func TestRename(t *testing.T) {
	all := sized(1, map[string]int{"model.a": 1, "model.b": 2, "a": 3})
	renamed, err := safetensors.Rename(all, func(name string) string { return "x." + strings.TrimPrefix(name, "model.") + name })
	require.NoError(t, err)
	require.Equal(t, []string{"x.aa", "x.amodel.a", "x.bmodel.b"}, names(renamed))
	require.EqualValues(t, 2, renamed["x.bmodel.b"].Size())
	_, err = safetensors.Rename(all, func(name string) string { return strings.TrimPrefix(name, "model.") })
	require.ErrorIs(t, err, safetensors.ErrBadName)
	require.ErrorContains(t, err, `tensor "a": want a name for each tensor, got it for "a" and for "model.a"`)
	require.Equal(t, []string{"a", "model.a", "model.b"}, names(all))
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	open := func(name string, tensors map[string]byte) map[string]safetensors.Tensor {
		put(t, filepath.Join(dir, name), tensors)
		f, err := safetensors.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return maps.Collect(f.All())
	}
	one, two, three := open("1", map[string]byte{"a": 1, "b": 1}), open("2", map[string]byte{"c": 2}), open("3", map[string]byte{"b": 3})
	merged, err := safetensors.Merge(one, two)
	require.NoError(t, err)
	out := filepath.Join(dir, "out")
	require.NoError(t, safetensors.Save(out, merged))
	sameAs(t, out, map[string]safetensors.Tensor{"a": safetensors.Of([]uint8{1}, 1), "b": safetensors.Of([]uint8{1}, 1), "c": safetensors.Of([]uint8{2}, 1)}, nil)

	_, err = safetensors.Merge(one, two, three)
	require.ErrorIs(t, err, safetensors.ErrBadName)
	require.ErrorContains(t, err, fmt.Sprintf(`tensor "b": want each name in one part, got it in %s and in %s`, filepath.Join(dir, "1"), filepath.Join(dir, "3")))
	_, err = safetensors.Merge(sized(1, map[string]int{"a": 1}), sized(1, map[string]int{"a": 1}))
	require.ErrorContains(t, err, "it in part 1 and in part 2")
	for range 20 { // the same error each time, whatever the order of a map is
		many := sized(1, map[string]int{"d": 1, "b": 1, "c": 1, "e": 1})
		_, err = safetensors.Merge(many, many)
		require.ErrorContains(t, err, `tensor "b"`)
		_, err = safetensors.MergeMetadata(map[string]string{"b": "1", "a": "1", "c": "1"}, map[string]string{"c": "2", "b": "2", "a": "1"})
		require.ErrorContains(t, err, `metadata key "b"`)
	}

	metadata, err := safetensors.MergeMetadata(nil, map[string]string{"a": "1", "b": "2"}, nil, map[string]string{"b": "2", "c": "3"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "2", "c": "3"}, metadata)
	metadata, err = safetensors.MergeMetadata(nil, nil)
	require.NoError(t, err)
	require.Nil(t, metadata)
	_, err = safetensors.MergeMetadata(map[string]string{"k": "1"}, map[string]string{"k": "2"})
	require.ErrorContains(t, err, `metadata key "k": want one value, got "1" and "2"`)
}

// TestUpdateMetadataOfModel edits shards and index, and nothing else of either.
func TestUpdateMetadataOfModel(t *testing.T) {
	dir := t.TempDir()
	index := filepath.Join(dir, indexName)
	save := func() {
		_, err := safetensors.SaveModel(dir, sized(7, map[string]int{"a": 6, "b": 6, "c": 6}), safetensors.WithMaxShardSize(12),
			safetensors.WithMetadata(map[string]string{"format": "pt", "by": "é", "of": "2026"}))
		require.NoError(t, err)
	}
	metadata := func() (all []map[string]string) {
		m, err := safetensors.OpenModel(dir)
		require.NoError(t, err)
		defer m.Close()
		require.Empty(t, m.Verify())
		for _, f := range m.Shards() {
			all = append(all, f.Metadata())
		}
		return append(all, m.Metadata())
	}
	for _, path := range []string{dir, index} {
		for _, opts := range [][]safetensors.SaveOption{nil, {safetensors.WithInPlace()}} {
			save()
			before := string(read(t, index))
			var written, all int64
			require.NoError(t, safetensors.UpdateMetadata(path, func(m map[string]string) error {
				delete(m, "of")
				m["by"], m["new"] = "\"you\"", "1"
				return nil
			}, append(opts, safetensors.WithProgress(func(done, total int64) {
				require.GreaterOrEqual(t, done, written)
				written, all = done, total
			}))...))
			want := map[string]string{"format": "pt", "by": "\"you\"", "new": "1"}
			require.Equal(t, []map[string]string{want, want, want}, metadata())
			require.Equal(t, strings.NewReplacer(`"by": "\u00e9"`, `"by": "\"you\""`, ",\n    \"of\": \"2026\"", "").Replace(before), string(read(t, index)))
			require.Equal(t, all, written)
		}
	}

	save()
	before := read(t, index)
	shards := metadata()
	stop := errors.New("stop")
	calls := 0
	require.ErrorIs(t, safetensors.UpdateMetadata(dir, func(m map[string]string) error {
		m["by"] = "nobody"
		if calls++; calls == 3 { // the index
			return stop
		}
		return nil
	}), stop)
	require.Equal(t, shards, metadata(), "nothing is written before all is known")
	require.NoError(t, safetensors.UpdateMetadata(dir, set("new", "1")))
	require.Equal(t, before, read(t, index), "an index that has not the key stays as it is")

	require.NoError(t, os.Remove(filepath.Join(dir, numberedNames(2)[1])))
	shard := read(t, filepath.Join(dir, numberedNames(2)[0]))
	require.ErrorIs(t, safetensors.UpdateMetadata(dir, set("new", "2")), safetensors.ErrIndexMissingShard)
	require.Equal(t, shard, read(t, filepath.Join(dir, numberedNames(2)[0])))
}

func TestUpdateMetadataOfAnyIndex(t *testing.T) {
	for _, tt := range []struct{ index, want string }{
		{`{"metadata":{"k":"v"},"weight_map":{}}`, `{"metadata":{},"weight_map":{}}`},
		{`{"weight_map":{},"metadata":{ "k" : "v" , "total_size" : 5 } }`, `{"weight_map":{},"metadata":{ "total_size" : 5 } }`},
		{`{"metadata":{"total_size":5,"k":"v"},"weight_map":{}}`, `{"metadata":{"total_size":5},"weight_map":{}}`},
		{`{"metadata":{"a":"1","k":"v","b":[{"k":"v"}]},"weight_map":{}}`, `{"metadata":{"a":"2","b":[{"k":"v"}]},"weight_map":{}}`},
		{`{"metadata":{"a" : "1" , "\u006b":"v"},"k":"v","weight_map":{}}`, `{"metadata":{"a" : "2"},"k":"v","weight_map":{}}`},
		{`{"metadata":null,"weight_map":{}}`, ``}, {`{"weight_map":{}}`, ``}, {`{"metadata":["k"],"weight_map":{}}`, ``},
		{`{"metadata":{},"weight_map":{}}`, ``}, {`{"metadata":{"a":"2"},"weight_map":{}}`, ``}, {`{"metadata":{"k":1},"weight_map":{}}`, ``},
	} {
		path := filepath.Join(t.TempDir(), indexName)
		require.NoError(t, os.WriteFile(path, []byte(tt.index), 0o600))
		require.NoError(t, safetensors.UpdateMetadata(path, func(m map[string]string) error {
			delete(m, "k")
			m["a"], m["new"] = "2", "x"
			return nil
		}))
		if tt.want == "" {
			tt.want = tt.index
		}
		require.Equal(t, tt.want, string(read(t, path)))
	}
}
