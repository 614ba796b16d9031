package safetensors_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

var all = safetensors.Range{Stop: safetensors.End}

// A selection is what slices and shapes select, told plainly: for each element
// in order its place in the tensor that they began with.
type selection struct {
	shape  []int
	places []int
}

func everything(shape []int) selection {
	n := 1
	for _, dim := range shape {
		n *= dim
	}
	s := selection{shape, make([]int, n)}
	for i := range s.places {
		s.places[i] = i
	}
	return s
}

// slice returns what Slice must select, or false where it must refuse.
func (s selection) slice(ranges []safetensors.Range) (selection, bool) {
	if len(ranges) > len(s.shape) {
		return s, false
	}
	picked := make([][]int, len(s.shape))
	shape := make([]int, len(s.shape))
	for i, size := range s.shape {
		r := all
		if i < len(ranges) {
			r = ranges[i]
		}
		if r.Stop == safetensors.End {
			r.Stop = size
		}
		if r.Step == 0 {
			r.Step = 1
		}
		if r.Start < 0 || r.Start > r.Stop || r.Stop > size || r.Step < 0 {
			return s, false
		}
		for at := range size {
			if at >= r.Start && at < r.Stop && (at-r.Start)%r.Step == 0 {
				picked[i] = append(picked[i], at)
			}
		}
		shape[i] = len(picked[i])
	}
	out := everything(shape)
	for i := range out.places {
		at, rest, stride := 0, i, 1
		for d := len(shape) - 1; d >= 0; d-- {
			at += picked[d][rest%shape[d]] * stride
			rest /= shape[d]
			stride *= s.shape[d]
		}
		out.places[i] = s.places[at]
	}
	return out, true
}

// bytes packs the elements that are selected from data, or returns false where
// neighbouring ones do not begin or end at a whole byte of it.
func (s selection) bytes(data []byte, bits int) ([]byte, bool) {
	out := make([]byte, len(s.places)*bits/8)
	if bits%8 == 0 {
		width := bits / 8
		for i, at := range s.places {
			copy(out[i*width:], data[at*width:(at+1)*width])
		}
		return out, true
	}
	for i, at := range s.places {
		begins := i == 0 || s.places[i-1] != at-1
		ends := i == len(s.places)-1 || s.places[i+1] != at+1
		if begins && at*bits%8 != 0 || ends && (at+1)*bits%8 != 0 {
			return nil, false
		}
		for b := range bits {
			from, to := at*bits+b, i*bits+b
			if to/8 < len(out) {
				out[to/8] |= data[from/8] >> (from % 8) & 1 << (to % 8)
			}
		}
	}
	return out, true
}

// origins makes the same tensor in every way that gives it another source.
func origins(t *testing.T, d safetensors.DType, shape []int, data []byte) map[string]safetensors.Tensor {
	tensors := map[string]safetensors.Tensor{
		"New":          safetensors.New(d, shape, data),
		"FromReaderAt": safetensors.FromReaderAt(d, shape, bytes.NewReader(data)),
		"FromFunc": safetensors.FromFunc(d, shape, func(w io.Writer) error {
			for rest, n := data, 1; len(rest) > 0; n = n*3%1021 + 1 {
				p := rest[:min(n, len(rest))]
				if _, err := w.Write(p); err != nil {
					return err
				}
				rest = rest[len(p):]
			}
			return nil
		}),
	}
	// The tensor begins at an odd byte of the file.
	name := filepath.Join(t.TempDir(), "t.safetensors")
	require.NoError(t, safetensors.Save(name, map[string]safetensors.Tensor{
		"t": tensors["New"], "u": safetensors.New(safetensors.U64, []int{1}, make([]byte, 8)),
	}, safetensors.WithAlignment(1)))
	for how, open := range opened(t, name) {
		f, err := open()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		tensors[how], err = f.Tensor("t")
		require.NoError(t, err)
	}
	return tensors
}

