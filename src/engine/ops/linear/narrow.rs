//! Inputs and weights for dot-product instructions: bf16 pairs, and int8 with a scale per output
//! channel of the weights and a scale per row of the inputs, both symmetric.

use half::bf16;

use super::dot::DotKernel;
use crate::engine::device::pages::Pages;
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, NarrowInputs};
use crate::engine::ops::for_row_chunks;
use crate::engine::ops::gemm::MAX_PANEL_WIDTH;

/// Most inputs of a layer: more products of 255 by 127 might not fit a sum of 32 bits.
pub(super) const MAX_INT8_INPUTS: usize = 1 << 16;

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
    /// Narrows panels of `width` lanes of k weights. `widen` gives one of them as f32, (k, width).
    pub(super) fn new(
        cpu: &Cpu,
        (num_panels, width, k): (usize, usize, usize),
        widen: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Self {
        let kernel = DotKernel::int8(cpu.isa);
        let num_words = k.div_ceil(4);
        let mut words = Pages::zeroed_huge(num_panels * num_words * width);
        let mut scales = vec![0.0; num_panels * width];
        let mut initial = vec![0; num_panels * width];
        let shared =
            (SharedMut::new(&mut words), SharedMut::new(&mut scales), SharedMut::new(&mut initial));
        cpu.pool.run(num_panels, &|_, panel| {
            // The rest of a last word is zero.
            let mut values = vec![0.0; 4 * num_words * width];
            widen(panel, &mut values[..k * width]);
            // SAFETY: each item writes its own panel.
            let narrow = unsafe {
                NarrowPanel {
                    kernel,
                    values: &values,
                    words: shared.0.slice(panel * num_words * width, num_words * width),
                    scales: shared.1.slice(panel * width, width),
                    initial: shared.2.slice(panel * width, width),
                }
            };
            dispatch(cpu.isa, narrow);
        });
        let initial = (kernel.input_offset() != 0).then_some(initial);
        Self { kernel, words, scales, initial }
    }

    /// Bytes that they take.
    pub(super) fn num_bytes(&self) -> usize {
        4 * self.words.len() + 4 * self.scales.len()
    }
}

/// One panel. Plain loops over its lanes: they are made vectors of for the instruction set.
struct NarrowPanel<'a> {
    kernel: DotKernel,
    /// (inputs, lanes)
    values: &'a [f32],
    /// By panel of the kernel, which may be narrower: (words, lanes).
    words: &'a mut [u32],
    scales: &'a mut [f32],
    initial: &'a mut [i32],
}

impl Kernel for NarrowPanel<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { kernel, values, words, scales, initial } = self;
        let width = scales.len();
        let mut largest = [0.0f32; MAX_PANEL_WIDTH];
        let largest = &mut largest[..width];
        for row in values.chunks_exact(width) {
            for (largest, value) in largest.iter_mut().zip(row) {
                *largest = larger(*largest, value.abs());
            }
        }
        let mut factors = [0.0f32; MAX_PANEL_WIDTH];
        for lane in 0..width {
            scales[lane] = largest[lane] / INT8_MAX;
            factors[lane] = if largest[lane] > 0.0 { INT8_MAX / largest[lane] } else { 0.0 };
        }
        let panel_width = kernel.panel_width();
        let num_words = words.len() / width;
        for (word, rows) in values.chunks_exact(4 * width).enumerate() {
            for lane in 0..width {
                let byte = |row: usize| int8_bits(rows[row * width + lane] * factors[lane]) & 0xff;
                let bytes = [byte(0), byte(1), byte(2), byte(3)];
                initial[lane] -= kernel.input_offset()
                    * bytes.map(|byte| i32::from(byte as i8)).iter().sum::<i32>();
                let panel = lane / panel_width * panel_width * num_words;
                words[panel + word * panel_width + lane % panel_width] =
                    bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24;
            }
        }
    }
}

/// The larger of two magnitudes; NaN where one is NaN, so that a scale tells of it: int8 cannot.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

/// The nearest integer, ties to even, of a small number, in the low bits.
#[inline(always)]
fn int8_bits(value: f32) -> u32 {
    // Above this one neighbours differ by 1.
    const ROUND: f32 = 12_582_912.0;
    (value + ROUND).to_bits()
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
                *lane = larger(*lane, x.abs());
            }
        }
        let largest = lanes.into_iter().chain(rest.iter().map(|x| x.abs())).fold(0.0, larger);
        let factor = if largest > 0.0 { INT8_MAX / largest } else { 0.0 };
        *scale = largest / INT8_MAX;
        let flip = kernel.input_offset() as u32 * 0x0101_0101;
        let byte = |value: f32| int8_bits(value * factor) & 0xff;
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
