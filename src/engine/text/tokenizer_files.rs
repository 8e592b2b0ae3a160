//! Reads a model folder's tokenizer files into one `tokenizer.json` value that says everything:
//! named special tokens are added tokens, and there is a `tokenizer.json` even if no file is it.
//!
//! What transformers does in Python classes and is not matched: model-specific tokenizer classes of
//! transformers 5 that rebuild normalizer or pre-tokenizer from flags (`add_prefix_space`,
//! `legacy`),
//! and its patch of a regex some Mistral files got wrong. `tokenizer.json` is honoured as it is,
//! but for the lower case of SigLIP 2.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Value, json};

use super::TextError;
use super::tokenizer_json::{TokenizerJson, content};
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES};

/// Largest tokenizer.json that is read.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

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

/// `tokenizer_config.json`, with what older files beside it say.
pub(super) struct TokenizerConfig {
    pub value: Value,
    /// The ids that config.json gives special tokens: the last resort of base models that were
    /// converted without `tokenizer_config.json`.
    ids: BTreeMap<&'static str, u64>,
    /// Texts are in lower case, which its class in transformers sees to (SigLIP 2).
    lowers_case: bool,
}

impl TokenizerConfig {
    /// Reads it as transformers' `from_pretrained` does.
    pub(crate) fn read(dir: &Path) -> Result<Self, TextError> {
        let read = |name: &str| read_json_of(&dir.join(name), MAX_CONFIG_BYTES);
        let mut value = read("tokenizer_config.json")?.unwrap_or(json!({}));
        if !value["added_tokens_decoder"].is_object() {
            // Those of special_tokens_map.json do not make a token of added_tokens.json special.
            let mut special: Vec<String> = extra_tokens(&value).collect();
            for (name, token) in read("special_tokens_map.json")?.iter().flat_map(entries) {
                value[name] = token.clone();
            }
            special.extend(SPECIAL_TOKEN_NAMES.iter().filter_map(|name| content(&value[*name])));
            let added = read("added_tokens.json")?;
            let token = |(text, id): (&String, &Value)| {
                let special = special.contains(text);
                let token = json!({"content": text, "normalized": !special, "special": special});
                (id.to_string(), token)
            };
            let added = added.iter().flat_map(entries).map(token).collect();
            value["added_tokens_decoder"] = Value::Object(added);
        }
        let model = read("config.json")?.unwrap_or_default();
        let id = |name: &&'static str| Some((*name, first_id(&model[format!("{name}_id")])?));
        let ids = SPECIAL_TOKEN_NAMES.iter().filter_map(id).collect();
        let lowers_case =
            model["model_type"] == "siglip2" || value["tokenizer_class"] == "Siglip2Tokenizer";
        Ok(Self { value, ids, lowers_case })
    }

    /// A config without files beside it.
    pub(crate) fn of(value: Value) -> Self {
        Self { value, ids: BTreeMap::new(), lowers_case: false }
    }

