package safetensors_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

type shardedCase struct {
	ID          string
	Entry       string
	Expectation string
	ErrorKind   string `json:"error_kind"`
	Warning     string
	Tensors     []struct {
		caseTensor
		Shard string
	}
}

func shardedCases(t testing.TB) []shardedCase {
	t.Helper()
	var c struct {
		Cases []shardedCase `json:"sharded_cases"`
	}
	b, err := os.ReadFile("testdata/cases.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &c))
	require.NotEmpty(t, c.Cases)
	return c.Cases
}

func TestShardedCases(t *testing.T) {
	for _, c := range shardedCases(t) {
		entry := filepath.Join("testdata", filepath.FromSlash(c.Entry))
		for _, path := range []string{entry, filepath.Join("testdata", strings.Split(c.Entry, "/")[0])} {
			for how, opts := range map[string][]safetensors.Option{"mapped": nil, "read": {safetensors.WithoutMmap()}} {
				t.Run(c.ID+" "+filepath.Base(path)+" "+how, func(t *testing.T) {
					m, err := safetensors.OpenModel(path, opts...)
					if c.Expectation == "reject" {
						require.Error(t, err)
						var fe *safetensors.FormatError
						require.ErrorAs(t, err, &fe)
						require.Equal(t, c.ErrorKind, string(fe.Kind), "%v", err)
						require.ErrorIs(t, err, fe.Kind)
						require.ErrorContains(t, err, filepath.FromSlash(strings.Split(c.Entry, "/")[0]))
						require.Nil(t, m)
						return
					}
					require.NoError(t, err)
					defer func() { require.NoError(t, m.Close()) }()
					require.Equal(t, len(c.Tensors), m.Len())
					for _, want := range c.Tensors {
						got, err := m.Tensor(want.Name)
						require.NoError(t, err)
						require.Equal(t, want.DType, got.DType())
						require.Equal(t, want.Shape, got.Shape())
						require.Equal(t, want.SHA256, sum(t, got))
						shard, ok := m.Shard(want.Name)
						require.True(t, ok)
						require.Equal(t, want.Shard, shard)
					}
					sameInBulk(t, m)
					var warned []string
					for _, f := range m.Verify() {
						require.True(t, f.Warning, "%v", f)
						warned = append(warned, f.Error())
					}
					if c.Warning == "" {
						require.Empty(t, warned)
						return
					}
					require.Len(t, warned, 1)
					tensor, elsewhere, _ := strings.Cut(c.Warning, " is ")
					require.Contains(t, warned[0], tensor)
					require.Contains(t, warned[0], elsewhere)
				})
			}
		}
	}
}

func sum(t testing.TB, x safetensors.Tensor) string {
	t.Helper()
	h := sha256.New()
	_, err := x.WriteTo(h)
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// sameInBulk expects All, Names, Load, Prefetch and Stream to agree with Tensor.
func sameInBulk(t *testing.T, m *safetensors.Model) {
	t.Helper()
	want, order := map[string]string{}, []string{}
	for name, x := range m.All() {
		one, err := m.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, sum(t, one), sum(t, x), name)
		want[name] = sum(t, x)
		order = append(order, name)
	}
	require.Equal(t, order, m.Names())
	require.Len(t, want, m.Len())

	ctx := context.Background()
	require.NoError(t, m.Prefetch(ctx))
	loaded, err := m.Load(ctx)
	require.NoError(t, err)
	got := map[string]string{}
	for name, x := range loaded {
		got[name] = sum(t, x)
	}
	require.Equal(t, want, got)
	var streamed []string
	require.NoError(t, m.Stream(ctx, func(name string, x safetensors.Tensor) error {
		streamed = append(streamed, name)
		require.Equal(t, want[name], sum(t, x))
		return nil
	}))
	require.Equal(t, order, streamed)

	some := order[len(order)-1:]
	require.NoError(t, m.Prefetch(ctx, some...))
	loaded, err = m.Load(ctx, some...)
	require.NoError(t, err)
	require.Len(t, loaded, 1)
	require.Equal(t, want[some[0]], sum(t, loaded[some[0]]))
	streamed = nil
	require.NoError(t, m.Stream(ctx, func(name string, _ safetensors.Tensor) error {
		streamed = append(streamed, name)
		return nil
	}, some...))
	require.Equal(t, some, streamed)
	enough := errors.New("enough")
	require.ErrorIs(t, m.Stream(ctx, func(string, safetensors.Tensor) error { return enough }), enough)

	_, err = m.Load(ctx, "no such tensor")
	require.ErrorIs(t, err, safetensors.ErrNotFound)
	require.ErrorIs(t, m.Prefetch(ctx, "no such tensor"), safetensors.ErrNotFound)
	require.ErrorIs(t, m.Stream(ctx, nil, "no such tensor"), safetensors.ErrNotFound)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Load(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, m.Prefetch(cancelled), context.Canceled)
	require.ErrorIs(t, m.Stream(cancelled, func(string, safetensors.Tensor) error { return nil }), context.Canceled)
}

// put writes a file of one-byte tensors, each of the value given.
func put(t testing.TB, path string, tensors map[string]byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	all := map[string]safetensors.Tensor{}
	for name, v := range tensors {
		all[name] = safetensors.Of([]uint8{v}, 1)
	}
	require.NoError(t, safetensors.Save(path, all))
}

func putIndex(t testing.TB, path string, where map[string]string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"weight_map": where})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o666))
}

