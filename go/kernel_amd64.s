//go:build !purego

#include "textflag.h"

// func maskVectors(dst, src *byte, n int, key uint32) (high uint32)
//
// 32 bytes at a time; the last 32 bytes may overlap those before. They are loaded first, because dst may be src.
TEXT ·maskVectors(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), R8
	MOVL key+24(FP), AX
	VMOVD AX, X0
	VPBROADCASTD X0, Y0 // the key from offset 0
	SUBQ $32, R8        // the offset of the last 32 bytes
	MOVQ R8, CX
	ANDL $3, CX
	SHLL $3, CX
	RORL CX, AX
	VMOVD AX, X1
	VPBROADCASTD X1, Y1
	VPXOR (SI)(R8*1), Y1, Y1
	VMOVDQA Y1, Y2      // or of the result
	XORL DX, DX         // the offset

blocks:
	LEAQ 128(DX), BX
	CMPQ BX, R8
	JA   vectors
	VPXOR (SI)(DX*1), Y0, Y3
	VPXOR 32(SI)(DX*1), Y0, Y4
	VPXOR 64(SI)(DX*1), Y0, Y5
	VPXOR 96(SI)(DX*1), Y0, Y6
	VMOVDQU Y3, (DI)(DX*1)
	VMOVDQU Y4, 32(DI)(DX*1)
	VMOVDQU Y5, 64(DI)(DX*1)
	VMOVDQU Y6, 96(DI)(DX*1)
	VPOR Y3, Y4, Y3
	VPOR Y5, Y6, Y5
	VPOR Y3, Y2, Y2
	VPOR Y5, Y2, Y2
	MOVQ BX, DX
	JMP  blocks

vectors:
	CMPQ DX, R8
	JAE  last
	VPXOR (SI)(DX*1), Y0, Y3
	VMOVDQU Y3, (DI)(DX*1)
	VPOR Y3, Y2, Y2
	ADDQ $32, DX
	JMP  vectors

last:
	VMOVDQU Y1, (DI)(R8*1)
	VPMOVMSKB Y2, AX
	VZEROUPPER
	MOVL AX, high+32(FP)
	RET

// The tables of textVectors: what is wrong with a pair of bytes, a bit for each reason, by the high and the low half of the
// first byte and the high half of the second. A reason holds if all three tables have its bit.
//
//	01  a byte that starts a code point of several, without a continuation behind it
//	02  a continuation behind ASCII
//	04  E0 80 to E0 9F: overlong
//	08  F4 90 and more: too large
//	10  ED A0 to ED BF: surrogates
//	20  C0, C1: overlong
//	40  F0 80 to F0 8F: overlong; F5 and more with 80 to 8F: too large
//	80  two continuations: an error unless a code point of three or four bytes needs them
DATA firstHigh<>+0(SB)/8, $0x0202020202020202
DATA firstHigh<>+8(SB)/8, $0x4915012180808080
GLOBL firstHigh<>(SB), RODATA|NOPTR, $16

DATA firstLow<>+0(SB)/8, $0xCBCBCB8B8383A3E7
DATA firstLow<>+8(SB)/8, $0xCBCBDBCBCBCBCBCB
GLOBL firstLow<>(SB), RODATA|NOPTR, $16

DATA secondHigh<>+0(SB)/8, $0x0101010101010101
DATA secondHigh<>+8(SB)/8, $0x01010101BABAAEE6
GLOBL secondHigh<>(SB), RODATA|NOPTR, $16

// The largest values of the last three bytes of a block, so that no code point continues behind it.
DATA complete<>+0(SB)/8, $0xFFFFFFFFFFFFFFFF
DATA complete<>+8(SB)/8, $0xFFFFFFFFFFFFFFFF
DATA complete<>+16(SB)/8, $0xFFFFFFFFFFFFFFFF
DATA complete<>+24(SB)/8, $0xBFDFEFFFFFFFFFFF
GLOBL complete<>(SB), RODATA|NOPTR, $32

// CHECK adds the errors of the 32 bytes in IN, behind those in BEFORE, to Y15.
#define CHECK(IN, BEFORE) \
	VPERM2I128 $0x21, IN, BEFORE, Y2 \
	VPALIGNR $15, Y2, IN, Y3 \
	VPALIGNR $14, Y2, IN, Y4 \
	VPALIGNR $13, Y2, IN, Y5 \
	VPSRLW $4, Y3, Y6 \
	VPAND Y6, Y11, Y6 \
	VPSHUFB Y6, Y8, Y6 \
	VPAND Y3, Y11, Y7 \
	VPSHUFB Y7, Y9, Y7 \
	VPAND Y6, Y7, Y6 \
	VPSRLW $4, IN, Y7 \
	VPAND Y7, Y11, Y7 \
	VPSHUFB Y7, Y10, Y7 \
	VPAND Y6, Y7, Y6 \
	VPSUBUSB Y12, Y4, Y4 \
	VPSUBUSB Y13, Y5, Y5 \
	VPOR Y4, Y5, Y4 \
	VPAND Y14, Y4, Y4 \
	VPXOR Y6, Y4, Y6 \
	VPOR Y6, Y15, Y15

// func textVectors(text *byte, n int) bool
//
// The algorithm is that of Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2020): each byte is
// looked at together with the one before it, in three tables, and with the two before that for the continuations.
TEXT ·textVectors(SB), NOSPLIT, $0-17
	MOVQ text+0(FP), SI
	MOVQ n+8(FP), CX
	ADDQ SI, CX // the end
	VBROADCASTI128 firstHigh<>(SB), Y8
	VBROADCASTI128 firstLow<>(SB), Y9
	VBROADCASTI128 secondHigh<>(SB), Y10
	MOVL $0x0F0F0F0F, AX
	VMOVD AX, X11
	VPBROADCASTD X11, Y11
	MOVL $0x60606060, AX // E0 and more become 80 and more
	VMOVD AX, X12
	VPBROADCASTD X12, Y12
	MOVL $0x70707070, AX // F0 and more become 80 and more
	VMOVD AX, X13
	VPBROADCASTD X13, Y13
	MOVL $0x80808080, AX
	VMOVD AX, X14
	VPBROADCASTD X14, Y14
	VPXOR Y15, Y15, Y15 // errors
	VPXOR Y1, Y1, Y1    // the block before

next:
	CMPQ SI, CX
	JAE  done
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y3
	VPOR Y0, Y3, Y3
	VPMOVMSKB Y3, AX
	TESTL AX, AX
	JNZ  mixed

	// ASCII: nothing may be left open by what comes before.
	VPSUBUSB complete<>(SB), Y1, Y1
	VPOR Y1, Y15, Y15
	VPXOR Y1, Y1, Y1
	ADDQ $64, SI
	JMP  next

mixed:
	CHECK(Y0, Y1)
	VMOVDQU 32(SI), Y1
	CHECK(Y1, Y0)
	ADDQ $64, SI
	JMP  next

done:
	VPTEST Y15, Y15
	SETEQ ret+16(FP)
	VZEROUPPER
	RET

// func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL subleaf+4(FP), CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET

// func xgetbv() (eax uint32)
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, eax+0(FP)
	RET
