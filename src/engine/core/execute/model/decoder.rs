//! THE forward pass: once, for every family. It runs a `DecoderSpec` over the
//! flat token axis of a batch.

use std::ops::Range;

use super::cross::Sources;
use super::indexer::IndexerBuffers;
use super::inner_buffers::InnerBuffers;
use super::latent::LatentBuffers;
use super::layer_inputs::LayerInputs;
use super::loading::{self, DecoderWeights, Loader, OutputWeights};
use super::memory::MemoryBuffers;
use super::recurrent::RecurrentWeights;
use super::resident_loras::ResidentLoras;
use super::stage_rows::StageRows;
use super::stream::{Mixed, Stream};
use super::streams::{Streams, around_layer};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, DecoderSpec, KvSource, LinearSpec, RecurrentSpec, Stage,
};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::tensor::Rows;
use vllm_batch_device::{Device, KvCache, Precision, StateLayerMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::{Batch, PartCounts};
use vllm_batch_ops::{AttentionScratch, LargestOutputs, Step, StepInputs, StepLimits};

/// What is wanted of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The logits of the token after each.
    Logits,
    /// Their states after the last norm. No output layer is loaded.
    States,
}

impl Output {
    /// Values of a token.
    pub fn width(self, spec: &DecoderSpec) -> usize {
        match self {
            Output::Logits => spec.vocab_size(),
            Output::States => spec.hidden_size(),
        }
    }
}

/// Rows of a step that a tower gives, in the place of those of the table of tokens.
#[derive(Clone, Debug)]
pub struct GivenRows<'a> {
    /// Places in the flat axis.
    pub rows: Range<usize>,
    /// Embeddings (num_tokens, hidden_size) of what they are of, from the first that is here.
    pub from: Rows<'a>,
    /// The same of what is added to the stream behind each of the first layers.
    pub deep: Vec<Rows<'a>>,
}

/// A loaded decoder with the buffers of its forward pass.
#[derive(Debug)]
pub struct Decoder {
    spec: DecoderSpec,
    weights: DecoderWeights,
    embed_scale: Option<f32>,
    dtype: DType,
    /// Of each attention block, which layer of the cache has its K and V.
    cache_layers: Vec<usize>,
    /// Of each of these, which layer has the keys of its block's indexer.
    index_layers: Vec<Option<usize>>,
    loras: ResidentLoras,
    inputs: StepInputs,
    buffers: Buffers,
    part_counts: PartCounts,
}

/// Activations, allocated once for the largest step. T is max_num_tokens, L max_num_logits; a GPU
/// has some rows more, to pad with.
#[derive(Debug)]
struct Buffers {
    /// (T, embedding width), only with projections.
    embedded: Option<Tensor>,
    stream: Stream,
    /// Only where layers have inputs of their own.
    layer_inputs: Option<LayerInputs>,
    /// Only where there are several.
    streams: Option<Streams>,
    /// Only where layers share blocks that read the embeddings.
    memory: Option<MemoryBuffers>,
    attention: AttentionBuffers,
    /// (L, hidden_size) rows whose logits are wanted.
    last_residual: Tensor,
    /// (L, hidden_size)
    last_delta: Tensor,
    /// (L, hidden_size)
    last: Tensor,
    /// (L, embedding width), only with projections.
    projected: Option<Tensor>,
    /// Of a step that wants no more of its logits.
    likeliest: LargestOutputs,
}

/// What attention works in, and what stands in its place.
#[derive(Debug)]
pub(super) struct AttentionBuffers {
    /// (T, outputs of a block's first product)
    pub qkv: Tensor,
    /// (T, q, k and v), only where v is k, or narrower.
    pub with_values: Option<Tensor>,
    /// (T, num_heads * width of V heads), only where they are narrower than K heads.
    pub narrowed: Option<Tensor>,
    /// Only where K and V are latents.
    pub latent: Option<LatentBuffers>,
    /// Only where tokens attend to some of those before them.
    pub indexer: Option<IndexerBuffers>,
    /// Of blocks with states.
    inner: InnerBuffers,
    /// (T, num_heads * v_dim)
    pub attended: Tensor,
    pub scratch: AttentionScratch,
}

