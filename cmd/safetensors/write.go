package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/go-safetensors/safetensors"
)

// writing is what the commands that make a new file or model have in common.
type writing struct {
	command    *command
	dryRun     *bool
	inPlace    *bool
	force      *bool
	shard      int64 // the most bytes of a file of a folder OUT, 0 if not given
	noMetadata *bool
	metadata   pairs
}

func writingFlags(c *command, flags *flag.FlagSet) *writing {
	w := &writing{command: c}
	w.dryRun = dryRunFlag(flags)
	w.inPlace = inPlaceFlag(flags)
	w.force = flags.Bool("force", false, "replace the model that a folder OUT holds")
	flags.Func("max-shard-size", "make OUT a folder of files of at most `SIZE`, such as 5GB or 500MiB", func(s string) (err error) {
		if w.shard, err = safetensors.ParseSize(s); err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "safetensors: "))
		}
		if w.shard < 1 {
			return errors.New("want at least 1 byte")
		}
		return nil
	})
	w.noMetadata = flags.Bool("no-metadata", false, "leave out the metadata that there is")
	flags.Var(&w.metadata, "metadata", "set `KEY=VALUE` in the metadata; may be given several times")
	return w
}

func dryRunFlag(flags *flag.FlagSet) *bool {
	return flags.Bool("dry-run", false, "say what would be written, and write nothing, nor try whether it can be")
}

func inPlaceFlag(flags *flag.FlagSet) *bool {
	return flags.Bool("in-place", false, "write over the file itself, for file systems without rename; not safe if interrupted")
}

// pairs are the KEY=VALUE of the command line.
type pairs map[string]string

func (p *pairs) String() string { return "" }

func (p *pairs) Set(s string) error {
	k, v, ok := strings.Cut(s, "=")
	if !ok {
		return errors.New("want KEY=VALUE")
	}
	if !utf8.ValidString(s) {
		return errors.New("want UTF-8")
	}
	if *p == nil {
		*p = pairs{}
	}
	(*p)[k] = v
	return nil
}

// names are the values of a flag that may be given several times.
type names []string

func (n *names) String() string { return "" }

func (n *names) Set(s string) error {
	*n = append(*n, s)
	return nil
}

// A refusal is the error of something that was to be written. That it may be a
// FormatError does not make it one of a file that was read.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }

// all returns the tensors of a model.
func all(m *safetensors.Model) map[string]safetensors.Tensor { return maps.Collect(m.All()) }

// merged returns the metadata of the inputs with what the flags say. Keys that
// they set need not agree in the inputs.
func (w *writing) merged(inputs ...input) (map[string]string, error) {
	var parts []map[string]string
	for _, m := range inputs {
		part := m.Metadata()
		if *w.noMetadata {
			part = nil
		}
		for k := range w.metadata {
			delete(part, k)
		}
		parts = append(parts, part)
	}
	metadata, err := safetensors.MergeMetadata(parts...)
	if err != nil {
		return nil, fmt.Errorf("%w; --metadata KEY=VALUE or --no-metadata decides", err)
	}
	if w.metadata != nil && metadata == nil {
		metadata = map[string]string{}
	}
	maps.Copy(metadata, w.metadata)
	return metadata, nil
}

// folder says whether out is to be a folder: it is where a shard size or its name
// asks for one, or else if inclined.
func (w *writing) folder(out string, inclined bool) bool {
	switch info, err := os.Stat(out); {
	case w.shard > 0, strings.HasSuffix(out, "/"), strings.HasSuffix(out, string(os.PathSeparator)):
		return true
	case err == nil:
		return info.IsDir()
	}
	return inclined && !strings.HasSuffix(out, ".safetensors")
}

// An input is a model and the PATH that it came from.
type input struct {
	path string
	*safetensors.Model
}

