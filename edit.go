package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"
)

// UpdateMetadata has change edit the __metadata__ of the file at path, which is
// an empty map where there is none; an error of change ends it and nothing is
// written. A map that change leaves empty is no metadata.
//
// The file is replaced as [Save] replaces it, by one whose data the system
// copies where it can. A data start that was aligned beyond the usual 8 bytes
// stays aligned, unless [WithAlignment] says otherwise. With [WithInPlace], and
// if the new header fits in the place of the old one, thanks to its padding,
// only the header is written over: that takes no time, but a write that fails
// midway leaves a broken file. If it does not fit, the file is replaced.
//
// If path is the folder or the index of a model, as [OpenModel] takes it, change
// edits the metadata of each shard, and the strings in the index's metadata,
// where what it adds is left out. All of it is called for before the first file
// is replaced, the index last: if that is interrupted, some have the new
// metadata, the others the old, and the model is whole.
func UpdateMetadata(path string, change func(map[string]string) error, opts ...SaveOption) (err error) {
	o, err := saveOptionsOf(opts)
	if err != nil {
		return err
	}
	m, err := OpenModel(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var edits []*metadataEdit
	var done, total int64
	for _, f := range m.Shards() {
		e, err := editMetadata(f, change, opts)
		if err != nil {
			return err
		}
		edits = append(edits, e)
		total += e.l.total
	}
	var index []byte
	if m.index != "" {
		text, err := os.ReadFile(m.index)
		if err != nil {
			return fmt.Errorf("safetensors: %w", err)
		}
		if index, err = editIndex(text, change); err != nil {
			return inFile(err, m.index)
		}
	}
	for _, e := range edits {
		if o.progress != nil {
			e.o.progress = func(n, _ int64) { o.progress(done+n, total) }
		}
		if err := e.save(); err != nil {
			return err
		}
		if done += e.l.total; o.progress != nil {
			o.progress(done, total)
		}
	}
	switch {
	case index == nil:
		return nil
	case o.inPlace:
		return os.WriteFile(m.index, index, 0o666)
	}
	return replaceFile(m.index, func(out *os.File) error {
		_, err := out.Write(index)
		return err
	})
}

// A metadataEdit is a file that gets other metadata.
type metadataEdit struct {
	f        *File
	metadata map[string]string
	o        saveOptions
	l        *layout
}

func editMetadata(f *File, change func(map[string]string) error, opts []SaveOption) (*metadataEdit, error) {
	had := f.Metadata()
	metadata := maps.Clone(had)
	if metadata == nil {
		metadata = map[string]string{}
	}
	if err := change(metadata); err != nil {
		return nil, err
	}
	if len(metadata) == 0 && (had == nil || len(had) > 0) {
		metadata = nil
	}
	o, err := saveOptionsOf(append([]SaveOption{WithAlignment(f.header.alignment())}, opts...))
	if err != nil {
		return nil, err
	}
	o.metadata = metadata
	l, err := layOut(maps.Collect(f.All()), o)
	if err != nil {
		return nil, inFile(err, f.name)
	}
	return &metadataEdit{f, metadata, o, l}, nil
}

func (e *metadataEdit) save() error {
	if e.o.inPlace {
		if head := e.f.header.headWith(e.metadata); head != nil {
			return writeHead(e.f, e.f.name, head)
		}
	}
	return replaceFile(e.f.name, func(out *os.File) error {
		return errors.Join(e.l.writeFile(out, e.o), e.f.Close()) // Windows replaces no file that is open
	})
}

// alignment returns what the file's data seems to have been aligned to on
// purpose.
func (h *Header) alignment() int {
	const most = 64 << 10
	n := 8
	// A writer that pads to 8 bytes never pads by as many.
	if bytes.HasSuffix(h.text, []byte("        ")) {
		for n < most && h.DataStart()%int64(2*n) == 0 {
			n *= 2
		}
	}
	return n
}

// headWith returns length and header of the file with other metadata in as many
// bytes as they have, or nil if they do not fit.
func (h *Header) headWith(metadata map[string]string) []byte {
	b := append(make([]byte, 8, h.DataStart()), '{')
	if metadata != nil {
		b = appendMetadata(b, metadata)
	}
	for i := range h.tensors {
		if i > 0 || metadata != nil {
			b = append(b, ',')
		}
		t := &h.tensors[i]
		b = appendEntry(b, entry{h.name(t), Tensor{dtype: t.dtype, shape: h.shape(t)}}, t.begin, t.end)
	}
	b = append(b, '}')
	room := h.DataStart() - int64(len(b))
	if room < 0 {
		return nil
	}
	binary.LittleEndian.PutUint64(b, uint64(h.size))
	return append(b, strings.Repeat(" ", int(room))...)
}

// writeHead writes over the first bytes of the named file, which f has open.
func writeHead(f *File, name string, head []byte) (err error) {
	fail := func(err error) error {
		return fmt.Errorf("safetensors: changing the header of %s in place: %w", quoteName(name), err)
	}
	out, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if closed := out.Close(); closed != nil && err == nil {
			err = fail(closed)
		}
	}()
	if info, err := out.Stat(); err != nil {
		return fail(err)
	} else if !os.SameFile(info, f.info) || info.Size() != f.info.Size() {
		return fail(errors.New("it was replaced in the meantime"))
	}
	if _, err := out.WriteAt(head, 0); err != nil {
		return fail(err)
	}
	if err := out.Sync(); err != nil {
		return fail(err)
	}
	return nil
}

