package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-safetensors/safetensors"
)

var metaCommand = &command{
	name: "meta", args: "get PATH [KEY] | set PATH KEY=VALUE... | delete PATH KEY...", least: 2, most: -1,
	short: "print or change the metadata",
	long: `
get prints the metadata of PATH as a JSON object, null where there is none, or the
value of KEY as a JSON string. set adds keys or changes their values; with --json it
takes a JSON object of strings in place of each KEY=VALUE, where "-" is standard
input. delete takes keys out; without keys but with --all, the metadata as a whole.

The file is replaced at once when all is written. Of a model of several files, which
has to be complete, each one is changed, then what the index has of the same keys.
`,
}

func init() {
	metaCommand.define = func(flags *flag.FlagSet) func(*env, []string) error {
		c := &metaChange{
			asJSON: flags.Bool("json", false, "with set: take JSON objects in place of KEY=VALUE"),
			all:    flags.Bool("all", false, "with set: drop keys that are not set; with delete: drop all"),
			dryRun: dryRunFlag(flags),
			place:  inPlaceFlag(flags),
		}
		raw := flags.Bool("raw", false, "with get and KEY: print the value as it is, not as JSON")
		return func(e *env, args []string) error {
			path, rest := args[1], args[2:]
			switch args[0] {
			case "get":
				if len(rest) > 1 || *raw && len(rest) == 0 {
					return metaCommand.misuse("meta get: want PATH [KEY], and a KEY with --raw")
				}
				return getMetadata(e, path, rest, *raw)
			case "set":
				set, err := c.pairs(e, rest)
				if err != nil {
					return err
				}
				return c.apply(e, path, func(m map[string]string) error {
					if *c.all {
						clear(m)
					}
					maps.Copy(m, set)
					return nil
				})
			case "delete":
				if (len(rest) == 0) != *c.all {
					return metaCommand.misuse("meta delete: want either KEY... or --all")
				}
				return c.apply(e, path, func(m map[string]string) error {
					if *c.all {
						clear(m)
					}
					for _, k := range rest {
						delete(m, k)
					}
					return nil
				}, rest...)
			}
			return metaCommand.misuse("meta: want get, set or delete, got %q", args[0])
		}
	}
}

func getMetadata(e *env, path string, key []string, raw bool) error {
	m, err := open(path)
	if err != nil {
		return err
	}
	defer m.Close()
	metadata := m.Metadata()
	if len(key) == 0 {
		return printJSON(e.stdout, metadata)
	}
	v, ok := metadata[key[0]]
	if !ok {
		return noKey(path, key[0])
	}
	if raw {
		_, err := io.WriteString(e.stdout, v+"\n")
		return err
	}
	return printJSON(e.stdout, v)
}

func noKey(path, key string) error {
	return fmt.Errorf("%s: no metadata key %s", path, cut(key, 120))
}

// printJSON prints a map with a line for each key.
func printJSON(w io.Writer, v any) error {
	j := newJSONWriter(w)
	j.enc.SetIndent("", "  ")
	if err := j.value(v); err != nil {
		return err
	}
	return j.raw("\n")
}

// A metaChange is what set and delete have in common.
type metaChange struct{ asJSON, all, dryRun, place *bool }

func (c *metaChange) pairs(e *env, args []string) (map[string]string, error) {
	var set pairs
	if len(args) == 0 {
		return nil, metaCommand.misuse("meta set: want at least one KEY=VALUE")
	}
	for _, arg := range args {
		if !*c.asJSON {
			if err := set.Set(arg); err != nil {
				return nil, metaCommand.misuse("meta set: %s: %s", show(arg), err)
			}
			continue
		}
		text := io.Reader(strings.NewReader(arg))
		if arg == "-" {
			text = e.stdin
		}
		more, err := stringMap(text)
		if err != nil {
			return nil, metaCommand.misuse("meta set: %s", err)
		}
		if set == nil {
			set = pairs{}
		}
		maps.Copy(set, more)
	}
	return set, nil
}

// stringMap reads one JSON object of strings.
func stringMap(r io.Reader) (map[string]string, error) {
	d := json.NewDecoder(r)
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("want one JSON object, got more")
	}
	if values == nil {
		return nil, errors.New("want a JSON object, got null")
	}
	m := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		s, ok := values[k].(string)
		if !ok {
			return nil, fmt.Errorf("key %s: want a string", show(k))
		}
		m[k] = s
	}
	return m, nil
}

// apply changes the files of PATH. The keys have to be there.
func (c *metaChange) apply(e *env, path string, change func(map[string]string) error, keys ...string) error {
	m, err := open(path)
	if err != nil {
		return err
	}
	after := m.Metadata()
	if err := m.Close(); err != nil {
		return err
	}
	for _, k := range keys {
		if _, ok := after[k]; !ok {
			return noKey(path, k)
		}
	}
	if after == nil {
		after = map[string]string{}
	}
	if err := change(after); err != nil {
		return err
	}
	if *c.dryRun {
		return printJSON(e.stdout, after)
	}
	var opts []safetensors.SaveOption
	if *c.place {
		opts = append(opts, safetensors.WithInPlace())
	}
	bar := newProgress(e, "writing", 0)
	if bar != nil {
		opts = append(opts, safetensors.WithProgress(bar.set))
	}
	return interruptible(func(ctx context.Context) error {
		defer bar.end()
		return safetensors.UpdateMetadata(path, change, append(opts, safetensors.WithContext(ctx))...)
	})
}
