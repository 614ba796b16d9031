package safetensors

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// copyLeast is the size from which a copy by the system is worth its calls.
const copyLeast = 256 << 10

// mostOpen is how many files are open for copying at once: a model may have
// more shards than a process may have descriptors.
const mostOpen = 16

// A copier has the system copy from other files, without the bytes passing
// through this process; file systems that can share them then do.
type copier struct {
	files map[*File]*os.File // nil: it cannot be had
	off   bool               // the system refused, so it is not asked again
}

// copy copies up to n bytes of f from off on to the end of out, and returns how
// many it did. What is left over is for the caller to write.
func (c *copier) copy(out *os.File, f *File, off, n int64) (int64, error) {
	if c.off || n < copyLeast {
		return 0, nil
	}
	in := c.open(f)
	if in == nil {
		return 0, nil
	}
	for {
		at := off
		m, err := unix.CopyFileRange(int(in.Fd()), &at, int(out.Fd()), nil, int(min(n, 64*blockSize)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EIO)):
			return 0, os.NewSyscallError("copy_file_range", err)
		case err != nil || m == 0:
			c.off = true
			return 0, nil
		default:
			return int64(m), nil
		}
	}
}

// open returns a descriptor of the very file that f has open, or nil.
func (c *copier) open(f *File) *os.File {
	if f.file != nil {
		return f.file
	}
	if in, known := c.files[f]; known {
		return in
	}
	if c.files == nil || len(c.files) == mostOpen {
		c.close()
		c.files = map[*File]*os.File{}
	}
	c.files[f] = f.reopen()
	return c.files[f]
}

func (c *copier) close() {
	for _, in := range c.files {
		if in != nil {
			in.Close()
		}
	}
}

// startWriteback has the system begin to write n bytes of f from off on to the
// disk. It promises nothing: what must last is synced after it.
func startWriteback(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
