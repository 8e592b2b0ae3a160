//! `ModelExecutor`: a decoder with its KV cache on a device.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::cache_size::{add_host_blocks, allocate, cache_shape};
use super::encoded_media::{EncodedMedia, Towers};
use super::executor::{Executor, ExecutorError, Logits};
use super::model::decoder::{Decoder, Output};
use super::model::resident_loras::ResidentLoras;
use super::model::stage_rows::StageRows;
use super::pipeline::Seat;
use super::source_step::SourceStep;
use super::tensor_parallel::OtherRanks;
use crate::load::held_weights::{HeldWeights, read_as_values};
use crate::load::model_summary::{self, ModelSummary};
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use vllm_batch_base::config::{CacheConfig, DType, EngineConfig, LoadFormat, PrefillKernel};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint::adapter::LoraPlaces;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, BesideTable, DecoderSpec, NamedShape, RopeSpec, SoundTowerSpec, TowerSpec,
};
use vllm_batch_checkpoint::weights::{self, Checkpoint};
use vllm_batch_device::kv_cache::KvCacheShape;
use vllm_batch_device::{Device, KvCache, Precision, Tensor};
use vllm_batch_ops::batch::{Batch, LoraCounts, PartCounts};
use vllm_batch_ops::{GpuNeeds, HeadWidths, StepLimits, prefill_by_wgmma};

/// Runs a decoder over batches.
pub struct ModelExecutor {
    device: Arc<Device>,
    decoder: Decoder,
    /// Of a model that sees images, or hears.
    media: Option<EncodedMedia>,
    /// Of one whose prompts begin with states of a sound.
    source: Option<SourceStep>,
    cache: KvCache,
    /// (num_logits, vocab_size), or states (num_logits, hidden_size)
    logits: Tensor,
    weight_bytes: u64,
    /// Of tensors that stay codes, by name.
    code_bytes: Arc<HashMap<String, u64>>,
    notes: Vec<String>,
    /// Who computes the model with this; None: nobody.
    others: Option<OtherRanks>,
}

/// A decoder that is to be loaded.
pub struct DecoderToLoad {
    /// Its shape.
    pub spec: DecoderSpec,
    /// What is wanted of its tokens.
    pub output: Output,
    /// Type of weights and KV cache.
    pub dtype: DType,
    /// Longest sequence, in tokens.
    pub max_model_len: usize,
    /// Bytes that its weights take, for people to read.
    pub weight_bytes: u64,
    /// What makes embeddings of images, of a model that sees; loaded first, since the KV cache
    /// takes a share of the memory that is left.
    pub media: Option<EncodedMedia>,
    /// Layers that adapters may name, those of other stages too.
    pub places: LoraPlaces,
    /// Where it meets those that have equally many blocks in the KV cache; None: nobody has to.
    pub seat: Option<Seat>,
}

/// A stage of a model that is to be loaded.
pub struct StageToLoad {
    /// Its layers.
    pub layers: Range<usize>,
    /// Where it meets the other stages; None: there is one.
    pub seat: Option<Seat>,
}

impl DecoderToLoad {
    pub(super) fn block_size(&self, cache: &CacheConfig) -> usize {
        model_summary::block_size(cache, &self.spec, (self.dtype, self.max_model_len))
    }
}

impl ModelExecutor {
    /// Loads the weights, then gives the KV cache its share of the memory that is left. Once
    /// `given_up` is set it fails soon.
    ///
    /// # Errors
    /// The weights do not fit the spec, or the memory does not hold a useful KV cache.
    pub fn load(
        config: &EngineConfig,
        sizes: &StepSizes,
        summary: &ModelSummary,
        device: Arc<Device>,
        given_up: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let whole = StageToLoad { layers: 0..summary.spec.layers.len(), seat: None };
        Self::load_stage(config, sizes, summary, whole, device, given_up)
    }

