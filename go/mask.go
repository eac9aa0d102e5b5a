package websocket

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync"
)

// MaskingKey masks the payload of a client's frame (RFC 6455 §5.3).
type MaskingKey [4]byte

// Unmasked is the zero key: [WriteFrame] writes the frame without a mask.
var Unmasked MaskingKey

// generators holds sources of masking keys. RFC 6455 §5.3: an application that chooses the payload must not be able to
// predict the key. ChaCha8 is a cryptographic generator; seeded from the operating system, it costs a tenth of a system
// call for each key.
var generators = sync.Pool{New: func() any {
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		panic("websocket: no randomness: " + err.Error())
	}
	return rand.NewChaCha8(seed)
}}

// NewMaskingKey returns a random key, which is never [Unmasked].
func NewMaskingKey() MaskingKey {
	var key MaskingKey
	binary.LittleEndian.PutUint32(key[:], newKey())
	return key
}

// newKey returns a random key as a word whose least significant byte masks the first byte of the payload.
func newKey() uint32 {
	generator := generators.Get().(*rand.ChaCha8)
	key := uint32(generator.Uint64())
	for key == 0 {
		key = uint32(generator.Uint64())
	}
	generators.Put(generator)
	return key
}

// word returns the key as [newKey] does.
func (k MaskingKey) word() uint32 { return binary.LittleEndian.Uint32(k[:]) }

// rotateKey returns the key for the byte that is n bytes further on.
func rotateKey(key uint32, n int) uint32 {
	return bits.RotateLeft32(key, -8*(n&3))
}

// highBits selects the bit of each byte that is zero in ASCII.
const highBits = 0x8080808080808080

// mask copies src to dst, of the same length, and masks it. The slices are the same or do not overlap. It reports
// whether the result is ASCII.
func mask(dst, src []byte, key uint32) (ascii bool) {
	if hasVectors && len(src) >= maskVectorMin {
		dst = dst[:len(src)]
		return maskVectors(&dst[0], &src[0], len(src), key) == 0
	}
	return maskWords(dst, src, key)
}

// maskWords is mask without vectors.
//
// A loop over eight words at a time is as fast as crypto/subtle.XORBytes where that has vectors, without the buffer that it
// needs for the key, and gathers the bits for ASCII on the way.
func maskWords(dst, src []byte, key uint32) (ascii bool) {
	k := uint64(key)<<32 | uint64(key)
	var seen uint64
	dst = dst[:len(src)]
	for len(src) >= 64 && len(dst) >= 64 {
		s, d := (*[64]byte)(src), (*[64]byte)(dst)
		a := binary.LittleEndian.Uint64(s[0:8]) ^ k
		b := binary.LittleEndian.Uint64(s[8:16]) ^ k
		c := binary.LittleEndian.Uint64(s[16:24]) ^ k
		e := binary.LittleEndian.Uint64(s[24:32]) ^ k
		binary.LittleEndian.PutUint64(d[0:8], a)
		binary.LittleEndian.PutUint64(d[8:16], b)
		binary.LittleEndian.PutUint64(d[16:24], c)
		binary.LittleEndian.PutUint64(d[24:32], e)
		seen |= a | b | c | e
		a = binary.LittleEndian.Uint64(s[32:40]) ^ k
		b = binary.LittleEndian.Uint64(s[40:48]) ^ k
		c = binary.LittleEndian.Uint64(s[48:56]) ^ k
		e = binary.LittleEndian.Uint64(s[56:64]) ^ k
		binary.LittleEndian.PutUint64(d[32:40], a)
		binary.LittleEndian.PutUint64(d[40:48], b)
		binary.LittleEndian.PutUint64(d[48:56], c)
		binary.LittleEndian.PutUint64(d[56:64], e)
		seen |= a | b | c | e
		src, dst = src[64:], dst[64:]
	}
	for len(src) >= 8 && len(dst) >= 8 {
		a := binary.LittleEndian.Uint64(src) ^ k
		binary.LittleEndian.PutUint64(dst, a)
		seen |= a
		src, dst = src[8:], dst[8:]
	}
	for i := range src {
		b := src[i] ^ byte(k)
		dst[i] = b
		seen |= uint64(b)
		k >>= 8
	}
	return seen&highBits == 0
}
