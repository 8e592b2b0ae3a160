//! From a spec and a checkpoint to packed weights on a device.

use super::branch::BranchWeights;
use super::cross::CrossWeights;
use super::decoder::Output;
use super::indexer::IndexerWeights;
use super::latent::LatentWeights;
use super::layer_inputs::{LayerInputsWeights, SideBlockWeights};
use super::memory::MemoryWeights;
use super::recurrent::RecurrentWeights;
use super::resident_loras::AdaptedWeights;
use super::streams::{MixingWeights, StreamsWeights};
use std::sync::Arc;

use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Activation;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, Frequencies, LayerSpec,
    LearnedPositions, LinearSpec, MlpForm, NamedShape, NormSpec, RopeSpec, Sinusoids, SquaresSpec,
    Stage,
};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Tensor};
use vllm_batch_ops::{
    AdaptedLinear, ExpertsWeight, LinearWeight, LoraSlots, NormWeight, RotaryTable, Squares,
    Standardization, StepLimits, TableSlots, WeightValues,
};

/// All weights of a decoder. Shapes are in the spec's terms.
#[derive(Debug)]
pub(super) struct DecoderWeights {
    /// (vocab_size, embedding width); also the output layer when tied. None: another stage has it.
    pub embed_tokens: Option<LinearWeight>,
    /// What adapters add to its rows where tokens are looked up.
    pub token_loras: TableSlots,
    /// (num_rows, hidden_size)
    pub embed_positions: Option<Tensor>,
    pub embed_norm: Option<NormWeight>,
    pub layer_inputs: Option<LayerInputsWeights>,
    pub streams: Option<StreamsWeights>,
    /// (hidden_size, embedding width)
    pub project_in: Option<LinearWeight>,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Option<NormWeight>,
    /// What follows; None: states are wanted.
    pub output: Option<OutputWeights>,
    pub ropes: Vec<RotaryTable>,
}

/// From states to logits.
#[derive(Debug)]
pub(super) struct OutputWeights {
    /// (embedding width, hidden_size)
    pub projection: Option<LinearWeight>,
    /// What follows that.
    pub after_projection: Option<(Activation, NormWeight)>,
    /// (vocab_size, embedding width) unless tied, or narrower than the table.
    pub lm_head: Option<LinearWeight>,
    /// What adapters add to logits.
    pub loras: LoraSlots,
}

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub attention: Option<AttentionWeights>,
    pub recurrent: Option<RecurrentWeights>,
    /// With the weights of attention.
    pub memory: Option<MemoryWeights>,
    pub cross: Option<CrossWeights>,
    pub feed_forward: Option<FeedForwardWeights>,
    /// Without norms.
    pub late: Option<FeedForwardWeights>,
    pub branch: Option<BranchWeights>,
    pub side: Option<SideBlockWeights>,
    pub mixing: Option<MixingWeights>,
    pub scalar: Option<f32>,
}

/// Weights of an attention block.
#[derive(Debug)]
pub(super) struct AttentionWeights {
    pub norms: BlockNormWeights,
    pub qkv: AdaptedLinear,
    pub latent: Option<LatentWeights>,
    pub indexer: Option<IndexerWeights>,
    pub qk_norm: Option<(NormWeight, Option<NormWeight>)>,
    pub v_norm: Option<NormWeight>,
    pub alibi: Option<WeightValues>,
    pub sinks: Option<WeightValues>,
    pub squares: Option<Squares>,
    pub out: AdaptedLinear,
}

/// Weights of a feed-forward block.
#[derive(Debug)]
pub(super) struct FeedForwardWeights {
    pub norms: BlockNormWeights,
    /// Its MLP, or the expert of all tokens.
    pub mlp: Option<MlpWeights>,
    /// (1, hidden_size): of that expert's outputs.
    pub gate: Option<LinearWeight>,
    pub experts: Option<ExpertsWeight>,
    pub latent: Option<ExpertLatentWeights>,
    pub apart: Option<ApartNormWeights>,
}

/// Weights of the layers around experts.
#[derive(Debug)]
pub(super) struct ExpertLatentWeights {
    /// (latent width, hidden_size)
    pub into: LinearWeight,
    /// (hidden_size, latent width)
    pub back: LinearWeight,
}