// values reads a model of one-byte tensors.
func values(t testing.TB, m *safetensors.Model) map[string]byte {
	t.Helper()
	got := map[string]byte{}
	for name, x := range m.All() {
		b, err := x.Bytes()
		require.NoError(t, err)
		require.Len(t, b, 1)
		got[name] = b[0]
	}
	return got
}

func TestWhatIsOpenedInAFolder(t *testing.T) {
	// Each file has a tensor of its own name, and each index names one file.
	const fp16, diffusers = "model.fp16.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"
	for _, c := range []struct {
		files []string
		want  []string // files, or
		err   string   // what an error says
	}{
		{files: []string{"model.safetensors.index.json", "model.safetensors", fp16, "x.safetensors"}, want: []string{"of model.safetensors.index.json.safetensors"}},
		{files: []string{"model.safetensors", fp16, "x.safetensors"}, want: []string{"model.safetensors"}},
		{files: []string{fp16, "x.safetensors"}, want: []string{"of " + fp16 + ".safetensors"}},
		{files: []string{diffusers, "x.safetensors"}, want: []string{"of " + diffusers + ".safetensors"}},
		{files: []string{"model.safetensors.index.fp16.json", "y.safetensors"}, want: []string{"of model.safetensors.index.fp16.json.safetensors"}},
		{files: []string{fp16, diffusers, "x.safetensors"}, err: diffusers + ", " + fp16},
		{files: []string{"x.safetensors"}, want: []string{"x.safetensors"}},
		{files: []string{"x.safetensors", "y.safetensors", "config.txt", ".hidden.safetensors", "z.safetensors.bak"}, want: []string{"x.safetensors", "y.safetensors"}},
		{files: []string{"model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"}, want: []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}},
		{files: []string{"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}, err: "model-00002-of-00003.safetensors"},
		{files: []string{"model-00001-of-00002.safetensors"}, err: "1 missing: model-00002-of-00002.safetensors"},
		{files: []string{"a-00001-of-99999999999999999999.safetensors", "b-00000-of-00002.safetensors", "b-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"},
			want: []string{"a-00001-of-99999999999999999999.safetensors", "b-00000-of-00002.safetensors", "b-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"}},
		{files: []string{"a-00001-of-00100.safetensors"}, err: "99 missing: a-00002-of-00100.safetensors"},
		{files: []string{"config.txt"}, err: "no .safetensors file"},
		{err: "no .safetensors file"},
	} {
		t.Run(strings.Join(c.files, " "), func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range c.files {
				if strings.HasSuffix(name, ".json") {
					of := "of " + name + ".safetensors"
					put(t, filepath.Join(dir, of), map[string]byte{of: 1})
					putIndex(t, filepath.Join(dir, name), map[string]string{of: of})
				} else {
					put(t, filepath.Join(dir, name), map[string]byte{name: 1})
				}
			}
			m, err := safetensors.OpenModel(dir)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, m.Names())
			var shards []string
			for name := range m.Shards() {
				shards = append(shards, name)
			}
			require.Equal(t, c.want, shards)
			require.Empty(t, m.Verify())
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
			_, err = m.Tensor(c.want[0])
			require.ErrorIs(t, err, safetensors.ErrClosed)
		})
	}
}

func TestOpenModelOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "any name")
	put(t, path, map[string]byte{"weight": 3})
	m, err := safetensors.OpenModel(path)
	require.NoError(t, err)
	defer m.Close()
	require.Equal(t, map[string]byte{"weight": 3}, values(t, m))
	shard, ok := m.Shard("weight")
	require.True(t, ok)
	require.Equal(t, "any name", shard)
	_, ok = m.Shard("bias")
	require.False(t, ok)
	sameInBulk(t, m)

	_, err = safetensors.OpenModel(filepath.Join(t.TempDir(), "nothing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMissingShardsAreListedAtOnce(t *testing.T) {
	dir := t.TempDir()
	where := map[string]string{}
	for i := range 30 {
		name := fmt.Sprintf("model-%05d-of-00030.safetensors", i+1)
		tensor := fmt.Sprint("t", i)
		where[tensor] = name
		if i%3 == 0 {
			put(t, filepath.Join(dir, name), map[string]byte{tensor: byte(i)})
		}
	}
	putIndex(t, filepath.Join(dir, "model.safetensors.index.json"), where)
	_, err := safetensors.OpenModel(dir)
	require.ErrorIs(t, err, safetensors.ErrIndexMissingShard)
	for i := range 30 {
		require.Equal(t, i%3 != 0, strings.Contains(err.Error(), fmt.Sprintf("model-%05d-of", i+1)), "%v", err)
	}
}

func TestBadShardsAreNamed(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "good.safetensors"), map[string]byte{"a": 1})
	cut, err := os.ReadFile(filepath.Join(dir, "good.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cut.safetensors"), cut[:len(cut)-1], 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lfs.safetensors"), []byte("version https://git-lfs.github.com/spec/v1\n"), 0o666))
	index := filepath.Join(dir, "model.safetensors.index.json")
	putIndex(t, index, map[string]string{"a": "good.safetensors", "b": "cut.safetensors", "c": "lfs.safetensors", "d": "gone.safetensors"})
	for _, path := range []string{dir, index} {
		_, err = safetensors.OpenModel(path)
		require.ErrorIs(t, err, safetensors.ErrIndexMissingShard)
		require.ErrorIs(t, err, safetensors.ErrShardInvalid)
		require.ErrorIs(t, err, safetensors.ErrDataTruncated)
		require.ErrorContains(t, err, "gone.safetensors")
		require.ErrorContains(t, err, filepath.Join(dir, "cut.safetensors")+": shard-invalid: data-truncated: tensor \"a\" at byte ")
		require.ErrorContains(t, err, filepath.Join(dir, "lfs.safetensors"))
		require.ErrorContains(t, err, "git lfs pull")
	}

	put(t, filepath.Join(dir, "gone.safetensors"), map[string]byte{"d": 1})
	put(t, filepath.Join(dir, "lfs.safetensors"), map[string]byte{"c": 1})
	_, err = safetensors.OpenModel(dir)
	var fe *safetensors.FormatError
	require.ErrorAs(t, err, &fe)
	require.Equal(t, safetensors.ErrShardInvalid, fe.Kind)
	require.Equal(t, filepath.Join(dir, "cut.safetensors"), fe.File)
	require.Equal(t, "a", fe.Tensor)
	require.Equal(t, safetensors.ErrDataTruncated, fe.Cause)

	require.NoError(t, os.Remove(filepath.Join(dir, "cut.safetensors")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "cut.safetensors"), 0o777))
	_, err = safetensors.OpenModel(dir)
	require.ErrorContains(t, err, "cut.safetensors is a directory")
	require.False(t, errors.As(err, &fe), "that it cannot be read is no fault of the format: %v", err)
}

func TestShardNames(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "m", "sub", "..a.safetensors"), map[string]byte{"t": 7})
	put(t, filepath.Join(dir, "m", "ünï.safetensors"), map[string]byte{"t": 7})
	put(t, filepath.Join(dir, "out.safetensors"), map[string]byte{"t": 7})
	index := filepath.Join(dir, "m", "model.safetensors.index.json")
	for name, good := range map[string]bool{
		"sub/..a.safetensors": true, "./sub/..a.safetensors": true, "sub//..a.safetensors": true, "ünï.safetensors": true,
		"": false, "/out.safetensors": false, "../out.safetensors": false, "sub/../../out.safetensors": false,
		"sub/../sub/..a.safetensors": false, "..": false, "sub/..": false, `sub\..a.safetensors`: false, `..\out.safetensors`: false,
		`C:\x.safetensors`: false, "C:/x.safetensors": false, "c:x.safetensors": false, `\\host\share`: false, "//host/share": false,
		"a\x00.safetensors": false, "\x00": false, filepath.Join(dir, "out.safetensors"): false,
	} {
		putIndex(t, index, map[string]string{"t": name})
		m, err := safetensors.OpenModel(index)
		if !good {
			require.ErrorIs(t, err, safetensors.ErrIndexUnsafePath, "%q", name)
			var fe *safetensors.FormatError
			require.ErrorAs(t, err, &fe)
			require.Equal(t, "t", fe.Tensor)
			require.Equal(t, index, fe.File)
			continue
		}
		require.NoError(t, err, "%q", name)
		require.Equal(t, map[string]byte{"t": 7}, values(t, m))
		require.NoError(t, m.Close())
	}
}