    /// The same of a stage of the model. Whoever loads the first one checks all weights.
    ///
    /// # Errors
    /// As `load`, or another stage cannot be loaded.
    pub fn load_stage(
        config: &EngineConfig,
        sizes: &StepSizes,
        summary: &ModelSummary,
        stage: StageToLoad,
        device: Arc<Device>,
        given_up: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let ModelSummary { dtype, max_model_len, .. } = *summary;
        let (whole, quantization) = (&summary.spec, summary.quantization.as_ref());
        let spec = whole.of_stage(stage.layers);
        let checkpoint = match config.model.load_format {
            LoadFormat::Auto => summary.files.checkpoint(config.model.on_lost_file)?,
            LoadFormat::Dummy => Checkpoint::dummy(config.model.seed),
        };
        let sounds = summary.sound_tower.as_ref();
        let of_tower = summary.tower.iter().flat_map(weights::linears_of_tower);
        let of_tower = of_tower.chain(sounds.into_iter().flat_map(weights::linears_of_sound_tower));
        let linears = weights::linears_of_decoder(whole).chain(of_tower);
        let mut checkpoint = checkpoint.until(given_up).quantized(quantization, linears)?;
        let tower = summary.tower.as_ref();
        let num_left = leave_unused(&mut checkpoint, whole, Towers { images: tower, sounds });
        let of_cache = checkpoint.leave_cache_scales();
        let of_sounds = || sounds.into_iter().flat_map(SoundTowerSpec::tensors);
        let of_tower = || tower.iter().flat_map(|tower| tower.tensors()).chain(of_sounds());
        let all: Vec<_> = whole.tensors().into_iter().chain(of_tower()).collect();
        let optional: Vec<_> = whole.optional_tensors().map(|(tensor, _)| tensor).collect();
        checkpoint.check(&all, &optional)?;
        let towers = match spec.stage.is_first {
            true => Towers { images: tower, sounds },
            false => Towers::default(),
        };
        let tensors = match spec.stage.is_whole() {
            true => all,
            false => leave_elsewhere(&mut checkpoint, (&spec, towers), all.iter().chain(&optional)),
        };
        let tables = read_as_values(&device, &checkpoint, dtype, spec.tables(), spec.experts());
        let mut held = HeldWeights::of(&device, &checkpoint, (&tensors, &tables), dtype);
        held.refuse_without_memory(&device)?;
        let of_head = spec.output.note_of_head();
        let choices: Vec<_> =
            spec.ropes.iter().filter_map(|rope| rope.choice(max_model_len)).collect();
        let elsewhere = spec.num_weights_elsewhere() * dtype.size_bytes() as u64;
        let (output, weight_bytes) = (Output::Logits, held.bytes() - elsewhere);
        let code_bytes = Arc::new(held.take_code_bytes());
        let (places, seat) = (LoraPlaces::of_decoder(whole), stage.seat);
        let media = EncodedMedia::load(config, towers, (dtype, &device), &mut checkpoint)?;
        let decoder =
            DecoderToLoad { spec, output, dtype, max_model_len, weight_bytes, media, places, seat };
        let loaded = Self::of_checkpoint(config, sizes, decoder, device, &mut checkpoint)?;
        checkpoint.finish()?;
        let left = notes_of_left(num_left);
        let of_quantization = quantization.into_iter().flat_map(|quantization| {
            held.quantization_notes(quantization, config.model.load_format, (dtype, of_cache))
        });
        let notes = choices
            .into_iter()
            .chain(of_head)
            .chain(held.note(dtype))
            .chain(left)
            .chain(of_quantization)
            .chain(note_of_media(config, summary.tower.is_some() || sounds.is_some()));
        Ok(Self { notes: notes.chain(loaded.notes).collect(), code_bytes, ..loaded })
    }

    /// The same of a checkpoint that was checked, and that the caller finishes. Its notes are of
    /// the KV cache.
    ///
    /// # Errors
    /// As `load`.
    pub fn of_checkpoint(
        config: &EngineConfig,
        sizes: &StepSizes,
        decoder: DecoderToLoad,
        device: Arc<Device>,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let DecoderToLoad { ref spec, output, dtype, weight_bytes, .. } = decoder;
        let limits = step_limits(sizes, &config.cache, &decoder);
        let loras = ResidentLoras::open(config, &decoder.places, checkpoint)?;
        let logits_rows = match spec.stage.is_last {
            true => device.preallocated_rows(limits.max_num_logits),
            false => 0,
        };
        let logits = device.tensor(logits_rows, output.width(spec), Precision::Full)?;
        let mut loaded = Decoder::load((spec.clone(), output), dtype, &device, checkpoint, limits)
            .map_err(|error| of_step_size(error, limits.max_num_tokens))?;
        loaded.set_loras(&device, loras, limits)?;
        let mut shape = cache_shape(&config.cache, sizes, &device, &decoder)?;
        if let Some(seat) = decoder.seat {
            shape.num_blocks = seat.agree(shape.num_blocks)?;
        }
        let (mut cache, shrunk) = allocate(&device, shape, dtype, &config.cache)?;
        add_host_blocks(&mut cache, &config.cache, &device)?;
        if config.device.prefill_kernel == PrefillKernel::Wgmma {
            let head_dims: BTreeSet<_> =
                spec.attentions().map(|attention| attention.heads.head_dim).collect();
            prefill_by_wgmma(&device, &Vec::from_iter(head_dims))?;
        }
        let notes = shrunk.into_iter().collect();
        let source = spec.source().map(|source| SourceStep::new(source, limits.block_size));
        Ok(Self {
            device,
            decoder: loaded,
            media: decoder.media,
            source,
            cache,
            logits,
            weight_bytes,
            code_bytes: Arc::default(),
            notes,
            others: None,
        })
    }

