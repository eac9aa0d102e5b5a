//! The Huffman code (RFC 7541 Appendix B) and the tables derived from it at compile time.
//!
//! The code is canonical: the codes of one length are consecutive in the order of their symbols, and each length continues
//! where the previous one ended. So the lengths determine the code; `matches_the_appendix` compares samples.

/// The length of each symbol's code in bits; EOS is the 257th symbol.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, // 0x00
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, // 0x10
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, // 0x20
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, // 0x30
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // 0x40
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, // 0x50
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, // 0x60
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, // 0x70
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, // 0x80
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, // 0x90
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, // 0xa0
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, // 0xb0
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, // 0xc0
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, // 0xd0
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, // 0xe0
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, // 0xf0
    30, // EOS
];

/// The length of the longest codes, in bits: those of EOS and three other symbols.
pub(crate) const CODE_LEN_MAX: u32 = 30;

/// EOS, which is invalid in a string (RFC 7541 §5.2).
pub(crate) const EOS: u16 = 256;

/// The codes of one length.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// The lowest code.
    pub(crate) first: u32,
    /// The number of codes.
    pub(crate) count: u32,
    /// The index in [`BY_CODE`] of the symbol with the lowest code.
    pub(crate) offset: u32,
}

/// The codes of each length, by length.
pub(crate) static CLASSES: [Class; CODE_LEN_MAX as usize + 1] = classes();

const fn classes() -> [Class; CODE_LEN_MAX as usize + 1] {
    let mut classes = [Class { first: 0, count: 0, offset: 0 }; CODE_LEN_MAX as usize + 1];
    let mut symbol = 0;
    while symbol < LENGTHS.len() {
        classes[LENGTHS[symbol] as usize].count += 1;
        symbol += 1;
    }
    let mut len = 1;
    while len < classes.len() {
        classes[len].first = (classes[len - 1].first + classes[len - 1].count) << 1;
        classes[len].offset = classes[len - 1].offset + classes[len - 1].count;
        len += 1;
    }
    // The code is complete (Kraft): every bit pattern is the beginning of a string.
    assert!(classes[CODE_LEN_MAX as usize].first + classes[CODE_LEN_MAX as usize].count == 1 << CODE_LEN_MAX);
    classes
}

/// The symbols, in the order of their codes.
pub(crate) static BY_CODE: [u16; 257] = {
    let mut next = classes();
    let mut by_code = [0; 257];
    let mut symbol = 0;
    while symbol < LENGTHS.len() {
        let class = &mut next[LENGTHS[symbol] as usize];
        by_code[class.offset as usize] = symbol as u16;
        class.offset += 1;
        symbol += 1;
    }
    by_code
};

const CODES: [u32; 257] = {
    let mut next = classes();
    let mut codes = [0; 257];
    let mut symbol = 0;
    while symbol < LENGTHS.len() {
        let class = &mut next[LENGTHS[symbol] as usize];
        codes[symbol] = class.first;
        class.first += 1;
        symbol += 1;
    }
    codes
};

/// The code of each byte, right-aligned.
pub(crate) static ENCODE_CODES: [u32; 256] = {
    let mut codes = [0; 256];
    let mut symbol = 0;
    while symbol < 256 {
        codes[symbol] = CODES[symbol];
        symbol += 1;
    }
    codes
};

/// The length of each byte's code in bits.
pub(crate) static ENCODE_LENGTHS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut symbol = 0;
    while symbol < 256 {
        lengths[symbol] = LENGTHS[symbol];
        symbol += 1;
    }
    lengths
};

/// The number of input bits that index [`DECODE`].
pub(crate) const DECODE_BITS: u32 = 13;

/// The result of a look-up: up to two symbols.
///
/// ```text
///  31      24 23      16 15         8 7    6 5        0
/// +----------+----------+------------+------+----------+
/// | second   | first    | flags      |count | bits     |   count 0: the code is longer than the index
/// +----------+----------+------------+------+----------+
/// ```
pub(crate) type Entry = u32;

pub(crate) const ENTRY_BITS: Entry = 0x3f;
pub(crate) const ENTRY_COUNT_SHIFT: u32 = 6;
/// One of the symbols is not allowed in a name (after a leading colon).
pub(crate) const FLAG_NAME: Entry = 0x100;
/// One of the symbols is not allowed in a value.
pub(crate) const FLAG_VALUE: Entry = 0x200;
pub(crate) const ENTRY_SYMBOLS_SHIFT: u32 = 16;