impl AttentionBuffers {
    /// Where so many rows of a block's first product go.
    pub(super) fn product(&mut self, num_rows: usize, spec: &LinearSpec) -> &mut Tensor {
        self.qkv.reshape(num_rows, spec.n());
        &mut self.qkv
    }
}

impl Buffers {
    /// What goes from stage to stage.
    fn crossing(&mut self) -> Vec<&mut Tensor> {
        let streams = self.streams.as_mut().map(Streams::values_mut);
        let inputs = self.layer_inputs.as_mut().map(LayerInputs::values_mut);
        let embedded = self.memory.as_mut().map(MemoryBuffers::embedded_mut);
        self.stream.crossing().chain(streams).chain(inputs).chain(embedded).collect()
    }

    fn new(
        (device, dtype): (&Device, DType),
        spec: &DecoderSpec,
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let hidden = spec.hidden_size();
        let widest = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or(0);
        let attended = spec.attentions().map(|block| block.heads.num_heads * block.v_dim());
        let linears = || spec.recurrents().map(RecurrentSpec::linears);
        let mixed = linears().map(|[_, out]| out.k);
        let attended_width = widest(&mut attended.chain(mixed));
        let first = spec.attentions().map(|attention| attention.qkv.n());
        let qkv_width = widest(&mut first.chain(linears().map(|[inputs, _]| inputs.n())));
        let makes_values =
            |a: &&AttentionSpec| a.kv == KvSource::ValuesAreKeys || a.narrow_v.is_some();
        let with_values = spec.attentions().filter(makes_values);
        let with_values = with_values.map(|attention| attention.heads.qkv_width());
        let narrowed = spec.attentions().filter(|a| a.narrow_v.is_some()).map(|a| a.out.k).max();
        let projected = spec.output.projection.as_ref().map(LinearSpec::n);
        let num_tokens = limits.max_num_tokens;
        let full = |rows: usize, width: usize| device.tensor(rows, width, Precision::Full);
        let per_token = |width: usize| device.tensor(num_tokens, width, Precision::Activation);
        // The CPU's grow when they are needed.
        let num_logits = match spec.stage.is_last {
            true => device.preallocated_rows(limits.max_num_logits),
            false => 0,
        };
        let per_logit = |width: usize| device.tensor(num_logits, width, Precision::Activation);
        Ok(Self {
            embedded: projected.map(per_token).transpose()?,
            stream: Stream::new((device, dtype), (num_tokens, hidden), &spec.layers)?.with_kept(
                device,
                (num_tokens, hidden),
                spec.stage.num_kept,
            )?,
            layer_inputs: LayerInputs::new(device, spec, num_tokens)?,
            streams: Streams::new(device, spec, num_tokens)?,
            memory: MemoryBuffers::new(device, spec, num_tokens)?,
            attention: AttentionBuffers {
                qkv: per_token(qkv_width)?,
                with_values: with_values.max().map(per_token).transpose()?,
                narrowed: narrowed.map(per_token).transpose()?,
                latent: LatentBuffers::new(device, spec, num_tokens)?,
                indexer: IndexerBuffers::new(device, spec, limits)?,
                inner: InnerBuffers::new(device, spec, num_tokens)?,
                attended: device.tensor(num_tokens, attended_width, attended_as(spec, dtype))?,
                scratch: AttentionScratch::default(),
            },
            last_residual: full(num_logits, hidden)?,
            last_delta: per_logit(hidden)?,
            last: per_logit(hidden)?,
            projected: projected.map(per_logit).transpose()?,
            likeliest: LargestOutputs::default(),
        })
    }
}

