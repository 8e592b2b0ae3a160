//! From f32 to int8: weights, once at load.

use super::rotation::{block_len, rotate_lanes};
use super::{GROUP, Int8Dots, Int8Panels, WORD};
use crate::gemm::MAX_PANEL_WIDTH;
use crate::linear::int8::Int8Layout;
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;

/// Largest int8 magnitude in use: -128 has no counterpart.
pub(super) const INT8_MAX: f32 = 127.0;

/// Groups whose largest magnitude is smaller are all zeros: their factor might be infinite.
const MIN_LARGEST: f32 = 1e-36;

impl Int8Panels {
    /// Narrows panels of `width` lanes of k weights. `widen` gives one of them as f32, (k, width).
    pub(crate) fn new(
        cpu: &Cpu,
        (num_panels, width, k): (usize, usize, usize),
        widen: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Self {
        let kernel = cpu.isa.int8_dots();
        let (num_words, num_groups) = (kernel.num_words(k), k.div_ceil(GROUP));
        let mut words = cpu.weight_pages.zeroed(num_panels * num_words * width);
        let mut scales = vec![0.0; num_panels * num_groups * width];
        let shared = (SharedMut::new(&mut words), SharedMut::new(&mut scales));
        cpu.pool.run(num_panels, &|_, panel| {
            let mut values = vec![0.0; k * width];
            widen(panel, &mut values);
            // SAFETY: each item writes its own panel.
            let narrow = unsafe {
                NarrowPanel {
                    kernel,
                    width,
                    values: &mut values,
                    words: shared.0.slice(panel * num_words * width, num_words * width),
                    scales: shared.1.slice(panel * num_groups * width, num_groups * width),
                }
            };
            dispatch(cpu.isa, narrow);
        });
        Self { kernel, words, scales }
    }
}

/// One panel. Plain loops over its lanes: they are made vectors of for the instruction set.
struct NarrowPanel<'a> {
    kernel: Int8Dots,
    width: usize,
    /// (inputs, lanes)
    values: &'a mut [f32],
    /// By panel of the kernel, which may be narrower: (words, lanes).
    words: &'a mut [u32],
    /// Likewise: (groups, lanes).
    scales: &'a mut [f32],
}

impl Kernel for NarrowPanel<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { kernel, width, values, words, scales } = self;
        let panel_width = kernel.panel_width();
        let flip = kernel.weight_offset() as u32 * 0x0101_0101;
        let (num_words, num_groups) = (words.len() / width, scales.len() / width);
        for (group, values) in values.chunks_mut(GROUP * width).enumerate() {
            rotate_lanes(values, width);
            let mut largest = [0u32; MAX_PANEL_WIDTH];
            for row in values.chunks_exact(width) {
                for (largest, &value) in largest.iter_mut().zip(row) {
                    *largest = magnitude_bits(value).max(*largest);
                }
            }
            let largest = largest.map(f32::from_bits);
            // Both sides are rotated, which makes a product so many times as large.
            let unrotated = 1.0 / block_len(values.len() / width) as f32;
            let mut factors = [0.0f32; MAX_PANEL_WIDTH];
            for (factor, largest) in factors.iter_mut().zip(largest) {
                *factor = factor_of(largest);
            }
            for (panel, first) in (0..width).step_by(panel_width).enumerate() {
                let lanes = first..first + panel_width;
                let at = (panel * num_groups + group) * panel_width;
                let scales = &mut scales[at..at + panel_width];
                for (scale, largest) in scales.iter_mut().zip(&largest[lanes.clone()]) {
                    *scale = largest / INT8_MAX * unrotated;
                }
                let factors = &factors[lanes.clone()];
                for (word, rows) in values.chunks(WORD * width).enumerate() {
                    let word = panel * num_words + group * (GROUP / WORD) + word;
                    let words = &mut words[word * panel_width..][..panel_width];
                    words.fill(flip);
                    for (byte, row) in rows.chunks_exact(width).enumerate() {
                        let row = &row[lanes.clone()];
                        for ((word, value), factor) in words.iter_mut().zip(row).zip(factors) {
                            *word ^= (int8_bits(value * factor) & 0xff) << (8 * byte);
                        }
                    }
                }
            }
        }
        if kernel == Int8Dots::Smmla {
            words.chunks_exact_mut(2 * panel_width).for_each(pair_words);
        }
    }
}

/// From the words of all lanes for four inputs, and then for four more, to eight inputs of a lane
/// beside each other.
fn pair_words(words: &mut [u32]) {
    let (mut first, mut second) = ([0; MAX_PANEL_WIDTH], [0; MAX_PANEL_WIDTH]);
    let width = words.len() / 2;
    first[..width].copy_from_slice(&words[..width]);
    second[..width].copy_from_slice(&words[width..]);
    for ((pair, first), second) in words.chunks_exact_mut(2).zip(first).zip(second) {
        pair.copy_from_slice(&[first, second]);
    }
}

/// Factor from values of at most this magnitude to int8; 0 if integers cannot hold them.
#[inline(always)]
pub(super) fn factor_of(largest: f32) -> f32 {
    let is_said = (MIN_LARGEST..f32::INFINITY).contains(&largest);
    if is_said { INT8_MAX / largest } else { 0.0 }
}

/// The bits of a magnitude. In their order NaN is the largest, so that a scale tells of it: int8
/// cannot.
#[inline(always)]
pub(super) fn magnitude_bits(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The nearest integer, ties to even, of a small number, in the low bits.
#[inline(always)]
pub(super) fn int8_bits(value: f32) -> u32 {
    // Above this one neighbours differ by 1.
    const ROUND: f32 = 12_582_912.0;
    (value + ROUND).to_bits()
}
