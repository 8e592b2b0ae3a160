//! adapter_config.json, read key by key: what changes what an adapter computes, what is refused,
//! and what changes nothing.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::Value;

use super::targets::Targets;
use crate::hf_config::{HfConfig, Section};
use crate::patterns;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES, quoted};

/// The file's name in an adapter's folder.
pub(super) const CONFIG_FILE: &str = "adapter_config.json";

/// peft's own, where the file does not say.
const DEFAULT_RANK: usize = 8;
const DEFAULT_ALPHA: f64 = 8.0;

/// Most keys of `rank_pattern` and of `alpha_pattern`: more than any model has modules.
const MAX_PATTERNS: usize = 1 << 14;

/// Most of them that are patterns and not names.
const MAX_REGEXES: usize = 256;

/// Valid values of `r`, in words.
const RANK: &str = "a rank of 1 or more";

/// Modules that are saved whole: the heads of classifiers, as peft adds them for such tasks.
pub(super) const HEADS: [&str; 2] = ["score", "classifier"];

/// Switches that have to be off, and what they are.
const SWITCHES: [(&str, &str); 4] = [
    ("use_dora", "DoRA"),
    ("lora_bias", "biases of B"),
    ("use_qalora", "QALoRA"),
    ("ensure_weight_tying", "adapters that two layers share"),
];

/// Keys that have to be absent, null or empty, and what they are.
const PARTS: [(&str, &str); 9] = [
    ("alora_invocation_tokens", "adapters that begin at a token (aLoRA)"),
    ("arrow_config", "adapters that are mixed by a router (Arrow)"),
    ("kasa_config", "KaSA, which changes the base's weights"),
    ("layer_replication", "layers that are there several times"),
    ("megatron_config", "Megatron's layers"),
    ("monteclora_config", "weights that are drawn at random (MonteCLoRA)"),
    ("target_parameters", "adapters of parameters that are no modules"),
    ("trainable_token_indices", "tokens that were trained"),
    ("use_bdlora", "block-diagonal matrices (BD-LoRA)"),
];

/// Initializations of A and B that leave the base unchanged.
const STARTS: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

/// (why they are harmless, keys)
const HARMLESS: [(&str, &[&str]); 3] = [
    (
        "says what the adapter is, or where it came from",
        &[
            "auto_mapping",
            "base_model_name_or_path",
            "inference_mode",
            "peft_version",
            "revision",
            "unsloth_version",
        ],
    ),
    (
        "training alone: dropout, first values, memory",
        &[
            "corda_config",
            "eva_config",
            "lora_dropout",
            "lora_ga_config",
            "loftq_config",
            "megatron_core",
            "qalora_group_size",
            "runtime_config",
            "velora_config",
        ],
    ),
    (
        "how the base keeps its weights: A is (rank, inputs) and B (outputs, rank) in any case",
        &["fan_in_fan_out", "merge_weights"],
    ),
];

/// Ranks and scales of adapter_config.json.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    config: HfConfig,
    rank: usize,
    alpha: f64,
    /// The scale is alpha / sqrt(rank), and not alpha / rank.
    use_rslora: bool,
    ranks: Vec<(Pattern, usize)>,
    alphas: Vec<(Pattern, f64)>,
    /// Heads that may be stored whole.
    pub heads: Vec<&'static str>,
    /// Modules with A and B.
    pub targets: Targets,
}

impl AdapterConfig {
    /// Reads it from a folder.
    ///
    /// # Errors
    /// It is missing or corrupt, or asks for what is not computed.
    pub(super) fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(CONFIG_FILE);
        let text = files::read_text(&path, MAX_CONFIG_BYTES)
            .map_err(|error| files::unreadable(&path, &error))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads its text; `path` is for messages.
    ///
    /// # Errors
    /// As `open`.
    pub(super) fn parse(text: &str, path: &str) -> Result<Self, EngineError> {
        let config = HfConfig::parse(text, path)?;
        let root = config.root();
        root.ignore(&HARMLESS.map(|(_, keys)| keys).concat());
        refuse_other_methods(&root)?;
        let rank = root.size_or_none("r", DEFAULT_RANK)?;
        let Some(rank @ 1..) = rank else {
            return Err(root.error(format!("`r` should be {RANK}")));
        };
        let alpha = root.number("lora_alpha")?.unwrap_or(DEFAULT_ALPHA);
        let use_rslora = root.flag("use_rslora")?.unwrap_or(false);
        let ranks = patterns_of(&root, ("rank_pattern", RANK), |section, key| {
            section.optional_size(key).map(|size| size.filter(|size| *size > 0))
        })?;
        let alpha_of = |section: &Section<'_>, key: &str| section.number(key);
        let alphas = patterns_of(&root, ("alpha_pattern", "a number"), alpha_of)?;
        let heads = heads(&root)?;
        let targets = Targets::read(&root)?;
        let unread = config.unread();
        if !unread.is_empty() {
            return Err(config.error(format!(
                "{}: no such key of an adapter is known, so it may compute something else; leave \
                 it out of a copy if it changes nothing",
                quoted(&unread.join(", "))
            )));
        }
        Ok(Self { config, rank, alpha, use_rslora, ranks, alphas, heads, targets })
    }

