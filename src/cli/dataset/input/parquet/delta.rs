//! Memory of the values of a page whose lengths are packed as deltas: checked before the parquet
//! crate makes room for as many lengths as the page says, and for prefixes that values share.

/// Integers in DELTA_BINARY_PACKED.
struct Packed {
    count: u64,
    /// Sum of those above zero.
    sum: u64,
    /// Bytes that they take.
    end: usize,
}

/// Bytes of a length in memory.
const LENGTH: u64 = 4;

/// Bytes that values of DELTA_LENGTH_BYTE_ARRAY take beside the page, `most` values at most; None:
/// they are more, or cannot be read.
pub(super) fn beside_lengths(values: &[u8], most: u64) -> Option<u64> {
    packed(values, most).map(|lengths| lengths.count * LENGTH)
}

/// The same of DELTA_BYTE_ARRAY: each value is copied with what it shares with the one before.
pub(super) fn beside_prefixes(values: &[u8], most: u64) -> Option<u64> {
    let prefixes = packed(values, most)?;
    let suffixes = packed(&values[prefixes.end..], most)?;
    let copied = prefixes.sum.checked_add(suffixes.sum)?;
    copied.checked_add((prefixes.count + suffixes.count) * LENGTH)
}

fn packed(bytes: &[u8], most: u64) -> Option<Packed> {
    let mut at = 0;
    let block = varint(bytes, &mut at)?;
    let num_minis = varint(bytes, &mut at)?;
    let count = varint(bytes, &mut at)?;
    let mut value = zigzag(bytes, &mut at)? as i32;
    let of_mini = block.checked_div(num_minis).filter(|of| *of > 0 && block == of * num_minis)?;
    if count > most || !of_mini.is_multiple_of(8) {
        return None;
    }
    let mut sum = if count > 0 { value.max(0) as u64 } else { 0 };
    let mut left = count.saturating_sub(1);
    while left > 0 {
        let least = zigzag(bytes, &mut at)? as i32;
        let widths = bytes.get(at..)?.get(..usize::try_from(num_minis).ok()?)?;
        at += widths.len();
        for &width in widths {
            if left == 0 {
                // Those behind the last value have no bytes.
                break;
            }
            let width = u32::from(width);
            let num_bytes = usize::try_from((of_mini / 8).checked_mul(width.into())?).ok()?;
            let mini = bytes.get(at..)?.get(..num_bytes).filter(|_| width <= 32)?;
            at += num_bytes;
            let taken = left.min(of_mini);
            for index in 0..taken {
                let delta = bits(mini, index * u64::from(width), width) as i32;
                value = value.wrapping_add(least).wrapping_add(delta);
                sum += value.max(0) as u64;
            }
            left -= taken;
        }
    }
    Some(Packed { count, sum, end: at })
}

/// `width` bits from a bit on, the lowest first.
fn bits(bytes: &[u8], from: u64, width: u32) -> u64 {
    let first = (from / 8) as usize;
    let mut word = [0; 8];
    let there = bytes.len().saturating_sub(first).min(8);
    word[..there].copy_from_slice(&bytes[bytes.len().min(first)..][..there]);
    (u64::from_le_bytes(word) >> (from % 8)) & ((1 << width) - 1)
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn zigzag(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let value = varint(bytes, at)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in four parts; 5 values 7, 5, 3, 1, 2: the example of Encodings.md in
    /// parquet-format.
    const EXAMPLE: &[u8] = &[128, 1, 4, 5, 14, 3, 2, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn packed_integers_are_counted_and_summed() {
        let found = packed(EXAMPLE, 5).unwrap();
        assert_eq!((found.count, found.sum, found.end), (5, 18, EXAMPLE.len()));
        assert!(packed(EXAMPLE, 4).is_none(), "more than there may be");
        for end in 0..EXAMPLE.len() {
            assert!(packed(&EXAMPLE[..end], 5).is_none(), "{end}");
        }
        let twice = [EXAMPLE, EXAMPLE].concat();
        assert_eq!(beside_prefixes(&twice, 5), Some(18 + 18 + 10 * LENGTH));
        assert_eq!(beside_lengths(EXAMPLE, 5), Some(5 * LENGTH));
    }

    #[test]
    fn what_a_header_says_is_not_believed() {
        let huge = |number: u64| {
            let mut bytes = Vec::new();
            let mut left = number;
            while left >= 128 {
                bytes.push((left & 0x7f) as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            bytes
        };
        // 2^40 lengths of 0 in one block whose parts have no bytes.
        let count = 1u64 << 40;
        let page = [huge(count), vec![1], huge(count), vec![0, 0, 0]].concat();
        assert!(packed(&page, u64::from(u32::MAX)).is_none());
        for page in [&[0, 0, 1, 0][..], &[128, 1, 0, 1, 0], &[8, 3, 2, 0]] {
            assert!(packed(page, 100).is_none(), "{page:?}");
        }
    }
}
