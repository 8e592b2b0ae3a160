//! The weights of a pooling model: its body, its head, and the modules behind them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::layer_file::LayerFile;
use super::lexical::Lexical;
use super::pooler::{Pooler, Sparse, TokenOutputs};
use super::splade::Splade;
use super::{PoolingSummary, SparseSpec};
use crate::engine::EngineError;
use crate::engine::config::{DeviceConfig, DeviceKind, EngineConfig, LoadFormat, ModelConfig};
use crate::engine::device::{self, Device};
use crate::engine::held_weights::{HeldWeights, quantization_notes};
use crate::engine::model::encoder::Encoder;
use crate::engine::model::encoders::{ClassifierHead, HeadStates};
use crate::engine::model::head::Head;
use crate::engine::model::weights::{self, Checkpoint};

/// A model on a device.
pub(super) struct Loaded {
    pub encoder: Encoder,
    pub pooler: Pooler,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// What was done otherwise than asked, for people to read.
    pub notes: Vec<String>,
}

/// Opens the device, and loads the model.
///
/// `token_ids`: of the tokens that its classifier is made with.
///
/// # Errors
/// The device is a GPU, the weights do not fit the spec, or memory does not suffice.
pub(super) fn load_model(
    config: &EngineConfig,
    summary: &PoolingSummary,
    token_ids: &[u32],
    given_up: &Arc<AtomicBool>,
) -> Result<(Arc<Device>, Loaded), EngineError> {
    let kind = match &config.device.kind {
        DeviceKind::Auto | DeviceKind::Cpu => DeviceKind::Cpu,
        DeviceKind::Cuda(_) | DeviceKind::CudaShim { .. } => {
            let text = "--device cuda: encoders run on the CPU alone; give --device cpu";
            return Err(EngineError::Config(text.to_owned()));
        }
    };
    let device = DeviceConfig { kind, ..config.device.clone() };
    let on_cpu = EngineConfig { device, ..config.clone() };
    let (device, _) = device::open(&on_cpu, summary.dtype, summary.spec.heads().head_dim)?;
    let checkpoint = match config.model.load_format {
        LoadFormat::Auto => summary.files.checkpoint(config.model.on_lost_file)?,
        LoadFormat::Dummy => Checkpoint::Dummy { seed: config.model.seed },
    };
    let linears = weights::linears_of_encoder(&summary.spec);
    let quantization = summary.quantization.as_ref();
    let mut checkpoint = checkpoint.until(given_up).quantized(quantization, linears)?;
    let max_num_tokens = config.scheduler.max_num_batched_tokens;
    let sizes = (summary.max_model_len, max_num_tokens);
    let mut loaded =
        load_weights(summary, &config.model, &device, &mut checkpoint, sizes, token_ids)?;
    checkpoint.finish()?;
    let pooler = &mut loaded.pooler;
    for layer in summary.layers_behind() {
        let layer = layer.load(&device, &config.model)?;
        pooler.head = Some(match pooler.head.take() {
            Some(before) => before.followed_by(layer),
            None => layer,
        });
    }
    if let Some(SparseSpec::Lexical(layer)) = &summary.sparse {
        pooler.sparse = Some(Sparse::Lexical(Lexical::new(layer.load(&device, &config.model)?)));
    }
    Ok((Arc::new(device), loaded))
}

/// What is made of the model's own weights, for texts and steps of so many tokens.
fn load_weights(
    summary: &PoolingSummary,
    config: &ModelConfig,
    device: &Device,
    checkpoint: &mut Checkpoint,
    sizes: (usize, usize),
    token_ids: &[u32],
) -> Result<Loaded, EngineError> {
    let (spec, dtype, (max_model_len, _)) = (&summary.spec, summary.dtype, sizes);
    let head = summary.classifier.as_ref().map(|classifier| &classifier.head);
    let splade = summary.sparse.as_ref().and_then(SparseSpec::splade);
    checkpoint.leave(spec.of_heads);
    let of_cache = checkpoint.leave_cache_scales();
    let mut tensors = spec.tensors();
    tensors.extend(splade.into_iter().flat_map(|splade| splade.head.tensors()));
    // Of an output layer a few rows at most are held.
    let mut read = tensors.clone();
    match head {
        Some(ClassifierHead::Tokens(_)) => read.extend(spec.output_tensors()),
        _ => spec.output_tensors().for_each(|tensor| checkpoint.leave_tensor(&tensor)),
    }
    if let Some(ClassifierHead::Layers(head)) = head {
        tensors.extend(head.tensors());
        read.extend(head.tensors());
    }
    checkpoint.check(&read, &spec.optional_tensors())?;
    let held = HeldWeights::of(device, checkpoint, (&tensors, &[]), dtype);
    let held = held.and_floats(summary.layers_behind().flat_map(LayerFile::tensors));
    held.refuse_without_memory(device)?;
    let of_quantization = summary.quantization.iter().flat_map(|quantization| {
        quantization_notes(quantization, config.load_format, (dtype, of_cache))
    });
    let choices = spec.ropes.iter().filter_map(|rope| rope.choice(max_model_len));
    let notes = choices.chain(held.note(dtype)).chain(of_quantization).collect();
    let encoder = Encoder::load(spec.clone(), dtype, device, checkpoint, sizes)?;
    let head = head.map(|head| match head {
        ClassifierHead::Layers(head) => Head::load(head, device, checkpoint),
        ClassifierHead::Tokens(classes) => {
            Head::of_tokens(spec, (token_ids, classes.method), device, checkpoint)
        }
    });
    let head = head.transpose()?;
    let splade = splade.map(|splade| Splade::load(splade, device, checkpoint)).transpose()?;
    let activation = summary.classifier.as_ref().map(|classifier| classifier.activation);
    let sparse = splade.map(Sparse::Splade);
    let outputs = match (summary.classifier.as_ref().map(|found| found.states), token_ids) {
        (Some(HeadStates::MeanOfEach), _) => TokenOutputs::Mean,
        (Some(HeadStates::Steps), &[id]) => TokenOutputs::Of(id),
        _ => TokenOutputs::All,
    };
    let pooler = Pooler { pooling: summary.pooling.clone(), head, sparse, activation, outputs };
    Ok(Loaded { encoder, pooler, weight_bytes: held.bytes(), notes })
}
