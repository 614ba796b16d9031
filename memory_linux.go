package safetensors

import "golang.org/x/sys/unix"

// populate brings the pages of a map in. The system must know
// MADV_POPULATE_READ (Linux 5.14), which reports what would be a fault.
func populate(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_READ)
		switch err {
		case unix.EINTR, unix.EAGAIN:
		case unix.EINVAL:
			// Not known: start the reads at least, for the caller to wait for.
			_ = unix.Madvise(mem, unix.MADV_WILLNEED)
			return err
		default:
			return err
		}
	}
}

// adviseHuge asks for huge pages behind memory that was not touched yet.
func adviseHuge(mem []byte) { _ = unix.Madvise(mem, unix.MADV_HUGEPAGE) }
