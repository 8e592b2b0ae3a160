//! K-quants: blocks of 256 values, whose groups of 16 or 32 have small scales of their own.

use super::scale;

pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (scale(&block[80..]), scale(&block[82..]));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let factor = d * f32::from(scales[group] & 15);
        let minimum = dmin * f32::from(scales[group] >> 4);
        let (bytes, shift) = two_bits(qs, group);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = factor * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// Bytes and shift of a group of 16: 32 bytes hold four times 32 values, two bits each.
fn two_bits(qs: &[u8], group: usize) -> (&[u8], usize) {
    let start = group / 8 * 32 + group % 2 * 16;
    (&qs[start..start + 16], group % 8 / 2 * 2)
}

pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, qs, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = scale(&block[108..]);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let factor = d * f32::from(q3_k_scale(scales, group));
        let (bytes, shift) = two_bits(qs, group);
        for ((out, byte), high) in out.iter_mut().zip(bytes).zip(&high[group % 2 * 16..]) {
            // The third bit is set where four is not taken away.
            let third = (high >> (group / 2) & 1) << 2;
            *out = factor * f32::from((byte >> shift & 3 | third) as i8 - 4);
        }
    }
}

/// Scale of one of sixteen groups, six bits each in twelve bytes.
pub(super) fn q3_k_scale(bytes: &[u8], group: usize) -> i8 {
    // Four low bits in the first eight bytes, two high ones in the last four.
    let low = bytes[group % 8] >> (group / 8 * 4) & 15;
    let top = bytes[8 + group % 4] >> (group / 4 * 2) & 3;
    (low | top << 4) as i8 - 32
}

/// Scale and minimum of one of eight groups, six bits each in twelve bytes.
pub(super) fn scale_and_minimum(bytes: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (bytes[group] & 63, bytes[group + 4] & 63),
        _ => {
            let (scale, minimum, low) = (bytes[group - 4], bytes[group], bytes[group + 4]);
            (low & 15 | scale >> 6 << 4, low >> 4 | minimum >> 6 << 4)
        }
    }
}

pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block), scale(&block[2..]));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (factor, minimum) = scale_and_minimum(scales, group);
        let (factor, minimum) = (d * f32::from(factor), dmin * f32::from(minimum));
        let shift = group % 2 * 4;
        for (out, byte) in out.iter_mut().zip(&qs[group / 2 * 32..]) {
            *out = factor * f32::from(byte >> shift & 15) - minimum;
        }
    }
}

pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block), scale(&block[2..]));
    let (scales, high, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (factor, minimum) = scale_and_minimum(scales, group);
        let (factor, minimum) = (d * f32::from(factor), dmin * f32::from(minimum));
        let shift = group % 2 * 4;
        for ((out, byte), high) in out.iter_mut().zip(&qs[group / 2 * 32..]).zip(high) {
            let q = byte >> shift & 15 | (high >> group & 1) << 4;
            *out = factor * f32::from(q) - minimum;
        }
    }
}

pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = scale(&block[208..]);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let factor = d * f32::from(scales[group] as i8);
        // Of each half, 64 bytes hold four times 32 values: low nibbles, then high ones. Two more
        // bits are in 32 bytes.
        let (half, within) = (group / 8, group % 8);
        let low = &low[half * 64 + within % 4 * 16..];
        let high = &high[half * 32 + within % 2 * 16..];
        let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            let q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *out = factor * f32::from(q as i8 - 32);
        }
    }
}