    /// Steps may have media of this table from now on, if the model sees any.
    pub fn set_media_table(&mut self, table: Arc<MediaTable>) {
        if let Some(media) = &mut self.media {
            media.set_table(table);
        }
    }

    /// Runs every step with these ranks from now on, which have the rest of the model.
    pub fn run_steps_with(&mut self, others: OtherRanks) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
        self.notes.push(format!(
            "{} GPUs compute one model, each with {:.1} MiB of weights",
            others.num_ranks(),
            mib(self.weight_bytes)
        ));
        self.others = Some(others);
    }

    /// Devices that run its steps.
    pub fn num_ranks(&self) -> usize {
        self.others.as_ref().map_or(1, OtherRanks::num_ranks)
    }

    /// Runs a step of a stage, whose rows come from the stage before, if there is one. Returns
    /// those for the next one; None: this is the last, and has logits.
    ///
    /// # Errors
    /// The device failed.
    pub fn run_stage(
        &mut self,
        batch: &Batch,
        from: Option<&StageRows>,
    ) -> Result<Option<StageRows>, ExecutorError> {
        let mut run = || -> Result<_, EngineError> {
            if let Some(rows) = from {
                self.decoder.take_over(&self.device, rows);
            }
            self.run(batch)?;
            match self.decoder.spec().stage.is_last {
                true => Ok(None),
                false => self.decoder.hand_over(&self.device, batch.num_tokens()).map(Some),
            }
        };
        run().map_err(|error| ExecutorError(error.to_string()))
    }

    /// What the last step gave.
    pub fn logits(&mut self) -> Logits<'_> {
        Logits { likeliest: self.decoder.likeliest(), tensor: &mut self.logits }
    }

    /// Runs a step on the device of its own.
    fn run(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.decoder.load_loras(&self.device, batch)?;
        let given = match &mut self.media {
            Some(media) if !batch.media.is_empty() => {
                media.encode(&self.device, batch)?;
                media.rows_of(batch)
            }
            _ => Vec::new(),
        };
        let is_first = self.decoder.spec().stage.is_first;
        assert!(
            !is_first || given.len() == batch.media.len(),
            "a model without a tower has no media"
        );
        let Self { device, decoder, source, cache, logits, .. } = self;
        match source {
            None => decoder.forward(device, batch, (&given, None), cache, logits),
            Some(source) => {
                source.split(device, batch, &given)?;
                let (tokens, sources) = source.parts();
                decoder.forward(device, tokens, (&[], Some(sources)), cache, logits);
            }
        }
        self.device.check()
    }

    /// What was done otherwise than asked, for people to read.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Bytes of the tensors of which the device keeps the codes, by name.
    pub fn code_bytes(&self) -> Arc<HashMap<String, u64>> {
        Arc::clone(&self.code_bytes)
    }

    /// The adapters that rows may name.
    pub fn loras(&self) -> &ResidentLoras {
        self.decoder.loras()
    }

    /// Blocks in the host's memory, for what leaves a GPU's KV cache.
    pub fn num_host_blocks(&self) -> usize {
        self.cache.num_host_blocks()
    }

    /// Sizes of the KV cache.
    pub fn cache_shape(&self) -> KvCacheShape {
        self.cache.shape.clone()
    }
}

impl Executor for ModelExecutor {
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError> {
        if let Some(others) = &self.others {
            others.begin(batch);
        }
        let mut ran = self.run(batch);
        if self.others.is_some() {
            // Where this device fails only now, the others wait for it.
            ran = ran.and_then(|()| self.device.synchronize());
        }
        let ran = ran.map_err(|error| ExecutorError(error.to_string()));
        match &self.others {
            None => ran?,
            Some(others) => others.finish(ran)?,
        }
        Ok(self.logits())
    }

    fn lora_counts(&self) -> LoraCounts {
        self.decoder.loras().counts()
    }

    fn part_counts(&self) -> PartCounts {
        self.decoder.part_counts()
    }

    fn encoded(&self) -> (u64, Duration) {
        self.media.as_ref().map_or((0, Duration::ZERO), EncodedMedia::encoded)
    }
}

/// For people: a setting of media that the model has no use for.
fn note_of_media(config: &EngineConfig, has_tower: bool) -> Option<String> {
    let is_unused = config.cache.tower_cache_bytes.is_some() && !has_tower;
    is_unused.then(|| {
        "`settings.mm_processor_cache_gb`: no tower is loaded, so nothing uses it".to_owned()
    })
}

