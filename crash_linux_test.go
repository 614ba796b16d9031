package safetensors_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// smallDisk mounts a file system with room for a mebibyte.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// disk_full: the old file stays, the temporary one goes, the error says why.
func TestSaveDiskFull(t *testing.T) {
	const size = 2 << 20
	data := pattern(size, 1)
	elsewhere := saveTemp(t, one(safetensors.New(safetensors.U8, []int{size}, data)))
	mapped, err := safetensors.Open(elsewhere)
	require.NoError(t, err)
	defer mapped.Close()
	plain, err := safetensors.Open(elsewhere, safetensors.WithoutMmap())
	require.NoError(t, err)
	defer plain.Close()
	many := map[string]safetensors.Tensor{}
	for i := range size / 10_000 {
		many[string(rune('A'+i))] = safetensors.New(safetensors.U8, []int{10_000}, data[:10_000])
	}
	dir := smallDisk(t)
	name := filepath.Join(dir, "old.safetensors")
	require.NoError(t, os.WriteFile(name, []byte("old"), 0o666))
	for what, tensors := range map[string]map[string]safetensors.Tensor{
		"memory":          one(safetensors.New(safetensors.U8, []int{size}, data)),
		"a reader":        one(safetensors.FromReaderAt(safetensors.U8, []int{size}, bytes.NewReader(data))),
		"a function":      one(safetensors.FromFunc(safetensors.U8, []int{size}, writes(data))),
		"a deaf function": one(safetensors.FromFunc(safetensors.U8, []int{size}, func(w io.Writer) error { w.Write(data); return nil })),
		"a mapped file":   maps.Collect(mapped.All()),
		"an open file":    maps.Collect(plain.All()),
		"small tensors":   many,
	} {
		err := safetensors.Save(name, tensors)
		require.ErrorIs(t, err, syscall.ENOSPC, what)
		require.ErrorContains(t, err, "old.safetensors")
		onlyOld(t, dir)
		require.ErrorIs(t, safetensors.Save(filepath.Join(dir, "new"), tensors), syscall.ENOSPC, what)
		onlyOld(t, dir)
		other := filepath.Join(dir, "in place")
		require.ErrorIs(t, safetensors.Save(other, tensors, safetensors.WithInPlace()), syscall.ENOSPC, what)
		require.NoError(t, os.Remove(other))
	}
	require.NoError(t, safetensors.Save(name, one(tiny())), "there is room again")
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, written(t, one(tiny())), got)
}

// A device that takes nothing.
func TestWriteDeviceFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /dev/full here")
	}
	require.NoError(t, err)
	defer full.Close()
	for _, tensors := range []map[string]safetensors.Tensor{nil, one(tiny()), someTensors()} {
		_, err := safetensors.Write(full, tensors)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorIs(t, safetensors.Save("/dev/full", tensors, safetensors.WithInPlace()), syscall.ENOSPC)
	}
}