// requireTensor reads a tensor in every way.
func requireTensor(t testing.TB, r *rand.Rand, want []byte, shape []int, got safetensors.Tensor) {
	t.Helper()
	elements := 1
	for _, dim := range shape {
		elements *= dim
	}
	require.Equal(t, shape, got.Shape())
	require.EqualValues(t, elements, got.Len())
	require.EqualValues(t, len(want), got.Size())
	b, err := got.Bytes()
	require.NoError(t, err)
	require.Len(t, b, len(want))
	require.True(t, bytes.Equal(want, b), "Bytes")

	var w bytes.Buffer
	n, err := got.WriteTo(&w)
	require.NoError(t, err)
	require.EqualValues(t, len(want), n)
	require.True(t, bytes.Equal(want, w.Bytes()), "WriteTo")

	for range 4 {
		p := make([]byte, r.IntN(len(want)+3))
		off := r.IntN(len(want) + 2)
		n, err := got.ReadAt(p, int64(off))
		left := want[min(off, len(want)):]
		require.Equal(t, min(len(p), len(left)), n)
		if len(p) > len(left) {
			require.Equal(t, io.EOF, err)
		} else {
			require.NoError(t, err)
		}
		require.True(t, bytes.Equal(left[:n], p[:n]), "ReadAt %d+%d", off, len(p))
	}
}

// requireSlice slices a tensor and expects what the selection says.
func requireSlice(t testing.TB, r *rand.Rand, data []byte, from safetensors.Tensor, s selection, ranges []safetensors.Range) (safetensors.Tensor, selection, bool) {
	t.Helper()
	got, err := from.Slice(ranges...)
	picked, ok := s.slice(ranges)
	if !ok {
		require.ErrorIs(t, err, safetensors.ErrRange)
		return from, s, false
	}
	want, ok := picked.bytes(data, from.DType().Bits())
	if !ok {
		require.ErrorIs(t, err, safetensors.ErrSubByteMisaligned)
		return from, s, false
	}
	require.NoError(t, err)
	require.Equal(t, from.DType(), got.DType())
	requireTensor(t, r, want, picked.shape, got)
	return got, picked, true
}

func randomBytes(r *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// randomRange returns a range of a dimension, seldom one that is wrong.
func randomRange(r *rand.Rand, size int) safetensors.Range {
	start := r.IntN(size + 1)
	x := safetensors.Range{Start: start, Stop: start + r.IntN(size-start+1), Step: r.IntN(4)}
	switch r.IntN(60) {
	case 0, 1, 2, 3, 4, 5, 6, 7, 8, 9:
		x.Start = 0
	case 10, 11, 12, 13, 14, 15, 16, 17, 18, 19:
		x.Stop = safetensors.End
	case 20:
		x.Step = math.MaxInt
	case 21:
		x.Stop = size + 1 + r.IntN(3)
	case 22:
		x.Start, x.Stop = x.Stop+1, x.Start
	case 23:
		x.Start = -1 - r.IntN(3)
	case 24:
		x.Step = math.MinInt
	}
	return x
}

func TestSliceLikeThePlainRule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dtypes := []safetensors.DType{safetensors.F4, safetensors.F6E2M3, safetensors.U8, safetensors.BF16, safetensors.F32, safetensors.C64}
	counts := map[string]int{}
	for range 400 {
		d := dtypes[r.IntN(len(dtypes))]
		shape := make([]int, r.IntN(6))
		for i := range shape {
			shape[i] = 1 + r.IntN(8)
			if r.IntN(40) == 0 {
				shape[i] = 0
			}
		}
		if d.Bits() < 8 {
			shape = slices.Insert(shape, r.IntN(len(shape)+1), 4*r.IntN(4))
		}
		whole := everything(shape)
		data := randomBytes(r, len(whole.places)*d.Bits()/8)
		t.Run(fmt.Sprint(d, shape), func(t *testing.T) {
			for how, tensor := range origins(t, d, shape, data) {
				from, s := tensor, whole
				for range 6 {
					if r.IntN(4) == 0 {
						s.shape = randomShape(r, s.shape)
						var err error
						from, err = from.Reshape(s.shape...)
						require.NoError(t, err)
					}
					ranges := make([]safetensors.Range, min(r.IntN(7), len(s.shape)))
					for i := range ranges {
						ranges[i] = randomRange(r, s.shape[i])
						if r.IntN(3) == 0 {
							ranges[i] = all
						}
					}
					next, picked, ok := requireSlice(t, r, data, from, s, ranges)
					counts[fmt.Sprint("taken ", ok)]++
					if ok && r.IntN(5) > 0 {
						from, s = next, picked
					}
				}
				counts[how]++
			}
		})
	}
	t.Log(counts)
	require.Greater(t, counts["taken true"], 5000)
	require.Greater(t, counts["taken false"], 500)
}

