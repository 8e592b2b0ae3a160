//! THE forward pass: once, for every family. It runs a `DecoderSpec` over the
//! flat token axis of a batch.

use super::loading::{self, DecoderWeights, LayerWeights};
use super::spec::{DecoderSpec, NormPlacement};
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::batch::Batch;
use crate::engine::config::DType;
use crate::engine::device::{Device, KvCache, Tensor};
use crate::engine::ops::{self, AttentionScratch, AttentionShape, Heads};

/// Rows of the MLP at a time: its buffers are the widest, and rows are independent.
const MLP_ROWS: usize = 512;

/// A loaded decoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    weights: DecoderWeights,
    embed_scale: Option<f32>,
    buffers: Buffers,
}

/// Activations, allocated once for the largest step. T is max_num_batched_tokens.
#[derive(Debug)]
struct Buffers {
    /// (T, embedding width), only with projections.
    embedded: Option<Tensor>,
    /// (T, hidden_size) the stream that blocks add to.
    residual: Tensor,
    /// (T, hidden_size) what a block reads.
    normed: Tensor,
    /// (T, hidden_size) what a block adds.
    delta: Tensor,
    /// (T, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv: Tensor,
    /// (T, num_heads * head_dim)
    attended: Tensor,
    /// (MLP_ROWS, hidden_size) rows of `normed` and of `delta`.
    mlp_rows: Tensor,
    /// (MLP_ROWS, 2 * intermediate_size or intermediate_size)
    up: Tensor,
    /// (MLP_ROWS, intermediate_size), only when gated.
    activated: Option<Tensor>,
    /// (num_logits, hidden_size) rows whose logits are wanted.
    last_residual: Tensor,
    /// (num_logits, hidden_size)
    last_delta: Tensor,
    /// (num_logits, hidden_size)
    last: Tensor,
    /// (num_logits, embedding width), only with projections.
    projected: Option<Tensor>,
    attention: AttentionScratch,
}

impl Buffers {
    fn new(spec: &DecoderSpec, max_num_tokens: usize) -> Self {
        let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
        let attention = spec.attention;
        let q_width = attention.num_heads * attention.head_dim;
        let kv_width = attention.num_kv_heads * attention.head_dim;
        let per_token = |width: usize| Tensor::zeros(max_num_tokens, width);
        let mlp_rows = MLP_ROWS.min(max_num_tokens);
        Self {
            embedded: spec.embedding.projected_from.map(per_token),
            residual: per_token(hidden),
            normed: per_token(hidden),
            delta: per_token(hidden),
            qkv: per_token(q_width + 2 * kv_width),
            attended: per_token(q_width),
            mlp_rows: Tensor::zeros(mlp_rows, hidden),
            up: Tensor::zeros(mlp_rows, if spec.mlp.gated { 2 * inner } else { inner }),
            activated: spec.mlp.gated.then(|| Tensor::zeros(mlp_rows, inner)),
            last_residual: Tensor::zeros(0, hidden),
            last_delta: Tensor::zeros(0, hidden),
            last: Tensor::zeros(0, hidden),
            projected: spec.embedding.projected_from.map(|width| Tensor::zeros(0, width)),
            attention: AttentionScratch::default(),
        }
    }
}

impl Decoder {
    /// Packs the weights of a checkpoint for a device.
    ///
    /// # Errors
    /// The checkpoint does not hold what the spec describes.
    pub fn load(
        spec: DecoderSpec,
        dtype: DType,
        device: &Device,
        checkpoint: Checkpoint,
        max_num_tokens: usize,
    ) -> Result<Self, EngineError> {
        let weights = loading::load(&spec, dtype, device, checkpoint)?;
        let embed_scale = spec.embedding.scaled.then(|| {
            // transformers keeps the factor in the model's dtype.
            let scale = (spec.hidden_size as f32).sqrt();
            match dtype {
                DType::Float32 => scale,
                DType::BFloat16 => half::bf16::from_f32(scale).to_f32(),
                DType::Float16 => half::f16::from_f32(scale).to_f32(),
            }
        });
        let buffers = Buffers::new(&spec, max_num_tokens);
        Ok(Self { spec, weights, embed_scale, buffers })
    }

