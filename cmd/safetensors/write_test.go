package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// succeeds calls the program, which has to be fine with it.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := call(args...)
	require.Equal(t, exitFine, code, "%v: %s", args, errs)
	return out
}

func listed(t *testing.T, path string) (l listing) {
	t.Helper()
	decode(t, succeeds(t, "ls", "--json", path), &l)
	return l
}

// entries returns what is in a folder, hidden files included.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func example(t *testing.T) string {
	return saved(t, tensors{
		"enc.0.weight": safetensors.Of([]float32{1, 2, 3, 4}, 2, 2),
		"enc.1.weight": safetensors.Of([]float32{-1, 0.5}),
		"enc/2/bias":   safetensors.Of([]float64{1e300}),
		"step":         safetensors.Of([]int64{7}, []int{}...),
		"mask":         safetensors.Of([]bool{true, false}),
	}, safetensors.WithMetadata(map[string]string{"format": "pt", "author": "me"}))
}

func TestCopy(t *testing.T) {
	in := example(t)
	out := filepath.Join(t.TempDir(), "out.safetensors")
	succeeds(t, "cp", in, out)
	a, err := os.ReadFile(in)
	require.NoError(t, err)
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, a, b, "what the library wrote comes out the same")
	require.Equal(t, []string{"out.safetensors"}, entries(t, filepath.Dir(out)))

	names := func(args ...string) (names []string) {
		succeeds(t, append([]string{"cp", in, out}, args...)...)
		for _, tt := range listed(t, out).Tensors {
			names = append(names, tt.Name)
		}
		return names
	}
	require.ElementsMatch(t, []string{"enc.0.weight", "enc.1.weight"}, names("--include", "*.weight"))
	require.ElementsMatch(t, []string{"enc.0.weight", "enc.1.weight", "enc/2/bias"}, names("--include=enc*"))
	require.ElementsMatch(t, []string{"step", "mask"}, names("--exclude", "enc*"))
	require.ElementsMatch(t, []string{"enc.1.weight", "step"}, names("--include", "enc.?.weight", "--include", "step", "--exclude", "*0*"))

	metadata := func(args ...string) map[string]string {
		succeeds(t, append([]string{"cp", in, out}, args...)...)
		return listed(t, out).Metadata
	}
	require.Equal(t, map[string]string{"format": "pt", "author": "you", "a": "b=c"}, metadata("--metadata", "author=you", "--metadata=a=b=c"))
	require.Equal(t, map[string]string{"x": ""}, metadata("--no-metadata", "--metadata", "x="))
	require.Nil(t, metadata("--no-metadata"))
	require.Equal(t, map[string]string{"format": "pt", "author": "me"}, metadata())

	succeeds(t, "cp", "--metadata", "k=v", out, out)
	require.Equal(t, map[string]string{"format": "pt", "author": "me", "k": "v"}, listed(t, out).Metadata)
	require.Equal(t, []string{"out.safetensors"}, entries(t, filepath.Dir(out)))
}

func TestCopyCast(t *testing.T) {
	in := example(t)
	out := filepath.Join(t.TempDir(), "out.safetensors")
	code, _, errs := call("cp", "--cast", "bf16", in, out)
	require.Equal(t, exitFine, code, errs)
	require.Equal(t, "note: 2 tensors kept: not of the kind of BF16\n", errs)
	f, err := safetensors.Open(out)
	require.NoError(t, err)
	defer f.Close()
	dtypes := map[string]safetensors.DType{}
	for name, tt := range f.All() {
		dtypes[name] = tt.DType()
	}
	require.Equal(t, map[string]safetensors.DType{"enc.0.weight": safetensors.BF16, "enc.1.weight": safetensors.BF16,
		"enc/2/bias": safetensors.BF16, "step": safetensors.I64, "mask": safetensors.Bool}, dtypes)
	x, err := f.Tensor("enc.0.weight")
	require.NoError(t, err)
	v, err := safetensors.Values[float32](x)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, 4}, v)
	require.Equal(t, []int{2, 2}, x.Shape())

	succeeds(t, "cp", "--cast", "U8", "--include", "step", in, out+"2")
	require.Equal(t, "U8", listed(t, out+"2").Tensors[0].DType)

	// What cannot be cast leaves all as it was.
	before, err := os.ReadFile(out)
	require.NoError(t, err)
	odd := saved(t, tensors{"odd": safetensors.Of([]float32{1, 2, 3})})
	big := saved(t, tensors{"big": safetensors.Of([]int32{300})})
	for in, d := range map[string]string{odd: "F4", big: "I8"} {
		code, _, errs := call("cp", "--cast", d, in, out)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, filepath.Base(map[string]string{odd: "odd", big: "big"}[in]))
		after, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	require.ElementsMatch(t, []string{"out.safetensors", "out.safetensors2"}, entries(t, filepath.Dir(out)))
}

