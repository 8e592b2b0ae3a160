//! Where the codes of a matrix lie in the tensors of the formats.

/// Where the code of (row, column) lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codes<'a> {
    /// Bytes, row by row.
    Bytes { num_columns: usize, bytes: &'a [u8] },
    /// `bits` each without gaps, from the lowest bit of a row's first byte on.
    Rows { bits: usize, row_bytes: usize, bytes: &'a [u8] },
    /// `bits` each without gaps, from the lowest bit on, in words of 32 bits: (words, rows).
    Words { bits: usize, num_rows: usize, bytes: &'a [u8] },
    /// Eight rows to a word of 32 bits, in the order of AWQ: (columns, words).
    Interleaved { num_words: usize, bytes: &'a [u8] },
    /// Two to a byte, row by row, the first in the high half.
    HighFirst { num_columns: usize, bytes: &'a [u8] },
}

impl Codes<'_> {
    /// Bits of a code.
    pub(super) fn bits(&self) -> usize {
        match *self {
            Codes::Bytes { .. } => 8,
            Codes::Rows { bits, .. } | Codes::Words { bits, .. } => bits,
            Codes::Interleaved { .. } | Codes::HighFirst { .. } => 4,
        }
    }

    /// The code of (row, column).
    #[inline]
    pub(super) fn code(&self, row: usize, column: usize) -> u8 {
        match *self {
            Codes::Bytes { num_columns, bytes } => bytes[row * num_columns + column],
            Codes::Rows { bits, row_bytes, bytes } => {
                let row = &bytes[row * row_bytes..][..row_bytes];
                let (byte, shift) = (column * bits / 8, column * bits % 8);
                let next = if shift + bits > 8 { row[byte + 1] } else { 0 };
                masked(u16::from_le_bytes([row[byte], next]) >> shift, bits)
            }
            Codes::Words { bits, num_rows, bytes } => {
                let (at, shift) = (column * bits / 32, column * bits % 32);
                let low = word(bytes, at * num_rows + row) >> shift;
                let high = match shift + bits > 32 {
                    true => word(bytes, (at + 1) * num_rows + row) << (32 - shift),
                    false => 0,
                };
                masked((low | high) as u16, bits)
            }
            Codes::Interleaved { num_words, bytes } => {
                /// Which four bits of a word a row is in.
                const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
                let word = word(bytes, column * num_words + row / 8);
                masked((word >> (4 * ORDER[row % 8])) as u16, 4)
            }
            Codes::HighFirst { num_columns, bytes } => {
                let index = row * num_columns + column;
                let byte = bytes[index / 2];
                if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
            }
        }
    }
}

fn masked(value: u16, bits: usize) -> u8 {
    (value & ((1 << bits) - 1)) as u8
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(*bytes[4 * index..].first_chunk().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_every_layout() {
        // 3 bits straddle bytes: 1, 2, 3, 4, 5, 6 from the lowest bit on.
        let packed = (0..6).fold(0u32, |all, i| all | (i + 1) << (3 * i));
        let bytes = packed.to_le_bytes();
        let rows = Codes::Rows { bits: 3, row_bytes: 3, bytes: &bytes };
        let found: Vec<_> = (0..6).map(|column| rows.code(0, column)).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 6]);

        // Two rows of words; the code of column 10 is in two of them.
        let mut bits = [[false; 64]; 2];
        for (row, bits) in bits.iter_mut().enumerate() {
            for column in 0..21 {
                for bit in 0..3 {
                    bits[3 * column + bit] = ((column + row) % 8) >> bit & 1 == 1;
                }
            }
        }
        let word = |row: usize, at: usize| {
            (0..32).fold(0u32, |word, bit| word | u32::from(bits[row][32 * at + bit]) << bit)
        };
        let words = [word(0, 0), word(1, 0), word(0, 1), word(1, 1)];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let words = Codes::Words { bits: 3, num_rows: 2, bytes: &bytes };
        for (row, column) in (0..2).flat_map(|row| (0..21).map(move |column| (row, column))) {
            assert_eq!(usize::from(words.code(row, column)), (column + row) % 8);
        }

        // Nibble i of an AWQ word is row [0, 2, 4, 6, 1, 3, 5, 7][i].
        let bytes = 0x7531_6420u32.to_le_bytes();
        let awq = Codes::Interleaved { num_words: 1, bytes: &bytes };
        let found: Vec<_> = (0..8).map(|row| awq.code(row, 0)).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7]);

        let high = Codes::HighFirst { num_columns: 3, bytes: &[0x12, 0x34, 0x56] };
        assert_eq!(
            [high.code(0, 0), high.code(0, 2), high.code(1, 0), high.code(1, 2)],
            [1, 3, 4, 6]
        );
    }
}
