//! Ops of a device; knows no model. One file or folder per op: contract,
//! dispatch, CPU, test.
//!
//! Every output element is a function of its own row only, in one fixed order of operations
//! (docs/ARCHITECTURE.md): no op may look at how many rows there are when it computes one.
//!
//! Read first: [`batch::Batch`], [`Step`], [`linear()`].

#![warn(missing_docs, unreachable_pub)]

mod activation;
mod all_reduce;
mod attention_pool;
pub mod batch;
mod causal_conv;
mod choose_positions;
mod columns;
mod copy_blocks;
mod delta_rule;
mod elementwise;
mod embedding;
mod encoder_attention;
mod experts;
mod gate_columns;
mod gemm;
mod gpu_needs;
mod group_attention;
mod lanes;
pub mod linear;
pub mod logprobs;
mod lora;
mod mamba_scan;
mod norm;
mod paged_attention;
mod patches;
mod recurrent_step;
mod reshape_and_cache;
mod rotary;
mod rotary_and_cache;
pub mod sample;
mod scale_by_position;
mod scale_columns;
mod selective_scan;
mod shared_rows;
mod soft_cap;
mod softmax;
mod squares;
mod step;
mod streams;
mod text_maxima;
pub mod token_counts;
pub mod token_mask;
mod weight_tiles;
mod weight_values;
mod wide;

pub use activation::{activate, activate_and_mul};
pub use all_reduce::all_reduce;
pub use attention_pool::attention_pool;
pub use causal_conv::{ConvColumns, ConvTaps, causal_conv};
pub use choose_positions::{Choice, ChoiceSize, IndexScores, choose_positions};
pub use columns::{Columns, copy_columns};
pub use copy_blocks::copy_blocks;
pub use delta_rule::{DeltaGateWeights, DeltaRule, delta_decays, delta_rule};
pub use elementwise::{add, clamp, clamp_columns, copy, copy_rows, fill_zero, scale};
pub use embedding::{
    MixedRows, Standardization, add_mixed_rows, add_rows, add_rows_of, embedding, gather_rows,
    mean_rows, replace_rows, standardize,
};
pub use encoder_attention::{
    EncoderAttentionShape, EncoderScratch, RelativeBias, encoder_attention, rotate_texts,
};
pub use experts::{
    ExpertWeights, Experts, ExpertsScratch, ExpertsShape, ExpertsWeight, add_experts,
    choose_experts, gate_rows, weigh_inputs,
};
pub use gate_columns::{Gate, gate_columns, gate_heads};
pub use gpu_needs::{GpuNeeds, HeadWidths, MAX_GPU_VOCAB_SIZE, MAX_NARROW_HEAD_DIM};
pub use group_attention::{MAX_GROUP, group_attention};
pub use linear::{
    HeadMatrices, LargestOutputs, LinearWeight, linear, linear_activate_and_mul, linear_by_head,
    linear_rows,
};
pub use lora::{
    AdaptedLinear, LinearBounds, LoraDelta, LoraPart, LoraSlots, SlotRows, StepLoras, TableDelta,
    TableSlots, adapted_linear_rows,
};
pub use mamba_scan::{ScanWeights, mamba_scan};
pub use norm::{NormWeight, add_norm, add_norm_rows, norm_heads, norm_in_place};
pub use paged_attention::{
    AttentionLaunch, AttentionScratch, AttentionShape, WgmmaTrial, attention_of_chosen,
    paged_attention, prefill_by_wgmma, wgmma_prefill_sizes,
};
pub use patches::{BandTables, PatchScratch, patch_values};
pub use recurrent_step::RecurrentStep;
pub use rotary::RotaryTable;
pub use rotary_and_cache::{
    HeadTransform, norm_and_rotate, norm_rotary_and_cache, rotary_and_cache, rotate,
};
pub use scale_by_position::scale_by_position;
pub use scale_columns::scale_columns;
pub use selective_scan::{SelectiveInputs, SelectiveWeights, selective_scan};
pub use soft_cap::soft_cap;
pub use softmax::softmax_rows;
pub use squares::{Squares, SquaresScratch, gather_around};
pub use step::{Ids, RowSlots, Step, StepInputs, StepLimits, TextLimits};
pub use streams::{
    MAX_STREAMS, add_to_streams, correct_streams, keep_largest, mean_streams, mixing_weights,
    predict_streams, put_first_stream, set_stream, take_stream,
};
pub use text_maxima::text_maxima;
pub use vllm_batch_base::layers::Activation;
pub use vllm_batch_base::layers::DeltaHeads;
pub use vllm_batch_base::layers::QkvHeads;
pub use vllm_batch_base::layers::alibi_slopes;
pub use vllm_batch_base::layers::{ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK};
pub use vllm_batch_base::layers::{Heads, NormKind};
pub use vllm_batch_base::layers::{ScanShape, SelectiveShape};
pub use weight_values::WeightValues;
pub use wide::{Loops, run_loops};

