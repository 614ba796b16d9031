package main

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

//go:embed peer.py requirements.txt rust
var sources embed.FS

// peers are the other implementations that run as processes of their own, built
// by their own package managers in the scratch folder.
type peers struct {
	rust, python *peer
	torch        bool
	versions     []string
	missing      []string // a line each: what is missing and why
}

// A peer is a program that does what a line on its stdin asks. It may be nil,
// then it is missing.
type peer struct {
	name    string
	command []string
	env     []string
	process *process // kept between requests
}

type process struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

// build makes the peers. What cannot be built is missing, and said to be.
func build(scratch string, torch bool) (*peers, error) {
	p := &peers{}
	dir := filepath.Join(scratch, "peers")
	if err := unpack(dir); err != nil {
		return nil, err
	}
	var err error
	if p.rust, err = p.buildRust(dir); err != nil {
		p.missing = append(p.missing, "Rust crate safetensors: "+reason(err, scratch))
	}
	if p.python, err = p.buildPython(dir, torch); err != nil {
		p.missing = append(p.missing, "Python safetensors, numpy and ml_dtypes: "+reason(err, scratch))
	}
	if !torch {
		p.missing = append(p.missing, "torch: left out; `-torch` installs it, which is several GB")
	}
	return p, nil
}

// unpack writes the peers' sources, so that building them leaves nothing in the
// source tree.
func unpack(dir string) error {
	return fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		target := filepath.Join(dir, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := sources.ReadFile(name)
		if err != nil {
			return err
		}
		if old, err := os.ReadFile(target); err == nil && string(old) == string(data) {
			return nil // a new time stamp would have it built again
		}
		return os.WriteFile(target, data, 0o644)
	})
}

func (p *peers) buildRust(dir string) (*peer, error) {
	cmd := exec.Command("cargo", "build", "--release", "--locked", "--quiet")
	cmd.Dir = filepath.Join(dir, "rust")
	cmd.Env = append(os.Environ(), "CARGO_TARGET_DIR="+filepath.Join(dir, "rust-target"))
	if err := quietly(cmd, "building the Rust peer"); err != nil {
		return nil, err
	}
	lock, err := sources.ReadFile("rust/Cargo.lock")
	if err != nil {
		return nil, err
	}
	_, after, _ := strings.Cut(string(lock), "name = \"safetensors\"\nversion = \"")
	crate, _, _ := strings.Cut(after, `"`)
	version, _ := exec.Command("rustc", "--version").Output()
	rustc := strings.Fields(string(version) + " ? ?")[1]
	p.versions = append(p.versions, fmt.Sprintf("Rust crate safetensors %s, rustc %s, release build with LTO", crate, rustc))
	return &peer{name: "Rust", command: []string{filepath.Join(dir, "rust-target", "release", "peer")}}, nil
}

func (p *peers) buildPython(dir string, torch bool) (*peer, error) {
	venv := filepath.Join(dir, "venv")
	python := filepath.Join(venv, "bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join(venv, "Scripts", "python.exe")
	}
	if _, err := os.Stat(python); err != nil {
		if err := quietly(exec.Command("python3", "-m", "venv", venv), "making a Python environment"); err != nil {
			return nil, err
		}
	}
	install := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", filepath.Join(dir, "requirements.txt")}
	if err := quietly(exec.Command(python, install...), "installing the Python peers"); err != nil {
		return nil, err
	}
	if torch {
		cmd := exec.Command(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "torch")
		if err := quietly(cmd, "installing torch"); err != nil {
			p.missing = append(p.missing, "torch: "+reason(err, dir))
		} else {
			p.torch = true
		}
	}
	peer := &peer{name: "Python", command: []string{python, filepath.Join(dir, "peer.py")}, env: pythonEnv()}
	text, err := peer.versions()
	if err != nil {
		return nil, err
	}
	p.versions = append(p.versions, "Python "+text)
	return peer, nil
}

// pythonEnv is the environment without the variables that make OpenBLAS, and so
// numpy, use slower code than the machine can run.
func pythonEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OPENBLAS_CORETYPE=") && !strings.HasPrefix(v, "OPENBLAS_L2_SIZE=") {
			env = append(env, v)
		}
	}
	return env
}

func quietly(cmd *exec.Cmd, what string) error {
	fmt.Fprintln(os.Stderr, what)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(string(out)); text != "" {
		lines := strings.Split(text, "\n")
		return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return err
}

// reason is an error as a report may show it: one line, no paths of this machine.
func reason(err error, dir string) string {
	text := strings.ReplaceAll(err.Error(), dir, "SCRATCH")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// ask sends a request to the peer, which it starts if need be, and waits for
// the reply.
func (p *peer) ask(fields ...any) (sample, error) {
	s, _, err := p.request(fields...)
	return s, err
}

func (p *peer) request(fields ...any) (sample, string, error) {
	if p == nil {
		return sample{}, "", errMissing
	}
	if p.process == nil {
		if err := p.start(); err != nil {
			return sample{}, "", err
		}
	}
	words := make([]string, len(fields))
	for i, f := range fields {
		words[i] = fmt.Sprint(f)
	}
	if _, err := fmt.Fprintln(p.process.in, strings.Join(words, "\t")); err != nil {
		p.stop()
		return sample{}, "", fmt.Errorf("%s: %w", p.name, err)
	}
	if !p.process.out.Scan() {
		p.stop()
		return sample{}, "", fmt.Errorf("%s ended without a reply", p.name)
	}
	return reply(p.name, p.process.out.Text())
}

// askOnce is ask in a fresh process, so that its memory is its own.
func (p *peer) askOnce(fields ...any) (sample, error) {
	if p == nil {
		return sample{}, errMissing
	}
	p.stop()
	defer p.stop()
	return p.ask(fields...)
}

func (p *peer) versions() (string, error) {
	_, text, err := p.request("versions")
	p.stop()
	if err != nil {
		return "", err
	}
	text = strings.TrimPrefix(text, "python=")
	return strings.NewReplacer(",", ", ", "=", " ").Replace(text), nil
}

func (p *peer) start() error {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env = p.env
	cmd.Stderr = os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Close()
		return err
	}
	if err := cmd.Start(); err != nil {
		w.Close()
		return err
	}
	p.process = &process{cmd: cmd, in: w, out: bufio.NewScanner(out)}
	return nil
}

func (p *peer) stop() {
	if p == nil || p.process == nil {
		return
	}
	p.process.in.Close()
	p.process.cmd.Wait()
	p.process = nil
}

// reply reads what peers and children answer:
//
//	ok TAB nanoseconds TAB bytes [TAB text]
//	error TAB message
func reply(who, line string) (sample, string, error) {
	fields := strings.Split(line, "\t")
	if len(fields) >= 2 && fields[0] == "error" {
		return sample{}, "", fmt.Errorf("%s: %s", who, fields[1])
	}
	if len(fields) < 3 || fields[0] != "ok" {
		return sample{}, "", fmt.Errorf("%s answered %q", who, line)
	}
	ns, err1 := strconv.ParseInt(fields[1], 10, 64)
	memory, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return sample{}, "", fmt.Errorf("%s answered %q: %w", who, line, err)
	}
	return sample{time.Duration(ns), memory}, strings.Join(fields[3:], "\t"), nil
}
