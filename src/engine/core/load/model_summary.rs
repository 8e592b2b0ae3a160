//! `ModelSummary`: what the small files of a model folder say, or the header of a GGUF file. It is
//! read before the weights, so that a flag that does not fit the model is refused before anything
//! large is loaded.

use std::ops::{Add, Range};

use serde_json::Value;

use super::combinations::{Side, Sides};
use super::gguf_text;
use super::images::Sight;
use super::sounds::Hearing;
use crate::execute::model_executor::gpu_needs_of;
use crate::serve::input_processor::{ModelLimits, default_sampling_params};
use vllm_batch_api::request::SamplingParams;
use vllm_batch_base::config::{
    CacheConfig, DType, EngineConfig, GenerationConfigSource, ModelConfig,
};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint as checkpoint;
use vllm_batch_checkpoint::hf_config::{GenerationConfig, HfConfig};
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::own_head;
use vllm_batch_checkpoint::quantization::QuantizationConfig;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, DecoderSpec, Parameters, RopeSpec, SoundTowerSpec, TowerSpec,
};
use vllm_batch_device::kv_cache::KV_GROUP_TOKENS;
use vllm_batch_ops::GpuNeeds;
use vllm_batch_text::ChatTemplate;

/// A model without its weights and its tokenizer.
#[derive(Clone, Debug)]
pub struct ModelSummary {
    /// Where it is; a GGUF file stays open.
    pub files: ModelFiles,
    /// Its shape.
    pub spec: DecoderSpec,
    /// What makes embeddings of images; None: it is run for text alone.
    pub tower: Option<TowerSpec>,
    /// What makes states of sounds, or embeddings of them; None: it hears nothing.
    pub sound_tower: Option<SoundTowerSpec>,
    /// The configuration of its image processor, where config.json has it.
    pub processor: Option<Value>,
    /// The chat template of its family, for files that have none.
    pub chat_template: Option<&'static str>,
    /// Chats begin with BOS or EOS, whatever their template writes.
    pub begins_chats: bool,
    /// How the checkpoint's linear layers are stored, where they are quantized.
    pub quantization: Option<QuantizationConfig>,
    /// How many tensors are of which type, of a GGUF file.
    pub gguf_types: Option<String>,
    /// Weights and KV cache: what was asked for, else the checkpoint's own.
    pub dtype: DType,
    /// Longest prompt plus output, in tokens: what was asked for, else the model's.
    pub max_model_len: usize,
    /// Sampling defaults, and all EOS ids that the model's files name.
    pub generation_config: GenerationConfig,
}

/// Tokens of a block where nothing asks for another number.
const BLOCK_SIZE: usize = 32;
/// The most that states make of it.
const MAX_BLOCK_SIZE: usize = 1024;

impl ModelSummary {
    /// Reads config.json and generation_config.json, or a GGUF file's header.
    ///
    /// # Errors
    /// A file is missing or corrupt, the model is not supported, or it does not have the context
    /// length that was asked for.
    pub fn read(config: &ModelConfig) -> Result<Self, EngineError> {
        let files = ModelFiles::of_model(config)?;
        let hf_config = HfConfig::open(&files, &config.hf_overrides)?;
        // First: the keys that it reads are not unknown ones.
        let quantization = QuantizationConfig::read(&hf_config, &config.model_dir)?;
        let spec = checkpoint::decoder_spec(&hf_config)?;
        let tower = checkpoint::tower_spec(&hf_config)?;
        let tower = tower.filter(|_| !config.language_model_only);
        let sound_tower = checkpoint::sound_tower_spec(&hf_config)?;
        // A decoder of states has nothing else to read.
        let is_wanted =
            |tower: &SoundTowerSpec| tower.tokens.is_none() || !config.language_model_only;
        let sound_tower = sound_tower.filter(is_wanted);
        let processor = checkpoint::image_processor(&hf_config)?;
        let chat_template = checkpoint::chat_template(&hf_config)?;
        let begins_chats = checkpoint::begins_chats(&hf_config)?;
        let spec = own_head::of_decoder(spec, &hf_config, || files.stored(config))?;
        let dtype = config.dtype.map_or_else(|| hf_config.dtype(), Ok)?;
        let max_model_len = max_model_len(config, &spec)?;
        let spec = spec.without_choices_of_all(max_model_len);
        let generation_config = generation_config(config, &files, &hf_config)?;
        let gguf_types = hf_config.gguf_types().map(str::to_owned);
        Ok(Self {
            files,
            spec,
            tower,
            sound_tower,
            processor,
            chat_template,
            begins_chats,
            quantization,
            gguf_types,
            dtype,
            max_model_len,
            generation_config,
        })
    }