func TestCopyToFolder(t *testing.T) {
	in := example(t)
	dir := t.TempDir()
	for out, args := range map[string][]string{
		filepath.Join(dir, "sharded"):    {"--max-shard-size", "17B"},
		filepath.Join(dir, "made") + "/": {},
		dir:                              {},
	} {
		succeeds(t, append([]string{"cp", in, out}, args...)...)
		succeeds(t, "diff", in, out)
		require.True(t, isFolder(out))
	}
	require.Contains(t, entries(t, filepath.Join(dir, "sharded")), "model.safetensors.index.json")
	require.Equal(t, []string{"model.safetensors"}, entries(t, filepath.Join(dir, "made")))

	// Sharded again, over itself.
	sharded := filepath.Join(dir, "sharded")
	n := len(entries(t, sharded))
	succeeds(t, "cp", "--max-shard-size", "1GB", sharded, sharded)
	require.Less(t, len(entries(t, sharded)), n)
	succeeds(t, "diff", in, sharded)
	succeeds(t, "split", "--max-shard-size", "8", sharded, sharded)
	succeeds(t, "diff", in, sharded)
	succeeds(t, "verify", sharded)
	succeeds(t, "merge", sharded, filepath.Join(dir, "one"))
	a, err := os.ReadFile(in)
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, "one"))
	require.NoError(t, err)
	require.Equal(t, a, b)
}

// A folder may hold a model that whoever copies a file into it did not think of.
func TestFolderInUse(t *testing.T) {
	in, dir := example(t), t.TempDir()
	model := filepath.Join(dir, "model")
	succeeds(t, "split", "--max-shard-size", "8", in, model)
	before := entries(t, model)
	other := filepath.Join(model, "other.safetensors")
	save(t, other, tensors{"x": safetensors.Of([]uint8{1})})
	for _, args := range [][]string{{"cp", in, model}, {"split", in, model}, {"merge", in, model}, {"cp", other, model + "/"},
		{"cp", "--dry-run", in, model}} {
		code, _, errs := call(args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, "--force")
		require.ElementsMatch(t, append(before, "other.safetensors"), entries(t, model))
	}
	succeeds(t, "cp", "--cast", "BF16", "--include", "*.weight", model, model+"-bf16")
	require.Equal(t, []string{"model.safetensors"}, entries(t, model+"-bf16"))
	succeeds(t, "cp", filepath.Join(model, "model.safetensors.index.json"), filepath.Join(dir, "one.safetensors"))
	succeeds(t, "diff", in, filepath.Join(dir, "one.safetensors"))
	succeeds(t, "cp", "--metadata", "k=v", filepath.Join(model, "model.safetensors.index.json"), model)
	require.Equal(t, "v", listed(t, model).Metadata["k"])
	succeeds(t, "cp", "--force", other, model)
	succeeds(t, "split", filepath.Join(model, "model.safetensors"), model)
	require.Len(t, listed(t, model).Tensors, 1)
}

// A variant in the folder is another model than the one that would be replaced.
func TestFolderWithAVariant(t *testing.T) {
	in, dir := example(t), t.TempDir()
	succeeds(t, "split", "--max-shard-size", "8", in, dir)
	was := listed(t, dir)
	save(t, filepath.Join(dir, "half.safetensors"), tensors{"x": safetensors.Of([]uint8{1})})
	variant := filepath.Join(dir, "model.fp16.safetensors.index.json")
	require.NoError(t, os.WriteFile(variant, []byte(`{"weight_map":{"x":"half.safetensors"}}`), 0o666))
	for _, args := range [][]string{{"split", "--max-shard-size", "8", variant, dir}, {"cp", variant, dir + "/"}, {"merge", variant, dir}} {
		code, _, errs := call(args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, "--force")
		require.Equal(t, was, listed(t, dir))
	}
	succeeds(t, "split", "--max-shard-size", "9", dir, dir)
	require.Len(t, listed(t, variant).Tensors, 1)
}

