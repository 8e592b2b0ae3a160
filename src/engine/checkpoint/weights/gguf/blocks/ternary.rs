//! Blocks of 256 values of -1, 0 or 1 times one scale.

use super::scale;

/// Powers of 3 that move a digit to the top, by the digit's place.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Five digits to a byte: 32 bytes, then 16; four digits to each of the last 4.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = scale(&block[52..]);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, out) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        for (out, power) in out.chunks_exact_mut(bytes.len()).zip(POWERS) {
            for (out, byte) in out.iter_mut().zip(bytes) {
                // A byte is a fraction of 256; its top digit is the whole part of three times it.
                let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                *out = d * f32::from(digit as i8 - 1);
            }
        }
    }
}

/// 32 bytes hold four times 32 values.
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = scale(&block[64..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        for (out, byte) in out.iter_mut().zip(&block[group / 4 * 32..64]) {
            *out = d * f32::from((byte >> (group % 4 * 2) & 3) as i8 - 1);
        }
    }
}