// Keep returns the tensors whose names match one of the patterns, which are
// those of [path.Match], save that '*' and '?' match a '/' too: a name is not a
// path. A pattern that matches no tensor, a slip more often than not, is an error
// that wraps [ErrNotFound].
func Keep(tensors map[string]Tensor, patterns ...string) (map[string]Tensor, error) {
	return filter(tensors, patterns, true)
}

// Drop returns the tensors whose names match none of the patterns, which are as
// in [Keep].
func Drop(tensors map[string]Tensor, patterns ...string) (map[string]Tensor, error) {
	return filter(tensors, patterns, false)
}

func filter(tensors map[string]Tensor, patterns []string, keep bool) (map[string]Tensor, error) {
	hits := make([]bool, len(patterns))
	rest := map[string]Tensor{}
	for name, t := range tensors {
		matched := false
		for i, pattern := range patterns {
			ok, err := matchName(pattern, name)
			if err != nil {
				return nil, err
			}
			if ok {
				matched, hits[i] = true, true
			}
		}
		if matched == keep {
			rest[name] = t
		}
	}
	for i, hit := range hits {
		if !hit {
			if _, err := matchName(patterns[i], ""); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("safetensors: pattern %s: %w among %d", quote(patterns[i]), ErrNotFound, len(tensors))
		}
	}
	return rest, nil
}

// matchName is path.Match for names, in which '/' is a character like others.
func matchName(pattern, name string) (bool, error) {
	// A place holder that no name has: names are UTF-8, and this is no character.
	const slash = "\U0010ffff"
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(name, "/", slash))
	if err != nil {
		return false, fmt.Errorf("safetensors: pattern %s: %w", quote(pattern), err)
	}
	return ok, nil
}

// Rename returns the tensors under the names that rename gives them. Two that
// would have the same name are an error that wraps [ErrBadName].
func Rename(tensors map[string]Tensor, rename func(name string) string) (map[string]Tensor, error) {
	renamed := make(map[string]Tensor, len(tensors))
	from := make(map[string]string, len(tensors))
	for name, t := range tensors {
		to := rename(name)
		if other, twice := from[to]; twice {
			return nil, &FormatError{Kind: ErrBadName, Tensor: to, Offset: -1, Want: "a name for each tensor",
				Got: "it for " + quote(min(name, other)) + " and for " + quote(max(name, other))}
		}
		from[to] = name
		renamed[to] = t
	}
	return renamed, nil
}

// Merge returns the tensors of all parts in one map. A name that two of them
// have, the first if several are, is an error that wraps [ErrBadName] and names
// the files that they come from.
func Merge(parts ...map[string]Tensor) (map[string]Tensor, error) {
	merged := map[string]Tensor{}
	of := map[string]int{}
	var clash *FormatError
	for i, part := range parts {
		for name, t := range part {
			if other, twice := merged[name]; twice {
				if clash == nil || name < clash.Tensor {
					clash = &FormatError{Kind: ErrBadName, Tensor: name, Offset: -1, Want: "each name in one part",
						Got: "it in " + origin(other, of[name]) + " and in " + origin(t, i)}
				}
				continue
			}
			merged[name], of[name] = t, i
		}
	}
	if clash != nil {
		return nil, clash
	}
	return merged, nil
}

// origin says where a tensor of a part comes from.
func origin(t Tensor, part int) string {
	if f := fileOf(t.src); f != nil && f.name != "" {
		return quoteName(f.name)
	}
	return fmt.Sprintf("part %d", part+1)
}

// MergeMetadata returns the metadata of all parts in one map, nil if none has
// any. A key that has two values is an error.
func MergeMetadata(parts ...map[string]string) (map[string]string, error) {
	var merged map[string]string
	var clash, values string
	for _, part := range parts {
		if part != nil && merged == nil {
			merged = map[string]string{}
		}
		for k, v := range part {
			other, twice := merged[k]
			if !twice {
				merged[k] = v
			} else if other != v && (values == "" || k < clash) {
				clash, values = k, quote(other)+" and "+quote(v)
			}
		}
	}
	if values != "" {
		return nil, fmt.Errorf("safetensors: metadata key %s: want one value, got %s", quote(clash), values)
	}
	return merged, nil
}
