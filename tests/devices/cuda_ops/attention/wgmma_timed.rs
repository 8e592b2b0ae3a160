//! Prefill by `wgmma` beside prefill by `mma.sync` on a real GPU: are the bits equal, and how long
//! does each take. A line of JSON for each, which `scripts/gpu-check` shows. Nothing is asserted of
//! the bits: where they differ, `prefill_by_wgmma` refuses.

use std::time::Instant;

use vllm_batch::engine::base::config::PrefillKernel;
use vllm_batch::engine::base::layers::Reach;
use vllm_batch::engine::ops::WgmmaTrial;

use super::*;
use crate::gpu;

/// Sequences, and tokens of each: all that is computed at once.
const PROMPTS: [(usize, usize); 3] = [(4, 2048), (1, 8192), (1, 32_768)];
/// As of Llama 3.1 8B and of Llama 3.2 1B.
const HEADS: [QkvHeads; 2] = [
    QkvHeads { num_heads: 32, num_kv_heads: 8, head_dim: 128 },
    QkvHeads { num_heads: 32, num_kv_heads: 8, head_dim: 64 },
];
const BLOCK_SIZE: usize = 16;

/// One launch over prompts of made-up tokens.
struct Prompts<'a> {
    pair: &'a Pair,
    heads: QkvHeads,
    batch: Batch,
    cache: KvCache,
    inputs: StepInputs,
    qkv: Tensor,
    out: Tensor,
}

impl<'a> Prompts<'a> {
    fn new(pair: &'a Pair, heads: QkvHeads, (num_seqs, len): (usize, usize)) -> Self {
        let device = &pair.gpu;
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let (num_tokens, blocks_per_seq) = (num_seqs * len, len.div_ceil(BLOCK_SIZE));
        let shape = KvCacheShape {
            layers: vec![KvHeads { num: num_kv_heads, head_dim, v_dim: head_dim }],
            num_blocks: num_seqs * blocks_per_seq,
            block_size: BLOCK_SIZE,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let limits = StepLimits {
            max_num_tokens: num_tokens,
            max_num_seqs: num_seqs,
            max_num_logits: 1,
            max_model_len: len,
            block_size: BLOCK_SIZE,
            num_q_per_kv: num_heads / num_kv_heads,
            heads,
            attends_to_all: true,
            has_states: false,
            has_axes: false,
            has_whole_images: false,
            has_choices: false,
        };
        let mut inputs = StepInputs::new(device, limits).expect("memory");
        let mut cache = KvCache::on_device(device, shape, pair.dtype).expect("memory");
        let batch = Batch {
            input_ids: vec![0; num_tokens],
            positions: (0..num_tokens).map(|token| (token % len) as u32).collect(),
            slot_mapping: (0..num_tokens as u32).collect(),
            query_start_loc: (0..=num_seqs).map(|seq| (seq * len) as u32).collect(),
            seq_lens: vec![len as u32; num_seqs],
            block_tables: (0..(num_seqs * blocks_per_seq) as u32).collect(),
            max_blocks_per_seq: blocks_per_seq,
            ..Batch::default()
        };
        let width = (num_heads + 2 * num_kv_heads) * head_dim;
        let values = pair.values(num_tokens, width, 1000, 1.0).values;
        let mut qkv = device.upload_as(&values, width, Precision::Activation).expect("memory");
        let step = inputs.step(device, &batch);
        qkv.resize_rows(step.num_rows());
        let out = output(device, step.num_rows(), num_heads * head_dim, Precision::Activation);
        rotary_and_cache(device, (&mut qkv, heads), None, step, cache.layer_mut(0));
        Self { pair, heads, batch, cache, inputs, qkv, out }
    }

    fn queue(&mut self, scale: f32) {
        let shape = AttentionShape {
            num_heads: self.heads.num_heads,
            num_kv_heads: self.heads.num_kv_heads,
            scale,
            soft_cap: None,
            reach: Reach::All,
            is_causal: false,
            alibi: None,
            sinks: None,
        };
        let step = self.inputs.step(&self.pair.gpu, &self.batch);
        let (layer, mut scratch) = (self.cache.layer(0), AttentionScratch::default());
        let from = (&self.qkv, step);
        paged_attention(&self.pair.gpu, from, layer, shape, &mut scratch, &mut self.out);
    }

    /// Microseconds of a launch.
    fn microseconds(&mut self, kernel: PrefillKernel) -> f64 {
        let Device::Cuda(gpu) = &self.pair.gpu else { panic!("a GPU") };
        gpu.set_prefill_kernel(kernel);
        let num_rounds = 10;
        let mut started = Instant::now();
        for round in 0..=num_rounds {
            self.queue(0.1);
            if round == 0 {
                gpu.synchronize().expect("the device works");
                started = Instant::now();
            }
        }
        gpu.synchronize().expect("the device works");
        started.elapsed().as_secs_f64() * 1e6 / f64::from(num_rounds)
    }

    /// Of scores and values over all positions attended to.
    fn flops(&self, (num_seqs, len): (usize, usize)) -> f64 {
        let QkvHeads { num_heads, head_dim, .. } = self.heads;
        4.0 * (num_heads * head_dim * num_seqs) as f64 * (len * (len + 1) / 2) as f64
    }
}

#[test]
fn wgmma_timed_on_a_gpu() {
    if !gpu::is_real() {
        return println!("SKIP: times are of a real GPU");
    }
    for dtype in [DType::BFloat16, DType::Float16] {
        let Some(pair) = Pair::open(dtype, 0, None) else { return };
        let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
        if gpu.properties().compute_capability != (9, 0) {
            return println!("SKIP: wgmma is of compute capability 9.0");
        }
        for heads in HEADS {
            let mut trial = WgmmaTrial::new(&pair.gpu, heads.head_dim).expect("memory");
            let (different, all) = trial.compare().expect("the device works");
            for prompts in PROMPTS {
                let mut launch = Prompts::new(&pair, heads, prompts);
                let [mma_sync, wgmma] = [PrefillKernel::MmaSync, PrefillKernel::Wgmma]
                    .map(|kernel| launch.microseconds(kernel));
                println!(
                    "WGMMA {{\"dtype\": \"{}\", \"head_dim\": {}, \"num_seqs\": {}, \"len\": {}, \
                     \"flops\": {}, \"us_mma_sync\": {mma_sync:.1}, \"us_wgmma\": {wgmma:.1}, \
                     \"different\": {different}, \"all\": {all}}}",
                    dtype.name(),
                    heads.head_dim,
                    prompts.0,
                    prompts.1,
                    launch.flops(prompts)
                );
            }
        }
    }
}
