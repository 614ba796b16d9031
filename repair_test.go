package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

const fine = `{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}`

func TestRepair(t *testing.T) {
	data := []byte("abcdBB")
	tensors := map[string]safetensors.Tensor{"a": safetensors.New(safetensors.F32, []int{1}, data[:4]), "b": safetensors.Of(data[4:], 2)}
	want := written(t, tensors, safetensors.WithMetadata(map[string]string{"k": "v"}))
	padded := fine + strings.Repeat(" ", (8-len(fine)%8)%8)
	pad := func(s string) string { return s + strings.Repeat(" ", (8-len(s)%8)%8) }
	for what, c := range map[string]struct {
		in      []byte
		changes []string
		legal   bool // Open takes it too
	}{
		"nothing to do":         {header(padded, data), nil, true},
		"one byte behind":       {header(padded, []byte("abcdBBx")), []string{"dropped 1 byte after the last tensor"}, false},
		"much behind":           {header(padded, append(data[:6:6], make([]byte, 5000)...)), []string{"dropped 5000 bytes after the last tensor"}, false},
		"NUL padding":           {header(fine+strings.Repeat("\x00", len(padded)-len(fine)+8), data), []string{"bytes of padding that JSON does not allow after the header object"}, false},
		"NUL and space padding": {header(fine+" \x00\n\x00"+strings.Repeat(" ", len(padded)-len(fine)+4), data), []string{"dropped 3 bytes of padding"}, false},
		"other padding":         {header(fine+strings.Repeat("\xff", len(padded)-len(fine)+8), data), []string{"of padding that JSON does not allow"}, false},
		"leading whitespace":    {header(pad(" \n\t\r"+fine), data), []string{"dropped 4 bytes before the header object"}, false},
		"leading NULs":          {header(pad("\x00\x00"+fine), data), []string{"dropped 2 bytes before the header object"}, false},
		"a byte order mark":     {header(pad("\xef\xbb\xbf"+fine), data), []string{"dropped 3 bytes before the header object"}, false},
		"unaligned":             {header(padded+" ", data), []string{"moved the data from byte 145 to byte 144, so that it is aligned"}, true},
		"unordered entries": {header(pad(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}`), data),
			[]string{"put the entries of the header in the order of the data"}, true},
		"unordered data": {header(pad(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},"__metadata__":{"k":"v"}}`), []byte("BBabcd")),
			[]string{"put the tensors in the order of the reference: by dtype, widest first, then by name"}, true},
		"holes": {header(pad(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},"b":{"dtype":"U8","shape":[2],"data_offsets":[9,11]},"__metadata__":{"k":"v"}}`), []byte("xxabcdyyyBB")),
			[]string{"closed holes of 5 bytes in the data"}, false},
		"all at once": {header("\n \ufeff"+`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[3,7],"extra":[1]}}`+"\x00", []byte("BB_abcd_and more")), []string{
			"dropped 5 bytes before the header object",
			"dropped 1 byte of padding that JSON does not allow after the header object",
			"closed holes of 1 byte in the data",
			"dropped 9 bytes after the last tensor",
			"moved the data from byte 157 to byte 144, so that it is aligned",
			"put the tensors in the order of the reference: by dtype, widest first, then by name",
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			require.NoError(t, os.WriteFile(in, c.in, 0o444))
			_, err := safetensors.Open(in)
			require.Equal(t, c.legal, err == nil, "%v", err)
			changes, err := safetensors.Repair(in, out)
			require.NoError(t, err)
			require.Len(t, changes, len(c.changes), "%q", changes)
			for i, change := range c.changes {
				require.Contains(t, changes[i], change)
			}
			require.Equal(t, want, read(t, out))
			require.Equal(t, c.in, read(t, in), "the input is as it was")

			again := filepath.Join(dir, "again")
			changes, err = safetensors.Repair(out, again)
			require.NoError(t, err)
			require.Empty(t, changes)
			require.Equal(t, want, read(t, again))
		})
	}
}

func TestRepairRefuses(t *testing.T) {
	data := []byte("abcdBB")
	for what, c := range map[string]struct {
		in   []byte
		kind safetensors.Kind
		text string
	}{
		"a byte is missing":          {header(fine, data[:5]), safetensors.ErrDataTruncated, `tensor "b" at byte 144: want a file of 145 bytes, got 144`},
		"all data is missing":        {header(fine, nil), safetensors.ErrDataTruncated, `tensor "a"`},
		"missing, and unordered":     {header(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, data[:5]), safetensors.ErrDataTruncated, `tensor "b"`},
		"a hole, and missing":        {header(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}`, data), safetensors.ErrDataTruncated, `tensor "a"`},
		"shared bytes":               {header(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, data), safetensors.ErrBadOffsets, `tensor "b"`},
		"the same bytes":             {header(`{"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[6],"data_offsets":[0,6]}}`, data), safetensors.ErrBadOffsets, "where the tensor before ends, or after it, got [0, 6]"},
		"inverted":                   {header(`{"a":{"dtype":"U8","shape":[6],"data_offsets":[6,0]}}`, data), safetensors.ErrBadOffsets, "[6, 0]"},
		"past what can be counted":   {header(`{"a":{"dtype":"U8","shape":[6],"data_offsets":[9223372036854775802,9223372036854775808]}}`, data), safetensors.ErrBadOffsets, `tensor "a"`},
		"far away":                   {header(`{"a":{"dtype":"U8","shape":[6],"data_offsets":[9223372036854775801,9223372036854775807]}}`, data), safetensors.ErrDataTruncated, `tensor "a"`},
		"another size":               {header(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,6]}}`, data), safetensors.ErrSizeMismatch, `tensor "a"`},
		"a name twice":               {header(`{"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]}}`, data), safetensors.ErrDuplicateKey, `tensor "a"`},
		"unknown dtype":              {header(`{"a":{"dtype":"Q8","shape":[6],"data_offsets":[0,6]}}`, data), safetensors.ErrUnknownDType, `"Q8"`},
		"text behind the object":     {header(fine+" x", data), safetensors.ErrHeaderNotJSON, "at byte 140"},
		"two objects":                {header(fine+fine, data), safetensors.ErrHeaderNotJSON, "at byte 139"},
		"cut off":                    {header(fine[:len(fine)-1]+"\x00\x00", data), safetensors.ErrHeaderNotJSON, "at byte 138"},
		"a fault behind leading":     {header("   {\"a\" 1}", data), safetensors.ErrHeaderNotJSON, "at byte 16"},
		"no object":                  {header("   ", data), safetensors.ErrHeaderNotJSON, ""},
		"an empty header":            {header("", data), safetensors.ErrHeaderNotJSON, ""},
		"short":                      {[]byte("1234567"), safetensors.ErrFileTooShort, "got 7"},
		"empty":                      {nil, safetensors.ErrFileTooShort, "got 0"},
		"a header past the end":      {header(fine, nil)[:50], safetensors.ErrHeaderLengthExceedsFile, ""},
		"a header that is too large": {binary.LittleEndian.AppendUint64(nil, 1<<40), safetensors.ErrHeaderTooLarge, ""},
		"git lfs":                    {[]byte("version https://git-lfs.github.com/spec/v1\n"), safetensors.ErrHeaderTooLarge, "git lfs pull"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			require.NoError(t, os.WriteFile(in, c.in, 0o666))
			changes, err := safetensors.Repair(in, out)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, in)
			require.ErrorContains(t, err, c.text)
			require.Empty(t, changes)
			require.NoFileExists(t, out)
			require.True(t, bytes.Equal(c.in, read(t, in)))
		})
	}

	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	_, err := safetensors.Repair(in, filepath.Join(dir, "out"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = safetensors.Repair(dir, filepath.Join(dir, "out"))
	require.ErrorContains(t, err, "is a directory")
	require.NoError(t, os.WriteFile(in, header(fine, append(data, 0)), 0o666))
	for _, out := range []string{in, filepath.Join(dir, ".", "x", "..", "in")} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "x"), 0o777))
		_, err = safetensors.Repair(in, out)
		require.ErrorContains(t, err, "want another file to write to")
	}
	if os.Symlink(in, filepath.Join(dir, "link")) == nil {
		_, err = safetensors.Repair(in, filepath.Join(dir, "link"))
		require.ErrorContains(t, err, "want another file to write to")
	}
}

