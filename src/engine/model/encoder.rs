//! The forward pass of encoders: once, for every family. It runs an `EncoderSpec` over texts that
//! lie one after the other, without padding.

use super::loading::{self, AttentionWeights, LayerWeights, Loader};
use super::spec::{AttentionSpec, EncoderSpec, RelativeBiasSpec};
use super::stream::Stream;
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::batch::Batch;
use crate::engine::config::DType;
use crate::engine::device::{Device, Precision, Tensor};
use crate::engine::ops::{
    self, EncoderAttentionShape, EncoderScratch, LinearWeight, NormWeight, RelativeBias,
    RotaryTable, Step,
};

/// A loaded encoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Encoder {
    spec: EncoderSpec,
    weights: Weights,
    buffers: Buffers,
}

#[derive(Debug)]
struct Weights {
    /// (vocab_size, hidden_size)
    tokens: LinearWeight,
    /// (types, hidden_size)
    token_types: Option<Tensor>,
    /// (rows, hidden_size)
    positions: Option<Tensor>,
    embed_norm: Option<NormWeight>,
    layers: Vec<LayerWeights>,
    ropes: Vec<RotaryTable>,
    relative_bias: Option<RelativeBias>,
    final_norm: Option<NormWeight>,
}

/// Activations, allocated once for the largest step of T tokens.
#[derive(Debug)]
struct Buffers {
    stream: Stream,
    /// (T, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv: Tensor,
    /// (T, num_heads * head_dim)
    attended: Tensor,
    attention: EncoderScratch,
    /// Segments of the tokens.
    token_types: Vec<u32>,
}

impl Encoder {
    /// Packs the weights of a checkpoint for texts of up to `max_model_len` tokens, and steps of up
    /// to `max_num_tokens`. Whoever opened the checkpoint has checked it, and finishes it.
    ///
    /// # Errors
    /// A weight is missing, or memory does not suffice.
    pub fn load(
        spec: EncoderSpec,
        dtype: DType,
        device: &Device,
        checkpoint: &mut Checkpoint,
        (max_model_len, max_num_tokens): (usize, usize),
    ) -> Result<Self, EngineError> {
        let mut loader = Loader { dtype, device, checkpoint };
        let positions = spec.positions.as_ref();
        let layers = spec.layers.iter().map(|layer| loader.layer(layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let weights = Weights {
            layers,
            tokens: loader.token_table(&spec.tokens)?,
            token_types: spec.token_types.as_ref().map(|table| loader.table(table)).transpose()?,
            positions: positions.map(|positions| loader.table(&positions.table)).transpose()?,
            embed_norm: loader.norm(spec.embed_norm.as_ref())?,
            relative_bias: spec
                .relative_bias
                .as_ref()
                .map(|bias| relative_bias(bias, &mut loader, max_model_len))
                .transpose()?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            ropes: spec
                .ropes
                .iter()
                .map(|rope| loading::rotary_table(device, rope, max_model_len))
                .collect::<Result<_, _>>()?,
        };
        let buffers = Buffers::new(device, &spec, max_num_tokens)?;
        Ok(Self { spec, weights, buffers })
    }

    /// Runs texts: `batch` has their tokens, their positions and where each text begins. Gives the
    /// tokens' states (num_tokens, hidden_size) after the last layer.
    pub fn forward(&mut self, device: &Device, batch: &Batch) -> &Tensor {
        let Self { spec, weights, buffers } = self;
        let longest = batch.query_start_loc.windows(2).map(|pair| pair[1] - pair[0]).max();
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(longest.unwrap_or(0) as usize));
        let pass = Pass { device, spec, weights, step: Step::on_host(batch) };
        pass.run(buffers);
        &buffers.stream.residual
    }
}

impl Buffers {
    fn new(
        device: &Device,
        spec: &EncoderSpec,
        max_num_tokens: usize,
    ) -> Result<Self, EngineError> {
        let per_token = |width| device.tensor(max_num_tokens, width, Precision::Activation);
        let size = (max_num_tokens, spec.hidden_size());
        let widest = |of: fn(&AttentionSpec) -> usize| spec.attentions().map(of).max().unwrap_or(0);
        Ok(Self {
            stream: Stream::new(device, size, spec.block_norms(), spec.mlps())?,
            qkv: per_token(widest(|attention| attention.qkv.n()))?,
            attended: per_token(widest(|attention| attention.out.k))?,
            attention: EncoderScratch::default(),
            token_types: Vec::new(),
        })
    }
}

/// One forward pass over one step.
struct Pass<'a> {
    device: &'a Device,
    spec: &'a EncoderSpec,
    weights: &'a Weights,
    step: Step<'a>,
}