// A model cache has the files under their hashes, and folders of links to them.
func TestLinksOfAModelCache(t *testing.T) {
	dir := t.TempDir()
	snapshot := filepath.Join(dir, "snapshots", "1a2b")
	put(t, filepath.Join(dir, "blobs", "aaa"), map[string]byte{"a": 1})
	put(t, filepath.Join(dir, "blobs", "bbb"), map[string]byte{"b": 2})
	putIndex(t, filepath.Join(dir, "blobs", "iii"), map[string]string{"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
	require.NoError(t, os.MkdirAll(snapshot, 0o777))
	for name, blob := range map[string]string{"model-00001-of-00002.safetensors": "aaa", "model-00002-of-00002.safetensors": "bbb", "model.safetensors.index.json": "iii"} {
		if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, name)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
	}
	for _, path := range []string{snapshot, filepath.Join(snapshot, "model.safetensors.index.json")} {
		m, err := safetensors.OpenModel(path)
		require.NoError(t, err)
		require.Equal(t, map[string]byte{"a": 1, "b": 2}, values(t, m))
		require.NoError(t, m.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "blobs", "bbb")))
	_, err := safetensors.OpenModel(snapshot)
	require.ErrorIs(t, err, safetensors.ErrIndexMissingShard)
	require.ErrorContains(t, err, "model-00002-of-00002.safetensors")
	// An index that was not downloaded must not leave the choice to other files.
	require.NoError(t, os.Remove(filepath.Join(dir, "blobs", "iii")))
	_, err = safetensors.OpenModel(snapshot)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestTensorInTwoFilesWithoutIndex(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "consolidated.safetensors"), map[string]byte{"a": 1, "b": 1})
	put(t, filepath.Join(dir, "x.safetensors"), map[string]byte{"a": 2})
	_, err := safetensors.OpenModel(dir)
	require.ErrorIs(t, err, safetensors.ErrIndexDuplicateTensor)
	require.ErrorContains(t, err, `"a"`)
	require.ErrorContains(t, err, "consolidated.safetensors and in x.safetensors")
}

func TestVerifyModel(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "1.safetensors"), map[string]byte{"a": 1, "b": 1, "c": 1})
	put(t, filepath.Join(dir, "2.safetensors"), map[string]byte{"b": 2, "d": 2})
	index := filepath.Join(dir, "model.safetensors.index.json")
	verify := func(text string) (found []string) {
		require.NoError(t, os.WriteFile(index, []byte(text), 0o666))
		m, err := safetensors.OpenModel(dir)
		require.NoError(t, err)
		defer m.Close()
		for _, f := range m.Verify() {
			require.Equal(t, index, f.File)
			require.ErrorIs(t, f, f.Kind)
			what := string(f.Kind)
			if f.Warning {
				what = "warning: " + what
			}
			found = append(found, strings.TrimSpace(what+" "+f.Tensor))
		}
		return found
	}
	const good = `"weight_map":{"a":"1.safetensors","c":"1.safetensors","b":"2.safetensors","d":"2.safetensors"}`
	twice := []string{"warning: index-duplicate-tensor b"}
	for _, total := range []string{`4`, `4.0`, `0.4e1`, `400E-2`} {
		require.Equal(t, twice, verify(`{"metadata":{"total_size":`+total+`,"more":[{}]},`+good+`}`), total)
	}
	for _, total := range []string{`5`, `0`, `-4`, `4.5`, `1e99`, `9223372036854775807`, `9223372036854775808`, `4e-400`} {
		require.Equal(t, append(twice, "warning: index-total-size"), verify(`{"metadata":{"total_size":`+total+`},`+good+`}`), total)
	}
	for _, none := range []string{`null`, `{}`, `{"total_size":null}`, `{"total_size":"4"}`, `[]`, `3`, `"x"`, `true`} {
		require.Equal(t, twice, verify(`{"metadata":`+none+`,`+good+`}`), none)
	}
	require.Equal(t, append(twice, "index-unlisted-tensor c", "index-unlisted-tensor d"), verify(`{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`))
}

