package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// DefaultMaxShardSize is the size of a shard that [SaveModel] keeps to where
// nothing else is asked for: 5 GB, as huggingface_hub has it.
const DefaultMaxShardSize = 5_000_000_000

// WithMaxShardSize makes [SaveModel] begin a new shard where a tensor would bring
// the tensors of one over n bytes. A tensor over n bytes has a shard of its own.
// [ParseSize] reads sizes such as 5GB. The default is [DefaultMaxShardSize].
func WithMaxShardSize(n int64) SaveOption { return func(o *saveOptions) { o.maxShard = n } }

// WithOrder makes [SaveModel] go through the tensors in this order, which must
// name each of them once, to fill the shards. Within a shard they lie as the
// reference lays them out. Without it they go by name, with numbers compared by
// value, so that layer.2 comes before layer.10.
func WithOrder(names []string) SaveOption { return func(o *saveOptions) { o.order = names } }

// SaveModel writes the tensors to a folder, which is made if need be, in shards
// as huggingface_hub splits them: model-00001-of-00003.safetensors and so on,
// with model.safetensors.index.json, or model.safetensors alone if one will do.
// It returns the names of the files, the index last.
//
// The tensors fill one shard after the other in order (see [WithOrder]); a
// tensor over [WithMaxShardSize] gets a shard of its own at once while the one
// that is open stays open. The index is the file that huggingface_hub writes,
// byte for byte; metadata given by [WithMetadata] goes into every shard and, but
// for "format", also into the index.
//
// A model that is in the folder already is replaced. It is the .safetensors files
// in the folder itself that its model.safetensors.index.json names; without an
// index that can be read it is model.safetensors, else all files with names as
// above. They and the index are gone afterwards. Everything else stays, such as a
// variant with an index of its own, but for files of no model that have one of the
// new names. If a file that would be written is one that another index names, or
// if such an index cannot be read, nothing is done.
//
// Killed at any moment, the folder holds the old model or the new one whole, and
// [OpenModel] opens it: all shards are written and synced under hidden names
// first. Where the new names are free they are then renamed, and the new index
// makes them the model. Where the old model has the same names, an index of the
// hidden names comes first, then the final names become further (hard) links to
// the same files, and the final index follows; a file system without hard links
// gets copies. What is left behind by a killed SaveModel the next one removes.
// Two must not save into one folder at once.
//
// On an error before the new model is whole the old one is untouched. An error
// after that says that the new model is there. A shard that is a symbolic link,
// as in model caches, is replaced by a file, and what it points to is left
// alone. A file of the old model that is replaced keeps its permissions, and new
// names get those of its first file. Tensors may come from the model that is
// replaced, save on Windows, which does not replace a file that is mapped.
//
// With [WithInPlace], for file systems without rename, files are written over,
// and none of this holds.
func SaveModel(dir string, tensors map[string]Tensor, opts ...SaveOption) (files []string, err error) {
	o, err := saveOptionsOf(opts)
	if err != nil {
		return nil, err
	}
	s := modelSave{dir: dir, o: o}
	if err := s.plan(tensors); err != nil {
		return nil, inFile(err, dir)
	}
	made := missing(dir)
	err = os.MkdirAll(dir, 0o777)
	for _, d := range made {
		syncDir(d)
	}
	if err == nil {
		err = s.save()
	}
	if err != nil {
		for _, d := range made {
			os.Remove(d) // which is refused if something is in it
		}
		return nil, fmt.Errorf("safetensors: saving a model to %s: %w", quoteName(dir), err)
	}
	return s.files(), nil
}

// missing returns the folder and those around it that are not there, from the
// inmost outwards.
func missing(dir string) (made []string) {
	for {
		dir = strings.TrimRightFunc(dir, func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) })
		if dir == "" || exists(dir) {
			return made
		}
		made = append(made, dir)
		around, _ := filepath.Split(dir)
		if around == dir { // a drive
			return made
		}
		dir = around
	}
}

