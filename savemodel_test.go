package safetensors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// sized makes tensors of these sizes, all bytes of the given value.
func sized(value byte, sizes map[string]int) map[string]safetensors.Tensor {
	all := map[string]safetensors.Tensor{}
	for name, n := range sizes {
		all[name] = safetensors.Of(slices.Repeat([]uint8{value}, n), n)
	}
	return all
}

// folder returns the names of the files in a folder, sorted.
func folder(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func numberedNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n))
	}
	return names
}

const indexName = "model.safetensors.index.json"

func TestSaveModelSplits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on the way")
	sizes := map[string]int{"layer.2.a": 6, "layer.2.b": 6, "layer.2.c": 2, "layer.10.a": 6, "layer.10.b": 2, "layer.10.c": 2}
	files, err := safetensors.SaveModel(dir, sized(1, sizes), safetensors.WithMaxShardSize(10), safetensors.WithMetadata(map[string]string{"format": "pt", "by": "é"}))
	require.NoError(t, err)
	require.Equal(t, append(numberedNames(3), indexName), files)
	require.Equal(t, files, folder(t, dir))
	index, err := os.ReadFile(filepath.Join(dir, indexName))
	require.NoError(t, err)
	require.Equal(t, `{
  "metadata": {
    "total_size": 24,
    "by": "\u00e9"
  },
  "weight_map": {
    "layer.2.a": "model-00001-of-00003.safetensors",
    "layer.2.b": "model-00002-of-00003.safetensors",
    "layer.2.c": "model-00002-of-00003.safetensors",
    "layer.10.a": "model-00003-of-00003.safetensors",
    "layer.10.b": "model-00003-of-00003.safetensors",
    "layer.10.c": "model-00003-of-00003.safetensors"
  }
}`, string(index))
	for i, names := range [][]string{{"layer.2.a"}, {"layer.2.b", "layer.2.c"}, {"layer.10.a", "layer.10.b", "layer.10.c"}} {
		some := map[string]int{}
		for _, name := range names {
			some[name] = sizes[name]
		}
		var want bytes.Buffer
		_, err := safetensors.Write(&want, sized(1, some), safetensors.WithMetadata(map[string]string{"format": "pt", "by": "é"}))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(dir, files[i]))
		require.NoError(t, err)
		require.Equal(t, want.Bytes(), got, "shard %d is what Write gives", i+1)
	}
	m, err := safetensors.OpenModel(dir)
	require.NoError(t, err)
	require.Empty(t, m.Verify())
	require.Equal(t, map[string]string{"format": "pt", "by": "é"}, m.Metadata())
	require.NoError(t, m.Close())
}