    /// What it runs.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Runs the batch: K and V of its tokens go into `cache`, the logits that it asks for into
    /// `logits` (num_logits, vocab_size).
    pub fn forward(
        &mut self,
        device: &Device,
        batch: &Batch,
        cache: &mut KvCache,
        logits: &mut Tensor,
    ) {
        let num_positions = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
        self.weights.ropes.iter_mut().for_each(|rope| rope.extend_to(num_positions));
        self.embed(device, batch);
        let Self { spec, weights, buffers, .. } = self;
        for (index, layer) in weights.layers.iter().enumerate() {
            let pass = LayerPass { device, spec, layer, ropes: &weights.ropes, batch };
            pass.attention(index, cache, buffers);
            pass.mlp(buffers);
        }
        self.logits(device, batch, logits);
    }

    /// residual = token embeddings (scaled, projected) + position embeddings.
    fn embed(&mut self, device: &Device, batch: &Batch) {
        let Self { spec, weights, buffers, embed_scale } = self;
        let table = &weights.embed_tokens;
        match (&weights.project_in, &mut buffers.embedded) {
            (Some(project_in), Some(embedded)) => {
                ops::embedding(device, &batch.input_ids, table, *embed_scale, embedded);
                ops::linear(device, embedded, project_in, &mut buffers.residual);
            }
            _ => {
                ops::embedding(device, &batch.input_ids, table, *embed_scale, &mut buffers.residual)
            }
        }
        if let (Some(positions), Some(table)) = (spec.embedding.positions, &weights.embed_positions)
        {
            let residual = &mut buffers.residual;
            ops::add_rows_of(device, &batch.positions, positions.offset, table, residual);
        }
        buffers.delta.set_num_rows(batch.num_tokens());
        buffers.delta.values_mut().fill(0.0);
    }

    /// Final norm and output layer, for the wanted rows only.
    fn logits(&mut self, device: &Device, batch: &Batch, logits: &mut Tensor) {
        let Self { spec, weights, buffers, .. } = self;
        let indices = &batch.logits_indices;
        ops::gather_rows(device, &buffers.residual, indices, &mut buffers.last_residual);
        ops::gather_rows(device, &buffers.delta, indices, &mut buffers.last_delta);
        buffers.last.resize_rows(indices.len());
        match &weights.final_norm {
            Some(norm) => {
                let delta = Some(&buffers.last_delta);
                ops::add_norm(device, &mut buffers.last_residual, delta, norm, &mut buffers.last);
            }
            None => {
                ops::add(device, &mut buffers.last_residual, &buffers.last_delta);
                std::mem::swap(&mut buffers.last, &mut buffers.last_residual);
            }
        }
        let head = weights.lm_head.as_ref().unwrap_or(&weights.embed_tokens);
        logits.resize_rows(indices.len());
        match (&weights.project_out, &mut buffers.projected) {
            (Some(project_out), Some(projected)) => {
                projected.resize_rows(indices.len());
                ops::linear(device, &buffers.last, project_out, projected);
                ops::linear(device, projected, head, logits);
            }
            _ => ops::linear(device, &buffers.last, head, logits),
        }
        if let Some(cap) = spec.final_logit_soft_cap {
            ops::soft_cap(device, cap, logits);
        }
    }
}

/// One layer over one batch. A block leaves what it adds in `delta`; the next one (or the end) adds
/// it, in the same pass as its norm.
struct LayerPass<'a> {
    device: &'a Device,
    spec: &'a DecoderSpec,
    layer: &'a LayerWeights,
    ropes: &'a [ops::RotaryTable],
    batch: &'a Batch,
}