    /// Layers of each of so many stages. Those that rows of images are added behind are of the
    /// first one.
    ///
    /// # Errors
    /// In words: the model cannot be cut into so many.
    pub fn stages(&self, count: usize) -> Result<Vec<Range<usize>>, String> {
        let num_deep = self.tower.as_ref().map_or(0, |tower| tower.deep.len());
        self.spec.stages(count, num_deep)
    }

    /// Whether chats have a template, or need none: a flag's, or one of the files that have the
    /// tokenizer.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn has_chat_template(&self, config: &ModelConfig) -> Result<bool, EngineError> {
        let needs_none = self.spec.source().is_some();
        if config.chat_template.is_some() || self.chat_template.is_some() || needs_none {
            return Ok(true);
        }
        let other = config.tokenizer_dir.as_ref();
        let other = other.map(|path| ModelFiles::open(path, config.on_lost_file)).transpose()?;
        match other.as_ref().unwrap_or(&self.files) {
            ModelFiles::Gguf(file) => Ok(gguf_text::has_chat_template(file)),
            ModelFiles::Folder(folder) => {
                ChatTemplate::is_in(folder).map_err(|error| EngineError::Model(error.to_string()))
            }
        }
    }

    /// How a checkpoint's weights are stored, where they are quantized or a GGUF file; for people
    /// to read.
    pub fn checkpoint_format(&self) -> Option<String> {
        checkpoint_format(self.quantization.as_ref(), self.gguf_types.as_deref())
    }

    /// What it asks of the kernels of a GPU. None of these computes a tower of sounds yet.
    pub fn gpu_needs(&self) -> GpuNeeds {
        let needs = gpu_needs_of(&self.spec);
        let of_sounds = self.sound_tower.as_ref().map(|_| "a tower of sounds");
        GpuNeeds { without_kernels: needs.without_kernels.or(of_sounds), ..needs }
    }

    /// What its files say of images; None: it is run for text alone.
    pub fn sight(&self) -> Option<Sight<'_>> {
        Some(Sight {
            tower: self.tower.as_ref()?,
            processor: self.processor.as_ref(),
            has_axes: self.spec.ropes.iter().any(RopeSpec::has_axes),
            reads_texts: true,
            files: &self.files,
        })
    }

    /// What its files say of sounds; None: it hears nothing.
    pub fn hearing(&self) -> Option<Hearing<'_>> {
        Some(Hearing {
            tower: self.sound_tower.as_ref()?,
            source: self.spec.source(),
            generation: &self.generation_config.speech,
            vocab_size: self.spec.vocab_size(),
            files: &self.files,
        })
    }

    /// Tokens that a step has room for at least, and those of a prompt whose logits it has.
    pub(crate) fn least_step(&self) -> (usize, usize) {
        self.tower.as_ref().map_or((0, 0), |tower| tower.least_step(self.max_model_len))
    }

    /// Number of parameters, those of its tower among them.
    pub fn parameters(&self) -> Parameters {
        let sounds = self.sound_tower.iter().map(SoundTowerSpec::parameters);
        let towers = self.tower.iter().map(TowerSpec::parameters).chain(sounds);
        towers.fold(self.spec.parameters(), Parameters::add)
    }

    /// What the model and a configuration have, as far as some of it goes with no other.
    pub fn sides(&self, config: &EngineConfig) -> Sides {
        Sides::of_config(config).with_layers(&self.spec.layers, self.dtype).with([
            (Side::LayerInputs, self.spec.embedding.of_layers.is_some()),
            (Side::VisionTower, self.tower.is_some()),
            (Side::SoundTower, self.sound_tower.is_some()),
            (Side::QuantizedCheckpoint, self.quantization.is_some()),
            (Side::Gguf, self.gguf_types.is_some()),
        ])
    }

    /// Tokens of a block of the KV cache.
    pub fn block_size(&self, cache: &CacheConfig) -> usize {
        block_size(cache, &self.spec, (self.dtype, self.max_model_len))
    }

    /// What prompts and parameters are checked against.
    pub fn limits(&self) -> ModelLimits {
        ModelLimits { vocab_size: self.spec.vocab_size(), max_model_len: self.max_model_len }
    }

    /// Neutral sampling parameters overlaid with those of generation_config.json; `max_tokens` is
    /// its `max_new_tokens`, else None.
    pub fn default_sampling_params(&self) -> SamplingParams {
        default_sampling_params(&self.generation_config)
    }
}