func TestSaveModelOptions(t *testing.T) {
	tensors := sized(1, map[string]int{"a": 6, "b": 4, "c": 6, "big": 11, "none": 0})
	for _, c := range []struct {
		opts []safetensors.SaveOption
		want [][]string
		err  string
	}{
		{opts: nil, want: [][]string{{"a", "b", "big", "c", "none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(math.MaxInt64)}, want: [][]string{{"a", "b", "big", "c", "none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(27)}, want: [][]string{{"a", "b", "big", "c", "none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(10)}, want: [][]string{{"big"}, {"a", "b"}, {"c", "none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(9)}, want: [][]string{{"a"}, {"big"}, {"b"}, {"c", "none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(1)}, want: [][]string{{"a"}, {"b"}, {"big"}, {"c"}, {"none"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(10), safetensors.WithOrder([]string{"b", "none", "c", "a", "big"})}, want: [][]string{{"b", "none", "c"}, {"big"}, {"a"}}},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(0)}, err: "a shard size of 0: want at least 1"},
		{opts: []safetensors.SaveOption{safetensors.WithMaxShardSize(-1)}, err: "a shard size of -1"},
		{opts: []safetensors.SaveOption{safetensors.WithAlignment(3)}, err: "alignment of 3"},
		{opts: []safetensors.SaveOption{safetensors.WithOrder([]string{"a", "b", "c", "big"})}, err: `tensor "none": want an order of all tensors`},
		{opts: []safetensors.SaveOption{safetensors.WithOrder([]string{"a", "b", "c", "big", "none", "a"})}, err: `tensor "a": want an order of the tensors that are saved, each once, got it twice`},
		{opts: []safetensors.SaveOption{safetensors.WithOrder([]string{"a", "b", "c", "big", "none", "x"})}, err: `tensor "x"`},
		{opts: []safetensors.SaveOption{safetensors.WithOrder([]string{})}, err: "want an order of all tensors"},
	} {
		dir := filepath.Join(t.TempDir(), "model")
		files, err := safetensors.SaveModel(dir, tensors, c.opts...)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			require.NoDirExists(t, dir)
			continue
		}
		require.NoError(t, err)
		want := []string{"model.safetensors"}
		if len(c.want) > 1 {
			want = append(numberedNames(len(c.want)), indexName)
		}
		require.Equal(t, want, files)
		require.Equal(t, want, folder(t, dir))
		for i, names := range c.want {
			f, err := safetensors.Open(filepath.Join(dir, want[i]))
			require.NoError(t, err)
			require.ElementsMatch(t, names, f.Names())
			require.NoError(t, f.Close())
		}
	}
}

func TestSaveModelWithoutTensors(t *testing.T) {
	dir := t.TempDir()
	files, err := safetensors.SaveModel(dir, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"model.safetensors"}, files)
	m, err := safetensors.OpenModel(dir)
	require.NoError(t, err)
	require.Zero(t, m.Len())
	require.NoError(t, m.Close())
}

// before are folders that a model may be saved into. Each has a tensor "t" of
// the value 1 in its model, if it has one.
var before = map[string]func(t *testing.T, dir string){
	"nothing": func(*testing.T, string) {},
	"one file": func(t *testing.T, dir string) {
		put(t, filepath.Join(dir, "model.safetensors"), map[string]byte{"t": 1})
	},
	"two shards": func(t *testing.T, dir string) { saveOnes(t, dir, 2) },
	"three shards": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
	},
	"seven shards": func(t *testing.T, dir string) { saveOnes(t, dir, 7) },
	"an index of one file": func(t *testing.T, dir string) {
		put(t, filepath.Join(dir, "model.safetensors"), map[string]byte{"t": 1})
		putIndex(t, filepath.Join(dir, indexName), map[string]string{"t": "model.safetensors"})
	},
	"an index of other names": func(t *testing.T, dir string) {
		put(t, filepath.Join(dir, "pytorch-1.safetensors"), map[string]byte{"t": 1})
		put(t, filepath.Join(dir, "./pytorch-2.safetensors"), map[string]byte{"u": 1})
		putIndex(t, filepath.Join(dir, indexName), map[string]string{"t": "pytorch-1.safetensors", "u": "./pytorch-2.safetensors"})
	},
	"an index of names used otherwise": func(t *testing.T, dir string) {
		put(t, filepath.Join(dir, "model-00001-of-00003.safetensors"), map[string]byte{"t": 1})
		put(t, filepath.Join(dir, "model.safetensors"), map[string]byte{"u": 1})
		putIndex(t, filepath.Join(dir, indexName), map[string]string{"t": "model-00001-of-00003.safetensors", "u": "model.safetensors"})
	},
	"an index that is no index": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
		require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte("<html>"), 0o666))
	},
	"shards without an index": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
		require.NoError(t, os.Remove(filepath.Join(dir, indexName)))
	},
	"some shards without an index": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
		require.NoError(t, os.Remove(filepath.Join(dir, indexName)))
		require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00003.safetensors")))
	},
	"what a killed save left": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".model-00001-of-00002.save-abc123.safetensors"), []byte("half"), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".model.save-abc123l.safetensors"), []byte("half"), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".model.safetensors.index.save-abc123.json"), []byte("half"), 0o666))
	},
	"hidden shards": func(t *testing.T, dir string) {
		saveOnes(t, dir, 3)
		where := map[string]string{}
		for i, name := range numberedNames(3) {
			hidden := "." + strings.TrimSuffix(name, ".safetensors") + ".save-abc.safetensors"
			if i < 2 { // the third has its name yet to get
				require.NoError(t, os.Link(filepath.Join(dir, name), filepath.Join(dir, hidden)))
			} else {
				require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, hidden)))
			}
			where["tuvwxyz"[i:i+1]] = hidden
		}
		putIndex(t, filepath.Join(dir, indexName), where)
		list := map[string]string{}
		for _, name := range numberedNames(3) {
			list[name] = name
		}
		putIndex(t, filepath.Join(dir, ".model.safetensors.old.save-abc.json"), list)
	},
}