/// Leaves tensors unused that no stage has; how many are of images, of a tower, of further tokens,
/// and of K and V.
fn leave_unused(checkpoint: &mut Checkpoint, spec: &DecoderSpec, towers: Towers<'_>) -> [usize; 4] {
    let num_beside = checkpoint.leave(towers.sounds.map_or(&[], |tower| tower.unused));
    let mut leave = |names: &[String]| {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        checkpoint.leave(&names)
    };
    let num_behind = num_beside + towers.images.map_or(0, |tower| leave(&tower.unused));
    let num_further = leave(&spec.output.of_further_tokens);
    let shared = spec.attentions().flat_map(|attention| &attention.unused).cloned();
    let num_shared = leave(&shared.collect::<Vec<_>>());
    let num_of_media = match towers {
        Towers { images: None, sounds: None } => checkpoint.leave(spec.embedding.of_media),
        Towers { .. } => 0,
    };
    if let BesideTable::Copy(copy) = &spec.output.beside_table {
        checkpoint.leave_tensor(copy);
    }
    [num_of_media, num_behind, num_further, num_shared]
}

/// Leaves the tensors of a model unused that a stage of it has not. Returns those that it has.
fn leave_elsewhere<'a>(
    checkpoint: &mut Checkpoint,
    (spec, Towers { images, sounds }): (&DecoderSpec, Towers<'_>),
    of_model: impl Iterator<Item = &'a NamedShape>,
) -> Vec<NamedShape> {
    let of_tower = images.into_iter().flat_map(TowerSpec::tensors);
    let of_tower = of_tower.chain(sounds.into_iter().flat_map(SoundTowerSpec::tensors));
    let tensors: Vec<_> = spec.tensors().into_iter().chain(of_tower).collect();
    let optional = spec.optional_tensors().map(|((name, _), _)| name);
    let own: HashSet<_> = tensors.iter().map(|(name, _)| name.clone()).chain(optional).collect();
    for tensor in of_model.filter(|(name, _)| !own.contains(name)) {
        checkpoint.leave_tensor(tensor);
    }
    tensors
}

/// For people: how many tensors of the files are left unused, of images, of a tower, of further
/// tokens, and of K and V.
fn notes_of_left(nums: [usize; 4]) -> impl Iterator<Item = String> {
    let what = [
        "are for images or sounds",
        "are for sounds, or behind the layer of the vision tower that images are taken from",
        "predict further tokens",
        "are of K and V that layers take from others, or of a part that is not computed",
    ];
    let left = nums.into_iter().zip(what).filter(|(num, _)| *num > 0);
    left.map(|(num, what)| format!("{num} tensors of the model are left unused: they {what}"))
}

/// Blames the flag where buffers for larger steps than usual were asked for.
fn of_step_size(error: EngineError, max_num_tokens: usize) -> EngineError {
    match error {
        EngineError::Machine(text) if max_num_tokens > StepSizes::USUAL_TOKENS => {
            let text = format!("steps of {max_num_tokens} tokens: {text}");
            EngineError::setting(Setting::MaxNumBatchedTokens, text, "give a smaller number")
        }
        error => error,
    }
}

/// The largest step that the scheduler may ask for.
fn step_limits(sizes: &StepSizes, cache: &CacheConfig, decoder: &DecoderToLoad) -> StepLimits {
    let DecoderToLoad { spec, output, max_model_len, .. } = decoder;
    StepLimits {
        max_num_tokens: sizes.max_num_batched_tokens,
        max_num_seqs: sizes.max_num_seqs,
        max_num_logits: match output {
            Output::Logits => sizes.max_num_logits(),
            Output::States => sizes.max_num_seqs,
        },
        max_model_len: *max_model_len,
        block_size: decoder.block_size(cache),
        num_q_per_kv: spec.num_q_per_kv(),
        heads: spec.heads(),
        attends_to_all: spec.attentions().any(AttentionSpec::attends_to_all),
        has_states: spec.recurrents().next().is_some(),
        has_axes: spec.ropes.iter().any(RopeSpec::has_axes),
        has_whole_images: decoder.media.as_ref().is_some_and(EncodedMedia::are_whole),
        has_choices: spec.attentions().any(|attention| attention.choice.is_some()),
    }
}

/// What a decoder asks of the kernels of a GPU.
pub fn gpu_needs_of(spec: &DecoderSpec) -> GpuNeeds {
    let widths = |block: &AttentionSpec| HeadWidths {
        head_dim: block.heads.head_dim,
        latent_dim: block.latent.as_ref().map(|latent| latent.dims.rank),
        has_biases: block.alibi_slopes.is_some() || block.sinks.is_some(),
    };
    let mut heads = Vec::new();
    for widths in spec.attentions().map(widths) {
        if !heads.contains(&widths) {
            heads.push(widths);
        }
    }
    let (vocab_size, without_kernels) = (spec.vocab_size(), spec.without_gpu_kernels());
    GpuNeeds { heads, is_of_texts: false, vocab_size, without_kernels }
}