// A Shard is one file of a model, as [PlanModel] lays it out.
type Shard struct {
	Name    string   // of the file
	Tensors []string // in data order
	Size    int64    // of the file, in bytes
}

// PlanModel returns the shards that [SaveModel] would write, and refuses what it
// would refuse before the first byte. Nothing is read or written.
func PlanModel(tensors map[string]Tensor, opts ...SaveOption) ([]Shard, error) {
	o, err := saveOptionsOf(opts)
	if err != nil {
		return nil, err
	}
	s := modelSave{o: o}
	if err := s.plan(tensors); err != nil {
		return nil, err
	}
	shards := make([]Shard, len(s.layouts))
	for i, l := range s.layouts {
		shards[i] = Shard{s.names[i], make([]string, len(l.entries)), l.total}
		for j, e := range l.entries {
			shards[i].Tensors[j] = e.name
		}
	}
	return shards, nil
}

// A modelSave is a model that is being saved.
type modelSave struct {
	dir     string
	o       saveOptions
	names   []string   // of the shards
	tensors [][]string // of each shard
	layouts []*layout  // of each shard
	data    int64      // bytes of all tensors
	total   int64      // bytes of all shards
	temps   []string   // hidden files that were made: the shards, then the indexes
	tag     string     // what makes their names unique
	gone    []string   // files that go once the new model is there
	partial []string   // files that are not to stay if it never is

	old oldModel
	// The permissions of the old model's first file, if there is one.
	mode fs.FileMode
	kept bool
}

// plan settles everything that can be settled before the first byte.
func (s *modelSave) plan(tensors map[string]Tensor) error {
	if s.o.maxShard < 1 {
		return fmt.Errorf("safetensors: a shard size of %d: want at least 1 (math.MaxInt64 for one file)", s.o.maxShard)
	}
	order, err := saveOrder(tensors, s.o.order)
	if err != nil {
		return err
	}
	s.tensors = splitShards(order, s.o.maxShard, func(name string) int64 { return tensors[name].Size() })
	for i, names := range s.tensors {
		some := make(map[string]Tensor, len(names))
		for _, name := range names {
			some[name] = tensors[name]
		}
		l, err := layOut(some, s.o)
		if err != nil {
			return err
		}
		s.layouts = append(s.layouts, l)
		if s.total += l.total; s.total < 0 {
			return &FormatError{Kind: ErrSizeOverflow, Offset: -1, Want: "a model of at most 2^63-1 bytes", Got: "more"}
		}
		s.data += l.total - int64(len(l.head))
		if len(s.tensors) == 1 {
			s.names = []string{singleFile}
		} else {
			s.names = append(s.names, fmt.Sprintf("model-%05d-of-%05d%s", i+1, len(s.tensors), fileSuffix))
		}
	}
	return nil
}

// saveOrder returns the names of the tensors in the order that was asked for.
func saveOrder(tensors map[string]Tensor, asked []string) ([]string, error) {
	if asked == nil {
		return slices.SortedFunc(maps.Keys(tensors), compareNatural), nil
	}
	seen := make(map[string]bool, len(asked))
	for _, name := range asked {
		if _, ok := tensors[name]; !ok || seen[name] {
			got := "it twice"
			if !ok {
				got = "no such tensor"
			}
			return nil, &FormatError{Kind: ErrBadName, Tensor: name, Offset: -1, Want: "an order of the tensors that are saved, each once", Got: got}
		}
		seen[name] = true
	}
	if len(asked) < len(tensors) {
		missing := slices.Sorted(maps.Keys(tensors))
		name := missing[slices.IndexFunc(missing, func(name string) bool { return !seen[name] })]
		return nil, &FormatError{Kind: ErrBadName, Tensor: name, Offset: -1, Want: "an order of all tensors", Got: "one without it"}
	}
	return asked, nil
}

