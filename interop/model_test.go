package interop

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

const indexName = "model.safetensors.index.json"

// modelNames are names as models have them, and odd ones.
func modelNames(r *rand.Rand, n int) []string {
	seen := map[string]bool{}
	for len(seen) < n {
		name := fmt.Sprintf("model.layers.%d.%s.weight", r.IntN(n), oddNames[r.IntN(len(oddNames))])
		if r.IntN(3) == 0 {
			name = oddNames[r.IntN(len(oddNames))] + fmt.Sprint(r.IntN(n))
		}
		seen[name] = true
	}
	names := slices.Sorted(maps.Keys(seen))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

type sizedName struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// What huggingface_hub splits, and we: same files, same tensors in them, same
// index to the byte.
func TestSplitsAsHuggingFaceHub(t *testing.T) {
	p := startPeer(t, "models")
	sharded := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		most := 1 + r.Int64N(40)
		names := modelNames(r, 1+r.IntN(40))
		tensors, sizes := map[string]safetensors.Tensor{}, []sizedName{}
		for _, name := range names {
			n := r.IntN(12) * r.IntN(2+r.IntN(5))
			tensors[name] = safetensors.Of(make([]uint8, n), n)
			sizes = append(sizes, sizedName{name, int64(n)})
		}
		metadata, extra := map[string]string{"format": "pt"}, map[string]string{}
		if r.IntN(2) == 0 {
			extra["é\""] = oddNames[r.IntN(len(oddNames))]
			maps.Copy(metadata, extra)
		}
		var want map[string][]string
		blobs := p.must("split", map[string]any{"tensors": sizes, "limit": most, "metadata": extra}, &want)

		dir := t.TempDir()
		files, err := safetensors.SaveModel(dir, tensors, safetensors.WithMaxShardSize(most), safetensors.WithOrder(names), safetensors.WithMetadata(metadata))
		require.NoError(t, err)
		index := ""
		if files[len(files)-1] == indexName {
			b, err := os.ReadFile(filepath.Join(dir, indexName))
			require.NoError(t, err)
			index = string(b)
			files = files[:len(files)-1]
			sharded++
		}
		require.Equal(t, string(blobs[0]), index, "seed %d", seed)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), files, "seed %d", seed)
		for _, file := range files {
			f, err := safetensors.Open(filepath.Join(dir, file))
			require.NoError(t, err)
			require.ElementsMatch(t, want[file], f.Names(), "seed %d %s", seed, file)
			require.NoError(t, f.Close())
		}
	}
	require.Greater(t, sharded, 100)
	require.Less(t, sharded, 400)
}

func TestParsesSizesAsHuggingFaceHub(t *testing.T) {
	p := startPeer(t, "models")
	r := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		text := fmt.Sprint(r.IntN(10_000))
		if r.IntN(2) == 0 {
			text = fmt.Sprintf("%d.%0*d", r.IntN(1000), 1+r.IntN(4), r.IntN(10))
		}
		text += strings.Repeat(" ", r.IntN(2)) + []string{"KB", "MB", "GB", "TB", "kb", "Mb", "gB"}[r.IntN(7)]
		var want int64
		p.must("parse_size", map[string]any{"size": text}, &want)
		got, err := safetensors.ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// randomModel makes tensors that numpy has.
func randomModel(r *rand.Rand) file {
	f := file{metadata: map[string]string{"format": "pt"}}
	for _, name := range modelNames(r, 1+r.IntN(30)) {
		d := numpyLoads[r.IntN(len(numpyLoads))]
		f.tensors = append(f.tensors, randomTensor(r, name, d, randomShape(r, d)...))
	}
	return f
}

func (f file) names() []string {
	var names []string
	for _, x := range f.tensors {
		names = append(names, x.Name)
	}
	return names
}

func TestHuggingFaceHubReadsWhatWeSave(t *testing.T) {
	p := startPeer(t, "models")
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 8))
		f, dir := randomModel(r), t.TempDir()
		_, err := safetensors.SaveModel(dir, f.ours(t), safetensors.WithMaxShardSize(1+r.Int64N(400)), safetensors.WithMetadata(f.metadata))
		require.NoError(t, err)
		p.requireLoads("load_model", f, map[string]any{"path": dir, "names": f.names()})
	}
}

func TestWeReadModelsOfHuggingFaceHub(t *testing.T) {
	p := startPeer(t, "models")
	sharded := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		f, dir := randomModel(r), t.TempDir()
		d, blobs := f.describe()
		p.must("save_model", map[string]any{"path": dir, "tensors": d.Tensors, "limit": 1 + r.Int64N(400), "sorted": r.IntN(2) == 0}, nil, blobs...)
		m, err := safetensors.OpenModel(dir)
		require.NoError(t, err)
		require.Equal(t, len(f.tensors), m.Len())
		require.Equal(t, f.metadata, m.Metadata())
		require.Empty(t, m.Verify())
		for _, want := range f.tensors {
			x, err := m.Tensor(want.Name)
			require.NoError(t, err)
			b, err := x.Bytes()
			require.NoError(t, err)
			f.requireSame(t, want, x.DType().String(), x.Shape(), b)
		}
		shards := 0
		for range m.Shards() {
			shards++
		}
		if shards > 1 {
			sharded++
		}
		require.NoError(t, m.Close())
	}
	require.Greater(t, sharded, 50)
}
