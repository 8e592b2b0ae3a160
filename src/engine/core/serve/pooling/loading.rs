//! The weights of a pooling model: its body, its head, and the modules behind them; and where they
//! run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::body::{Body, Texts};
use super::cached_texts::CachedTexts;
use super::layer_file::LayerFile;
use super::lexical::Lexical;
use super::pictures::Pictures;
use super::pooler::{Pooler, Sparse, TokenOutputs};
use super::splade::Splade;
use super::whole_texts::WholeTexts;
use super::{PoolingSummary, SparseSpec};
use crate::execute::encoded_media::{EncodedMedia, Towers};
use crate::execute::executor::Executor;
use crate::execute::model::decoder::Output;
use crate::execute::model::encoder::Encoder;
use crate::execute::model::head::Head;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::execute::model_executor::{self, DecoderToLoad, ModelExecutor};
use crate::load::held_weights::{HeldWeights, read_as_values};
use crate::load::step_sizes::StepSizes;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{EngineConfig, LoadFormat};
use vllm_batch_checkpoint::adapter::LoraPlaces;
use vllm_batch_checkpoint::encoders::{ClassifierHead, HeadStates};
use vllm_batch_checkpoint::spec::{
    BesideTable, EncoderSpec, ImageText, LinearSpec, TextEnd, TowerSpec,
};
use vllm_batch_checkpoint::weights::{self, Checkpoint};
use vllm_batch_device as device;
use vllm_batch_device::{Device, WhyCpu};
use vllm_batch_ops::TextLimits;
use vllm_batch_ops::batch::Batch;
use vllm_batch_ops::{GpuNeeds, HeadWidths};

/// Where the parts of a model run.
pub(super) struct Devices {
    /// The body.
    pub body: Arc<Device>,
    /// What follows it, which stays on the host; the same where that has the body too.
    pub host: Arc<Device>,
}

impl Devices {
    /// Opens what the configuration asks for, and says in one line why `auto` took the CPU.
    ///
    /// # Errors
    /// It cannot be used.
    fn open(
        config: &EngineConfig,
        summary: &PoolingSummary,
    ) -> Result<(Self, Option<WhyCpu>), EngineError> {
        let needs = match summary.cached() {
            Some(decoder) => GpuNeeds { vocab_size: 0, ..model_executor::gpu_needs_of(&decoder) },
            None => {
                let head_dim = summary.spec.heads().head_dim;
                let heads = vec![HeadWidths { head_dim, ..HeadWidths::default() }];
                let without_kernels = summary.tower.as_ref().map(|tower| match tower.text {
                    ImageText::Alone => "a tower that makes vectors of images",
                    _ => "a tower beside tokens that all see each other",
                });
                GpuNeeds { heads, is_of_texts: true, without_kernels, ..GpuNeeds::default() }
            }
        };
        let (body, why_cpu) = needs.open_device(config, summary.dtype)?;
        summary.sides(config).check_on(&body, why_cpu.as_ref())?;
        let body = Arc::new(body);
        let host = match &*body {
            Device::Cpu(_) => Arc::clone(&body),
            Device::Cuda(_) => Arc::new(device::open_host(config)?),
        };
        Ok((Self { body, host }, why_cpu))
    }

    /// Names the sets of kernels in use: outputs are equal only within them.
    pub(super) fn kernel_set(&self) -> String {
        match Arc::ptr_eq(&self.body, &self.host) {
            true => self.body.kernel_set(),
            false => format!("{}+{}", self.body.kernel_set(), self.host.kernel_set()),
        }
    }
}

/// A model on its devices.
pub(super) struct Loaded {
    pub body: Body,
    pub pooler: Pooler,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    pub cache: CacheSize,
    /// Why the device is the CPU.
    pub why_cpu: Option<WhyCpu>,
    /// What was done otherwise than asked, for people to read.
    pub notes: Vec<String>,
}

/// The KV cache, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheSize {
    pub num_tokens: usize,
    /// Tokens of a block.
    pub block_size: usize,
    pub num_bytes: usize,
    /// Tokens that the host's memory holds for it.
    pub num_offloaded_tokens: usize,
}

/// Opens the devices, and loads the model.
///
/// `token_ids`: of the tokens that its classifier is made with.
///
/// # Errors
/// The device cannot be used, the weights do not fit the spec, or memory does not suffice.
pub(super) fn load_model(
    config: &EngineConfig,
    sizes: &StepSizes,
    summary: &PoolingSummary,
    token_ids: &[u32],
    given_up: &Arc<AtomicBool>,
) -> Result<(Devices, Loaded), EngineError> {
    let (devices, why_cpu) = Devices::open(config, summary)?;
    let checkpoint = match config.model.load_format {
        LoadFormat::Auto => summary.files.checkpoint(config.model.on_lost_file)?,
        LoadFormat::Dummy => Checkpoint::dummy(config.model.seed),
    };
    let of_tower = summary.tower.iter().flat_map(weights::linears_of_tower);
    let linears = weights::linears_of_encoder(&summary.spec).chain(of_tower);
    let quantization = summary.quantization.as_ref();
    let mut checkpoint = checkpoint.until(given_up).quantized(quantization, linears)?;
    let mut loaded = load_weights(config, sizes, summary, &devices, &mut checkpoint, token_ids)?;
    checkpoint.finish()?;
    let pooler = &mut loaded.pooler;
    for layer in summary.layers_behind() {
        for head in pooler.heads_of_loras.values_mut() {
            head.extend(layer.load(&devices.host, &config.model)?);
        }
        let layer = layer.load(&devices.host, &config.model)?;
        pooler.head = Some(match pooler.head.take() {
            Some(before) => before.followed_by(layer),
            None => layer,
        });
    }
    if let Some(SparseSpec::Lexical(layer)) = &summary.sparse {
        let layer = layer.load(&devices.host, &config.model)?;
        pooler.sparse = Some(Sparse::Lexical(Lexical::new(layer)));
    }
    loaded.why_cpu = why_cpu;
    Ok((devices, loaded))
}

