//! Huffman coding of strings (RFC 7541 §5.2).
//!
//! The decoder keeps up to 64 bits of input in an accumulator. The bits are inverted: the zeros after the end of the input
//! are then the ones that pad a string, and the end needs no loop of its own. A look-up of 13 bits returns up to two symbols,
//! and whether names and values may contain them. It returns no symbol for a code longer than 13 bits, nor for the padding.
//!
//! ```text
//! accumulator  |~~~~~~~~ DECODE_BITS ~~~~~~~~|~~~ more input, inverted ~~~|000000|
//!               63                                                              0
//! ```

use super::DecodeError;
use super::huffman_table::{
    BY_CODE, CLASSES, CODE_LEN_MAX, DECODE, DECODE_BITS, ENCODE_CODES, ENCODE_LENGTHS, ENTRY_BITS,
    ENTRY_COUNT_SHIFT, ENTRY_SYMBOLS_SHIFT, EOS, Entry, FLAG_NAME, FLAG_VALUE, symbol_flags,
};

/// The result of decoding a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The number of bytes that were written.
    pub len: usize,
    flags: Entry,
}

impl Decoded {
    /// Whether every byte is allowed in a field name. A colon is not; a leading one is checked separately.
    #[inline]
    pub fn is_name(self) -> bool {
        self.flags & FLAG_NAME == 0
    }

    /// Whether every byte is allowed in a field value.
    #[inline]
    pub fn is_value(self) -> bool {
        self.flags & FLAG_VALUE == 0
    }
}

/// The length of the output buffer that [`decode`] needs for `len` bytes of input: a symbol has at least five bits, and
/// `decode` stores eight bytes at a time.
#[inline]
pub fn decoded_len_max(len: usize) -> usize {
    len.saturating_mul(2).saturating_add(16)
}

/// Look-ups between refills: there are at least 56 bits after a refill.
const LOOKUPS: usize = 4;
const _: () = assert!(LOOKUPS as u32 * DECODE_BITS <= 56);

/// Decodes a string into `out`, which holds at least [`decoded_len_max`] bytes.
///
/// # Errors
/// [`DecodeError::HuffmanEos`] and [`DecodeError::HuffmanPadding`].
///
/// # Panics
/// `out` is shorter.
pub fn decode(src: &[u8], out: &mut [u8]) -> Result<Decoded, DecodeError> {
    let last = last_word(src);
    let mut acc: u64 = 0;
    // 0 <= bits < 64: the number of input bits in the accumulator, at its high end. Those after the end count.
    let mut bits: u32 = 0;
    let mut pos = 0;
    let mut len = 0;
    let mut flags: Entry = 0;
    loop {
        acc |= word_at(src, pos, last) >> bits;
        pos += ((63 - bits) >> 3) as usize;
        bits |= 56;
        let mut symbols: u64 = 0;
        let mut count: u32 = 0;
        let mut found = 0;
        // An entry without symbols consumes no bits, so the remaining look-ups find the same entry: no branch is needed.
        for _ in 0..LOOKUPS {
            let entry = DECODE[(acc >> (64 - DECODE_BITS)) as usize];
            found = (entry >> ENTRY_COUNT_SHIFT) & 3;
            symbols |= u64::from(entry >> ENTRY_SYMBOLS_SHIFT) << (count * 8);
            count += found;
            flags |= entry;
            acc <<= entry & ENTRY_BITS;
            bits -= entry & ENTRY_BITS;
        }
        out[len..len + 8].copy_from_slice(&symbols.to_le_bytes());
        len += count as usize;
        if found != 0 {
            continue;
        }
        // A longer code or the end. A longer code may need all bits of a refill. `remaining` is negative if the last symbol used
        // bits after the end.
        acc |= word_at(src, pos, last) >> bits;
        pos += ((63 - bits) >> 3) as usize;
        bits |= 56;
        let remaining = (src.len() as isize - pos as isize) * 8 + bits as isize;
        if remaining <= 7 {
            // RFC 7541 §5.2: padding is the most significant bits of EOS, that is ones, and shorter than 8 bits.
            // After the end the accumulator contains zeros.
            return if remaining >= 0 && acc == 0 {
                Ok(Decoded { len, flags })
            } else {
                Err(DecodeError::HuffmanPadding)
            };
        }
        let (symbol, code_len) = long_symbol(acc);
        if code_len as isize > remaining {
            // RFC 7541 §5.2: padding longer than 7 bits, or an incomplete code.
            return Err(DecodeError::HuffmanPadding);
        }
        if symbol == EOS {
            // RFC 7541 §5.2: a string that contains EOS MUST be treated as a decoding error.
            return Err(DecodeError::HuffmanEos);
        }
        out[len] = symbol as u8;
        len += 1;
        flags |= symbol_flags(symbol as u8);
        acc <<= code_len;
        bits -= code_len;
    }
}

