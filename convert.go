package safetensors

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

// A conversion makes elements of one dtype into elements of another, in steps
// by way of dtypes that hold all that matters of either: F32 for the narrower
// floats, F64, I64 and U64.
type conversion struct {
	from, to DType
	steps    [4]step
	n        int
}

// A step takes elements of what the one before it gave.
type step struct {
	op    op
	dtype DType // what op is about
	gives DType
}

type op uint8

const (
	opCopy          op = iota
	opDecode           // of a dtype of up to 16 bits to F32
	opEncode           // of F32 to a narrow float dtype
	opFloatToDouble    // F32 to F64
	opDoubleToFloat    // F64 to F32
	opDoubleToOdd      // F64 to F32, rounded so that rounding again does no harm
	opWiden            // of a narrower integer dtype to I64
	opNarrow           // of I64 to a narrower integer dtype
	opSign             // I64 to U64 or back
	opIntToDouble      // of I64 or U64 to F64
	opIntToOdd         // of I64 or U64 to F64, rounded so that rounding again does no harm
	opDoubleToInt      // F64 to I64 or U64
	opNonZero          // of F32, F64, I64 or U64 to Bool
	opToComplex        // F32 to C64
)

// newConversion plans the steps. Only C64 cannot become all else: what should
// become of its imaginary part is for the caller to say.
func newConversion(from, to DType) (conversion, error) {
	c := conversion{from: from, to: to}
	is, becomes := dtypes[from].class, dtypes[to].class
	switch {
	case from == to && from != Bool:
		c.add(opCopy, from, to)
		return c, nil
	case is == classComplex:
		return c, fmt.Errorf("safetensors: %w: %s has imaginary parts, which %s has not", ErrDType, from, to)
	}

	at := from
	switch {
	case floatFormats[from].special != 0, from.Bits() <= 16 && (becomes == classFloat || becomes == classComplex):
		at = c.add(opDecode, from, F32)
	case is != classFloat && from.Bits() < 64:
		at = c.add(opWiden, from, I64)
	}

	switch becomes {
	case classBool:
		c.add(opNonZero, at, Bool)
	case classInt, classUint:
		whole := I64
		if to == U64 {
			whole = U64
		}
		if at == F32 {
			at = c.add(opFloatToDouble, F32, F64)
		}
		switch at {
		case whole:
		case F64:
			c.add(opDoubleToInt, whole, whole)
		default:
			c.add(opSign, at, whole)
		}
		if to != whole {
			c.add(opNarrow, to, to)
		}
	case classFloat, classComplex:
		switch {
		case at == F32 || at == F64:
		case to == F64 || from.Bits() < 64:
			at = c.add(opIntToDouble, at, F64)
		default:
			at = c.add(opIntToOdd, at, F64)
		}
		switch {
		case at == F32 && to == F64:
			c.add(opFloatToDouble, F32, F64)
		case at == F64 && (to == F32 || to == C64):
			c.add(opDoubleToFloat, F64, F32)
		case at == F64 && to != F64:
			c.add(opDoubleToOdd, F64, F32)
		}
		if floatFormats[to].special != 0 {
			c.add(opEncode, to, to)
		}
		if to == C64 {
			c.add(opToComplex, F32, C64)
		}
	}
	return c, nil
}

func (c *conversion) add(op op, d, gives DType) DType {
	c.steps[c.n] = step{op, d, gives}
	c.n++
	return gives
}

// group returns the least number of elements that are whole bytes of both.
func (c conversion) group() int64 {
	group := func(d DType) int64 {
		switch d.Bits() {
		case 4:
			return 2
		case 6:
			return 4
		}
		return 1
	}
	return max(group(c.from), group(c.to))
}

// bytesFrom and bytesTo return what n elements take, n being whole groups.
func (c conversion) bytesFrom(n int64) int64 { return sizeOfElements(n, c.from) }
func (c conversion) bytesTo(n int64) int64   { return sizeOfElements(n, c.to) }

