// Command safetensors looks into safetensors files, checks them, compares them
// and makes new ones of them. Run it without arguments for what it can do.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/go-safetensors/safetensors"
)

// The exit codes, which scripts rely on.
const (
	exitFine    = 0
	exitInvalid = 1 // the file breaks the format, or the compared things differ
	exitUsage   = 2
	exitFailed  = 3 // could not be read or written
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// env is what a command has to do with the world.
type env struct {
	stdin  io.Reader
	stdout *bufio.Writer
	stderr io.Writer
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &env{stdin, bufio.NewWriterSize(output{stdout}, 64<<10), stderr}
	err := dispatch(e, args)
	// What was printed before an error is worth seeing, and an error that the
	// output gave is the one that the command stopped for, if it did.
	if flushed := e.stdout.Flush(); flushed != nil {
		if brokenPipe(flushed) {
			return exitFailed // whoever read it has seen enough
		}
		err = flushed
	}
	return e.report(err)
}

// output says of an error that it is not one of the files.
type output struct{ io.Writer }

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil {
		err = fmt.Errorf("writing the output: %w", err)
	}
	return n, err
}

// These end a command that has already said what is wrong.
var (
	errInvalid  = errors.New("invalid or different")
	errReported = errors.New("unreadable")
)

// A usageError is a command that makes no sense.
type usageError struct{ msg, command string }

func (e *usageError) Error() string { return e.msg }

// report prints the error, if it was not yet, and returns the exit code.
func (e *env) report(err error) int {
	var usage *usageError
	var format *safetensors.FormatError
	switch {
	case err == nil:
		return exitFine
	case err == errInvalid:
		return exitInvalid
	case err == errReported:
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(e.stderr, "safetensors: %s\nRun \"safetensors help%s\" for usage.\n", printable(usage.msg), usage.command)
		return exitUsage
	}
	e.complain(err)
	if errors.As(err, &format) {
		return exitInvalid
	}
	return exitFailed
}

// complain prints an error. One that joins several has a line for each.
func (e *env) complain(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		// The library begins with its name too, at each of its layers.
		line = strings.ReplaceAll(strings.TrimPrefix(line, "safetensors: "), ": safetensors: ", ": ")
		fmt.Fprintf(e.stderr, "safetensors: %s\n", printable(line))
	}
}

// brokenPipe reports whether the reader of a pipe has gone. On Unix a write to
// standard output then ends the process before this is asked, save where
// SIGPIPE is ignored.
func brokenPipe(err error) bool {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return true
	}
	var errno syscall.Errno
	const noData, broken = 232, 109 // ERROR_NO_DATA and ERROR_BROKEN_PIPE
	return runtime.GOOS == "windows" && errors.As(err, &errno) && (errno == noData || errno == broken)
}
