//! Contents of the blocks of quantized types: codes and scales, in the form that panels take.

use std::ops::Range;
use std::sync::Arc;

use super::levels::{E2M1, IQ4, half_of_e4m3, half_of_e8m0, iq4_xs_scale};
use super::super_blocks::{q3_k_scale, scale_and_minimum};
use super::{read, split_nibbles};
use crate::weights::gguf::{GgmlMatrix, GgmlType};
use vllm_batch_base::matrix::{CodeKind, CodedMatrix, Levels, RowScales, Scales, Table};

/// Bits of 1 in f16.
const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

/// Bits of -0 in f16: flips a sign.
const SIGN: u32 = 0x8000;

/// Codes of such a type, which is quantized.
pub(crate) fn kind_of(ty: GgmlType) -> Option<CodeKind> {
    let integers = |zero| Levels::Integers { zero };
    let table = |levels: [i8; 16]| Levels::Table(Table(Arc::new(levels.map(f32::from))));
    let bytes = |value: fn(u8) -> f32| {
        Scales::Table(Table(Arc::new(std::array::from_fn(|byte| value(byte as u8)))))
    };
    let (half, inner) = (Scales::Float16, |signed| Scales::Super { signed });
    let (bits, levels, group, scales) = match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::F64 => return None,
        GgmlType::Q4_0 => (4, integers(8), 32, half),
        GgmlType::Q4_1 => (4, Levels::Minima, 32, half),
        GgmlType::Q5_0 => (5, integers(16), 32, half),
        GgmlType::Q5_1 => (5, Levels::Minima, 32, half),
        GgmlType::Q8_0 => (8, integers(128), 32, half),
        GgmlType::Q2_K => (2, Levels::Minima, 16, inner(false)),
        GgmlType::Q3_K => (3, integers(4), 16, inner(true)),
        GgmlType::Q4_K => (4, Levels::Minima, 32, inner(false)),
        GgmlType::Q5_K => (5, Levels::Minima, 32, inner(false)),
        GgmlType::Q6_K => (6, integers(32), 16, inner(true)),
        GgmlType::IQ4_NL => (4, table(IQ4), 32, half),
        GgmlType::IQ4_XS => (4, table(IQ4), 32, inner(true)),
        GgmlType::MXFP4 => (4, table(E2M1), 32, bytes(half_of_e8m0)),
        GgmlType::NVFP4 => (4, table(E2M1), 16, bytes(half_of_e4m3)),
        GgmlType::TQ1_0 | GgmlType::TQ2_0 => (2, integers(1), 256, half),
    };
    Some(CodeKind { bits, levels, group, scales })
}

impl CodedMatrix for GgmlMatrix<'_> {
    fn kind(&self) -> CodeKind {
        kind_of(self.ty()).expect("asked of quantized types only")
    }

    fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]) {
        let kind = self.kind();
        let (len, num_bytes) = (self.ty().block_len(), self.ty().block_bytes());
        let mut blocks = self.row(row).to_vec();
        let mut codes = vec![0.0; blocks.len() / num_bytes * len];
        if let Levels::Table(_) = kind.levels {
            let head = num_bytes - len / 2;
            let half_group = if self.ty() == GgmlType::NVFP4 { 8 } else { 16 };
            for (block, codes) in blocks.chunks_exact(num_bytes).zip(codes.chunks_exact_mut(len)) {
                let groups = block[head..].chunks_exact(half_group);
                for (bytes, codes) in groups.zip(codes.chunks_exact_mut(2 * half_group)) {
                    split_nibbles(bytes, codes, f32::from);
                }
            }
        } else {
            // Scales of 1 and minima of 0 leave the codes, less their zero.
            for block in blocks.chunks_exact_mut(num_bytes) {
                unscale(self.ty(), block);
            }
            let len = codes.len();
            read(self.ty(), &blocks, 0..len, &mut codes);
        }
        let zero = if let Levels::Integers { zero } = kind.levels { f32::from(zero) } else { 0.0 };
        for (out, code) in out.iter_mut().zip(&codes[columns]) {
            *out = (code + zero) as u8;
        }
    }

    fn read_scales(&self, row: usize, out: RowScales<'_>) {
        let RowScales { scales, offsets, supers, super_minima } = out;
        let (ty, blocks) = (self.ty(), self.row(row).chunks_exact(self.ty().block_bytes()));
        let num_groups = ty.block_len() / self.kind().group;
        for (index, block) in blocks.enumerate() {
            let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
            let first = index * num_groups;
            // Where outer scales are, of values and of minima.
            let outer = match ty {
                GgmlType::Q2_K => (80, 82),
                GgmlType::Q3_K => (108, 0),
                GgmlType::Q6_K => (208, 0),
                _ => (0, 2),
            };
            if let Some(to) = supers.get_mut(index) {
                *to = half(outer.0);
            }
            if let Some(to) = super_minima.get_mut(index) {
                *to = half(outer.1);
            }
            for group in 0..num_groups {
                let (scale, offset) = match ty {
                    GgmlType::Q2_K => (block[group] & 15, (block[group] >> 4).into()),
                    GgmlType::Q3_K => (q3_k_scale(&block[96..108], group) as u8, 0),
                    GgmlType::Q4_K | GgmlType::Q5_K => {
                        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
                        (scale, minimum.into())
                    }
                    GgmlType::Q6_K => (block[192 + group], 0),
                    GgmlType::IQ4_XS => (iq4_xs_scale(block, group) as u8, 0),
                    GgmlType::MXFP4 | GgmlType::NVFP4 => (block[group], 0),
                    _ => {
                        let at = match ty {
                            GgmlType::TQ1_0 => 52,
                            GgmlType::TQ2_0 => 64,
                            _ => 0,
                        };
                        scales[first] = half(at).into();
                        if let Some(offset) = offsets.get_mut(first) {
                            // A minimum is taken off; the file's is added.
                            *offset = u32::from(half(2)) ^ SIGN;
                        }
                        continue;
                    }
                };
                scales[first + group] = scale.into();
                if let Some(to) = offsets.get_mut(first + group) {
                    *to = offset;
                }
            }
        }
    }
}

/// Makes the scales of a block 1 and its minima 0.
fn unscale(ty: GgmlType, block: &mut [u8]) {
    let outer = match ty {
        GgmlType::Q2_K => {
            block[..16].fill(1);
            80
        }
        GgmlType::Q3_K => {
            // 1 is stored as 33: nibbles of 1 below two bits of 2.
            block[96..104].fill(0x11);
            block[104..108].fill(0xaa);
            108
        }
        GgmlType::Q4_K | GgmlType::Q5_K => {
            block[4..16].copy_from_slice(&[1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
            0
        }
        GgmlType::Q6_K => {
            block[192..208].fill(1);
            208
        }
        GgmlType::TQ1_0 => 52,
        GgmlType::TQ2_0 => 64,
        _ => 0,
    };
    block[outer..outer + 2].copy_from_slice(&ONE);
    let has_minima = kind_of(ty).is_some_and(|kind| kind.levels == Levels::Minima);
    if has_minima {
        block[outer + 2..outer + 4].fill(0);
    }
}
