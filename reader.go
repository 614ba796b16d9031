package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync/atomic"
)

// A File is an open safetensors file, checked when it was opened: after that no
// read can go out of bounds. It is safe for use by many goroutines at once, and
// Close may be called while others read: they get [ErrClosed], not a fault.
type File struct {
	header *Header
	name   string      // as opened, or ""
	path   string      // absolute, where name is a file's
	info   fs.FileInfo // of the file as it was opened, or nil

	data   []byte      // the whole file in memory, or nil
	mapped bool        // data is a map
	r      io.ReaderAt // where data is nil
	file   *os.File    // r, where this File opened it

	// users counts the calls that touch data or file, and one for being open.
	// Whoever brings it to zero lets go of them, so Close never waits for a
	// slow reader and never pulls the memory from under it.
	users  atomic.Int64
	closed atomic.Bool
}

// Open maps the named file into memory and checks it. The cost is that of its
// header, whatever the size of the file, and the file's descriptor is closed
// again. Where the file system or the platform cannot map it, or with
// [WithoutMmap], it is read with plain reads instead and stays open.
//
// A file that breaks the format is a [*FormatError]. A directory, a pipe or a
// device is an error too; see [ReadHeader] for pipes. The caller closes the
// File. A file that someone replaces by renaming stays as it was for those who
// have it open; one that is changed in place changes under them.
func Open(name string, opts ...Option) (*File, error) {
	o := optionsOf(opts)
	osFile, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	f, err := newFile(osFile, name, o)
	if err != nil {
		osFile.Close()
		return nil, inFile(err, name)
	}
	return f, nil
}

// openRegular opens a file for reading. What it was before is looked at first,
// since opening a named pipe would wait for a writer.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if err := regular(name, info); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return f, nil
}

func regular(name string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return fmt.Errorf("safetensors: %s is a directory, not a file", quoteName(name))
	case mode&fs.ModeNamedPipe != 0:
		return fmt.Errorf("safetensors: %s is a named pipe: only its header can be read, with ReadHeader", quoteName(name))
	case !mode.IsRegular():
		return fmt.Errorf("safetensors: %s is not a regular file (%v)", quoteName(name), mode.Type())
	}
	return nil
}

func newFile(osFile *os.File, name string, o options) (*File, error) {
	info, err := osFile.Stat()
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if err := regular(name, info); err != nil {
		return nil, err
	}
	f, err := open(osFile, info.Size(), o)
	if err != nil {
		return nil, err
	}
	f.name, f.info = name, info
	if f.path, err = filepath.Abs(name); err != nil {
		f.path = ""
	}
	if !o.noMmap && int64(int(info.Size())) == info.Size() {
		if data, err := mmap(osFile, int(info.Size())); err == nil {
			f.data, f.mapped, f.r = data, true, nil
			osFile.Close() // nothing was written, so nothing can be lost
			return f, nil
		}
	}
	f.file = osFile
	return f, nil
}

// Parse checks data, the whole of a safetensors file, and returns a File over
// it: tensors share its memory, so the caller must not change it. Only the
// header is copied. It suits embedded files and tests.
func Parse(data []byte, opts ...Option) (*File, error) {
	f, err := open(bytes.NewReader(data), int64(len(data)), optionsOf(opts))
	if err != nil {
		return nil, err
	}
	f.data, f.r = data, nil
	return f, nil
}

// NewFile checks the header of the size bytes of r and returns a File that
// reads from r when bytes are needed. It never closes r.
func NewFile(r io.ReaderAt, size int64, opts ...Option) (*File, error) {
	return open(r, size, optionsOf(opts))
}

// open is what Open, Parse and NewFile share.
func open(r io.ReaderAt, size int64, o options) (*File, error) {
	h, err := readHeader(r, size, o)
	if err != nil {
		return nil, err
	}
	f := &File{header: h, r: r}
	f.users.Store(1)
	return f, nil
}

// Tensor returns the tensor of that name, in constant time and without touching
// its data. No such name is an error that wraps [ErrNotFound] and names close
// matches.
func (f *File) Tensor(name string) (Tensor, error) {
	if f.closed.Load() {
		return Tensor{}, f.errClosed()
	}
	i := f.header.find(name)
	if i < 0 {
		return Tensor{}, &notFoundError{name: name, file: f.name, header: f.header}
	}
	return f.at(i), nil
}

func (f *File) at(i int) Tensor {
	t := &f.header.tensors[i]
	return Tensor{dtype: t.dtype, shape: f.header.shape(t), src: f,
		off: f.header.DataStart() + t.begin, size: t.end - t.begin}
}

// All returns the tensors with their names in data order, which is the order to
// read them in.
func (f *File) All() iter.Seq2[string, Tensor] {
	return func(yield func(string, Tensor) bool) {
		for i := range f.header.tensors {
			if !yield(f.header.name(&f.header.tensors[i]), f.at(i)) {
				return
			}
		}
	}
}