// splitShards splits names into shards of at most most bytes as huggingface_hub
// does. There is at least one shard.
func splitShards(names []string, most int64, size func(string) int64) [][]string {
	var shards [][]string
	var open []string
	var filled int64
	for _, name := range names {
		n := size(name)
		if n > most {
			shards = append(shards, []string{name})
			continue
		}
		if n > most-filled {
			shards = append(shards, open)
			open, filled = nil, 0
		}
		open = append(open, name)
		filled += n
	}
	if len(open) > 0 || len(shards) == 0 {
		shards = append(shards, open)
	}
	return shards
}

// files returns what is written.
func (s *modelSave) files() []string {
	if len(s.names) == 1 {
		return s.names
	}
	return append(slices.Clone(s.names), indexFile)
}

func (s *modelSave) path(name string) string { return inDir(s.dir, name) }

func (s *modelSave) sync() { syncDir(s.path("")) }

func (s *modelSave) save() error {
	var err error
	if s.old, err = s.oldModel(); err != nil {
		return err
	}
	s.old.has = map[string]bool{}
	for _, name := range s.old.shards {
		s.old.has[filepath.Clean(name)] = true
	}
	if err := s.checkNames(); err != nil {
		return err
	}
	s.settle()
	for _, name := range slices.Concat(s.old.shards, []string{indexFile}) {
		if info, err := os.Stat(s.path(name)); err == nil {
			s.mode, s.kept = info.Mode().Perm(), true
			break
		}
	}
	if s.o.inPlace {
		return s.saveInPlace()
	}
	s.tag = strconv.FormatUint(rand.Uint64(), 36)
	s.removeHidden()
	if err := s.writeShards(); err != nil {
		s.drop()
		return err
	}
	if s.free() {
		return s.rename()
	}
	return s.relink()
}

// An oldModel is what the folder holds before.
type oldModel struct {
	index  bool              // there is a model.safetensors.index.json
	shards []string          // its files
	has    map[string]bool   // the same, without detours in their names
	loose  bool              // all *.safetensors files together are the model
	others map[string]string // files that another index names, which is that
	left   []string          // files that a killed SaveModel was to remove
}

func (s *modelSave) oldModel() (oldModel, error) {
	old := oldModel{others: map[string]string{}}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return old, err
	}
	var named []string // as SaveModel names them
	for _, e := range entries {
		switch name := e.Name(); {
		case name == indexFile:
			old.index = true
		case isList(name):
			shards, _ := s.readShards(name) // it may be cut short
			old.left = append(old.left, shards...)
		case name[0] == '.':
		case isIndex(name):
			shards, err := s.readShards(name)
			if err != nil {
				return old, fmt.Errorf("which files are those of another model cannot be told: %w", err)
			}
			for _, shard := range shards {
				old.others[filepath.Clean(shard)] = name
				if target, ok := s.linked(shard); ok {
					old.others[target] = name
				}
			}
		case saved().MatchString(name) && !e.IsDir():
			named = append(named, name)
		}
	}
	if old.index {
		old.shards, err = s.readShards(indexFile)
		if fe := (*FormatError)(nil); err == nil || !errors.As(err, &fe) && !errors.Is(err, fs.ErrNotExist) { // a link may lead nowhere
			return old, err
		}
	} else if c, err := chooseIn(s.dir); err == nil {
		old.loose = c.index == nil && (len(c.files) > 1 || filepath.Base(c.files[0]) != singleFile)
		c.close()
	}
	old.shards = slices.DeleteFunc(named, func(name string) bool { return old.others[name] != "" })
	if slices.Contains(old.shards, singleFile) {
		old.shards = []string{singleFile}
	}
	return old, nil
}

// linked returns the file of the folder that a symbolic link in it leads to.
func (s *modelSave) linked(name string) (target string, ok bool) {
	path := s.path(filepath.FromSlash(name))
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return "", false
	}
	to, err := filepath.EvalSymlinks(path)
	dir, err2 := filepath.EvalSymlinks(s.dir)
	if err != nil || err2 != nil {
		return "", false
	}
	to, err = filepath.Abs(to)
	dir, err2 = filepath.Abs(dir)
	return filepath.Base(to), err == nil && err2 == nil && filepath.Dir(to) == dir
}

