package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
	"golang.org/x/exp/mmap"
)

// saveTemp saves tensors as a file of its own.
func saveTemp(t *testing.T, tensors map[string]safetensors.Tensor) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, safetensors.Save(name, tensors))
	return name
}

// open_directory, among others.
func TestOpenWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := safetensors.Open(filepath.Join(dir, "missing.safetensors"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "missing.safetensors")
	_, err = safetensors.Open("")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = safetensors.Open(dir)
	require.ErrorContains(t, err, "directory")
	require.ErrorContains(t, err, dir)

	empty := filepath.Join(dir, "empty.safetensors")
	for n := range 8 {
		require.NoError(t, os.WriteFile(empty, make([]byte, n), 0o666))
		for how, open := range opened(t, empty) {
			_, err := open()
			require.ErrorIs(t, err, safetensors.ErrFileTooShort, how)
		}
	}
	_, err = safetensors.Open(empty)
	require.ErrorContains(t, err, "empty.safetensors", "the file is named")
	_, err = safetensors.Parse(nil)
	require.ErrorIs(t, err, safetensors.ErrFileTooShort)
}

// Names of files are told as they are, unless they could garble the message.
func TestFileNamesInErrors(t *testing.T) {
	for name, want := range map[string]string{
		"dir/model.safetensors":         "dir/model.safetensors",
		`C:\models\new\x.safetensors`:   `C:\models\new\x.safetensors`,
		`\\server\share\日本.safetensors`: `\\server\share\日本.safetensors`,
		"two\nlines":                    `"two\nlines"`,
		"C:\\two\nlines":                `"C:\\two\nlines"`,
		"\x1b[31m":                      `"\x1b[31m"`,
		"not \xff UTF-8":                `"not \xff UTF-8"`,
		`a "quoted" name`:               `"a \"quoted\" name"`,
	} {
		err := &safetensors.FormatError{Kind: safetensors.ErrBadOffsets, File: name, Offset: -1}
		require.Equal(t, "safetensors: "+want+": bad-offsets", err.Error())
	}
}

// oddReaderAt changes what an io.ReaderAt returns.
type oddReaderAt struct {
	io.ReaderAt
	change func(n int, err error) (int, error)
	most   int // bytes read at once, where over 0
	after  int // calls that are as they should be
}

func (r *oddReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if r.after > 0 {
		r.after--
		return r.ReaderAt.ReadAt(p, off)
	}
	if r.most > 0 {
		p = p[:min(len(p), r.most)]
	}
	n, err := r.ReaderAt.ReadAt(p, off)
	if r.change != nil {
		return r.change(n, err)
	}
	return n, err
}