// Of all files that break the format, those that Repair takes hold what it wrote.
func TestRepairOfAllCases(t *testing.T) {
	repaired := 0
	for _, c := range cases.FileCases {
		out := filepath.Join(t.TempDir(), "out")
		changes, err := safetensors.Repair(filepath.Join("testdata", c.File), out)
		if strconv.IntSize == 32 && errors.Is(err, safetensors.ErrSizeOverflow) {
			continue // a dimension over the largest int
		}
		if c.Expectation == "accept" {
			require.NoError(t, err, c.ID)
			f, err := safetensors.Open(out)
			require.NoError(t, err, c.ID)
			require.Equal(t, c.Metadata, f.Metadata())
			require.Equal(t, len(c.Tensors), f.Len())
			for _, want := range c.Tensors {
				got, err := f.Tensor(want.Name)
				require.NoError(t, err)
				require.Equal(t, want.SHA256, sum(t, got), "%s %s", c.ID, want.Name)
				require.Equal(t, want.Shape, got.Shape())
			}
			require.NoError(t, f.Close())
			continue
		}
		if err != nil {
			require.NoFileExists(t, out)
			continue
		}
		require.NotEmpty(t, changes, c.ID)
		repaired++
		f, err := safetensors.Open(out)
		require.NoError(t, err, c.ID)
		require.NoError(t, f.Close())
		t.Logf("%s (%s): %q", c.ID, c.ErrorKind, changes)
	}
	require.NotZero(t, repaired)
}

// Large tensors go by the system's copy, also out of a file that lies askew.
func TestRepairLarge(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	require.NoError(t, safetensors.Save(in, editable(), safetensors.WithAlignment(1), safetensors.WithMetadata(map[string]string{"k": "vv"})))
	damaged := append(read(t, in), "trailing"...)
	require.NoError(t, os.WriteFile(in, damaged, 0o666))
	changes, err := safetensors.Repair(in, out)
	require.NoError(t, err)
	require.NotEmpty(t, changes)
	require.Equal(t, written(t, editable(), safetensors.WithMetadata(map[string]string{"k": "vv"})), read(t, out))
}
