package safetensors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Model is a set of tensors in one file or in several, the shards, which were
// all opened and checked when it was opened. It reads as a [File] does, and
// what is said there of goroutines and of Close holds for it too.
type Model struct {
	index  string // path of the index, or ""
	path   string // as given
	shards []shard
	order  []int32 // the shards by name
	// where gives each tensor's place in shards (see newPlaces); nil where there is
	// one file without an index.
	where    *Header
	metadata map[string]string // of the index
	total    string            // what the index says is the sum of the tensors' bytes
}

type shard struct {
	name string
	file *File
}

// OpenModel opens the model at path, which is a safetensors file, an index file
// (its name ends in .json) or a folder. In a folder it takes the first of these
// that is there:
//
//   - model.safetensors.index.json
//   - model.safetensors
//   - the only other index, such as model.fp16.safetensors.index.json or
//     diffusion_pytorch_model.safetensors.index.json; more than one is an error
//     that lists them
//   - all *.safetensors files. If they are numbered, as in
//     model-00001-of-00003.safetensors, none may be missing, and no tensor may be
//     in two of them
//
// An index decides: each tensor comes from the shard that the index names for
// it, though another shard may have a tensor of that name, and files that it
// does not name are left alone. What an index says besides its weight_map is
// not relied upon. Every shard is opened before OpenModel returns; those that
// are missing are listed in one error, and the error of a bad one names it.
// A shard's name that could lead out of the folder is refused, but symbolic
// links are followed, since model caches are made of them.
//
// If someone replaces the model in the meantime as [SaveModel] does, OpenModel
// returns the old one or the new one, never a mixture; if that goes on and on,
// an error says so.
func OpenModel(path string, opts ...Option) (*Model, error) {
	const tries = 10 // each but the last sees the model replaced under it
	for try := 1; ; try++ {
		var m *Model
		c, err := choose(path)
		if err == nil {
			m, err = c.open(opts)
		}
		now, _ := choose(path)
		settled := c.same(now)
		c.close()
		now.close()
		if settled {
			return m, err
		}
		if err == nil {
			m.Close()
		}
		if try == tries {
			return nil, errors.Join(fmt.Errorf("safetensors: %s changes all the time", quoteName(path)), err)
		}
	}
}

// A choice is what OpenModel found at a path. It keeps an index open, so that
// no other file can have its identity.
type choice struct {
	path  string
	index *os.File
	info  fs.FileInfo // of index
	files []string    // where there is no index
}

func (c *choice) close() {
	if c != nil && c.index != nil {
		c.index.Close()
	}
}

// same reports whether nothing has changed: same index, same files, or twice
// nothing.
func (c *choice) same(d *choice) bool {
	if c == nil || d == nil {
		return c == d
	}
	if c.index != nil && d.index != nil {
		return os.SameFile(c.info, d.info) && c.info.Size() == d.info.Size() && c.info.ModTime().Equal(d.info.ModTime())
	}
	return c.index == d.index && slices.Equal(c.files, d.files)
}

const (
	fileSuffix = ".safetensors"
	singleFile = "model" + fileSuffix
	indexFile  = singleFile + ".index.json"
)

// choose looks at what is at a path.
func choose(path string) (*choice, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("safetensors: %w", err)
	case info.IsDir():
		return chooseIn(path)
	case strings.HasSuffix(path, ".json"):
		return chooseIndex(path)
	}
	return &choice{path: path, files: []string{path}}, nil
}

func chooseIndex(path string) (*choice, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return &choice{path: path, index: f, info: info}, nil
}

func chooseIn(dir string) (*choice, error) {
	// A symbolic link that leads nowhere is there all the same.
	if name := inDir(dir, indexFile); exists(name) {
		return chooseIndex(name)
	}
	if name := inDir(dir, singleFile); exists(name) {
		return &choice{path: dir, files: []string{name}}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	var indexes, files []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case name[0] == '.' || e.IsDir():
		case isIndex(name):
			indexes = append(indexes, name)
		case strings.HasSuffix(name, fileSuffix):
			files = append(files, inDir(dir, name))
		}
	}
	switch {
	case len(indexes) == 1:
		return chooseIndex(inDir(dir, indexes[0]))
	case len(indexes) > 1:
		return nil, fmt.Errorf("safetensors: %s has several models; open one of %s", quoteName(dir), listed(indexes))
	case len(files) == 0:
		return nil, fmt.Errorf("safetensors: %s has no .safetensors file: %w", quoteName(dir), fs.ErrNotExist)
	}
	return &choice{path: dir, files: files}, nil
}