/// How weights are stored, where they are quantized or of a GGUF file with these types; for people
/// to read.
pub(crate) fn checkpoint_format(
    quantization: Option<&QuantizationConfig>,
    gguf_types: Option<&str>,
) -> Option<String> {
    let gguf = gguf_types.map(|types| format!("GGUF ({types})"));
    quantization.map(|quantized| quantized.description().to_owned()).or(gguf)
}

/// The context length: what was asked for, else what the model has.
fn max_model_len(config: &ModelConfig, spec: &DecoderSpec) -> Result<usize, EngineError> {
    let of_model = spec.max_model_len;
    match config.max_model_len {
        None => Ok(of_model),
        Some(asked) if (2..=of_model).contains(&asked) => Ok(asked),
        Some(asked) => {
            let text = format!("expected 2 to {of_model}, the model's context, got {asked}");
            Err(EngineError::setting(Setting::MaxModelLen, text, "leave it out for the longest"))
        }
    }
}

/// EOS ids are merged even where the sampling defaults are not wanted, as in vLLM.
fn generation_config(
    config: &ModelConfig,
    files: &ModelFiles,
    hf_config: &HfConfig,
) -> Result<GenerationConfig, EngineError> {
    let mut found = match &config.generation_config {
        GenerationConfigSource::Dir(dir) => {
            GenerationConfig::open(&ModelFiles::open(dir, config.on_lost_file)?)?
        }
        GenerationConfigSource::Auto | GenerationConfigSource::Vllm => {
            GenerationConfig::open(files)?
        }
    };
    if found.eos_token_ids.is_empty() {
        found.eos_token_ids = hf_config.eos_token_ids()?;
    }
    Ok(match config.generation_config {
        GenerationConfigSource::Vllm => {
            let GenerationConfig { eos_token_ids, speech, .. } = found;
            GenerationConfig { eos_token_ids, speech, ..GenerationConfig::default() }
        }
        GenerationConfigSource::Auto | GenerationConfigSource::Dir(_) => found,
    })
}

/// Tokens of a block of the KV cache: what was asked for, else 32. Where layers have states it is
/// doubled until a block's states take no more bytes than its K and V; up to 1024, and to what one
/// context takes. Where blocks of tokens are chosen these are whole blocks of the cache.
pub fn block_size(
    cache: &CacheConfig,
    spec: &DecoderSpec,
    (dtype, max_model_len): (DType, usize),
) -> usize {
    if let Some(asked) = cache.block_size {
        return asked;
    }
    let of_heads = |attention: &AttentionSpec| {
        attention.heads.num_kv_heads * (attention.heads.head_dim + attention.v_dim())
    };
    let element_bytes = cache.kv_cache_dtype.size_bytes(dtype);
    let of_indexers: usize = spec.indexers().map(|indexer| indexer.heads.head_dim).sum();
    let of_all = spec.cached_attentions().map(of_heads).sum::<usize>() + of_indexers;
    let token_bytes = of_all * element_bytes;
    let state_bytes = spec.state_bytes();
    let is_enough = |tokens: usize| tokens * token_bytes >= state_bytes;
    if let Some(chosen) = spec.chosen_block().filter(|len| !len.is_multiple_of(BLOCK_SIZE)) {
        return KV_GROUP_TOKENS.min(chosen);
    }
    let mut tokens = BLOCK_SIZE;
    while !is_enough(tokens) && tokens < MAX_BLOCK_SIZE.min(max_model_len) {
        tokens *= 2;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_checkpoint::spec::RecurrentSpec;

    #[test]
    fn a_block_holds_as_many_tokens_as_make_its_states_worthwhile() {
        let lfm2 = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/golden/lfm2").into();
        let config = ModelConfig { model_dir: lfm2, ..ModelConfig::default() };
        let mut summary = ModelSummary::read(&config).unwrap();
        // In bfloat16 K and V of a head of 16 take 64 bytes a token; three layers keep two tokens.
        let asked = |block_size| CacheConfig { block_size, ..CacheConfig::default() };
        for (width, max_model_len, expected) in [
            (1, 10_000, 32),
            (48, 10_000, 32),
            (64 * 32 / 24, 10_000, 32),
            (64 * 32 / 24 + 1, 10_000, 64),
            (64 * 300 / 24, 10_000, 512),
            (64 * 300 / 24, 200, 256),
            (1 << 20, 10_000, 1024),
        ] {
            for layer in &mut summary.spec.layers {
                if let Some(RecurrentSpec::ShortConv(conv)) = &mut layer.recurrent {
                    conv.taps.parts[0].1 = width;
                }
            }
            summary.max_model_len = max_model_len;
            assert_eq!(summary.block_size(&asked(None)), expected, "{width} values");
            assert_eq!(summary.block_size(&asked(Some(16))), 16);
        }
    }
}
