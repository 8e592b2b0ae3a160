//! Prefill by the warpgroups of Hopper (kernels/paged_attention_wgmma.cu). Off, unless it is asked
//! for and a trial on the GPU gives the bits of `mma.sync`: the tokens after a prompt are computed
//! by that.

use super::defines::{AttentionDefines, PrefillSizes};
use super::{Biases, CacheAttention, ROWS, attend};
use crate::batch::Batch;
use crate::{StepInputs, StepLimits, rotary_and_cache};
use vllm_batch_base::config::{DType, KvCacheDType, PrefillKernel};
use vllm_batch_base::layers::{QkvHeads, Reach};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::cuda::gemm::Random;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::{Device, Gpu, KvCache, Precision, Tensor};

/// The kernel of prompts.
pub(super) const ENTRY: &str = "paged_attention_prefill_wgmma";

/// Two warpgroups.
const WARPS: usize = 8;
/// Positions of a stage, and stages in shared memory.
const STAGE: usize = 64;
const STAGES: usize = 4;
/// Where the first stage begins is a multiple of it.
const ALIGNMENT: usize = 1024;

/// Launch sizes for heads of this width; `None`: the kernel does not take them.
pub fn sizes(head_dim: usize) -> Option<PrefillSizes> {
    let state = 4 * ROWS * head_dim + 2 * 4 * ROWS;
    let bytes = ALIGNMENT + STAGES * 2 * STAGE * 2 * head_dim + WARPS * state;
    let blocks = if head_dim == 64 { 2 } else { 1 };
    let (warps, bytes) = (WARPS as u32, bytes as u32);
    let sizes = PrefillSizes { warps, groups: 1, blocks, bytes, states_apart_bytes: 0 };
    matches!(head_dim, 64 | 128).then_some(sizes)
}

/// The same for a layer, where prefill is by it.
pub(super) fn sizes_on(gpu: &Gpu, defines: &AttentionDefines) -> Option<PrefillSizes> {
    let is_chosen = gpu.prefill_kernel() == PrefillKernel::Wgmma;
    let is_causal = !defines.is_of_texts && !defines.has_images;
    let takes = is_chosen && is_causal && refusal_of_gpu(gpu).is_none();
    sizes(defines.head_dim as usize).filter(|_| takes)
}

/// Why this GPU computes no prompts by it.
fn refusal_of_gpu(gpu: &Gpu) -> Option<String> {
    let (major, minor) = gpu.properties().compute_capability;
    if (major, minor) != (9, 0) {
        return Some(format!("{} has compute capability {major}.{minor}", gpu.properties().name));
    }
    if gpu.dtype() == DType::Float32 || gpu.kv_cache_dtype() == KvCacheDType::Fp8 {
        return Some("the kernel takes 16-bit activations and caches alone".to_owned());
    }
    None
}

/// Computes prompts by `wgmma` from now on, if the GPU gives the bits of `mma.sync` for heads of
/// these widths.
///
/// # Errors
/// It has no such kernel, or gives others; the device failed.
///
/// # Panics
/// The device is the CPU.
pub fn prefill_by_wgmma(device: &Device, head_dims: &[usize]) -> Result<(), EngineError> {
    let refused = |why: &str| {
        let text = format!("prompts cannot be computed by wgmma: {why}");
        Err(EngineError::setting(Setting::PrefillKernel, text, "leave it out"))
    };
    let Device::Cuda(gpu) = device else { panic!("wgmma on the CPU") };
    if let Some(why) = refusal_of_gpu(gpu) {
        return refused(&why);
    }
    for &head_dim in head_dims {
        if sizes(head_dim).is_none() {
            return refused(&format!("the kernel takes no heads of {head_dim}"));
        }
        let (different, all) = WgmmaTrial::new(device, head_dim)?.compare()?;
        if different > 0 {
            return refused(&format!(
                "{different} of {all} outputs differ from those of mma.sync, by which rows decode"
            ));
        }
    }
    gpu.set_prefill_kernel(PrefillKernel::Wgmma);
    Ok(())
}

/// Tokens of the text that is compared: some splits, and a rest.
const NUM_TOKENS: usize = 600;
const BLOCK_SIZE: usize = 16;

/// A text whose outputs show any other order of summation in their bits.
///
/// Exponents vary widely. The products of queries and keys cancel, so that a score is nothing but
/// the roundings along the way; or every second pair of positions has one key, and values that
/// cancel, so that a value is.
pub struct WgmmaTrial<'a> {
    device: &'a Device,
    gpu: &'a Gpu,
    heads: QkvHeads,
    cache: KvCache,
    inputs: StepInputs,
    batch: Batch,
}

