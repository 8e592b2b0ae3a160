//! `ModelExecutor`: a decoder with its KV cache on a device.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::encoded_media::EncodedMedia;
use super::executor::{Executor, ExecutorError, Logits};
use super::model::decoder::{Decoder, Output};
use super::model::resident_loras::ResidentLoras;
use super::tensor_parallel::OtherRanks;
use crate::load::held_weights::{HeldWeights, read_as_values};
use crate::load::model_summary::{self, ModelSummary};
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use vllm_batch_base::config::{CacheConfig, DType, EngineConfig, LoadFormat, PrefillKernel};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint::adapter::LoraPlaces;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, BesideTable, DecoderSpec, HeadSpec, IndexerSpec, LatentSpec, QkvHeads, RopeSpec,
};
use vllm_batch_checkpoint::weights::{self, Checkpoint};
use vllm_batch_device::kv_cache::{KV_GROUP_TOKENS, KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::{Device, KvCache, Precision, Tensor, memory};
use vllm_batch_ops::batch::{Batch, LoraCounts, PartCounts};
use vllm_batch_ops::{GpuNeeds, HeadWidths, StepLimits, prefill_by_wgmma};

/// Runs a decoder over batches.
pub struct ModelExecutor {
    device: Arc<Device>,
    decoder: Decoder,
    /// Of a model that sees images.
    media: Option<EncodedMedia>,
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
    /// What classifies its states, of which adapters may have layers.
    pub head: Option<HeadSpec>,
}

impl DecoderToLoad {
    fn block_size(&self, cache: &CacheConfig) -> usize {
        model_summary::block_size(cache, &self.spec, (self.dtype, self.max_model_len))
    }
}

/// Share of free memory of the machine that the KV cache takes.
const CPU_MEMORY_SHARE: f64 = 0.4;
/// Share of a GPU's memory that is used, weights and buffers included: vLLM's default.
const GPU_MEMORY_SHARE: f64 = 0.9;

/// Steps of texts that the pool holds where states are asked for, when no size is given.
const STATE_STEPS: usize = 4;

/// Tokens that the pool should hold at least when it is sized from free memory.
const MIN_POOL_TOKENS: usize = 512;

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
        let ModelSummary { dtype, max_model_len, .. } = *summary;
        let (spec, quantization) = (summary.spec.clone(), summary.quantization.as_ref());
        let checkpoint = match config.model.load_format {
            LoadFormat::Auto => summary.files.checkpoint(config.model.on_lost_file)?,
            LoadFormat::Dummy => Checkpoint::dummy(config.model.seed),
        };
        let of_tower = summary.tower.iter().flat_map(weights::linears_of_tower);
        let linears = weights::linears_of_decoder(&spec).chain(of_tower);
        let mut checkpoint = checkpoint.until(given_up).quantized(quantization, linears)?;
        let tower = summary.tower.as_ref();
        let (num_of_images, num_behind) = match tower {
            None => (checkpoint.leave(spec.embedding.of_images), 0),
            Some(tower) => {
                let behind: Vec<_> = tower.unused.iter().map(String::as_str).collect();
                (0, checkpoint.leave(&behind))
            }
        };
        let further: Vec<_> = spec.output.of_further_tokens.iter().map(String::as_str).collect();
        let num_further = checkpoint.leave(&further);
        if let BesideTable::Copy(copy) = &spec.output.beside_table {
            checkpoint.leave_tensor(copy);
        }
        let shared = spec.attentions().flat_map(|attention| &attention.unused);
        let shared: Vec<_> = shared.map(String::as_str).collect();
        let num_shared = checkpoint.leave(&shared);
        let of_cache = checkpoint.leave_cache_scales();
        let mut tensors = spec.tensors();
        tensors.extend(tower.iter().flat_map(|tower| tower.tensors()));
        let optional: Vec<_> = spec.optional_tensors().map(|(tensor, _)| tensor).collect();
        checkpoint.check(&tensors, &optional)?;
        let tables = read_as_values(&device, &checkpoint, dtype, spec.tables(), spec.experts());
        let mut held = HeldWeights::of(&device, &checkpoint, (&tensors, &tables), dtype);
        held.refuse_without_memory(&device)?;
        let of_head = spec.output.note_of_head();
        let choices: Vec<_> =
            spec.ropes.iter().filter_map(|rope| rope.choice(max_model_len)).collect();
        let elsewhere = spec.num_weights_elsewhere() * dtype.size_bytes() as u64;
        let (output, weight_bytes) = (Output::Logits, held.bytes() - elsewhere);
        let (head, code_bytes) = (None, Arc::new(held.take_code_bytes()));
        let load = |spec| EncodedMedia::load(config, spec, (dtype, &device), &mut checkpoint);
        let media = tower.map(load).transpose()?;
        let decoder =
            DecoderToLoad { spec, output, dtype, max_model_len, weight_bytes, media, head };
        let loaded = Self::of_checkpoint(config, sizes, decoder, device, &mut checkpoint)?;
        checkpoint.finish()?;
        let left = notes_of_left([num_of_images, num_behind, num_further, num_shared]);
        let of_quantization = quantization.into_iter().flat_map(|quantization| {
            held.quantization_notes(quantization, config.model.load_format, (dtype, of_cache))
        });
        let notes = choices
            .into_iter()
            .chain(of_head)
            .chain(held.note(dtype))
            .chain(left)
            .chain(of_quantization)
            .chain(note_of_images(config, tower.is_some()));
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
        let places = LoraPlaces::of_decoder(spec);
        let places = decoder.head.iter().fold(places, LoraPlaces::with_head);
        let loras = ResidentLoras::open(config, &places, checkpoint)?;
        let logits_rows = device.preallocated_rows(limits.max_num_logits);
        let logits = device.tensor(logits_rows, output.width(spec), Precision::Full)?;
        let mut loaded = Decoder::load((spec.clone(), output), dtype, &device, checkpoint, limits)
            .map_err(|error| of_step_size(error, limits.max_num_tokens))?;
        loaded.set_loras(&device, loras, limits)?;
        let shape = cache_shape(&config.cache, sizes, &device, &decoder)?;
        let (mut cache, shrunk) = allocate(&device, shape, dtype, &config.cache)?;
        add_host_blocks(&mut cache, &config.cache, &device)?;
        if config.device.prefill_kernel == PrefillKernel::Wgmma {
            let head_dims: BTreeSet<_> =
                spec.attentions().map(|attention| attention.heads.head_dim).collect();
            prefill_by_wgmma(&device, &Vec::from_iter(head_dims))?;
        }
        let notes = shrunk.into_iter().collect();
        Ok(Self {
            device,
            decoder: loaded,
            media: decoder.media,
            cache,
            logits,
            weight_bytes,
            code_bytes: Arc::default(),
            notes,
            others: None,
        })
    }

    /// Runs a step of the kinds that there are, so that a GPU has compiled its kernels before the
    /// first row; returns its logits. What it writes to the first blocks of the KV cache is
    /// overwritten before anything reads it.
    ///
    /// # Errors
    /// The device failed.
    pub fn warm_up(&mut self) -> Result<Logits<'_>, EngineError> {
        let block_size = self.cache.shape.block_size as u32;
        let last_block = self.cache.shape.num_blocks as u32 - 1;
        let block = 1.min(last_block);
        let batch = Batch {
            input_ids: vec![0; 3],
            positions: vec![0, 1, 0],
            axes: Vec::new(),
            attended_ends: Vec::new(),
            prefix_lens: Vec::new(),
            token_types: Vec::new(),
            slot_mapping: vec![0, 1, block * block_size + 2],
            query_start_loc: vec![0, 2, 3],
            seq_lens: vec![2, 1],
            block_tables: vec![0, block],
            max_blocks_per_seq: 1,
            logits_indices: vec![1, 2],
            sampled_rows: Vec::new(),
            block_copies: Vec::new(),
            media: Vec::new(),
            loras: Vec::new(),
            wants_likeliest: false,
        };
        self.execute(&batch).map_err(|error| EngineError::Device(error.0))
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
        assert_eq!(given.len(), batch.media.len(), "a model without a tower has no media");
        self.decoder.forward(&self.device, batch, &given, &mut self.cache, &mut self.logits);
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
        Ok(Logits { likeliest: self.decoder.likeliest(), tensor: &mut self.logits })
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

