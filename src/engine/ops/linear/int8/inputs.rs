//! From f32 to int8: the inputs of a product.
//!
//! Some groups at a time are rotated, and then rounded. A group that went through both at once
//! would wait for its own largest value.

use crate::linear::int8::Int8Layout;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::narrow::{INT8_MAX, factor_of, int8_bits, magnitude_bits};
use super::rotation::rotate;
use super::{GROUP, Int8Dots, WORD};
use crate::for_row_chunks;
use crate::gemm::words::{WordRows, room};
use vllm_batch_device::simd::tiles::tile_stride;
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, NarrowInputs};

/// Groups that are rotated before the first is rounded: 8 kB, in the first cache.
const PASS_GROUPS: usize = 8;

/// Rows of inputs in int8.
pub(super) struct Int8Rows<'a> {
    pub words: WordRows<'a>,
    /// (rows, groups)
    pub scales: &'a [f32],
    /// (rows, groups): what sums begin with.
    pub starts: &'a [i32],
}

/// x (num_rows, k) as words, with scales and starts by group; what is behind a row's last input is
/// zero. Weights may have something added, which the starts of sums take off.
pub(super) fn narrow_inputs<'a>(
    (cpu, kernel): (&Cpu, Int8Dots),
    (x, k): (&[f32], usize),
    inputs: &'a mut NarrowInputs,
) -> Int8Rows<'a> {
    let num_rows = x.len() / k;
    let (num_words, num_groups) = (k.div_ceil(WORD), k.div_ceil(GROUP));
    let stride = if kernel == Int8Dots::Amx { tile_stride(num_words) } else { num_words };
    let NarrowInputs { words, scales, starts } = inputs;
    scales.resize(num_rows * num_groups, 0.0);
    starts.resize(num_rows * num_groups, 0);
    let room = room(words, num_rows, stride);
    let words = SharedMut::new(&mut *room);
    let (all_scales, all_starts) = (&mut *scales, &mut *starts);
    let (scales, starts) = (SharedMut::new(all_scales), SharedMut::new(all_starts));
    for_row_chunks(&cpu.pool, num_rows, k, &|start, end| {
        let groups = (start * num_groups, (end - start) * num_groups);
        // SAFETY: each row belongs to one item.
        let narrow = unsafe {
            NarrowRows {
                x: &x[start * k..end * k],
                k,
                weight_offset: kernel.weight_offset(),
                stride,
                words: words.slice(start * stride, (end - start) * stride),
                scales: scales.slice(groups.0, groups.1),
                starts: starts.slice(groups.0, groups.1),
            }
        };
        dispatch(cpu.isa, narrow);
    });
    Int8Rows { words: WordRows { words: room, stride }, scales: all_scales, starts: all_starts }
}

/// Some rows of inputs.
struct NarrowRows<'a> {
    x: &'a [f32],
    k: usize,
    weight_offset: i32,
    /// From a row of words to the next.
    stride: usize,
    words: &'a mut [u32],
    scales: &'a mut [f32],
    starts: &'a mut [i32],
}

impl Kernel for NarrowRows<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { x, k, weight_offset, stride, words, scales, starts } = self;
        let (num_words, num_groups) = (k.div_ceil(WORD), k.div_ceil(GROUP));
        let mut rotated = [0.0; PASS_GROUPS * GROUP];
        let mut largest = [0.0; PASS_GROUPS];
        for (row, x) in x.chunks_exact(k).enumerate() {
            let (words, rest) = words[row * stride..][..stride].split_at_mut(num_words);
            rest.fill(0);
            let passes = x.chunks(PASS_GROUPS * GROUP);
            for (pass, x) in passes.enumerate() {
                let groups = x.chunks(GROUP).zip(rotated.chunks_mut(GROUP));
                for ((x, rotated), largest) in groups.zip(&mut largest) {
                    // SAFETY: the caller's promise.
                    *largest = unsafe { rotate_group::<V>(x, &mut rotated[..x.len()]) };
                }
                let first = pass * PASS_GROUPS;
                let words = words[first * (GROUP / WORD)..].chunks_mut(GROUP / WORD);
                let groups = rotated[..x.len()].chunks(GROUP).zip(words);
                for (index, (rotated, words)) in groups.enumerate() {
                    let largest = largest[index];
                    let at = row * num_groups + first + index;
                    scales[at] = largest / INT8_MAX;
                    // SAFETY: the caller's promise.
                    let sum = unsafe { round_group::<V>(rotated, factor_of(largest), words) };
                    starts[at] = -weight_offset * sum;
                }
            }
        }
    }
}

/// Rotates a group; gives the largest magnitude of what comes out.
///
/// # Safety
/// As `Kernel::run`.
#[inline(always)]
unsafe fn rotate_group<V: Vector>(x: &[f32], rotated: &mut [f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if V::IS_AVX512 && x.len().is_multiple_of(16) {
        // SAFETY: the CPU has AVX-512.
        return unsafe { x86::rotate_group(x, rotated) };
    }
    rotated.copy_from_slice(x);
    // SAFETY: the caller's promise.
    unsafe { rotate::<V>(rotated) };
    let mut largest = 0;
    for &value in &*rotated {
        largest = magnitude_bits(value).max(largest);
    }
    f32::from_bits(largest)
}

/// The words of a group, and the sum of its integers. These are zeros where the scale says all.
///
/// # Safety
/// As `Kernel::run`.
#[cfg_attr(not(target_arch = "x86_64"), expect(clippy::extra_unused_type_parameters))]
#[inline(always)]
unsafe fn round_group<V: Vector>(rotated: &[f32], factor: f32, words: &mut [u32]) -> i32 {
    if factor == 0.0 {
        words.fill(0);
        return 0;
    }
    #[cfg(target_arch = "x86_64")]
    if V::IS_AVX512 && rotated.len().is_multiple_of(64) {
        // SAFETY: the CPU has AVX-512.
        return unsafe { x86::round_group(rotated, factor, words) };
    }
    // A loop for each step: they are made vectors of.
    let mut ints = [0; GROUP];
    for (int, value) in ints.iter_mut().zip(rotated) {
        *int = int8_bits(value * factor);
    }
    let mut sum = 0;
    for &int in &ints {
        sum += (int as i32) << 24 >> 24;
    }
    let mut bytes = [0u8; GROUP];
    for (byte, int) in bytes.iter_mut().zip(ints) {
        *byte = int as u8;
    }
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    sum
}