func saveOnes(t *testing.T, dir string, shards int) {
	all := map[string]int{}
	for i := range shards {
		all["tuvwxyz"[i:i+1]] = 1
	}
	files, err := safetensors.SaveModel(dir, sized(1, all), safetensors.WithMaxShardSize(1))
	require.NoError(t, err)
	require.Len(t, files, shards+1)
}

// What a model is saved over leaves nothing, and what is beside it stays.
func TestSaveModelOverAnother(t *testing.T) {
	for what, prepare := range before {
		for _, shards := range []int{1, 2, 3} {
			for _, inPlace := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d over %s, in place %v", shards, what, inPlace), func(t *testing.T) {
					dir := t.TempDir()
					prepare(t, dir)
					beside := []string{"adapter_model.safetensors", "config.json", "consolidated.safetensors", "model-00001-of-00003.safetensors.bak", "model.fp16.safetensors"}
					if strings.HasSuffix(what, "without an index") || what == "nothing" {
						beside = []string{"config.json"} // other files would be part of the old model
					}
					if strings.HasPrefix(what, "an index of") || strings.HasSuffix(what, " shards") && !strings.HasPrefix(what, "hidden") {
						beside = append(beside, "model-00002-of-00009.safetensors") // of a model that is not there
					}
					for _, name := range beside {
						put(t, filepath.Join(dir, name), map[string]byte{name: 9})
					}
					sizes := map[string]int{}
					for i := range shards {
						sizes["tuvwxyz"[i:i+1]] = 2
					}
					opts := []safetensors.SaveOption{safetensors.WithMaxShardSize(2)}
					if inPlace {
						opts = append(opts, safetensors.WithInPlace())
					}
					files, err := safetensors.SaveModel(dir, sized(2, sizes), opts...)
					require.NoError(t, err)
					want := []string{"model.safetensors"}
					if shards > 1 {
						want = append(numberedNames(shards), indexName)
					}
					require.Equal(t, want, files)
					want = append(want, beside...)
					slices.Sort(want)
					require.Equal(t, want, folder(t, dir))
					m, err := safetensors.OpenModel(dir)
					require.NoError(t, err)
					defer m.Close()
					require.Equal(t, shards, m.Len())
					for name, x := range m.All() {
						b, err := x.Bytes()
						require.NoError(t, err)
						require.Equal(t, []byte{2, 2}, b, name)
					}
					require.Empty(t, m.Verify())
				})
			}
		}
	}
}

// A shard that another index of the folder names too is not the old model's alone.
func TestSaveModelKeepsShardsOfOtherIndexes(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "shared.safetensors"), map[string]byte{"t": 1})
	put(t, filepath.Join(dir, "model-00001-of-00009.safetensors"), map[string]byte{"u": 1})
	putIndex(t, filepath.Join(dir, indexName), map[string]string{"t": "shared.safetensors"})
	putIndex(t, filepath.Join(dir, "model.fp16.safetensors.index.json"), map[string]string{"t": "./shared.safetensors", "u": "model-00001-of-00009.safetensors"})
	_, err := safetensors.SaveModel(dir, sized(2, map[string]int{"t": 1}))
	require.NoError(t, err)
	require.Equal(t, []string{"model-00001-of-00009.safetensors", "model.fp16.safetensors.index.json", "model.safetensors", "shared.safetensors"}, folder(t, dir))
}

