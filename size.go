package safetensors

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sizeUnits are the units of ParseSize, longer names before those that they end
// with.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}, {"TIB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

// ParseSize reads a size in bytes such as 5GB, 500 MB, 1.5GiB or 4096. As in
// huggingface_hub, KB, MB, GB and TB are powers of 1000 and what a fraction
// leaves of a byte is cut off; KiB, MiB, GiB and TiB are powers of 1024. Case
// does not matter.
func ParseSize(s string) (int64, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	for _, unit := range sizeUnits {
		number, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		number = strings.TrimSpace(number)
		if number == "" || strings.Trim(number, "0123456789.") != "" {
			break
		}
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n <= math.MaxInt64/int64(unit.bytes) {
			return n * int64(unit.bytes), nil
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			break
		}
		if v *= unit.bytes; v >= 1<<63 {
			return 0, fmt.Errorf("safetensors: size %s: want at most 2^63-1 bytes: %w", quote(s), ErrRange)
		}
		return int64(v), nil
	}
	return 0, fmt.Errorf("safetensors: size %s: want a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", quote(s))
}

// compareNatural compares names as people do: runs of digits by their value, so
// that layer.2 comes before layer.10, and all else bytewise.
func compareNatural(a, b string) int {
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		if !isDigit(a[i]) || !isDigit(b[j]) {
			if a[i] != b[j] {
				return cmp.Compare(a[i], b[j])
			}
			i, j = i+1, j+1
			continue
		}
		from, to := digitRun(a, i)
		from2, to2 := digitRun(b, j)
		m, n := a[from:to], b[from2:to2]
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
		i, j = to, to2
	}
	// Of names that differ in leading zeros alone, the bytes decide.
	return cmp.Or(cmp.Compare(len(a)-i, len(b)-j), cmp.Compare(a, b))
}

// digitRun returns where the number at i begins, past its leading zeros, and
// ends.
func digitRun(s string, i int) (from, to int) {
	for i < len(s) && s[i] == '0' {
		i++
	}
	for to = i; to < len(s) && isDigit(s[to]); to++ {
	}
	return i, to
}

func isDigit(c byte) bool { return c-'0' <= 9 }