// randomShape moves factors between the dimensions of a shape.
func randomShape(r *rand.Rand, shape []int) []int {
	shape = slices.Clone(shape)
	for range r.IntN(4) {
		switch i := r.IntN(len(shape) + 1); {
		case i == len(shape) || r.IntN(3) == 0:
			shape = slices.Insert(shape, i, 1)
		case i > 0 && r.IntN(2) == 0:
			shape[i-1] *= shape[i]
			shape = slices.Delete(shape, i, i+1)
		case i > 0 && shape[i]%2 == 0:
			shape[i-1] *= 2
			shape[i] /= 2
		}
	}
	return shape
}

func TestSliceCases(t *testing.T) {
	var cases struct {
		SliceCases []struct {
			File, Tensor, Notes, Expectation string
			Slice                            [][3]int64
			Shape                            []int
			NBytes                           int64
			Hex                              *string
			SHA256                           string
		} `json:"slice_cases"`
	}
	b, err := os.ReadFile("testdata/cases.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &cases))
	require.NotEmpty(t, cases.SliceCases)
	for _, c := range cases.SliceCases {
		ranges := make([]safetensors.Range, len(c.Slice))
		for i, r := range c.Slice {
			ranges[i] = safetensors.Range{Start: asInt(r[0]), Stop: asInt(r[1]), Step: asInt(r[2])}
		}
		for how, open := range opened(t, filepath.Join("testdata", c.File)) {
			t.Run(fmt.Sprint(c.File, c.Slice, how), func(t *testing.T) {
				f, err := open()
				require.NoError(t, err)
				defer f.Close()
				whole, err := f.Tensor(c.Tensor)
				require.NoError(t, err)
				part, err := whole.Slice(ranges...)
				if c.Expectation == "reject" {
					require.ErrorIs(t, err, safetensors.ErrRange)
					return
				}
				require.NoError(t, err)
				require.Equal(t, c.Shape, part.Shape())
				require.Equal(t, c.NBytes, part.Size())
				b, err := part.Bytes()
				require.NoError(t, err)
				sum := sha256.Sum256(b)
				require.Equal(t, c.SHA256, hex.EncodeToString(sum[:]))
				if c.Hex != nil {
					require.Equal(t, *c.Hex, hex.EncodeToString(b))
				}
			})
		}
	}
}

// asInt returns n, or the int nearest to it.
func asInt(n int64) int { return int(max(math.MinInt, min(n, math.MaxInt))) }

func TestSliceErrors(t *testing.T) {
	whole := safetensors.New(safetensors.U8, []int{5, 3}, make([]byte, 15))
	four := safetensors.New(safetensors.F4, []int{3, 2, 4}, make([]byte, 12))
	for _, c := range []struct {
		from   safetensors.Tensor
		ranges []safetensors.Range
		kind   safetensors.Kind
		text   string
	}{
		{whole, []safetensors.Range{{3, 1, 1}}, safetensors.ErrRange, "safetensors: out-of-range: range {Start:3 Stop:1 Step:1} of dimension 0, whose size is 5: it starts after its stop"},
		{whole, []safetensors.Range{all, {0, 4, 1}}, safetensors.ErrRange, "range {Start:0 Stop:4 Step:1} of dimension 1, whose size is 3: it stops past the end"},
		{whole, []safetensors.Range{{6, safetensors.End, 1}}, safetensors.ErrRange, "it starts after its stop"},
		{whole, []safetensors.Range{{6, 6, 1}}, safetensors.ErrRange, "it stops past the end"},
		{whole, []safetensors.Range{{0, math.MaxInt, 1}}, safetensors.ErrRange, "it stops past the end"},
		{whole, []safetensors.Range{{math.MaxInt, safetensors.End, 1}}, safetensors.ErrRange, "it starts after its stop"},
		{whole, []safetensors.Range{{-1, 4, 1}}, safetensors.ErrRange, "its start is negative"},
		{whole, []safetensors.Range{{math.MinInt, math.MinInt, 1}}, safetensors.ErrRange, "its start is negative"},
		{whole, []safetensors.Range{{0, -2, 1}}, safetensors.ErrRange, "its stop is negative and not End"},
		{whole, []safetensors.Range{{0, 4, -1}}, safetensors.ErrRange, "its step is negative"},
		{whole, []safetensors.Range{all, all, all}, safetensors.ErrRange, "3 ranges for the 2 dimensions of [5,3]"},
		{safetensors.New(safetensors.U8, []int{}, []byte{1}), []safetensors.Range{all}, safetensors.ErrRange, "1 ranges for the 0 dimensions of []"},
		{safetensors.New(safetensors.U8, []int{0}, nil), []safetensors.Range{{0, 1, 1}}, safetensors.ErrRange, "it stops past the end"},
		{four, []safetensors.Range{all, all, {1, 3, 1}}, safetensors.ErrSubByteMisaligned, "whole byte, got [{Start:0 Stop:-1 Step:0} {Start:0 Stop:-1 Step:0} {Start:1 Stop:3 Step:1}] of F4 [3,2,4] of 4 bits each"},
		{four, []safetensors.Range{all, all, {0, 3, 1}}, safetensors.ErrSubByteMisaligned, "whole byte"},
		{four, []safetensors.Range{all, all, {0, 4, 2}}, safetensors.ErrSubByteMisaligned, "whole byte"},
		{four, []safetensors.Range{{0, 1, 1}, {0, 1, 1}, {1, 2, 1}}, safetensors.ErrSubByteMisaligned, "whole byte"},
		{safetensors.New(safetensors.F4, []int{6, 3}, make([]byte, 9)), []safetensors.Range{all, {0, 2, 1}}, safetensors.ErrSubByteMisaligned, "whole byte"},
		{safetensors.New(safetensors.F4, []int{6, 3}, make([]byte, 9)), []safetensors.Range{{0, 6, 3}}, safetensors.ErrSubByteMisaligned, "whole byte"},
		{safetensors.New(safetensors.U8, []int{2}, nil), nil, safetensors.ErrSizeMismatch, "2 bytes"},
		{safetensors.Tensor{}, nil, safetensors.ErrUnknownDType, "zero Tensor"},
	} {
		_, err := c.from.Slice(c.ranges...)
		require.ErrorIs(t, err, c.kind)
		require.ErrorContains(t, err, c.text)
	}
}

func TestReshape(t *testing.T) {
	data := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	whole := safetensors.New(safetensors.U8, []int{3, 4}, data)
	flat, err := whole.Reshape(12)
	require.NoError(t, err)
	b, err := flat.Bytes()
	require.NoError(t, err)
	require.Same(t, &data[0], &b[0])

	columns, err := whole.Slice(all, safetensors.Range{Start: 1, Stop: 3})
	require.NoError(t, err)
	columns, err = columns.Reshape(2, 1, 3)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 3}, columns.Shape())
	b, err = columns.Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 5, 6, 9, 10}, b)

	scalar, err := safetensors.New(safetensors.U8, []int{1, 1}, []byte{7}).Reshape()
	require.NoError(t, err)
	require.Equal(t, []int{}, scalar.Shape())

	shape := []int{6, 2}
	own, err := whole.Reshape(shape...)
	require.NoError(t, err)
	shape[0] = 9
	require.Equal(t, []int{6, 2}, own.Shape())

	empty := safetensors.New(safetensors.F4, []int{3, 0}, nil)
	_, err = empty.Reshape(0, math.MaxInt, 4)
	require.NoError(t, err)
	for _, c := range []struct {
		from  safetensors.Tensor
		shape []int
	}{
		{whole, []int{11}}, {whole, []int{-1}}, {whole, []int{-3, -4}}, {whole, []int{}}, {whole, []int{0, 12}},
		{whole, []int{math.MaxInt, math.MaxInt, math.MaxInt}}, {empty, []int{1}}, {empty, []int{0, -1}},
		{safetensors.New(safetensors.F4, []int{4}, []byte{1, 2}), []int{3}},
	} {
		_, err := c.from.Reshape(c.shape...)
		require.ErrorIs(t, err, safetensors.ErrRange, "%v", c.shape)
	}
	_, err = whole.Reshape(5, 2)
	require.EqualError(t, err, "safetensors: out-of-range: shape [5,2] for the 12 elements of [3,4]")
	_, err = safetensors.Tensor{}.Reshape()
	require.ErrorIs(t, err, safetensors.ErrUnknownDType)
}

