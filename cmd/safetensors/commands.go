package main

import (
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// A command is one word of the command line.
type command struct {
	name  string
	args  string // as usage shows them, flags aside
	short string // one line
	long  string // the rest of its help
	// define declares the flags and returns what runs with their values.
	define func(*flag.FlagSet) func(e *env, args []string) error
	least  int // arguments
	most   int // arguments, or -1 for any number
}

// commands returns all commands in the order in which help lists them.
func commands() []*command {
	return []*command{lsCommand, verifyCommand, hashCommand, diffCommand, metaCommand,
		cpCommand, mergeCommand, splitCommand, repairCommand}
}

func find(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return c
		}
	}
	return nil
}

func dispatch(e *env, args []string) error {
	if len(args) == 0 {
		usage(e.stderr)
		return &usageError{msg: "a command is missing"}
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return help(e, args)
	case "version", "-version", "--version":
		fmt.Fprintln(e.stdout, version())
		return nil
	}
	c := find(name)
	if c == nil {
		return &usageError{msg: fmt.Sprintf("no command %q", name)}
	}
	return c.run(e, args)
}

// run takes flags before, between and after the arguments, up to a "--".
func (c *command) run(e *env, args []string) error {
	flags := c.flags()
	run := c.define(flags)
	var rest []string
	for len(args) > 0 {
		err := flags.Parse(args)
		if err == flag.ErrHelp {
			c.help(e.stdout)
			return nil
		}
		if err != nil {
			return c.misuse("%s", strings.NewReplacer("flag -", "flag --", "for -", "for --", "defined: -", "defined: --").Replace(err.Error()))
		}
		left := flags.Args()
		if parsed := len(args) - len(left); parsed > 0 && args[parsed-1] == "--" {
			rest = append(rest, left...)
			break
		}
		if len(left) == 0 {
			break
		}
		rest, args = append(rest, left[0]), left[1:]
	}
	switch {
	case len(rest) < c.least:
		return c.misuse("%s: too few arguments: want %s", c.name, c.args)
	case c.most >= 0 && len(rest) > c.most:
		return c.misuse("%s: too many arguments: want %s, got also %q", c.name, c.args, rest[c.most])
	}
	return run(e, rest)
}

func (c *command) flags() *flag.FlagSet {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

func (c *command) misuse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), " " + c.name}
}

func help(e *env, args []string) error {
	if len(args) == 0 {
		usage(e.stdout)
		return nil
	}
	c := find(args[0])
	if c == nil {
		return &usageError{msg: fmt.Sprintf("no command %q", args[0])}
	}
	c.help(e.stdout)
	return nil
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Usage: safetensors COMMAND [FLAGS] ARGUMENTS\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.short)
	}
	fmt.Fprintf(w, "  %-8s %s\n", "help", "say more about a command")
	fmt.Fprintf(w, "  %-8s %s\n", "version", "print the version of this program")
	fmt.Fprint(w, `
Flags may stand before or after arguments; "--" ends them.

Exit codes: 0 fine; 1 the file breaks the format, or the compared things differ;
2 wrong usage; 3 something could not be read or written.
`)
}

func (c *command) help(w io.Writer) {
	flags := c.flags()
	c.define(flags)
	var lines strings.Builder
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(&lines, "  %-22s %s\n", "--"+f.Name+value, text)
	})
	fmt.Fprintf(w, "Usage: safetensors %s", c.name)
	if lines.Len() > 0 {
		fmt.Fprint(w, " [FLAGS]")
	}
	fmt.Fprintf(w, " %s\n\n%s", c.args, strings.TrimLeft(c.long, "\n"))
	if lines.Len() > 0 {
		fmt.Fprintf(w, "\n%s", lines.String())
	}
}

// version says what the build knows of itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "safetensors (unknown version)"
	}
	v := "safetensors " + info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]):
			v += " " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && !strings.HasSuffix(v, "+dirty"):
			v += "+dirty"
		}
	}
	return v + " (" + info.GoVersion + ")"
}