impl LayerPass<'_> {
    fn attention(&self, index: usize, cache: &mut KvCache, buffers: &mut Buffers) {
        let Self { device, layer, batch, .. } = *self;
        let attention = self.spec.attention;
        self.block_input(&layer.attention_norm, buffers);
        ops::linear(device, &buffers.normed, &layer.qkv_proj, &mut buffers.qkv);
        let heads = |first: usize, num_heads: usize| Heads {
            start: first * attention.head_dim,
            num_heads,
            head_dim: attention.head_dim,
        };
        let q_heads = heads(0, attention.num_heads);
        let k_heads = heads(attention.num_heads, attention.num_kv_heads);
        let v_heads = heads(attention.num_heads + attention.num_kv_heads, attention.num_kv_heads);
        let qkv = &mut buffers.qkv;
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            ops::norm_heads(device, qkv, q_heads, q_norm);
            ops::norm_heads(device, qkv, k_heads, k_norm);
        }
        if let Some(rope) = layer.spec.rope {
            let both = heads(0, attention.num_heads + attention.num_kv_heads);
            ops::rotary(device, qkv, both, &batch.positions, &self.ropes[rope]);
        }
        let slots = &batch.slot_mapping;
        ops::reshape_and_cache(device, qkv, (k_heads, v_heads), slots, index, cache);
        let shape = AttentionShape {
            num_heads: attention.num_heads,
            scale: attention.scale,
            soft_cap: attention.soft_cap,
            sliding_window: layer.spec.sliding_window,
        };
        let out = &mut buffers.attended;
        ops::paged_attention(
            device,
            (qkv, batch),
            (cache, index),
            shape,
            &mut buffers.attention,
            out,
        );
        ops::linear(device, &buffers.attended, &layer.out_proj, &mut buffers.delta);
        self.block_output(&layer.attention_norm, layer.attention_post_norm.as_ref(), buffers);
    }

    fn mlp(&self, buffers: &mut Buffers) {
        let Self { device, layer, .. } = *self;
        let activation = self.spec.mlp.activation;
        self.block_input(&layer.mlp_norm, buffers);
        let num_tokens = self.batch.num_tokens();
        for start in (0..num_tokens).step_by(MLP_ROWS) {
            let num_rows = MLP_ROWS.min(num_tokens - start);
            buffers.mlp_rows.take_rows(&buffers.normed, start, num_rows);
            ops::linear(device, &buffers.mlp_rows, &layer.up_proj, &mut buffers.up);
            let activated = match &mut buffers.activated {
                Some(activated) => {
                    ops::activate_and_mul(device, activation, &buffers.up, activated);
                    activated
                }
                None => {
                    ops::activate(device, activation, &mut buffers.up);
                    &mut buffers.up
                }
            };
            ops::linear(device, activated, &layer.down_proj, &mut buffers.mlp_rows);
            buffers.delta.paste_rows(start, &buffers.mlp_rows);
        }
        self.block_output(&layer.mlp_norm, layer.mlp_post_norm.as_ref(), buffers);
    }

    /// normed = what the block reads; the delta of the block before is added on the way.
    fn block_input(&self, norm: &ops::NormWeight, buffers: &mut Buffers) {
        let Buffers { residual, delta, normed, .. } = buffers;
        match self.spec.norm_placement {
            NormPlacement::Pre | NormPlacement::Sandwich => {
                ops::add_norm(self.device, residual, Some(delta), norm, normed);
            }
            NormPlacement::Post => {
                normed.set_num_rows(residual.num_rows());
                normed.values_mut().copy_from_slice(residual.values());
            }
        }
    }

    /// Normalizes what the block adds (sandwich), or the sum (post-norm; then nothing is left to
    /// add).
    fn block_output(
        &self,
        norm: &ops::NormWeight,
        post_norm: Option<&ops::NormWeight>,
        buffers: &mut Buffers,
    ) {
        let Buffers { residual, delta, .. } = buffers;
        if let Some(post_norm) = post_norm {
            ops::norm_in_place(self.device, delta, post_norm);
        }
        if self.spec.norm_placement == NormPlacement::Post {
            ops::add(self.device, residual, delta);
            ops::norm_in_place(self.device, residual, norm);
            delta.values_mut().fill(0.0);
        }
    }
}