    /// Whether a flag is set; null is not.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.value[name] == true
    }

    /// Names special tokens that are not named yet, not even by null.
    pub(crate) fn set_defaults(&mut self, tokens: &[(&str, &str)]) {
        for (name, token) in tokens {
            if self.value.get(*name).is_none() {
                self.value[*name] = (*token).into();
            }
        }
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

impl<'a> TokenizerFiles<'a> {
    /// The bytes of tokenizer.json; None if there is none.
    pub(crate) fn bytes(dir: &Path) -> Result<Option<Vec<u8>>, TextError> {
        let path = dir.join("tokenizer.json");
        match files::read(&path, MAX_TOKENIZER_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TextError::io(&path, &error)),
        }
    }

    /// Puts what `config` says into the tokenizer, as transformers' `TokenizersBackend.__init__`
    /// does. `add_bos_token` and `add_eos_token` count for a tokenizer without a `tokenizer.json`:
    /// transformers 5 ignores them beside that file.
    pub(crate) fn complete(
        mut tokenizer: TokenizerJson<'a>,
        config: &TokenizerConfig,
        is_converted: bool,
    ) -> Result<Self, String> {
        if !tokenizer.value["model"].is_object() {
            return Err("not a tokenizer.json: it has no `model`".to_string());
        }
        let mut special_tokens = BTreeMap::new();
        for name in SPECIAL_TOKEN_NAMES {
            let token = match (config.value.get(name), config.ids.get(name)) {
                (Some(token), _) => content(token),
                (None, Some(id)) => tokenizer.token_of(*id),
                (None, None) => None,
            };
            special_tokens.extend(token.map(|token| (name.to_string(), token)));
        }
        special_tokens.extend(model_tokens(&config.value));
        add_missing_tokens(&mut tokenizer, &config.value, &special_tokens)?;
        if is_converted {
            let wanted = |name: &str, token: &str| {
                let token = special_tokens.get(token).filter(|_| config.flag(name))?;
                Some((token.clone(), tokenizer.id_of(token)?))
            };
            let (bos, eos) =
                (wanted("add_bos_token", "bos_token"), wanted("add_eos_token", "eos_token"));
            tokenizer.value["post_processor"] = template(bos, eos);
        }
        // rc.3 refuses `byte_fallback` without tokens for bytes; 0.23 has nothing to fall back to.
        let mut bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
        if tokenizer.value["model"]["byte_fallback"] == true
            && bytes.all(|token| tokenizer.id_of(&token).is_none())
        {
            tokenizer.value["model"]["byte_fallback"] = Value::Bool(false);
        }
        find_tokens_in_plain_text(&mut tokenizer.value);
        if config.lowers_case {
            lower_case(&mut tokenizer.value["normalizer"]);
        }
        flatten_sequences(&mut tokenizer.value);
        prefix_space_as_normalizer(&mut tokenizer.value);
        Ok(Self { tokenizer, special_tokens })
    }
}

/// Lower case comes first.
fn lower_case(normalizer: &mut Value) {
    let own = normalizer.take();
    let own = Some(own).filter(|own| !own.is_null());
    let all: Vec<Value> = [json!({"type": "Lowercase"})].into_iter().chain(own).collect();
    *normalizer = json!({"type": "Sequence", "normalizers": all});
}

/// What to do with a tokenizer that is in files which are not read.
pub(super) fn save_pretrained(dir: &Path) -> String {
    format!(
        "Convert it once: python -c \"from transformers import AutoTokenizer as A; \
         A.from_pretrained('{0}').save_pretrained('{0}')\"",
        dir.display()
    )
}

/// The folder has no tokenizer.
pub(super) fn missing(dir: &Path) -> TextError {
    let path = dir.join("tokenizer.json");
    let other = ["spiece.model", "vocab.json", "merges.txt", "tekken.json", "vocab.txt"]
        .into_iter()
        .find(|name| dir.join(name).exists());
    match other {
        Some(name) => {
            let message = format!("not found, but {name} is there. {}", save_pretrained(dir));
            TextError::file(&path, message)
        }
        None => TextError::file(
            &path,
            "not found. Put it there, or name a folder or a model that has it with `settings.tokenizer`",
        ),
    }
}

/// An object in a file of at most `max_bytes`; None if there is no file.
pub(super) fn read_json_of(path: &Path, max_bytes: u64) -> Result<Option<Value>, TextError> {
    match files::read(path, max_bytes) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value @ Value::Object(_)) => Ok(Some(value)),
            Ok(_) => Err(TextError::file(path, "not a JSON object")),
            Err(error) => Err(TextError::file(path, error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::io(path, &error)),
    }
}

/// Special tokens without a name of their own.
fn extra_tokens(config: &Value) -> impl Iterator<Item = String> {
    extra_token_values(config).into_iter().filter_map(|token| content(&token))
}

fn extra_token_values(config: &Value) -> Vec<Value> {
    let of = |name: &str| match &config[name] {
        Value::Array(tokens) => tokens.clone(),
        Value::Object(tokens) => tokens.values().cloned().collect(),
        _ => Vec::new(),
    };
    let extra = of("extra_special_tokens");
    if extra.is_empty() { of("additional_special_tokens") } else { extra }
}

