package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/go-safetensors/safetensors"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// call runs the program and returns what it did.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// golden compares what the program does with testdata/NAME.golden.
func golden(t *testing.T, name string, args ...string) {
	t.Helper()
	code, stdout, stderr := call(args...)
	got := fmt.Sprintf("$ safetensors %s\n", strings.Join(args, " ")) + stdout
	if stderr != "" {
		got += "-- stderr\n" + stderr
	}
	got += fmt.Sprintf("-- exit %d\n", code)
	file := filepath.Join(goldenDir, name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, samePaths(strings.ReplaceAll(string(want), "\r\n", "\n")), samePaths(got))
}

// samePaths makes up for the separators of Windows.
func samePaths(s string) string {
	if filepath.Separator == '\\' {
		return strings.ReplaceAll(s, `\`, "/")
	}
	return s
}

var goldenDir = func() string {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		panic(err)
	}
	return dir
}()

// The shared cases of the library, which tests here run in.
const shared = "../../testdata"

func TestGolden(t *testing.T) {
	t.Chdir(shared)
	for name, args := range map[string][]string{
		"usage":                 {},
		"help":                  {"help"},
		"help_ls":               {"help", "ls"},
		"help_verify":           {"verify", "--help"},
		"help_hash":             {"hash", "-h"},
		"help_unknown":          {"help", "lss"},
		"unknown":               {"lss", "x"},
		"flag_unknown":          {"ls", "--jsn", "x"},
		"too_few":               {"ls"},
		"too_many":              {"ls", "a", "b", "--json"},
		"ls_dtypes":             {"ls", "dtype_all_in_one.safetensors"},
		"ls_empty":              {"ls", "empty_object.safetensors"},
		"ls_json":               {"ls", "--json", "dtype_all_in_one.safetensors"},
		"ls_json_empty":         {"ls", "empty_object.safetensors", "--json"},
		"ls_broken":             {"ls", "--json", "lfs_pointer.safetensors"},
		"ls_model":              {"ls", "sh_good"},
		"ls_model_json":         {"ls", "sh_good/model.safetensors.index.json", "--json"},
		"ls_model_no_index":     {"ls", "sh_no_index"},
		"ls_model_index_wins":   {"ls", "--json", "sh_dup_across_shards"},
		"ls_model_missing":      {"ls", "sh_missing_shard"},
		"hash_model":            {"hash", "sh_good"},
		"hash_model_json":       {"hash", "sh_good", "--json"},
		"verify_model":          {"verify", "sh_good"},
		"verify_model_dup":      {"verify", "sh_dup_across_shards"},
		"verify_model_dup_json": {"verify", "--json", "sh_dup_across_shards"},
		"verify_model_missing":  {"verify", "sh_missing_shard", "--json"},
		"verify_model_unsafe":   {"verify", "sh_path_drive/model.safetensors.index.json"},
		"help_diff":             {"help", "diff"},
		"help_cp":               {"help", "cp"},
		"help_meta":             {"help", "meta"},
		"help_merge":            {"help", "merge"},
		"help_split":            {"help", "split"},
		"help_repair":           {"help", "repair"},
		"diff_same":             {"diff", "sh_good", "sh_good/model.safetensors.index.json"},
		"diff_dtypes":           {"diff", "dtype_all_in_one.safetensors", "aligned_all.safetensors"},
		"diff_dtypes_json":      {"diff", "dtype_all_in_one.safetensors", "aligned_all.safetensors", "--json"},
		"diff_broken":           {"diff", "dtype_all_in_one.safetensors", "gap_between.safetensors"},
		"meta_get":              {"meta", "get", "sh_good"},
		"meta_get_key":          {"meta", "get", "sh_good", "format"},
		"meta_get_raw":          {"meta", "get", "sh_good", "format", "--raw"},
		"meta_get_none":         {"meta", "get", "dtype_all_in_one.safetensors"},
		"meta_get_no_key":       {"meta", "get", "sh_good", "formats"},
		"meta_unknown":          {"meta", "drop", "sh_good"},
		"cp_no_dtype":           {"cp", "--cast", "float32", "sh_good", "x"},
		"cp_no_size":            {"cp", "--max-shard-size", "5 bananas", "sh_good", "x"},
		"cp_no_pattern":         {"cp", "--include", "[", "sh_good", "x"},
		"cp_no_match":           {"cp", "--include", "layers.*", "sh_good", "x"},
		"cp_no_pair":            {"cp", "--metadata", "k", "sh_good", "x"},
		"cp_to_index":           {"cp", "sh_good", "model.safetensors.index.json"},
		"cp_dry_run":            {"cp", "--dry-run", "sh_good", "x", "--cast", "f16", "--exclude", "*.b", "--metadata", "k=v"},
		"split_dry_run":         {"split", "--dry-run", "--max-shard-size", "12", "sh_good", "x"},
		"repair_refused":        {"repair", "cut_one_byte.safetensors", "x"},
		"hash":                  {"hash", "dtype_all_in_one.safetensors"},
		"hash_json":             {"hash", "dtype_all_in_one.safetensors", "-json"},
		"verify":                {"verify", "aligned_all.safetensors"},
		"verify_json":           {"verify", "--json", "aligned_all.safetensors"},
		"verify_broken":         {"verify", "lfs_pointer.safetensors"},
		"verify_broken_json":    {"verify", "lfs_pointer.safetensors", "--json"},
		"verify_many":           {"verify", "aligned_all.safetensors", "gap_between.safetensors", "dup_name_last_valid.safetensors"},
		"verify_compat":         {"verify", "dup_name_last_valid.safetensors", "--compat"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, args...) })
	}
}

type listing struct {
	Path     string
	Metadata map[string]string
	Tensors  []struct {
		Name       string
		DType      string
		Shape      []int64
		Begin, End int64
		File       string
		SHA256     string
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(into), text)
	_, err := d.Token()
	require.ErrorIs(t, err, io.EOF)
}

type cases struct {
	FileCases []struct {
		ID, File, Expectation, Reference string
		ErrorKind                        string `json:"error_kind"`
		Metadata                         map[string]string
		Tensors                          []struct {
			Name, DType string
			Shape       []int64
			SHA256      string
		}
	} `json:"file_cases"`
}

func readCases(t *testing.T) (c cases) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(shared, "cases.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &c))
	require.NotEmpty(t, c.FileCases)
	return c
}

func TestFileCases(t *testing.T) {
	for _, c := range readCases(t).FileCases {
		t.Run(c.ID, func(t *testing.T) {
			path := filepath.Join(shared, c.File)
			valid := c.Expectation != "reject"
			for _, tt := range c.Tensors {
				for _, n := range tt.Shape {
					if int64(int(n)) != n {
						t.Skipf("a dimension of %d is too large for %s", n, runtime.GOARCH)
					}
				}
			}
			want := exitFine
			if !valid {
				want = exitInvalid
			}

			code, out, errs := call("verify", "--json", path)
			require.Equal(t, want, code, errs)
			require.Empty(t, errs)
			var r struct {
				Path   string
				Valid  bool
				Errors []struct{ Kind, Tensor, File, Message, Hint string }
			}
			decode(t, out, &r)
			require.Equal(t, path, r.Path)
			require.Equal(t, valid, r.Valid)
			if valid {
				require.NotNil(t, r.Errors)
				require.Empty(t, r.Errors)
			} else {
				require.Len(t, r.Errors, 1)
				require.Equal(t, c.ErrorKind, r.Errors[0].Kind)
				require.NotEmpty(t, r.Errors[0].Message)
				require.Equal(t, path, r.Errors[0].File)
			}

			code, _, _ = call("verify", "--compat", path)
			require.Equal(t, c.Reference == "accept", code == exitFine, "exit code with --compat: %d", code)

			for _, command := range []string{"ls", "hash"} {
				code, out, errs = call(command, path, "--json")
				require.Equal(t, want, code, errs)
				if !valid {
					require.Empty(t, out)
					require.Contains(t, errs, c.ErrorKind)
					require.Equal(t, 1, strings.Count(errs, "\n"), errs)
					continue
				}
				var doc listing
				decode(t, out, &doc)
				require.Equal(t, path, doc.Path)
				require.Equal(t, c.Metadata, doc.Metadata)
				require.Len(t, doc.Tensors, len(c.Tensors))
				type tensor struct {
					dtype, sum string
					shape      []int64
				}
				all := map[string]tensor{}
				var end int64
				for _, tt := range doc.Tensors {
					require.Equal(t, end, tt.Begin)
					end = tt.End
					require.Equal(t, c.File, tt.File)
					require.NotNil(t, tt.Shape)
					all[tt.Name] = tensor{tt.DType, tt.SHA256, tt.Shape}
				}
				for _, tt := range c.Tensors {
					sum := tt.SHA256
					if command == "ls" {
						sum = ""
					}
					require.Equal(t, tensor{tt.DType, sum, tt.Shape}, all[tt.Name])
				}
			}
		})
	}
}

// Everything that a name or a value could do to a terminal or to a table.
var hostile = []string{
	"", " ", "a b", `back\slash`, `quo"te`, "new\nline", "\r", "\t", "\x00", "\x7f", "\x1b[31mred\x1b[0m",
	"\u0085", "\u009b31m", "\u202eabc", "\u2066x", "\u200b", "\u2028", "\ufeff", "\ufffd", "é", "日本", "e\u0301", "😀", "\U000e0001",
	"<&>", strings.Repeat("long", 500), "__proto__", "--json", "%d%s",
}

func hostileFile(t *testing.T) string {
	t.Helper()
	tensors, metadata := map[string]safetensors.Tensor{}, map[string]string{}
	for i, s := range hostile {
		tensors[s] = safetensors.Of([]uint8{uint8(i)})
		metadata[s] = s
	}
	t.Chdir(t.TempDir())
	require.NoError(t, safetensors.Save("hostile.safetensors", tensors, safetensors.WithMetadata(metadata)))
	return "hostile.safetensors"
}

func TestHostileNames(t *testing.T) {
	path := hostileFile(t)
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"hash"}, {"hash", "--json"}} {
		code, out, errs := call(append(args, path)...)
		require.Equal(t, exitFine, code, errs)
		require.Equal(t, out, onlyPrinted(out), "%v lets something through", args)
		if len(args) == 1 {
			continue
		}
		var doc listing
		decode(t, out, &doc)
		require.Len(t, doc.Metadata, len(hostile))
		for _, s := range hostile {
			require.Equal(t, s, doc.Metadata[s])
		}
		for _, tt := range doc.Tensors {
			require.Contains(t, hostile, tt.Name)
		}
	}
	golden(t, "ls_hostile", "ls", path)
	golden(t, "hash_hostile", "hash", path)
}

// onlyPrinted drops what a terminal may obey instead of printing, save line
// breaks.
func onlyPrinted(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Cs, unicode.Zl, unicode.Zp) {
			return -1
		}
		return r
	}, s)
}

func TestHostileErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	head := `{"\u001b[31m\u202e":{"dtype":"F\u009b32","shape":[],"data_offsets":[0,4]}}`
	require.NoError(t, os.WriteFile("x", append([]byte{byte(len(head)), 0, 0, 0, 0, 0, 0, 0}, head...), 0o644))
	for _, args := range [][]string{{"ls", "x"}, {"verify", "x"}, {"verify", "--json", "x"}, {"hash", "x"},
		{"ls", "\x1b[31m\u202e"}, {"ls", "a", "\x1b[31m"}, {"\x1b[31m"}, {"ls", "--\x1b[31m"}, {"help", "\x1b"}} {
		code, out, errs := call(args...)
		require.NotEqual(t, exitFine, code)
		require.Equal(t, out+errs, onlyPrinted(out+errs), "%q", args)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	for _, command := range []string{"ls", "verify", "hash"} {
		for _, path := range []string{missing, dir} {
			for _, asJSON := range []string{"--json", "--json=false"} {
				code, out, errs := call(command, path, asJSON)
				require.Equal(t, exitFailed, code, errs)
				require.Empty(t, out)
				require.Contains(t, errs, path)
			}
		}
	}
	good := filepath.Join(shared, "aligned_all.safetensors")
	bad := filepath.Join(shared, "gap_between.safetensors")
	for _, paths := range [][]string{{missing, good, bad}, {bad, missing, good}, {good, bad, missing}} {
		code, out, errs := call(append([]string{"verify"}, paths...)...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, out, good+": valid")
		require.Contains(t, out, bad+": INVALID")
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
	}
}

