package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShardedCases(t *testing.T) {
	var all struct {
		Cases []struct {
			ID, Entry, Expectation string
			ErrorKind              string `json:"error_kind"`
			Policy                 bool
			Tensors                []struct {
				Name, DType, Shard string
				Shape              []int
				SHA256             string
			}
		} `json:"sharded_cases"`
	}
	b, err := os.ReadFile(filepath.Join(shared, "cases.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &all))
	require.NotEmpty(t, all.Cases)
	for _, c := range all.Cases {
		t.Run(c.ID, func(t *testing.T) {
			path := filepath.Join(shared, c.Entry)
			code, out, errs := call("verify", "--json", path)
			require.Empty(t, errs)
			var r struct {
				Path             string
				Valid            bool
				Errors, Warnings []struct{ Kind, Tensor, File, Message, Hint string }
			}
			decode(t, out, &r)
			require.Equal(t, code == exitFine, r.Valid)
			if c.Expectation == "reject" {
				require.Equal(t, exitInvalid, code)
				require.Equal(t, c.ErrorKind, r.Errors[0].Kind)
				code, out, errs := call("ls", "--json", path)
				require.Equal(t, exitInvalid, code)
				require.Empty(t, out)
				require.Contains(t, errs, c.ErrorKind)
				return
			}
			require.Equal(t, exitFine, code, out)
			code, out, errs = call("hash", "--json", path)
			require.Equal(t, exitFine, code, errs)
			var doc listing
			decode(t, out, &doc)
			require.Len(t, doc.Tensors, len(c.Tensors))
			type tensor struct{ dtype, file, sum string }
			got := map[string]tensor{}
			for _, tt := range doc.Tensors {
				got[tt.Name] = tensor{tt.DType, tt.File, tt.SHA256}
			}
			for _, tt := range c.Tensors {
				require.Equal(t, tensor{tt.DType, tt.Shard, tt.SHA256}, got[tt.Name])
			}
		})
	}
}

// A folder with a shard that is broken and one that cannot be read says both.
func TestShardsBrokenAndOutOfReach(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(shared, "sh_good", name))
		require.NoError(t, err)
		return b
	}
	write := func(name string, b []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	const first, second, index = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"
	write(index, read(index))
	write(first, append(read(first), 0))
	write(second, read(second))
	code, out, errs := call("verify", dir)
	require.Equal(t, exitInvalid, code, errs)
	require.Contains(t, out, "trailing-bytes")
	require.Contains(t, out, first)

	require.NoError(t, os.Remove(filepath.Join(dir, second)))
	require.NoError(t, os.Mkdir(filepath.Join(dir, second), 0o755))
	code, out, errs = call("verify", "--json", dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "trailing-bytes")
	require.Contains(t, errs, second)
}
