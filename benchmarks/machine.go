package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// A machine is what a report says of where it ran: nothing that names it.
type machine struct {
	cpu        string
	cores      int
	memory     int64 // bytes, 0 if unknown
	filesystem string
}

func describe(scratch string) machine {
	m := machine{cpu: "unknown processor", cores: runtime.NumCPU(), filesystem: filesystem(scratch)}
	if v := procValue("/proc/cpuinfo", "model name"); v != "" {
		m.cpu = v
	}
	m.memory = procKiB("/proc/meminfo", "MemTotal")
	return m
}

func (m machine) String() string {
	text := fmt.Sprintf("%s, %d cores, ", m.cpu, m.cores)
	if m.memory > 0 {
		text += fmt.Sprintf("%.0f GiB of memory, ", float64(m.memory)/(1<<30))
	}
	return text + fmt.Sprintf("files on %s, %s/%s", m.filesystem, runtime.GOOS, runtime.GOARCH)
}

// free is the memory that can be used without swapping, 0 if unknown.
func free() int64 { return procKiB("/proc/meminfo", "MemAvailable") }

// peak is the most memory that this process has had resident.
func peak() int64 { return procKiB("/proc/self/status", "VmHWM") }

func procKiB(file, key string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(procValue(file, key), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n * 1024
}

// procValue finds "key : value" in a file of /proc; "" elsewhere.
func procValue(file, key string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// filesystem names the kind of file system that dir is on: the kind of the
// longest mount point above it.
func filesystem(dir string) string {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "an unknown file system"
	}
	kind, length := "an unknown file system", -1
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < length {
			continue
		}
		if f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/") {
			kind, length = f[2], len(f[1])
		}
	}
	return kind
}

// goVersions lists Go and the Go peers.
func goVersions() []string {
	list := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go")}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return list
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/nlpodyssey/safetensors", "github.com/gomlx/go-huggingface", "github.com/x448/float16":
			list = append(list, m.Path+" "+m.Version)
		}
	}
	return list
}