use vllm_batch_device::simd::Vector;
use vllm_batch_device::thread_pool::ThreadPool;

/// Threads of a block of a GPU's kernels over runs of elements.
const GPU_BLOCK: u32 = 256;

/// Threads of a block that takes a row, when each takes `per_thread` of its elements at a time.
fn gpu_row_block(width: usize, per_thread: usize) -> u32 {
    width.div_ceil(per_thread).next_multiple_of(32).min(1024) as u32
}

/// Elements of one work item of an elementwise op: a few microseconds.
const ITEM_ELEMENTS: usize = 16 * 1024;

/// Runs `rows(start, end)` over even chunks of `num_rows` rows of `width` elements, equally many
/// for each thread; less than half an item is one chunk, since waking a thread would take longer.
fn for_row_chunks(
    pool: &ThreadPool,
    num_rows: usize,
    width: usize,
    rows: &(dyn Fn(usize, usize) + Sync),
) {
    let num_threads = pool.num_threads();
    let num_items = (num_rows * width).div_ceil(ITEM_ELEMENTS);
    let num_chunks = match 2 * num_rows * width < ITEM_ELEMENTS {
        true => 1,
        false => num_items.next_multiple_of(num_threads).clamp(1, num_rows.max(1)),
    };
    pool.run(num_chunks, &|_, index| {
        rows(index * num_rows / num_chunks, (index + 1) * num_rows / num_chunks);
    });
}

/// Function of a pair of vectors in `map2`. Short closures will do; a longer one is a struct with
/// an `inline(always)` method: a closure cannot be marked so, and one that stays out of line is
/// compiled without the kernel's target features, which makes a call of every instruction in it.
trait VectorOp<V> {
    /// # Safety
    /// The CPU has the instructions of `V`.
    unsafe fn apply(&self, a: V, b: V) -> V;
}

impl<V, F: Fn(V, V) -> V> VectorOp<V> for F {
    #[inline(always)]
    unsafe fn apply(&self, a: V, b: V) -> V {
        self(a, b)
    }
}

/// `out[i] = f(a[i], b[i])` by vectors; the tail goes through a padded copy, so that every element
/// sees the same arithmetic.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn map2<V: Vector>(a: &[f32], b: &[f32], out: &mut [f32], f: impl VectorOp<V>) {
    let len = out.len();
    assert!(a.len() == len && b.len() == len);
    let whole = len - len % V::LANES;
    // SAFETY: `whole` is within all three slices; the padded buffers have 16 >= LANES elements.
    unsafe {
        for i in (0..whole).step_by(V::LANES) {
            let value = f.apply(V::load(a.as_ptr().add(i)), V::load(b.as_ptr().add(i)));
            value.store(out.as_mut_ptr().add(i));
        }
        if whole < len {
            let (mut pad_a, mut pad_b) = ([0.0f32; 16], [0.0f32; 16]);
            pad_a[..len - whole].copy_from_slice(&a[whole..]);
            pad_b[..len - whole].copy_from_slice(&b[whole..]);
            f.apply(V::load(pad_a.as_ptr()), V::load(pad_b.as_ptr())).store(pad_a.as_mut_ptr());
            out[whole..].copy_from_slice(&pad_a[..len - whole]);
        }
    }
}

/// `values[i] = f(values[i], values[i])` by vectors, with the arithmetic of `map2`.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn map_in_place<V: Vector>(values: &mut [f32], f: impl VectorOp<V> + Copy) {
    let mut copy = [0.0f32; 64];
    for values in values.chunks_mut(64) {
        let copy = &mut copy[..values.len()];
        copy.copy_from_slice(values);
        // SAFETY: the caller's promise.
        unsafe { map2::<V>(copy, copy, values, f) };
    }
}

/// `values[i] = f(values[i], other[i])` by vectors, with the arithmetic of `map2`.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn map2_in_place<V: Vector>(values: &mut [f32], other: &[f32], f: impl VectorOp<V> + Copy) {
    let mut copy = [0.0f32; 64];
    for (values, other) in values.chunks_mut(64).zip(other.chunks(64)) {
        let copy = &mut copy[..values.len()];
        copy.copy_from_slice(values);
        // SAFETY: the caller's promise.
        unsafe { map2::<V>(copy, other, values, f) };
    }
}