// Names returns the names of the tensors in data order.
func (f *File) Names() []string {
	names := make([]string, len(f.header.tensors))
	for i := range names {
		names[i] = f.header.name(&f.header.tensors[i])
	}
	return names
}

// Len returns the number of tensors.
func (f *File) Len() int { return len(f.header.tensors) }

// Metadata returns a copy of the file's __metadata__: nil where there is none.
func (f *File) Metadata() map[string]string { return f.header.Metadata() }

// Header returns the file's header, which outlives Close.
func (f *File) Header() *Header { return f.header }

// Close lets go of the file. Slices that Bytes and View returned from a mapped
// file end here: touching one afterwards ends the process. Reads that are under
// way finish or give [ErrClosed], as all later ones do. Closing twice is fine.
func (f *File) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	return f.release()
}

// acquire keeps data and file until the matching release.
func (f *File) acquire() error {
	for {
		n := f.users.Load()
		if n == 0 || f.closed.Load() {
			return f.errClosed()
		}
		if f.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (f *File) release() error {
	if f.users.Add(-1) > 0 {
		return nil
	}
	if f.mapped {
		return munmap(f.data)
	}
	if f.file != nil {
		return f.file.Close()
	}
	return nil
}

func (f *File) errClosed() error { return f.wrap(ErrClosed) }

// wrap adds the file's name to an error.
func (f *File) wrap(err error) error {
	if err == nil {
		return nil
	}
	if f.name == "" {
		return fmt.Errorf("safetensors: %w", err)
	}
	return fmt.Errorf("safetensors: %s: %w", quoteName(f.name), err)
}

// read fills p with the bytes of the file at off.
func (f *File) read(p []byte, off int64) error {
	for len(p) > 0 {
		b := p[:min(len(p), blockSize)]
		if err := f.readBlock(b, off); err != nil {
			return err
		}
		p, off = p[len(b):], off+int64(len(b))
	}
	return nil
}

func (f *File) readBlock(p []byte, off int64) error {
	if err := f.acquire(); err != nil {
		return err
	}
	defer f.release()
	switch {
	case f.mapped:
		return f.wrap(guard(f.data, func() error {
			copy(p, f.data[off:])
			return nil
		}))
	case f.data != nil:
		copy(p, f.data[off:])
		return nil
	}
	if err := readFullAt(f.r, p, off); err != nil {
		return f.readError(err)
	}
	return nil
}

// readError makes an early end of a file that was long enough when it was
// opened an ErrFault.
func (f *File) readError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: the file was cut short while it was open: %w", ErrFault, err)
	}
	return f.wrap(err)
}

// writeTo writes n bytes of the file from off on to w. Into a file, the system
// copies where it can; else a map goes as it is, since there the system reports
// a fault as an error. Any other writer gets a copy, since it may hand what it
// gets to another goroutine.
func (f *File) writeTo(w io.Writer, off, n int64) (int64, error) {
	direct := w
	if f.mapped {
		direct = mapWriter(w)
	}
	var done int64
	for done < n {
		at, left := off+done, n-done
		m, err := f.copyTo(w, at, left)
		done += m
		if err != nil || m > 0 {
			if err != nil {
				return done, err
			}
			continue
		}
		if f.data == nil || direct == nil {
			m, err := copyBlocks(w, f, at, left, blockSize)
			return done + m, err
		}
		if err := f.acquire(); err != nil {
			return done, err
		}
		m, err = writeBlocks(direct, f.data[at:at+min(left, 16*blockSize)])
		f.release()
		done += m
		if err != nil {
			if f.mapped && isFault(err) {
				err = f.wrap(fmt.Errorf("%w: the file was cut short while it was mapped: %w", ErrFault, err))
			}
			return done, err
		}
	}
	return done, nil
}

// copyTo has the system copy some of the n bytes from off on, where w is the
// output of a file.
func (f *File) copyTo(w io.Writer, off, n int64) (int64, error) {
	out, ok := w.(*output)
	if !ok || out.file == nil || f.info == nil || n < smallTensor {
		return 0, nil
	}
	if err := errors.Join(out.flush(), out.ctx.Err()); err != nil {
		return 0, err
	}
	if err := f.acquire(); err != nil {
		return 0, err
	}
	defer f.release()
	m, err := out.copier.copy(out.file, f, off, n)
	if m > 0 {
		out.wrote(m)
	}
	return m, err
}

func (f *File) memory(off, n int64, use func([]byte) error) (bool, error) {
	if f.data == nil {
		return false, nil
	}
	if err := f.acquire(); err != nil {
		return true, err
	}
	defer f.release()
	if !f.mapped {
		return true, use(f.data[off : off+n])
	}
	var err error
	if fault := guard(f.data, func() error {
		err = use(f.data[off : off+n])
		return nil
	}); fault != nil {
		return true, f.wrap(fault)
	}
	return true, err
}