// readShards returns the files that an index in the folder names.
func (s *modelSave) readShards(index string) ([]string, error) {
	f, err := openRegular(s.path(index))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	x, err := readIndex(f, DefaultMaxHeaderSize)
	if err != nil {
		return nil, inFile(err, s.path(index))
	}
	return x.shards, nil
}

// checkNames refuses names of shards that are those of another model, or taken.
func (s *modelSave) checkNames() error {
	for _, name := range s.names {
		if index := s.old.others[name]; index != "" {
			return fmt.Errorf("%s is a shard of another model, that of %s", quoteName(name), quoteName(index))
		}
	}
	for _, name := range s.files() {
		if info, err := os.Lstat(s.path(name)); err == nil && info.IsDir() {
			return fmt.Errorf("%s is a directory", quoteName(name))
		}
	}
	return nil
}

// settle says what becomes of the files that are in the folder.
func (s *modelSave) settle() {
	for _, name := range s.names {
		if s.old.has[name] || !exists(s.path(name)) {
			s.partial = append(s.partial, name)
		}
	}
	of := maps.Clone(s.old.has)
	for _, name := range s.old.left {
		of[filepath.Clean(name)] = true
	}
	for _, name := range s.names {
		delete(of, name)
	}
	for name := range of {
		info, err := os.Lstat(s.path(name))
		if err == nil && !info.IsDir() && filepath.Base(name) == name && strings.HasSuffix(name, fileSuffix) && s.old.others[name] == "" {
			s.gone = append(s.gone, name)
		}
	}
	slices.Sort(s.gone)
}

// writeShards writes and syncs all shards under hidden names. While one is
// written, the one before is synced.
func (s *modelSave) writeShards() error {
	var done int64
	o := s.o
	synced := make(chan error, 1)
	synced <- nil
	wait := func(err error) error { return errors.Join(err, <-synced) }
	for i, l := range s.layouts {
		if s.o.progress != nil {
			o.progress = func(n, _ int64) { s.o.progress(done+n, s.total) }
		}
		f, err := s.create(s.names[i], "")
		if err != nil {
			return wait(err)
		}
		if err := l.writeFile(f, o); err != nil {
			return wait(errors.Join(fmt.Errorf("shard %s: %w", quoteName(s.names[i]), err), f.Close()))
		}
		if err := <-synced; err != nil {
			synced <- nil
			return wait(errors.Join(err, f.Close()))
		}
		go func() { synced <- errors.Join(f.Sync(), f.Close()) }()
		done += l.total
	}
	if err := wait(nil); err != nil {
		return err
	}
	s.sync()
	return nil
}

// hide returns a hidden name for a file, which use tells from others for it.
func (s *modelSave) hide(name, use string) string {
	ext := filepath.Ext(name)
	return "." + strings.TrimSuffix(name, ext) + ".save-" + s.tag + use + ext
}