impl<'a> WgmmaTrial<'a> {
    /// With heads of this width.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn new(device: &'a Device, head_dim: usize) -> Result<Self, EngineError> {
        let Device::Cuda(gpu) = device else { panic!("the trial is of a GPU") };
        let heads = QkvHeads { num_heads: 2, num_kv_heads: 1, head_dim };
        let num_blocks = NUM_TOKENS.div_ceil(BLOCK_SIZE);
        let shape = KvCacheShape {
            layers: vec![KvHeads { num: 1, head_dim, v_dim: head_dim }],
            num_blocks,
            block_size: BLOCK_SIZE,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let limits = StepLimits {
            max_num_tokens: NUM_TOKENS,
            max_num_seqs: 1,
            max_num_logits: 1,
            max_model_len: NUM_TOKENS,
            block_size: BLOCK_SIZE,
            num_q_per_kv: 2,
            heads,
            attends_to_all: true,
            has_states: false,
            has_axes: false,
            has_whole_images: false,
            has_choices: false,
        };
        let positions: Vec<u32> = (0..NUM_TOKENS as u32).collect();
        let batch = Batch {
            input_ids: vec![0; NUM_TOKENS],
            slot_mapping: positions.clone(),
            positions,
            query_start_loc: vec![0, NUM_TOKENS as u32],
            seq_lens: vec![NUM_TOKENS as u32],
            block_tables: (0..num_blocks as u32).collect(),
            max_blocks_per_seq: num_blocks,
            ..Batch::default()
        };
        let cache = KvCache::on_device(device, shape, gpu.dtype())?;
        let inputs = StepInputs::new(device, limits)?;
        Ok(Self { device, gpu, heads, cache, inputs, batch })
    }

    /// Number of outputs that differ from those of `mma.sync`, and number of all.
    ///
    /// # Errors
    /// The device failed.
    pub fn compare(&mut self) -> Result<(usize, usize), EngineError> {
        let before = self.gpu.prefill_kernel();
        let (mut different, mut all) = (0, 0);
        // Scores of some units; and roundings, which are 2^-20 of what they are roundings of.
        for (cancels_in_scores, scale) in [(false, 0.02), (true, 20_000.0)] {
            let values = self.values(cancels_in_scores);
            let mut of = |kernel| {
                self.gpu.set_prefill_kernel(kernel);
                self.outputs(&values, scale)
            };
            let outputs = (of(PrefillKernel::MmaSync), of(PrefillKernel::Wgmma));
            self.gpu.set_prefill_kernel(before);
            let (expected, got) = (outputs.0?, outputs.1?);
            let pairs = expected.iter().zip(&got);
            different += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            all += expected.len();
        }
        Ok((different, all))
    }

    /// Rows of two queries, a key and a value.
    fn values(&self, cancels_in_scores: bool) -> Vec<f32> {
        let head_dim = self.heads.head_dim;
        let mut random = Random(0x5EED ^ head_dim as u64);
        let (columns, tokens) = (random.pairs(head_dim), random.pairs(NUM_TOKENS));
        let mut values: Vec<f32> =
            (0..NUM_TOKENS * 4 * head_dim).map(|_| random.value(2)).collect();
        if cancels_in_scores {
            for row in values.chunks_mut(4 * head_dim) {
                let (queries, key) = row.split_at_mut(2 * head_dim);
                for &(a, b) in &columns {
                    key[b] = key[a];
                    queries.chunks_mut(head_dim).for_each(|query| query[b] = -query[a]);
                }
            }
        } else {
            for &(a, b) in tokens.iter().step_by(2) {
                for column in 2 * head_dim..4 * head_dim {
                    let value = values[a * 4 * head_dim + column];
                    let sign = if column < 3 * head_dim { 1.0 } else { -1.0 };
                    values[b * 4 * head_dim + column] = sign * value;
                }
            }
        }
        values
    }

    fn outputs(&mut self, values: &[f32], scale: f32) -> Result<Vec<f32>, EngineError> {
        let Self { device, gpu, heads, .. } = *self;
        let step = self.inputs.step(device, &self.batch);
        let mut qkv = device.upload_as(values, 4 * heads.head_dim, Precision::Activation)?;
        qkv.resize_rows(step.num_rows());
        rotary_and_cache(device, (&mut qkv, heads), None, step, self.cache.layer_mut(0));
        let width = heads.num_heads * heads.head_dim;
        let mut out: Tensor = device.tensor(step.num_rows(), width, Precision::Activation)?;
        out.set_num_rows(step.num_rows());
        let attention = CacheAttention {
            num_heads: heads.num_heads,
            num_kv_heads: heads.num_kv_heads,
            scale,
            soft_cap: None,
            reach: Reach::All,
            biases: Biases::None,
            sinks: None,
            after: None,
        };
        attend(gpu, (&qkv, step), self.cache.layer(0), attention, &out);
        out.set_num_rows(NUM_TOKENS);
        device.read(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_hopper() {
        let sizes = |head_dim| super::sizes(head_dim).expect("heads that it takes");
        assert_eq!((sizes(64).bytes, sizes(128).bytes), (100_352, 198_656));
        for head_dim in [64, 128] {
            let PrefillSizes { blocks, bytes, .. } = sizes(head_dim);
            assert!(blocks as usize * (bytes as usize + 1024) <= 228 << 10);
        }
        assert_eq!(super::sizes(96), None);
    }
}
