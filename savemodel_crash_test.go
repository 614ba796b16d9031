package safetensors

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A version is a model of several tensors, all bytes of which are its number, so
// that a mixture of two shows. Each number has a number of shards of its own.
type version int

func (v version) shards() int { return []int{3, 3, 1, 2, 3, 1, 1, 2, 2}[int(v)%9] }

func (v version) save(dir string, size int) error {
	tensors := map[string]Tensor{}
	for i := range v.shards() {
		tensors[strconv.Itoa(i)] = Of(slices.Repeat([]uint8{byte(v)}, size), size)
	}
	_, err := SaveModel(dir, tensors, WithMaxShardSize(int64(size)))
	return err
}

// versionIn opens the model and returns its version, which all tensors have.
func versionIn(t *testing.T, dir string) version {
	t.Helper()
	m, err := OpenModel(dir)
	require.NoError(t, err, "%v", filesIn(t, dir))
	defer m.Close()
	var v version
	for name, x := range m.All() {
		b, err := x.Bytes()
		require.NoError(t, err)
		require.Equal(t, slices.Repeat(b[:1], len(b)), b)
		if name == "0" {
			v = version(b[0])
		}
		require.Equal(t, byte(v), b[0], "a mixture of versions in %v", filesIn(t, dir))
	}
	require.Equal(t, v.shards(), m.Len())
	require.Empty(t, m.Verify())
	return v
}

func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// requireClean expects the files of that version and no other.
func (v version) requireClean(t *testing.T, dir string) {
	t.Helper()
	want := []string{singleFile}
	if n := v.shards(); n > 1 {
		want = []string{indexFile}
		for i := range n {
			want = append(want, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n))
		}
		slices.Sort(want)
	}
	require.Equal(t, want, filesIn(t, dir))
}

// stopAfter makes what changes names in a folder fail with err, or end the
// goroutine by a panic if err is nil, once it was called n times. It counts the
// calls.
func stopAfter(t *testing.T, n int, err error) (calls *int) {
	calls = new(int)
	step := func(do func() error) error {
		if *calls++; *calls > n {
			if err == nil {
				panic(errKilled)
			}
			return err
		}
		return do()
	}
	rename = func(from, to string) error { return step(func() error { return os.Rename(from, to) }) }
	link = func(from, to string) error { return step(func() error { return os.Link(from, to) }) }
	remove = func(name string) error { return step(func() error { return os.Remove(name) }) }
	t.Cleanup(restore)
	return calls
}

func restore() { rename, link, remove = os.Rename, os.Link, os.Remove }

var errKilled = errors.New("killed")

// killed runs save and reports whether it was stopped by stopAfter.
func killed(t *testing.T, save func() error) (stopped bool) {
	defer restore()
	defer func() {
		if r := recover(); r != nil {
			if r != errKilled {
				panic(r)
			}
			stopped = true
		}
	}()
	require.NoError(t, save())
	return false
}

// At whatever change to the folder SaveModel ends, the old model or the new one
// opens, from what a first save left and from what one that was stopped left.
func TestSaveModelStoppedAnywhere(t *testing.T) {
	states := map[string]bool{}
	for _, from := range []version{0, 2, 3} {
		for _, loose := range []bool{false, true} {
			for _, to := range []version{4, 6, 7} {
				for n := 0; ; n++ {
					dir := t.TempDir()
					require.NoError(t, from.save(dir, 10))
					if loose {
						if from.shards() == 1 {
							break
						}
						require.NoError(t, os.Remove(filepath.Join(dir, indexFile)))
					}
					stopAfter(t, n, nil)
					if !killed(t, func() error { return to.save(dir, 10) }) {
						require.Equal(t, to, versionIn(t, dir))
						to.requireClean(t, dir)
						break
					}
					require.Contains(t, []version{from, to}, versionIn(t, dir), "after %d changes", n)
					states[strings.Join(filesIn(t, dir), " ")] = true
					for k := 0; from == 0 && to == 4; k++ {
						// Once more, with another stop, where the first one ended.
						again := t.TempDir()
						require.NoError(t, os.CopyFS(again, os.DirFS(dir)))
						stopAfter(t, k, nil)
						if !killed(t, func() error { return version(8).save(again, 10) }) {
							version(8).requireClean(t, again)
							break
						}
						require.Contains(t, []version{from, to, 8}, versionIn(t, again), "after %d and %d changes", n, k)
					}
				}
			}
		}
	}
	t.Logf("%d states of the folder", len(states))
	require.Greater(t, len(states), 50)
}