/// Runs a text of two tokens, so that a GPU has compiled its kernels before the first row.
fn warm_up(encoder: &mut Encoder, device: &Device) -> Result<(), EngineError> {
    let batch = Batch {
        input_ids: vec![0; 2],
        positions: vec![0, 1],
        token_types: vec![0; 2],
        logits_indices: vec![0],
        query_start_loc: vec![0, 2],
        ..Batch::default()
    };
    encoder.forward(device, &batch, &[])?;
    Ok(())
}

/// What is made of the model's own weights.
fn load_weights(
    config: &EngineConfig,
    sizes: &StepSizes,
    summary: &PoolingSummary,
    devices: &Devices,
    checkpoint: &mut Checkpoint,
    token_ids: &[u32],
) -> Result<Loaded, EngineError> {
    let Devices { body: device, host } = devices;
    let (spec, dtype) = (&summary.spec, summary.dtype);
    let head = summary.classifier.as_ref().map(|classifier| &classifier.head);
    let splade = summary.sparse.as_ref().and_then(SparseSpec::splade);
    leave_unused(checkpoint, spec, summary.tower.as_ref());
    let of_cache = checkpoint.leave_cache_scales();
    let mut tensors = spec.tensors();
    tensors.extend(summary.tower.iter().flat_map(TowerSpec::tensors));
    tensors.extend(splade.into_iter().flat_map(|splade| splade.head.tensors()));
    // Of an output layer a few rows at most are held.
    let mut read = tensors.clone();
    match head {
        Some(ClassifierHead::Tokens(_)) => read.extend(spec.output_tensors()),
        _ => spec.output_tensors().for_each(|tensor| checkpoint.leave_tensor(&tensor)),
    }
    let layers = summary.head_layers();
    tensors.extend(layers.iter().flat_map(|head| head.tensors()));
    read.extend(layers.iter().flat_map(|head| head.tensors()));
    checkpoint.check(&read, &spec.optional_tensors())?;
    let tables = [&spec.tokens].into_iter();
    let tables = read_as_values(device, checkpoint, dtype, tables, spec.experts());
    let held = HeldWeights::of(device, checkpoint, (&tensors, &tables), dtype);
    let held = held.and_floats(summary.layers_behind().flat_map(LayerFile::tensors));
    held.refuse_without_memory(device)?;
    let of_quantization = summary.quantization.iter().flat_map(|quantization| {
        held.quantization_notes(quantization, config.model.load_format, (dtype, of_cache))
    });
    let choices = spec.ropes.iter().filter_map(|rope| rope.choice(summary.max_model_len));
    let notes = choices.chain(held.note(dtype)).chain(of_quantization);
    let on = (device, held.bytes());
    let (body, cache, of_body) = load_body(config, sizes, summary, on, checkpoint)?;
    let notes = notes.chain(of_body).collect();
    let mut heads_of_loras = HashMap::new();
    if let Some(head) = summary.head_layers() {
        for (lora, saved) in body.loras().saved_layers()? {
            heads_of_loras.insert(lora, Head::load_with(head, &saved, host, checkpoint)?);
        }
    }
    let head = match (head, layers) {
        (Some(ClassifierHead::Tokens(classes)), _) => {
            Some(Head::of_tokens(spec, (token_ids, classes.method), host, checkpoint)?)
        }
        (_, layers) => layers.map(|head| Head::load(head, host, checkpoint)).transpose()?,
    };
    let splade = splade.map(|splade| Splade::load(splade, checkpoint)).transpose()?;
    let activation = summary.classifier.as_ref().map(|classifier| classifier.activation);
    let sparse = splade.map(Sparse::Splade);
    let outputs = match (summary.classifier.as_ref().map(|found| found.states), token_ids) {
        (Some(HeadStates::MeanOfEach), _) => TokenOutputs::Mean,
        (Some(HeadStates::Steps), &[id]) => TokenOutputs::Of(id),
        _ => TokenOutputs::All,
    };
    let pooler = Pooler {
        pooling: summary.pooling.clone(),
        head,
        heads_of_loras,
        sparse,
        activation,
        outputs,
    };
    Ok(Loaded { body, pooler, weight_bytes: held.bytes(), cache, why_cpu: None, notes })
}

