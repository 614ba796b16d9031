package safetensors

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

// A number is what a code stands for, exactly. x is nil for NaN.
type number struct{ x *big.Float }

func numberOf(d DType, code uint64) number {
	var f float64
	switch {
	case d == F64:
		f = math.Float64frombits(code)
	case d == F32 || d == C64:
		f = float64(math.Float32frombits(uint32(code)))
	case dtypes[d].class == classFloat:
		f = float64(decodeNarrow(d, uint16(code)))
	case dtypes[d].class == classInt:
		shift := 64 - d.Bits()
		return number{new(big.Float).SetInt64(int64(code<<shift) >> shift)}
	case d == Bool:
		return number{new(big.Float).SetUint64(min(code, 1))}
	default:
		return number{new(big.Float).SetUint64(code)}
	}
	if math.IsNaN(f) {
		return number{}
	}
	return number{new(big.Float).SetFloat64(f)}
}

// as returns the code of d that n should become. ok is false where there is
// none; any code of a NaN will do where nan is true.
func (n number) as(d DType) (code uint64, nan, ok bool) {
	class := dtypes[d].class
	switch {
	case d == Bool:
		if n.x == nil || n.x.Sign() != 0 {
			return 1, false, true
		}
		return 0, false, true
	case class == classInt || class == classUint:
		if n.x == nil || n.x.IsInf() {
			return 0, false, false
		}
		i, _ := n.x.Int(nil)
		least, most := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(d.Bits()))
		if class == classInt {
			most.Rsh(most, 1)
			least.Neg(most)
		}
		if i.Cmp(least) < 0 || i.Cmp(most) >= 0 {
			return 0, false, false
		}
		if i.Sign() < 0 {
			return uint64(i.Int64()) & (1<<d.Bits() - 1), false, true
		}
		return i.Uint64(), false, true
	case n.x == nil:
		return 0, true, d != F4 && d != F6E2M3 && d != F6E3M2
	case d == F64:
		f, _ := n.x.Float64()
		return math.Float64bits(f), false, true
	case d == F32 || d == C64:
		f, _ := n.x.Float32()
		return uint64(math.Float32bits(f)), false, true
	case d == F8E8M0 && n.x.Sign() <= 0:
		return 0xff, true, true
	case d == F8E8M0 && n.x.Cmp(big.NewFloat(0x1p-127)) > 0 && n.x.Cmp(big.NewFloat(0x1p-126)) < 0:
		return 1, false, true
	}

	// Among all numbers that d has, and the one that would come next, search the
	// two that n is between.
	l := ladders[d]
	abs := new(big.Float).Abs(n.x)
	i := sort.Search(len(l.steps), func(i int) bool { return abs.Cmp(l.steps[i]) <= 0 })
	switch {
	case i == len(l.steps):
		i-- // beyond the next one
	case i > 0:
		below := new(big.Float).SetPrec(200).Sub(abs, l.steps[i-1])
		above := new(big.Float).SetPrec(200).Sub(l.steps[i], abs)
		// Where the code says the exponent alone, all significands are odd: 1.
		down := below.Cmp(above)
		if down < 0 || down == 0 && i%2 == 1 && d != F8E8M0 {
			i--
		}
	}
	code = uint64(i)
	if i == len(l.steps)-1 {
		if l.over < 0 {
			return 0, true, true
		}
		code = uint64(l.over)
	}
	sign := uint64(0)
	if n.x.Signbit() && d != F8E8M0 {
		sign = 1 << (d.Bits() - 1)
	}
	if code == 0 && (d == F8E4M3FNUZ || d == F8E5M2FNUZ) {
		sign = 0
	}
	return sign | code, false, true
}

// A ladder has the numbers of a dtype that are not negative by their codes, and
// one more: what the next code would be if it were a number.
type ladder struct {
	steps []*big.Float
	over  int // code of what is beyond, or -1 for NaN
}

var ladders = func() map[DType]ladder {
	all := map[DType]ladder{}
	for d, over := range map[DType]int{
		F4: 7, F6E2M3: 31, F6E3M2: 31, F8E5M2: 0x7c, F16: 0x7c00, BF16: 0x7f80,
		F8E4M3: -1, F8E8M0: -1, F8E4M3FNUZ: -1, F8E5M2FNUZ: -1,
	} {
		l := ladder{over: over}
		for code := 0; ; code++ {
			x := decodeNarrow(d, uint16(code))
			if x != x || math.IsInf(float64(x), 1) || x < 0 || math.Signbit(float64(x)) || code == 1<<d.Bits() {
				break
			}
			l.steps = append(l.steps, new(big.Float).SetFloat64(float64(x)))
		}
		last := l.steps[len(l.steps)-1]
		if d == F8E8M0 {
			last = new(big.Float).Add(last, last)
		} else {
			unit := new(big.Float).Sub(last, l.steps[len(l.steps)-2])
			last = new(big.Float).Add(last, unit)
		}
		l.steps = append(l.steps, last)
		all[d] = l
	}
	return all
}()