/// How attended values are held: as linear layers read them, if nothing else does.
fn attended_as(spec: &DecoderSpec, dtype: DType) -> Precision {
    let is_input = |block: &AttentionSpec| {
        let is_whole = block.gate.is_none() && block.latent.is_none() && block.narrow_v.is_none();
        is_whole && block.v_dim().is_multiple_of(2)
    };
    match spec.recurrents().next().is_none() && spec.attentions().all(is_input) {
        true => Precision::Attended(dtype),
        false => Precision::Activation,
    }
}

impl Decoder {
    /// Packs the weights of a checkpoint for a device. Whoever opened the checkpoint has checked
    /// it, and finishes it.
    ///
    /// # Errors
    /// A weight is missing, memory does not suffice, or the device cannot run a layer.
    pub fn load(
        (spec, output): (DecoderSpec, Output),
        dtype: DType,
        device: &Device,
        checkpoint: &mut Checkpoint,
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let max_model_len = limits.max_model_len;
        let loader = Loader { dtype, device, checkpoint };
        let weights = loading::load((&spec, output), loader, max_model_len)?;
        let embed_scale = spec.embedding.scale.map(|scale| scale.of_dtype(dtype));
        weights.prepare(device, limits)?;
        let inputs = StepInputs::new(device, limits)?;
        let buffers = Buffers::new((device, dtype), &spec, limits)?;
        device.finish_loading()?;
        let (cache_layers, index_layers) = (spec.cache_layers(), spec.index_layers());
        let loras = ResidentLoras::default();
        Ok(Self {
            spec,
            weights,
            embed_scale,
            dtype,
            cache_layers,
            index_layers,
            loras,
            inputs,
            buffers,
            part_counts: PartCounts::default(),
        })
    }

    /// Rows may name these adapters from now on, in steps within the limits that it was loaded
    /// with.
    ///
    /// # Errors
    /// The device takes no such adapters, or has no memory for them.
    pub fn set_loras(
        &mut self,
        device: &Device,
        loras: ResidentLoras,
        limits: StepLimits,
    ) -> Result<(), EngineError> {
        let Self { weights, embed_scale, buffers, .. } = self;
        let loras = loras.of_stage(self.spec.stage, self.spec.layers.len());
        let rows = (limits.max_num_tokens, limits.max_num_logits);
        let step = (&mut buffers.stream.loras, rows);
        loras.reserve(device, weights.adapted(*embed_scale), step)?;
        self.loras = loras;
        Ok(())
    }

    /// The adapters that rows may name.
    pub fn loras(&self) -> &ResidentLoras {
        &self.loras
    }

    /// Loads the adapters of a step, which is to be run next.
    ///
    /// # Errors
    /// One cannot be read, or memory does not suffice.
    pub fn load_loras(&mut self, device: &Device, batch: &Batch) -> Result<(), EngineError> {
        let Self { weights, embed_scale, dtype, loras, buffers, .. } = self;
        let weights = weights.adapted(*embed_scale);
        loras.begin_step(batch, (device, *dtype), weights, &mut buffers.stream.loras)
    }

    /// Steps whose attention was computed in parts.
    pub fn part_counts(&self) -> PartCounts {
        self.part_counts
    }

    /// Takes over a step's rows from the stage before, before the step is run.
    ///
    /// # Panics
    /// They are those of another model's stage.
    pub fn take_over(&mut self, device: &Device, rows: &StageRows) {
        rows.write(device, self.buffers.crossing());
    }

    /// The rows of the last step, of so many tokens, for the next stage.
    ///
    /// # Errors
    /// The device failed.
    pub fn hand_over(
        &mut self,
        device: &Device,
        num_tokens: usize,
    ) -> Result<StageRows, EngineError> {
        StageRows::read(device, self.buffers.crossing(), num_tokens)
    }

