package safetensors_test

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-safetensors/safetensors"
)

func ExampleOpenModel() {
	m, err := safetensors.OpenModel("testdata/sh_good") // a file, an index or a folder
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	for name, t := range m.All() {
		shard, _ := m.Shard(name)
		fmt.Println(name, t.DType(), t.Shape(), shard)
	}
	// Output:
	// layer.0.w F32 [2] model-00001-of-00002.safetensors
	// layer.1.w F32 [3] model-00002-of-00002.safetensors
	// layer.1.b BF16 [1] model-00002-of-00002.safetensors
}

func ExampleModel_Verify() {
	m, err := safetensors.OpenModel("testdata/sh_dup_across_shards")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	for _, found := range m.Verify() {
		fmt.Println(found.Kind, found.Tensor, found.Got, found.Warning)
	}
	// Output:
	// index-duplicate-tensor layer.0.w it also in model-00002-of-00002.safetensors true
}

func ExampleSaveModel() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	size, err := safetensors.ParseSize("16B")
	if err != nil {
		log.Fatal(err)
	}
	files, err := safetensors.SaveModel(dir, map[string]safetensors.Tensor{
		"layer.2.w":  safetensors.Of([]float32{1, 2, 3, 4}, 2, 2),
		"layer.10.w": safetensors.Of([]float32{5, 6}, 2),
	}, safetensors.WithMaxShardSize(size), safetensors.WithMetadata(map[string]string{"format": "pt"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(files, "\n"))
	// Output:
	// model-00001-of-00002.safetensors
	// model-00002-of-00002.safetensors
	// model.safetensors.index.json
}

// A model in many shards becomes one file without some of its tensors, under
// other names; its metadata goes along. Memory stays at a few MiB.
func Example_edit() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	m, err := safetensors.OpenModel("testdata/sh_good")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	tensors, err := safetensors.Drop(maps.Collect(m.All()), "*.b")
	if err != nil {
		log.Fatal(err)
	}
	tensors, err = safetensors.Rename(tensors, func(name string) string { return "model." + name })
	if err != nil {
		log.Fatal(err)
	}
	out := filepath.Join(dir, "out.safetensors")
	if err := safetensors.Save(out, tensors, safetensors.WithMetadata(m.Metadata())); err != nil {
		log.Fatal(err)
	}

	f, err := safetensors.Open(out)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	fmt.Println(f.Names())
	// Output: [model.layer.0.w model.layer.1.w]
}

func ExampleUpdateMetadata() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")
	if err := safetensors.Save(path, map[string]safetensors.Tensor{"w": safetensors.Of([]uint8{1}, 1)}); err != nil {
		log.Fatal(err)
	}
	err = safetensors.UpdateMetadata(path, func(m map[string]string) error {
		m["format"] = "pt"
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	fmt.Println(f.Metadata())
	// Output: map[format:pt]
}

func ExampleRepair() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "repaired.safetensors")
	_, err = safetensors.Open("testdata/trailing_1_byte.safetensors")
	fmt.Println(errors.Is(err, safetensors.ErrTrailingBytes))
	changes, err := safetensors.Repair("testdata/trailing_1_byte.safetensors", out)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(changes, "\n"))
	// Output:
	// true
	// dropped 1 byte after the last tensor
	// moved the data from byte 63 to byte 64, so that it is aligned
}