impl Pass<'_> {
    fn run(&self, buffers: &mut Buffers) {
        self.embed(buffers);
        for (spec, weights) in self.spec.layers.iter().zip(&self.weights.layers) {
            if let (Some(block), Some(weights)) = (&spec.attention, &weights.attention) {
                self.attention((block, weights), buffers);
                buffers.stream.block_output(self.device, &weights.norms, spec.residual_scale);
            }
            if let (Some(block), Some(weights)) = (&spec.mlp, &weights.mlp) {
                buffers.stream.mlp(self.device, (block, weights));
                buffers.stream.block_output(self.device, &weights.norms, spec.residual_scale);
            }
        }
        let Stream { residual, delta, has_delta, .. } = &mut buffers.stream;
        if std::mem::take(has_delta) {
            ops::add(self.device, residual, delta);
        }
        if let Some(norm) = &self.weights.final_norm {
            ops::norm_in_place(self.device, residual, norm);
        }
    }

    /// residual = norm(token embeddings + segments + positions), added in this order, as
    /// transformers adds them.
    fn embed(&self, buffers: &mut Buffers) {
        let Self { device, spec, weights, step } = self;
        let Buffers { stream, token_types, .. } = buffers;
        stream.begin(step.num_rows());
        let residual = &mut stream.residual;
        ops::embedding(device, step.input_ids(), &weights.tokens, None, residual);
        if let Some(table) = &weights.token_types {
            token_types.resize(step.num_rows(), 0);
            ops::add_rows_of(device, token_types[..].into(), 0, table, residual);
        }
        if let Some((positions, table)) = spec.positions.as_ref().zip(weights.positions.as_ref()) {
            ops::add_rows_of(device, step.positions(), positions.offset, table, residual);
        }
        if let Some(norm) = &weights.embed_norm {
            ops::norm_in_place(device, residual, norm);
        }
    }

    fn attention(
        &self,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        buffers: &mut Buffers,
    ) {
        let Self { device, step, .. } = *self;
        let Buffers { stream, qkv, attended, attention, .. } = buffers;
        qkv.reshape(step.num_rows(), spec.qkv.n());
        for (start, num_rows) in stream.row_blocks(device) {
            stream.block_input(device, &weights.norms, (start, num_rows));
            let (x, out) = (stream.normed.rows_from(0), qkv.rows_from_mut(start));
            ops::linear_rows(device, x, &weights.qkv, out, num_rows);
        }
        if let Some(rope) = spec.rope {
            ops::rotate(device, qkv, spec.heads, &self.weights.ropes[rope], step);
        }
        let shape = EncoderAttentionShape {
            heads: spec.heads,
            scale: spec.scale,
            reach: spec.sliding_window,
            bias: self.weights.relative_bias.as_ref(),
        };
        attended.reshape(step.num_rows(), spec.out.k);
        let rows = (&*qkv, &step.batch.query_start_loc[..]);
        ops::encoder_attention(device, rows, shape, attention, attended);
        ops::linear(device, attended, &weights.out, &mut stream.delta);
    }
}

/// The bias of every distance, from its bucket's.
fn relative_bias(
    spec: &RelativeBiasSpec,
    loader: &mut Loader<'_>,
    max_len: usize,
) -> Result<RelativeBias, EngineError> {
    let table = loader.table(&spec.table)?;
    let value = |head, distance| table.row(spec.bucket(distance))[head];
    Ok(RelativeBias::new(spec.table.k, max_len, value))
}
