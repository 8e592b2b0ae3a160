//! Inputs and weights for dot-product instructions: bf16 pairs, and int8 with a scale per output
//! channel of the weights and a scale per row of the inputs, both symmetric.

use half::bf16;

use super::dot::DotKernel;
use crate::engine::device::pages::Pages;
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, NarrowInputs};
use crate::engine::ops::for_row_chunks;

/// Largest int8 magnitude in use: -128 has no counterpart.
const INT8_MAX: f32 = 127.0;

/// Weights of a layer in int8; one scale and one initial sum per lane of all panels.
#[derive(Debug)]
pub(super) struct Int8Panels {
    pub kernel: DotKernel,
    /// (panels, words, panel_width) of four inputs each.
    pub words: Pages<u32>,
    pub scales: Vec<f32>,
    /// What the offset of the inputs adds to a sum, negated; None without an offset.
    pub initial: Option<Vec<i32>>,
}

impl Int8Panels {
    /// Narrows n rows of k weights; `copy_row` gives one of them.
    pub(super) fn new(
        cpu: &Cpu,
        (n, k): (usize, usize),
        copy_row: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Self {
        let kernel = DotKernel::int8(cpu.isa);
        let width = kernel.panel_width();
        let (num_panels, num_words) = (n.div_ceil(width), k.div_ceil(4));
        let mut words = Pages::zeroed_huge(num_panels * num_words * width);
        let mut scales = vec![0.0; num_panels * width];
        let mut initial = vec![0; num_panels * width];
        let shared =
            (SharedMut::new(&mut words), SharedMut::new(&mut scales), SharedMut::new(&mut initial));
        cpu.pool.run(num_panels, &|_, panel| {
            // SAFETY: each item writes its own panel.
            let (words, scales, initial) = unsafe {
                (
                    shared.0.slice(panel * num_words * width, num_words * width),
                    shared.1.slice(panel * width, width),
                    shared.2.slice(panel * width, width),
                )
            };
            let mut row = vec![0.0; 4 * num_words];
            for lane in 0..width.min(n - panel * width) {
                copy_row(panel * width + lane, &mut row[..k]);
                let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                let factor = if largest > 0.0 { INT8_MAX / largest } else { 0.0 };
                scales[lane] = largest / INT8_MAX;
                let mut sum = 0;
                for (word, values) in row.chunks_exact(4).enumerate() {
                    let bytes: [i8; 4] = std::array::from_fn(|i| int8(values[i] * factor));
                    sum += bytes.into_iter().map(i32::from).sum::<i32>();
                    words[word * width + lane] = u32::from_le_bytes(bytes.map(|byte| byte as u8));
                }
                initial[lane] = -kernel.input_offset() * sum;
            }
        });
        let initial = (kernel.input_offset() != 0).then_some(initial);
        Self { kernel, words, scales, initial }
    }

    /// Bytes that they take.
    pub(super) fn num_bytes(&self) -> usize {
        4 * self.words.len() + 4 * self.scales.len()
    }
}

/// Nearest, ties to even; NaN is 0.
#[inline(always)]
fn int8(value: f32) -> i8 {
    value.round_ties_even().clamp(-INT8_MAX, INT8_MAX) as i8
}

/// x (num_rows, k) as words for a kernel; the rest of a last word is zero.
pub(super) fn narrow_inputs(
    cpu: &Cpu,
    kernel: DotKernel,
    (x, k): (&[f32], usize),
    inputs: &mut NarrowInputs,
) {
    let num_rows = x.len() / k;
    let num_words = k.div_ceil(kernel.word_inputs());
    inputs.words.resize(num_rows * num_words, 0);
    inputs.scales.resize(num_rows, 0.0);
    let words = SharedMut::new(&mut inputs.words);
    let scales = SharedMut::new(&mut inputs.scales);
    for_row_chunks(&cpu.pool, num_rows, k, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let (words, scale) =
                unsafe { (words.slice(row * num_words, num_words), &mut scales.slice(row, 1)[0]) };
            let x = &x[row * k..(row + 1) * k];
            match kernel {
                DotKernel::BFloat16 => dispatch(cpu.isa, PairsOfBf16 { x, words }),
                _ => dispatch(cpu.isa, Int8Row { x, words, scale, kernel }),
            }
        }
    });
}

/// Rounds to nearest, ties to even.
struct PairsOfBf16<'a> {
    x: &'a [f32],
    words: &'a mut [u32],
}

impl Kernel for PairsOfBf16<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let bits = |value: f32| u32::from(bf16::from_f32(value).to_bits());
        for (word, pair) in self.words.iter_mut().zip(self.x.chunks(2)) {
            *word = bits(pair[0]) | pair.get(1).map_or(0, |&value| bits(value)) << 16;
        }
    }
}

/// One row: its scale, and its values by that.
struct Int8Row<'a> {
    x: &'a [f32],
    words: &'a mut [u32],
    scale: &'a mut f32,
    kernel: DotKernel,
}

impl Kernel for Int8Row<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { x, words, scale, kernel } = self;
        let mut lanes = [0.0f32; 16];
        let chunks = x.chunks_exact(16);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                // A NaN is kept by neither; infinities make the scale infinite.
                *lane = if x.abs() > *lane { x.abs() } else { *lane };
            }
        }
        let largest = lanes.into_iter().chain(rest.iter().map(|x| x.abs())).fold(0.0, f32::max);
        let factor = if largest > 0.0 { INT8_MAX / largest } else { 0.0 };
        *scale = largest / INT8_MAX;
        let flip = kernel.input_offset() as u32 * 0x0101_0101;
        let byte = |value: f32| {
            // Adding this much leaves the nearest integer, ties to even, in the low bits.
            const ROUND: f32 = 12_582_912.0;
            (value * factor + ROUND).to_bits() & 0xff
        };
        let quads = x.chunks_exact(4);
        let rest = quads.remainder();
        for (word, quad) in words.iter_mut().zip(quads) {
            let low = byte(quad[0]) | byte(quad[1]) << 8;
            *word = (low | byte(quad[2]) << 16 | byte(quad[3]) << 24) ^ flip;
        }
        if !rest.is_empty() {
            let bytes = rest.iter().enumerate().map(|(i, &value)| byte(value) << (8 * i));
            words[x.len() / 4] = bytes.fold(0, |word, byte| word | byte) ^ flip;
        }
    }
}