/// Weights of norms where experts and the MLP of all tokens are apart, (hidden_size) each.
#[derive(Debug)]
pub(super) struct ApartNormWeights {
    pub mlp_after: NormWeight,
    pub router: NormWeight,
    pub experts_before: NormWeight,
    pub experts_after: NormWeight,
}

/// Weights of an MLP.
#[derive(Debug)]
pub(super) struct MlpWeights {
    pub form: MlpForm,
    pub activation: Activation,
    /// Gates are less by their mean and so many of their deviations first.
    pub cutoff: Option<f32>,
    pub up: AdaptedLinear,
    pub down: AdaptedLinear,
}

/// Weights of a block's norms and of its layer scale, (hidden_size) each.
#[derive(Debug)]
pub(super) struct BlockNormWeights {
    pub before: Option<NormWeight>,
    pub after: Option<NormWeight>,
    pub of_sum: Option<NormWeight>,
    pub layer_scale: Option<WeightValues>,
}

impl DecoderWeights {
    /// Where adapters' matrices go.
    ///
    /// `table_scale`: what the embeddings of tokens are multiplied by.
    pub(super) fn adapted(&mut self, table_scale: Option<f32>) -> AdaptedWeights<'_> {
        let lm_head = self.output.as_mut().map(|output| &mut output.loras);
        let (layers, tokens) = (&mut self.layers, &mut self.token_loras);
        AdaptedWeights { layers, tokens, table: self.embed_tokens.as_ref(), table_scale, lm_head }
    }

    /// What makes logits.
    pub(super) fn head<'a>(&'a self, output: &'a OutputWeights) -> &'a LinearWeight {
        output.lm_head.as_ref().or(self.embed_tokens.as_ref()).expect("the last stage has one")
    }

    /// Makes the device ready to run every linear layer.
    ///
    /// # Errors
    /// It cannot run one.
    pub(super) fn prepare(&self, device: &Device, limits: StepLimits) -> Result<(), EngineError> {
        let activation = device.activation_dtype();
        let project_out = self.output.as_ref().and_then(|layers| layers.projection.as_ref());
        let of_inputs = self.layer_inputs.iter().flat_map(LayerInputsWeights::linears);
        let of_streams = self.streams.iter().flat_map(StreamsWeights::linears);
        let of_inputs = of_inputs.chain(of_streams);
        for weight in self.project_in.iter().chain(project_out).chain(of_inputs) {
            weight.prepare(device, activation, limits.max_num_tokens)?;
        }
        prepare_layers(&self.layers, device, limits.max_num_tokens)?;
        let Some(output) = &self.output else { return Ok(()) };
        self.head(output).prepare(device, DType::Float32, limits.max_num_logits)
    }
}

/// Makes the device ready to run the linear layers of steps of so many tokens.
///
/// # Errors
/// It cannot run one.
pub(super) fn prepare_layers(
    layers: &[LayerWeights],
    device: &Device,
    max_num_tokens: usize,
) -> Result<(), EngineError> {
    let mut weights = layers.iter().flat_map(
        |LayerWeights {
             attention, recurrent, memory, cross, feed_forward, branch, side, ..
         }| {
            let attention = attention.iter().flat_map(
                |AttentionWeights { qkv, latent, indexer, out, .. }| {
                    let q_up = latent.iter().flat_map(|latent| &latent.q).map(|(_, up)| up);
                    let indexer = indexer.iter().flat_map(|i| i.q.iter().chain([&i.inputs.weight]));
                    [&qkv.weight, &out.weight].into_iter().chain(q_up).chain(indexer)
                },
            );
            let recurrent = recurrent.iter().flat_map(RecurrentWeights::linears);
            let mlp = feed_forward.iter().filter_map(|block| block.mlp.as_ref());
            let side = side.iter().flat_map(SideBlockWeights::linears);
            let mlp = mlp.flat_map(|mlp| [&mlp.up.weight, &mlp.down.weight]);
            let latent = feed_forward.iter().filter_map(|block| block.latent.as_ref());
            let latent = latent.flat_map(|latent| [&latent.into, &latent.back]);
            let side = side.chain(branch.iter().flat_map(BranchWeights::linears));
            let memory = memory.iter().flat_map(MemoryWeights::linears);
            let memory = memory.chain(cross.iter().flat_map(CrossWeights::linears));
            attention.chain(recurrent).chain(memory).chain(mlp).chain(latent).chain(side)
        },
    );
    let activation = device.activation_dtype();
    weights.try_for_each(|weight| weight.prepare(device, activation, max_num_tokens))
}

