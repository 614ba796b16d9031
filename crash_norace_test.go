//go:build linux && !race && (amd64 || arm64)

package safetensors_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// fs_no_mmap: where a file cannot be mapped, here for want of address space, it
// is read with plain reads. (The race detector needs all of the address space.)
func TestOpenWhatCannotBeMapped(t *testing.T) {
	if name := os.Getenv(childEnv); name != "" {
		f, err := safetensors.Open(name)
		require.NoError(t, err)
		tensor, err := f.Tensor("u")
		require.NoError(t, err)
		b, err := tensor.Bytes()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Equal(t, []byte{0, 0, 2}, b, "memory of its own, which outlives Close")
		return
	}
	if testing.Short() {
		t.Skip("emulators need the address space themselves")
	}
	name := sparse(t, `{"t":{"dtype":"U8","shape":[34359738368],"data_offsets":[0,34359738368]},"u":{"dtype":"U8","shape":[3],"data_offsets":[34359738368,34359738371]}}`, 34359738371)
	cmd := childOf(t, name)
	cmd.Args = append([]string{"sh", "-c", `ulimit -v 16777216 && exec "$0" "$@"`}, cmd.Args...)
	var err error
	cmd.Path, err = exec.LookPath("sh")
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
