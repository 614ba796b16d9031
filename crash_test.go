package safetensors_test

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

// childEnv tells a copy of the test binary which part of a test to play.
const childEnv = "SAFETENSORS_TEST_CHILD"

// childOf returns a command that runs the test again in a process of its own.
func childOf(t *testing.T, arg string) *exec.Cmd {
	t.Helper()
	if runtime.GOOS == "js" || runtime.GOOS == "wasip1" {
		t.Skipf("%s has no processes", runtime.GOOS)
	}
	cmd := safetensors.ChildProcess("-test.run=^" + t.Name() + "$")
	cmd.Env = append(os.Environ(), childEnv+"="+arg)
	return cmd
}

// needFaults skips a test of faults where a mapped file cannot be cut short, and
// under an emulator: QEMU 7.2 hands a program for arm64 no address of the fault,
// and one for s390x a wrong one.
func needFaults(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not cut a mapped file")
	}
	if os.Getenv(safetensors.ExecEnv) != "" {
		t.Skip("the emulator does not say where a fault was")
	}
}

// alternating are two sets of tensors, of different sizes, that the killed
// process saves in turn.
func alternating() [2]map[string]safetensors.Tensor {
	return [2]map[string]safetensors.Tensor{
		{"t": safetensors.New(safetensors.U8, []int{300_000}, pattern(300_000, 1))},
		{"t": safetensors.New(safetensors.U8, []int{500_000}, pattern(500_000, 2)), "u": tiny()},
	}
}

// A process that is killed while it saves leaves the old file or the new one,
// whatever the moment.
func TestSaveKilled(t *testing.T) {
	if name := os.Getenv(childEnv); name != "" {
		saveForever(t, name)
	}
	rounds := 200
	if testing.Short() {
		rounds = 10
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "x.safetensors")
	var whole [2][]byte
	for i, tensors := range alternating() {
		whole[i] = written(t, tensors)
	}
	require.NoError(t, os.WriteFile(name, whole[0], 0o666))
	var seen [2]int
	leftovers := 0
	for range rounds {
		cmd := childOf(t, name)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n') // it has begun
		require.NoError(t, err)
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())

		got, err := os.ReadFile(name)
		require.NoError(t, err)
		i := 0
		if len(got) == len(whole[1]) {
			i = 1
		}
		require.True(t, bytes.Equal(whole[i], got), "%d bytes that are neither file", len(got))
		seen[i]++

		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.LessOrEqual(t, len(entries), 2, "the killed save's temporary file at most")
		for _, e := range entries {
			if e.Name() != "x.safetensors" {
				require.True(t, strings.HasPrefix(e.Name(), ".x.safetensors.tmp-"), e.Name())
				leftovers++
				require.NoError(t, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
	}
	t.Logf("killed %d times: %d and %d times one file and the other, %d temporary files left", rounds, seen[0], seen[1], leftovers)
	if !testing.Short() {
		require.NotZero(t, leftovers, "no kill hit a save: the moments are wrong")
		require.NotZero(t, seen[0])
		require.NotZero(t, seen[1])
	}
}

// saveForever is the process that is killed.
func saveForever(t *testing.T, name string) {
	for i := 0; ; i++ {
		tensors := alternating()[i%2]
		if i == 0 {
			os.Stdout.WriteString("saving\n")
		}
		if err := safetensors.Save(name, tensors); err != nil {
			t.Fatal(err)
		}
	}
}

// A file cut short while it is open without a map is an error as well.
func TestCutShortWithoutMap(t *testing.T) {
	name := saveTemp(t, someTensors())
	f, err := safetensors.Open(name, safetensors.WithoutMmap())
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, f.Header().DataStart()))
	faultsEverywhere(t, f)
	require.NoError(t, f.Close())
}

// faultsEverywhere reads the tensors of a file whose data is gone in every way
// that the package itself touches their bytes.
func faultsEverywhere(t *testing.T, f *safetensors.File) {
	t.Helper()
	for name, tensor := range f.All() {
		if tensor.Size() == 0 {
			continue
		}
		for how, read := range map[string]func() error{
			"ReadAt the first byte": func() error { _, err := tensor.ReadAt(make([]byte, 1), 0); return err },
			"ReadAt the last byte":  func() error { _, err := tensor.ReadAt(make([]byte, 1), tensor.Size()-1); return err },
			"ReadAt all":            func() error { _, err := tensor.ReadAt(make([]byte, tensor.Size()), 0); return err },
			"WriteTo memory":        func() error { _, err := tensor.WriteTo(new(bytes.Buffer)); return err },
			"WriteTo nothing":       func() error { _, err := tensor.WriteTo(io.Discard); return err },
			"WriteTo a file": func() error {
				out, err := os.Create(filepath.Join(t.TempDir(), "out"))
				require.NoError(t, err)
				defer out.Close()
				_, err = tensor.WriteTo(out)
				return err
			},
			"WriteTo a pipe": func() error {
				r, w := io.Pipe()
				go io.Copy(io.Discard, r)
				defer w.Close()
				_, err := tensor.WriteTo(w)
				return err
			},
			"WriteTo a pipe of the system": func() error {
				r, w, err := os.Pipe()
				require.NoError(t, err)
				go io.Copy(io.Discard, r)
				defer w.Close()
				_, err = tensor.WriteTo(w)
				return err
			},
			"Write": func() error { _, err := safetensors.Write(io.Discard, one(tensor)); return err },
			"Save": func() error {
				dir := t.TempDir()
				old := filepath.Join(dir, "old.safetensors")
				require.NoError(t, os.WriteFile(old, []byte("old"), 0o666))
				defer onlyOld(t, dir)
				return safetensors.Save(old, one(tensor))
			},
			"Save in place": func() error {
				return safetensors.Save(filepath.Join(t.TempDir(), "new"), one(tensor), safetensors.WithInPlace())
			},
			"Values":        func() error { return valuesOf(tensor) },
			"AppendFloat32": func() error { _, err := safetensors.AppendFloat32(nil, tensor); return err },
			"Load":          func() error { _, err := f.Load(t.Context(), name); return err },
			"Prefetch":      func() error { return f.Prefetch(t.Context(), name) },
			"Stream": func() error {
				return f.Stream(t.Context(), func(_ string, tensor safetensors.Tensor) error {
					_, err := tensor.WriteTo(io.Discard)
					return err
				}, name)
			},
			"ReadAt a slice": func() error {
				if len(tensor.Shape()) != 2 || tensor.DType().Bits() < 8 {
					return safetensors.ErrFault // nothing to slice
				}
				part, err := tensor.Slice(safetensors.Range{Stop: safetensors.End}, safetensors.Range{Start: 1, Stop: 2})
				require.NoError(t, err)
				_, err = part.ReadAt(make([]byte, part.Size()), 0)
				return err
			},
		} {
			require.ErrorIs(t, read(), safetensors.ErrFault, "%s: %s", how, name)
		}
	}
}

// valuesOf reads the elements as the type that they are.
func valuesOf(t safetensors.Tensor) (err error) {
	switch t.DType() {
	case safetensors.F32:
		_, err = safetensors.Values[float32](t)
	case safetensors.I64:
		_, err = safetensors.Values[int64](t)
	case safetensors.I8:
		_, err = safetensors.Values[int8](t)
	case safetensors.U8:
		_, err = safetensors.Values[uint8](t)
	default:
		_, err = safetensors.Values[float64](t)
	}
	return err
}
