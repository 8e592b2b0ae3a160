//! Blocks of 32 values with one scale: 4, 5 or 8 bits.

use super::{scale, split_nibbles};

pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block);
    split_nibbles(&block[2..], out, |q| d * f32::from(q as i8 - 8));
}

pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (scale(block), scale(&block[2..]));
    split_nibbles(&block[4..], out, |q| d * f32::from(q) + m);
}

pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = scale(block);
    five_bits(&block[2..], out, |q| d * f32::from(q as i8 - 16));
}

pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (scale(block), scale(&block[2..]));
    five_bits(&block[4..], out, |q| d * f32::from(q) + m);
}

/// 32 fifth bits, then the nibbles.
fn five_bits(bytes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let fifth = |index: usize| ((high >> index & 1) << 4) as u8;
    for (index, byte) in bytes[4..].iter().enumerate() {
        out[index] = value(byte & 15 | fifth(index));
        out[index + 16] = value(byte >> 4 | fifth(index + 16));
    }
}

pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block);
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(*q as i8);
    }
}