// inDir is filepath.Join but for "..": that after a link is for the system to
// resolve.
func inDir(dir, name string) string {
	drive := len(dir) == 2 && filepath.VolumeName(dir) == dir
	if dir == "" || drive || os.IsPathSeparator(dir[len(dir)-1]) {
		return dir + name
	}
	return dir + string(os.PathSeparator) + name
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// isIndex knows model.safetensors.index.json and the two ways in which a
// variant is named: model.fp16.safetensors.index.json and
// model.safetensors.index.fp16.json.
func isIndex(name string) bool {
	return strings.HasSuffix(name, ".json") && strings.Contains(name, fileSuffix+".index.")
}

func (c *choice) open(opts []Option) (*Model, error) {
	if c.index == nil {
		return openFiles(c.path, c.files, opts)
	}
	dir, _ := filepath.Split(c.path)
	m, err := modelOf(c.path, c.index, func(name string) (*File, error) {
		return Open(inDir(dir, filepath.FromSlash(name)), opts...)
	}, optionsOf(opts))
	return m, inFile(err, c.path)
}

// openFiles opens files that have no index.
func openFiles(path string, files []string, opts []Option) (*Model, error) {
	m := &Model{path: path}
	if files[0] != path { // they were found in a folder
		if err := m.checkNumbers(files); err != nil {
			return nil, err
		}
	}
	if len(files) == 1 {
		f, err := Open(files[0], opts...)
		if err != nil {
			return nil, err
		}
		m.shards, m.order = []shard{{filepath.Base(files[0]), f}}, []int32{0}
		return m, nil
	}
	for _, f := range files {
		m.shards = append(m.shards, shard{name: filepath.Base(f)})
	}
	dir, _ := filepath.Split(files[0])
	if err := m.openShards(func(name string) (*File, error) { return Open(inDir(dir, name), opts...) }); err != nil {
		return nil, err
	}
	if err := m.placeAll(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// placeAll makes all tensors of all shards those of the model.
func (m *Model) placeAll() error {
	m.where = newPlaces()
	for _, i := range m.order {
		h := m.shards[i].file.header
		for k := range h.tensors {
			if !addPlace(m.where, []byte(h.name(&h.tensors[k]))) {
				return fmt.Errorf("safetensors: %s: too many tensors", quoteName(m.path))
			}
			m.where.tensors[len(m.where.tensors)-1].begin = int64(i)
		}
	}
	var twice *FormatError
	if !errors.As(m.where.buildIndex(false), &twice) {
		return nil
	}
	var in []string
	for _, i := range m.order {
		if m.shards[i].file.header.find(twice.Tensor) >= 0 {
			in = append(in, quoteName(m.shards[i].name))
		}
	}
	return &FormatError{Kind: ErrIndexDuplicateTensor, File: m.path, Tensor: twice.Tensor, Offset: -1,
		Want: "each tensor in one file, or an index that decides", Got: "it in " + strings.Join(in, " and in ")}
}

var numbered = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(.*)-(\d{5,})-of-(\d{5,})\.safetensors$`)
})

// checkNumbers refuses numbered shards of which one is missing.
func (m *Model) checkNumbers(files []string) error {
	sets := map[[2]string]int{}
	there := map[string]bool{}
	for _, f := range files {
		name := filepath.Base(f)
		there[name] = true
		if part := numbered().FindStringSubmatch(name); part != nil {
			sets[[2]string{part[1], part[3]}]++
		}
	}
	for set, have := range sets {
		n, err := strconv.Atoi(set[1])
		if err != nil || n == have {
			continue
		}
		var missing []string
		for i := 1; i <= n && len(missing) < mostListed; i++ {
			if name := fmt.Sprintf("%s-%05d-of-%s%s", set[0], i, set[1], fileSuffix); !there[name] {
				missing = append(missing, name)
			}
		}
		if missing == nil {
			continue
		}
		if n-have > len(missing) {
			missing = append(missing, "…")
		}
		return &FormatError{Kind: ErrIndexMissingShard, File: m.path, Offset: -1,
			Want: fmt.Sprintf("all %d shards", n), Got: fmt.Sprintf("%d missing: %s", n-have, strings.Join(quoteNames(missing), ", "))}
	}
	return nil
}

// NewModel reads an index file from r and opens each shard that it names
// through open, which gets the name as the index has it, is called by several
// goroutines at once, and returns an error that wraps [fs.ErrNotExist] for a
// shard that is not there. It is for models that are not in a folder: on a
// server, or in an [fs.FS]. All that [OpenModel] says of an index holds. On an
// error the files that open returned are closed.
func NewModel(index io.Reader, open func(shard string) (*File, error), opts ...Option) (*Model, error) {
	return modelOf("", index, open, optionsOf(opts))
}

func modelOf(path string, index io.Reader, open func(string) (*File, error), o options) (*Model, error) {
	x, err := readIndex(index, o.maxHeader)
	if err != nil {
		return nil, err
	}
	m := &Model{index: path, path: path, where: x.where, metadata: x.metadata, total: x.total}
	for _, name := range x.shards {
		m.shards = append(m.shards, shard{name: name})
	}
	if err := m.openShards(open); err != nil {
		return nil, err
	}
	if err := m.bind(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// openShards opens all shards, or none.
func (m *Model) openShards(open func(string) (*File, error)) error {
	m.order = make([]int32, len(m.shards))
	for i := range m.order {
		m.order[i] = int32(i)
	}
	slices.SortFunc(m.order, func(a, b int32) int { return compareNatural(m.shards[a].name, m.shards[b].name) })

	// More than there are processors: on a cold disk or over a network they wait.
	const openers = 16
	errs := make([]error, len(m.shards))
	next := make(chan int32)
	var wg sync.WaitGroup
	for range min(openers, len(m.shards)) {
		wg.Go(func() {
			for i := range next {
				m.shards[i].file, errs[i] = open(m.shards[i].name)
			}
		})
	}
	for _, i := range m.order {
		next <- i
	}
	close(next)
	wg.Wait()

	var missing []string
	var bad []error
	for _, i := range m.order {
		switch err := errs[i]; {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, m.shards[i].name)
		default:
			bad = append(bad, asShardError(m.shards[i].name, err))
		}
	}
	if missing != nil {
		bad = append([]error{&FormatError{Kind: ErrIndexMissingShard, File: m.path, Offset: -1,
			Want: fmt.Sprintf("all %d shards", len(m.shards)),
			Got:  fmt.Sprintf("%d missing: %s", len(missing), strings.Join(quoteNames(missing), ", "))}}, bad...)
	}
	if bad == nil {
		return nil
	}
	m.Close()
	return join(bad)
}

// bind checks that every tensor of the index is in its shard.
func (m *Model) bind() error {
	var missing []string
	for i := range m.where.tensors {
		t := &m.where.tensors[i]
		if name := m.where.name(t); m.shards[t.begin].file.header.find(name) < 0 {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	slices.SortFunc(missing, compareNatural)
	var errs []error
	for _, name := range missing[:min(len(missing), mostListed)] {
		i, _ := m.place(name)
		e := &FormatError{Kind: ErrIndexMissingTensor, File: m.index, Tensor: name, Offset: -1,
			Want: "it in " + quoteName(m.shards[i].name) + ", which the index names", Got: "no such tensor there"}
		for _, i := range m.order {
			if m.shards[i].file.header.find(name) >= 0 {
				e.Hint = "it is in " + quoteName(m.shards[i].name)
			}
		}
		errs = append(errs, e)
	}
	if more := len(missing) - mostListed; more > 0 {
		errs = append(errs, &FormatError{Kind: ErrIndexMissingTensor, File: m.index, Offset: -1,
			Want: "each tensor in the shard that the index names", Got: fmt.Sprintf("%d more that are not", more)})
	}
	return join(errs)
}

// place returns the shard that a tensor comes from.
func (m *Model) place(name string) (int32, bool) {
	h := m.where
	if h == nil {
		return 0, m.shards[0].file.header.find(name) >= 0
	}
	i := h.find(name)
	if i < 0 {
		return 0, false
	}
	return int32(h.tensors[i].begin), true
}

// asShardError says of what is wrong with a file that it is a shard; that it
// cannot be read is not.
func asShardError(name string, err error) error {
	var fe *FormatError
	if !errors.As(err, &fe) {
		return fmt.Errorf("safetensors: shard %s: %w", quoteName(name), err)
	}
	e := *fe
	e.Kind, e.Cause, e.File = ErrShardInvalid, fe.Kind, cmp.Or(fe.File, name)
	return &e
}

// Tensor returns the tensor of that name, in constant time and without touching
// its data. No such name is an error that wraps [ErrNotFound] and names close
// matches.
func (m *Model) Tensor(name string) (Tensor, error) {
	if m.where == nil {
		return m.shards[0].file.Tensor(name)
	}
	i, ok := m.place(name)
	if !ok {
		if len(m.shards) > 0 && m.shards[0].file.closed.Load() {
			return Tensor{}, fmt.Errorf("safetensors: %s: %w", quoteName(m.path), ErrClosed)
		}
		return Tensor{}, &notFoundError{name: name, file: m.path, header: m.where}
	}
	return m.shards[i].file.Tensor(name)
}

// All returns the tensors with their names: shard by shard in the order of
// [Model.Shards], and within a shard in data order.
func (m *Model) All() iter.Seq2[string, Tensor] {
	return func(yield func(string, Tensor) bool) {
		for _, i := range m.order {
			for name, t := range m.shards[i].file.All() {
				if m.has(i, name) && !yield(name, t) {
					return
				}
			}
		}
	}
}

// has reports whether the tensor of that name comes from shard i, which has one.
func (m *Model) has(i int32, name string) bool {
	at, ok := m.place(name)
	return ok && at == i
}

// Names returns the names of the tensors in the order of [Model.All].
func (m *Model) Names() []string {
	names := make([]string, 0, m.Len())
	for name := range m.All() {
		names = append(names, name)
	}
	return names
}

// Len returns the number of tensors.
func (m *Model) Len() int {
	if m.where == nil {
		return m.shards[0].file.Len()
	}
	return len(m.where.tensors)
}

// Metadata returns the __metadata__ of all shards in one map, and the strings
// of the index's metadata, which some writers put there instead: nil where there
// is none. Where a key has several values, the one of the first shard counts,
// and that of the index last.
func (m *Model) Metadata() map[string]string {
	all := maps.Clone(m.metadata)
	for _, i := range slices.Backward(m.order) {
		of := m.shards[i].file.header.metadata
		if all == nil && of != nil {
			all = map[string]string{}
		}
		maps.Copy(all, of)
	}
	return all
}

// Shards returns the files of the model with their names as the index has them,
// sorted by name, numbers by their value. Only tensors for which [Model.Shard]
// gives that name belong to the model.
func (m *Model) Shards() iter.Seq2[string, *File] {
	return func(yield func(string, *File) bool) {
		for _, i := range m.order {
			if !yield(m.shards[i].name, m.shards[i].file) {
				return
			}
		}
	}
}

// Shard returns the name of the shard that a tensor comes from, and whether
// there is such a tensor.
func (m *Model) Shard(tensor string) (string, bool) {
	i, ok := m.place(tensor)
	if !ok {
		return "", false
	}
	return m.shards[i].name, true
}

// Load reads the named tensors, or all without names, into memory of their own,
// one allocation for each shard; see [File.Load].
func (m *Model) Load(ctx context.Context, names ...string) (map[string]Tensor, error) {
	parts, err := m.parts(names)
	if err != nil {
		return nil, err
	}
	all := map[string]Tensor{}
	for _, p := range parts {
		some, err := p.file.Load(ctx, p.names...)
		if err != nil {
			return nil, err
		}
		if len(parts) == 1 {
			return some, nil
		}
		maps.Copy(all, some)
	}
	return all, ctx.Err()
}

// Prefetch brings the named tensors, or all without names, into the system's
// cache and into the maps; see [File.Prefetch].
func (m *Model) Prefetch(ctx context.Context, names ...string) error {
	parts, err := m.parts(names)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := p.file.Prefetch(ctx, p.names...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Stream calls fn for the named tensors, or all without names, in the order of
// [Model.All], while the next ones are already on their way; see [File.Stream].
func (m *Model) Stream(ctx context.Context, fn func(name string, t Tensor) error, names ...string) error {
	parts, err := m.parts(names)
	if err != nil {
		return err
	}
	var ahead sync.WaitGroup
	defer ahead.Wait()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	for i, p := range parts {
		ahead.Wait()
		if i+1 < len(parts) {
			next := parts[i+1]
			// What goes wrong here shows again when the tensors are read.
			ahead.Go(func() { _ = next.file.Prefetch(reading, next.first(streamAhead)...) })
		}
		if err := p.file.Stream(ctx, fn, p.names...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// A part is what is wanted of one shard; no names are all.
type part struct {
	file  *File
	names []string
}

// parts says which tensors are wanted of which shards, in the order of All.
func (m *Model) parts(names []string) ([]part, error) {
	if m.where == nil {
		return []part{{m.shards[0].file, names}}, nil
	}
	of := make([][]string, len(m.shards))
	for _, name := range names {
		i, ok := m.place(name)
		if !ok {
			_, err := m.Tensor(name)
			return nil, err
		}
		of[i] = append(of[i], name)
	}
	var parts []part
	for _, i := range m.order {
		if len(names) == 0 {
			for name := range m.shards[i].file.All() {
				if m.has(i, name) {
					of[i] = append(of[i], name)
				}
			}
		}
		if len(of[i]) > 0 {
			parts = append(parts, part{m.shards[i].file, of[i]})
		}
	}
	return parts, nil
}

// first returns names of tensors that together have at most most bytes; at
// least one.
func (p part) first(most int64) []string {
	for n, name := range p.names {
		if t, err := p.file.Tensor(name); err == nil {
			if most -= t.size; most < 0 && n > 0 {
				return p.names[:n]
			}
		}
	}
	return p.names
}

// Close closes all shards. Slices that Bytes and View returned end here; see
// [File.Close].
func (m *Model) Close() error {
	var errs []error
	for i := range m.shards {
		if f := m.shards[i].file; f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// A Finding is one thing that [Model.Verify] has to report.
type Finding struct {
	*FormatError
	// Warning marks what no reader stumbles over.
	Warning bool
}

// Verify compares the index with the headers of the shards and returns what is
// not as it should be. That a tensor is missing from its shard keeps a model
// from being opened, so what is left to find are tensors that a shard has and
// the index does not ([ErrIndexUnlistedTensor]: readers that go by shard would
// load them), tensors in two shards ([ErrIndexDuplicateTensor], a warning, since
// the index decides), and a total_size that is not the sum of the tensors'
// bytes ([ErrIndexTotalSize], a warning, since no reader relies on it). A model
// without an index has nothing to compare.
func (m *Model) Verify() []Finding {
	if m.where == nil {
		return nil
	}
	var findings []Finding
	var total int64
	for _, i := range m.order {
		shard := m.shards[i]
		for name, t := range shard.file.All() {
			at, listed := m.place(name)
			switch {
			case listed && at == i:
				total += t.Size()
			case listed:
				findings = append(findings, Finding{Warning: true, FormatError: &FormatError{
					Kind: ErrIndexDuplicateTensor, File: m.index, Tensor: name, Offset: -1,
					Want: "it only in " + quoteName(m.shards[at].name) + ", which the index names",
					Got:  "it also in " + quoteName(shard.name)}})
			default:
				findings = append(findings, Finding{FormatError: &FormatError{
					Kind: ErrIndexUnlistedTensor, File: m.index, Tensor: name, Offset: -1,
					Want: "it in the index", Got: "it only in " + quoteName(shard.name)}})
			}
		}
	}
	if m.total != "" && !equalsNumber(m.total, total) {
		findings = append(findings, Finding{Warning: true, FormatError: &FormatError{
			Kind: ErrIndexTotalSize, File: m.index, Offset: -1,
			Want: fmt.Sprintf("a total_size of %d, the sum of the tensors", total), Got: m.total}})
	}
	return findings
}

// equalsNumber compares a JSON number, which may be written as a float.
func equalsNumber(text string, n int64) bool {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v == n
	}
	v, err := strconv.ParseFloat(text, 64)
	return err == nil && v == float64(n)
}

// mostListed is how many names an error lists.
const mostListed = 20

// listed joins names for an error.
func listed(names []string) string {
	quoted := quoteNames(names[:min(len(names), mostListed)])
	if more := len(names) - len(quoted); more > 0 {
		quoted = append(quoted, fmt.Sprintf("%d more", more))
	}
	return strings.Join(quoted, ", ")
}

func quoteNames(names []string) []string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteName(name)
	}
	return quoted
}

// join is errors.Join that leaves a single error as it is.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