// What another model may need is neither written over nor taken for the old one's.
func TestSaveModelRefusesToHarmOthers(t *testing.T) {
	const other = "model.fp16.safetensors.index.json"
	for what, c := range map[string]struct {
		prepare func(dir string) error
		err     string
	}{
		"a shared shard": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, other), []byte(`{"weight_map":{"t":"./model-00002-of-00002.safetensors"}}`), 0o666)
		}, `model-00002-of-00002.safetensors is a shard of another model, that of ` + other},
		"an index that is no index": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, other), []byte(`{"weight_map":{"t":"model-00001-of-00033.safetensors",}}`), 0o666)
		}, "which files are those of another model cannot be told"},
		"a link to a shard": {func(dir string) error {
			if err := os.Symlink("model-00002-of-00002.safetensors", filepath.Join(dir, "half.safetensors")); err != nil {
				t.Skip("no symbolic links:", err)
			}
			return os.WriteFile(filepath.Join(dir, other), []byte(`{"weight_map":{"t":"half.safetensors"}}`), 0o666)
		}, `model-00002-of-00002.safetensors is a shard of another model, that of ` + other},
		"a folder for an index": {func(dir string) error { return os.Mkdir(filepath.Join(dir, other), 0o777) }, "is a directory"},
	} {
		dir := t.TempDir()
		saveOnes(t, dir, 3)
		put(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), map[string]byte{"t": 1})
		put(t, filepath.Join(dir, "model-00001-of-00033.safetensors"), map[string]byte{"t": 1})
		require.NoError(t, c.prepare(dir))
		was := folder(t, dir)
		for _, opts := range [][]safetensors.SaveOption{nil, {safetensors.WithInPlace()}} {
			_, err := safetensors.SaveModel(dir, sized(2, map[string]int{"t": 1, "u": 1}), append(opts, safetensors.WithMaxShardSize(1))...)
			require.ErrorContains(t, err, c.err, what)
			require.ErrorContains(t, err, other, what)
			require.Equal(t, was, folder(t, dir), what)
		}
	}
}

// Hidden files that only look like those of SaveModel stay, and so do folders.
func TestSaveModelKeepsHiddenFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	saveOnes(t, dir, 2)
	put(t, filepath.Join(dir, ".model.backup.safetensors"), map[string]byte{"t": 1})
	put(t, filepath.Join(dir, ".model.save-abc.safetensors"), map[string]byte{"t": 1})
	putIndex(t, filepath.Join(dir, "model.fp16.safetensors.index.json"), map[string]string{"t": ".model.save-abc.safetensors"})
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".model.save-def.safetensors"), 0o777))
	_, err := safetensors.SaveModel(dir, sized(2, map[string]int{"t": 1}))
	require.NoError(t, err)
	require.Equal(t, []string{".model.backup.safetensors", ".model.save-abc.safetensors", ".model.save-def.safetensors",
		"model.fp16.safetensors.index.json", "model.safetensors"}, folder(t, dir))
}

func TestSaveModelWithAFolderInTheWay(t *testing.T) {
	for _, name := range []string{"model-00002-of-00002.safetensors", indexName} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "model.safetensors"), map[string]byte{"t": 1})
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
		_, err := safetensors.SaveModel(dir, sized(2, map[string]int{"t": 1, "u": 1}), safetensors.WithMaxShardSize(1))
		require.ErrorContains(t, err, name+" is a directory")
		require.ElementsMatch(t, []string{name, "model.safetensors"}, folder(t, dir))
	}
}

