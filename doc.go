// Package safetensors reads and writes the safetensors file format, in which
// the weights of most published models are stored.
//
// # The format
//
// A file is three parts without gaps:
//
//	8 bytes   N, the length of the header: unsigned, little-endian
//	N bytes   the header: one JSON object in UTF-8, which may end in spaces
//	the rest  the data: the tensors' bytes, one after the other
//
// The header names each tensor and says what it is and where its bytes lie,
// counted from the start of the data. One key is not a tensor: __metadata__, an
// object of strings.
//
//	{"__metadata__":{"format":"pt"},
//	 "w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
//	 "b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}}
//
// Elements are little-endian, in row-major order. The tensors tile the data:
// no holes, no overlaps, and nothing after the last one. The specification is
// at https://github.com/huggingface/safetensors#format.
//
// # Tensors
//
// One value carries everything. A [Tensor] is a dtype, a shape and a place that
// its bytes come from: a memory map, a byte slice, an [io.ReaderAt], a function,
// or another tensor that is sliced or cast on the way. [Open] gives Tensors,
// [Tensor.Slice] and [Tensor.Cast] turn a Tensor into another without touching
// its data, and [Save] takes a map of them. So a rank's slice of a large file is
// written as BF16 in a few lines and a few MiB of memory:
//
//	f, err := safetensors.Open("model.safetensors")
//	...
//	t, err := f.Tensor("lm_head.weight")
//	...
//	t, err = t.Slice(safetensors.Range{Start: 3 * rows, Stop: 4 * rows})
//	...
//	t, err = t.Cast(safetensors.BF16)
//	...
//	err = safetensors.Save("rank3.safetensors", map[string]safetensors.Tensor{"lm_head.weight": t})
//
// To look at numbers, [View] gives a typed slice of the map itself where that is
// possible and says why where it is not; [Values] always gives a copy and
// converts; [Tensor.Bytes] gives the bytes as they are.
//
// # Lifetime
//
// What Bytes and View return for a mapped file is the map: it ends with
// [File.Close], and touching it after that ends the process. Everything else
// the library returns is memory that Go looks after.
//
// # Security
//
// A file may come from a stranger. Opening one runs nothing, checks every rule
// of the format once, and takes memory in proportion to the header that is
// really there, not to what it claims. After that no read can go out of bounds.
// What breaks a rule is refused with a [*FormatError] that says which and where.
// Names may be any JSON string: those who print or use them as file names must
// escape them. The values of elements are not checked by the format.
//
// One thing a memory map cannot promise: if someone cuts the file short while it
// is mapped, reads through this package return [ErrFault], but touching the
// slice that Bytes or View returned is a fault that ends the process. Where
// others may do so, use [WithoutMmap] or copy with [File.Load]; [File.Prefetch]
// finds a file that is short already.
//
// # What is not supported
//
// The reference's Rust type names, other byte orders, and files compressed as a
// whole. Sub-byte elements (F4, F6) are read, written and converted, but have no
// typed view, as Go has no such types.
package safetensors
