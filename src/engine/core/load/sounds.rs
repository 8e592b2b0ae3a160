//! From a model's files to what its prompts have for sounds.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::images::token_id;
use super::processor_file;
use crate::media_table::SoundReader;
use crate::plan::structured_output::SpeechTokens;
use crate::serve::input_processor::{SoundInput, SpeechInput};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::SoundChunks;
use vllm_batch_checkpoint::hf_config::SpeechConfig;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::spec::{SoundTokensSpec, SoundTowerSpec, SourceSpec};
use vllm_batch_media::SoundProcessor;
use vllm_batch_text::{Language, Tokenizer};

/// What the small files of a model that hears say of sounds.
#[derive(Clone, Copy, Debug)]
pub struct Hearing<'a> {
    /// What makes states of them, or embeddings of tokens.
    pub tower: &'a SoundTowerSpec,
    /// Where states stand in a prompt, of a model that writes down recordings (Whisper).
    pub source: Option<SourceSpec>,
    /// What generation_config.json says.
    pub generation: &'a SpeechConfig,
    /// Number of all tokens.
    pub vocab_size: usize,
    /// Where the model is.
    pub files: &'a ModelFiles,
}

/// What a model's chats have for sounds.
///
/// # Errors
/// The tokenizer has no token that stands for a sound's.
pub fn sound_input(
    tokens: &SoundTokensSpec,
    tokenizer: &Tokenizer,
) -> Result<SoundInput, EngineError> {
    Ok(SoundInput { token_id: token_id(tokens.token_id, tokenizer, "a recording's")? })
}

/// What reads a model's sounds.
///
/// # Errors
/// There is no configuration of a feature extractor, or it is of a kind that is not supported.
pub fn sound_reader(hearing: Hearing<'_>) -> Result<SoundReader, EngineError> {
    let Hearing { tower, source, files, .. } = hearing;
    let num_positions = source.map(|source| source.num_positions);
    Ok(SoundReader { processor: processor(files, tower)?, shape: tower.shape(), num_positions })
}

/// What prompts of a model that writes down sounds have.
///
/// # Errors
/// The tokenizer lacks a token.
pub fn speech_input(
    hearing: Hearing<'_>,
    tokenizer: &Tokenizer,
) -> Result<SpeechInput, EngineError> {
    let Hearing { generation, vocab_size, .. } = hearing;
    let id = |text: &str| tokenizer.token_id(text).filter(|id| (*id as usize) < vocab_size);
    let needed = |text: &str| {
        id(text).ok_or_else(|| {
            EngineError::Model(format!(
                "the tokenizer has no token {text:?}, with which transcripts begin or end; help: \
                 copy tokenizer.json from the model's repository"
            ))
        })
    };
    let end = tokenizer.eos_token_id().map_or_else(|| needed("<|endoftext|>"), Ok)?;
    let tokens = SpeechTokens {
        vocab_size,
        end,
        no_timestamps: needed("<|notimestamps|>")?,
        suppressed: generation.suppress_tokens.clone(),
        suppressed_at_begin: generation.begin_suppress_tokens.clone(),
        max_initial_timestamp: generation.max_initial_timestamp_index,
    };
    let languages: Vec<_> = Language::all()
        .filter_map(|language| Some((language, id(&format!("<|{}|>", language.code))?)))
        .collect();
    // English-only models have these tokens, too.
    let is_multilingual = generation.is_multilingual.unwrap_or(vocab_size > MAX_ENGLISH_TOKENS);
    Ok(SpeechInput {
        start: needed("<|startoftranscript|>")?,
        before: id("<|startofprev|>"),
        tasks: [id("<|transcribe|>"), id("<|translate|>")],
        languages: if is_multilingual { languages } else { Vec::new() },
        tokens: Arc::new(tokens),
    })
}

/// Tokens of OpenAI's models that know English alone.
const MAX_ENGLISH_TOKENS: usize = 51_864;

/// The feature extractor of a model.
fn processor(files: &ModelFiles, tower: &SoundTowerSpec) -> Result<SoundProcessor, EngineError> {
    let ModelFiles::Folder(folder) = files else {
        let text = "a GGUF file of a model that hears is not supported; help: give the folder of \
                    its repository";
        return Err(EngineError::Model(text.to_owned()));
    };
    let (name, config) = config(folder)?;
    let path = folder.join(name);
    let error = |text: String| EngineError::Model(format!("{}: {text}", path.display()));
    let chunks = tower.tokens.as_ref().map_or(SoundChunks::One, |tokens| tokens.chunks);
    let processor =
        SoundProcessor::from_config(&config, chunks).map_err(|e| error(e.to_string()))?;
    let made = (processor.num_frames(), processor.num_mels());
    match made == (tower.num_frames, tower.num_mels) {
        true => Ok(processor),
        false => Err(error(format!(
            "it makes {} frames of {} mel bins, and the model hears {} of {}; help: it is another \
             model's",
            made.0, made.1, tower.num_frames, tower.num_mels
        ))),
    }
}

/// The part of a whole processor that extracts features, with how long a sound may be.
fn of_whole(whole: &Value, key: &str) -> Value {
    const LONGEST: &str = "max_audio_len";
    let mut config = whole[key].clone();
    if let (Some(keys), Some(most)) = (config.as_object_mut(), whole.get(LONGEST)) {
        keys.insert(LONGEST.to_owned(), most.clone());
    }
    config
}

/// The configuration, and the name of its file.
fn config(folder: &Path) -> Result<(&'static str, Value), EngineError> {
    for (name, key) in
        [("processor_config.json", Some("feature_extractor")), ("preprocessor_config.json", None)]
    {
        let Some(config) = processor_file::read(folder, name)? else { continue };
        match key {
            None => return Ok((name, processor_file::of_one_kind(config, true))),
            Some(key) if config[key].is_object() => return Ok((name, of_whole(&config, key))),
            Some(_) => {}
        }
    }
    Err(EngineError::Model(format!(
        "{} has no preprocessor_config.json, which says how its sounds are read; copy it there from \
         the model's repository",
        quoted(&folder.display().to_string())
    )))
}