func sizeOfElements(n int64, d DType) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(dtypes[d].bits))
	return int64(hi<<61 | lo>>3)
}

// perBlock returns how many elements to convert at once: a block's worth of the
// larger dtype.
func (c conversion) perBlock() int64 {
	return blockSize * 8 / int64(max(c.from.Bits(), c.to.Bits())) &^ 3
}

// run converts all of src, and returns the index of the first element that to
// cannot hold, or -1. Where far is true, dst is not worth keeping in the caches.
func (c conversion) run(dst, src []byte, far bool) int {
	if c.n == 1 {
		return c.steps[0].run(dst, src, far)
	}
	const most = 512 // elements; what they take on the way stays in the first cache
	var room [2][8 * most]byte
	for done := 0; len(src) > 0; done += most {
		in := src[:min(len(src), int(c.bytesFrom(most)))]
		n := int64(len(in)) * 8 / int64(c.from.Bits())
		src = src[len(in):]
		for i := range c.n {
			s := &c.steps[i]
			out := room[i&1][:sizeOfElements(n, s.gives)]
			if i == c.n-1 {
				out = dst[:len(out)]
				dst = dst[len(out):]
			}
			if bad := s.run(out, in, far && i == c.n-1); bad >= 0 {
				return done + bad
			}
			in = out
		}
	}
	return -1
}