// shardNames are those that a new model gives its files, so that others go.
var shardNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^model(-\d+-of-\d+)?\.safetensors$`)
})

// replaces refuses to replace a model in a folder that nobody may have thought
// of. One whose files are all read was.
func (w *writing) replaces(out string, inputs []input) error {
	if info, err := os.Stat(filepath.Clean(out)); err == nil && !info.IsDir() {
		return refusal{fmt.Errorf("%s is a file, and OUT is to be a folder", show(out))}
	}
	if *w.force {
		return nil
	}
	var there []string
	entries, _ := os.ReadDir(out)
	for _, e := range entries {
		if shardNames().MatchString(e.Name()) && !e.IsDir() {
			there = append(there, inFolder(out, e.Name()))
		}
	}
	m, err := safetensors.OpenModel(out)
	if err == nil {
		defer m.Close()
		there = append(there, input{out, m}.files()...)
	}
	var read []fs.FileInfo
	for _, in := range inputs {
		for _, name := range in.files() {
			if info, err := os.Stat(name); err == nil {
				read = append(read, info)
			}
		}
	}
	fe := (*safetensors.FormatError)(nil)
	known := err == nil || errors.Is(err, fs.ErrNotExist) && !errors.As(err, &fe)
	unread := slices.ContainsFunc(there, func(name string) bool {
		info, err := os.Stat(name)
		return err != nil || !slices.ContainsFunc(read, func(in fs.FileInfo) bool { return os.SameFile(in, info) })
	})
	if known && !unread {
		return nil
	}
	return w.command.misuse("%s: the folder %s holds a model or files of one that were not read and would be replaced: --force does it", w.command.name, show(out))
}

// folder returns the folder whose model this is, or "".
func (in input) folder() string {
	switch {
	case isFolder(in.path):
		return in.path
	case strings.HasSuffix(in.path, ".json"):
		dir, _ := filepath.Split(in.path)
		return cmp.Or(dir, ".")
	}
	return ""
}

// inFolder is filepath.Join but for "..": that after a link is for the system to
// resolve.
func inFolder(dir, name string) string { return dir + string(os.PathSeparator) + name }

// files returns the paths of the files that the model is read from.
func (in input) files() []string {
	dir := in.folder()
	if dir == "" {
		return []string{in.path}
	}
	var files []string
	for name := range in.Shards() {
		files = append(files, inFolder(dir, filepath.FromSlash(name)))
	}
	return files
}

// save writes the tensors, which come from the inputs, to the file or folder out.
func (w *writing) save(e *env, out string, folder bool, tensors map[string]safetensors.Tensor, metadata map[string]string, inputs ...input) error {
	if strings.HasSuffix(out, ".json") {
		return w.command.misuse("%s: OUT is a .safetensors file or a folder, got %s", w.command.name, show(out))
	}
	opts := []safetensors.SaveOption{safetensors.WithMetadata(metadata)}
	if folder {
		if err := w.replaces(out, inputs); err != nil {
			return err
		}
	}
	if w.shard > 0 {
		opts = append(opts, safetensors.WithMaxShardSize(w.shard))
	}
	if *w.inPlace {
		opts = append(opts, safetensors.WithInPlace())
	}
	if *w.dryRun {
		return w.preview(e, out, folder, tensors, metadata, opts)
	}

	var bytes int64
	for _, t := range tensors {
		bytes += t.Size()
	}
	bar := newProgress(e, "writing", bytes)
	if bar != nil {
		opts = append(opts, safetensors.WithProgress(bar.set))
	}
	var files []string
	err := interruptible(func(ctx context.Context) (err error) {
		defer bar.end()
		opts = append(opts, safetensors.WithContext(ctx))
		if folder {
			files, err = safetensors.SaveModel(out, tensors, opts...)
			return err
		}
		return safetensors.Save(out, tensors, opts...)
	})
	if err != nil {
		return refusal{err}
	}
	in := ""
	if len(files) > 1 {
		in = fmt.Sprintf(" in %d files", len(files)-1)
	}
	_, err = fmt.Fprintf(e.stdout, "%s: %s, %s%s\n", printable(out), count(len(tensors), "tensor"), size(bytes), in)
	return err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

var errInterrupted = errors.New("interrupted; no file is half written, unless it was written in place")

// interruptible ends the context that save gets on a signal to end.
func interruptible(save func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second one ends the program
	err := save(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errInterrupted
	}
	return err
}

// preview says what would be there, so far as the library lets it be.
func (w *writing) preview(e *env, out string, folder bool, tensors map[string]safetensors.Tensor, metadata map[string]string, opts []safetensors.SaveOption) error {
	if !folder {
		opts = append(opts, safetensors.WithMaxShardSize(math.MaxInt64))
	}
	shards, err := safetensors.PlanModel(tensors, opts...)
	if err != nil {
		return refusal{err}
	}
	fmt.Fprintf(e.stdout, "%s would hold:\n\n", printable(out))
	var rows []tensorLine
	for _, shard := range shards {
		for _, name := range shard.Tensors {
			t := tensors[name]
			rows = append(rows, tensorLine{Name: name, DType: t.DType(), Shape: t.Shape(), End: t.Size(), File: shard.Name})
		}
	}
	if err := table(e.stdout, rows, len(shards) > 1); err != nil {
		return err
	}
	printMetadata(e.stdout, metadata)
	return totals(e.stdout, rows, len(shards))
}