func TestSliceShares(t *testing.T) {
	data := make([]byte, 4*3*8)
	whole := safetensors.New(safetensors.F64, []int{4, 3}, data)
	for _, c := range []struct {
		ranges []safetensors.Range
		begin  int
		end    int // or 0 where it gathers
	}{
		{nil, 0, 96},
		{[]safetensors.Range{{1, 3, 1}}, 24, 72},
		{[]safetensors.Range{{1, 2, 1}, {1, 3, 1}}, 32, 48},
		{[]safetensors.Range{{2, safetensors.End, 3}, {2, 3, 9}}, 64, 72},
		{[]safetensors.Range{all, {0, 2, 1}}, 0, 0},
		{[]safetensors.Range{{0, 4, 2}}, 0, 0},
	} {
		s, err := whole.Slice(c.ranges...)
		require.NoError(t, err)
		b, err := s.Bytes()
		require.NoError(t, err)
		if c.end == 0 {
			b[0]++
			require.Zero(t, data[0], "memory of its own")
			continue
		}
		require.Same(t, &data[c.begin], &b[0])
		require.Equal(t, c.end-c.begin, cap(b))
	}
	// One row of a slice of columns is a run, wherever it is.
	columns, err := whole.Slice(all, safetensors.Range{Start: 1, Stop: 3})
	require.NoError(t, err)
	row, err := columns.Slice(safetensors.Range{Start: 2, Stop: 3})
	require.NoError(t, err)
	b, err := row.Bytes()
	require.NoError(t, err)
	require.Same(t, &data[7*8], &b[0])
}

