package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/go-safetensors/safetensors/interop/internal/need"
	"github.com/go-safetensors/safetensors/interop/internal/reference"
	"github.com/stretchr/testify/require"
)

func testCorpus(t *testing.T) string {
	return filepath.Join(need.Folder(t), "..", "testdata")
}

func TestAgainstReference(t *testing.T) {
	path := need.Reference(t)
	corpus, err := readCorpus(testCorpus(t))
	require.NoError(t, err)
	require.NotEmpty(t, corpus)
	rep, err := run(config{cases: 20_000, seed: 20_000, workers: 2, corpus: corpus, reference: path})
	require.NoError(t, err)
	var out strings.Builder
	rep.print(&out)
	t.Log(out.String())
	require.Zero(t, rep.found, "disagreements")

	// The cases are worth something only if every rule gets its share of them.
	require.Equal(t, 20_000, rep.tried)
	require.Greater(t, rep.sum(0)["accepted"], 4000)
	require.Greater(t, rep.sum(2)["accepted"], 4000)
	for _, refusal := range []string{
		"HeaderTooSmall", "HeaderTooLarge", "InvalidHeaderLength", "InvalidHeader", "InvalidHeaderDeserialization",
		"InvalidOffset", "TensorInvalidInfo", "ValidationOverflow", "MisalignedSlice", "MetadataIncompleteBuffer",
	} {
		require.Greater(t, rep.sum(0)[refusal], 20, refusal)
	}
	for _, kind := range []safetensors.Kind{
		safetensors.ErrFileTooShort, safetensors.ErrHeaderTooLarge, safetensors.ErrHeaderLengthExceedsFile,
		safetensors.ErrHeaderNotUTF8, safetensors.ErrHeaderNotObject, safetensors.ErrHeaderNotJSON,
		safetensors.ErrDuplicateKey, safetensors.ErrMetadataNotStringMap, safetensors.ErrBadTensorInfo,
		safetensors.ErrUnknownDType, safetensors.ErrSizeOverflow, safetensors.ErrSubByteMisaligned,
		safetensors.ErrSizeMismatch, safetensors.ErrBadOffsets, safetensors.ErrDataTruncated, safetensors.ErrTrailingBytes,
	} {
		require.Greater(t, rep.sum(2)[string(kind)], 20, kind)
	}
	for _, reason := range []string{entryArray, dtypeObject, hugeInEmpty} {
		require.Greater(t, rep.excused[reason], 20, reason)
	}
}

