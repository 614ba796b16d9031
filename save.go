package safetensors

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Save writes the tensors to the named file, in the bytes that [Write] gives.
//
// It writes a temporary file in the same folder, syncs it, renames it over the
// name and syncs the folder: killed at any moment, there is the old file or the
// new one. On an error the old file is untouched and the temporary one is gone.
// The permissions of a file that is replaced are kept; a new one follows the
// umask. A symbolic link stays, and what it points to is replaced. Saving onto
// a file that is open is fine, whose tensors may be among those saved, save on
// Windows, which refuses to replace a file that is mapped.
func Save(name string, tensors map[string]Tensor, opts ...SaveOption) error {
	o, err := saveOptionsOf(opts)
	if err != nil {
		return err
	}
	l, err := layOut(tensors, o)
	if err != nil {
		return inFile(err, name)
	}
	if o.inPlace {
		return l.saveInPlace(name, o)
	}
	return l.save(name, o)
}

func (l *layout) save(name string, o saveOptions) error {
	return replaceFile(name, func(f *os.File) error {
		return l.writeFile(f, o)
	})
}

// replaceFile puts what fill writes in the place of the named file, or changes
// nothing.
func replaceFile(name string, fill func(*os.File) error) (err error) {
	target, old, err := replaceTarget(name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o666)
	if old != nil {
		mode = old.Mode().Perm()
	}
	temp, err := createTemp(target, mode)
	if err != nil {
		return fmt.Errorf("safetensors: saving %s: %w", quoteName(name), err)
	}
	replaced := false
	defer func() {
		if !replaced { // a panic in fill may be why
			temp.Close()
			os.Remove(temp.Name())
		}
		if err != nil {
			err = fmt.Errorf("safetensors: saving %s: %w", quoteName(name), err)
		}
	}()
	if err := fill(temp); err != nil {
		return err
	}
	if old != nil && runtime.GOOS != "windows" {
		// The umask may have taken bits that the old file has.
		info, err := temp.Stat()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != mode {
			if err := temp.Chmod(mode); err != nil {
				return fmt.Errorf("keeping the permissions: %w", err)
			}
		}
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), target); err != nil {
		return renameError(err, old != nil)
	}
	replaced = true
	syncDir(target)
	return nil
}

// renameError says what most often lies behind a failed rename.
func renameError(err error, replaces bool) error {
	if runtime.GOOS == "windows" && replaces {
		return fmt.Errorf("%w (is it open or mapped? Close a File of it first: Windows does not replace a file that is mapped)", err)
	}
	return fmt.Errorf("%w (WithInPlace writes without renaming)", err)
}

// replaceTarget follows symbolic links to the file that will be replaced, which
// need not exist.
func replaceTarget(name string) (target string, old fs.FileInfo, err error) {
	target = name
	for range 40 {
		info, err := os.Lstat(target)
		if errors.Is(err, fs.ErrNotExist) {
			return target, nil, nil
		}
		if err != nil {
			return "", nil, fmt.Errorf("safetensors: saving %s: %w", quoteName(name), err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return target, info, regular(target, info)
		}
		link, err := os.Readlink(target)
		if err != nil {
			return "", nil, fmt.Errorf("safetensors: saving %s: %w", quoteName(name), err)
		}
		if !filepath.IsAbs(link) {
			// Not Join: "..", after a link, is for the system to resolve.
			dir, _ := filepath.Split(target)
			link = dir + link
		}
		target = link
	}
	return "", nil, fmt.Errorf("safetensors: saving %s: too many symbolic links", quoteName(name))
}

// createTemp makes a new file beside target. Unlike os.CreateTemp it leaves the
// permissions to the umask.
func createTemp(target string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(target)
	if len(base) > 100 {
		// Names have a limit of 255 bytes on most systems, and some take only UTF-8.
		base = strings.ToValidUTF8(base[:100], "")
	}
	for try := 0; ; try++ {
		name := dir + "." + base + ".tmp-" + strconv.FormatUint(rand.Uint64(), 36)
		// Write permission is needed until the file is whole.
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode|0o200)
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return f, err
		}
	}
}

// syncDir makes a rename to target last. Not every system can, and the file
// itself is whole either way, so a failure is no error.
func syncDir(target string) {
	dir, _ := filepath.Split(target) // not Dir, which would drop a ".." after a link
	if d, err := os.Open(cmp.Or(dir, ".")); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

func (l *layout) saveInPlace(name string, o saveOptions) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: saving %s in place: %w", quoteName(name), err)
		}
	}()
	if info, err := os.Stat(name); err == nil {
		for _, e := range l.entries {
			if f := fileOf(e.src); f != nil && f.info != nil && os.SameFile(f.info, info) {
				return fmt.Errorf("tensor %s comes from that file", quote(e.name))
			}
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := l.writeFile(f, o); err != nil {
		return err
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil // pipes and devices do not sync
	}
	return f.Sync()
}

// fileOf returns the open file that a source reads from, if there is one.
func fileOf(s source) *File {
	f, _ := bottom(s).(*File)
	return f
}