// The same with errors instead: then the old model is untouched, or the error
// says that the new one is there, or the whole save went well.
func TestSaveModelFailsAnywhere(t *testing.T) {
	broken := errors.New("broken")
	for _, from := range []version{0, 2, 3} {
		for _, to := range []version{1, 5, 8} {
			for n := 0; ; n++ {
				dir := t.TempDir()
				require.NoError(t, from.save(dir, 10))
				calls := stopAfter(t, n, broken)
				err := to.save(dir, 10)
				restore()
				if err == nil && *calls <= n {
					to.requireClean(t, dir)
					break
				}
				switch v := versionIn(t, dir); {
				case err == nil: // links that failed were made up for by copies
					require.Equal(t, to, v)
				case v == from:
					require.ErrorIs(t, err, broken)
				default:
					require.Equal(t, to, v)
					require.ErrorIs(t, err, broken)
					require.ErrorContains(t, err, "the new model is whole")
				}
				require.NoError(t, version(7).save(dir, 10))
				version(7).requireClean(t, dir)
			}
		}
	}
}

// Where a file system has no hard links, there are copies.
func TestSaveModelWithoutLinks(t *testing.T) {
	link = func(from, to string) error {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: errors.ErrUnsupported}
	}
	t.Cleanup(restore)
	dir := t.TempDir()
	for v := range version(9) {
		require.NoError(t, v.save(dir, 1000))
		require.Equal(t, v, versionIn(t, dir))
		v.requireClean(t, dir)
	}
}

const crashEnv = "SAFETENSORS_TEST_SAVES_INTO"

// A process that saves one version after the other is killed at a random moment,
// many times. There is always the version that it saved last, or the one that
// it was saving.
func TestSaveModelKilled(t *testing.T) {
	const size = 100_000
	if dir := os.Getenv(crashEnv); dir != "" {
		from, err := strconv.Atoi(os.Getenv(crashEnv + "_FROM"))
		require.NoError(t, err)
		for v := from; ; v = (v + 1) % 252 { // 252: a multiple of 9 that fits a byte
			fmt.Printf("\nsaving %d\n", v)
			require.NoError(t, version(v).save(dir, size))
			fmt.Printf("\nsaved %d\n", v)
		}
	}
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	dir := t.TempDir()
	require.NoError(t, version(0).save(dir, size))
	at := version(0)
	during := 0
	for round := range rounds {
		cmd := ChildProcess("-test.run=^TestSaveModelKilled$")
		cmd.Env = append(os.Environ(), crashEnv+"="+dir, fmt.Sprintf("%s_FROM=%d", crashEnv, (int(at)+1)%252))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		var saving, saved string
		for lines.Scan() {
			line := lines.Text()
			if after, ok := strings.CutPrefix(line, "saving "); ok {
				if saving == "" {
					wait := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
					time.AfterFunc(wait, func() { cmd.Process.Kill() })
				}
				saving = after
			} else if after, ok := strings.CutPrefix(line, "saved "); ok {
				saved = after
			}
		}
		require.Error(t, cmd.Wait())
		require.NotEmpty(t, saving, "it was killed, and did not fail: %v", cmd.ProcessState)
		got := versionIn(t, dir)
		require.Contains(t, []string{saving, saved, strconv.Itoa(int(at))}, strconv.Itoa(int(got)), "round %d", round)
		if saved != "" && saved != saving {
			require.NotEqual(t, at, got)
		}
		if saved != saving {
			during++
		}
		at = got
	}
	t.Logf("killed %d times, %d of them while saving", rounds, during)
	require.NotZero(t, during)
	require.NoError(t, version(1).save(dir, size))
	version(1).requireClean(t, dir)
}

// requireFull expects SaveModel into dir, which has no room for it, to fail and
// to leave the old model as it was.
func requireFull(t *testing.T, dir string, size int, reason error) {
	t.Helper()
	for _, v := range []version{0, 3, 2} {
		require.NoError(t, v.save(dir, 10))
		for _, next := range []version{1, 2, 3} {
			err := next.save(dir, size)
			require.ErrorIs(t, err, reason)
			require.ErrorContains(t, err, dir)
			require.Equal(t, v, versionIn(t, dir))
			v.requireClean(t, dir)
			err = Save(filepath.Join(dir, singleFile+"2"), map[string]Tensor{"a": Of(make([]uint8, size), size)}, WithMetadata(nil))
			require.ErrorIs(t, err, reason)
			v.requireClean(t, dir)
		}
	}
}

func TestSaveModelTooLarge(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, version(0).save(dir, 10))
	half := FromFunc(U8, []int{1 << 30, 1 << 30, 4}, nil)
	_, err := SaveModel(dir, map[string]Tensor{"a": half, "b": half}, WithMaxShardSize(1))
	require.ErrorIs(t, err, ErrSizeOverflow)
	require.Equal(t, version(0), versionIn(t, dir))
}