func TestNewFileReaders(t *testing.T) {
	data := written(t, someTensors())
	size := int64(len(data))
	want, err := safetensors.Parse(data)
	require.NoError(t, err)
	broken := errors.New("the line is dead")
	for _, c := range []struct {
		name   string
		most   int
		change func(n int, err error) (int, error)
		ok     bool
		want   error
	}{
		{name: "as it should be", ok: true},
		{name: "short counts", most: 1000, ok: true},
		{name: "an end that is told early", change: func(n int, err error) (int, error) { return n, io.EOF }, ok: true},
		{name: "an error beside all bytes", change: func(n int, err error) (int, error) { return n, broken }, ok: true},
		{name: "nothing", change: func(n int, err error) (int, error) { return 0, nil }, want: io.ErrNoProgress},
		{name: "an end", change: func(n int, err error) (int, error) { return 0, io.EOF }, want: io.ErrUnexpectedEOF},
		{name: "an end midway", change: func(n int, err error) (int, error) { return n / 2, io.EOF }, want: io.ErrUnexpectedEOF},
		{name: "an error", change: func(n int, err error) (int, error) { return 0, broken }, want: broken},
		{name: "an error midway", change: func(n int, err error) (int, error) { return n / 2, broken }, want: broken},
		{name: "a count below 0", change: func(n int, err error) (int, error) { return -1, nil }},
		{name: "a count of too much", change: func(n int, err error) (int, error) { return n + 1, nil }},
		{name: "a huge count", change: func(n int, err error) (int, error) { return math.MaxInt, nil }},
	} {
		for after := range 4 { // good while the header is read, or not
			r := &oddReaderAt{bytes.NewReader(data), c.change, c.most, after}
			f, err := safetensors.NewFile(r, size)
			if after < 2 && !c.ok {
				require.Error(t, err, c.name)
				if c.want != nil {
					require.ErrorIs(t, err, c.want, c.name)
				}
				continue
			}
			require.NoError(t, err, c.name)
			require.Equal(t, want.Names(), f.Names())
			r.after = 0
			for name, tensor := range f.All() {
				var errs [3]error
				var got [2][]byte
				got[0], errs[0] = tensor.Bytes()
				got[1] = make([]byte, tensor.Size())
				_, errs[1] = tensor.ReadAt(got[1], 0)
				var out bytes.Buffer
				_, errs[2] = tensor.WriteTo(&out)
				if !c.ok && tensor.Size() > 1 {
					for _, err := range errs {
						require.Error(t, err, "%s: %s", c.name, name)
						if c.want != nil {
							require.ErrorIs(t, err, c.want, "%s: %s", c.name, name)
						}
						if c.want == io.ErrUnexpectedEOF {
							require.ErrorIs(t, err, safetensors.ErrFault, "the file is shorter than it was")
						}
					}
					continue
				}
				same, err := want.Tensor(name)
				require.NoError(t, err)
				b, err := same.Bytes()
				require.NoError(t, err)
				require.Equal(t, [3]error{}, errs, c.name)
				require.True(t, bytes.Equal(b, got[0]) && bytes.Equal(b, got[1]) && bytes.Equal(b, out.Bytes()), c.name)
			}
		}
	}
	for _, n := range []int64{-1, math.MinInt64} {
		_, err := safetensors.NewFile(bytes.NewReader(data), n)
		require.ErrorContains(t, err, "negative")
	}
	_, err = safetensors.NewFile(bytes.NewReader(data), size-1)
	require.ErrorIs(t, err, safetensors.ErrDataTruncated)
	for _, n := range []int64{size + 1, math.MaxInt64} {
		_, err = safetensors.NewFile(bytes.NewReader(data), n)
		require.ErrorIs(t, err, safetensors.ErrTrailingBytes)
	}
	for n := range int64(64) {
		_, err = safetensors.NewFile(bytes.NewReader(data[:n]), size)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// A reader that claims far more than it has costs no memory.
func TestBytesOfWhatIsNotThere(t *testing.T) {
	for _, tensor := range []safetensors.Tensor{
		safetensors.FromReaderAt(safetensors.U8, []int{math.MaxInt / 8}, bytes.NewReader(make([]byte, 100))),
		safetensors.FromFunc(safetensors.U8, []int{math.MaxInt / 8}, writes(make([]byte, 100))),
	} {
		_, err := tensor.Bytes()
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		n, err := tensor.ReadAt(make([]byte, 100), 0)
		require.NoError(t, err)
		require.Equal(t, 100, n)
		_, err = tensor.ReadAt(make([]byte, 101), 0)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	header := fmt.Sprintf(`{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, math.MaxInt/8)
	f, err := safetensors.NewFile(bytes.NewReader(file(header)), 8+int64(len(header))+math.MaxInt/8)
	require.NoError(t, err)
	tensor, err := f.Tensor("t")
	require.NoError(t, err)
	_, err = tensor.Bytes()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// ReadAt keeps to the rules of io.ReaderAt.
func TestTensorReadAt(t *testing.T) {
	data := pattern(3<<20, 1)
	name := saveTemp(t, map[string]safetensors.Tensor{"a": safetensors.New(safetensors.U8, []int{len(data)}, data), "b": tiny()})
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		tensor, err := f.Tensor("a")
		require.NoError(t, err)
		size := tensor.Size()
		_, err = tensor.ReadAt(nil, -1)
		require.ErrorIs(t, err, safetensors.ErrRange, how)
		for _, off := range []int64{size, size + 1, math.MaxInt64} {
			n, err := tensor.ReadAt(make([]byte, 1), off)
			require.Equal(t, io.EOF, err, how)
			require.Zero(t, n)
			n, err = tensor.ReadAt(nil, off)
			require.NoError(t, err)
			require.Zero(t, n)
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 50 {
			off := r.Int64N(size)
			p := make([]byte, r.Int64N(size))
			n, err := tensor.ReadAt(p, off)
			require.True(t, bytes.Equal(data[off:off+int64(n)], p[:n]), how)
			if n < len(p) {
				require.Equal(t, io.EOF, err)
				require.Equal(t, size-off, int64(n))
			} else {
				require.NoError(t, err)
			}
		}
		require.NoError(t, f.Close())
	}
}

// golang.org/x/exp/mmap shares nothing with this package: it reads the same
// bytes, and serves as a reader.
func TestAgainstExpMmap(t *testing.T) {
	read := 0
	for _, c := range cases.FileCases {
		if c.Expectation != "accept" || tooWide(c) {
			continue
		}
		name := filepath.Join("testdata", c.File)
		other, err := mmap.Open(name)
		require.NoError(t, err)
		f, err := safetensors.Open(name)
		require.NoError(t, err)
		through, err := safetensors.NewFile(other, int64(other.Len()))
		require.NoError(t, err)
		require.Equal(t, f.Header().Tensors(), through.Header().Tensors())
		sameTensors(t, c, through)
		for _, info := range f.Header().Tensors() {
			read++
			want := make([]byte, info.End-info.Begin)
			_, err := other.ReadAt(want, f.Header().DataStart()+info.Begin)
			if len(want) > 0 {
				require.NoError(t, err)
			}
			for _, from := range []*safetensors.File{f, through} {
				tensor, err := from.Tensor(info.Name)
				require.NoError(t, err)
				got, err := tensor.Bytes()
				require.NoError(t, err)
				require.Equal(t, string(want), string(got))
			}
		}
		require.NoError(t, through.Close())
		require.NoError(t, f.Close())
		_, err = other.ReadAt(make([]byte, 1), 0)
		require.NoError(t, err, "a File closes nothing that it did not open")
		require.NoError(t, other.Close())
	}
	require.NotZero(t, read)
}

// use_after_close: an error from every call that needs the file.
func TestClose(t *testing.T) {
	name := saveTemp(t, someTensors())
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		tensors := maps.Collect(f.All())
		require.NoError(t, f.Close(), how)
		require.NoError(t, f.Close(), how)

		// What is known of the tensors outlives the file; their bytes do not.
		require.Len(t, f.Names(), len(tensors))
		require.Len(t, f.Header().Tensors(), f.Len())
		require.Nil(t, f.Metadata())
		_, err = f.Tensor("small")
		require.ErrorIs(t, err, safetensors.ErrClosed, how)
		for name, tensor := range tensors {
			require.NotZero(t, tensor.DType())
			if tensor.Size() == 0 {
				continue
			}
			_, err = tensor.Bytes()
			require.ErrorIs(t, err, safetensors.ErrClosed, "%s: %s", how, name)
			_, err = tensor.ReadAt(make([]byte, 1), 0)
			require.ErrorIs(t, err, safetensors.ErrClosed, "%s: %s", how, name)
			_, err = tensor.WriteTo(io.Discard)
			require.ErrorIs(t, err, safetensors.ErrClosed, "%s: %s", how, name)
			_, err = safetensors.Values[uint8](tensor)
			require.Error(t, err)
			dir := t.TempDir()
			err = safetensors.Save(filepath.Join(dir, "y"), one(tensor))
			require.ErrorIs(t, err, safetensors.ErrClosed, "%s: %s", how, name)
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		}
	}
}

// What Bytes gives of a file without a map is the caller's own.
func TestBytesOutliveCloseWithoutMap(t *testing.T) {
	want := someTensors()
	f, err := safetensors.Open(saveTemp(t, want), safetensors.WithoutMmap())
	require.NoError(t, err)
	held := map[string][]byte{}
	for name, tensor := range f.All() {
		held[name], err = tensor.Bytes()
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	for name, tensor := range want {
		b, err := tensor.Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, held[name]))
	}
}

// closer closes a file when it is written to.
type closer struct {
	f *safetensors.File
	n int64
}

func (c *closer) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), c.f.Close()
}

func TestCloseInsideWrite(t *testing.T) {
	name := saveTemp(t, map[string]safetensors.Tensor{"t": safetensors.New(safetensors.U8, []int{40 << 20}, make([]byte, 40<<20))})
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		tensor, err := f.Tensor("t")
		require.NoError(t, err)
		c := &closer{f: f}
		n, err := tensor.WriteTo(c)
		require.ErrorIs(t, err, safetensors.ErrClosed, how)
		require.Equal(t, c.n, n)
		require.Less(t, n, tensor.Size())
		require.NotZero(t, n)

		f, err = open()
		require.NoError(t, err)
		c = &closer{f: f}
		_, err = safetensors.Write(c, maps.Collect(f.All()))
		require.ErrorIs(t, err, safetensors.ErrClosed, how)
	}
}

func TestCloseWhileReading(t *testing.T) {
	want := map[string]safetensors.Tensor{
		"small": safetensors.New(safetensors.U8, []int{1000}, pattern(1000, 1)),
		"large": safetensors.New(safetensors.U8, []int{3, 1 << 16}, pattern(3<<16, 2)),
	}
	name := saveTemp(t, want)
	expect := map[string][]byte{}
	for name, tensor := range want {
		b, err := tensor.Bytes()
		require.NoError(t, err)
		expect[name] = b
	}
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for how, open := range opened(t, name) {
		for round := range rounds {
			f, err := open()
			require.NoError(t, err)
			tensors := maps.Collect(f.All())
			var ready, done sync.WaitGroup
			failures := make(chan error, 16)
			for i := range 16 {
				ready.Add(1)
				done.Go(func() {
					r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
					fail := readUntilClosed(f, tensors, expect, r, ready.Done)
					if fail != nil {
						failures <- fail
					}
				})
			}
			ready.Wait() // each has read once
			for range round % 8 {
				runtime.Gosched()
			}
			require.NoError(t, f.Close(), how)
			require.NoError(t, f.Close(), how)
			done.Wait()
			close(failures)
			require.NoError(t, <-failures, how)
		}
	}
}

// readUntilClosed reads until it gets ErrClosed, and returns anything else that
// is not as it should be.
func readUntilClosed(f *safetensors.File, tensors map[string]safetensors.Tensor, expect map[string][]byte, r *rand.Rand, ready func()) error {
	for once := sync.OnceFunc(ready); ; once() {
		for name, want := range expect {
			tensor := tensors[name]
			var err error
			var got []byte
			switch r.IntN(4) {
			case 0:
				off := r.IntN(len(want))
				got = make([]byte, len(want)-off)
				want = want[off:]
				_, err = tensor.ReadAt(got, int64(off))
			case 1:
				var b bytes.Buffer
				_, err = tensor.WriteTo(&b)
				got = b.Bytes()
			case 2:
				got, err = safetensors.Values[uint8](tensor)
			case 3:
				if tensor, err = f.Tensor(name); err == nil {
					got = make([]byte, len(want))
					_, err = tensor.ReadAt(got, 0)
				}
			}
			if errors.Is(err, safetensors.ErrClosed) {
				once()
				return nil
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(want, got) {
				return fmt.Errorf("%s: wrong bytes", name)
			}
		}
	}
}

// concurrent_reads: many goroutines read one file without any lock of theirs.
func TestConcurrentReads(t *testing.T) {
	want := someTensors()
	name := saveTemp(t, want)
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for name, tensor := range f.All() {
					b, err := tensor.Bytes()
					if err != nil {
						t.Errorf("%s: %v", how, err)
						return
					}
					w, _ := want[name].Bytes()
					if !bytes.Equal(w, b) {
						t.Errorf("%s: %s: wrong bytes", how, name)
					}
					f.Header().Lookup(name)
					f.Tensor(strings.ToUpper(name))
				}
			})
		}
		wg.Wait()
		require.NoError(t, f.Close())
	}
}

// The limit on headers, on real files: big_header_at_cap and big_header_over_cap
// of testdata/cases.json.
func TestHeaderAtLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("headers of 100 MB")
	}
	name := filepath.Join(t.TempDir(), "large.safetensors")
	data := file("{}" + strings.Repeat(" ", safetensors.DefaultMaxHeaderSize-2))
	require.NoError(t, os.WriteFile(name, data, 0o666))
	f, err := safetensors.Open(name)
	require.NoError(t, err)
	require.Zero(t, f.Len())
	require.EqualValues(t, len(data), f.Header().DataStart())
	require.NoError(t, f.Close())

	data = file("{}" + strings.Repeat(" ", safetensors.DefaultMaxHeaderSize-1))
	require.NoError(t, os.WriteFile(name, data, 0o666))
	_, err = safetensors.Open(name)
	require.ErrorIs(t, err, safetensors.ErrHeaderTooLarge)
	f, err = safetensors.Open(name, safetensors.WithMaxHeaderSize(1<<30))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// sparse makes a file of that size which has only the header on disk.
func sparse(t *testing.T, header string, size int64) string {
	t.Helper()
	if runtime.GOOS == "windows" || runtime.GOOS == "js" {
		t.Skipf("%s would write out the holes of a sparse file of %d bytes", runtime.GOOS, size)
	}
	name := filepath.Join(t.TempDir(), "sparse.safetensors")
	f, err := os.Create(name)
	require.NoError(t, err)
	_, err = f.Write(file(header))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(8+int64(len(header))+size))
	// The last bytes of each tensor are set, so that a wrong place is seen.
	h, err := safetensors.ReadHeader(bytes.NewReader(file(header)))
	if err == nil {
		for i, info := range h.Tensors() {
			_, err := f.WriteAt([]byte{byte(i + 1)}, h.DataStart()+info.End-1)
			require.NoError(t, err)
		}
	}
	require.NoError(t, f.Close())
	return name
}

// tensor_over_2gib, tensor_over_4gib, tensor_787mb_32bit and
// total_over_data_mmap_16gib of testdata/cases.json.
func TestLargeFiles(t *testing.T) {
	for _, c := range []struct {
		id     string
		header string
		size   int64
		wide   bool // a dimension that 32 bits do not hold
	}{
		{"tensor_over_2gib", `{"t":{"dtype":"BF16","shape":[248320,5120],"data_offsets":[0,2542796800]}}`, 2542796800, false},
		{"tensor_over_4gib", `{"t":{"dtype":"U8","shape":[5368709120],"data_offsets":[0,5368709120]},"u":{"dtype":"U8","shape":[3],"data_offsets":[5368709120,5368709123]}}`, 5368709123, true},
		{"tensor_over_4gib_in_rows", `{"t":{"dtype":"U8","shape":[1310720,4096],"data_offsets":[0,5368709120]},"u":{"dtype":"U8","shape":[3],"data_offsets":[5368709120,5368709123]}}`, 5368709123, false},
		{"tensor_787mb_32bit", `{"t":{"dtype":"F32","shape":[128100,1536],"data_offsets":[0,787046400]}}`, 787046400, false},
		{"total_over_data_mmap_16gib", `{"t":{"dtype":"U64","shape":[1024,1024,3071],"data_offsets":[0,25761415168]},"u":{"dtype":"U8","shape":[1048576],"data_offsets":[25761415168,25762463744]}}`, 25762463744, false},
	} {
		t.Run(c.id, func(t *testing.T) {
			name := sparse(t, c.header, c.size)
			for _, opts := range [][]safetensors.Option{nil, {safetensors.WithoutMmap()}} {
				f, err := safetensors.Open(name, opts...)
				if c.wide && math.MaxInt == math.MaxInt32 {
					require.ErrorIs(t, err, safetensors.ErrSizeOverflow)
					require.ErrorContains(t, err, "int")
					continue
				}
				require.NoError(t, err)
				i := 0
				for _, tensor := range f.All() {
					i++
					p := make([]byte, 2)
					n, err := tensor.ReadAt(p, tensor.Size()-2)
					require.NoError(t, err)
					require.Equal(t, 2, n)
					require.Equal(t, []byte{0, byte(i)}, p)
					_, err = tensor.ReadAt(p, tensor.Size()-1)
					require.Equal(t, io.EOF, err)
					if tensor.Size() > 1<<20 {
						if tensor.Size() > math.MaxInt {
							_, err = tensor.Bytes()
							require.ErrorIs(t, err, safetensors.ErrRange)
						} else if tensor.Size() > 4<<30 && os.Getenv("SAFETENSORS_TEST_EXEC") != "" {
							t.Log("not all bytes of a large tensor: an emulator may not have the room to map it")
						} else if opts == nil && math.MaxInt > math.MaxInt32 {
							b, err := tensor.Bytes()
							require.NoError(t, err)
							require.EqualValues(t, tensor.Size(), len(b))
							require.EqualValues(t, i, b[len(b)-1])
						}
						continue
					}
					b, err := tensor.Bytes()
					require.NoError(t, err)
					require.EqualValues(t, i, b[len(b)-1])
				}
				require.NoError(t, f.Close())
				require.NoError(t, os.Truncate(name, 8+int64(len(c.header))+c.size-1))
				_, err = safetensors.Open(name, opts...)
				require.ErrorIs(t, err, safetensors.ErrDataTruncated)
				require.NoError(t, os.Truncate(name, 8+int64(len(c.header))+c.size))
				restore, err := os.OpenFile(name, os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = restore.WriteAt([]byte{byte(i)}, 8+int64(len(c.header))+c.size-1)
				require.NoError(t, err)
				require.NoError(t, restore.Close())
			}
		})
	}
}
