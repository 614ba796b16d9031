// Package need finds what a test compares with. A test is skipped where that is missing, and the
// skip says how to get it; under CI it fails, so that a skip cannot pass for a success.
package need

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-safetensors/safetensors/interop/internal/reference"
)

// PythonEnv names the variable that says which Python to use.
const PythonEnv = "SAFETENSORS_PYTHON"

// Missing skips the test, or fails it where the variable CI is set.
func Missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Reference gives the path of the reference's binary.
func Reference(t testing.TB) string {
	t.Helper()
	path, err := reference.Find()
	if errors.Is(err, reference.ErrMissing) {
		Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Python gives the path of a Python that has safetensors, numpy and ml_dtypes: what the environment
// says, else the one that setup.sh made, else the system's.
func Python(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(PythonEnv); path != "" {
		if err := usable(path); err != nil {
			t.Fatalf("%s: %v", PythonEnv, err)
		}
		return path
	}
	path := filepath.Join(Folder(t), ".venv", "bin", "python")
	if runtime.GOOS == "windows" {
		path = filepath.Join(Folder(t), ".venv", "Scripts", "python.exe")
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		path = "python3"
	}
	if err := usable(path); err != nil {
		Missing(t, fmt.Sprintf("no Python with safetensors, numpy and ml_dtypes (%v): run interop/setup.sh, or set %s", err, PythonEnv))
	}
	return path
}

func usable(python string) error {
	out, err := exec.Command(python, "-c", "import safetensors, numpy, ml_dtypes").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", python, err, out)
	}
	return nil
}

// Folder gives the path of interop/.
func Folder(t testing.TB) string {
	t.Helper()
	folder, err := reference.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