/// For people: a setting of images that the model has no use for.
fn note_of_images(config: &EngineConfig, has_tower: bool) -> Option<String> {
    let is_unused = config.cache.tower_cache_bytes.is_some() && !has_tower;
    is_unused.then(|| {
        "`settings.mm_processor_cache_gb`: no vision tower is loaded, so nothing uses it".to_owned()
    })
}

/// For people: how many tensors of the files are left unused, of images, of a tower, of further
/// tokens, and of K and V.
fn notes_of_left(nums: [usize; 4]) -> impl Iterator<Item = String> {
    let what = [
        "are for images",
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

/// Bytes that the KV cache may take, and what they are a share of, in words. `kept` are others', on
/// a GPU.
fn cache_budget(
    cache: &CacheConfig,
    device: &Device,
    kept: u64,
) -> Result<(u64, String), EngineError> {
    let (free, total) = match device {
        Device::Cpu(_) => {
            let free = memory::available_bytes().unwrap_or(4 << 30);
            (free, free)
        }
        Device::Cuda(gpu) => {
            let (free, total) = gpu.memory_info()?;
            ((free as u64).saturating_sub(kept), total as u64)
        }
    };
    let share = cache.memory_share.unwrap_or(match device {
        Device::Cpu(_) => CPU_MEMORY_SHARE,
        Device::Cuda(_) => GPU_MEMORY_SHARE,
    });
    let share = share / cache.engines_in_memory as f64;
    // As in vLLM the share is of a GPU's whole memory, what is taken already included; weights and
    // the buffers of the largest step are in place by now.
    let bytes = ((total as f64 * share) as u64).saturating_sub(total - free);
    Ok((bytes, format!("{} MiB of memory are free, and a share of {share}", free >> 20)))
}

/// Blocks that sequences can use: all of them at their full length. Those whose state is asked for
/// end when they are read, so the longest one and a few steps are enough, with what they share.
fn useful_blocks(sizes: &StepSizes, cache: &CacheConfig, decoder: &DecoderToLoad) -> usize {
    let StepSizes { max_num_seqs, max_num_batched_tokens, .. } = *sizes;
    let max_model_len = decoder.max_model_len;
    let num_tokens = match decoder.output {
        Output::Logits => max_num_seqs * max_model_len,
        Output::States => max_model_len + STATE_STEPS * max_num_batched_tokens,
    };
    num_tokens.div_ceil(decoder.block_size(cache)) + max_num_seqs
}

/// Blocks by what was asked for: a number, bytes, or a share of memory, though never more than are
/// `useful`.
fn cache_shape(
    cache: &CacheConfig,
    sizes: &StepSizes,
    device: &Device,
    decoder: &DecoderToLoad,
) -> Result<KvCacheShape, EngineError> {
    let DecoderToLoad { spec, max_model_len, .. } = decoder;
    let block_size = decoder.block_size(cache);
    if block_size == 0 || !block_size.is_multiple_of(KV_GROUP_TOKENS) {
        let text = format!("{block_size} is no multiple of {KV_GROUP_TOKENS}");
        return Err(EngineError::setting(Setting::BlockSize, text, "give a multiple"));
    }
    let mut shape = shape_without_blocks(spec, device, block_size);
    let block_bytes = shape.block_bytes(cache.kv_cache_dtype.size_bytes(decoder.dtype));
    let block_bytes = (block_bytes + cache.bytes_beside) as u64;
    let useful = useful_blocks(sizes, cache, decoder);
    shape.num_blocks = match (cache.num_blocks, cache.kv_cache_memory_bytes) {
        (Some(num_blocks), _) => num_blocks,
        (None, Some(bytes)) => (bytes / block_bytes) as usize,
        (None, None) => {
            let kept_bytes = decoder.media.as_ref().map_or(0, EncodedMedia::max_bytes);
            let (bytes, of_what) = cache_budget(cache, device, kept_bytes)?;
            let num_blocks = ((bytes / block_bytes) as usize).min(useful);
            let needed = MIN_POOL_TOKENS.min(*max_model_len).div_ceil(block_size);
            if num_blocks < needed {
                return Err(EngineError::Config(format!(
                    "{of_what} of them (`settings.gpu_memory_utilization`) is too little for a KV cache of {} \
                     tokens; raise the share, or give `settings.kv_cache_memory_bytes` or a smaller \
                     `settings.max_model_len`",
                    needed * block_size
                )));
            }
            num_blocks
        }
    };
    // Tables of blocks have numbers of 32 bits.
    let most = u32::MAX as usize - 1;
    match shape.num_blocks {
        too_many if too_many > most => Err(EngineError::Config(format!(
            "a KV cache of {too_many} blocks: the most is {most}; give a smaller \
             `settings.num_gpu_blocks_override` or `settings.kv_cache_memory_bytes`"
        ))),
        0 => Err(EngineError::Config(format!(
            "the KV cache has no block: one block of {block_size} tokens takes {block_bytes} bytes"
        ))),
        _ => Ok(shape),
    }
}

fn shape_without_blocks(spec: &DecoderSpec, device: &Device, block_size: usize) -> KvCacheShape {
    KvCacheShape {
        layers: cache_layers(spec, device),
        num_blocks: 0,
        block_size,
        states: StateShape { num_layers: spec.recurrents().count(), width: spec.state_width() },
        panel_width: device.kv_panel_width(),
    }
}

/// Bytes of a block of a model's KV cache.
pub fn block_bytes(cache: &CacheConfig, summary: &ModelSummary, device: &Device) -> usize {
    let shape = shape_without_blocks(&summary.spec, device, summary.block_size(cache));
    shape.block_bytes(cache.kv_cache_dtype.size_bytes(summary.dtype))
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

/// What layers have in the cache.
fn cache_layers(spec: &DecoderSpec, device: &Device) -> Vec<KvHeads> {
    let heads = |block: &AttentionSpec| {
        let QkvHeads { num_kv_heads: num, head_dim, .. } = block.heads;
        let of_latent = |latent: &LatentSpec| device.latent_v_dim(latent.dims.rank);
        KvHeads { num, head_dim, v_dim: block.latent.as_ref().map_or(head_dim, of_latent) }
    };
    // Keys of indexers have no values.
    let keys =
        |indexer: &IndexerSpec| KvHeads { num: 1, head_dim: indexer.heads.head_dim, v_dim: 0 };
    spec.cached_attentions().map(heads).chain(spec.indexers().map(keys)).collect()
}

/// The cache, and a note when the device had room for a smaller one only, which is no error unless
/// a size was asked for.
fn allocate(
    device: &Device,
    mut shape: KvCacheShape,
    dtype: DType,
    cache: &CacheConfig,
) -> Result<(KvCache, Option<String>), EngineError> {
    let is_asked_for = cache.num_blocks.is_some() || cache.kv_cache_memory_bytes.is_some();
    let wanted = shape.num_blocks;
    loop {
        let error = match KvCache::on_device(device, shape.clone(), dtype) {
            Ok(cache) if shape.num_blocks == wanted => return Ok((cache, None)),
            Ok(cache) => {
                let note = format!(
                    "the device had no room for a KV cache of {wanted} blocks; it has {}",
                    shape.num_blocks
                );
                return Ok((cache, Some(note)));
            }
            Err(error) => error,
        };
        let smaller = shape.num_blocks - shape.num_blocks.div_ceil(10);
        if is_asked_for || smaller * shape.block_size < MIN_POOL_TOKENS {
            let element_bytes = cache.kv_cache_dtype.size_bytes(dtype);
            let mib = shape.num_bytes(element_bytes) >> 20;
            let flag = match (cache.num_blocks, cache.kv_cache_memory_bytes) {
                (Some(_), _) => "`settings.num_gpu_blocks_override`",
                (None, Some(_)) => "`settings.kv_cache_memory_bytes`",
                (None, None) => {
                    "`settings.kv_cache_memory_bytes` or `settings.gpu_memory_utilization`"
                }
            };
            let text =
                format!("no room for a KV cache of {mib} MiB ({error}); give a smaller {flag}");
            return Err(match error {
                EngineError::Machine(_) if !is_asked_for => EngineError::Machine(text),
                _ => EngineError::Config(text),
            });
        }
        shape.num_blocks = smaller;
    }
}

/// Adds the blocks in the host's memory that were asked for.
fn add_host_blocks(
    cache: &mut KvCache,
    config: &CacheConfig,
    device: &Device,
) -> Result<(), EngineError> {
    let Some(bytes) = config.kv_offloading_bytes else { return Ok(()) };
    let refused =
        |why: String| EngineError::setting(Setting::KvOffloadingSize, why, "give another size");
    let Device::Cuda(gpu) = device else { unreachable!("`combinations` refuses it on the CPU") };
    let block_bytes = cache.shape.block_bytes(cache.element_bytes());
    let num_blocks = bytes / block_bytes as u64;
    // With those of the device they have numbers of 32 bits.
    let most = u32::MAX as usize - 1 - cache.shape.num_blocks;
    if num_blocks == 0 || num_blocks > most as u64 {
        return Err(refused(format!(
            "a block of {} tokens takes {block_bytes} bytes, and there may be 1 to {most} of them",
            cache.shape.block_size
        )));
    }
    cache.add_host_blocks(gpu, num_blocks as usize).map_err(|error| {
        refused(format!("no room for {} MiB in main memory ({error})", bytes >> 20))
    })
}
