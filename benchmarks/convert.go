package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/go-safetensors/safetensors"
	"github.com/x448/float16"
)

// A conversion is from one dtype to another; one of them is F32.
type conversion struct{ from, to safetensors.DType }

const x448 = "x448/float16: one by one"

func convertTopic(s *settings, p *peers, r *report) error {
	n := 16 << 20
	if s.quick {
		n = 1 << 20
	}
	numbers := weights(n)
	file := filepath.Join(s.scratch, "weights.bin")
	defer os.Remove(file)
	if err := os.WriteFile(file, numbers, 0o644); err != nil {
		return err
	}
	r.section("Conversions", fmt.Sprintf(`
%s numbers like a model's weights (normal, standard deviation 0.02), from memory to memory that is in use already.
This library is AppendFloat32 into a slice with room for F32, and Cast and ReadAt otherwise. numpy converts with
copyto, by ml_dtypes where the type is not numpy's own; torch with copy_.`, thousands(float64(n))))
	var groups []group
	for _, c := range []conversion{
		{safetensors.BF16, safetensors.F32},
		{safetensors.F16, safetensors.F32},
		{safetensors.F8E4M3, safetensors.F32},
		{safetensors.F8E5M2, safetensors.F32},
		{safetensors.F32, safetensors.BF16},
		{safetensors.F32, safetensors.F16},
		{safetensors.F32, safetensors.F8E4M3},
	} {
		all, err := convertRun(s, p, c, numbers, file)
		if err != nil {
			return err
		}
		label := fmt.Sprintf("%v to %v", c.from, c.to)
		moved := int64(n) * int64(c.from.Bits()+c.to.Bits()) / 8
		r.results(label, all, all[0], moved)
		if one := find(all, x448); one != nil {
			r.require(label+": x448/float16 ÷ ours", ratio(one, all[0]), atLeast(2))
		}
		bars := group{title: label}
		for i, one := range all {
			b := bar{label: one.name, ours: i == 0}
			if one.ok() {
				b.value = float64(n) / one.median()
			}
			if one.err != errMissing {
				bars.bars = append(bars.bars, b)
			}
		}
		groups = append(groups, bars)
	}
	r.chart("convert", "Speed of converting numbers", barChart("Conversions", "billion numbers per second", groups))
	return sliceTopic(s, p, r)
}

// weights makes n numbers like a model's, as the bytes of F32.
func weights(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 0, 4*n)
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(random.NormFloat64()*0.02)))
	}
	return b
}

func convertRun(s *settings, p *peers, c conversion, numbers []byte, file string) ([]*series, error) {
	n := len(numbers) / 4
	in := safetensors.New(safetensors.F32, []int{n}, numbers)
	if c.from != safetensors.F32 {
		cast, err := in.Cast(c.from)
		if err != nil {
			return nil, err
		}
		data, err := cast.Bytes()
		if err != nil {
			return nil, err
		}
		in = safetensors.New(c.from, []int{n}, data)
	}
	if err := near(c, in, numbers); err != nil {
		return nil, err
	}
	contenders := []contender{ourConversion(c, in, n)}
	if only, ok := x448Conversion(c, in, n); ok {
		contenders = append(contenders, only)
	}
	contenders = append(contenders, contender{name: "numpy: copyto", run: func(times int) (sample, error) {
		return p.python.ask("numpy", file, c.from, c.to, times)
	}})
	threads := []int{1}
	if s.threads > 1 {
		threads = append(threads, s.threads)
	}
	for _, t := range threads {
		contenders = append(contenders, contender{name: fmt.Sprintf("torch: copy_, threads: %d", t), run: func(times int) (sample, error) {
			if !p.torch {
				return sample{}, errMissing
			}
			return p.python.ask("torch", file, c.from, c.to, t, times)
		}})
	}
	return s.measure(fmt.Sprintf("convert, %v to %v", c.from, c.to), contenders), nil
}

// near checks that a conversion gives the numbers it should, as closely as the
// smaller dtype can hold them, so that nothing fast and wrong is measured.
func near(c conversion, in safetensors.Tensor, numbers []byte) error {
	out, err := in.Cast(c.to)
	if err != nil {
		return err
	}
	got, err := safetensors.AppendFloat32(nil, out)
	if err != nil {
		return err
	}
	// What rounding may add: a part of the number, or of the least step.
	limits := map[safetensors.DType]struct{ part, step float64 }{
		safetensors.BF16:   {1.0 / (1 << 8), 0},
		safetensors.F16:    {1.0 / (1 << 11), 1.0 / (1 << 25)},
		safetensors.F8E4M3: {1.0 / (1 << 4), 1.0 / (1 << 10)},
		safetensors.F8E5M2: {1.0 / (1 << 3), 1.0 / (1 << 17)},
	}
	small := c.from
	if small == safetensors.F32 {
		small = c.to
	}
	limit := limits[small]
	if err := same(len(got), len(numbers)/4); err != nil {
		return err
	}
	for i, x := range got {
		want := float64(math.Float32frombits(binary.LittleEndian.Uint32(numbers[4*i:])))
		if math.Abs(float64(x)-want) > max(math.Abs(want)*limit.part, limit.step) {
			return fmt.Errorf("%v to %v: number %d is %g where %g is near", c.from, c.to, i, x, want)
		}
	}
	return nil
}

func ourConversion(c conversion, in safetensors.Tensor, n int) contender {
	if c.to == safetensors.F32 {
		out := make([]float32, n)
		return contender{name: "this library: AppendFloat32", local: true, run: timed(func() error {
			got, err := safetensors.AppendFloat32(out[:0], in)
			if err != nil {
				return err
			}
			return same(len(got), n)
		})}
	}
	out := bytes.Repeat([]byte{1}, n*c.to.Bits()/8)
	return contender{name: "this library: Cast, ReadAt", local: true, run: timed(func() error {
		t, err := in.Cast(c.to)
		if err != nil {
			return err
		}
		_, err = t.ReadAt(out, 0)
		return ignoreEOF(err)
	})}
}

func x448Conversion(c conversion, in safetensors.Tensor, n int) (contender, bool) {
	data, err := in.Bytes()
	if err != nil {
		return contender{}, false
	}
	switch c {
	case conversion{safetensors.F16, safetensors.F32}:
		out := make([]float32, n)
		return contender{name: x448, local: true, run: timed(func() error {
			for i := range out {
				out[i] = float16.Frombits(binary.LittleEndian.Uint16(data[2*i:])).Float32()
			}
			return nil
		})}, true
	case conversion{safetensors.F32, safetensors.F16}:
		out := make([]uint16, n)
		return contender{name: x448, local: true, run: timed(func() error {
			for i := range out {
				out[i] = float16.Fromfloat32(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))).Bits()
			}
			return nil
		})}, true
	}
	return contender{}, false
}
