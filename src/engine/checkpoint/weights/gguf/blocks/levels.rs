//! Codes of 4 bits that name one of 16 levels.

use super::{scale, split_nibbles};

/// Levels of IQ4_NL and IQ4_XS.
pub(super) const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Levels of e2m1, doubled. A negative zero is a zero.
pub(super) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block);
    split_nibbles(&block[2..], out, |q| d * f32::from(IQ4[usize::from(q)]));
}

pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = scale(block);
    let (qs, _) = block[8..].as_chunks::<16>();
    for ((group, out), qs) in out.chunks_exact_mut(32).enumerate().zip(qs) {
        let factor = d * f32::from(iq4_xs_scale(block, group));
        split_nibbles(qs, out, |q| factor * f32::from(IQ4[usize::from(q)]));
    }
}

/// Scale of one of eight groups: two high bits each in two bytes, four low ones in the next four.
pub(super) fn iq4_xs_scale(block: &[u8], group: usize) -> i8 {
    let high = u16::from_le_bytes([block[2], block[3]]) >> (group * 2) & 3;
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    (low | (high as u8) << 4) as i8 - 32
}

pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_of_e8m0(block[0]);
    split_nibbles(&block[1..], out, |q| d * f32::from(E2M1[usize::from(q)]));
}

/// 2 to the (exponent - 128). The two smallest are no normal numbers.
pub(super) fn half_of_e8m0(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

/// Four groups of 16, each with a scale.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, qs) = block.split_at(4);
    let groups = out.chunks_exact_mut(16).zip(qs.chunks_exact(8));
    for ((out, qs), scale) in groups.zip(scales) {
        let d = half_of_e4m3(*scale);
        split_nibbles(qs, out, |q| d * f32::from(E2M1[usize::from(q)]));
    }
}

/// Half of an e4m3 whose sign bit is not looked at. What stands for NaN is 0, as in the reference.
pub(super) fn half_of_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (bits, exponent) {
        (0x7F, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 11),
    }
}