    /// The rank of a module, and the factor of B A x. alpha / rank is computed as peft does, in
    /// f64, and rounded once.
    ///
    /// # Errors
    /// The factor is no number of f32, or a pattern takes too long.
    pub(super) fn rank_and_scale(&self, module: &str) -> Result<(usize, f32), EngineError> {
        let rank = first_match(&self.ranks, module).map_err(|text| self.error(text))?;
        let alpha = first_match(&self.alphas, module).map_err(|text| self.error(text))?;
        let (rank, alpha) = (rank.unwrap_or(self.rank), alpha.unwrap_or(self.alpha));
        let divisor = match self.use_rslora {
            true => (rank as f64).sqrt(),
            false => rank as f64,
        };
        let scale = (alpha / divisor) as f32;
        match scale.is_finite() {
            true => Ok((rank, scale)),
            false => Err(self.error(format!(
                "alpha {alpha:e} of {} (`lora_alpha`, `alpha_pattern`) is too large for float32",
                quoted(module)
            ))),
        }
    }

    /// An error of this file.
    pub(super) fn error(&self, text: impl std::fmt::Display) -> EngineError {
        self.config.error(text)
    }
}

/// Refuses what is no LoRA, or a kind of it that is not computed.
fn refuse_other_methods(root: &Section<'_>) -> Result<(), EngineError> {
    let refused = |key: &str, what: &str| {
        let value = root.value(key).map_or("null".to_owned(), Value::to_string);
        root.error(format!("`{key}` of {} is not supported: {what}", quoted(&value)))
    };
    match root.text("peft_type")? {
        Some("LORA") => {}
        None => return Err(root.error("`peft_type` is missing; `LORA` is supported")),
        Some(_) => return Err(refused("peft_type", "of peft's methods `LORA` is")),
    }
    for (key, what) in SWITCHES {
        if root.flag(key)? == Some(true) {
            return Err(refused(key, what));
        }
    }
    for (key, what) in PARTS {
        let is_empty = |value: &Value| match value {
            Value::Object(keys) => keys.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Bool(is_on) => !is_on,
            _ => false,
        };
        if !root.value(key).is_none_or(is_empty) {
            return Err(refused(key, what));
        }
    }
    if !matches!(root.text("bias")?, None | Some("none")) {
        return Err(refused("bias", "an adapter with biases of the base; `none` is"));
    }
    match root.value("init_lora_weights") {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(start)) if STARTS.contains(&start.to_lowercase().as_str()) => Ok(()),
        Some(_) => Err(refused(
            "init_lora_weights",
            "the base's weights may have been changed before training, and the adapter is of those; \
             peft's save_pretrained(path_initial_model_for_weight_conversion=..) writes one of the \
             weights as published",
        )),
    }
}

/// Heads that the file may store whole. peft adds them for these tasks; older versions do not
/// write so.
fn heads(root: &Section<'_>) -> Result<Vec<&'static str>, EngineError> {
    let listed = root.texts("modules_to_save")?.unwrap_or_default();
    if let Some(other) = listed.iter().find(|name| !HEADS.contains(name)) {
        return Err(root.error(format!(
            "`modules_to_save` has {}: of modules that are saved whole only the heads of classifiers \
             are read, {}",
            quoted(other),
            HEADS.join(" and ")
        )));
    }
    let is_task = matches!(root.text("task_type")?, Some("SEQ_CLS" | "TOKEN_CLS"));
    Ok(HEADS.into_iter().filter(|head| is_task || listed.contains(head)).collect())
}

/// A key of `rank_pattern` or `alpha_pattern`: Python's `^(.*\.)?(key)$`.
#[derive(Debug)]
enum Pattern {
    /// Letters, digits, `_` and `.`, which is any character.
    Name(String),
    /// Anything else.
    Regex(Box<Regex>),
}

impl Pattern {
    fn is_match(&self, module: &str) -> Result<bool, String> {
        let name = match self {
            Self::Regex(regex) => return patterns::is_match(regex, module),
            Self::Name(name) => name.as_bytes(),
        };
        let Some(start) = module.len().checked_sub(name.len()) else { return Ok(false) };
        let (before, end) = module.as_bytes().split_at(start);
        let is_same = end.iter().zip(name).all(|(a, b)| a == b || *b == b'.');
        Ok(is_same && before.last().is_none_or(|last| *last == b'.'))
    }
}

/// The values of a table of patterns, in the file's order.
fn patterns_of<T>(
    root: &Section<'_>,
    (table, what): (&str, &str),
    value: impl Fn(&Section<'_>, &str) -> Result<Option<T>, EngineError>,
) -> Result<Vec<(Pattern, T)>, EngineError> {
    let Some(section) = root.section(table)? else { return Ok(Vec::new()) };
    let (mut found, mut num_regexes) = (Vec::new(), 0);
    for key in section.names() {
        let Some(value) = value(&section, key)? else {
            return Err(root.error(format!("`{table}` of {} should be {what}", quoted(key))));
        };
        let is_name = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
        let pattern = match is_name {
            true => Pattern::Name(key.to_owned()),
            false => {
                num_regexes += 1;
                let regex = patterns::compiled(&format!(r"^(.*\.)?({key})$"), key);
                let regex = regex.map_err(|text| root.error(format!("`{table}`: {text}")))?;
                Pattern::Regex(Box::new(regex))
            }
        };
        if num_regexes > MAX_REGEXES || found.len() == MAX_PATTERNS {
            return Err(root.error(format!(
                "`{table}` has more than {MAX_PATTERNS} names, or {MAX_REGEXES} patterns"
            )));
        }
        found.push((pattern, value));
    }
    Ok(found)
}

/// The value of the first pattern that matches.
fn first_match<T: Copy>(patterns: &[(Pattern, T)], module: &str) -> Result<Option<T>, String> {
    for (pattern, value) in patterns {
        if pattern.is_match(module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}