func TestSliceAllocations(t *testing.T) {
	whole := safetensors.New(safetensors.F32, []int{8, 8, 8}, make([]byte, 2048))
	columns, err := whole.Slice(all, all, safetensors.Range{Start: 1, Stop: 5})
	require.NoError(t, err)
	for _, c := range []struct {
		from   safetensors.Tensor
		ranges []safetensors.Range
		most   float64
	}{
		{whole, []safetensors.Range{{0, 2, 1}}, 1},            // the shape
		{whole, []safetensors.Range{{0, 8, 2}, {1, 7, 1}}, 2}, // and what gathers
		{columns, []safetensors.Range{{0, 8, 2}, {1, 7, 1}, {0, 4, 2}}, 2},
		{whole, []safetensors.Range{{}}, 1},
	} {
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			if _, err := c.from.Slice(c.ranges...); err != nil {
				panic(err)
			}
		}), c.most)
	}
}

// A far reader has a byte for every offset there is.
type farReader struct{}

func farByte(off int64) byte { return byte(off*7>>3 ^ off>>31 ^ off>>52) }

func (farReader) ReadAt(p []byte, off int64) (int, error) {
	for i := range p {
		p[i] = farByte(off + int64(i))
	}
	return len(p), nil
}

// Sizes near the largest that the format has, of which no product overflows.
func TestSliceAbsurd(t *testing.T) {
	for _, c := range []struct {
		d      safetensors.DType
		shape  []int
		ranges []safetensors.Range
		want   []int
	}{
		{safetensors.U8, []int{0, math.MaxInt/2 + 1, 4}, []safetensors.Range{all, {1, math.MaxInt / 2, 3}}, []int{0, (math.MaxInt/2-2)/3 + 1, 4}},
		{safetensors.U8, []int{0, math.MaxInt, math.MaxInt, 2}, nil, []int{0, math.MaxInt, math.MaxInt, 2}},
		{safetensors.F64, []int{1 << 28, 1 << 29}, []safetensors.Range{{1 << 27, 1 << 27, 1}}, []int{0, 1 << 29}},
		{safetensors.F64, []int{1 << 28, 1 << 29}, []safetensors.Range{{}, {}}, []int{0, 0}},
	} {
		s, err := safetensors.FromReaderAt(c.d, c.shape, farReader{}).Slice(c.ranges...)
		require.NoError(t, err)
		requireTensor(t, rand.New(rand.NewPCG(0, 0)), nil, c.want, s)
	}

	// 2^61 bytes less one row of 2^31-1.
	const rows, cols = 1<<30 - 1, 1<<31 - 1
	whole := safetensors.FromReaderAt(safetensors.U8, []int{rows, cols}, farReader{})
	require.Equal(t, int64(rows)*cols, whole.Size())
	columns, err := whole.Slice(safetensors.Range{Start: 1, Stop: safetensors.End, Step: 3}, safetensors.Range{Start: 5, Stop: cols - 5})
	require.NoError(t, err)
	require.Equal(t, []int{(rows-2)/3 + 1, cols - 10}, columns.Shape())
	corner, err := columns.Slice(safetensors.Range{Start: columns.Shape()[0] - 2, Stop: safetensors.End}, safetensors.Range{Start: 3, Stop: 9, Step: 5})
	require.NoError(t, err)
	b, err := corner.Bytes()
	require.NoError(t, err)
	var want []byte
	for _, row := range []int64{1 + 3*int64(columns.Shape()[0]-2), 1 + 3*int64(columns.Shape()[0]-1)} {
		for _, col := range []int64{8, 13} {
			want = append(want, farByte(row*cols+col))
		}
	}
	require.Equal(t, want, b)
	_, err = columns.ReadAt(b[:2], columns.Size()-2)
	require.NoError(t, err)
	last := (1+3*int64(columns.Shape()[0]-1))*cols + cols - 5
	require.Equal(t, []byte{farByte(last - 2), farByte(last - 1)}, b[:2])
	_, err = columns.ReadAt(b[:2], columns.Size()/2)
	require.NoError(t, err)
	at := columns.Size() / 2
	at = (1+3*(at/(cols-10)))*cols + 5 + at%(cols-10)
	require.Equal(t, farByte(at), b[0])

	// All 2^64-1 bits that a size may have, to the byte.
	tiny := safetensors.FromReaderAt(safetensors.F4, []int{1<<31 - 1, 1 << 30, 2}, farReader{})
	odd, err := tiny.Slice(safetensors.Range{Step: 1 << 30, Stop: safetensors.End}, safetensors.Range{Start: 1<<30 - 1, Stop: safetensors.End})
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 2}, odd.Shape())
	b, err = odd.Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{farByte(1<<30 - 1), farByte(1<<60 + 1<<30 - 1)}, b)
}

