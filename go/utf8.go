package websocket

import (
	"encoding/binary"
	"unicode/utf8"
)

// validPrefix returns the length of the complete code points at the beginning of text. ok is false if no continuation could
// make the rest valid; otherwise the rest is the beginning of a code point, at most three bytes.
func validPrefix(text []byte) (n int, ok bool) {
	start := 0
	if hasVectors && len(text) >= textVectorMin {
		if blocks := len(text) / textBlock * textBlock; textVectors(&text[0], blocks) {
			// The last code point may go on behind the blocks.
			start = blocks - openBytes(text[:blocks])
		}
	}
	n, ok = validPrefixWords(text[start:])
	return start + n, ok
}

// openBytes returns where the last code point of blocks starts that may go on behind them, in bytes from their end.
func openBytes(blocks []byte) int {
	for n := 1; n < utf8.UTFMax; n++ {
		if last := blocks[len(blocks)-n]; last < utf8.RuneSelf {
			return 0
		} else if utf8.RuneStart(last) {
			return n
		}
	}
	return 0
}

// validPrefixWords is validPrefix without vectors.
//
// ASCII is skipped eight bytes at a time, and other code points are checked as one word of four bytes each.
func validPrefixWords(text []byte) (n int, ok bool) {
	rest := text
	for len(rest) >= 8 {
		if binary.LittleEndian.Uint64(rest)&highBits == 0 {
			rest = rest[8:]
			continue
		}
		// At least one of these eight bytes is not ASCII, so that this loop advances.
		for len(rest) >= 4 {
			// The first byte is the least significant one. Unicode 15, table 3-7.
			word := binary.LittleEndian.Uint32(rest)
			switch {
			case word&0x80 == 0:
				rest = rest[1:]
				if word&0x8080 == 0 {
					rest = rest[1:]
					if word&0x80808080 == 0 {
						rest = rest[2:]
						goto ascii
					}
				}
			case word&0xC0E0 == 0x80C0:
				if word&0x1E == 0 { // C0, C1: overlong
					return len(text) - len(rest), false
				}
				rest = rest[2:]
			case word&0xC0C0F0 == 0x8080E0:
				// Overlong below E0 A0, surrogates from ED A0.
				if bits := word & 0x200F; bits == 0 || bits == 0x200D {
					return len(text) - len(rest), false
				}
				rest = rest[3:]
			case word&0xC0C0C0F8 == 0x808080F0:
				// Overlong below F0 90, too large from F4 90.
				if bits := word & 0x3007; bits == 0 || word&7 > 4 || word&7 == 4 && bits != 4 {
					return len(text) - len(rest), false
				}
				rest = rest[4:]
			default:
				return len(text) - len(rest), false
			}
		}
	ascii:
	}
	for len(rest) > 0 {
		if r, size := utf8.DecodeRune(rest); r != utf8.RuneError || size > 1 {
			rest = rest[size:]
			continue
		}
		return len(text) - len(rest), !utf8.FullRune(rest)
	}
	return len(text), true
}

// validText reports whether text is UTF-8.
func validText(text []byte) bool {
	n, ok := validPrefix(text)
	return ok && n == len(text)
}
