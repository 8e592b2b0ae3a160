//! THE forward pass: once, for every family. It runs a `DecoderSpec` over the
//! flat token axis of a batch.

use super::loading::{self, DecoderWeights, LayerWeights};
use super::spec::{DecoderSpec, NormPlacement};
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::batch::Batch;
use crate::engine::config::DType;
use crate::engine::device::{Device, KvCache, Precision, Tensor};
use crate::engine::ops::{
    self, AttentionScratch, AttentionShape, QkvHeads, Step, StepInputs, StepLimits,
};

/// A loaded decoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    weights: DecoderWeights,
    embed_scale: Option<f32>,
    inputs: StepInputs,
    buffers: Buffers,
}

/// Activations, allocated once for the largest step. T is max_num_tokens, L max_num_logits; a GPU
/// has some rows more, to pad with.
#[derive(Debug)]
struct Buffers {
    /// (T, embedding width), only with projections.
    embedded: Option<Tensor>,
    /// (T, hidden_size) the stream that blocks add to.
    residual: Tensor,
    /// (rows of a block, hidden_size) what a block reads.
    normed: Tensor,
    /// (T, hidden_size) what a block adds.
    delta: Tensor,
    /// (T, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv: Tensor,
    /// (T, num_heads * head_dim)
    attended: Tensor,
    /// (rows of a block, 2 * intermediate_size or intermediate_size)
    up: Tensor,
    /// (rows of a block, intermediate_size), only when gated.
    activated: Option<Tensor>,
    /// (L, hidden_size) rows whose logits are wanted.
    last_residual: Tensor,
    /// (L, hidden_size)
    last_delta: Tensor,
    /// (L, hidden_size)
    last: Tensor,
    /// (L, embedding width), only with projections.
    projected: Option<Tensor>,
    attention: AttentionScratch,
}

impl Buffers {
    fn new(device: &Device, spec: &DecoderSpec, limits: StepLimits) -> Result<Self, EngineError> {
        let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
        let attention = spec.attention;
        let q_width = attention.num_heads * attention.head_dim;
        let kv_width = attention.num_kv_heads * attention.head_dim;
        let num_tokens = limits.max_num_tokens;
        let full = |rows: usize, width: usize| device.tensor(rows, width, Precision::Full);
        let per_token = |width: usize| device.tensor(num_tokens, width, Precision::Activation);
        let linear_input = |rows, width| device.tensor(rows, width, Precision::LinearInput);
        let block_rows = device.block_rows(num_tokens);
        let per_row = |width: usize| device.tensor(block_rows, width, Precision::Activation);
        // The CPU's grow when they are needed.
        let num_logits = device.preallocated_rows(limits.max_num_logits);
        let per_logit = |width: usize| device.tensor(num_logits, width, Precision::Activation);
        Ok(Self {
            embedded: spec.embedding.projected_from.map(per_token).transpose()?,
            residual: full(num_tokens, hidden)?,
            normed: match spec.norm_placement {
                NormPlacement::Pre | NormPlacement::Sandwich => linear_input(block_rows, hidden)?,
                NormPlacement::Post => per_row(hidden)?,
            },
            delta: per_token(hidden)?,
            qkv: per_token(q_width + 2 * kv_width)?,
            attended: per_token(q_width)?,
            up: per_row(if spec.mlp.gated { 2 * inner } else { inner })?,
            activated: spec.mlp.gated.then(|| linear_input(block_rows, inner)).transpose()?,
            last_residual: full(num_logits, hidden)?,
            last_delta: per_logit(hidden)?,
            last: per_logit(hidden)?,
            projected: spec.embedding.projected_from.map(per_logit).transpose()?,
            attention: AttentionScratch::default(),
        })
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
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let max_model_len = limits.max_model_len;
        let weights = loading::load(&spec, dtype, device, checkpoint, max_model_len)?;
        let embed_scale = spec.embedding.scaled.then(|| {
            // transformers keeps the factor in the model's dtype.
            let scale = (spec.hidden_size as f32).sqrt();
            match dtype {
                DType::Float32 => scale,
                DType::BFloat16 => half::bf16::from_f32(scale).to_f32(),
                DType::Float16 => half::f16::from_f32(scale).to_f32(),
            }
        });
        weights.prepare(device, limits)?;
        let inputs = StepInputs::new(device, limits)?;
        let buffers = Buffers::new(device, &spec, limits)?;
        device.finish_loading()?;
        Ok(Self { spec, weights, embed_scale, inputs, buffers })
    }

