package reference

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Env names the variable that says where the reference's binary is.
const Env = "SAFETENSORS_REFERENCE"

// ErrMissing is wrapped where there is no binary yet.
var ErrMissing = errors.New("the reference is not built: run interop/setup.sh, or set " + Env)

// Folder gives interop/ of the project that the current folder lies in.
func Folder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		interop := filepath.Join(dir, "interop")
		if _, err := os.Stat(filepath.Join(interop, "reference", "Cargo.toml")); err == nil {
			return interop, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the project: no interop/reference above the current folder")
		}
		dir = parent
	}
}

// Find gives the path of the binary: what the environment says, else what was built in place.
func Find() (string, error) {
	if path := os.Getenv(Env); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", Env, err)
		}
		return path, nil
	}
	interop, err := Folder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(interop, "reference", "target", "release", "safetensors-reference")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", ErrMissing
	} else if err != nil {
		return "", err
	}
	return path, nil
}

// FindOrBuild is Find, and where there is no binary yet it has cargo build one.
func FindOrBuild() (string, error) {
	path, err := Find()
	if !errors.Is(err, ErrMissing) {
		return path, err
	}
	interop, err := Folder()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("cargo", "build", "--release", "--locked",
		"--manifest-path", filepath.Join(interop, "reference", "Cargo.toml"),
		"--target-dir", filepath.Join(interop, "reference", "target"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the reference: %w", err)
	}
	return Find()
}
