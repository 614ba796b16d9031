package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/go-safetensors/safetensors"
)

// modelHeader returns a file's length and header for about n tensors named and
// shaped like those of a mixture-of-experts model.
func modelHeader(n int) []byte {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	at := int64(0)
	add := func(name string, shape ...int) {
		size := int64(2)
		for _, d := range shape {
			size *= int64(d)
		}
		text := fmt.Sprint(shape[0])
		for _, d := range shape[1:] {
			text += fmt.Sprintf(",%d", d)
		}
		fmt.Fprintf(&b, `,"%s":{"dtype":"BF16","shape":[%s],"data_offsets":[%d,%d]}`, name, text, at, at+size)
		at += size
	}
	for i := 0; i < n; i++ {
		layer, part := i/388, i%388
		switch {
		case part == 0:
			add(fmt.Sprintf("model.layers.%d.input_layernorm.weight", layer), 2048)
		case part < 4:
			add(fmt.Sprintf("model.layers.%d.self_attn.%c_proj.weight", layer, "qkv"[part-1]), 2048, 2048)
		default:
			add(fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, (part-4)/3, []string{"gate", "up", "down"}[part%3]), 768, 2048)
		}
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes()
}

func BenchmarkReadHeader(b *testing.B) {
	for _, n := range []int{10, 300, 19_000, 100_000, 700_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := modelHeader(n)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := safetensors.ReadHeader(bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/tensor")
		})
	}
}
