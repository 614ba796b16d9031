package safetensors_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/go-safetensors/safetensors"
)

// weights has n numbers such as a model's, as d.
func weights(b *testing.B, n int, d safetensors.DType) safetensors.Tensor {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(r.NormFloat64() * 0.02)
		if d == safetensors.I8 {
			numbers[i] *= 1000
		}
	}
	t, err := safetensors.Of(numbers).Cast(d)
	if err != nil {
		b.Fatal(err)
	}
	data, err := t.Bytes()
	if err != nil {
		b.Fatal(err)
	}
	return safetensors.New(d, []int{n}, data)
}

// Bytes are those read and those written. What is in cache, and what is not.
var benchmarkSizes = []int{16 << 10, 16 << 20}

func BenchmarkConvertToFloat32(b *testing.B) {
	for _, n := range benchmarkSizes {
		dst := make([]float32, 0, n)
		for _, d := range []safetensors.DType{
			safetensors.F32, safetensors.BF16, safetensors.F16, safetensors.F8E4M3, safetensors.F8E5M2, safetensors.F4, safetensors.F64, safetensors.I8,
		} {
			t := weights(b, n, d)
			b.Run(fmt.Sprintf("%s/%d", d, n), func(b *testing.B) {
				b.SetBytes(int64(n) * int64(d.Bits()+32) / 8)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := safetensors.AppendFloat32(dst, t); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkConvertCast(b *testing.B) {
	for _, n := range benchmarkSizes {
		buf := make([]byte, 4*n)
		for _, c := range [][2]safetensors.DType{
			{safetensors.F32, safetensors.BF16},
			{safetensors.F32, safetensors.F16},
			{safetensors.F32, safetensors.F8E4M3},
			{safetensors.F32, safetensors.F8E5M2},
			{safetensors.F32, safetensors.F4},
			{safetensors.BF16, safetensors.F16},
			{safetensors.F16, safetensors.F8E4M3},
			{safetensors.F64, safetensors.BF16},
		} {
			t, err := weights(b, n, c[0]).Cast(c[1])
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%sTo%s/%d", c[0], c[1], n), func(b *testing.B) {
				b.SetBytes(int64(n) * int64(c[0].Bits()+c[1].Bits()) / 8)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := t.ReadAt(buf[:t.Size()], 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// What saving a cast does, but for the file.
func BenchmarkConvertWrite(b *testing.B) {
	const n = 16 << 20
	t, err := weights(b, n, safetensors.F32).Cast(safetensors.BF16)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(6 * n)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t.WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkView(b *testing.B) {
	t := weights(b, 1000, safetensors.F32)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := safetensors.View[float32](t); err != nil {
			b.Fatal(err)
		}
	}
}
