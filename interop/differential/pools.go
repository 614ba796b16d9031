package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

var dtypes = []struct {
	name string
	bits int64
}{
	{"BOOL", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8}, {"I8", 8}, {"F8_E5M2", 8},
	{"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16}, {"U16", 16},
	{"F16", 16}, {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32}, {"C64", 64}, {"F64", 64},
	{"I64", 64}, {"U64", 64},
}

var oddDTypes = []string{
	"", "f32", "F32 ", " F32", "F32\x00", "float32", "FLOAT32", "<f4", "F8", "F8_E4M3FN", "F8_E3M4", "F6",
	"F4_E2M1", "Q8_0", "I4", "U4", "I128", "F128", "C128", "BOOLEAN", "bool", "BF16_", "0", "F３２", "dtype",
}

var names = []string{
	"w", "a", "b", "weight", "layers.0.attn.q_proj.weight", "", "x", "\x00", "\n\t\b\f\r\x1f\x7f", `q"\/`,
	"é", "日本語", "😀", "\u2028\u2029", "<>&", "__metadata", "metadata__", "__METADATA__", "dtype", "shape",
	"data_offsets", "\ufeffw", "\ufffd", "e\u0301", strings.Repeat("long", 70),
}

var keys = []string{
	"dtype", "shape", "data_offsets", "__metadata__", "Dtype", "DTYPE", "data_offset", "offsets", "dtype ",
	"", "x", "y", "w", "a", "\x00", "__metadata__\x00", "é",
}

var integers = []string{
	"0", "1", "2", "3", "4", "8", "16", "-0", "-1", "01", "00", "1e0", "1.0", "0.0", "0e0", "4e0", "4.0", "-4", "+4",
	"2147483647", "2147483648", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
	"18446744073709551615", "18446744073709551616", "36893488147419103232", "123456789012345678901234567890",
	"-9223372036854775808", "-9223372036854775809", "-18446744073709551616", "1152921504606846976",
	"2305843009213693952", "4611686018427387904", "100000000", "1099511627776",
}

// dimensions are large ones; a zero before them keeps the product at zero.
var dimensions = []string{
	"1", "2147483648", "4294967296", "9223372036854775806", "9223372036854775807", "9223372036854775808",
	"18446744073709551614", "18446744073709551615", "18446744073709551616", "4611686018427387904",
}

// exotic are numbers, and what is nearly one, for keys that nobody reads.
var exotic = []string{
	"1e400", "-1e400", "1E400", "1e-400", "-0", "-0.0", "0e400", "0.0e400", "0E-0", "1E+5", "1e5", "1.5E-7",
	"123456789012345678901234567890", "-123456789012345678901234567890", "1e308", "1e309", "9e307", "2e308",
	"1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "-1.7976931348623159e308",
	"17976931348623157e292", "17976931348623159e292", "179769313486231570e291", "0.17976931348623157e309",
	"179769313486231570814527423731704356798070e267", "5e-324", "1e-324", "4.9e-324", "1e2147483647",
	"1e2147483648", "1e-2147483648", "1e-2147483649", "0e2147483648", "1e99999999999999999999",
	"0e99999999999999999999", "0.0e99999999999999999999", "1e-99999999999999999999", "1.e5", "1.", ".5", "1e",
	"1e+", "1e-", "1E", "-", "+1", "--1", "0x10", "1_0", "01", "-01", "00", "Infinity", "-Infinity", "NaN", "nan",
	"18446744073709551616", "18446744073709551615.5", "18446744073709551616e0", "18446744073709551616e290",
	"-9223372036854775809", "tru", "nul", "True", "NULL", "truee", "undefined",
}

// escapes are pieces to put inside a string: good ones, ones that only some readers take, bad ones.
var escapes = []string{
	`\u0041`, `\u0077`, `\u00e9`, `\u00E9`, `\/`, `\b\f\n\r\t`, `\"`, `\\`, `\u0000`, `\u001f`, `\u2028`,
	`\ud83d\ude00`, `\uD83D\uDE00`, `\ufffd`, `\uffff`, `\ufeff`, "\x7f", "\u2028", "\U0001F600", "\u00a0",
	`\ud800`, `\udc00`, `\ud800\ud800`, `\udc00\ud800`, `\ud800x`, `\ud83d\n`, `\ud83d\u0041`, `\udbff\udfff`,
	`\ud83d\`, `\ud83d\u`, `\ud83d\ude0`, `\uDFFF`, `\x41`, `\a`, `\'`, `\0`, `\u`, `\u00`, `\u004`, `\u00g0`, `\U0041`,
	`\u 041`, `\u+041`, "\\\n", "\n", "\t", "\x00", "\x1f", `"`, `\`, `\v`, `\u{41}`,
}

// badUTF8 are byte sequences that are not UTF-8.
var badUTF8 = []string{
	"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\xaf", "\xe2\x80", "\xed\xa0\x80", "\xed\xbf\xbf",
	"\xf0\x80\x80\x80", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe", "\xff",
}

// oddSpace is what JSON does not count as white space.
var oddSpace = []string{"\v", "\f", "\x00", "\u00a0", "\u0085", "\u2028", "\u3000", "\ufeff", "\x1f", "\b", "//c\n", "/**/", "#"}

var space = []string{" ", "  ", "\t", "\n", "\r", "\r\n", " \t\r\n "}

var glue = []string{"{", "}", "[", "]", ":", ",", `"`, "null", "true", "false", "0", "-", `""`, "{}", "[]", "\\"}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// chance is true once in n times.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// oddNumber gives a number text that a lenient or a hasty reader gets wrong.
func oddNumber(r *rand.Rand) string {
	switch r.IntN(6) {
	case 0, 1:
		return pick(r, exotic)
	case 2:
		return pick(r, integers)
	case 3: // near the largest float64, where the last digits decide
		digits := []byte("17976931348623157081452742373170435679")[:1+r.IntN(38)]
		for range r.IntN(4) {
			digits[len(digits)-1-r.IntN(min(len(digits), 6))] = byte('0' + r.IntN(10))
		}
		if digits[0] == '0' {
			digits[0] = '1'
		}
		point := 1 + r.IntN(len(digits))
		exponent := 309 - point
		if chance(r, 4) {
			exponent += r.IntN(3) - 1
		}
		s := string(digits[:point])
		if point < len(digits) {
			s += "." + string(digits[point:])
		}
		return s + "e" + strconv.Itoa(exponent)
	case 4: // many zeros that an exponent takes back
		zeros := strings.Repeat("0", r.IntN(700))
		exponent := strconv.Itoa(r.IntN(1400) - 700)
		if chance(r, 2) {
			return "1" + zeros + "e" + exponent
		}
		return "0." + zeros + "1e" + exponent
	}
	digits := make([]byte, 1+r.IntN(30))
	for i := range digits {
		digits[i] = byte('0' + r.IntN(10))
	}
	s := string(digits)
	if chance(r, 3) {
		s = "-" + s
	}
	if chance(r, 3) {
		s += "." + strconv.Itoa(r.IntN(1000))
	}
	if chance(r, 3) {
		s += pick(r, []string{"e", "E", "e+", "e-"}) + strconv.Itoa(r.IntN(400))
	}
	return s
}

// reescape writes some characters of a string token as escapes, so that its value stays the same.
func reescape(r *rand.Rand, token string) string {
	if len(token) < 2 {
		return token
	}
	var b strings.Builder
	b.WriteByte('"')
	backslash := false
	for _, c := range token[1 : len(token)-1] {
		switch {
		case backslash || c == '\\' || c == '\ufffd' || !chance(r, 3):
			b.WriteRune(c)
			backslash = c == '\\' && !backslash
		case c > 0xffff:
			hi, lo := 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff
			b.WriteString(`\u` + hex4(r, hi) + `\u` + hex4(r, lo))
		default:
			b.WriteString(`\u` + hex4(r, c))
		}
	}
	b.WriteByte('"')
	return b.String()
}

func hex4(r *rand.Rand, c rune) string {
	s := strconv.FormatInt(int64(c)+0x10000, 16)[1:]
	if chance(r, 2) {
		s = strings.ToUpper(s)
	}
	return s
}