/// The next symbol, whose code is longer than [`DECODE_BITS`], and the length of its code.
#[cold]
fn long_symbol(acc: u64) -> (u16, u32) {
    let code = !(acc >> 32) as u32;
    for len in DECODE_BITS + 1..=CODE_LEN_MAX {
        let class = &CLASSES[len as usize];
        let nth = (code >> (32 - len)).wrapping_sub(class.first);
        if nth < class.count {
            return (BY_CODE[(class.offset + nth) as usize], len);
        }
    }
    // Not reached: the code is complete.
    (EOS, CODE_LEN_MAX)
}

/// The last eight bytes, or all bytes of a shorter string: right-aligned and inverted.
fn last_word(src: &[u8]) -> u64 {
    let len = src.len();
    let word = if let Some(last) = src.last_chunk::<8>() {
        u64::from_be_bytes(*last)
    } else if let (Some(first), Some(last)) = (src.first_chunk::<4>(), src.last_chunk::<4>()) {
        u64::from(u32::from_be_bytes(*first)) << ((len - 4) * 8) | u64::from(u32::from_be_bytes(*last))
    } else {
        src.iter().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    !word
}

/// The eight bytes at a position, inverted; zeros after the end.
fn word_at(src: &[u8], pos: usize, last: u64) -> u64 {
    if let Some(word) = src.get(pos..).and_then(<[u8]>::first_chunk::<8>) {
        return !u64::from_be_bytes(*word);
    }
    let missing = pos + 8 - src.len();
    if missing < 8 { last << (missing * 8) } else { 0 }
}

/// The length of the encoded string, in bytes.
#[inline]
pub fn encoded_len(src: &[u8]) -> usize {
    let bits: usize = src.iter().map(|&byte| usize::from(ENCODE_LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// [`encode`] may overwrite this many bytes after the encoded string.
pub const ENCODE_SLACK: usize = 8;

/// Encodes a string and returns [`encoded_len`]. `out` must have [`ENCODE_SLACK`] more bytes than that.
///
/// # Panics
/// `out` is shorter.
pub fn encode(src: &[u8], out: &mut [u8]) -> usize {
    let mut bits = BitWriter { acc: 0, bits: 0, out, at: 0 };
    let (fours, tail) = src.as_chunks::<4>();
    for four in fours {
        let [(a, a_len), (b, b_len), (c, c_len), (d, d_len)] = four.map(code_of);
        let len = a_len + b_len + c_len + d_len;
        if len <= BITS_MAX {
            bits.push((a << b_len | b) << (c_len + d_len) | c << d_len | d, len);
        } else {
            // Codes of this length are rare in text.
            four.iter().for_each(|&byte| bits.push_one(byte));
        }
    }
    tail.iter().for_each(|&byte| bits.push_one(byte));
    // RFC 7541 §5.2: the last octet is padded with the most significant bits of EOS.
    if bits.bits > 0 {
        bits.push(0x7f, 7);
    }
    bits.at
}

#[inline(always)]
fn code_of(byte: u8) -> (u64, u32) {
    (u64::from(ENCODE_CODES[usize::from(byte)]), u32::from(ENCODE_LENGTHS[usize::from(byte)]))
}

/// The maximum number of bits in one call of [`BitWriter::push`].
const BITS_MAX: u32 = 56;

struct BitWriter<'a> {
    /// The lowest `bits` bits belong to an incomplete byte; `bits < 8` between calls.
    acc: u64,
    bits: u32,
    out: &'a mut [u8],
    at: usize,
}

impl BitWriter<'_> {
    /// Appends `1..=BITS_MAX` bits. Stores eight bytes and advances by the complete ones.
    #[inline(always)]
    fn push(&mut self, code: u64, len: u32) {
        self.acc = self.acc << len | code;
        self.bits += len;
        let word = (self.acc << (64 - self.bits)).to_be_bytes();
        self.out[self.at..self.at + 8].copy_from_slice(&word);
        self.at += (self.bits / 8) as usize;
        self.bits %= 8;
    }

    #[inline(always)]
    fn push_one(&mut self, byte: u8) {
        let (code, len) = code_of(byte);
        self.push(code, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    /// Decodes bit by bit.
    fn naive_decode(src: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut out = Vec::new();
        let (mut code, mut len) = (0_u32, 0);
        for at in 0..src.len() * 8 {
            code = code << 1 | u32::from(src[at / 8] >> (7 - at % 8) & 1);
            len += 1;
            let class = CLASSES[len];
            if code >= class.first && code - class.first < class.count {
                match BY_CODE[(class.offset + code - class.first) as usize] {
                    EOS => return Err(DecodeError::HuffmanEos),
                    symbol => out.push(symbol as u8),
                }
                (code, len) = (0, 0);
            }
        }
        if len > 7 || code != (1 << len) - 1 { Err(DecodeError::HuffmanPadding) } else { Ok(out) }
    }

    fn decoded(src: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut out = vec![0xaa; decoded_len_max(src.len())];
        let decoded = decode(src, &mut out)?;
        out.truncate(decoded.len);
        assert_eq!(decoded.is_name(), out.iter().all(|&byte| crate::field::is_name_byte(byte)));
        assert_eq!(decoded.is_value(), out.iter().all(|&byte| crate::field::is_value_byte(byte)));
        Ok(out)
    }

    fn encoded(src: &[u8]) -> Vec<u8> {
        let mut out = vec![0; encoded_len(src) + ENCODE_SLACK];
        assert_eq!(encode(src, &mut out), encoded_len(src));
        out.truncate(encoded_len(src));
        out
    }

    #[test]
    fn matches_an_example_of_the_rfc() {
        // RFC 7541 C.4.1.
        let wire = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(encoded(b"www.example.com"), wire);
        assert_eq!(decoded(&wire), Ok(b"www.example.com".to_vec()));
    }

    #[test]
    fn round_trips_every_pair_of_bytes_and_every_length() {
        for first in 0..=255 {
            assert_eq!(decoded(&encoded(&[first])), Ok(vec![first]));
            for second in 0..=255 {
                assert_eq!(decoded(&encoded(&[first, second])), Ok(vec![first, second]));
            }
        }
        for len in 0..200 {
            for byte in *b"0aAZ&!\\" {
                let text = vec![byte; len];
                assert_eq!(decoded(&encoded(&text)), Ok(text));
            }
        }
    }

    #[test]
    fn refuses_padding_longer_than_seven_bits() {
        // RFC 7541 §5.2: padding strictly longer than 7 bits MUST be treated as a decoding error.
        assert_eq!(decoded(&[0xff]), Err(DecodeError::HuffmanPadding));
        assert_eq!(decoded(&[0xff, 0xff]), Err(DecodeError::HuffmanPadding));
        for len in 1..40 {
            let mut wire = encoded(&vec![b'a'; len]);
            wire.push(0xff);
            assert_eq!(decoded(&wire), Err(DecodeError::HuffmanPadding));
        }
    }

    #[test]
    fn refuses_padding_that_is_not_the_start_of_eos() {
        // RFC 7541 §5.2: padding not corresponding to the most significant bits of EOS MUST be refused.
        for padding in 0..7 {
            // 'a' is 00011.
            assert_eq!(decoded(&[0b0001_1000 | padding]), Err(DecodeError::HuffmanPadding), "{padding:03b}");
        }
        assert_eq!(decoded(&[0b0001_1111]), Ok(vec![b'a']));
    }

    #[test]
    fn refuses_eos_at_every_position() {
        // RFC 7541 §5.2: a string that contains the EOS symbol MUST be treated as a decoding error.
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(DecodeError::HuffmanEos));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), Err(DecodeError::HuffmanEos));
        // 'a' eight times fills five bytes exactly; EOS with two bits of padding follows.
        for len in [0, 8, 16, 64] {
            let mut wire = encoded(&vec![b'a'; len]);
            wire.extend([0xff, 0xff, 0xff, 0xff, 0x1f]);
            assert_eq!(decoded(&wire), Err(DecodeError::HuffmanEos));
        }
    }

    #[test]
    fn equals_the_naive_decoder() {
        wireloom_testing::rounds(30_000, |random| {
            let text: Vec<u8> = match random.u8(..3) {
                0 => (0..random.usize(..60)).map(|_| random.u8(0x20..0x7f)).collect(),
                1 => (0..random.usize(..20)).map(|_| random.u8(..)).collect(),
                _ => (0..random.usize(..60)).map(|_| b"012aceiost"[random.usize(..10)]).collect(),
            };
            let mut wire = encoded(&text);
            assert_eq!(decoded(&wire), Ok(text));
            // A bit is flipped, the end is cut off, or random bits are set.
            match random.u8(..3) {
                0 if !wire.is_empty() => {
                    let at = random.usize(..wire.len());
                    wire[at] ^= 1 << random.u8(..8);
                }
                1 => wire.truncate(random.usize(..=wire.len())),
                _ => wire.iter_mut().for_each(|byte| *byte |= random.u8(..)),
            }
            assert_eq!(decoded(&wire), naive_decode(&wire), "{wire:02x?}");
        });
    }
}