/// Reads and packs all weights.
///
/// # Errors
/// A tensor is missing, or has another shape.
pub(super) fn load(
    (spec, output): (&DecoderSpec, Output),
    mut loader: Loader<'_>,
    max_model_len: usize,
) -> Result<DecoderWeights, EngineError> {
    let EmbeddingSpec { tokens, projection, norm, of_layers, streams, .. } = &spec.embedding;
    let Stage { is_first, is_last, .. } = spec.stage;
    let inputs = of_layers.as_ref().filter(|_| is_first);
    let layer_inputs = inputs.map(|inputs| loader.layer_inputs(inputs)).transpose()?;
    // The two largest come first: what is being packed is in memory twice, and little else is there
    // yet.
    let embed_tokens = spec.has_table().then(|| loader.token_table(tokens)).transpose()?;
    let output = match output {
        Output::Logits if is_last => Some(loader.output(spec, embed_tokens.as_ref())?),
        Output::Logits | Output::States => None,
    };
    let EmbeddingSpec { positions, sinusoids, .. } = &spec.embedding;
    let positions = (positions.as_ref(), sinusoids.as_ref());
    let positions = if is_first { positions } else { (None, None) };
    let streams = streams.as_ref().map(|streams| loader.streams(streams, spec.stage));
    let device = loader.device;
    let rope = |spec| rotary_table(device, spec, max_model_len);
    Ok(DecoderWeights {
        embed_tokens,
        token_loras: TableSlots::default(),
        output,
        embed_positions: loader.positions(positions, max_model_len)?,
        embed_norm: loader.norm(norm.as_ref().filter(|_| is_first))?,
        layer_inputs,
        streams: streams.transpose()?,
        project_in: loader.projection(projection.as_ref().filter(|_| is_first))?,
        final_norm: loader.norm(spec.output.norm.as_ref().filter(|_| is_last))?,
        layers: spec.layers.iter().map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
        ropes: spec.ropes.iter().map(rope).collect::<Result<_, _>>()?,
    })
}

/// Sines and cosines of positions below `max_model_len`.
pub(super) fn rotary_table(
    device: &Device,
    spec: &RopeSpec,
    max_model_len: usize,
) -> Result<RotaryTable, EngineError> {
    let Frequencies { inv_freq, factor } = spec.frequencies(max_model_len);
    let axes = spec.axes.iter().map(|pair| pair.axis).collect();
    RotaryTable::new(inv_freq, factor).with_axes(axes).on_device(device, max_model_len)
}

/// Reads parts of a spec from a checkpoint, and packs them for a device.
pub(super) struct Loader<'a> {
    pub dtype: DType,
    pub device: &'a Device,
    pub checkpoint: &'a mut Checkpoint,
}