    /// What it runs.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Runs the batch: K and V of its tokens go into `cache`, the logits that it asks for into
    /// `logits` (num_logits, vocab_size), where a GPU's last rows are padding.
    pub fn forward(
        &mut self,
        device: &Device,
        batch: &Batch,
        cache: &mut KvCache,
        logits: &mut Tensor,
    ) {
        let Self { spec, weights, buffers, inputs, embed_scale } = self;
        let num_positions = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(num_positions));
        let step = inputs.step(device, batch);
        let embed_scale = *embed_scale;
        let mut pass = Pass { device, spec, weights, embed_scale, step };
        device.record_or_replay(step.graph_key(), &mut || pass.run(cache, buffers, logits));
        logits.set_num_rows(step.num_logits_rows());
    }
}

/// One forward pass over one step. A block leaves what it adds in `delta`; the next one (or the
/// end) adds it, in the same pass as its norm.
struct Pass<'a> {
    device: &'a Device,
    spec: &'a DecoderSpec,
    weights: &'a DecoderWeights,
    embed_scale: Option<f32>,
    step: Step<'a>,
}

impl Pass<'_> {
    fn run(&mut self, cache: &mut KvCache, buffers: &mut Buffers, logits: &mut Tensor) {
        self.embed(buffers);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attention(layer, index, cache, buffers);
            self.mlp(layer, buffers);
        }
        if self.step.num_logits_rows() > 0 {
            self.logits(buffers, logits);
        }
    }

    /// residual = token embeddings (scaled, projected) + position embeddings.
    fn embed(&self, buffers: &mut Buffers) {
        let Self { device, spec, weights, step, embed_scale } = *self;
        let table = &weights.embed_tokens;
        let (ids, residual) = (step.input_ids(), &mut buffers.residual);
        residual.set_num_rows(step.num_rows());
        match (&weights.project_in, &mut buffers.embedded) {
            (Some(project_in), Some(embedded)) => {
                embedded.set_num_rows(step.num_rows());
                ops::embedding(device, ids, table, embed_scale, embedded);
                // Through `delta`, whose type a GPU's linear layers write.
                ops::linear(device, embedded, project_in, &mut buffers.delta);
                ops::fill_zero(device, residual, step.num_rows());
                ops::add(device, residual, &buffers.delta);
            }
            _ => ops::embedding(device, ids, table, embed_scale, residual),
        }
        if let (Some(positions), Some(table)) = (spec.embedding.positions, &weights.embed_positions)
        {
            ops::add_rows_of(device, step.positions(), positions.offset, table, residual);
        }
        ops::fill_zero(device, &mut buffers.delta, step.num_rows());
    }

    /// Final norm and output layer, for the wanted rows only.
    fn logits(&self, buffers: &mut Buffers, logits: &mut Tensor) {
        let Self { device, spec, weights, step, .. } = *self;
        let (indices, num_rows) = (step.logits_indices(), step.num_logits_rows());
        let Buffers { last_residual, last_delta, last, .. } = buffers;
        last_residual.resize_rows(num_rows);
        last_delta.resize_rows(num_rows);
        last.resize_rows(num_rows);
        ops::gather_rows(device, &buffers.residual, indices, last_residual);
        ops::gather_rows(device, &buffers.delta, indices, last_delta);
        match &weights.final_norm {
            Some(norm) => ops::add_norm(device, last_residual, Some(last_delta), norm, last),
            None => {
                ops::add(device, last_residual, last_delta);
                ops::copy(device, last_residual, last);
            }
        }
        let head = weights.lm_head.as_ref().unwrap_or(&weights.embed_tokens);
        logits.resize_rows(num_rows);
        match (&weights.project_out, &mut buffers.projected) {
            (Some(project_out), Some(projected)) => {
                projected.resize_rows(num_rows);
                ops::linear(device, last, project_out, projected);
                ops::linear(device, projected, head, logits);
            }
            _ => ops::linear(device, last, head, logits),
        }
        if let Some(cap) = spec.final_logit_soft_cap {
            ops::soft_cap(device, cap, logits);
        }
    }

    fn attention(
        &self,
        layer: &LayerWeights,
        index: usize,
        cache: &mut KvCache,
        buffers: &mut Buffers,
    ) {
        let Self { device, step, .. } = *self;
        let attention = self.spec.attention;
        buffers.qkv.set_num_rows(step.num_rows());
        for (start, num_rows) in self.row_blocks() {
            self.block_input(&layer.attention_norm, (start, num_rows), buffers);
            let Buffers { normed, qkv, .. } = &mut *buffers;
            ops::linear_rows(device, (normed, 0), &layer.qkv_proj, (qkv, start), num_rows);
        }
        let heads = QkvHeads {
            num_heads: attention.num_heads,
            num_kv_heads: attention.num_kv_heads,
            head_dim: attention.head_dim,
        };
        let qkv = &mut buffers.qkv;
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            ops::norm_heads(device, qkv, heads.q(), q_norm);
            ops::norm_heads(device, qkv, heads.k(), k_norm);
        }
        let rope = layer.spec.rope.map(|rope| &self.weights.ropes[rope]);
        ops::rotary_and_cache(device, (qkv, heads), rope, step, (cache, index));
        let shape = AttentionShape {
            num_heads: attention.num_heads,
            scale: attention.scale,
            soft_cap: attention.soft_cap,
            sliding_window: layer.spec.sliding_window,
        };
        let (scratch, out) = (&mut buffers.attention, &mut buffers.attended);
        ops::paged_attention(device, (qkv, step), (cache, index), shape, scratch, out);
        ops::linear(device, &buffers.attended, &layer.out_proj, &mut buffers.delta);
        self.block_output(&layer.attention_norm, layer.attention_post_norm.as_ref(), buffers);
    }

    /// (first row, rows): a block at a time where the device has a cache to keep its buffers in.
    fn row_blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let num_tokens = self.step.num_rows();
        let block_rows = self.device.block_rows(num_tokens);
        (0..num_tokens)
            .step_by(block_rows)
            .map(move |start| (start, block_rows.min(num_tokens - start)))
    }

    fn mlp(&self, layer: &LayerWeights, buffers: &mut Buffers) {
        let device = self.device;
        let activation = self.spec.mlp.activation;
        for (start, num_rows) in self.row_blocks() {
            self.block_input(&layer.mlp_norm, (start, num_rows), buffers);
            let Buffers { normed, delta, up, activated, .. } = &mut *buffers;
            let input = (&*normed, 0);
            let activated = match activated {
                Some(activated) => {
                    let weight = (&layer.up_proj, activation);
                    let out = (&mut *up, &mut *activated);
                    ops::linear_activate_and_mul(device, input, weight, out, num_rows);
                    activated
                }
                None => {
                    up.set_num_rows(num_rows);
                    ops::linear_rows(device, input, &layer.up_proj, (up, 0), num_rows);
                    ops::activate(device, activation, up);
                    &mut *up
                }
            };
            ops::linear_rows(device, (activated, 0), &layer.down_proj, (delta, start), num_rows);
        }
        self.block_output(&layer.mlp_norm, layer.mlp_post_norm.as_ref(), buffers);
    }

    /// normed = what the block reads, for some rows; the delta of the block before is added on the
    /// way.
    fn block_input(
        &self,
        norm: &ops::NormWeight,
        (start, num_rows): (usize, usize),
        buffers: &mut Buffers,
    ) {
        let Buffers { residual, delta, normed, .. } = buffers;
        normed.set_num_rows(num_rows);
        match self.spec.norm_placement {
            NormPlacement::Pre | NormPlacement::Sandwich => {
                ops::add_norm_rows(self.device, (residual, Some(delta)), start, norm, normed);
            }
            NormPlacement::Post => ops::copy_rows(self.device, (residual, start), normed),
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
            let num_rows = delta.num_rows();
            ops::fill_zero(self.device, delta, num_rows);
        }
    }
}
