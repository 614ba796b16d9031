package safetensors

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"5GB": 5_000_000_000, "500MB": 500_000_000, "2GiB": 2 << 30, "1.5GiB": 3 << 29, " 5 gb ": 5_000_000_000,
		"10kb": 10_000, "3TB": 3_000_000_000_000, "1KiB": 1024, "1mib": 1 << 20, "1TiB": 1 << 40, "0": 0, "4096": 4096, "7B": 7, "7 b": 7,
		".5KB": 500, "5.GB": 5_000_000_000, "0.0001KB": 0, "1.9999B": 1,
		"4.35GB": 4_350_000_000, "1.1GB": 1_100_000_000, "0.29KB": 290, "2.3TB": 2_300_000_000_000, "1.005MB": 1_004_999, // as Python multiplies
		"9223372036854775807": 1<<63 - 1, "9223372036854775807b": 1<<63 - 1, "8388607TiB": 8388607 << 40,
	} {
		got, err := ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "GB", "5 G", "5Gb/s", "-5GB", "+5GB", "5e3", "0x10", "1_000", "5,5GB", "1.2.3GB", ".", ".GB", "inf", "NaN", "5PB", "٣GB", "5 0GB"} {
		_, err := ParseSize(text)
		require.ErrorContains(t, err, "size ", text)
	}
	for _, text := range []string{"9223372036854775808", "8388608TiB", "9300000TB", "99999999999999999999999999999999999999999999999999.0"} {
		_, err := ParseSize(text)
		require.ErrorIs(t, err, ErrRange, text)
	}
}

func TestCompareNatural(t *testing.T) {
	sorted := []string{"", "0", "00", "1", "2", "10", "a", "a.2.b", "a.02.c", "a.2.c", "a.10", "a.10.b", "a10b2", "a10b10",
		"a18446744073709551616", "a18446744073709551617", "b", "é"}
	for i, a := range sorted {
		for j, b := range sorted {
			require.Equal(t, i < j, compareNatural(a, b) < 0, "%q %q", a, b)
			require.Equal(t, i == j, compareNatural(a, b) == 0, "%q %q", a, b)
		}
	}
	require.True(t, slices.IsSortedFunc(sorted, compareNatural))
}
