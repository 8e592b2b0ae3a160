//! Reads a model folder's tokenizer files into one `tokenizer.json` value that says everything:
//! named special tokens are added tokens, `add_bos_token` is in the post-processor.
//!
//! What transformers does in Python classes and is not matched: model-specific tokenizer classes of
//! transformers 5 that rebuild normalizer or pre-tokenizer from flags (`add_prefix_space`,
//! `legacy`),
//! and its patch of a regex some Mistral files got wrong. `tokenizer.json` is honoured as it is.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Value, json};

use super::TextError;
use super::tokenizer_json::{TokenizerJson, content};
use crate::engine::files::{self, MAX_CONFIG_BYTES};

/// Largest tokenizer.json that is read.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Names under which tokenizer_config.json and special_tokens_map.json list one token each.
const SPECIAL_TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer.json` with what the other files add to it.
pub(super) struct TokenizerFiles<'a> {
    /// tokenizer.json, completed.
    pub tokenizer: TokenizerJson<'a>,
    /// Named special tokens (`bos_token` -> `<s>`): what transformers passes to chat templates.
    pub special_tokens: BTreeMap<String, String>,
}

impl<'a> TokenizerFiles<'a> {
    /// The bytes of tokenizer.json.
    pub fn bytes(dir: &Path) -> Result<Vec<u8>, TextError> {
        let path = dir.join("tokenizer.json");
        files::read(&path, MAX_TOKENIZER_BYTES).map_err(|error| match error.kind() {
            ErrorKind::NotFound => missing(dir, &path, &error),
            _ => TextError::file(&path, error),
        })
    }

    /// Completes what `bytes` gave with the other files.
    pub fn read(dir: &Path, tokenizer: TokenizerJson<'a>) -> Result<Self, TextError> {
        let mut config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or(json!({}));
        let map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or(json!({}));
        let model = read_json(&dir.join("config.json"))?.unwrap_or(json!({}));
        for name in SPECIAL_TOKEN_NAMES {
            if config.get(name).is_none()
                && let Some(token) = map.get(name)
            {
                config[name] = token.clone();
            }
            // The last resort of base models converted without tokenizer_config.json.
            let id = model.get(format!("{name}_id")).and_then(first_id);
            if config.get(name).is_none()
                && let Some(token) = id.and_then(|id| tokenizer.token_of(id))
            {
                config[name] = token.into();
            }
        }
        Self::complete(tokenizer, &config)
            .map_err(|error| TextError::file(&dir.join("tokenizer.json"), error))
    }

    /// Puts what `config` (tokenizer_config.json) says into the tokenizer, as transformers'
    /// `TokenizersBackend.__init__` does.
    pub fn complete(mut tokenizer: TokenizerJson<'a>, config: &Value) -> Result<Self, String> {
        if !tokenizer.value["model"].is_object() {
            return Err("not a tokenizer.json: it has no `model`".to_string());
        }
        let special_tokens: BTreeMap<String, String> = SPECIAL_TOKEN_NAMES
            .iter()
            .filter_map(|name| Some((name.to_string(), content(config.get(*name)?)?)))
            .collect();
        add_missing_tokens(&mut tokenizer, config, &special_tokens)?;
        let flag = |name: &str| config.get(name).and_then(Value::as_bool);
        // Absent flags leave the file's own post-processor alone; one flag makes the other false.
        if flag("add_bos_token").is_some() || flag("add_eos_token").is_some() {
            let wanted = |name: &str, token: &str| {
                let token = special_tokens.get(token).filter(|_| flag(name) == Some(true))?;
                Some((token.clone(), tokenizer.id_of(token)?))
            };
            let (bos, eos) =
                (wanted("add_bos_token", "bos_token"), wanted("add_eos_token", "eos_token"));
            tokenizer.value["post_processor"] = template(bos, eos);
        }
        prefix_space_as_normalizer(&mut tokenizer.value);
        Ok(Self { tokenizer, special_tokens })
    }
}

fn missing(dir: &Path, path: &Path, error: &std::io::Error) -> TextError {
    let other = ["tokenizer.model", "spiece.model", "vocab.json", "tekken.json", "vocab.txt"]
        .into_iter()
        .find(|name| dir.join(name).exists());
    match other {
        Some(name) => TextError::file(
            path,
            format!(
                "not found, but {name} is there. Convert it once: python -c \"from transformers \
                 import AutoTokenizer as A; A.from_pretrained('{0}').save_pretrained('{0}')\"",
                dir.display()
            ),
        ),
        None => TextError::file(path, format!("{error}. A model folder needs its tokenizer.json")),
    }
}

fn read_json(path: &Path) -> Result<Option<Value>, TextError> {
    match files::read(path, MAX_CONFIG_BYTES) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value @ Value::Object(_)) => Ok(Some(value)),
            Ok(_) => Err(TextError::file(path, "not a JSON object")),
            Err(error) => Err(TextError::file(path, error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::file(path, error)),
    }
}

fn first_id(ids: &Value) -> Option<u64> {
    ids.as_u64().or_else(|| ids.get(0)?.as_u64())
}

/// Tokens that tokenizer_config.json knows and tokenizer.json does not list as added: with an id of
/// their own, or already in the vocabulary. (transformers also gives unknown ones new ids past the
/// vocabulary; no model has embeddings for those.)
fn add_missing_tokens(
    tokenizer: &mut TokenizerJson<'_>,
    config: &Value,
    special_tokens: &BTreeMap<String, String>,
) -> Result<(), String> {
    let mut missing = Vec::new();
    let listed = |tokens: &[Value], text: &str| tokens.iter().any(|t| t["content"] == text);
    let present = tokenizer.value["added_tokens"].as_array().cloned().unwrap_or_default();
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse::<u32>(), content(token)) else { continue };
        if !listed(&present, &text) && !listed(&missing, &text) {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            missing.push(json!({"id": id, "content": text, "single_word": flag("single_word"),
                "lstrip": flag("lstrip"), "rstrip": flag("rstrip"),
                "normalized": flag("normalized"), "special": flag("special")}));
        }
    }
    for text in special_tokens.values() {
        if !listed(&present, text)
            && !listed(&missing, text)
            && let Some(id) = tokenizer.id_of(text)
        {
            missing.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}));
        }
    }
    let mut all = present;
    all.extend(missing);
    for token in &mut all {
        let named = special_tokens.values().any(|text| token["content"] == *text);
        let object = token.as_object_mut().ok_or("an added token is not an object")?;
        for flag in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
            object.entry(flag).or_insert(Value::Bool(false));
        }
        if named {
            object.insert("special".to_string(), Value::Bool(true));
        }
    }
    tokenizer.value["added_tokens"] = Value::Array(all);
    Ok(())
}

/// `[bos] $A [eos]`, in the canonical spelling of tokenizers 1.0.
fn template(bos: Option<(String, u32)>, eos: Option<(String, u32)>) -> Value {
    let special =
        |token: &Option<(String, u32)>| token.as_ref().map(|(_, id)| json!({"ids": [id]}));
    let pieces = |sequences: &[&str]| -> Value {
        let one = |name: &&str| {
            [special(&bos), Some(json!({"seq": name})), special(&eos)].into_iter().flatten()
        };
        sequences.iter().flat_map(one).collect()
    };
    json!({"type": "TemplateProcessing", "single": pieces(&["A"]), "pair": pieces(&["A", "B"])})
}

/// tokenizers 1.0.0-rc.3 refuses `ByteLevel` with `add_prefix_space`; a normalizer that puts a
/// space
/// in front unless one is there is the same thing.
fn prefix_space_as_normalizer(tokenizer: &mut Value) {
    let pre_tokenizer = &mut tokenizer["pre_tokenizer"];
    if pre_tokenizer["type"] != "ByteLevel" || pre_tokenizer["add_prefix_space"] != true {
        return;
    }
    pre_tokenizer["add_prefix_space"] = Value::Bool(false);
    let prepend = json!({"type": "Replace", "pattern": {"Regex": r"\A(?=[^ ])"}, "content": " "});
    tokenizer["normalizer"] = match tokenizer["normalizer"].take() {
        Value::Null => prepend,
        normalizer => json!({"type": "Sequence", "normalizers": [normalizer, prepend]}),
    };
}