impl Loader<'_> {
    /// What makes logits of states, beside a table of tokens.
    fn output(
        &mut self,
        DecoderSpec { output: spec, embedding, .. }: &DecoderSpec,
        table: Option<&LinearWeight>,
    ) -> Result<OutputWeights, EngineError> {
        let lm_head = match &spec.lm_head {
            // The table is looked up in full precision.
            None => table.and_then(|table| table.int8_copy(self.device)),
            Some(head) => {
                let head = self.head(head, embedding.tokens.n())?;
                Some(head.int8_copy(self.device).unwrap_or(head))
            }
        };
        let projection = self.projection(spec.projection.as_ref())?;
        let after_projection = match &spec.after_projection {
            Some(after) => Some((after.activation, self.the_norm(&after.norm)?)),
            None => None,
        };
        let loras = LoraSlots::default();
        Ok(OutputWeights { projection, after_projection, lm_head, loras })
    }

    /// The output layer, with so many rows: no token of those that it lacks is ever the next one
    /// (Molmo 2).
    fn head(&mut self, spec: &LinearSpec, num_rows: usize) -> Result<LinearWeight, EngineError> {
        let num_missing = num_rows.saturating_sub(spec.n());
        if num_missing == 0 || spec.share.is_some() {
            return self.linear(spec);
        }
        let (device, dtype) = (self.device, self.dtype);
        let rows: Arc<[u32]> =
            (0..spec.n() as u32).chain(std::iter::repeat_n(0, num_missing)).collect();
        self.packed(spec, |source, bias| {
            let mut bias = bias.unwrap_or_else(|| vec![0.0; spec.n()]);
            bias.resize(num_rows, f32::MIN);
            let source = source.clone().in_order(Some(rows.clone()));
            LinearWeight::load(device, dtype, &source, Some(bias))
        })
    }

    fn projection(
        &mut self,
        spec: Option<&LinearSpec>,
    ) -> Result<Option<LinearWeight>, EngineError> {
        spec.map(|spec| self.linear(spec)).transpose()
    }

    /// The table of positions, learned or computed, if there is one.
    pub(super) fn positions(
        &mut self,
        (learned, computed): (Option<&LearnedPositions>, Option<&Sinusoids>),
        max_model_len: usize,
    ) -> Result<Option<Tensor>, EngineError> {
        let device = self.device;
        let rows = |of: &Sinusoids| device.upload(of.rows(max_model_len), of.width);
        match learned {
            Some(positions) => self.table(&positions.table).map(Some),
            None => computed.map(rows).transpose(),
        }
    }

    /// A table whose rows are looked up in f32.
    pub(super) fn table(&mut self, spec: &LinearSpec) -> Result<Tensor, EngineError> {
        let device = self.device;
        let (rows, _) = self.rows(spec)?;
        let mut values = vec![0.0; rows.num_rows() * spec.k];
        let of_rows = values.chunks_exact_mut(spec.k).enumerate();
        of_rows.for_each(|(row, values)| rows.read_row(row, values));
        device.upload(values, spec.k)
    }

    /// What attention has of distances, and q, k and v of a row of zeros: their biases.
    fn squares(
        &mut self,
        spec: &AttentionSpec,
        SquaresSpec { tables, grid, side }: &SquaresSpec,
    ) -> Result<Squares, EngineError> {
        let mut table =
            |tensor: &NamedShape| self.checkpoint.matrix(tensor).map(|matrix| matrix.to_vec());
        let tables = [table(&tables[0])?, table(&tables[1])?];
        let mut beyond = Vec::new();
        for bias in spec.qkv.biases() {
            beyond.extend(self.checkpoint.vector(&bias, 0.01)?);
        }
        beyond.resize(spec.qkv.n(), 0.0);
        let AttentionSpec { heads, scale, .. } = *spec;
        Ok(Squares { heads, scale, tables, beyond, grid: *grid, side: *side })
    }

    /// What channels are shifted and scaled by.
    pub(super) fn standardization(
        &mut self,
        factor: f32,
        (shift, scale): (&NamedShape, &NamedShape),
    ) -> Result<Standardization, EngineError> {
        let shift = self.checkpoint.vector(shift, 0.01)?;
        let scale = self.checkpoint.vector(scale, 1.0)?;
        Ok(Standardization { factor, shift, scale })
    }

    /// A vector, as a row in f32.
    pub(super) fn row(&mut self, tensor: &NamedShape) -> Result<Tensor, EngineError> {
        let values = self.checkpoint.vector(tensor, 0.01)?;
        let width = values.len();
        self.device.upload(values, width)
    }

    /// A normalization, if there is one.
    pub(super) fn norm(
        &mut self,
        spec: Option<&NormSpec>,
    ) -> Result<Option<NormWeight>, EngineError> {
        spec.map(|spec| self.one_norm(spec)).transpose()
    }

    /// A normalization.
    pub(super) fn one_norm(&mut self, spec: &NormSpec) -> Result<NormWeight, EngineError> {
        let width = spec.width();
        let weight = match spec.weight_offset {
            None => vec![1.0; width],
            Some(offset) => {
                let mut weight = self.vectors(spec.weights(), 1.0)?;
                let factor = spec.weight_factor;
                if offset != 0.0 || factor != 1.0 {
                    weight.iter_mut().for_each(|weight| *weight = (*weight + offset) * factor);
                }
                spec.order.arrange(weight)
            }
        };
        let weight = self.device.upload(weight, width)?;
        let bias = match spec.bias {
            false => None,
            true => {
                let bias = spec.order.arrange(self.vectors(spec.biases(), 0.01)?);
                Some(self.device.upload(bias, width)?)
            }
        };
        Ok(NormWeight { kind: spec.kind, eps: spec.eps, weight, bias })
    }

    /// A normalization that is there.
    pub(super) fn the_norm(&mut self, spec: &NormSpec) -> Result<NormWeight, EngineError> {
        Ok(self.norm(Some(spec))?.expect("a norm"))
    }

    /// The normalizations of a block.
    pub(super) fn norms(&mut self, spec: &BlockNorms) -> Result<BlockNormWeights, EngineError> {
        let factors = spec.layer_scale.as_ref();
        let factors = factors.map(|tensor| self.checkpoint.vector(tensor, 1.0)).transpose()?;
        let on_device = |factors| WeightValues::on_device(self.device, factors);
        Ok(BlockNormWeights {
            layer_scale: factors.map(on_device).transpose()?,
            before: self.norm(spec.before.as_ref())?,
            after: self.norm(spec.after.as_ref())?,
            of_sum: self.norm(spec.of_sum.as_ref())?,
        })
    }

    /// The blocks of a layer.
    pub(super) fn layer(&mut self, spec: &LayerSpec) -> Result<LayerWeights, EngineError> {
        let LayerSpec { attention, recurrent, branch, feed_forward, late, side, mixing, .. } = spec;
        let scalar = spec.scalar_tensor().map(|tensor| self.checkpoint.vector(&tensor, 1.0));
        Ok(LayerWeights {
            attention: attention
                .as_ref()
                .filter(|_| spec.memory.is_none())
                .map(|spec| self.attention(spec))
                .transpose()?,
            memory: self.memory(spec)?,
            cross: spec.cross.as_ref().map(|spec| self.cross(spec)).transpose()?,
            recurrent: recurrent.as_ref().map(|spec| self.recurrent(spec)).transpose()?,
            feed_forward: feed_forward.as_ref().map(|spec| self.feed_forward(spec)).transpose()?,
            late: late.as_ref().map(|late| self.feed_forward(&late.block)).transpose()?,
            branch: branch.as_ref().map(|spec| self.branch(spec)).transpose()?,
            side: side.as_ref().map(|spec| self.side_block(spec)).transpose()?,
            mixing: mixing.as_ref().map(|spec| self.mixing(spec)).transpose()?,
            scalar: scalar.transpose()?.map(|values| values[0]),
        })
    }

    pub(super) fn attention(
        &mut self,
        spec: &AttentionSpec,
    ) -> Result<AttentionWeights, EngineError> {
        let qk_norm = match &spec.qk_norm {
            None => None,
            Some(norms) => Some((self.the_norm(&norms.q)?, self.norm(norms.k.as_ref())?)),
        };
        let of_heads = |values| WeightValues::on_device(self.device, values);
        let alibi = spec.alibi_slopes.clone().map(of_heads).transpose()?;
        let sinks = spec.sink_tensor().map(|tensor| self.checkpoint.vector(&tensor, 0.0));
        let sinks = sinks.transpose()?.map(of_heads).transpose()?;
        Ok(AttentionWeights {
            norms: self.norms(&spec.norms)?,
            qkv: self.adapted_linear(&spec.qkv)?,
            latent: self.latent(spec)?,
            indexer: self.indexer(spec.indexer())?,
            qk_norm,
            v_norm: self.norm(spec.v_norm.as_ref())?,
            alibi,
            sinks,
            squares: spec.squares.as_ref().map(|own| self.squares(spec, own)).transpose()?,
            out: self.adapted_linear(&spec.out)?,
        })
    }
}
