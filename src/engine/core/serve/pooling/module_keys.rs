//! Keys of sentence-transformers' config files: which are read, which change nothing here, and
//! which ask for something that is not done. No key is passed over in silence. From
//! sentence-transformers 6.2.

use std::path::Path;

use serde_json::{Map, Value};

use super::modules::bad;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// The keys of a file.
pub(super) struct Keys<'a> {
    pub keys: &'a Map<String, Value>,
    pub path: &'a Path,
}

impl Keys<'_> {
    /// Refuses keys that are neither read nor harmless.
    pub(super) fn refuse_others(&self, known: &[&str]) -> Result<(), EngineError> {
        match self.keys.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(self.bad(&format!("the key {} is not supported", quoted(key)))),
            None => Ok(()),
        }
    }

    /// Refuses keys that have a value.
    pub(super) fn refuse_set(&self, names: &[&str]) -> Result<(), EngineError> {
        let is_set = |name: &&&str| self.keys.get(**name).is_some_and(|value| !is_nothing(value));
        match names.iter().find(is_set) {
            Some(name) => Err(self.bad(&format!("`{name}` is not supported"))),
            None => Ok(()),
        }
    }

    /// Refuses a key whose text is none of these; null and a missing one say nothing.
    pub(super) fn refuse_unless(&self, name: &str, known: &[&str]) -> Result<(), EngineError> {
        match self.keys.get(name) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(text)) if known.contains(&text.as_str()) => Ok(()),
            Some(other) => {
                let other = quoted(other.as_str().unwrap_or(&other.to_string()));
                Err(self.bad(&format!("`{name}` {other} is not supported")))
            }
        }
    }

    fn bad(&self, text: &str) -> EngineError {
        bad(self.path, text)
    }
}

/// Null, false, and what is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    }
}

/// Checks config_sentence_transformers.json, but for the values that are read.
pub(super) fn check_model(keys: &Keys<'_>) -> Result<(), EngineError> {
    keys.refuse_others(&[
        "__version__",
        "activation_fn",
        "default_prompt_name",
        "keep_in_fp32_modules",
        "max_active_dims",
        "model_type",
        "prompts",
        "similarity_fn_name",
        "truncate_dim",
    ])?;
    keys.refuse_unless("model_type", &["SentenceTransformer", "SparseEncoder", "CrossEncoder"])?;
    keys.refuse_set(&["max_active_dims", "keep_in_fp32_modules"])
}

/// Checks sentence_bert_config.json, but for `max_seq_length`.
pub(super) fn check_transformer(keys: &Keys<'_>) -> Result<(), EngineError> {
    keys.refuse_others(&[
        "config_args",
        "do_lower_case",
        "document_length",
        "max_seq_length",
        "modality_config",
        "model_args",
        "module_output_name",
        "processing_kwargs",
        "query_expansion",
        "query_length",
        "tokenizer_args",
        "tokenizer_name_or_path",
        "transformer_task",
        "unpad_inputs",
    ])?;
    if keys.keys.get("do_lower_case").is_some_and(|value| !is_nothing(value)) {
        let text = "`do_lower_case`: lower-casing beside the tokenizer's is not supported";
        return Err(keys.bad(text));
    }
    keys.refuse_set(&[
        "document_length",
        "query_expansion",
        "query_length",
        "tokenizer_name_or_path",
    ])?;
    let tasks = ["feature-extraction", "fill-mask", "sequence-classification", "text-generation"];
    keys.refuse_unless("transformer_task", &tasks)?;
    keys.refuse_unless("module_output_name", &["token_embeddings", "scores", "causal_logits"])?;
    // How the model is loaded and what its texts are padded with changes no text.
    let of_loading = ["attn_implementation", "dtype", "torch_dtype", "trust_remote_code"];
    let of_padding = ["padding_side", "trust_remote_code", "use_fast"];
    check_inner(keys, "model_args", &of_loading)?;
    check_inner(keys, "config_args", &of_loading)?;
    check_inner(keys, "tokenizer_args", &of_padding)?;
    check_inner(keys, "processing_kwargs", &["chat_template"])?;
    check_chat_template(keys)?;
    check_modality(keys)
}

/// Refuses what is in an object, but for these keys.
fn check_inner(keys: &Keys<'_>, name: &str, known: &[&str]) -> Result<(), EngineError> {
    match keys.keys.get(name) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(inner)) => match inner.keys().find(|k| !known.contains(&k.as_str())) {
            Some(key) => {
                Err(keys.bad(&format!("`{name}`: the key {} is not supported", quoted(key))))
            }
            None => Ok(()),
        },
        Some(_) => Err(keys.bad(&format!("`{name}` is no object"))),
    }
}

/// A chat template is rendered with a generation prompt.
fn check_chat_template(keys: &Keys<'_>) -> Result<(), EngineError> {
    let template =
        keys.keys.get("processing_kwargs").and_then(|kwargs| kwargs.get("chat_template"));
    let Some(template) = template.and_then(Value::as_object) else { return Ok(()) };
    let is_done = |(name, value): &(&String, &Value)| match name.as_str() {
        "add_generation_prompt" => **value == Value::Bool(true),
        "restore_suffix" => true,
        _ => false,
    };
    match template.iter().find(|entry| !is_done(entry)) {
        Some((name, value)) => {
            let asked = quoted(&format!("{name} {value}"));
            Err(keys
                .bad(&format!("`processing_kwargs`: {asked} of a chat template is not supported")))
        }
        None => Ok(()),
    }
}

/// A text goes through the model's `forward`.
fn check_modality(keys: &Keys<'_>) -> Result<(), EngineError> {
    let Some(modalities) = keys.keys.get("modality_config").and_then(Value::as_object) else {
        return Ok(());
    };
    let is_text = |name: &&str| modalities[*name]["method"] == "forward";
    let has = |name: &&str| modalities.contains_key(*name);
    let texts: Vec<&str> = ["text", "message"].into_iter().filter(has).collect();
    match !texts.is_empty() && texts.iter().all(is_text) {
        true => Ok(()),
        false => Err(keys.bad("`modality_config`: no text goes through the model's `forward`")),
    }
}

/// Checks the config of a Normalize module, if there is one.
pub(super) fn check_normalize(keys: &Keys<'_>) -> Result<(), EngineError> {
    keys.refuse_others(&["module_input_name", "module_output_name"])?;
    keys.refuse_unless("module_input_name", &["sentence_embedding"])?;
    keys.refuse_unless("module_output_name", &["sentence_embedding"])
}
