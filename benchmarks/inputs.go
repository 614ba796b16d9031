package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
)

// An entry is one tensor of a header to make.
type entry struct {
	name  string
	dtype string
	shape []int
}

// width is the bytes of one element, and the place of the dtype in the order
// that writers sort by.
var dtypes = map[string]struct{ width, order int }{
	"F8_E5M2": {1, 6}, "F8_E4M3": {1, 7}, "F16": {2, 13}, "BF16": {2, 14}, "I32": {4, 15}, "F32": {4, 17},
}

func (e entry) size() int64 {
	n := int64(dtypes[e.dtype].width)
	for _, d := range e.shape {
		n *= int64(d)
	}
	return n
}

// dense names the tensors of a llama-like model of n tensors: nine a layer.
func dense(n int, dtype string, hidden, inner, vocab int) []entry {
	list := []entry{
		{"model.embed_tokens.weight", dtype, []int{vocab, hidden}},
		{"model.norm.weight", dtype, []int{hidden}},
		{"lm_head.weight", dtype, []int{vocab, hidden}},
	}
	for layer := 0; len(list) < n; layer++ {
		p := fmt.Sprintf("model.layers.%d.", layer)
		list = append(list,
			entry{p + "input_layernorm.weight", dtype, []int{hidden}},
			entry{p + "mlp.down_proj.weight", dtype, []int{hidden, inner}},
			entry{p + "mlp.gate_proj.weight", dtype, []int{inner, hidden}},
			entry{p + "mlp.up_proj.weight", dtype, []int{inner, hidden}},
			entry{p + "post_attention_layernorm.weight", dtype, []int{hidden}},
			entry{p + "self_attn.k_proj.weight", dtype, []int{hidden / 4, hidden}},
			entry{p + "self_attn.o_proj.weight", dtype, []int{hidden, hidden}},
			entry{p + "self_attn.q_proj.weight", dtype, []int{hidden, hidden}},
			entry{p + "self_attn.v_proj.weight", dtype, []int{hidden / 4, hidden}},
		)
	}
	return list[:n]
}

// A part is one tensor of an expert's matrix, as a quantised model has several.
type part struct {
	suffix string
	dtype  string
	shape  []int
}

var (
	plainParts = []part{{"weight", "BF16", []int{768, 2048}}}
	fp8Parts   = []part{{"weight", "F8_E4M3", []int{2048, 7168}}, {"weight_scale_inv", "F32", []int{16, 56}}}
	int4Parts  = []part{{"qweight", "I32", []int{896, 2048}}, {"qzeros", "I32", []int{56, 256}}, {"scales", "F16", []int{56, 2048}}}
)

// moe names the tensors of a mixture-of-experts model of n tensors.
func moe(n, experts int, parts []part) []entry {
	list := []entry{
		{"model.embed_tokens.weight", "BF16", []int{151936, 2048}},
		{"model.norm.weight", "BF16", []int{2048}},
		{"lm_head.weight", "BF16", []int{151936, 2048}},
	}
	for layer := 0; len(list) < n; layer++ {
		p := fmt.Sprintf("model.layers.%d.", layer)
		list = append(list,
			entry{p + "input_layernorm.weight", "BF16", []int{2048}},
			entry{p + "post_attention_layernorm.weight", "BF16", []int{2048}},
			entry{p + "mlp.gate.weight", "BF16", []int{experts, 2048}},
			entry{p + "self_attn.k_norm.weight", "BF16", []int{128}},
			entry{p + "self_attn.q_norm.weight", "BF16", []int{128}},
		)
		for _, proj := range []string{"k_proj", "o_proj", "q_proj", "v_proj"} {
			list = append(list, entry{p + "self_attn." + proj + ".weight", "BF16", []int{4096, 2048}})
		}
		for e := range experts {
			for _, proj := range []string{"down_proj", "gate_proj", "up_proj"} {
				for _, part := range parts {
					name := p + "mlp.experts." + strconv.Itoa(e) + "." + proj + "." + part.suffix
					list = append(list, entry{name, part.dtype, part.shape})
				}
			}
		}
	}
	return list[:n]
}