// A step up after a symbolic link leads to where the system says, not to where
// the text of the path does.
func TestModelBeyondALink(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"real/sub", "real/out", "home/out"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o777))
	}
	if err := os.Symlink(filepath.Join(dir, "real", "sub"), filepath.Join(dir, "home", "link")); err != nil {
		t.Skip("no symbolic links:", err)
	}
	saveOnes(t, filepath.Join(dir, "home", "out"), 2)
	was := contents(t, filepath.Join(dir, "home", "out"))
	out := strings.Join([]string{dir, "home", "link", "..", "out"}, string(os.PathSeparator))
	if runtime.GOOS == "windows" {
		t.Skip("Windows resolves such a path by its text")
	}
	for range 2 {
		_, err := safetensors.SaveModel(out, sized(2, map[string]int{"t": 1, "u": 1, "v": 1}), safetensors.WithMaxShardSize(1))
		require.NoError(t, err)
	}
	require.Equal(t, was, contents(t, filepath.Join(dir, "home", "out")))
	for _, path := range []string{out, out + "/", out + "/" + indexName} {
		m, err := safetensors.OpenModel(path)
		require.NoError(t, err)
		require.Equal(t, 3, m.Len())
		require.NoError(t, m.Close())
	}
}

// Folders that were made for nothing go again, and only they.
func TestSaveModelRemovesTheFoldersItMade(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("no more")
	tensors := map[string]safetensors.Tensor{"t": safetensors.FromFunc(safetensors.U8, []int{1}, func(io.Writer) error { return broken })}
	_, err := safetensors.SaveModel(filepath.Join(dir, "a", "b", "c")+"/", tensors)
	require.ErrorIs(t, err, broken)
	require.Empty(t, folder(t, dir))
	require.DirExists(t, dir)
}

func TestSaveModelThatFailsChangesNothing(t *testing.T) {
	broken := errors.New("no more")
	failing := safetensors.FromFunc(safetensors.U8, []int{1 << 20}, func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 1<<19)); err != nil {
			return err
		}
		return broken
	})
	for what, prepare := range before {
		for _, size := range []int64{1, math.MaxInt64} {
			dir := filepath.Join(t.TempDir(), "model")
			if what != "nothing" {
				require.NoError(t, os.Mkdir(dir, 0o777))
				prepare(t, dir)
			}
			was := map[string]string{}
			if what != "nothing" {
				was = contents(t, dir)
			}
			tensors := sized(2, map[string]int{"t": 1, "u": 1, "zz": 1})
			tensors["v"] = failing
			_, err := safetensors.SaveModel(dir, tensors, safetensors.WithMaxShardSize(size))
			require.ErrorIs(t, err, broken)
			require.ErrorContains(t, err, `tensor "v"`)
			require.ErrorContains(t, err, dir)
			if what == "nothing" {
				require.NoDirExists(t, dir)
				continue
			}
			for name := range was {
				if strings.HasPrefix(name, ".") && what != "hidden shards" {
					delete(was, name) // what a killed one left behind
				}
			}
			require.Equal(t, was, contents(t, dir), what)
		}
	}

	dir := t.TempDir()
	saveOnes(t, dir, 3)
	was := contents(t, dir)
	for want, tensors := range map[string]map[string]safetensors.Tensor{
		`"__metadata__"`: sized(1, map[string]int{"__metadata__": 1}),
		`"\xff"`:         sized(1, map[string]int{"\xff": 1}),
		"size-mismatch":  {"x": safetensors.New(safetensors.F32, []int{2}, make([]byte, 7))},
	} {
		_, err := safetensors.SaveModel(dir, tensors)
		require.ErrorContains(t, err, want)
		var fe *safetensors.FormatError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, dir, fe.File)
	}
	require.Equal(t, was, contents(t, dir))

	file := filepath.Join(dir, "model-00001-of-00003.safetensors")
	_, err := safetensors.SaveModel(file, nil)
	require.ErrorContains(t, err, file)
}

func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range folder(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		all[name] = string(b)
	}
	return all
}