// hidden knows what hide gives for the files of any model.
var hidden = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\.model(-\d{5,}-of-\d{5,})?(\.save-[0-9a-z]+\.safetensors|\.safetensors\.(index|old)\.save-[0-9a-z]+\.json)$`)
})

// The list of the files that the next SaveModel is to remove if this one is
// killed, unless they are those of the model then. It has the form of an index.
const listFile = singleFile + ".old.json"

// isHidden reports whether a SaveModel made that file.
func (s *modelSave) isHidden(e fs.DirEntry) bool {
	return hidden().MatchString(e.Name()) && !e.IsDir() && s.old.others[e.Name()] == ""
}

// isList knows a hidden [listFile].
func isList(name string) bool {
	return strings.HasPrefix(name, "."+singleFile+".old.") && hidden().MatchString(name)
}

// create makes a hidden file for that name, with the permissions of the one that
// has it now, or else of the old model.
func (s *modelSave) create(name, use string) (*os.File, error) {
	mode := fs.FileMode(0o666)
	if s.kept {
		mode = s.mode
	}
	info, err := os.Stat(s.path(name))
	there := err == nil && (!s.kept || name == indexFile || s.old.has[name])
	if there {
		mode = info.Mode().Perm()
	}
	f, err := os.OpenFile(s.path(s.hide(name, use)), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode|0o200)
	if err != nil {
		return nil, err
	}
	s.temps = append(s.temps, s.hide(name, use))
	if (there || s.kept) && runtime.GOOS != "windows" {
		if err := f.Chmod(mode); err != nil {
			return nil, errors.Join(fmt.Errorf("keeping the permissions: %w", err), f.Close())
		}
	}
	return f, nil
}

// drop removes the hidden files.
func (s *modelSave) drop() {
	for _, name := range s.temps {
		remove(s.path(name))
	}
}

// free reports whether the new shards can take their names without a change to
// the old model.
func (s *modelSave) free() bool {
	if len(s.names) == 1 {
		// Without an index, model.safetensors is the model, and a rename is enough.
		return !s.old.index || !s.old.has[singleFile]
	}
	return !s.old.loose && !slices.ContainsFunc(s.names, func(name string) bool { return exists(s.path(name)) })
}

// rename gives the shards their names, which the old model does not use, and
// then makes them the model.
func (s *modelSave) rename() (err error) {
	var named []string
	defer func() {
		if err == nil {
			return
		}
		s.drop()
		for _, name := range named {
			remove(s.path(name))
		}
	}()
	index, err := s.stage(s.names, "")
	if err != nil {
		return err
	}
	if err := s.list(); err != nil {
		return err
	}
	for i, name := range s.names {
		if err := rename(s.path(s.hide(name, "")), s.path(name)); err != nil {
			return renameError(err, len(s.names) == 1)
		}
		if i == 0 && len(s.names) == 1 {
			break // it may have replaced the old model, and is it then
		}
		named = append(named, name)
	}
	s.sync()
	if index != "" || s.old.index {
		if err := s.switchTo(index); err != nil {
			return err
		}
	}
	named, s.temps = nil, nil
	return s.removeOld()
}

// relink makes the hidden shards the model, then gives them their names, which
// the old model used, and makes those the model. Once it began nothing needs
// room on the disk, save copies where there are no links.
func (s *modelSave) relink() error {
	shards := slices.Clone(s.temps)
	hiddenIndex, err := s.stage(shards, "h")
	if err != nil {
		s.drop()
		return err
	}
	index, err := s.stage(s.names, "")
	if err == nil {
		err = s.list()
	}
	if err != nil {
		s.drop()
		return err
	}
	if err := s.switchTo(hiddenIndex); err != nil {
		s.drop()
		return err
	}
	whole := func(err error) error {
		return fmt.Errorf("the new model is whole, but its shards could not get their names and are hidden files, which the index names: %w", err)
	}
	for i, name := range s.names {
		if err := s.replace(name, shards[i]); err != nil {
			return whole(err)
		}
	}
	s.sync()
	if err := s.switchTo(index); err != nil {
		return whole(err)
	}
	return s.removeOld()
}

// replace makes name another name of the file from, or a copy.
func (s *modelSave) replace(name, from string) error {
	temp := s.path(s.hide(name, "l"))
	if err := link(s.path(from), temp); err != nil {
		if err := copyFile(temp, s.path(from)); err != nil {
			remove(temp)
			return err
		}
	}
	if err := rename(temp, s.path(name)); err != nil {
		remove(temp)
		return renameError(err, true)
	}
	return nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := out.ReadFrom(in); err != nil {
		return err
	}
	if runtime.GOOS != "windows" {
		if err := out.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
	}
	return out.Sync()
}

// stage writes the index of shards of these names as a hidden file and returns
// its name, or "" where there is no index in the end.
func (s *modelSave) stage(names []string, use string) (string, error) {
	if len(names) == 1 && names[0] == singleFile {
		return "", nil
	}
	return s.hide(indexFile, use), s.writeHidden(indexFile, use, s.index(names))
}

// list writes the [listFile].
func (s *modelSave) list() error {
	names := slices.Concat(s.gone, s.partial)
	each := make([][]string, len(names))
	for i, name := range names {
		each[i] = []string{name}
	}
	err := s.writeHidden(listFile, "", appendIndex(nil, 0, nil, names, each))
	s.sync()
	return err
}

func (s *modelSave) writeHidden(name, use string, text []byte) error {
	f, err := s.create(name, use)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// switchTo makes a staged index, or model.safetensors alone, the model.
func (s *modelSave) switchTo(index string) error {
	if index == "" {
		if err := remove(s.path(indexFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if err := rename(s.path(index), s.path(indexFile)); err != nil {
		return renameError(err, true)
	}
	s.sync()
	return nil
}

// What changes names in the folder, so that a test can stop it between any two
// calls.
var (
	rename = os.Rename
	link   = os.Link
	remove = os.Remove
)

func (s *modelSave) index(names []string) []byte {
	var metadata [][2]string
	for k, v := range s.o.metadata {
		if k != "format" && k != "total_size" {
			metadata = append(metadata, [2]string{k, v})
		}
	}
	slices.SortFunc(metadata, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return appendIndex(nil, s.data, metadata, names, s.tensors)
}

// saved knows the names that SaveModel and huggingface_hub give.
var saved = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^model(-\d{5,}-of-\d{5,})?\.safetensors$`)
})

