//go:build unix

package safetensors_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// truncate_while_mapped: the map is there and its file is not.
func TestCutShortWhileMapped(t *testing.T) {
	needFaults(t)
	name := saveTemp(t, someTensors())
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	// Before the page in which the first tensor lies, so that no zeros stand in.
	require.NoError(t, os.Truncate(name, 0))
	faultsEverywhere(t, f)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
}

// The file is cut while a tensor is on its way.
func TestCutShortWhileWriting(t *testing.T) {
	needFaults(t)
	const size = 40 << 20
	name := saveTemp(t, one(safetensors.New(safetensors.U8, []int{size}, make([]byte, size))))
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	tensor, err := f.Tensor("t")
	require.NoError(t, err)
	n, err := tensor.WriteTo(&cutter{name: name})
	require.ErrorIs(t, err, safetensors.ErrFault)
	require.NotZero(t, n)
	require.Less(t, n, int64(size))
	require.NoError(t, f.Close())
}

// cutter cuts a file short when it is written to.
type cutter struct{ name string }

func (c *cutter) Write(p []byte) (int, error) { return len(p), os.Truncate(c.name, 100) }

// within fails the test if fn does not end, since it waits for another process.
func within(t *testing.T, fn func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it waits")
		return nil
	}
}

func TestOpenSpecialFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo.safetensors")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
		err := within(t, func() error { _, err := safetensors.Open(fifo, opts...); return err })
		require.ErrorContains(t, err, "pipe")
		require.ErrorContains(t, err, "ReadHeader")
		err = within(t, func() error { _, err := safetensors.Open("/dev/null", opts...); return err })
		require.ErrorContains(t, err, "not a regular file")
		err = within(t, func() error { _, err := safetensors.Open("/dev/zero", opts...); return err })
		require.ErrorContains(t, err, "not a regular file")
	}
	require.ErrorContains(t, within(t, func() error { return safetensors.Save(fifo, one(tiny())) }), "pipe")
	require.ErrorContains(t, safetensors.Save("/dev/null", one(tiny())), "not a regular file")
	require.NoError(t, safetensors.Save("/dev/null", one(tiny()), safetensors.WithInPlace()))

	// Nor does an index wait, or what is named as one.
	for _, name := range []string{"model.safetensors.index.json", "model.fp16.safetensors.index.json"} {
		dir := t.TempDir()
		index := filepath.Join(dir, name)
		require.NoError(t, syscall.Mkfifo(index, 0o600))
		for _, path := range []string{dir, index} {
			err := within(t, func() error { _, err := safetensors.OpenModel(path); return err })
			require.ErrorContains(t, err, "pipe")
		}
		err := within(t, func() error { _, err := safetensors.SaveModel(dir, one(tiny())); return err })
		require.ErrorContains(t, err, "pipe")
	}

	// A header can be read from a pipe, and the rest is left in it.
	go func() {
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			w.Write(written(t, one(tiny())))
			w.Close()
		}
	}()
	require.NoError(t, within(t, func() error {
		r, err := os.Open(fifo)
		if err != nil {
			return err
		}
		defer r.Close()
		h, err := safetensors.ReadHeader(r)
		if err != nil {
			return err
		}
		rest := make([]byte, 4)
		n, err := r.Read(rest)
		if h.DataSize() != 3 || !bytes.Equal(rest[:n], []byte{1, 2, 3}) {
			return fmt.Errorf("%d bytes of data, of which %v came: %v", h.DataSize(), rest[:n], err)
		}
		return nil
	}))
}

func TestNoPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read and write everything, so a file without permission cannot be tested")
	}
	closed := saveTemp(t, one(tiny()))
	require.NoError(t, os.Chmod(closed, 0))
	_, err := safetensors.Open(closed)
	require.ErrorIs(t, err, os.ErrPermission)
	require.NoError(t, os.Chmod(filepath.Dir(closed), 0o500))
	t.Cleanup(func() { os.Chmod(filepath.Dir(closed), 0o700) })
	require.ErrorIs(t, safetensors.Save(closed, one(tiny())), os.ErrPermission)
}

// many_shards_fds: a mapped file holds no descriptor.
func TestManyFiles(t *testing.T) {
	const files = 1433
	if dir := os.Getenv(childEnv); dir != "" {
		openMany(t, dir, files)
		return
	}
	dir := t.TempDir()
	for i := range files {
		tensors := map[string]safetensors.Tensor{fmt.Sprint(i): safetensors.New(safetensors.U8, []int{300_000}, pattern(300_000, byte(i)))}
		if i > 40 { // the others only need to be many
			tensors = map[string]safetensors.Tensor{fmt.Sprint(i): tiny()}
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), written(t, tensors), 0o666))
	}
	cmd := childOf(t, dir)
	cmd.Args = append([]string{"sh", "-c", `ulimit -n 256 && exec "$0" "$@"`}, cmd.Args...)
	var err error
	cmd.Path, err = exec.LookPath("sh")
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func openMany(t *testing.T, dir string, n int) {
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.LessOrEqual(t, uint64(limit.Cur), uint64(256))
	tensors := map[string]safetensors.Tensor{}
	for i := range n {
		f, err := safetensors.Open(filepath.Join(dir, fmt.Sprint(i)))
		require.NoError(t, err)
		defer f.Close()
		maps.Insert(tensors, f.All())
	}
	require.Len(t, tensors, n)
	// Saving them all needs few descriptors at a time.
	out := filepath.Join(dir, "all")
	require.NoError(t, safetensors.Save(out, tensors))
	f, err := safetensors.Open(out)
	require.NoError(t, err)
	for name, want := range tensors {
		got, err := f.Tensor(name)
		require.NoError(t, err)
		w, err := want.Bytes()
		require.NoError(t, err)
		g, err := got.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(w, g))
	}
	require.NoError(t, f.Close())
}