func (s *step) run(dst, src []byte, far bool) int {
	switch s.op {
	case opCopy:
		copy(dst, src)
	case opDecode:
		switch s.dtype {
		case BF16:
			bf16ToF32(dst, src, far)
		case F16:
			f16ToF32(dst, src, far)
		case I16:
			for i := range len(src) / 2 {
				le.PutUint32(dst[4*i:], math.Float32bits(float32(int16(le.Uint16(src[2*i:])))))
			}
		case U16:
			for i := range len(src) / 2 {
				le.PutUint32(dst[4*i:], math.Float32bits(float32(le.Uint16(src[2*i:]))))
			}
		case F4:
			f4ToF32(dst, src)
		case F6E2M3, F6E3M2:
			f6ToF32(dst, src, s.dtype)
		default:
			byteToF32(dst, src, s.dtype)
		}
	case opEncode:
		switch s.dtype {
		case BF16:
			f32ToBF16(dst, src)
		case F16:
			f32ToF16(dst, src)
		case F4:
			return f32ToF4(dst, src)
		case F6E2M3, F6E3M2:
			return f32ToF6(dst, src, s.dtype)
		default:
			f32ToByte(dst, src, s.dtype)
		}
	case opFloatToDouble:
		for i := range len(src) / 4 {
			x := float64(math.Float32frombits(le.Uint32(src[4*i:])))
			le.PutUint64(dst[8*i:], math.Float64bits(x))
		}
	case opDoubleToFloat:
		for i := range len(src) / 8 {
			x := float32(math.Float64frombits(le.Uint64(src[8*i:])))
			le.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	case opDoubleToOdd:
		for i := range len(src) / 8 {
			le.PutUint32(dst[4*i:], oddFloat32(math.Float64frombits(le.Uint64(src[8*i:]))))
		}
	case opWiden:
		widen(dst, src, s.dtype)
	case opNarrow:
		return narrowInts(dst, src, s.dtype)
	case opSign:
		for i := range len(src) / 8 {
			if int64(le.Uint64(src[8*i:])) < 0 {
				return i
			}
		}
		copy(dst, src)
	case opIntToDouble:
		for i := range len(src) / 8 {
			x := le.Uint64(src[8*i:])
			f := float64(x)
			if s.dtype == I64 {
				f = float64(int64(x))
			}
			le.PutUint64(dst[8*i:], math.Float64bits(f))
		}
	case opIntToOdd:
		for i := range len(src) / 8 {
			x := le.Uint64(src[8*i:])
			f := oddFloat64(x)
			if s.dtype == I64 && int64(x) < 0 {
				f = -oddFloat64(-x)
			}
			le.PutUint64(dst[8*i:], math.Float64bits(f))
		}
	case opDoubleToInt:
		return doublesToInts(dst, src, s.dtype)
	case opNonZero:
		nonZeros(dst, src, s.dtype)
	case opToComplex:
		for i := range len(src) / 4 {
			le.PutUint64(dst[8*i:], uint64(le.Uint32(src[4*i:])))
		}
	}
	return -1
}

// oddFloat32 returns the bits of x as a float32, rounded to odd: toward zero,
// and then the last bit set if anything was lost. Rounding that to nearest, at
// two bits less or fewer still, gives what rounding x would.
func oddFloat32(x float64) uint32 {
	y := float32(x)
	b := math.Float32bits(y)
	if float64(y) == x || x != x {
		return b
	}
	if math.Abs(float64(y)) > math.Abs(x) {
		b--
	}
	return b | 1
}

// oddFloat64 is x rounded to odd.
func oddFloat64(x uint64) float64 {
	if drop := bits.Len64(x) - 53; drop > 0 {
		lost := x & (1<<drop - 1)
		if x -= lost; lost != 0 {
			x |= 1 << drop
		}
	}
	return float64(x)
}

// widen makes I64 of integers of d, and 0 or 1 where d is Bool.
func widen(dst, src []byte, d DType) {
	width := d.Bits() / 8
	up := 64 - d.Bits()
	for i := range len(src) / width {
		var x uint64
		switch width {
		case 1:
			x = uint64(src[i])
		case 2:
			x = uint64(le.Uint16(src[2*i:]))
		case 4:
			x = uint64(le.Uint32(src[4*i:]))
		}
		switch dtypes[d].class {
		case classInt:
			x = uint64(int64(x<<up) >> up)
		case classBool:
			x = min(x, 1)
		}
		le.PutUint64(dst[8*i:], x)
	}
}

// narrowInts makes integers of d of I64, and returns the index of the first
// that does not fit, or -1.
func narrowInts(dst, src []byte, d DType) int {
	least, most := int64(0), int64(1)<<d.Bits()-1
	if dtypes[d].class == classInt {
		least, most = -1<<(d.Bits()-1), 1<<(d.Bits()-1)-1
	}
	width := d.Bits() / 8
	for i := range len(src) / 8 {
		x := int64(le.Uint64(src[8*i:]))
		if x < least || x > most {
			return i
		}
		switch width {
		case 1:
			dst[i] = uint8(x)
		case 2:
			le.PutUint16(dst[2*i:], uint16(x))
		case 4:
			le.PutUint32(dst[4*i:], uint32(x))
		}
	}
	return -1
}

// doublesToInts drops fractions. It returns the index of the first number whose
// integer d, I64 or U64, does not have, or -1.
func doublesToInts(dst, src []byte, d DType) int {
	for i := range len(src) / 8 {
		x := math.Float64frombits(le.Uint64(src[8*i:]))
		var n uint64
		switch {
		case x >= -1<<63 && x < 1<<63 && (d == I64 || x > -1):
			n = uint64(int64(x))
		case d == U64 && x >= 1<<63 && x < 1<<64:
			n = uint64(x)
		default:
			return i
		}
		le.PutUint64(dst[8*i:], n)
	}
	return -1
}

// nonZeros makes Bool of elements of d: false for 0 and -0, else true.
func nonZeros(dst, src []byte, d DType) {
	width := d.Bits() / 8
	for i := range len(src) / width {
		var x uint64
		if width == 4 {
			x = uint64(le.Uint32(src[4*i:]))
		} else {
			x = le.Uint64(src[8*i:])
		}
		if dtypes[d].class == classFloat {
			x &= 1<<(8*width-1) - 1
		}
		dst[i] = 0
		if x != 0 {
			dst[i] = 1
		}
	}
}

// valueError says which element it is that to cannot hold: the i-th of src,
// which is the tensor from its element first on.
func (c conversion) valueError(src []byte, i int, first int64) error {
	at := i * c.from.Bits()
	var x uint64
	for j, b := range src[at/8 : (at+c.from.Bits()+7)/8] {
		x |= uint64(b) << (8 * j)
	}
	x = x >> (at % 8) << (64 - c.from.Bits()) >> (64 - c.from.Bits())
	var text string
	switch {
	case c.from == F64:
		text = strconv.FormatFloat(math.Float64frombits(x), 'g', -1, 64)
	case c.from == F32:
		text = strconv.FormatFloat(float64(math.Float32frombits(uint32(x))), 'g', -1, 32)
	case dtypes[c.from].class == classFloat:
		text = strconv.FormatFloat(float64(decodeNarrow(c.from, uint16(x))), 'g', -1, 32)
	case dtypes[c.from].class == classInt:
		text = strconv.FormatInt(int64(x<<(64-c.from.Bits()))>>(64-c.from.Bits()), 10)
	default:
		text = strconv.FormatUint(x, 10)
	}
	return fmt.Errorf("safetensors: %w: element %d is %s, which %s cannot hold", ErrValueRange, first+int64(i), text, c.to)
}

// fill converts the elements of t from first on, as many as dst has room for.
// Both are whole groups. What can be read at any place is converted by all
// processors; of each of their goroutines, every block is under guard.
func (c conversion) fill(dst []byte, t Tensor, first int64) error {
	group := c.group()
	n := int64(len(dst)) / c.bytesTo(group) * group
	if !anyPlace(t.src) {
		_, err := c.stream(&filler{dst}, t, c.bytesTo(first), int64(len(dst)))
		return err
	}
	far := len(dst) >= farSize
	per := c.perBlock()
	if n <= per {
		return c.block(dst, t, first, far)
	}
	return parallel(int((n+per-1)/per), func(i int) error {
		lo := int64(i) * per
		hi := min(lo+per, n)
		return c.block(dst[c.bytesTo(lo):c.bytesTo(hi)], t, first+lo, far)
	})
}

// farSize is where writing past the caches begins to pay: measured at two to
// three times the speed for 64 MiB, since memory need not be read before it is
// written over. Blocks on their way to a writer are smaller and stay in cache.
const farSize = 16 << 20

// block is fill for up to a block, by one goroutine.
func (c conversion) block(dst []byte, t Tensor, first int64, far bool) error {
	use := func(src []byte) error {
		if bad := c.run(dst, src, far); bad >= 0 {
			return c.valueError(src, bad, first)
		}
		return nil
	}
	group := c.group()
	off := t.off + c.bytesFrom(first)
	n := c.bytesFrom(int64(len(dst)) / c.bytesTo(group) * group)
	switch src := t.src.(type) { // one by one: through the interface, use would cost an allocation
	case bytesSource:
		return use(src[off : off+n])
	case *File:
		if ok, err := src.memory(off, n, use); ok {
			return err
		}
	}
	buf := blocks.Get().(*[blockSize]byte)
	defer blocks.Put(buf)
	if err := t.src.read(buf[:n], off); err != nil {
		return err
	}
	return use(buf[:n])
}

var blocks = sync.Pool{New: func() any { return new([blockSize]byte) }}

// anyPlace reports whether reading s here and there, by many goroutines at
// once, costs no more than reading it in order.
func anyPlace(s source) bool {
	switch bottom(s).(type) {
	case *File, bytesSource:
		return true
	}
	return false
}

// parallel calls work with 0 to n-1, on all processors. Of several errors it
// returns that of the least number, as a plain loop would.
func parallel(n int, work func(int) error) error {
	var (
		next   atomic.Int64
		failed atomic.Bool
		mu     sync.Mutex
		first  = n
		err    error
		wg     sync.WaitGroup
	)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			// Numbers are handed out in order, so those before a failed one are under way.
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if e := work(i); e != nil {
					failed.Store(true)
					mu.Lock()
					if i < first {
						first, err = i, e
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return err
}

// A filler is a writer into memory.
type filler struct{ p []byte }

func (f *filler) Write(b []byte) (int, error) {
	n := copy(f.p, b)
	f.p = f.p[n:]
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}