// The tensors of a model may be saved over it, in other shards.
func TestSaveModelOverItself(t *testing.T) {
	dir := t.TempDir()
	sizes := map[string]int{}
	for i := range 20 {
		sizes[fmt.Sprint("t", i)] = 200_000 + i
	}
	tensors := sized(0, sizes)
	for name, n := range sizes {
		tensors[name] = safetensors.Of(bytes.Repeat([]byte(name), n)[:n], n)
	}
	_, err := safetensors.SaveModel(dir, tensors, safetensors.WithMaxShardSize(500_000))
	require.NoError(t, err)
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not replace files that are mapped")
	}
	for _, size := range []int64{500_000, 700_000, math.MaxInt64, math.MaxInt64, 500_000, 500_000} {
		m, err := safetensors.OpenModel(dir)
		require.NoError(t, err)
		again := map[string]safetensors.Tensor{}
		for name, x := range m.All() {
			again[name] = x
		}
		_, err = safetensors.SaveModel(dir, again, safetensors.WithMaxShardSize(size))
		require.NoError(t, err)
		require.NoError(t, m.Close())

		m, err = safetensors.OpenModel(dir)
		require.NoError(t, err)
		require.Equal(t, len(tensors), m.Len())
		for name, x := range m.All() {
			require.Equal(t, sum(t, tensors[name]), sum(t, x), name)
		}
		require.NoError(t, m.Close())
	}

	m, err := safetensors.OpenModel(dir)
	require.NoError(t, err)
	defer m.Close()
	again := map[string]safetensors.Tensor{}
	for name, x := range m.All() {
		again[name] = x
	}
	was := contents(t, dir)
	_, err = safetensors.SaveModel(dir, again, safetensors.WithMaxShardSize(500_000), safetensors.WithInPlace())
	require.ErrorContains(t, err, "which is written over")
	require.Equal(t, was, contents(t, dir))
}

// Links stay unharmed: what they point to may be a cache that others share.
func TestSaveModelOverLinks(t *testing.T) {
	dir, blobs := t.TempDir(), t.TempDir()
	saveOnes(t, dir, 2)
	for _, name := range folder(t, dir) {
		require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(blobs, name)))
		if err := os.Symlink(filepath.Join(blobs, name), filepath.Join(dir, name)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
	}
	was := contents(t, blobs)
	_, err := safetensors.SaveModel(dir, sized(2, map[string]int{"t": 1, "u": 1}), safetensors.WithMaxShardSize(1))
	require.NoError(t, err)
	require.Equal(t, was, contents(t, blobs))
	for _, name := range folder(t, dir) {
		info, err := os.Lstat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.True(t, info.Mode().IsRegular(), name)
	}

	// The folder itself may be a link.
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	_, err = safetensors.SaveModel(link, sized(3, map[string]int{"t": 1}))
	require.NoError(t, err)
	require.Equal(t, []string{"model.safetensors"}, folder(t, dir))
}

func TestSaveModelKeepsPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other permissions")
	}
	dir := t.TempDir()
	mode := func(name string) fs.FileMode {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	saveOnes(t, dir, 2)
	for i, name := range folder(t, dir) {
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o440|fs.FileMode(i)))
	}
	saveOnes(t, dir, 2)
	for i, name := range folder(t, dir) {
		require.Equal(t, 0o440|fs.FileMode(i), mode(name), name)
	}
	for _, name := range numberedNames(2) {
		require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o400))
	}
	saveOnes(t, dir, 3)
	for _, name := range numberedNames(3) {
		require.Equal(t, fs.FileMode(0o400), mode(name), "a private model stays private")
	}
	require.Equal(t, fs.FileMode(0o442), mode(indexName))

	// What is not of the old model has no say.
	dir = t.TempDir()
	put(t, filepath.Join(dir, "model.safetensors"), map[string]byte{"t": 1})
	require.NoError(t, os.Chmod(filepath.Join(dir, "model.safetensors"), 0o600))
	put(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), map[string]byte{"t": 1})
	put(t, filepath.Join(dir, "model-00001-of-00009.safetensors"), map[string]byte{"t": 1})
	putIndex(t, filepath.Join(dir, "model.fp16.safetensors.index.json"), map[string]string{"t": "model-00001-of-00009.safetensors"})
	saveOnes(t, dir, 2)
	for _, name := range append(numberedNames(2), indexName) {
		require.Equal(t, fs.FileMode(0o600), mode(name), name)
	}
}