func TestMissingTensorsAreListed(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "1.safetensors"), map[string]byte{"a": 1})
	put(t, filepath.Join(dir, "2.safetensors"), map[string]byte{"b": 2})
	where := map[string]string{"a": "2.safetensors", "b": "2.safetensors"}
	for i := range 50 {
		where[fmt.Sprint("layer.", i)] = "1.safetensors"
	}
	putIndex(t, filepath.Join(dir, "model.safetensors.index.json"), where)
	_, err := safetensors.OpenModel(dir)
	require.ErrorIs(t, err, safetensors.ErrIndexMissingTensor)
	require.ErrorContains(t, err, `"a"`)
	require.ErrorContains(t, err, "it is in 1.safetensors")
	require.ErrorContains(t, err, `"layer.9"`)
	require.NotContains(t, err.Error(), `"layer.40"`)
	require.ErrorContains(t, err, "31 more")
}

func TestModelMetadata(t *testing.T) {
	dir := t.TempDir()
	save := func(name, tensor string, metadata map[string]string) {
		require.NoError(t, safetensors.Save(filepath.Join(dir, name), map[string]safetensors.Tensor{tensor: safetensors.Of([]uint8{1}, 1)}, safetensors.WithMetadata(metadata)))
	}
	open := func() map[string]string {
		m, err := safetensors.OpenModel(dir)
		require.NoError(t, err)
		defer m.Close()
		return m.Metadata()
	}
	index := func(metadata string) {
		text := `{"weight_map":{"b":"model-2.safetensors","a":"model-10.safetensors"}` + metadata + `}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(text), 0o666))
	}
	save("model-2.safetensors", "b", nil)
	save("model-10.safetensors", "a", nil)
	index("")
	require.Nil(t, open())
	save("model-10.safetensors", "a", map[string]string{})
	require.Equal(t, map[string]string{}, open())
	save("model-10.safetensors", "a", map[string]string{"format": "pt", "x": "10", "y": "10"})
	save("model-2.safetensors", "b", map[string]string{"format": "pt", "x": "2"})
	index(`,"metadata":{"total_size":2,"x":"index","z":"index"}`)
	require.Equal(t, map[string]string{"format": "pt", "x": "2", "y": "10", "z": "index"}, open())
}

func TestModelTensorNotFound(t *testing.T) {
	m, err := safetensors.OpenModel("testdata/sh_good")
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Tensor("layer.1.x")
	require.ErrorIs(t, err, safetensors.ErrNotFound)
	for _, near := range []string{"layer.1.w", "layer.1.b", "sh_good"} {
		require.ErrorContains(t, err, near)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := m.Tensor("layer.1.w"); err != nil {
			panic(err)
		}
	}))
}

func TestModelWithoutTensors(t *testing.T) {
	m, err := safetensors.NewModel(strings.NewReader(`{"weight_map":{}}`), nil)
	require.NoError(t, err)
	require.Zero(t, m.Len())
	require.Empty(t, m.Names())
	_, err = m.Tensor("a")
	require.ErrorIs(t, err, safetensors.ErrNotFound)
	loaded, err := m.Load(context.Background())
	require.NoError(t, err)
	require.Empty(t, loaded)
	require.NoError(t, m.Close())
}

// NewModel serves models that are not in a folder of the system.
func TestNewModelOverFS(t *testing.T) {
	system := fstest.MapFS{}
	for _, name := range []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", "sh_good", name))
		require.NoError(t, err)
		system[name] = &fstest.MapFile{Data: b}
	}
	var mu sync.Mutex
	var opened []*safetensors.File
	open := func(shard string) (*safetensors.File, error) {
		b, err := fs.ReadFile(system, shard)
		if err != nil {
			return nil, err
		}
		f, err := safetensors.Parse(b)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			opened = append(opened, f)
		}
		return f, err
	}
	m, err := safetensors.NewModel(strings.NewReader(string(system["model.safetensors.index.json"].Data)), open)
	require.NoError(t, err)
	sameInBulk(t, m)
	require.Empty(t, m.Verify())
	require.NoError(t, m.Close())

	system["model-00002-of-00002.safetensors"].Data = []byte("12345678 and on")
	_, err = safetensors.NewModel(strings.NewReader(string(system["model.safetensors.index.json"].Data)), open)
	require.ErrorIs(t, err, safetensors.ErrShardInvalid)
	require.ErrorContains(t, err, "model-00002-of-00002.safetensors")

	delete(system, "model-00002-of-00002.safetensors")
	opened = nil
	_, err = safetensors.NewModel(strings.NewReader(string(system["model.safetensors.index.json"].Data)), open)
	require.ErrorIs(t, err, safetensors.ErrIndexMissingShard)
	require.Len(t, opened, 1)
	_, err = opened[0].Tensor("layer.0.w")
	require.ErrorIs(t, err, safetensors.ErrClosed, "what was opened is closed again")
}

func TestOpenManyShards(t *testing.T) {
	dir := t.TempDir()
	const shards = 300
	where, want := map[string]string{}, map[string]byte{}
	for i := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		tensors := map[string]byte{}
		for j := range 5 {
			tensor := fmt.Sprintf("layers.%d.%d", i, j)
			where[tensor], tensors[tensor], want[tensor] = name, byte(i+j), byte(i+j)
		}
		put(t, filepath.Join(dir, name), tensors)
	}
	putIndex(t, filepath.Join(dir, "model.safetensors.index.json"), where)
	m, err := safetensors.OpenModel(dir)
	require.NoError(t, err)
	defer m.Close()
	require.Equal(t, want, values(t, m))
	require.Equal(t, "layers.0.0", m.Names()[0])
	require.Equal(t, "layers.299.4", m.Names()[5*shards-1])
	sameInBulk(t, m)
}

// Readers that open the model while it is replaced get one of the two.
func TestOpenModelWhileItIsReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not replace files that are mapped")
	}
	dir := t.TempDir()
	model := func(version byte, names ...string) map[string]safetensors.Tensor {
		all := map[string]safetensors.Tensor{}
		for _, name := range names {
			all[name] = safetensors.Of(slices.Repeat([]uint8{version}, 3), 3)
		}
		return all
	}
	saves := []struct {
		size    int64
		tensors []string
	}{{3, []string{"a", "b", "c"}}, {3, []string{"a", "b", "c"}}, {100, []string{"a", "b"}}, {3, []string{"a", "b"}}, {100, []string{"a"}}, {3, []string{"a", "b", "c"}}}
	save := func(version byte) {
		s := saves[int(version)%len(saves)]
		_, err := safetensors.SaveModel(dir, model(version, s.tensors...), safetensors.WithMaxShardSize(s.size))
		require.NoError(t, err)
	}
	save(0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	var opened [2]int
	for r := range opened {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				m, err := safetensors.OpenModel(dir)
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				seen := map[byte]bool{}
				for _, x := range m.All() {
					b, err := x.Bytes()
					if err != nil {
						t.Errorf("read: %v", err)
						return
					}
					seen[b[0]] = true
				}
				for version := range seen {
					if want := saves[int(version)%len(saves)].tensors; len(seen) != 1 || m.Len() != len(want) {
						t.Errorf("a mixture: versions %v, %d tensors", seen, m.Len())
						return
					}
				}
				opened[r]++
				m.Close()
			}
		})
	}
	for version := range byte(60) {
		save(version)
	}
	close(stop)
	readers.Wait()
	require.NotZero(t, opened[0]+opened[1])
	t.Logf("opened %d times while it was saved 60 times", opened[0]+opened[1])
}

func BenchmarkOpenModel(b *testing.B) {
	dir := b.TempDir()
	const shards, each = 10_000, 50
	where := map[string]string{}
	var names []string
	for i := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		names = append(names, name)
		tensors := map[string]byte{}
		for j := range each {
			tensor := fmt.Sprintf("model.layers.%d.mlp.experts.%d.gate_proj.weight", i, j)
			tensors[tensor], where[tensor] = 1, name
		}
		put(b, filepath.Join(dir, name), tensors)
	}
	putIndex(b, filepath.Join(dir, "model.safetensors.index.json"), where)
	b.Run("model", func(b *testing.B) {
		for b.Loop() {
			m, err := safetensors.OpenModel(dir)
			require.NoError(b, err)
			require.Equal(b, shards*each, m.Len())
			m.Close()
		}
	})
	b.Run("headers", func(b *testing.B) {
		for b.Loop() {
			for _, name := range names {
				f, err := safetensors.Open(filepath.Join(dir, name))
				require.NoError(b, err)
				f.Close()
			}
		}
	})
}