// The case files as they are, and cut off at every byte.
func TestCorpusAgainstReference(t *testing.T) {
	ref, err := reference.Start(need.Reference(t), "check")
	require.NoError(t, err)
	paths, err := filepath.Glob(filepath.Join(testCorpus(t), "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	var files [][]byte
	for _, path := range paths {
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		files = append(files, file)
		for n := range min(len(file), 400) {
			files = append(files, file[:n])
		}
	}
	verdicts, err := ref.CheckAll(files)
	require.NoError(t, err)
	require.NoError(t, ref.Close())
	for i, v := range verdicts {
		res := judge(files[i], v)
		require.Nil(t, res.found, "%q", files[i])
		require.Empty(t, res.excused, "%q", files[i])
	}
}

// More names than the library keeps in its small table, and than a reader gets in its first block.
func TestManyTensorsAgainstReference(t *testing.T) {
	ref, err := reference.Start(need.Reference(t), "check")
	require.NoError(t, err)
	for _, count := range []int{17, 300, 5_000, 40_000} {
		root := record()
		for i := range count {
			at := strconv.Itoa(i)
			name := "layers." + at + ".weight"
			if i%1000 == 7 {
				name = strings.Repeat("é", i%300) + name // not all of one length
			}
			root.members = append(root.members, member{quote(name), record(
				member{`"dtype"`, quoted("I8")},
				member{`"shape"`, list(text("1"))},
				member{`"data_offsets"`, list(text(at), text(strconv.Itoa(i+1)))})})
		}
		last := root.members[count-1]
		for name, members := range map[string][]member{
			"good":             root.members,
			"metadata last":    append(slices.Clone(root.members), member{`"__metadata__"`, record(member{`"k"`, quoted("v")})}),
			"last twice":       append(slices.Clone(root.members), last),
			"first twice":      append(slices.Clone(root.members), root.members[0]),
			"twice, escaped":   append(slices.Clone(root.members), member{`"\u006c` + last.key[2:], last.value}),
			"twice, other end": append([]member{last}, root.members...),
			"twice, overlaps":  append(slices.Clone(root.members), member{root.members[0].key, last.value}),
			"one missing":      slices.Delete(slices.Clone(root.members), count/2, count/2+1),
		} {
			file := fileOf(record(members...).render(), count)
			v, err := ref.Check(file)
			require.NoError(t, err)
			require.Equal(t, name != "twice, overlaps" && name != "one missing", v.Accepted, "%d %s", count, name)
			require.Nil(t, judge(file, v).found, "%d %s", count, name)
		}
	}
	require.NoError(t, ref.Close())
}

const goodHeader = `{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`

func goodVerdict() reference.Verdict {
	return reference.Verdict{
		Accepted: true,
		Tensors:  []reference.Tensor{{Name: "a", DType: "U8", Shape: []uint64{2}, Begin: 0, End: 2}},
		Metadata: map[string]string{"k": "v"},
	}
}

func fileOf(header string, size int) []byte { return draft{header, make([]byte, size)}.file() }

// A comparison that notices nothing would pass every run.
func TestJudgeNotices(t *testing.T) {
	good := fileOf(goodHeader, 2)
	require.Equal(t, result{}, judge(good, goodVerdict()))

	for name, spoil := range map[string]func(*reference.Verdict){
		"refused":        func(v *reference.Verdict) { *v = reference.Verdict{Refusal: "InvalidOffset"} },
		"name":           func(v *reference.Verdict) { v.Tensors[0].Name = "b" },
		"dtype":          func(v *reference.Verdict) { v.Tensors[0].DType = "I8" },
		"dimension":      func(v *reference.Verdict) { v.Tensors[0].Shape[0] = 3 },
		"rank":           func(v *reference.Verdict) { v.Tensors[0].Shape = []uint64{1, 2} },
		"begin":          func(v *reference.Verdict) { v.Tensors[0].Begin = 1 },
		"end":            func(v *reference.Verdict) { v.Tensors[0].End = 3 },
		"one more":       func(v *reference.Verdict) { v.Tensors = append(v.Tensors, reference.Tensor{Name: "b"}) },
		"one less":       func(v *reference.Verdict) { v.Tensors = nil },
		"metadata":       func(v *reference.Verdict) { v.Metadata["k"] = "w" },
		"no metadata":    func(v *reference.Verdict) { v.Metadata = nil },
		"other metadata": func(v *reference.Verdict) { v.Metadata["l"] = "" },
	} {
		v := goodVerdict()
		spoil(&v)
		res := judge(good, v)
		require.NotNil(t, res.found, name)
		require.Nil(t, res.excused, name)
	}
	for _, bad := range []string{
		strings.Replace(goodHeader, "U8", "U16", 1),
		strings.Replace(goodHeader, "[0,2]", "[0,2,2]", 1),
		strings.Replace(goodHeader, `"shape"`, `"Shape"`, 1),
	} {
		require.NotNil(t, judge(fileOf(bad, 2), goodVerdict()).found, bad)
	}
	require.NotNil(t, judge(fileOf(goodHeader, 3), goodVerdict()).found, "a file that is too long")
}

func TestOnlyCompat(t *testing.T) {
	for header, want := range map[string]string{
		goodHeader:                   "",
		" " + goodHeader:             "white space before the header",
		`{"__metadata__":null}`:      "null for metadata",
		`{"\u005f_metadata__":null}`: "null for metadata",
		`{"a":1,"\u0061":2}`:         "a key twice in one object",
		`{"a":{"x":[{"":0,"":0}]}}`:  "a key twice in one object",
		`{"a":{"x":"{\"a\":1,\"a\":2}","y":[{"x":1},{"x":2}]}}`: "",
	} {
		require.Equal(t, want, onlyCompat(header), header)
	}
}

func TestExcuses(t *testing.T) {
	v := goodVerdict()
	for header, want := range map[string][]string{
		`{"__metadata__":{"k":"v"},"a":["U8",[2],[0,2]]}`:      {entryArray},
		strings.Replace(goodHeader, `"U8"`, `{"U8":null}`, 1):  {dtypeObject},
		`{"__metadata__":{"k":"v"},"a":[{"U8":{}},[2],[0,2]]}`: {dtypeObject, entryArray},
	} {
		res := judge(fileOf(header, 2), v)
		require.Nil(t, res.found, header)
		require.Equal(t, want, res.excused, header)
	}
	v.Tensors = []reference.Tensor{{Name: "a", DType: "U8", Shape: []uint64{1<<64 - 1, 0}}}
	huge := fileOf(`{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[0,0]}}`, 0)
	require.Equal(t, []string{hugeInEmpty}, judge(huge, v).excused)

	// An accident excuses nothing else that is wrong in the same file.
	other := goodVerdict()
	other.Tensors[0].DType = "I8"
	for header, v := range map[string]reference.Verdict{
		`{"__metadata__":{"k":"v"},"a":["U8",[2],[0,2]]}`:                other,
		`{"__metadata__":{"k":"v"},"a":["U8",[2],[0,2]],"b":null}`:       goodVerdict(),
		`{"__metadata__":{"k":"v"},"a":["U8",[2],[0,2],0]}`:              goodVerdict(),
		`{"__metadata__":{"k":"v"},"a":["U8",[2],[0,2.0]]}`:              goodVerdict(),
		`{"__metadata__":["k","v"],"a":["U8",[2],[0,2]]}`:                goodVerdict(),
		strings.Replace(goodHeader, `"U8"`, `{"U8":null,"I8":0}`, 1):     goodVerdict(),
		strings.Replace(goodHeader, `[2]`, `[2,9223372036854775808]`, 1): goodVerdict(),
	} {
		require.NotNil(t, judge(fileOf(header, 2), v).found, header)
	}
}

func TestTokensAndTree(t *testing.T) {
	corpus, err := readCorpus(testCorpus(t))
	require.NoError(t, err)
	g := generator{rand.New(rand.NewPCG(1, 2)), corpus}
	for range 2000 {
		file := g.next()
		require.Equal(t, string(file), strings.Join(tokens(string(file)), ""))
	}
	for range 200 {
		header := g.fresh().header
		require.Equal(t, header, parseTree(header).render())
	}
	for _, s := range []string{"", "{", "}", "[1,]", `{"a"}`, `{"a":}`, `{1:2}`, `[1 2]`, `"a" 1`, ":"} {
		require.Nil(t, parseTree(s), s)
	}
}

func TestSameSeedSameFiles(t *testing.T) {
	one, two, three := generator{r: rand.New(rand.NewPCG(1, 2))}, generator{r: rand.New(rand.NewPCG(1, 2))}, generator{r: rand.New(rand.NewPCG(1, 3))}
	different := false
	for range 500 {
		a, b := one.next(), two.next()
		require.Equal(t, a, b)
		different = different || !bytes.Equal(a, three.next())
	}
	require.True(t, different)
}

func TestShrink(t *testing.T) {
	// A reference that finds fault with every U8 tensor of one byte, which the library does not.
	check := func(file []byte) (reference.Verdict, error) {
		if bytes.Contains(file, []byte(`"U8"`)) && bytes.Contains(file, []byte(`[1]`)) {
			return reference.Verdict{Refusal: "InvalidOffset", Message: "made up"}, nil
		}
		return reference.Verdict{Refusal: "InvalidHeader"}, nil
	}
	file := fileOf(`{"__metadata__": {"k":"v"},"first":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
		"name" :{"shape":[1],"data_offsets":[8,9],"dtype":"U8"},"last":{"dtype":"F32","shape":[2],"data_offsets":[9,17]}}  `, 17)
	v, err := check(file)
	require.NoError(t, err)
	res := judge(file, v)
	require.NotNil(t, res.found)
	small, found, err := shrink(file, *res.found, check)
	require.NoError(t, err)
	require.Equal(t, fileOf(`{"":{"shape":[1],"data_offsets":[0,1],"dtype":"U8"}}`, 1), small)
	require.Equal(t, res.found.class, found.class)

	root := parseTree(`{"a":{"data_offsets":[0,2]},"b":{"data_offsets":[2,5]},"c":{"data_offsets":[5,5]}}`)
	gone, ok := removeAt(root, 1)
	require.True(t, ok)
	begin, end, ok := offsets(gone)
	require.True(t, ok)
	closeGap(root, begin, end)
	require.Equal(t, `{"a":{"data_offsets":[0,2]},"c":{"data_offsets":[2,2]}}`, root.render())
}

func TestCommand(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, 2, command([]string{"-n", "0"}, &out, &errs))
	require.Equal(t, 2, command([]string{"-wrong"}, &out, &errs))
	require.Equal(t, 1, command([]string{"-corpus", t.TempDir()}, &out, &errs))
	require.Contains(t, errs.String(), "no usable .safetensors file")

	out.Reset()
	args := []string{"-n", "1000", "-corpus", testCorpus(t), "-reference", need.Reference(t)}
	require.Equal(t, 0, command(args, &out, &errs), "%s", &out)
	require.True(t, strings.HasSuffix(out.String(), "\n1000 passed, 0 failed\n"), "%s", &out)
}
