package websocket

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"testing"
	"unicode/utf8"
)

// samples are code points at the borders of UTF-8, and bytes that are none.
var samples = []string{
	"a", "\x00", "\x7f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "ascii and more ascii text",
	"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
	"\xf5\x80\x80\x80", "\xff", "\xc2", "\xe1\x80", "\xf1\x80\x80",
}

// randomText returns text of n bytes; about one in `rare` samples is invalid.
func randomText(random *rand.Rand, n, rare int) []byte {
	var text []byte
	for len(text) < n {
		if random.IntN(rare) == 0 {
			text = append(text, samples[random.IntN(len(samples))]...)
		} else {
			text = append(text, samples[random.IntN(12)]...)
		}
	}
	return text[:n]
}

// The kernels, where the processor has them, agree with the loops over words, at every alignment and length.
func TestMaskAgreesWithWords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	memory, got, want := make([]byte, 700), make([]byte, 800), make([]byte, 700)
	for n := range 600 {
		src := memory[n%37:][:n]
		for i := range src {
			src[i] = byte(random.Uint32()) & 0x7f
		}
		key := random.Uint32()
		if n%3 == 0 && n > 0 {
			key &= 0x7f7f7f7f
			src[random.IntN(n)] |= byte(n<<7) | byte(random.Uint32()&0x80)
		}
		wantASCII := maskWords(want[:n], src, key)
		for i := range got {
			got[i] = 0xA5
		}
		if ascii := mask(got[n%33+8:][:n], src, key); ascii != wantASCII || !bytes.Equal(got[n%33+8:][:n], want[:n]) {
			t.Fatalf("%d bytes: ASCII %v, want %v", n, ascii, wantASCII)
		}
		if outside := append(bytes.Clone(got[:n%33+8]), got[n%33+8+n:]...); bytes.Count(outside, []byte{0xA5}) != len(outside) {
			t.Fatalf("%d bytes: wrote outside", n)
		}
		if ascii := mask(src, src, key); ascii != wantASCII || !bytes.Equal(src, want[:n]) {
			t.Fatalf("%d bytes in place: ASCII %v, want %v", n, ascii, wantASCII)
		}
	}
}

func TestTextAgreesWithWords(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 20_000 {
		text := randomText(random, random.IntN(400), 1+i%200)
		n, ok := validPrefix(text)
		wantN, wantOK := validPrefixWords(text)
		if ok != wantOK || ok && n != wantN || n > len(text) || !utf8.Valid(text[:n]) {
			t.Fatalf("%q: got %d, %v, want %d, %v", text, n, ok, wantN, wantOK)
		}
	}
}

// Every sample at every place of a block, and cut there.
func TestTextAtEveryOffset(t *testing.T) {
	for _, sample := range samples {
		for at := range 2 * 64 {
			text := bytes.Repeat([]byte{'x'}, 3*64)
			copy(text[at:], sample)
			if got, want := validText(text), utf8.Valid(text); got != want {
				t.Errorf("%q at %d: got %v", sample, at, got)
			}
			cut := text[:at+len(sample)-1]
			n, ok := validPrefix(cut)
			if wantN, wantOK := validPrefixWords(cut); n != wantN && ok || ok != wantOK {
				t.Errorf("%q at %d, cut: got %d, %v, want %d, %v", sample, at, n, ok, wantN, wantOK)
			}
		}
	}
}

// FuzzMask compares the kernel with the loop over words.
func FuzzMask(f *testing.F) {
	f.Add([]byte("wireloom"), uint32(0x01020304), 1)
	f.Add(bytes.Repeat([]byte("0123456789abcde"), 20), uint32(0x80ff7f00), 3)
	f.Fuzz(func(t *testing.T, data []byte, key uint32, from int) {
		from = max(0, min(from, len(data)))
		src := data[from:]
		want, got := make([]byte, len(src)), make([]byte, len(src))
		wantASCII := maskWords(want, src, key)
		if ascii := mask(got, src, key); ascii != wantASCII || !bytes.Equal(got, want) {
			t.Errorf("%x with %x: got %x, %v, want %x, %v", src, key, got, ascii, want, wantASCII)
		}
	})
}

func BenchmarkKernels(b *testing.B) {
	for _, size := range []int{64, 200, 1 << 10, 16 << 10} {
		payload := bytes.Repeat([]byte("wireloom and "), size/13+1)[:size]
		text := append(bytes.Repeat([]byte("größer als Wörter "), size/21+1), "............"...)[:size]
		cjk := append(bytes.Repeat([]byte("日本語のテキスト"), size/24+1), "............"...)[:size]
		dst := make([]byte, size)
		run := func(name string, f func()) {
			b.Run(name, func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					f()
				}
			})
		}
		name := func(kernel string, of string) string { return kernel + "/" + of + "/size=" + strconv.Itoa(size) }
		run(name("mask", "impl=vectors"), func() { mask(dst, payload, 0x12345678) })
		run(name("mask", "impl=words"), func() { maskWords(dst, payload, 0x12345678) })
		run(name("latin", "impl=vectors"), func() { validPrefix(text) })
		run(name("latin", "impl=words"), func() { validPrefixWords(text) })
		run(name("cjk", "impl=vectors"), func() { validPrefix(cjk) })
		run(name("cjk", "impl=words"), func() { validPrefixWords(cjk) })
	}
}