func TestSaveModelProgress(t *testing.T) {
	dir := t.TempDir()
	var last, total int64
	calls := 0
	files, err := safetensors.SaveModel(dir, sized(1, map[string]int{"a": 3 << 20, "b": 3 << 20, "c": 1}), safetensors.WithMaxShardSize(3<<20),
		safetensors.WithProgress(func(n, of int64) {
			require.GreaterOrEqual(t, n, last)
			require.True(t, total == 0 || total == of)
			last, total = n, of
			calls++
		}))
	require.NoError(t, err)
	var sum int64
	for _, name := range files[:len(files)-1] {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		sum += info.Size()
	}
	require.Equal(t, sum, last)
	require.Equal(t, sum, total)
	require.GreaterOrEqual(t, calls, len(files))
}

// However large the tensors, they pass through a few MiB.
func TestModelsPassThroughLittleMemory(t *testing.T) {
	const tensors, each, bound = 25, 8 << 20, 32 << 20
	dir := t.TempDir()
	sizes := map[string]safetensors.Tensor{}
	for i := range tensors {
		sizes[fmt.Sprint("t", i)] = safetensors.FromFunc(safetensors.U8, []int{each}, func(w io.Writer) error {
			for range each >> 16 {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	_, err := safetensors.SaveModel(dir, sizes, safetensors.WithMaxShardSize(60<<20))
	require.NoError(t, err)
	for how, opts := range map[string][]safetensors.Option{"mapped": nil, "read": {safetensors.WithoutMmap()}} {
		for what, do := range map[string]func(m *safetensors.Model, out string) error{
			"reshard": func(m *safetensors.Model, out string) error {
				_, err := safetensors.SaveModel(out, maps.Collect(m.All()), safetensors.WithMaxShardSize(100<<20))
				return err
			},
			"merge": func(m *safetensors.Model, out string) error {
				name := filepath.Join(out, "all.safetensors")
				if err := safetensors.Save(name, maps.Collect(m.All())); err != nil {
					return err
				}
				return safetensors.UpdateMetadata(name, func(m map[string]string) error { m["a"] = "b"; return nil })
			},
		} {
			m, err := safetensors.OpenModel(dir, opts...)
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, do(m, t.TempDir()))
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(bound), "%s %s", what, how)
			require.NoError(t, m.Close())
		}
	}
}

func TestPlanModel(t *testing.T) {
	tensors := sized(1, map[string]int{"a": 6, "b": 6, "c": 600, "d": 0, "e": 6})
	tensors["f"] = safetensors.Of([]float64{1}, 1)
	for _, opts := range [][]safetensors.SaveOption{
		nil,
		{safetensors.WithMaxShardSize(12), safetensors.WithAlignment(64)},
		{safetensors.WithMaxShardSize(13), safetensors.WithOrder([]string{"f", "e", "d", "c", "b", "a"}), safetensors.WithMetadata(map[string]string{"k": "v"})},
	} {
		shards, err := safetensors.PlanModel(tensors, opts...)
		require.NoError(t, err)
		dir := t.TempDir()
		files, err := safetensors.SaveModel(dir, tensors, opts...)
		require.NoError(t, err)
		if len(files) > 1 {
			files = files[:len(files)-1]
		}
		require.Len(t, shards, len(files))
		for i, shard := range shards {
			require.Equal(t, files[i], shard.Name)
			f, err := safetensors.Open(filepath.Join(dir, shard.Name))
			require.NoError(t, err)
			require.Equal(t, f.Names(), shard.Tensors)
			require.NoError(t, f.Close())
			info, err := os.Stat(filepath.Join(dir, shard.Name))
			require.NoError(t, err)
			require.Equal(t, info.Size(), shard.Size)
		}
	}
	shards, err := safetensors.PlanModel(nil)
	require.NoError(t, err)
	require.Equal(t, "model.safetensors", shards[0].Name)
	require.Empty(t, shards[0].Tensors)
	_, err = safetensors.PlanModel(map[string]safetensors.Tensor{"\xff": safetensors.Of([]uint8{1}, 1)})
	require.ErrorIs(t, err, safetensors.ErrBadName)
}

// TestSaveCancelled ends writes of every kind midway.
func TestSaveCancelled(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.safetensors")
	big := safetensors.Of(make([]float32, 9<<20), 9<<20)
	require.NoError(t, safetensors.Save(in, map[string]safetensors.Tensor{"a": big, "b": big}))
	f, err := safetensors.Open(in)
	require.NoError(t, err)
	defer f.Close()
	mapped, err := f.Tensor("b")
	require.NoError(t, err)
	halved, err := mapped.Cast(safetensors.BF16)
	require.NoError(t, err)
	made := safetensors.FromFunc(safetensors.U8, []int{36 << 20}, func(w io.Writer) error {
		for range 36 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return nil
	})
	out := filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(out, 0o777))
	old := map[string]safetensors.Tensor{"old": safetensors.Of([]uint8{1}, 1)}
	_, err = safetensors.SaveModel(out, old)
	require.NoError(t, err)
	file := filepath.Join(out, "model.safetensors")
	for what, save := range map[string]func(...safetensors.SaveOption) error{
		"memory": func(opts ...safetensors.SaveOption) error {
			return safetensors.Save(file, map[string]safetensors.Tensor{"a": big, "b": big}, opts...)
		},
		"map": func(opts ...safetensors.SaveOption) error {
			return safetensors.Save(file, map[string]safetensors.Tensor{"a": mapped, "b": mapped}, opts...)
		},
		"cast": func(opts ...safetensors.SaveOption) error {
			return safetensors.Save(file, map[string]safetensors.Tensor{"a": halved, "b": halved}, opts...)
		},
		"function": func(opts ...safetensors.SaveOption) error {
			return safetensors.Save(file, map[string]safetensors.Tensor{"a": made, "b": made}, opts...)
		},
		"write": func(opts ...safetensors.SaveOption) error {
			_, err := safetensors.Write(io.Discard, map[string]safetensors.Tensor{"a": big, "b": mapped}, opts...)
			return err
		},
		"model": func(opts ...safetensors.SaveOption) error {
			_, err := safetensors.SaveModel(out, map[string]safetensors.Tensor{"a": big, "b": mapped}, append(opts, safetensors.WithMaxShardSize(10<<20))...)
			return err
		},
		"repair": func(opts ...safetensors.SaveOption) error {
			_, err := safetensors.Repair(in, file, opts...)
			return err
		},
		"metadata": func(opts ...safetensors.SaveOption) error {
			return safetensors.UpdateMetadata(in, func(m map[string]string) error { m["k"] = "v"; return nil }, opts...)
		},
	} {
		t.Run(what, func(t *testing.T) {
			for _, after := range []int64{0, 10 << 20} {
				ctx, cancel := context.WithCancel(t.Context())
				most := int64(0)
				progress := func(done, total int64) {
					if most = done; done > after {
						cancel()
					}
				}
				if after == 0 {
					cancel()
				}
				err := save(safetensors.WithContext(ctx), safetensors.WithProgress(progress))
				require.ErrorIs(t, err, context.Canceled)
				require.Less(t, most, int64(70<<20), "it went on")
				cancel()
				require.Equal(t, []string{"model.safetensors"}, folder(t, out))
				require.Equal(t, []string{"in.safetensors", "out"}, folder(t, dir))
				sameAs(t, file, old, nil)
			}
		})
	}
	g, err := safetensors.Open(in)
	require.NoError(t, err)
	require.Nil(t, g.Metadata())
	require.NoError(t, g.Close())
}