/// The entry of each pattern of [`DECODE_BITS`] bits, which are inverted: a zero is a one of the code.
pub(crate) static DECODE: [Entry; 1 << DECODE_BITS] = {
    let mut table = [0; 1 << DECODE_BITS];
    let mut first = 0;
    while first < 256 {
        let first_len = LENGTHS[first] as u32;
        if first_len <= DECODE_BITS {
            let entry = symbol_flags(first as u8) | (first as Entry) << ENTRY_SYMBOLS_SHIFT;
            let entry_one = entry | 1 << ENTRY_COUNT_SHIFT | first_len;
            fill(&mut table, CODES[first], first_len, entry_one);
            let mut second = 0;
            while second < 256 {
                let len = first_len + LENGTHS[second] as u32;
                if len <= DECODE_BITS {
                    let entry_two = entry
                        | symbol_flags(second as u8)
                        | (second as Entry) << (ENTRY_SYMBOLS_SHIFT + 8)
                        | 2 << ENTRY_COUNT_SHIFT
                        | len;
                    fill(&mut table, CODES[first] << LENGTHS[second] | CODES[second], len, entry_two);
                }
                second += 1;
            }
        }
        first += 1;
    }
    table
};

const fn fill(table: &mut [Entry; 1 << DECODE_BITS], code: u32, len: u32, entry: Entry) {
    let start = code << (DECODE_BITS - len);
    let mut at = 0;
    while at < 1 << (DECODE_BITS - len) {
        table[((1 << DECODE_BITS) - 1 - (start + at)) as usize] = entry;
        at += 1;
    }
}

/// [`FLAG_NAME`] and [`FLAG_VALUE`] of one symbol.
pub(crate) const fn symbol_flags(symbol: u8) -> Entry {
    let name = if crate::field::is_name_byte(symbol) { 0 } else { FLAG_NAME };
    let value = if crate::field::is_value_byte(symbol) { 0 } else { FLAG_VALUE };
    name | value
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn classes_number_the_codes_of_each_length() {
        let mut codes = 0;
        for (len, class) in classes().iter().enumerate() {
            let count = LENGTHS.iter().filter(|&&other| usize::from(other) == len).count();
            assert_eq!((class.count as usize, class.offset), (count, codes), "{len} bits");
            codes += class.count;
        }
        // RFC 7541 Appendix B: the first codes of 5, 6, 7 and 30 bits.
        assert_eq!([5, 6, 7, 30].map(|len| classes()[len].first), [0x0, 0x14, 0x5c, 0x3fff_fffc]);
    }

    #[test]
    fn an_entry_is_found_by_every_pattern_that_begins_with_its_code() {
        let mut table = [0; 1 << DECODE_BITS];
        fill(&mut table, 0b101, 3, 7);
        let filled: Vec<usize> = (0..table.len()).filter(|&at| table[at] == 7).collect();
        // Inverted, the code is 0b010.
        let expected: Vec<usize> = (0b010 << (DECODE_BITS - 3)..0b011 << (DECODE_BITS - 3)).collect();
        assert_eq!(filled, expected);
    }

    #[test]
    fn matches_the_appendix() {
        // RFC 7541 Appendix B, at least one code of each length.
        for (symbol, code, len) in [
            (b'0' as usize, 0x0, 5),
            (b't' as usize, 0x9, 5),
            (b' ' as usize, 0x14, 6),
            (b'u' as usize, 0x2d, 6),
            (b':' as usize, 0x5c, 7),
            (b'z' as usize, 0x7b, 7),
            (b'&' as usize, 0xf8, 8),
            (b'Z' as usize, 0xfd, 8),
            (b'!' as usize, 0x3f8, 10),
            (b'\'' as usize, 0x7fa, 11),
            (b'#' as usize, 0xffa, 12),
            (0, 0x1ff8, 13),
            (b'^' as usize, 0x3ffc, 14),
            (b'<' as usize, 0x7ffc, 15),
            (b'\\' as usize, 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (153, 0x1fffdc, 21),
            (129, 0x3fffd2, 22),
            (1, 0x7fffd8, 23),
            (9, 0xffffea, 24),
            (199, 0x1ffffec, 25),
            (192, 0x3ffffe0, 26),
            (203, 0x7ffffde, 27),
            (2, 0xfffffe2, 28),
            (254, 0x7fffff0, 27),
            (10, 0x3ffffffc, 30),
            (22, 0x3ffffffe, 30),
            (256, 0x3fffffff, 30),
        ] {
            assert_eq!((CODES[symbol], LENGTHS[symbol]), (code, len), "symbol {symbol}");
        }
    }
}
