//! Blocks of every type to f32: the bits of `gguf.dequantize`, the format's reference in Python.
//!
//! Layouts: `ggml/src/ggml-common.h`. A value is a product of a scale and an integer, less a
//! minimum in some types. Products are exact in f32, so that a value is rounded once at most.

mod codes;
mod levels;
mod nibbles;
mod plain;
mod super_blocks;
mod ternary;

pub(super) use codes::kind_of;

use std::ops::Range;

use half::f16;

use super::GgmlType;

/// Values `columns` of a row as f32. `row` are the bytes of all its blocks.
///
/// # Panics
/// A column is not in the row, or `out` is not as long as `columns`.
pub fn read(ty: GgmlType, row: &[u8], columns: Range<usize>, out: &mut [f32]) {
    assert_eq!(columns.len(), out.len());
    let blocks = Blocks { row, columns };
    match ty {
        GgmlType::F32 => blocks.read(out, plain::f32),
        GgmlType::F16 => blocks.read(out, plain::f16),
        GgmlType::BF16 => blocks.read(out, plain::bf16),
        GgmlType::F64 => blocks.read(out, plain::f64),
        GgmlType::Q4_0 => blocks.read(out, nibbles::q4_0),
        GgmlType::Q4_1 => blocks.read(out, nibbles::q4_1),
        GgmlType::Q5_0 => blocks.read(out, nibbles::q5_0),
        GgmlType::Q5_1 => blocks.read(out, nibbles::q5_1),
        GgmlType::Q8_0 => blocks.read(out, nibbles::q8_0),
        GgmlType::Q2_K => blocks.read(out, super_blocks::q2_k),
        GgmlType::Q3_K => blocks.read(out, super_blocks::q3_k),
        GgmlType::Q4_K => blocks.read(out, super_blocks::q4_k),
        GgmlType::Q5_K => blocks.read(out, super_blocks::q5_k),
        GgmlType::Q6_K => blocks.read(out, super_blocks::q6_k),
        GgmlType::IQ4_NL => blocks.read(out, levels::iq4_nl),
        GgmlType::IQ4_XS => blocks.read(out, levels::iq4_xs),
        GgmlType::MXFP4 => blocks.read(out, levels::mxfp4),
        GgmlType::NVFP4 => blocks.read(out, levels::nvfp4),
        GgmlType::TQ1_0 => blocks.read(out, ternary::tq1_0),
        GgmlType::TQ2_0 => blocks.read(out, ternary::tq2_0),
    }
}

/// Part of a row.
struct Blocks<'a> {
    row: &'a [u8],
    columns: Range<usize>,
}

impl Blocks<'_> {
    /// Decodes whole blocks in place, and those at the ends beside.
    fn read<const BYTES: usize, const LEN: usize>(
        self,
        out: &mut [f32],
        decode: fn(&[u8; BYTES], &mut [f32; LEN]),
    ) {
        let (blocks, _) = self.row.as_chunks::<BYTES>();
        let (mut column, mut out) = (self.columns.start, out);
        while !out.is_empty() {
            let (block, start) = (&blocks[column / LEN], column % LEN);
            let (now, later) = out.split_at_mut(out.len().min(LEN - start));
            match <&mut [f32; LEN]>::try_from(&mut *now) {
                Ok(whole) => decode(block, whole),
                Err(_) => {
                    let mut whole = [0.0; LEN];
                    decode(block, &mut whole);
                    now.copy_from_slice(&whole[start..start + now.len()]);
                }
            }
            (column, out) = (column + now.len(), later);
        }
    }
}

/// The f16 at the start of some bytes.
fn scale(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Low nibbles to the first half of the values, high nibbles to the second.
fn split_nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = value(byte & 15);
        *high = value(byte >> 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types, blocks and values of `testdata/gguf/make_blocks.py`.
    fn golden() -> Vec<(GgmlType, &'static [u8], Vec<f32>)> {
        let mut rest = include_bytes!("../../../../../../testdata/gguf/blocks.bin").as_slice();
        let mut take = |len: usize| rest.split_off(..len).unwrap();
        let mut cases = Vec::new();
        for _ in GgmlType::all().filter(|ty| *ty != GgmlType::F64) {
            let [id, num_blocks] =
                [(); 2].map(|()| u32::from_le_bytes(take(4).try_into().unwrap()));
            let ty = GgmlType::from_id(id).unwrap();
            let blocks = take(num_blocks as usize * ty.block_bytes());
            let values = take(num_blocks as usize * ty.block_len() * 4).as_chunks().0;
            cases.push((ty, blocks, values.iter().map(|v| f32::from_le_bytes(*v)).collect()));
        }
        assert!(rest.is_empty());
        cases
    }

    #[test]
    fn values_have_the_bits_of_the_reference() {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (ty, row, values) in golden() {
            let len = values.len();
            for columns in [0..len, 1..len, 0..len - 1, len / 3..len / 2, 5..5] {
                let mut out = vec![f32::NAN; columns.len()];
                read(ty, row, columns.clone(), &mut out);
                assert_eq!(bits(&out), bits(&values[columns.clone()]), "{ty} {columns:?}");
            }
        }
    }

    #[test]
    fn doubles_are_rounded() {
        let row: Vec<u8> =
            [0.1, -1e300, 16777217.0f64].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0.0; 3];
        read(GgmlType::F64, &row, 0..3, &mut out);
        assert_eq!(out, [0.1, f32::NEG_INFINITY, 16777216.0]);
    }
}