/// Named special tokens of one model, as `image_token`: every other key that ends so, and the
/// entries of `extra_special_tokens` where it is an object.
fn model_tokens(config: &Value) -> impl Iterator<Item = (String, String)> {
    let is_own = |name: &str| name.ends_with("_token") && !SPECIAL_TOKEN_NAMES.contains(&name);
    let keys = entries(config).filter(move |(name, _)| is_own(name));
    let named = ["model_specific_special_tokens", "extra_special_tokens"];
    let named = named.into_iter().flat_map(|name| entries(&config[name]));
    keys.chain(named).filter_map(|(name, token)| Some((name.clone(), content(token)?)))
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
    let named = special_tokens.keys().map(|name| config[name].clone());
    // Those that only config.json has an id for.
    let named = named.zip(special_tokens.values()).map(|(token, text)| match token {
        Value::Null => text.clone().into(),
        token => token,
    });
    for token in named.chain(extra_token_values(config)) {
        let Some(text) = content(&token) else { continue };
        if !listed(&present, &text)
            && !listed(&missing, &text)
            && let Some(id) = tokenizer.id_of(&text)
        {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            missing.push(json!({"id": id, "content": text, "single_word": flag("single_word"),
                "lstrip": flag("lstrip"), "rstrip": flag("rstrip"),
                "normalized": flag("normalized"),
                "special": token["special"].as_bool().unwrap_or(true)}));
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
/// space in front unless one is there is the same thing.
fn prefix_space_as_normalizer(tokenizer: &mut Value) {
    let pre_tokenizer = &mut tokenizer["pre_tokenizer"];
    let byte_level = match pre_tokenizer["pretokenizers"].as_array().map(Vec::len) {
        Some(1) => &mut pre_tokenizer["pretokenizers"][0],
        // In a longer sequence every part that the others cut gets a space: that is refused.
        Some(_) => return,
        None => pre_tokenizer,
    };
    if byte_level["type"] != "ByteLevel" || byte_level["add_prefix_space"] != true {
        return;
    }
    byte_level["add_prefix_space"] = Value::Bool(false);
    let prepend = json!({"type": "Replace", "pattern": {"Regex": r"\A(?=[^ ])"}, "content": " "});
    tokenizer["normalizer"] = match tokenizer["normalizer"].take() {
        Value::Null => prepend,
        normalizer => json!({"type": "Sequence", "normalizers": [normalizer, prepend]}),
    };
}

/// Without a normalizer, tokens are looked for in the text as it is, whether they are `normalized`
/// or not. What puts spaces in front is a pre-tokenizer in the file, but a normalizer for rc.3, and
/// must not come before that.
fn find_tokens_in_plain_text(tokenizer: &mut Value) {
    if tokenizer["normalizer"].is_null() {
        for token in tokenizer["added_tokens"].as_array_mut().into_iter().flatten() {
            token["normalized"] = Value::Bool(false);
        }
    }
}

/// A pre-tokenizer in a `Sequence` of its own is one of the outer `Sequence`; rc.3 refuses it.
fn flatten_sequences(tokenizer: &mut Value) {
    fn members(pre_tokenizer: &Value) -> Vec<Value> {
        match (pre_tokenizer["pretokenizers"].as_array(), &pre_tokenizer["type"]) {
            (Some(inner), kind) if kind == "Sequence" => inner.iter().flat_map(members).collect(),
            _ => vec![pre_tokenizer.clone()],
        }
    }
    let pre_tokenizer = &mut tokenizer["pre_tokenizer"];
    let inner = pre_tokenizer["pretokenizers"].as_array().into_iter().flatten();
    if pre_tokenizer["type"] == "Sequence" && inner.into_iter().any(|m| m["type"] == "Sequence") {
        pre_tokenizer["pretokenizers"] = members(pre_tokenizer).into();
    }
}