// inputs returns codes of from that may be hard for to.
func inputs(from, to DType) (list []uint64) {
	if from.Bits() <= 8 {
		for code := range uint64(1) << from.Bits() {
			list = append(list, code)
		}
		return list
	}
	n := 300
	if testing.Short() {
		n = 50
	}
	for range n {
		x := rand.Uint64()
		list = append(list, x>>(64-from.Bits()))
		x >>= rand.IntN(64)
		list = append(list, x&(1<<(from.Bits()-1)<<1-1), -x&(1<<(from.Bits()-1)<<1-1))
	}
	list = append(list, 0, 1, 1<<(from.Bits()-1), 1<<(from.Bits()-1)-1, 1<<(from.Bits()-1)<<1-1)
	add := func(f float64) {
		for _, f := range []float64{f, -f} {
			switch from {
			case F64:
				x := math.Float64bits(f)
				list = append(list, x, x+1, x-1)
			case F32:
				x := uint64(math.Float32bits(float32(f)))
				list = append(list, x, x+1, (x-1)&(1<<32-1))
			case F16, BF16:
				x, _ := encodeNarrow(from, f)
				list = append(list, uint64(x), uint64(x+1), uint64(x-1))
			default:
				if math.Abs(f) < 1<<63 {
					x := uint64(int64(f))
					for _, x := range []uint64{x, x + 1, x - 1, x ^ 1<<63} {
						list = append(list, x&(1<<(from.Bits()-1)<<1-1))
					}
				}
			}
		}
	}
	for _, f := range []float64{0, math.Inf(1), math.NaN(), 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64,
		127.5, 255.5, 0.5, 1, math.MaxFloat32, math.SmallestNonzeroFloat32, math.MaxFloat64, 5e-324, 1e-310, 1 << 53, 1 << 24} {
		add(f)
	}
	if l, ok := ladders[to]; ok {
		for range n {
			i := rand.IntN(len(l.steps) - 1)
			if len(l.steps) < n {
				i = len(list) % (len(l.steps) - 1)
			}
			lo, _ := l.steps[i].Float64()
			hi, _ := l.steps[i+1].Float64()
			add(lo)
			add(lo + (hi-lo)/2)
		}
		top, _ := l.steps[len(l.steps)-1].Float64()
		under, _ := l.steps[len(l.steps)-2].Float64()
		add(under + (top-under)/2)
		add(top)
	}
	if to == F32 || to == F64 {
		for range n {
			f := rand.Float32()
			add(math.Ldexp((float64(f)+float64(math.Nextafter32(f, 2)))/2, rand.IntN(80)-10))
		}
	}
	return list
}

// Every pair of dtypes agrees with exact arithmetic.
func TestConvertAllPairs(t *testing.T) {
	everyWay(t, func(t *testing.T) {
		for from := Bool; from <= U64; from++ {
			for to := Bool; to <= U64; to++ {
				testPair(t, from, to)
			}
		}
	})
}

func testPair(t *testing.T, from, to DType) {
	c, err := newConversion(from, to)
	if from == C64 && to != C64 {
		require.ErrorIs(t, err, ErrDType)
		return
	}
	require.NoError(t, err)
	if from == to && from != Bool {
		return // bits, in TestConvertKeepsBits
	}
	var fit, misfit []uint64
	for _, code := range inputs(from, to) {
		if _, _, ok := numberOf(from, code).as(to); ok {
			fit = append(fit, code)
		} else {
			misfit = append(misfit, code)
		}
	}
	fit = fit[:len(fit)&^3]
	require.NotEmpty(t, fit)
	src := codes(from, fit)
	dst := make([]byte, c.bytesTo(int64(len(fit))))
	require.Equal(t, -1, c.run(dst, src, false), "%s to %s", from, to)
	for i, code := range fit {
		n := numberOf(from, code)
		want, nan, _ := n.as(to)
		got := codeAt(dst, to, i)
		if nan {
			if numberOf(to, got).x != nil {
				t.Fatalf("%s to %s: %#x (%v) gives %#x, want NaN", from, to, code, n.x, got)
			}
		} else if got != want {
			t.Fatalf("%s to %s: %#x (%v) gives %#x, want %#x", from, to, code, n.x, got, want)
		}
	}
	for _, code := range misfit {
		at := rand.IntN(len(fit))
		old := codeAt(src, from, at)
		putCode(src, from, at, code)
		if got := c.run(dst, src, false); got != at {
			t.Fatalf("%s to %s: %#x (%v) at %d should be refused, got %d", from, to, code, numberOf(from, code).x, at, got)
		}
		putCode(src, from, at, old)
	}
}

func TestConvertKeepsBits(t *testing.T) {
	for d := Bool + 1; d <= U64; d++ {
		c, err := newConversion(d, d)
		require.NoError(t, err)
		src := make([]byte, 240)
		for i := range src {
			src[i] = byte(rand.Uint32())
		}
		dst := make([]byte, len(src))
		require.Equal(t, -1, c.run(dst, src, false))
		require.Equal(t, src, dst)
	}
}

func TestParallel(t *testing.T) {
	done := make([]int, 1000)
	require.NoError(t, parallel(len(done), func(i int) error { done[i]++; return nil }))
	for _, n := range done {
		require.Equal(t, 1, n)
	}
	for range 100 {
		fail := rand.IntN(len(done))
		err := parallel(len(done), func(i int) error {
			if i >= fail {
				return fmt.Errorf("%d", i)
			}
			return nil
		})
		require.EqualError(t, err, fmt.Sprint(fail))
	}
	require.NoError(t, parallel(0, func(int) error { return errors.New("called") }))
}