// perm_0600: a new file follows the umask, a replaced one keeps its bits.
func TestSaveMode(t *testing.T) {
	dir := t.TempDir()
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	mode := func(name string) os.FileMode {
		info, err := os.Stat(name)
		require.NoError(t, err)
		return info.Mode()
	}
	for _, c := range []struct{ umask, want os.FileMode }{{0o022, 0o644}, {0o077, 0o600}, {0o002, 0o664}, {0, 0o666}, {0o777, 0}} {
		syscall.Umask(int(c.umask))
		for _, opts := range [][]safetensors.SaveOption{nil, {safetensors.WithInPlace()}} {
			name := filepath.Join(dir, fmt.Sprintf("new%o%d", c.umask, len(opts)))
			require.NoError(t, safetensors.Save(name, one(tiny()), opts...))
			require.Equal(t, c.want, mode(name), "umask %o", c.umask)
		}
	}
	for _, umask := range []int{0o022, 0o077, 0} {
		syscall.Umask(umask)
		for _, bits := range []os.FileMode{0o640, 0o600, 0o644, 0o666, 0o444, 0o400, 0o755, 0o200, 0} {
			for _, opts := range [][]safetensors.SaveOption{nil, {safetensors.WithInPlace()}} {
				if len(opts) == 1 && bits&0o200 == 0 && os.Getuid() != 0 {
					continue // it cannot be written over
				}
				name := filepath.Join(dir, "old")
				require.NoError(t, os.WriteFile(name, []byte("old"), 0o600))
				require.NoError(t, os.Chmod(name, bits))
				require.NoError(t, safetensors.Save(name, one(tiny()), opts...))
				require.Equal(t, bits, mode(name), "umask %o", umask)
				require.NoError(t, os.Remove(name))
			}
		}
	}
}

// symlink_destination: the link stays, and what it points to is replaced.
func TestSaveThroughLinks(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(root, name) }
	require.NoError(t, os.MkdirAll(at("data/deep"), 0o777))
	require.NoError(t, os.MkdirAll(at("links"), 0o777))
	require.NoError(t, os.WriteFile(at("data/file"), []byte("old"), 0o640))
	want := written(t, one(tiny()))
	// Where the folder is a link, ".." is the parent of what it points to.
	require.NoError(t, os.Symlink("../data/deep", at("links/folder")))
	for _, c := range []struct{ link, to, target string }{
		{"links/absolute", at("data/file"), "data/file"},
		{"links/relative", "../data/file", "data/file"},
		{"links/chain", "relative", "data/file"},
		{"links/longer", "../links/chain", "data/file"},
		{"links/up", "folder/../file", "data/file"},
		{"links/dangling", "../data/new", "data/new"},
		{"links/dangling-up", "folder/../other", "data/other"},
		{"beside", "data/file", "data/file"},
	} {
		require.NoError(t, os.Symlink(c.to, at(c.link)))
		names := []string{at(c.link)}
		if filepath.Dir(c.link) == "links" {
			names = append(names, at("data")+"/deep/../../"+c.link, at("links/folder")+"/../../"+c.link)
		}
		for _, name := range names {
			if c.target == "data/file" {
				require.NoError(t, os.WriteFile(at(c.target), []byte("old"), 0o640))
			}
			require.NoError(t, safetensors.Save(name, one(tiny())), c.link)
			to, err := os.Readlink(at(c.link))
			require.NoError(t, err, "the link stays")
			require.Equal(t, c.to, to)
			got, err := os.ReadFile(at(c.target))
			require.NoError(t, err)
			require.Equal(t, want, got, c.link)
			if c.target == "data/file" {
				info, err := os.Stat(at(c.target))
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o640), info.Mode(), c.link)
			}
		}
	}
	// Relative to where the process is.
	t.Chdir(at("links/folder"))
	require.NoError(t, os.WriteFile(at("data/file"), []byte("old"), 0o640))
	require.NoError(t, safetensors.Save("../file", one(tiny())))
	got, err := os.ReadFile(at("data/file"))
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, os.Symlink("loop", at("loop")))
	require.ErrorContains(t, safetensors.Save(at("loop"), one(tiny())), "links")
	require.NoError(t, os.Symlink("data", at("folder")))
	require.ErrorContains(t, safetensors.Save(at("folder"), one(tiny())), "directory")
	require.NoError(t, os.Symlink("no/such/folder/file", at("nowhere")))
	require.ErrorIs(t, safetensors.Save(at("nowhere"), one(tiny())), os.ErrNotExist)

	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		require.NotContains(t, path, ".tmp-")
		return err
	})
	require.NoError(t, err)
}
