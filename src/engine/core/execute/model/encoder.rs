//! The forward pass over whole texts: once, for every family of encoders, and for decoders that
//! make vectors. It runs an `EncoderSpec` over texts that lie one after the other, without padding.

use super::decoder::GivenRows;
use super::loading::{self, LayerWeights, Loader};
use super::resident_loras::{AdaptedWeights, ResidentLoras};
use super::stream::Stream;
use super::text_layers::{TextBuffers, TextLayers};
use super::word_maxima::WordMaxima;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::encoders::MaskedLmSpec;
use vllm_batch_checkpoint::spec::{EncoderSpec, RelativeBiasSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{
    LinearWeight, NormWeight, RelativeBias, RotaryTable, Step, StepInputs, TableSlots, TextLimits,
};

/// Buffers grow by so many tokens.
const GROWTH: usize = 4096;

/// A loaded encoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Encoder {
    spec: EncoderSpec,
    weights: Weights,
    embed_scale: Option<f32>,
    dtype: DType,
    loras: ResidentLoras,
    inputs: StepInputs,
    limits: TextLimits,
    buffers: Buffers,
    /// What makes numbers of words of the states.
    words: Option<WordMaxima>,
}

#[derive(Debug)]
struct Weights {
    /// (vocab_size, hidden_size)
    tokens: LinearWeight,
    /// What adapters add to its rows.
    token_loras: TableSlots,
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
    stream: Stream,
    text: TextBuffers,
    /// (texts, hidden_size) states that are wanted, where they are not all.
    wanted: Tensor,
    /// What came from a GPU.
    on_host: Tensor,
}

impl Encoder {
    /// Packs the weights of a checkpoint, with those of a head over words if that is to follow, and
    /// makes buffers for steps of texts in these limits; `reserve` makes larger ones. Whoever
    /// opened the checkpoint has checked it, and finishes it.
    ///
    /// # Errors
    /// A weight is missing, memory does not suffice, or the device cannot run a layer.
    pub fn load(
        (spec, words): (EncoderSpec, Option<&MaskedLmSpec>),
        dtype: DType,
        device: &Device,
        checkpoint: &mut Checkpoint,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let max_model_len = limits.max_model_len;
        let mut loader = Loader { dtype, device, checkpoint };
        let positions = (spec.positions.as_ref(), spec.sinusoids.as_ref());
        let layers = spec.layers.iter().map(|layer| loader.layer(layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let weights = Weights {
            layers,
            tokens: loader.token_table(&spec.tokens)?,
            token_loras: TableSlots::default(),
            token_types: spec.token_types.as_ref().map(|table| loader.table(table)).transpose()?,
            positions: loader.positions(positions, max_model_len)?,
            embed_norm: loader.norm(spec.embed_norm.as_ref())?,
            bias: bias(&spec, &mut loader, max_model_len)?,
            final_norm: loader.norm(spec.final_norm.as_ref())?,
            ropes: spec
                .ropes
                .iter()
                .map(|rope| loading::rotary_table(device, rope, max_model_len))
                .collect::<Result<_, _>>()?,
        };
        let words = words.map(|words| WordMaxima::load(words, &mut loader, limits)).transpose()?;
        loading::prepare_layers(&weights.layers, device, limits.max_num_tokens)?;
        let inputs = StepInputs::of_texts(device, spec.heads(), limits)?;
        let width = words.as_ref().map_or(spec.hidden_size(), |words| words.largest.width());
        let buffers = Buffers::new((device, dtype), &spec, width, limits)?;
        let embed_scale = spec.embed_scale.map(|scale| scale.of_dtype(dtype));
        device.finish_loading()?;
        let loras = ResidentLoras::default();
        Ok(Self { spec, weights, embed_scale, dtype, loras, inputs, limits, buffers, words })
    }

    /// Texts may name these adapters from now on.
    ///
    /// # Errors
    /// The device takes no such adapters, or has no memory for them.
    pub fn set_loras(&mut self, device: &Device, loras: ResidentLoras) -> Result<(), EngineError> {
        let Self { weights, embed_scale, limits, buffers, .. } = self;
        let step = (&mut buffers.stream.loras, (limits.max_num_tokens, 0));
        loras.reserve(device, weights.adapted(*embed_scale), step)?;
        self.loras = loras;
        Ok(())
    }

    /// The adapters that texts may name.
    pub fn loras(&self) -> &ResidentLoras {
        &self.loras
    }

    /// Makes room for a step of so many tokens. Few texts of a model are as long as its context, so
    /// nothing is held for them before they come; a GPU has room for the longest from the start.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn reserve(&mut self, device: &Device, num_tokens: usize) -> Result<(), EngineError> {
        let Self { spec, dtype, limits, buffers, .. } = self;
        if num_tokens > limits.max_num_tokens {
            limits.max_num_tokens = num_tokens.next_multiple_of(GROWTH);
            let loras = std::mem::take(&mut buffers.stream.loras);
            *buffers = Buffers::new((device, *dtype), spec, buffers.on_host.width(), *limits)?;
            buffers.stream.loras = loras;
        }
        Ok(())
    }

    /// Runs texts, for which there is room: `batch` has their tokens with positions and types, and
    /// where each text begins; `given` are the embeddings of some; adapters are loaded. Gives what
    /// follows on the host:
    ///
    /// - with a head over words, the largest numbers (texts, words) of each text's tokens;
    /// - the states (tokens, hidden_size) after the last layer of the tokens in `logits_indices`,
    ///   one a text at most;
    /// - of all tokens, where there are none.
    ///
    /// # Errors
    /// The device failed, or an adapter cannot be loaded.
    pub fn forward(
        &mut self,
        device: &Device,
        batch: &Batch,
        given: &[GivenRows<'_>],
    ) -> Result<&Tensor, EngineError> {
        let Self { spec, weights, embed_scale, dtype, loras, inputs, buffers, words, .. } = self;
        let adapted = weights.adapted(*embed_scale);
        loras.begin_step(batch, (device, *dtype), adapted, &mut buffers.stream.loras)?;
        let longest = batch.query_start_loc.windows(2).map(|pair| pair[1] - pair[0]).max();
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(longest.unwrap_or(0) as usize));
        let (embed_scale, step) = (*embed_scale, inputs.step(device, batch));
        buffers.stream.loras.begin(device, step.num_rows(), 0);
        let pass = Pass { device, spec, weights, embed_scale, given, step };
        pass.run(buffers);
        let Buffers { stream, wanted, on_host, .. } = buffers;
        if let Some(words) = words {
            words.run(device, step, &stream.residual);
            return device.on_host(&words.largest, words.largest.num_rows(), on_host);
        }
        match batch.logits_indices.len() {
            0 => device.on_host(&stream.residual, batch.num_tokens(), on_host),
            num_wanted => device.on_host(wanted, num_wanted, on_host),
        }
    }
}

impl Weights {
    /// Where adapters' matrices go.
    fn adapted(&mut self, table_scale: Option<f32>) -> AdaptedWeights<'_> {
        let (layers, tokens) = (&mut self.layers, &mut self.token_loras);
        AdaptedWeights { layers, tokens, table: Some(&self.tokens), table_scale, lm_head: None }
    }
}