    /// The likeliest tokens of the last step, where it found these in place of logits; else empty.
    pub fn likeliest(&self) -> &[Option<u32>] {
        self.buffers.likeliest.of_rows()
    }

    /// What it runs.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Runs the batch, of which these rows are given: K and V of its tokens go into `cache`, the
    /// logits or states that it asks for into `logits` (num_logits, width), where a GPU's last rows
    /// are padding. Logits that nobody looks at are left out where the device finds the
    /// [likeliest](Self::likeliest) tokens.
    pub fn forward(
        &mut self,
        device: &Device,
        batch: &Batch,
        (given, sources): (&[GivenRows<'_>], Option<Sources<'_>>),
        cache: &mut KvCache,
        logits: &mut Tensor,
    ) {
        let Self { spec, weights, buffers, cache_layers, index_layers, inputs, .. } = self;
        let num_positions = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
        weights.ropes.iter_mut().for_each(|rope| rope.extend_to(num_positions));
        let step = inputs.step(device, batch);
        self.part_counts.add_step(step.has_parts());
        let embed_scale = self.embed_scale;
        ops::copy_blocks(device, step, cache);
        buffers.stream.loras.begin(device, step.num_rows(), step.num_logits_rows());
        let layers = (&**cache_layers, &**index_layers);
        let pass = Pass { device, spec, weights, layers, embed_scale, given, sources, step };
        pass.remember_states(cache, &mut buffers.attention);
        if sources.is_some() && batch.num_tokens() == 0 {
            // Nothing but states.
            buffers.likeliest.clear();
            return logits.resize_rows(0);
        }
        device.record_or_replay(step.graph_key(), &mut || pass.run(cache, buffers, logits));
        if spec.stage.is_last && buffers.likeliest.of_rows().is_empty() {
            logits.set_num_rows(step.num_logits_rows());
        }
    }
}

/// One forward pass over one step.
pub(super) struct Pass<'a> {
    pub device: &'a Device,
    pub spec: &'a DecoderSpec,
    pub weights: &'a DecoderWeights,
    /// Of the cache: of each attention block, and of the indexer of each of these.
    pub layers: (&'a [usize], &'a [Option<usize>]),
    embed_scale: Option<f32>,
    given: &'a [GivenRows<'a>],
    /// Of a model whose layers attend to some.
    pub sources: Option<Sources<'a>>,
    pub step: Step<'a>,
}

