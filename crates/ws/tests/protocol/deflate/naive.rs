//! A naive decoder of DEFLATE (RFC 1951), bit by bit, as the reference for the crate.
//!
//! It decodes one message of permessage-deflate at a time, records the longest distance, and rejects what zlib rejects: code sets that are
//! over-subscribed or, except for a single distance code, incomplete.

/// The message is not a DEFLATE stream, or is incomplete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// A decoder with a window for context takeover.
#[derive(Default)]
pub(crate) struct Naive {
    window: Vec<u8>,
    /// The longest distance so far.
    pub(crate) distance_max: usize,
}

struct Bits<'a> {
    data: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn bit(&mut self) -> Result<usize, Corrupt> {
        let byte = self.data.get(self.at / 8).ok_or(Corrupt)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Ok(usize::from(bit))
    }

    fn bits(&mut self, n: usize) -> Result<usize, Corrupt> {
        (0..n).try_fold(0, |value, i| Ok(value | self.bit()? << i))
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }
}

/// A canonical Huffman code (RFC 1951 §3.2.2): the number of codes of each length, and the symbols in the order of their codes.
struct Code {
    counts: [usize; 16],
    symbols: Vec<usize>,
}

impl Code {
    fn new(lengths: &[usize], may_be_single: bool) -> Result<Self, Corrupt> {
        let mut code = Self { counts: [0; 16], symbols: Vec::new() };
        let mut left = 1i64 << 15;
        for length in 1..=15 {
            let of_length = lengths.iter().enumerate().filter(|(_, l)| **l == length);
            code.symbols.extend(of_length.map(|(symbol, _)| symbol));
            code.counts[length] = code.symbols.len() - code.counts[1..length].iter().sum::<usize>();
            left -= (code.counts[length] as i64) << (15 - length);
        }
        let single = may_be_single && code.symbols.len() == 1 && code.counts[1] == 1;
        if left < 0 || (left > 0 && !code.symbols.is_empty() && !single) { Err(Corrupt) } else { Ok(code) }
    }

    fn read(&self, bits: &mut Bits<'_>) -> Result<usize, Corrupt> {
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            code |= bits.bit()?;
            if code < first + count {
                return Ok(self.symbols[index + code - first]);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(Corrupt)
    }
}

const CODE_LENGTH_ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const LENGTH_BASE: [usize; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
    227, 258,
];
const LENGTH_EXTRA: [usize; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_BASE: [usize; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577,
];

fn fixed() -> Result<(Code, Code), Corrupt> {
    let lengths: Vec<usize> = (0..288)
        .map(|symbol| match symbol {
            0..144 => 8,
            144..256 => 9,
            256..280 => 7,
            _ => 8,
        })
        .collect();
    Ok((Code::new(&lengths, false)?, Code::new(&[5; 32], false)?))
}

fn dynamic(bits: &mut Bits<'_>) -> Result<(Code, Code), Corrupt> {
    let (literals, distances, lengths) = (bits.bits(5)? + 257, bits.bits(5)? + 1, bits.bits(4)? + 4);
    if literals > 286 || distances > 30 {
        return Err(Corrupt);
    }
    let mut meta = [0; 19];
    for place in &CODE_LENGTH_ORDER[..lengths] {
        meta[*place] = bits.bits(3)?;
    }
    let meta = Code::new(&meta, false)?;
    let mut all: Vec<usize> = Vec::new();
    while all.len() < literals + distances {
        let (value, repeat) = match meta.read(bits)? {
            16 => (*all.last().ok_or(Corrupt)?, 3 + bits.bits(2)?),
            17 => (0, 3 + bits.bits(3)?),
            18 => (0, 11 + bits.bits(7)?),
            length => (length, 1),
        };
        all.extend(std::iter::repeat_n(value, repeat));
    }
    if all.len() > literals + distances || all[256] == 0 {
        return Err(Corrupt);
    }
    Ok((Code::new(&all[..literals], true)?, Code::new(&all[literals..], true)?))
}

impl Naive {
    /// Clears the window, as without context takeover.
    pub(crate) fn clear_window(&mut self) {
        self.window.clear();
    }

    /// Decodes one message without its tail (RFC 7692 §7.2.2).
    ///
    /// It is complete if only the lengths of an empty stored block are missing (§7.2.1), or if it ends with a block that has BFINAL set.
    pub(crate) fn message(&mut self, payload: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let data = [payload, &[0x00, 0x00, 0xff, 0xff]].concat();
        let mut bits = Bits { data: &data, at: 0 };
        let (mut message, mut start) = (Vec::new(), self.window.len());
        while bits.at < payload.len() * 8 {
            let last = bits.bit()? == 1;
            let kind = bits.bits(2)?;
            let is_tail = kind == 0 && bits.at.div_ceil(8) == payload.len();
            match kind {
                0 => self.stored(&mut bits)?,
                1 => self.coded(&mut bits, &fixed()?)?,
                2 => {
                    let codes = dynamic(&mut bits)?;
                    self.coded(&mut bits, &codes)?;
                }
                _ => return Err(Corrupt),
            }
            // §7.2.1: what was removed is the lengths of an empty stored block, and so no symbols of another block.
            if !is_tail && bits.at > payload.len() * 8 {
                return Err(Corrupt);
            }
            if last {
                // The end of the stream, and of its window.
                bits.align();
                message.extend_from_slice(&self.window[start..]);
                self.window.clear();
                start = 0;
                if bits.at / 8 == payload.len() {
                    return Ok(message);
                }
            }
        }
        if !payload.is_empty() && bits.at / 8 != data.len() {
            return Err(Corrupt);
        }
        message.extend_from_slice(&self.window[start..]);
        Ok(message)
    }

    fn stored(&mut self, bits: &mut Bits<'_>) -> Result<(), Corrupt> {
        bits.align();
        let (len, nlen) = (bits.bits(16)?, bits.bits(16)?);
        if len ^ nlen != 0xffff {
            return Err(Corrupt);
        }
        for _ in 0..len {
            let byte = bits.bits(8)?;
            self.window.push(byte as u8);
        }
        Ok(())
    }

    fn coded(&mut self, bits: &mut Bits<'_>, (literals, distances): &(Code, Code)) -> Result<(), Corrupt> {
        loop {
            match literals.read(bits)? {
                literal @ 0..256 => self.window.push(literal as u8),
                256 => return Ok(()),
                symbol => {
                    let length = symbol - 257;
                    let extra = *LENGTH_EXTRA.get(length).ok_or(Corrupt)?;
                    let length = LENGTH_BASE[length] + bits.bits(extra)?;
                    let symbol = distances.read(bits)?;
                    let base = *DISTANCE_BASE.get(symbol).ok_or(Corrupt)?;
                    let distance = base + bits.bits((symbol / 2).saturating_sub(1))?;
                    let from = self.window.len().checked_sub(distance).ok_or(Corrupt)?;
                    self.distance_max = self.distance_max.max(distance);
                    (from..from + length).for_each(|i| self.window.push(self.window[i]));
                }
            }
        }
    }
}
