//! Words around the rows of a model that compares tokens, with what its processor's file says.

use serde_json::Value;

use crate::load::processor_file;
use vllm_batch_base::EngineError;
use vllm_batch_base::weight_files::PROCESSOR_CONFIGS;
use vllm_batch_checkpoint as checkpoint;
use vllm_batch_checkpoint::encoders::RowWords;
use vllm_batch_checkpoint::hf_config::HfConfig;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_text::Tokenizer;

/// Keys of the processor's file.
const KEYS: [&str; 2] = ["visual_prompt_prefix", "query_prefix"];

/// Those of a class, and those of the file.
#[derive(Clone, Debug)]
pub(super) struct SaidWords {
    words: RowWords,
    said: [Option<String>; 2],
}

impl SaidWords {
    /// None: rows of the class are as they are.
    ///
    /// # Errors
    /// The processor's file is corrupt.
    pub(super) fn read(
        hf_config: &HfConfig,
        files: &ModelFiles,
    ) -> Result<Option<Self>, EngineError> {
        let Some(words) = checkpoint::row_words(hf_config)? else { return Ok(None) };
        let mut said = KEYS.map(|_| None);
        let ModelFiles::Folder(folder) = files else { return Ok(Some(Self { words, said })) };
        let of_file = PROCESSOR_CONFIGS.iter().filter(|(_, key)| key.is_some());
        for (name, _) in of_file.filter(|_| words.are_of_file()) {
            let Some(file) = processor_file::read(folder, name)? else { continue };
            for (key, said) in KEYS.iter().zip(&mut said) {
                *said = match &file[key] {
                    Value::Null => None,
                    Value::String(text) => Some(text.clone()),
                    _ => {
                        let path = folder.join(name);
                        let text = format!("{}: `{key}` should be a text", path.display());
                        return Err(EngineError::Model(text));
                    }
                };
            }
        }
        Ok(Some(Self { words, said }))
    }

    /// The chat template that writes rows.
    ///
    /// # Errors
    /// The tokenizer lacks a token that they have.
    pub(super) fn template(&self, tokenizer: &Tokenizer) -> Result<String, EngineError> {
        let pad_token = tokenizer.pad_token_id().map(|id| tokenizer.token_text(id));
        let said = self.said.each_ref().map(Option::as_deref);
        self.words.template(said, pad_token.as_deref()).map_err(EngineError::Model)
    }
}