impl Pass<'_> {
    fn run(&self, cache: &mut KvCache, buffers: &mut Buffers, logits: &mut Tensor) {
        let Stage { first_layer, is_first, is_last, .. } = self.spec.stage;
        buffers.likeliest.clear();
        match is_first {
            true => self.embed(buffers),
            false => buffers.stream.begin(self.step),
        }
        let layers = self.spec.layers.iter().zip(&self.weights.layers).enumerate();
        let (mut index, mut state_index) = (0, 0);
        for (layer, (spec, weights)) in layers {
            let Buffers { stream, layer_inputs, streams, memory, attention, .. } = &mut *buffers;
            let mix_tokens = |stream: &mut Stream, mixed| {
                if mixed == Mixed::Source {
                    let block = spec.cross.as_ref().zip(weights.cross.as_ref());
                    let cache = cache.layer_mut(self.layers.0[index]);
                    return self.cross(block.expect("of such a layer"), cache, (stream, attention));
                }
                let scales = spec.scales;
                let mut memory = memory.as_mut().zip(weights.memory.as_ref());
                if let Some((buffers, weights)) = &mut memory {
                    let cache = cache.layer_mut(self.layers.0[index]);
                    self.remember((spec, weights), cache, (stream, attention, buffers));
                    buffers.swap(stream);
                }
                if let (Some(block), Some(weights)) = (&spec.recurrent, &weights.recurrent) {
                    let states = cache.state_layer_mut(state_index);
                    self.recurrent((block, weights), states, (stream, attention));
                    stream.scale_delta(self.device, scales.recurrent);
                }
                if let Some((buffers, _)) = &mut memory {
                    buffers.swap(stream);
                }
                let has_both = weights.attention.is_some() && weights.recurrent.is_some();
                if has_both {
                    stream.set_aside();
                }
                if let (Some(block), Some(weights)) = (&spec.attention, &weights.attention) {
                    let cache = cache.layer_mut(self.layers.0[index]);
                    self.attention((block, weights), cache, (stream, attention));
                    stream.scale_delta(self.device, scales.attention);
                }
                if has_both {
                    stream.add_what_is_aside(self.device);
                }
            };
            let beside = (streams.as_mut(), layer_inputs);
            let of_model = first_layer + layer;
            around_layer(self.device, (of_model, spec, weights), beside, stream, |stream| {
                stream.layer(self.device, (spec, weights), mix_tokens);
            });
            if let Some(scalar) = weights.scalar {
                stream.settle(self.device);
                ops::scale(self.device, &mut stream.residual, scalar);
            }
            for (given, deep) in self.given.iter().filter_map(|g| Some((g, g.deep.get(layer)?))) {
                stream.settle(self.device);
                let out = stream.residual.rows_from_mut(given.rows.start);
                ops::add_rows(self.device, *deep, out, given.rows.len());
            }
            index += usize::from(spec.attention.is_some());
            state_index += usize::from(spec.recurrent.is_some());
        }
        match is_last {
            false => buffers.stream.settle(self.device),
            true => self.end(buffers, logits),
        }
    }

    /// What the last stage gives.
    fn end(&self, buffers: &mut Buffers, logits: &mut Tensor) {
        if let Some((streams, weights)) =
            buffers.streams.as_mut().zip(self.weights.streams.as_ref())
        {
            streams.end(self.device, weights, &mut buffers.stream);
        }
        if self.step.num_logits_rows() > 0 {
            match &self.weights.output {
                Some(layers) => self.logits(layers, buffers, logits),
                None => self.states(buffers, logits),
            }
        }
    }

    /// residual = token embeddings (scaled, projected), or what is given, + position embeddings.
    fn embed(&self, buffers: &mut Buffers) {
        let Self { device, spec, weights, step, embed_scale, .. } = *self;
        let table = weights.embed_tokens.as_ref().expect("the first stage has it");
        let ids = step.input_ids();
        buffers.stream.begin(step);
        let Stream { residual, delta, loras, .. } = &mut buffers.stream;
        match (&weights.project_in, &mut buffers.embedded) {
            (Some(project_in), Some(embedded)) => {
                embedded.set_num_rows(step.num_rows());
                ops::embedding(device, ids, table, embed_scale, embedded);
                loras.add_of_table(device, ids, &weights.token_loras, embedded);
                // Through `delta`, whose type a GPU's linear layers write.
                ops::linear(device, embedded, project_in, delta);
                ops::fill_zero(device, residual, step.num_rows());
                ops::add(device, residual, delta);
            }
            _ => {
                ops::embedding(device, ids, table, embed_scale, residual);
                loras.add_of_table(device, ids, &weights.token_loras, residual);
            }
        }
        for GivenRows { rows, from, .. } in self.given {
            ops::replace_rows(device, *from, residual.rows_from_mut(rows.start), rows.len());
        }
        if let Some(table) = &weights.embed_positions {
            let positions = spec.embedding.positions.as_ref();
            let offset = positions.map_or(0, |positions| positions.offset);
            ops::add_rows_of(device, step.positions(), offset, table, residual);
        }
        if let Some(norm) = &weights.embed_norm {
            ops::norm_in_place(device, residual, norm);
        }
        if let Some(memory) = &mut buffers.memory {
            memory.begin(device, residual);
        }
        let of_layers = spec.embedding.of_layers.as_ref().zip(weights.layer_inputs.as_ref());
        if let Some((inputs, parts)) = buffers.layer_inputs.as_mut().zip(of_layers) {
            inputs.begin(device, parts, (step, &buffers.stream.residual));
        }
        if let Some((streams, weights)) = buffers.streams.as_mut().zip(weights.streams.as_ref()) {
            streams.begin(device, weights, &buffers.stream.residual);
        }
    }

    /// Sum and final norm, for the wanted rows only.
    fn states(&self, buffers: &mut Buffers, states: &mut Tensor) {
        let Self { device, weights, step, .. } = *self;
        let (indices, num_rows) = (step.logits_indices(), step.num_logits_rows());
        let Buffers { stream, last_delta, .. } = buffers;
        states.resize_rows(num_rows);
        ops::gather_rows(device, &stream.residual, indices, states);
        if stream.has_delta {
            last_delta.resize_rows(num_rows);
            ops::gather_rows(device, &stream.delta, indices, last_delta);
            ops::add(device, states, last_delta);
        }
        if let Some(norm) = &weights.final_norm {
            ops::norm_in_place(device, states, norm);
        }
    }

    /// Final norm and output layer, for the wanted rows only: their logits, or the likeliest tokens
    /// if nothing comes after the layer and that is enough.
    fn logits(&self, layers: &OutputWeights, buffers: &mut Buffers, logits: &mut Tensor) {
        let Self { device, spec, weights, step, .. } = *self;
        let (indices, num_rows) = (step.logits_indices(), step.num_logits_rows());
        let Buffers { stream, last_residual, last_delta, last, projected, likeliest, .. } = buffers;
        last_residual.resize_rows(num_rows);
        last_delta.resize_rows(num_rows);
        last.resize_rows(num_rows);
        ops::gather_rows(device, &stream.residual, indices, last_residual);
        ops::gather_rows(device, &stream.delta, indices, last_delta);
        let last_delta = stream.has_delta.then_some(&*last_delta);
        match &weights.final_norm {
            Some(norm) => ops::add_norm(device, last_residual, last_delta, norm, last),
            None => {
                if let Some(last_delta) = last_delta {
                    ops::add(device, last_residual, last_delta);
                }
                ops::copy(device, last_residual, last);
            }
        }
        let head = weights.head(layers);
        let input = match (&layers.projection, projected) {
            (Some(project_out), Some(projected)) => {
                projected.resize_rows(num_rows);
                ops::linear(device, last, project_out, projected);
                if let Some((activation, norm)) = &layers.after_projection {
                    ops::activate(device, *activation, projected);
                    ops::norm_in_place(device, projected, norm);
                }
                projected
            }
            _ => last,
        };
        let is_plain = spec.output.scale.is_none() && spec.output.soft_cap.is_none();
        if is_plain && step.batch.wants_likeliest && step.batch.loras.is_empty() {
            likeliest.compute(device, input, head);
            if !likeliest.of_rows().is_empty() {
                return;
            }
        }
        logits.resize_rows(num_rows);
        ops::linear(device, input, head, logits);
        stream.loras.add_to_logits(device, input, &layers.loras, logits);
        if let Some(scale) = spec.output.scale {
            ops::scale(device, logits, scale);
        }
        if let Some(cap) = spec.output.soft_cap {
            ops::soft_cap(device, cap, logits);
        }
    }

    /// A block that goes from token to token with a state.
    fn recurrent(
        &self,
        (spec, weights): (&RecurrentSpec, &RecurrentWeights),
        states: StateLayerMut<'_>,
        (stream, buffers): (&mut Stream, &mut AttentionBuffers),
    ) {
        let Self { device, step, .. } = *self;
        let AttentionBuffers { qkv: products, inner, attended: mixed, .. } = buffers;
        let [inputs, _] = spec.linears();
        stream.first_product(device, &weights.norms, (inputs, &weights.inputs), products);
        weights.mix(device, (products, step), states, (inner, mixed));
        stream.last_product(device, mixed, &weights.out);
    }
}
