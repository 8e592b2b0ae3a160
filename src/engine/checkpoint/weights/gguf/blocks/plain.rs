//! Values that are not quantized: blocks of one.

use half::{bf16, f16};

pub(super) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*block)];
}

pub(super) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [f16::from_le_bytes(*block).to_f32()];
}

pub(super) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [bf16::from_le_bytes(*block).to_f32()];
}

/// Rounded.
pub(super) fn f64(block: &[u8; 8], out: &mut [f32; 1]) {
    *out = [f64::from_le_bytes(*block) as f32];
}