// Files that a new model's names may take are asked for too, whatever opens in
// the folder.
func TestFolderWithUnreadFiles(t *testing.T) {
	in := example(t)
	one := tensors{"precious": safetensors.Of([]uint8{1})}
	for what, prepare := range map[string]func(dir string){
		"numbered files beside the only index": func(dir string) {
			save(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), one)
			save(t, filepath.Join(dir, "half.safetensors"), one)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "model.fp16.safetensors.index.json"), []byte(`{"weight_map":{"precious":"half.safetensors"}}`), 0o666))
		},
		"a file beside an index": func(dir string) {
			save(t, filepath.Join(dir, "model.safetensors"), one)
			save(t, filepath.Join(dir, "w.safetensors"), one)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{"precious":"w.safetensors"}}`), 0o666))
		},
		"an index that leads nowhere": func(dir string) {
			save(t, filepath.Join(dir, "model-00001-of-00002.safetensors"), one)
			if err := os.Symlink("nowhere", filepath.Join(dir, "model.safetensors.index.json")); err != nil {
				t.Skip("no symbolic links:", err)
			}
		},
	} {
		dir := t.TempDir()
		prepare(dir)
		was := entries(t, dir)
		for _, args := range [][]string{{"cp", in, dir + "/"}, {"cp", dir, dir}, {"split", dir, dir}} {
			code, _, errs := call(args...)
			require.NotZero(t, code, what)
			if args[1] == in {
				require.Contains(t, errs, "--force", what)
			}
			require.Equal(t, was, entries(t, dir), what)
		}
	}
}

func TestFolderThatIsAFile(t *testing.T) {
	in := example(t)
	for _, args := range [][]string{{"cp", "--max-shard-size", "8", in, in}, {"cp", "--dry-run", "--max-shard-size", "8", in, in}, {"split", in, in}, {"cp", in, in + "/"}} {
		code, _, errs := call(args...)
		require.Equal(t, exitFailed, code, args)
		require.Contains(t, errs, "is a file, and OUT is to be a folder")
	}
	code, _, errs := call("split", "--max-shard-size", "", in, t.TempDir())
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "max-shard-size")
}

func TestMerge(t *testing.T) {
	one := safetensors.Of([]uint8{1})
	a := saved(t, tensors{"a": one}, safetensors.WithMetadata(map[string]string{"format": "pt", "from": "a"}))
	b := saved(t, tensors{"b": one}, safetensors.WithMetadata(map[string]string{"format": "pt", "from": "b"}))
	c := saved(t, tensors{"b": one})
	out := filepath.Join(t.TempDir(), "out")

	code, _, errs := call("merge", a, b, out)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, `"from"`)
	require.Contains(t, errs, "--metadata")
	code, _, errs = call("merge", a, b, c, out, "--no-metadata")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, b)
	require.Contains(t, errs, c)
	require.NoFileExists(t, out)

	succeeds(t, "merge", a, b, out, "--metadata", "from=both")
	l := listed(t, out)
	require.Len(t, l.Tensors, 2)
	require.Equal(t, map[string]string{"format": "pt", "from": "both"}, l.Metadata)
	succeeds(t, "merge", a, b, out, "--no-metadata")
	require.Nil(t, listed(t, out).Metadata)
	succeeds(t, "merge", a, c, out)
	require.Equal(t, map[string]string{"format": "pt", "from": "a"}, listed(t, out).Metadata)
}

func TestDryRun(t *testing.T) {
	in := example(t)
	dir := t.TempDir()
	before, err := os.ReadFile(in)
	require.NoError(t, err)
	for _, args := range [][]string{
		{"cp", in, filepath.Join(dir, "x")}, {"cp", in, in, "--cast", "F16"}, {"cp", in, dir + "/"}, {"merge", in, filepath.Join(dir, "x")},
		{"split", in, filepath.Join(dir, "new")}, {"repair", in, filepath.Join(dir, "x")},
		{"meta", "set", in, "k=v"}, {"meta", "delete", in, "format"},
	} {
		require.NotEmpty(t, succeeds(t, append(args, "--dry-run")...))
		require.Empty(t, entries(t, dir), args)
		after, err := os.ReadFile(in)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	// What would fail fails.
	code, _, errs := call("cp", "--dry-run", "--cast", "F4", "--include", "enc/2/bias", in, filepath.Join(dir, "x"))
	require.Equal(t, exitFailed, code, errs)
	code, _, _ = call("meta", "delete", in, "no such key", "--dry-run")
	require.Equal(t, exitFailed, code)
	code, _, _ = call("repair", filepath.Join(shared, "cut_one_byte.safetensors"), "x", "--dry-run")
	require.Equal(t, exitInvalid, code)
}

func TestRepair(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for name, want := range map[string]string{
		"trailing_1_byte.safetensors":     "dropped 1 byte after the last tensor\n",
		"gap_between.safetensors":         "closed holes of 4 bytes",
		"empty_object_padded.safetensors": "nothing to repair\n",
	} {
		in := filepath.Join(shared, name)
		require.Contains(t, succeeds(t, "repair", in, out), want)
		succeeds(t, "verify", out)
		require.Contains(t, succeeds(t, "repair", "--dry-run", in, filepath.Join("no", "such", "folder")), want)
	}
	code, _, errs := call("repair", out, out)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "another file")
	code, _, _ = call("repair", filepath.Join(shared, "missing"), out)
	require.Equal(t, exitFailed, code)
}

// Where nothing can be written the exit code says so and nothing is left.
func TestUnwritable(t *testing.T) {
	in := example(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o644))
	for _, args := range [][]string{
		{"cp", in, filepath.Join(dir, "no", "folder")}, {"cp", in, filepath.Join(file, "x")},
		{"split", in, file}, {"merge", in, filepath.Join(dir, "no", "folder")},
		{"repair", in, filepath.Join(dir, "no", "folder")}, {"meta", "set", filepath.Join(dir, "missing"), "k=v"},
	} {
		code, out, errs := call(args...)
		require.Equal(t, exitFailed, code, "%v", args)
		require.Empty(t, out)
		require.NotEmpty(t, errs)
		require.Equal(t, []string{"file"}, entries(t, dir))
	}
}

func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "js" {
		t.Skipf("%s has no signals that a process can send to itself", runtime.GOOS)
	}
	dir := t.TempDir()
	err := interruptible(func(ctx context.Context) error {
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Signal(os.Interrupt))
		endless := safetensors.FromFunc(safetensors.U8, []int{1 << 30}, func(w io.Writer) error {
			some := make([]byte, 1<<20)
			for {
				if _, err := w.Write(some); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
		})
		return safetensors.Save(filepath.Join(dir, "file"), tensors{"t": endless}, safetensors.WithContext(ctx))
	})
	require.Equal(t, errInterrupted, err)
	require.Empty(t, entries(t, dir))
	require.NoError(t, interruptible(func(context.Context) error { return nil }))
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	columns := 200
	p := &progress{w: &out, width: func() int { return columns }, what: "writing", total: 100 << 20,
		now: func() time.Time { return now }, started: now}
	p.add(1 << 20)
	require.Empty(t, out.String(), "nothing for what may be done at once")
	now = now.Add(time.Second)
	p.set(25<<20, 100<<20)
	require.Equal(t, "\rwriting [######..................]  25%  25.0 MiB of 100.0 MiB  25.0 MiB/s  3s left", out.String())
	p.set(26<<20, 100<<20)
	require.Equal(t, 1, strings.Count(out.String(), "\r"), "not more than some times a second")
	now, columns = now.Add(time.Second), 20
	out.Reset()
	p.add(1)
	require.Len(t, strings.TrimRight(out.String(), " "), 20, "\\r and a line that does not wrap")
	out.Reset()
	p.end()
	require.Regexp(t, `^\r +\r$`, out.String())
	out.Reset()
	p.end()
	require.Empty(t, out.String())

	var none *progress
	none.add(1)
	none.set(1, 2)
	none.end()
	require.Nil(t, newProgress(&env{stderr: &out}, "writing", 1), "not a terminal")
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	require.Nil(t, newProgress(&env{stderr: f}, "writing", 1), "not a terminal")
}
