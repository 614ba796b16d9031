package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"

	"github.com/go-safetensors/safetensors"
	"gonum.org/v1/gonum/mat"
)

func ExampleOf() {
	weights := []float32{1, 2, 3, 4, 5, 6}
	w := safetensors.Of(weights, 2, 3)
	fmt.Println(w.DType(), w.Shape(), w.Size())
	// Output: F32 [2 3] 24
}

// A view costs nothing, where there can be one. Values always works.
func ExampleView() {
	t := safetensors.Of([]float32{0.5, 1.5, -2})
	w, err := safetensors.View[float32](t)
	if errors.Is(err, safetensors.ErrMisaligned) || errors.Is(err, safetensors.ErrByteOrder) {
		w, err = safetensors.Values[float32](t)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(w)

	_, err = safetensors.View[float64](t)
	fmt.Println(err)
	// Output:
	// [0.5 1.5 -2]
	// safetensors: dtype-mismatch: want F64 for a slice of float64, got F32 (Values converts)
}

func ExampleValues() {
	t := safetensors.New(safetensors.BF16, []int{3}, []byte{0x80, 0x3f, 0x20, 0xc0, 0x00, 0x43})
	floats, err := safetensors.Values[float64](t)
	fmt.Println(floats, err)
	_, err = safetensors.Values[int8](t)
	fmt.Println(err)
	// Output:
	// [1 -2.5 128] <nil>
	// safetensors: value-out-of-range: element 2 is 128, which I8 cannot hold
}

// One buffer serves many tensors.
func ExampleAppendFloat32() {
	var buf []float32
	for _, t := range []safetensors.Tensor{
		safetensors.New(safetensors.F16, []int{2}, []byte{0x00, 0x3c, 0x00, 0xc0}),
		safetensors.New(safetensors.F8E4M3, []int{3}, []byte{0x38, 0x7e, 0x01}),
	} {
		var err error
		buf, err = safetensors.AppendFloat32(buf[:0], t)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(buf)
	}
	// Output:
	// [1 -2]
	// [1 448 0.001953125]
}

// Save a model's tensors as BF16, whatever they are in: nothing is converted
// before it is written.
func ExampleTensor_Cast() {
	model := map[string]safetensors.Tensor{"w": safetensors.Of([]float32{1, 1.0078125, 3.14159274}, 3)}
	for name, t := range model {
		var err error
		if model[name], err = t.Cast(safetensors.BF16); err != nil {
			log.Fatal(err)
		}
	}
	var file bytes.Buffer
	if _, err := safetensors.Write(&file, model); err != nil {
		log.Fatal(err)
	}

	f, err := safetensors.Parse(file.Bytes())
	if err != nil {
		log.Fatal(err)
	}
	w, err := f.Tensor("w")
	if err != nil {
		log.Fatal(err)
	}
	values, err := safetensors.Values[float32](w)
	fmt.Println(w.DType(), values, err)
	// Output: BF16 [1 1.0078125 3.140625] <nil>
}

// A matrix of any dtype becomes one of gonum.
func Example_toGonum() {
	t := safetensors.Of([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	values, err := safetensors.Values[float64](t)
	if err != nil {
		log.Fatal(err)
	}
	shape := t.Shape()
	m := mat.NewDense(shape[0], shape[1], values)
	fmt.Println(m.At(1, 2), mat.Sum(m))
	// Output: 6 21
}

// A tensor of a gonum matrix shares its memory, so long as its rows lie
// together; DenseCopyOf makes them so.
func Example_fromGonum() {
	m := mat.NewDense(2, 2, []float64{1, 2, 3, 4})
	raw := mat.DenseCopyOf(m.T()).RawMatrix()
	t := safetensors.Of(raw.Data, raw.Rows, raw.Cols)
	small, err := t.Cast(safetensors.F16)
	if err != nil {
		log.Fatal(err)
	}
	values, err := safetensors.Values[float32](small)
	fmt.Println(small.DType(), small.Shape(), values, err)
	// Output: F16 [2 2] [1 3 2 4] <nil>
}
