//! The forward pass over whole texts: once, for every family of encoders, and for decoders that
//! make vectors. It runs an `EncoderSpec` over texts that lie one after the other, without padding.

use super::loading::{self, AttentionWeights, LayerWeights, Loader};
use super::spec::{AttentionSpec, EncoderSpec, RelativeBiasSpec};
use super::stream::{Stream, norm_q_and_k, scale_q};
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::batch::Batch;
use crate::engine::config::DType;
use crate::engine::device::{Device, Precision, Tensor};
use crate::engine::ops::{
    self, EncoderAttentionShape, EncoderScratch, LinearWeight, NormWeight, RelativeBias,
    RotaryTable, Step,
};

/// Buffers grow by so many tokens.
const GROWTH: usize = 4096;

/// A loaded encoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Encoder {
    spec: EncoderSpec,
    weights: Weights,
    embed_scale: Option<f32>,
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
    bias: Option<RelativeBias>,
    final_norm: Option<NormWeight>,
}

/// Activations, for steps of up to T tokens.
#[derive(Debug)]
struct Buffers {
    max_num_tokens: usize,
    stream: Stream,
    attention: AttentionBuffers,
}

/// What attention works in.
#[derive(Debug)]
struct AttentionBuffers {
    /// (T, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv: Tensor,
    /// (T, num_heads * head_dim)
    attended: Tensor,
    scratch: EncoderScratch,
}

impl Encoder {
    /// Packs the weights of a checkpoint for texts of up to `max_model_len` tokens, and makes
    /// buffers for steps of up to `max_num_tokens`; `reserve` makes larger ones. Whoever opened the
    /// checkpoint has checked it, and finishes it.
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
            bias: bias(&spec, &mut loader, max_model_len)?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            ropes: spec
                .ropes
                .iter()
                .map(|rope| loading::rotary_table(device, rope, max_model_len))
                .collect::<Result<_, _>>()?,
        };
        let buffers = Buffers::new(device, &spec, max_num_tokens)?;
        let embed_scale = spec.embed_scale.map(|scale| scale.of_dtype(dtype));
        Ok(Self { spec, weights, embed_scale, buffers })
    }

    /// Makes room for a step of so many tokens. Few texts of a model are as long as its context, so
    /// nothing is held for them before they come.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn reserve(&mut self, device: &Device, num_tokens: usize) -> Result<(), EngineError> {
        if num_tokens > self.buffers.max_num_tokens {
            let num_tokens = num_tokens.next_multiple_of(GROWTH);
            self.buffers = Buffers::new(device, &self.spec, num_tokens)?;
        }
        Ok(())
    }

    /// Runs texts, for which there is room: `batch` has their tokens with positions and types, and
    /// where each text begins. Gives the tokens' states (num_tokens, hidden_size) after the last
    /// layer.
    pub fn forward(&mut self, device: &Device, batch: &Batch) -> &Tensor {
        let Self { spec, weights, embed_scale, buffers } = self;
        let longest = batch.query_start_loc.windows(2).map(|pair| pair[1] - pair[0]).max();
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(longest.unwrap_or(0) as usize));
        let (embed_scale, step) = (*embed_scale, Step::on_host(batch));
        let pass = Pass { device, spec, weights, embed_scale, step };
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
            max_num_tokens,
            stream: Stream::new(device, size, &spec.layers)?,
            attention: AttentionBuffers {
                qkv: per_token(widest(|attention| attention.qkv.n()))?,
                attended: per_token(widest(|attention| attention.out.k))?,
                scratch: EncoderScratch::default(),
            },
        })
    }
}

/// One forward pass over one step.
struct Pass<'a> {
    device: &'a Device,
    spec: &'a EncoderSpec,
    weights: &'a Weights,
    embed_scale: Option<f32>,
    step: Step<'a>,
}

impl Pass<'_> {
    fn run(&self, buffers: &mut Buffers) {
        self.embed(buffers);
        let Buffers { stream, attention, .. } = &mut *buffers;
        for layer in self.spec.layers.iter().zip(&self.weights.layers) {
            stream.layer(self.device, layer, |stream, block| {
                self.attention(block, (stream, attention));
            });
        }
        let Stream { residual, delta, has_delta, .. } = &mut buffers.stream;
        if std::mem::take(has_delta) {
            ops::add(self.device, residual, delta);
        }
        if let Some(norm) = &self.weights.final_norm {
            ops::norm_in_place(self.device, residual, norm);
        }
    }

    /// residual = norm(scaled token embeddings + segments + positions), added in this order, as
    /// transformers adds them.
    fn embed(&self, buffers: &mut Buffers) {
        let Self { device, spec, weights, embed_scale, step } = self;
        let stream = &mut buffers.stream;
        stream.begin(step.num_rows());
        let residual = &mut stream.residual;
        ops::embedding(device, step.input_ids(), &weights.tokens, *embed_scale, residual);
        if let Some(table) = &weights.token_types {
            ops::add_rows_of(device, step.batch.token_types[..].into(), 0, table, residual);
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
        (stream, buffers): (&mut Stream, &mut AttentionBuffers),
    ) {
        let Self { device, step, .. } = *self;
        let AttentionBuffers { qkv, attended, scratch } = buffers;
        stream.qkv(device, (spec, weights), qkv);
        let rope = spec.rope.map(|rope| &self.weights.ropes[rope]);
        if let Some(rope) = norm_q_and_k(device, (spec, weights), rope, step, qkv) {
            ops::rotate(device, qkv, spec.heads, rope, step);
        }
        scale_q(device, spec, step, qkv);
        // A decoder counts the token itself.
        let (before, after) = match self.spec.is_causal {
            true => (spec.sliding_window.map(|window| window - 1), Some(0)),
            false => (spec.sliding_window, spec.sliding_window),
        };
        let AttentionSpec { heads, scale, soft_cap, .. } = *spec;
        let bias = self.weights.bias.as_ref();
        let shape = EncoderAttentionShape { heads, scale, soft_cap, before, after, bias };
        attended.reshape(step.num_rows(), spec.out.k);
        let rows = (&*qkv, &step.batch.query_start_loc[..]);
        ops::encoder_attention(device, rows, shape, scratch, attended);
        ops::linear(device, attended, &weights.out, &mut stream.delta);
    }
}

/// What is added to scores: by T5's buckets of distances, or by ALiBi's slopes.
fn bias(
    spec: &EncoderSpec,
    loader: &mut Loader<'_>,
    max_len: usize,
) -> Result<Option<RelativeBias>, EngineError> {
    if let Some(spec) = &spec.relative_bias {
        return relative_bias(spec, loader, max_len).map(Some);
    }
    let slopes = spec.attentions().find_map(|attention| attention.alibi_slopes.as_ref());
    Ok(slopes.map(|slopes| {
        let value = |head: usize, distance: isize| -slopes[head] * distance.unsigned_abs() as f32;
        RelativeBias::new(slopes.len(), max_len, value)
    }))
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
