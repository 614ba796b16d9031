package safetensors

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplitShards(t *testing.T) {
	sizes := map[string]int64{"a": 6, "b": 6, "c": 2, "d": 6, "e": 2, "f": 2, "big": 11, "none": 0}
	for _, c := range []struct {
		names []string
		most  int64
		want  [][]string
	}{
		{[]string{"a", "b", "c", "d", "e", "f"}, 10, [][]string{{"a"}, {"b", "c"}, {"d", "e", "f"}}},
		{[]string{"a", "c", "e"}, 10, [][]string{{"a", "c", "e"}}}, // exactly full is not over
		{[]string{"a", "big", "c"}, 10, [][]string{{"big"}, {"a", "c"}}},
		{[]string{"big"}, 10, [][]string{{"big"}}},
		{[]string{"none", "big", "none"}, 10, [][]string{{"big"}, {"none", "none"}}},
		{nil, 10, [][]string{nil}},
	} {
		got := splitShards(c.names, c.most, func(name string) int64 { return sizes[name] })
		require.Equal(t, c.want, got)
	}
}

func TestNaturalOrder(t *testing.T) {
	want := []string{"", "0", "00", "1", "2", "10", "a", "a.2.b", "a.2.c", "a.02.c", "a.10.b", "a.10", "a10b2", "a10b10", "b"}
	want = []string{"", "0", "00", "1", "2", "10", "a", "a.2.b", "a.02.c", "a.2.c", "a.10", "a.10.b", "a10b2", "a10b10", "b"}
	for i, a := range want {
		for j, b := range want {
			require.Equal(t, i < j, compareNatural(a, b) < 0, "%q %q", a, b)
		}
	}
	require.True(t, slices.IsSortedFunc(want, compareNatural))
}

func TestSaveModelSmoke(t *testing.T) {
	dir := t.TempDir()
	ts := map[string]Tensor{"l.10.w": Of([]float32{1, 2}, 2), "l.2.w": Of([]float32{3}, 1), "x": Of([]uint8{7}, 1)}
	for _, n := range []int64{4, 8, 100, 8, 4, 4} {
		files, err := SaveModel(dir, ts, WithMaxShardSize(n), WithMetadata(map[string]string{"format": "pt"}))
		require.NoError(t, err)
		t.Log(files)
		m, err := OpenModel(dir)
		require.NoError(t, err)
		require.Len(t, m.Names(), 3)
		require.Empty(t, m.Verify())
		require.NoError(t, m.Close())
	}
}