impl Buffers {
    fn new(
        (device, dtype): (&Device, DType),
        spec: &EncoderSpec,
        width_on_host: usize,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let size = (limits.max_num_tokens, spec.hidden_size());
        let wanted_rows = device.preallocated_rows(limits.max_num_texts);
        Ok(Self {
            stream: Stream::new((device, dtype), size, &spec.layers)?,
            text: TextBuffers::new((device, dtype), &spec.layers, spec.heads(), limits)?,
            wanted: device.tensor(wanted_rows, spec.hidden_size(), Precision::Full)?,
            on_host: Tensor::zeros(0, width_on_host),
        })
    }
}

/// One forward pass over one step.
struct Pass<'a> {
    device: &'a Device,
    spec: &'a EncoderSpec,
    weights: &'a Weights,
    embed_scale: Option<f32>,
    given: &'a [GivenRows<'a>],
    step: Step<'a>,
}

impl Pass<'_> {
    fn run(&self, buffers: &mut Buffers) {
        self.embed(buffers);
        let Self { device, spec, weights, step, .. } = *self;
        let Buffers { stream, text, wanted, .. } = &mut *buffers;
        let layers = (&spec.layers[..], &weights.layers[..]);
        let (ropes, bias) = (&weights.ropes[..], weights.bias.as_ref());
        TextLayers { device, layers, ropes, bias, is_causal: spec.is_causal, windows: None, step }
            .run(stream, text);
        let residual = &mut stream.residual;
        let states = match self.step.num_logits_rows() {
            0 => residual,
            num_wanted => {
                wanted.resize_rows(num_wanted);
                ops::gather_rows(device, residual, step.logits_indices(), wanted);
                wanted
            }
        };
        if let Some(norm) = &self.weights.final_norm {
            ops::norm_in_place(self.device, states, norm);
        }
    }

    /// residual = norm(scaled token embeddings or what is given + segments + positions), added in
    /// this order, as transformers adds them.
    fn embed(&self, buffers: &mut Buffers) {
        let Self { device, spec, weights, embed_scale, given, step } = self;
        let stream = &mut buffers.stream;
        stream.begin(*step);
        let Stream { residual, loras, .. } = stream;
        let ids = step.input_ids();
        ops::embedding(device, ids, &weights.tokens, *embed_scale, residual);
        loras.add_of_table(device, ids, &weights.token_loras, residual);
        for GivenRows { rows, from, .. } in *given {
            ops::replace_rows(device, *from, residual.rows_from_mut(rows.start), rows.len());
        }
        if let Some(table) = &weights.token_types {
            ops::add_rows_of(device, step.token_types(), 0, table, residual);
        }
        if let Some(table) = &weights.positions {
            let offset = spec.positions.as_ref().map_or(0, |positions| positions.offset);
            ops::add_rows_of(device, step.positions(), offset, table, residual);
        }
        if let Some(norm) = &weights.embed_norm {
            ops::norm_in_place(device, residual, norm);
        }
    }
}

/// What is added to scores: by T5's buckets of distances, or by ALiBi's slopes.
fn bias(
    spec: &EncoderSpec,
    loader: &mut Loader<'_>,
    max_len: usize,
) -> Result<Option<RelativeBias>, EngineError> {
    if let Some(spec) = &spec.relative_bias {
        return relative_bias(spec, loader, max_len)?.on_device(loader.device).map(Some);
    }
    let slopes = spec.attentions().find_map(|attention| attention.alibi_slopes.as_ref());
    let bias = slopes.map(|slopes| {
        let value = |head: usize, distance: isize| -slopes[head] * distance.unsigned_abs() as f32;
        RelativeBias::new(slopes.len(), max_len, value)
    });
    bias.map(|bias| bias.on_device(loader.device)).transpose()
}

/// The bias of every distance, from its bucket's.
fn relative_bias(
    spec: &RelativeBiasSpec,
    loader: &mut Loader<'_>,
    max_len: usize,
) -> Result<RelativeBias, EngineError> {
    let tensors: Vec<_> = spec.table.weights().collect();
    let (num_heads, table) = (spec.table.k, loader.checkpoint.matrices(&tensors)?[0].to_vec());
    let value = |head, distance| table[spec.bucket(distance) * num_heads + head];
    Ok(RelativeBias::new(num_heads, max_len, value))
}