// lora names the tensors of an adapter: an A and a B for seven matrices a layer.
func lora(n int) []entry {
	var list []entry
	for layer := 0; len(list) < n; layer++ {
		p := fmt.Sprintf("base_model.model.model.layers.%d.", layer)
		for _, m := range []string{
			"mlp.down_proj", "mlp.gate_proj", "mlp.up_proj",
			"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj",
		} {
			list = append(list,
				entry{p + m + ".lora_A.weight", "F32", []int{16, 4096}},
				entry{p + m + ".lora_B.weight", "F32", []int{4096, 16}})
		}
	}
	return list[:n]
}

// short names n tensors so briefly that a million fit into the largest header
// that the reference reads.
func short(n int) []entry {
	list := make([]entry, n)
	for i := range list {
		list[i] = entry{fmt.Sprintf("h.%d.e.%d.w%d", i/3072, i/3%1024, i%3), "BF16", []int{64, 64}}
	}
	return list
}

// A form is how a header is written.
type form struct {
	pretty   bool // spaces and line breaks, as a JSON pretty printer makes them
	reorder  bool // data_offsets and shape before dtype
	escape   bool // one character of each name as \u00xx
	shuffled bool // entries in another order than their data
}

// header writes what stands before the data, as the reference's writer would
// save for the form, and gives the size of the data.
func header(entries []entry, f form) (head []byte, data int64) {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(dtypes[b.dtype].order, dtypes[a.dtype].order), cmp.Compare(a.name, b.name))
	})
	texts := make([]string, len(entries))
	for i, e := range entries {
		texts[i] = f.entry(e, data)
		data += e.size()
	}
	if f.shuffled {
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	}
	meta, comma, end := `{"__metadata__":{"format":"pt"}`, ",", "}"
	if f.pretty {
		meta, comma, end = "{\n  \"__metadata__\": {\n    \"format\": \"pt\"\n  }", ",\n  ", "\n}"
	}
	b := bytes.NewBuffer(make([]byte, 8))
	b.WriteString(meta)
	for _, t := range texts {
		b.WriteString(comma)
		b.WriteString(t)
	}
	b.WriteString(end)
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	head = b.Bytes()
	binary.LittleEndian.PutUint64(head, uint64(len(head)-8))
	return head, data
}

func (f form) entry(e entry, begin int64) string {
	name := e.name
	if f.escape {
		name = fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
	}
	dims := make([]string, len(e.shape))
	for i, d := range e.shape {
		dims[i] = strconv.Itoa(d)
	}
	open, colon, comma, end, list := "{", ":", ",", "}", func(items ...string) string { return "[" + strings.Join(items, ",") + "]" }
	if f.pretty {
		open, colon, comma, end = "{\n    ", ": ", ",\n    ", "\n  }"
		list = func(items ...string) string {
			return "[\n      " + strings.Join(items, ",\n      ") + "\n    ]"
		}
	}
	dtype := `"dtype"` + colon + `"` + e.dtype + `"`
	shape := `"shape"` + colon + list(dims...)
	offsets := `"data_offsets"` + colon + list(strconv.FormatInt(begin, 10), strconv.FormatInt(begin+e.size(), 10))
	fields := []string{dtype, shape, offsets}
	if f.reorder {
		fields = []string{offsets, shape, dtype}
	}
	return `"` + name + `"` + colon + open + strings.Join(fields, comma) + end
}

// writeSparse writes a file whose data is a hole: real shapes, however large,
// cost no disk.
func writeSparse(name string, head []byte, data int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(head); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(head)) + data); err != nil {
		return err
	}
	return f.Close()
}

// writeFull writes a file with data that is not all zero.
func writeFull(name string, head []byte, data int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	w.Write(head)
	block := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(block)
	for data > 0 {
		n := min(data, int64(len(block)))
		w.Write(block[:n])
		data -= n
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// Written back now, so that it does not happen while something is measured.
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// modelOf lists half-precision tensors of about that many bytes in all.
func modelOf(total int64) []entry {
	hidden := 4096
	if total < 1<<30 {
		hidden = 1024
	}
	list, sum := []entry(nil), int64(0)
	for _, e := range dense(3000, "F16", hidden, hidden*7/2, hidden*8) {
		if sum+e.size() > total {
			break
		}
		list, sum = append(list, e), sum+e.size()
	}
	return list
}
