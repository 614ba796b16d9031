package safetensors

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A disk that is full, where this process may mount one.
func TestSaveModelOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting a small file system: %v (TestSaveModelOverTheFileSizeLimit does without)", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	requireFull(t, dir, 1<<20, syscall.ENOSPC)
}

const limitEnv = "SAFETENSORS_TEST_LIMITED_IN"

// A write that fails midway, in a process of its own with a limit on the size of
// files.
func TestSaveModelOverTheFileSizeLimit(t *testing.T) {
	if dir := os.Getenv(limitEnv); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
		requireFull(t, dir, 1<<20, syscall.EFBIG)
		return
	}
	cmd := ChildProcess("-test.run=^TestSaveModelOverTheFileSizeLimit$", "-test.v")
	cmd.Env = append(os.Environ(), limitEnv+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, strings.Contains(string(out), "--- PASS"), "%s", out)
}