/// Leaves the tensors that only a decoder, or another head, would use.
fn leave_unused(checkpoint: &mut Checkpoint, spec: &EncoderSpec, tower: Option<&TowerSpec>) {
    match tower {
        None => checkpoint.leave(spec.of_heads),
        Some(tower) => {
            checkpoint.leave(&tower.unused.iter().map(String::as_str).collect::<Vec<_>>())
        }
    };
    let further = spec.output.iter().flat_map(|output| &output.of_further_tokens);
    let unused = further.chain(spec.attentions().flat_map(|attention| &attention.unused));
    checkpoint.leave(&unused.map(String::as_str).collect::<Vec<_>>());
    let beside = spec.output.iter().map(|output| &output.beside_table);
    for table in beside {
        if let BesideTable::Copy(copy) = table {
            checkpoint.leave_tensor(copy);
        }
    }
}

/// The body on its device, with its KV cache if it has one, and notes on that.
fn load_body(
    config: &EngineConfig,
    sizes: &StepSizes,
    summary: &PoolingSummary,
    (device, weight_bytes): (&Arc<Device>, u64),
    checkpoint: &mut Checkpoint,
) -> Result<(Body, CacheSize, Vec<String>), EngineError> {
    let PoolingSummary { dtype, max_model_len, .. } = *summary;
    let towers = Towers { images: summary.tower.as_ref(), ..Towers::default() };
    let mut media = EncodedMedia::load(config, towers, (dtype, device), checkpoint)?;
    let Some(spec) = summary.cached() else {
        let places = LoraPlaces::of_encoder(&summary.spec);
        let places = summary.head_layers().into_iter().fold(places, LoraPlaces::with_head);
        let loras = ResidentLoras::open(config, &places, checkpoint)?;
        let texts = match summary.spec.reads_texts {
            false => Texts::None(Box::new(loras)),
            true => {
                let mut encoder = load_encoder(sizes, summary, device, checkpoint)?;
                encoder.set_loras(device, loras)?;
                let num_token_types = summary.spec.token_types.as_ref().map_or(0, LinearSpec::n);
                // One tower makes tokens of texts, or rows of their own.
                let media = media.take_if(|_| summary.picture_tower().is_none());
                let texts = WholeTexts::new(encoder, media, num_token_types, sizes);
                Texts::Whole(Box::new(texts))
            }
        };
        let pictures = media.map(|media| Pictures::new(media, sizes.max_num_seqs));
        return Ok((Body { texts, pictures }, CacheSize::default(), Vec::new()));
    };
    let (output, states) = (Output::States, (summary.counted(), spec.hidden_size()));
    let places = LoraPlaces::of_decoder(&spec);
    let places = summary.head_layers().into_iter().fold(places, LoraPlaces::with_head);
    let decoder = DecoderToLoad {
        spec,
        output,
        dtype,
        max_model_len,
        weight_bytes,
        media,
        places,
        seat: None,
    };
    let mut executor =
        ModelExecutor::of_checkpoint(config, sizes, decoder, Arc::clone(device), checkpoint)?;
    if device.runs_ahead() {
        let shape = executor.cache_shape();
        let batch = Batch::warm_up(shape.num_blocks, shape.block_size);
        executor.execute(&batch).map_err(|error| EngineError::Device(error.0))?;
    }
    let (shape, notes) = (executor.cache_shape(), executor.take_notes());
    let element_bytes = config.cache.kv_cache_dtype.size_bytes(dtype);
    let cache = CacheSize {
        num_tokens: shape.num_tokens(),
        block_size: shape.block_size,
        num_bytes: shape.num_bytes(element_bytes),
        num_offloaded_tokens: executor.num_host_blocks() * shape.block_size,
    };
    let texts = CachedTexts::new(executor, &config.cache, sizes, max_model_len, states);
    let body = Body { texts: Texts::Cached(Box::new(texts)), pictures: None };
    Ok((body, cache, notes))
}

fn load_encoder(
    sizes: &StepSizes,
    summary: &PoolingSummary,
    device: &Device,
    checkpoint: &mut Checkpoint,
) -> Result<Encoder, EngineError> {
    // Short texts are filled up, whatever length was asked for.
    let longest = match summary.spec.ends_at {
        Some(TextEnd::Filled(len)) => len,
        _ => summary.max_model_len,
    };
    let limits = TextLimits {
        // A text goes through a GPU in one piece, in buffers that are there from the start.
        max_num_tokens: sizes.max_num_batched_tokens.max(device.preallocated_rows(longest)),
        max_num_texts: sizes.max_num_seqs,
        max_num_logits: sizes.max_num_seqs,
        max_model_len: longest,
        has_axes: false,
    };
    let words = summary.sparse.as_ref().and_then(SparseSpec::splade).map(|splade| &splade.head);
    let parts = (summary.spec.clone(), words);
    let mut encoder = Encoder::load(parts, summary.dtype, device, checkpoint, limits)?;
    if device.runs_ahead() {
        warm_up(&mut encoder, device)?;
    }
    Ok(encoder)
}