func TestFlagsAnywhere(t *testing.T) {
	good := filepath.Join(shared, "dup_name_last_valid.safetensors")
	_, want, _ := call("ls", "--json", "--compat", good)
	for _, args := range [][]string{{"ls", good, "--json", "--compat"}, {"ls", "-json", good, "-compat"},
		{"ls", "--json=true", "--compat", "--", good}, {"ls", "--json", good, "--compat", "--"}} {
		code, out, errs := call(args...)
		require.Equal(t, exitFine, code, errs)
		require.Equal(t, want, out)
	}
	code, _, errs := call("ls", "--", "--json")
	require.Equal(t, exitFailed, code, "a file may have the name of a flag")
	require.Contains(t, errs, "--json")
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		code, out, errs := call(arg)
		require.Equal(t, exitFine, code)
		require.Regexp(t, `^safetensors \S.*go1\..*\n$`, out)
		require.Empty(t, errs)
	}
}

// A failing writer takes some bytes and then fails.
type failing struct {
	left int
	err  error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, f.err
	}
	return len(p), nil
}

func TestOutputFails(t *testing.T) {
	tensors := map[string]safetensors.Tensor{}
	for i := range 5000 {
		tensors[fmt.Sprint(i)] = safetensors.Of([]uint8{0})
	}
	big := filepath.Join(t.TempDir(), "big")
	require.NoError(t, safetensors.Save(big, tensors))
	bad := filepath.Join(shared, "gap_between.safetensors")
	for _, args := range [][]string{{"ls", big}, {"ls", "--json", big}, {"hash", big}, {"hash", "--json", big},
		{"verify", big}, {"verify", bad}, {"help"}, {"ls", "--help"}, {"version"}} {
		for _, room := range []int{0, 70_000} {
			var errs bytes.Buffer
			code := run(args, nil, &failing{room, errors.New("disk full")}, &errs)
			if normal, out, _ := call(args...); len(out) > room {
				require.Equal(t, exitFailed, code)
				require.Equal(t, "safetensors: writing the output: disk full\n", errs.String())
			} else {
				require.Equal(t, normal, code)
			}

			errs.Reset()
			r, w := io.Pipe()
			require.NoError(t, r.Close())
			code = run(args, nil, w, &errs)
			require.Equal(t, exitFailed, code)
			require.Empty(t, errs.String(), "a pipe that nobody reads is no news")
		}
	}
}