// Whatever the ranges, a slice is refused or has the bytes of its new shape.
func FuzzSlice(f *testing.F) {
	f.Add(uint8(safetensors.F32), []byte{3, 4}, []byte{1, 255, 0, 1, 3, 2})
	f.Add(uint8(safetensors.F4), []byte{3, 4}, []byte{0, 255, 1, 2, 4, 1})
	f.Add(uint8(safetensors.F6E2M3), []byte{2, 2, 8}, []byte{0, 2, 1, 1, 2, 1, 4, 8, 1})
	f.Add(uint8(safetensors.U8), []byte{}, []byte{})
	f.Add(uint8(safetensors.C64), []byte{2, 0, 200}, []byte{0, 128, 129, 0, 128, 130})
	f.Add(uint8(safetensors.U16), []byte{5, 7, 3}, []byte{0, 5, 2, 1, 7, 1, 0, 2, 1, 1, 3, 0, 2, 5, 3})
	f.Fuzz(func(t *testing.T, dtype uint8, dims, numbers []byte) {
		d := safetensors.DType(dtype%22 + 1)
		shape, elements := []int{}, 1
		for _, dim := range dims[:min(len(dims), 6)] {
			if dim = min(dim, 50); elements*int(max(dim, 1)) <= 1<<12 {
				shape = append(shape, int(dim))
				elements *= int(max(dim, 1))
			}
		}
		s := everything(shape)
		if len(s.places)*d.Bits()%8 != 0 {
			return
		}
		r := rand.New(rand.NewPCG(0, uint64(len(numbers))))
		data := randomBytes(r, len(s.places)*d.Bits()/8)
		for _, from := range []safetensors.Tensor{
			safetensors.New(d, shape, data),
			safetensors.FromReaderAt(d, shape, bytes.NewReader(data)),
		} {
			s, left := s, numbers
			for ok := true; ok && len(left) >= 3; {
				var ranges []safetensors.Range
				for range s.shape {
					if len(left) >= 3 {
						ranges = append(ranges, safetensors.Range{Start: wild(left[0]), Stop: wild(left[1]), Step: wild(left[2])})
						left = left[3:]
					}
				}
				if ranges == nil {
					left = nil
				}
				from, s, ok = requireSlice(t, r, data, from, s, ranges)
			}
		}
	})
}

// wild makes a byte a number, of which some are far from all others.
func wild(b byte) int {
	switch b {
	case 128:
		return math.MaxInt
	case 129:
		return math.MinInt
	case 130:
		return math.MaxInt/2 + 1
	}
	return int(int8(b))
}
