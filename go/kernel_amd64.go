//go:build !purego

package websocket

// The kernels of kernel_amd64.s need AVX2, which the processor and the operating system must both support.
//
// They exist because they were measured (BenchmarkKernels, Zen 4): at 1 KiB they mask 2.5 times and validate text that is not
// ASCII 5 times as fast as the loops over words, which serve short slices, other processors and the build tag purego.

// hasVectors reports whether the kernels can be used.
var hasVectors = supportsAVX2()

const (
	// maskVectorMin is the shortest slice for which a call of maskVectors pays, at least 32 bytes.
	maskVectorMin = 64
	// textVectorMin is the shortest text for which a call of textVectors pays, in bytes.
	textVectorMin = 64
	// textBlock is what textVectors validates at a time, in bytes.
	textBlock = 64
)

// maskVectors copies n bytes, at least 32, from src to dst and masks them. It returns a word with the high bits of the result.
//
//go:noescape
func maskVectors(dst, src *byte, n int, key uint32) (high uint32)

// textVectors reports whether text of n bytes, a multiple of textBlock, is UTF-8, but for a code point that n cuts.
//
//go:noescape
func textVectors(text *byte, n int) bool

func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

func xgetbv() (eax uint32)

func supportsAVX2() bool {
	const (
		osxsave = 1 << 27 // leaf 1, ECX
		avx     = 1 << 28 // leaf 1, ECX
		avx2    = 1 << 5  // leaf 7, EBX
		states  = 1<<1 | 1<<2
	)
	if leaves, _, _, _ := cpuid(0, 0); leaves < 7 {
		return false
	}
	if _, _, ecx, _ := cpuid(1, 0); ecx&osxsave == 0 || ecx&avx == 0 {
		return false
	}
	// The operating system saves the registers of SSE and AVX.
	if xgetbv()&states != states {
		return false
	}
	_, ebx, _, _ := cpuid(7, 0)
	return ebx&avx2 != 0
}
