//! paged_attention: causal attention of the step's tokens over the paged cache, for decode and for
//! (chunked) prefill alike. Tokens of images may attend to the whole image.
//!
//! One canonical order, a function of the token's own position only. On the CPU: scores are sums
//! over head_dim upward; the softmax sums lane i over the positions i, i + LANES, ... counted from
//! a multiple of 16; P·V runs over positions upward. On a GPU: kernels/paged_attention.cu. Block
//! size, chunking and neighbours do not enter.

mod chosen;
mod cpu;
mod cuda;
mod sharing;
#[cfg(test)]
mod tests;
mod work;

pub use cpu::AttentionScratch;
pub(super) use cuda::{
    Biases, CacheAttention, PartLaunch, attend, prefill_states_bytes, prefill_tokens,
};
pub use cuda::{Launch as AttentionLaunch, WgmmaTrial, prefill_by_wgmma, wgmma_prefill_sizes};
pub(super) use sharing::Sharing;

use vllm_batch_base::layers::Reach;
use vllm_batch_device::kv_cache::KvData;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::{CacheLayer, Cpu, Device, Tensor};

use super::{Choice, Step, WeightValues};
use crate::batch::Batch;

/// Attention of one layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// Query heads; the first columns of a qkv row.
    pub num_heads: usize,
    /// K and V heads, a divisor of `num_heads`: each serves as many query heads, in order. The
    /// cache may have more of them, for other layers: the first ones are this layer's.
    pub num_kv_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Gemma 2's bound on scores.
    pub soft_cap: Option<f32>,
    /// Which positions up to its own a token attends to.
    pub reach: Reach,
    /// A token attends to none behind it, also where the step has images that others see whole.
    pub is_causal: bool,
    /// A bias of slope * (j - i) for the query at position i and the key at j, after the soft cap.
    /// transformers adds slope * j, which softmax makes the same; j - i is exact, and 0 at most.
    pub alibi: Option<&'a WeightValues>,
    /// A score of each head's own, which the sum of its weights has besides: the softmax of a
    /// position that has no value (gpt-oss).
    pub sinks: Option<&'a WeightValues>,
}

impl AttentionShape<'_> {
    /// Where what a token attends to ends.
    fn attended_end(&self, batch: &Batch, token: usize) -> u32 {
        match self.is_causal {
            true => batch.positions[token] + 1,
            false => batch.attended_end(token),
        }
    }
}

/// out (num_tokens, num_heads * v_dim) = softmax(cap(q Kᵀ * scale) + bias) V, where q are the
/// first columns of `qkv` and K, V (the step's own included) are in this layer of the cache. Sinks
/// take a share of the softmax.
pub fn paged_attention(
    device: &Device,
    (qkv, step): (&Tensor, Step<'_>),
    layer: CacheLayer<'_>,
    shape: AttentionShape<'_>,
    scratch: &mut AttentionScratch,
    out: &mut Tensor,
) {
    let AttentionShape { num_heads, num_kv_heads, alibi, sinks, .. } = shape;
    let kv = layer.shape();
    assert!(num_kv_heads <= kv.num_kv_heads && num_heads.is_multiple_of(num_kv_heads));
    let is_of_heads = |values: &WeightValues| values.host().len() == num_heads;
    assert!(alibi.is_none_or(is_of_heads) && sinks.is_none_or(is_of_heads));
    out.set_num_rows(qkv.num_rows());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let is_of_kernel = !shape.is_causal || step.batch.attended_ends.is_empty();
            assert!(is_of_kernel, "layers of a GPU let all tokens of images see the same");
            return cuda::paged_attention(gpu, (qkv, step), layer, shape, out);
        }
    };
    on_cpu(cpu, (qkv, step), (layer, u32::MAX), shape, scratch, out);
}

/// The same, where a token that has a choice attends to the positions that it chose: of latents, V
/// is the last values of K; of blocks of positions each K and V head has its own. Attention to the
/// first n positions by choice is the same sums as without one, in another order.
///
/// # Panics
/// As [`paged_attention`]; or a token does not attend to all positions up to its own.
pub fn attention_of_chosen(
    device: &Device,
    (qkv, step): (&Tensor, Step<'_>),
    (layer, choice): (CacheLayer<'_>, &Choice),
    shape: AttentionShape<'_>,
    scratch: &mut AttentionScratch,
    out: &mut Tensor,
) {
    out.set_num_rows(qkv.num_rows());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let layer = (layer, choice.on_gpu());
            return cuda::attention_of_chosen(gpu, (qkv, step), layer, shape, out);
        }
    };
    let (batch, first) = (step.batch, choice.size().num_chosen);
    if batch.positions.iter().any(|position| (*position as usize) < first) {
        on_cpu(cpu, (qkv, step), (layer, first as u32), shape, scratch, out);
    }
    let num_choosing = batch.positions.iter().filter(|p| **p as usize >= first).count();
    if num_choosing > 0 {
        let kv = layer.shape();
        let values = shape.num_heads * (kv.head_dim + kv.v_dim);
        let bytes = (kv.head_dim + kv.v_dim) * layer.cache.element_bytes();
        let num_scores = (num_choosing * first) as f64;
        let work =
            || Work { flops: 2.0 * num_scores * values as f64, bytes: num_scores * bytes as f64 };
        let _timed = cpu.op_timer.timed(Op::new("attention_of_chosen"), work);
        let task = cpu::Task { cpu, qkv, batch, shape, kv, end: u32::MAX };
        chosen::attend(task, (layer, choice), &mut scratch.chosen, out);
    }
}

/// Attention of the step's tokens at positions below `end`.
fn on_cpu(
    cpu: &Cpu,
    (qkv, step): (&Tensor, Step<'_>),
    (layer, end): (CacheLayer<'_>, u32),
    shape: AttentionShape<'_>,
    scratch: &mut AttentionScratch,
    out: &mut Tensor,
) {
    let kv = layer.shape();
    scratch.sharing.find(step.batch, kv.block_size);
    let op = Op::new("paged_attention");
    let _timed = cpu.op_timer.timed(op, || work::work(step.batch, &scratch.sharing, shape, layer));
    let task = cpu::Task { cpu, qkv, batch: step.batch, shape, kv, end };
    let [of_k, of_v] = layer.ranges();
    match &layer.cache.data {
        KvData::Float32 { k, v } => task.run(&k[of_k], &v[of_v], scratch, out),
        KvData::BFloat16 { k, v } => task.run(&k[of_k], &v[of_v], scratch, out),
        KvData::Float16 { k, v } => task.run(&k[of_k], &v[of_v], scratch, out),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}