// removeOld removes the files of the old model that are not of the new one, and
// then whatever is hidden.
func (s *modelSave) removeOld() error {
	var errs []error
	for _, name := range s.gone {
		if err := remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		errs = append(errs, err)
	}
	for _, e := range entries {
		// The list stays as long as something on it is there.
		if name := e.Name(); s.isHidden(e) && !(isList(name) && errs != nil) {
			if err := remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if errs != nil {
		return fmt.Errorf("the new model is whole, but files of the old one are left: %w", errors.Join(errs...))
	}
	return nil
}

// removeHidden removes what a killed SaveModel left behind, unless it is the
// model, to have its space back.
func (s *modelSave) removeHidden() {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		if name := e.Name(); s.isHidden(e) && !isList(name) && !s.old.has[name] {
			remove(s.path(name))
		}
	}
}

func (s *modelSave) saveInPlace() error {
	if err := s.checkSources(); err != nil {
		return err
	}
	for i, l := range s.layouts {
		if err := l.saveInPlace(s.path(s.names[i]), s.o); err != nil {
			return err
		}
	}
	if len(s.names) == 1 {
		if err := s.switchTo(""); err != nil {
			return err
		}
	} else if err := os.WriteFile(s.path(indexFile), s.index(s.names), 0o666); err != nil {
		return err
	}
	return s.removeOld()
}

// checkSources refuses tensors that come from files that would be written over
// before them.
func (s *modelSave) checkSources() error {
	infos := make([]fs.FileInfo, len(s.names))
	for i, name := range s.names {
		infos[i], _ = os.Stat(s.path(name))
	}
	written := map[*File]int{} // when a file is written over
	for i, l := range s.layouts {
		for _, e := range l.entries {
			f := fileOf(e.src)
			if f == nil || f.info == nil {
				continue
			}
			at, known := written[f]
			if !known {
				if at = slices.IndexFunc(infos, func(info fs.FileInfo) bool { return info != nil && os.SameFile(info, f.info) }); at < 0 {
					at = len(infos)
				}
				written[f] = at
			}
			if at <= i {
				return fmt.Errorf("tensor %s comes from %s, which is written over", quote(e.name), quoteName(s.names[at]))
			}
		}
	}
	return nil
}
