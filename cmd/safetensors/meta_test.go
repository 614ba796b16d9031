package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

func metadataOf(t *testing.T, path string) (m map[string]string) {
	t.Helper()
	decode(t, succeeds(t, "meta", "get", path), &m)
	return m
}

func TestMeta(t *testing.T) {
	file := saved(t, tensors{"t": safetensors.Of([]float32{1, 2})})
	require.Equal(t, "null\n", succeeds(t, "meta", "get", file))
	require.Empty(t, succeeds(t, "meta", "set", file, "a=1", "b=x=y", "=empty key"))
	require.Equal(t, map[string]string{"a": "1", "b": "x=y", "": "empty key"}, metadataOf(t, file))
	succeeds(t, "meta", "delete", file, "")
	succeeds(t, "meta", "set", file, "a=2")
	require.Equal(t, map[string]string{"a": "2", "b": "x=y"}, metadataOf(t, file))
	require.Equal(t, "\"x=y\"\n", succeeds(t, "meta", "get", file, "b"))
	require.Equal(t, "x=y\n", succeeds(t, "meta", "--raw", "get", file, "b"))

	strange := map[string]string{}
	for _, s := range hostile {
		strange[s] = s
	}
	text, err := json.Marshal(strange)
	require.NoError(t, err)
	succeeds(t, "meta", "set", "--json", "--all", file, string(text))
	require.Equal(t, strange, metadataOf(t, file))
	out := succeeds(t, "meta", "get", file)
	require.Equal(t, out, onlyPrinted(out))
	for _, s := range hostile {
		var got string
		decode(t, succeeds(t, "meta", "get", "--", file, s), &got)
		require.Equal(t, s, got)
	}

	var errs bytes.Buffer
	require.Equal(t, exitFine, run([]string{"meta", "set", file, "-", "--json", "--all"},
		strings.NewReader(`{"from": "stdin"}`), &bytes.Buffer{}, &errs), errs.String())
	require.Equal(t, map[string]string{"from": "stdin"}, metadataOf(t, file))
	succeeds(t, "meta", "delete", file, "from")
	require.Equal(t, "null\n", succeeds(t, "meta", "get", file))
	succeeds(t, "verify", file)
	for _, tt := range listed(t, file).Tensors {
		require.Equal(t, []int64{2}, tt.Shape)
	}
}

func TestMetaMisuse(t *testing.T) {
	file := saved(t, tensors{"t": safetensors.Of([]float32{1, 2})}, safetensors.WithMetadata(map[string]string{"k": "v"}))
	for _, args := range [][]string{
		{"set", file}, {"set", file, "novalue"}, {"set", file, "k=\xff"}, {"delete", file}, {"delete", file, "k", "--all"},
		{"get", file, "k", "l"}, {"get", file, "--raw"}, {"rename", file, "k"}, {"get"},
		{"set", file, "--json", "k=v"}, {"set", file, "--json", `{"k": 1}`}, {"set", file, "--json", `{"k": null}`},
		{"set", file, "--json", `null`}, {"set", file, "--json", `{} {}`}, {"set", file, "--json", `["k"]`}, {"set", file, "--json", ``},
	} {
		code, out, _ := call(append([]string{"meta"}, args...)...)
		require.Equal(t, exitUsage, code, "%q", args)
		require.Empty(t, out)
	}
	for _, args := range [][]string{{"get", file, "x"}, {"delete", file, "k", "x"}} {
		code, _, errs := call(append([]string{"meta"}, args...)...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, "no metadata key x")
	}
	require.Equal(t, map[string]string{"k": "v"}, metadataOf(t, file))
	code, _, _ := call("meta", "get", filepath.Join(shared, "gap_between.safetensors"))
	require.Equal(t, exitInvalid, code)
	code, _, _ = call("meta", "set", filepath.Join(shared, "gap_between.safetensors"), "k=v")
	require.Equal(t, exitInvalid, code)
}

// Each file of a model is changed.
func TestMetaModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	succeeds(t, "split", "--max-shard-size", "16", example(t), dir)
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors.index.json")} {
		succeeds(t, "meta", "set", path, "format=np")
		m, err := open(dir)
		require.NoError(t, err)
		shards := 0
		for _, f := range m.Shards() {
			shards++
			require.Equal(t, "np", f.Metadata()["format"])
		}
		require.Greater(t, shards, 1)
		require.NoError(t, m.Close())
		require.Equal(t, "np", metadataOf(t, path)["format"])
		succeeds(t, "meta", "set", path, "format=pt")
	}
	succeeds(t, "verify", dir)

	// The index has this one too.
	require.Contains(t, metadataOf(t, dir), "author")
	require.Contains(t, read(t, filepath.Join(dir, "model.safetensors.index.json")), "author")
	succeeds(t, "meta", "delete", dir, "author")
	require.NotContains(t, metadataOf(t, dir), "author")
	require.NotContains(t, read(t, filepath.Join(dir, "model.safetensors.index.json")), "author")
	succeeds(t, "verify", dir)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}
