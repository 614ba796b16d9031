package safetensors_test

import (
	"fmt"

	"github.com/go-safetensors/safetensors"
)

// The second of two ranks takes its half of the columns.
func ExampleTensor_Slice() {
	weight := safetensors.Of([]float32{
		0, 1, 2, 3,
		4, 5, 6, 7,
		8, 9, 10, 11,
	}, 3, 4)
	whole := safetensors.Range{Stop: safetensors.End}
	half, err := weight.Slice(whole, safetensors.Range{Start: 2, Stop: safetensors.End})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(half.Shape(), half.Size(), "bytes")

	_, err = weight.Slice(safetensors.Range{Start: 2, Stop: 5})
	fmt.Println(err)
	// Output:
	// [3 2] 24 bytes
	// safetensors: out-of-range: range {Start:2 Stop:5 Step:0} of dimension 0, whose size is 3: it stops past the end
}

// Heads that lie side by side in one matrix, each as a matrix of its own.
func ExampleTensor_Reshape() {
	const heads, size = 2, 3
	query := safetensors.New(safetensors.U8, []int{heads * size, 2}, []byte{
		0, 1, 2, 3, 4, 5,
		6, 7, 8, 9, 10, 11,
	})
	split, err := query.Reshape(heads, size, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := split.Slice(safetensors.Range{Start: 1, Stop: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := second.Bytes()
	fmt.Println(second.Shape(), b, err)
	// Output: [1 3 2] [6 7 8 9 10 11] <nil>
}
