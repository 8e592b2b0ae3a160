//! Huffman codes of up to 16 bits.

use super::bits::Bits;
use super::{MediaError, damaged};

const LOOKUP_BITS: u32 = 9;

/// One table.
#[derive(Clone)]
pub(super) struct Table {
    /// Length and symbol by the next bits; length 0 is a longer code.
    short: [(u8, u8); 1 << LOOKUP_BITS],
    /// By length: the first 16-bit number that is above all codes of it, and what leads from a code
    /// to the place of its symbol.
    above: [usize; 17],
    offsets: [isize; 17],
    symbols: Vec<u8>,
}

impl Table {
    /// A table of `counts` codes of each length, and their symbols.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Self, MediaError> {
        let mut table = Table {
            short: [(0, 0); 1 << LOOKUP_BITS],
            above: [0; 17],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut place) = (0_usize, 0_usize);
        for len in 1..=16_usize {
            let count = usize::from(counts[len - 1]);
            table.offsets[len] = place as isize - code as isize;
            for _ in 0..count {
                if code >= 1 << len {
                    return Err(damaged("a table of codes that overlap"));
                }
                let len_bits = len as u32;
                if len_bits <= LOOKUP_BITS {
                    let from = code << (LOOKUP_BITS - len_bits);
                    let to = (code + 1) << (LOOKUP_BITS - len_bits);
                    table.short[from..to].fill((len as u8, symbols[place]));
                }
                (code, place) = (code + 1, place + 1);
            }
            table.above[len] = code << (16 - len);
            code <<= 1;
        }
        Ok(table)
    }

    #[inline]
    pub(super) fn decode(&self, bits: &mut Bits) -> Result<u8, MediaError> {
        let next = bits.peek();
        let (len, symbol) = self.short[next >> (16 - LOOKUP_BITS)];
        if len > 0 {
            bits.pass(u32::from(len))?;
            return Ok(symbol);
        }
        self.decode_long(next, bits)
    }

    #[cold]
    fn decode_long(&self, next: usize, bits: &mut Bits) -> Result<u8, MediaError> {
        let len = (LOOKUP_BITS as usize + 1..=16).find(|&len| next < self.above[len]);
        let len = len.ok_or_else(|| damaged("a code that no table has"))?;
        let place = (next >> (16 - len)) as isize + self.offsets[len];
        let symbol = usize::try_from(place).ok().and_then(|place| self.symbols.get(place));
        let symbol = *symbol.ok_or_else(|| damaged("a code that no table has"))?;
        bits.pass(len as u32)?;
        Ok(symbol)
    }
}
