package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// childFlag makes this program do one task in a process of its own, so that its
// memory can be told from the others'. It answers as the peers do.
const childFlag = "-child"

// A task gives how long the part that counts took.
type task func(args []string) (time.Duration, error)

var tasks = map[string]task{}

func child(name string, args []string) int {
	run := tasks[name]
	if run == nil {
		fmt.Printf("error\tunknown task %s\n", name)
		return 1
	}
	took, err := run(args)
	if err != nil {
		fmt.Printf("error\t%s\n", strings.NewReplacer("\n", " ", "\t", " ").Replace(err.Error()))
		return 1
	}
	fmt.Printf("ok\t%d\t%d\n", took.Nanoseconds(), peak())
	return 0
}

// inChild runs a task in a fresh process.
func inChild(name string, args ...string) (sample, error) {
	self, err := os.Executable()
	if err != nil {
		return sample{}, err
	}
	cmd := exec.Command(self, append([]string{childFlag, name}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	line, _, _ := bytes.Cut(out, []byte("\n"))
	if len(line) == 0 {
		return sample{}, fmt.Errorf("%s: %w", name, err)
	}
	s, _, err := reply(name, string(line))
	return s, err
}
