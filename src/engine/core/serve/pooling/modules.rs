//! The files of sentence-transformers beside config.json: which pooling, whether vectors are
//! normalized, how long texts may be, and what stands before them. What is not implemented is
//! refused, never replaced.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::Pooling;
use super::dense::DenseModule;
use super::listed_module::{ListedModule, MODULES};
use super::module_keys::{Keys, check_model, check_normalize, check_transformer};
use vllm_batch_api::compared::Similarity;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES, quoted};
use vllm_batch_base::pooling::{PoolingType, TokenClasses};

/// Texts that stand before texts, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Each by its name.
    pub by_name: BTreeMap<String, String>,
    /// The one that stands there unless another is asked for.
    pub default: Option<String>,
}

/// All that these files say.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub pooling: Pooling,
    /// Behind the pooling, in their order.
    pub dense: Vec<DenseModule>,
    /// How often sparse vectors take the logarithm; None: vectors are dense.
    pub splade: Option<usize>,
    /// Of a language model that scores pairs: by which tokens.
    pub logit_score: Option<TokenClasses>,
    /// What becomes of a cross-encoder's outputs, by the name of a class of PyTorch's.
    pub activation: Option<String>,
    /// There was a pooling.
    pub is_pooled: bool,
    pub prompts: Prompts,
    /// None: they do not say.
    pub similarity: Option<Similarity>,
    pub max_seq_length: Option<usize>,
}

/// Poolings by the flags that older files have.
const FLAGS: &[(&str, &str)] = &[
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_lasttoken", "lasttoken"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
];

/// Prompts, in the model's folder.
pub const PROMPTS: &str = "config_sentence_transformers.json";

/// What a transformer module is told of its texts, in the model's folder: the first that is there.
pub const TRANSFORMER_FILES: &[&str] = &[
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

impl Modules {
    /// How vectors are made: by `default`, where no module says it.
    pub(super) fn pooling_or(&self, default: PoolingType) -> Pooling {
        match self.is_pooled {
            true => self.pooling.clone(),
            false => Pooling { pooling_type: default, ..self.pooling.clone() },
        }
    }

    /// Reads modules.json and what it names, config_sentence_transformers.json and
    /// sentence_bert_config.json; a folder without them says nothing.
    ///
    /// # Errors
    /// A file is corrupt, or asks for what is not implemented.
    pub(super) fn read(dir: &Path) -> Result<Self, EngineError> {
        let mut modules = Self::default();
        if let Some(list) = ListedModule::list(dir)? {
            modules.pooling.normalize = false;
            for module in &list {
                modules.add(dir, module)?;
            }
        }
        for name in TRANSFORMER_FILES {
            let path = dir.join(name);
            let Some(Value::Object(keys)) = read(&path)? else { continue };
            check_transformer(&Keys { keys: &keys, path: &path })?;
            modules.max_seq_length = keys
                .get("max_seq_length")
                .and_then(Value::as_u64)
                .filter(|length| *length > 0)
                .map(|length| length as usize);
            break;
        }
        modules.read_prompts(&dir.join(PROMPTS))?;
        Ok(modules)
    }

    /// Takes the next module.
    fn add(&mut self, dir: &Path, module: &ListedModule) -> Result<(), EngineError> {
        let config = dir.join(&module.folder).join("config.json");
        let has_folder = !module.folder.is_empty();
        let makes_vectors = self.splade.is_none() && self.logit_score.is_none();
        let is_open = self.is_pooled && makes_vectors && !self.pooling.normalize;
        match module.kind() {
            "Transformer" | "MLMTransformer" if !has_folder && !self.is_pooled => Ok(()),
            "Pooling" if has_folder && !self.is_pooled => {
                self.is_pooled = true;
                self.read_pooling(&config)
            }
            "SpladePooling" if has_folder && !self.is_pooled => {
                self.is_pooled = true;
                self.splade = Some(read_splade(&config)?);
                Ok(())
            }
            "LogitScore" if has_folder && !self.is_pooled => {
                self.is_pooled = true;
                self.logit_score = Some(read_logit_score(&config)?);
                Ok(())
            }
            "Dense" if has_folder && is_open => {
                self.dense.push(DenseModule::read(dir, module)?);
                Ok(())
            }
            "Normalize" if is_open => {
                if let Some(Value::Object(keys)) = read(&config)?.filter(|_| has_folder) {
                    check_normalize(&Keys { keys: &keys, path: &config })?;
                }
                self.pooling.normalize = true;
                Ok(())
            }
            _ => {
                let (class, folder) = (quoted(&module.class), quoted(&module.folder));
                let text = match module.is_known() {
                    true => format!("a module of type {class} in {folder} is not in its place"),
                    false => format!("a module of type {class} in {folder} is not supported"),
                };
                Err(bad(&dir.join(MODULES), &text))
            }
        }
    }

    fn read_pooling(&mut self, path: &Path) -> Result<(), EngineError> {
        let Some(Value::Object(keys)) = read(path)? else {
            return Err(bad(path, "the config of the pooling is missing"));
        };
        let flags = FLAGS.iter().map(|(flag, _)| *flag);
        let known = ["embedding_dimension", "word_embedding_dimension", "include_prompt"];
        let known: Vec<&str> = flags.chain(known).chain(["pooling_mode"]).collect();
        Keys { keys: &keys, path }.refuse_others(&known)?;
        let names = match keys.get("pooling_mode") {
            None | Some(Value::Null) => names_of_flags(&keys),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(name) => vec![name.as_str().unwrap_or_default()],
        };
        // Several are put behind each other there.
        let name = names.join(" and ");
        self.pooling.pooling_type = PoolingType::of_name(&name).ok_or_else(|| {
            bad(path, &format!("a pooling of {} is not supported", quoted(&name)))
        })?;
        let include_prompt = keys.get("include_prompt").and_then(Value::as_bool);
        self.pooling.include_prompt = include_prompt.unwrap_or(true);
        Ok(())
    }

    /// Prompts, and how vectors are compared.
    fn read_prompts(&mut self, path: &Path) -> Result<(), EngineError> {
        let Some(keys) = read(path)? else { return Ok(()) };
        let Value::Object(keys) = keys else { return Err(bad(path, "it is no object")) };
        check_model(&Keys { keys: &keys, path })?;
        if let Some(prompts) = keys.get("prompts").and_then(Value::as_object) {
            for (name, prompt) in prompts {
                let prompt = match prompt {
                    Value::Null => "",
                    prompt => prompt.as_str().ok_or_else(|| bad(path, "a prompt is no text"))?,
                };
                self.prompts.by_name.insert(name.clone(), prompt.to_owned());
            }
        }
        self.pooling.truncated = match keys.get("truncate_dim") {
            None | Some(Value::Null) => None,
            Some(size) => {
                let size = size.as_u64().filter(|size| (1..1 << 32).contains(size));
                let size = size.ok_or_else(|| bad(path, "`truncate_dim` is no size"))?;
                Some(size as usize)
            }
        };
        let default = keys.get("default_prompt_name").and_then(Value::as_str);
        if let Some(name) = default.filter(|name| !self.prompts.by_name.contains_key(*name)) {
            let text = format!("`default_prompt_name` {} is no prompt", quoted(name));
            return Err(bad(path, &text));
        }
        self.prompts.default = default.map(str::to_owned);
        let activation = keys.get("activation_fn").and_then(Value::as_str);
        self.activation = activation.map(str::to_owned);
        if let Some(name) = keys.get("similarity_fn_name").and_then(Value::as_str) {
            let known = Similarity::of_name(name);
            let unknown = || format!("`similarity_fn_name` {} is not supported", quoted(name));
            self.similarity = Some(known.ok_or_else(|| bad(path, &unknown()))?);
        }
        Ok(())
    }
}

/// The tokens whose logits make a score.
fn read_logit_score(path: &Path) -> Result<TokenClasses, EngineError> {
    let Some(Value::Object(keys)) = read(path)? else {
        return Err(bad(path, "the config of the score is missing"));
    };
    let known = ["true_token_id", "false_token_id", "module_input_name"];
    Keys { keys: &keys, path }.refuse_others(&known)?;
    let input = keys.get("module_input_name").and_then(Value::as_str).unwrap_or("causal_logits");
    if input != "causal_logits" {
        return Err(bad(path, &format!("a score of {} is not supported", quoted(input))));
    }
    let id = |key: &str| match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.map(Some).ok_or_else(|| bad(path, &format!("`{key}` is no id of a token")))
        }
    };
    let yes = id("true_token_id")?.ok_or_else(|| bad(path, "it has no `true_token_id`"))?;
    Ok(TokenClasses::of_ids(yes, id("false_token_id")?))
}

/// How often sparse vectors take the logarithm.
fn read_splade(path: &Path) -> Result<usize, EngineError> {
    let Some(Value::Object(keys)) = read(path)? else {
        return Err(bad(path, "the config of the pooling is missing"));
    };
    let known = [
        "pooling_strategy",
        "activation_function",
        "embedding_dimension",
        "word_embedding_dimension",
        "chunk_size",
    ];
    Keys { keys: &keys, path }.refuse_others(&known)?;
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    let strategy = text("pooling_strategy").unwrap_or("max");
    if strategy != "max" {
        return Err(bad(path, &format!("a pooling of {} is not supported", quoted(strategy))));
    }
    match text("activation_function").unwrap_or("relu") {
        "relu" => Ok(1),
        "log1p_relu" => Ok(2),
        other => Err(bad(path, &format!("an activation of {} is not supported", quoted(other)))),
    }
}

/// The longest text that a tokenizer's files name, in tokens; None: they name none.
///
/// # Errors
/// tokenizer_config.json is corrupt.
pub(super) fn length_of_tokenizer(dir: &Path) -> Result<Option<usize>, EngineError> {
    let Some(keys) = read(&dir.join("tokenizer_config.json"))? else { return Ok(None) };
    // Without a limit transformers writes 10^30, which becomes the largest number.
    let length = keys.get("model_max_length").and_then(Value::as_f64);
    Ok(length.filter(|length| *length >= 1.0).map(|length| length as usize))
}

/// The poolings whose flags are on; the mean, where none is.
fn names_of_flags(keys: &Map<String, Value>) -> Vec<&'static str> {
    let is_on = |flag: &str| keys.get(flag).and_then(Value::as_bool) == Some(true);
    let on: Vec<_> = FLAGS.iter().filter(|(flag, _)| is_on(flag)).map(|(_, name)| *name).collect();
    if on.is_empty() { vec!["mean"] } else { on }
}

/// A JSON file; None: it is not there.
pub(super) fn read(path: &Path) -> Result<Option<Value>, EngineError> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let text = files::read_text(path, MAX_CONFIG_BYTES)
        .map_err(|error| files::unreadable(path, &error))?;
    serde_json::from_str(&text).map(Some).map_err(|error| bad(path, &error.to_string()))
}

pub(super) fn bad(path: &Path, text: &str) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_files(files: &[(&str, &str)]) -> Result<Modules, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Modules::read(folder.path()).map_err(|error| error.to_string())
    }

    const TRANSFORMER: &str = r#"{"path": "", "type": "sentence_transformers.models.Transformer"}"#;
    const POOLING: &str =
        r#"{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}"#;
    const MEAN: &str = r#"{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#;

    #[test]
    fn a_folder_says_how_vectors_are_made() {
        let nothing = of_files(&[]).unwrap();
        assert_eq!((nothing.pooling, nothing.max_seq_length), (Pooling::default(), None));
        let list = |more: &str| format!("[{TRANSFORMER}, {POOLING}{more}]");
        let files = |more: &str, pooling: &str| {
            of_files(&[("modules.json", &list(more)), ("1_Pooling/config.json", pooling)])
        };
        let normalize = r#", {"path": "2", "type": "sentence_transformers.models.Normalize"}"#;
        let mean = files(normalize, MEAN).unwrap().pooling;
        assert_eq!((mean.pooling_type, mean.normalize), (PoolingType::Mean, true));
        let last = files("", r#"{"pooling_mode": "lasttoken"}"#).unwrap().pooling;
        assert_eq!((last.pooling_type, last.normalize), (PoolingType::Last, false));
        for (pooling, pooling_type) in [
            (r#"{"pooling_mode_max_tokens": true}"#, PoolingType::Max),
            (r#"{"pooling_mode_mean_sqrt_len_tokens": true}"#, PoolingType::MeanSqrtLen),
            (r#"{"pooling_mode": ["max"]}"#, PoolingType::Max),
            (r#"{"pooling_mode_cls_token": false}"#, PoolingType::Mean),
            (r#"{"pooling_mode": "cls", "pooling_mode_max_tokens": true}"#, PoolingType::Cls),
            (r#"{"pooling_mode": "weightedmean"}"#, PoolingType::WeightedMean),
        ] {
            assert_eq!(files("", pooling).unwrap().pooling.pooling_type, pooling_type);
        }
        for (more, pooling, what) in [
            ("", r#"{"pooling_mode": "median"}"#, "`median`"),
            ("", r#"{"pooling_mode": ["cls", "mean"]}"#, "`cls and mean`"),
            ("", r#"{"pooling_mode": "cls", "dropout": 1}"#, "`dropout`"),
            (
                "",
                r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#,
                "`cls and mean`",
            ),
            (r#", {"path": "2_LSTM", "type": "x.LSTM"}"#, MEAN, "`x.LSTM`"),
            (r#", {"path": "1_Pooling", "type": "x.Pooling"}"#, MEAN, "not in its place"),
            (r#", {"path": "2_Dense", "type": "x.Dense"}"#, MEAN, "2_Dense/config.json"),
            (r#", {"path": "../a", "type": "x.Pooling"}"#, MEAN, "`../a`"),
        ] {
            let error = files(more, pooling).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let normalized = format!("{normalize}, {}", r#"{"path": "3_Dense", "type": "x.Dense"}"#);
        assert!(files(&normalized, MEAN).unwrap_err().contains("not in its place"));
    }

    #[test]
    fn sparse_vectors_have_a_pooling_of_their_own() {
        let list = r#"[{"path": "", "type": "x.MLMTransformer"},
            {"path": "1_SpladePooling", "type": "x.SpladePooling"}]"#;
        let of = |config: &str| {
            let files = [("modules.json", list), ("1_SpladePooling/config.json", config)];
            of_files(&files).map(|modules| modules.splade)
        };
        let relu = r#"{"pooling_strategy": "max", "activation_function": "relu"}"#;
        assert_eq!(of(relu), Ok(Some(1)));
        assert_eq!(of(r#"{"activation_function": "log1p_relu"}"#), Ok(Some(2)));
        assert!(of(r#"{"pooling_strategy": "sum"}"#).unwrap_err().contains("`sum`"));
    }

    #[test]
    fn a_language_model_scores_by_the_tokens_of_its_module() {
        let list = r#"[{"path": "", "type": "x.Transformer"},
            {"path": "1_LogitScore", "type": "x.LogitScore"}]"#;
        let of = |config: &str| {
            let files = [("modules.json", list), ("1_LogitScore/config.json", config)];
            of_files(&files).map(|modules| modules.logit_score.unwrap())
        };
        let both =
            r#"{"true_token_id": 9, "false_token_id": 2, "module_input_name": "causal_logits"}"#;
        assert_eq!(of(both), Ok(TokenClasses::of_ids(9, Some(2))));
        let one = r#"{"true_token_id": 9, "false_token_id": null}"#;
        assert_eq!(of(one), Ok(TokenClasses::of_ids(9, None)));
        for (config, what) in [
            ("{}", "no `true_token_id`"),
            (r#"{"true_token_id": -1}"#, "`true_token_id` is no id"),
            (r#"{"true_token_id": 9, "module_input_name": "logits"}"#, "`logits`"),
        ] {
            assert!(of(config).unwrap_err().contains(what), "{config}");
        }
    }

    #[test]
    fn a_tokenizer_may_name_the_longest_text() {
        let folder = tempfile::tempdir().unwrap();
        let of = |config: &str| {
            std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
            length_of_tokenizer(folder.path()).map_err(|error| error.to_string())
        };
        assert_eq!(of(r#"{"model_max_length": 512}"#), Ok(Some(512)));
        let endless = r#"{"model_max_length": 1000000000000000019884624838656}"#;
        assert_eq!(of(endless), Ok(Some(usize::MAX)));
        assert_eq!(of(r#"{"model_max_length": null}"#), Ok(None));
        assert!(of("{").unwrap_err().contains("tokenizer_config.json"));
        std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
        assert_eq!(length_of_tokenizer(folder.path()).unwrap(), None);
    }

    #[test]
    fn lengths_and_prompts_are_read() {
        let prompts = r#"{"prompts": {"query": "query: "}, "default_prompt_name": "query",
                          "similarity_fn_name": "dot"}"#;
        let modules = of_files(&[
            ("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": false}"#),
            ("config_sentence_transformers.json", prompts),
        ])
        .unwrap();
        assert_eq!(modules.max_seq_length, Some(256));
        assert_eq!(modules.prompts.by_name["query"], "query: ");
        assert_eq!(modules.prompts.default.as_deref(), Some("query"));
        assert_eq!(modules.similarity, Some(Similarity::Dot));
        // As sentence-transformers 6.2 saves it.
        let saved = r#"{"__version__": {"sentence_transformers": "6.2.0"},
            "default_prompt_name": null, "model_type": "SentenceTransformer", "prompts": {"query": null, "document": ""},
            "similarity_fn_name": null, "truncate_dim": 100}"#;
        let transformer = r#"{"transformer_task": "text-generation", "unpad_inputs": false,
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "causal_logits", "query_length": null, "model_args": {},
            "processing_kwargs": {"chat_template": {"add_generation_prompt": true}}}"#;
        let modules = of_files(&[
            ("config_sentence_transformers.json", saved),
            ("sentence_bert_config.json", transformer),
        ])
        .unwrap();
        assert_eq!(modules.pooling.truncated, Some(100));
        assert_eq!(modules.prompts.by_name["query"], "");
        for (name, text, what) in [
            ("sentence_bert_config.json", r#"{"do_lower_case": true}"#, "do_lower_case"),
            ("config_sentence_transformers.json", r#"{"default_prompt_name": "x"}"#, "`x`"),
            ("config_sentence_transformers.json", r#"{"similarity_fn_name": "y"}"#, "`y`"),
            ("config_sentence_transformers.json", r#"{"similarity_fn_name": "maxsim"}"#, "maxsim"),
            ("config_sentence_transformers.json", r#"{"truncate_dim": 0}"#, "truncate_dim"),
            ("config_sentence_transformers.json", r#"{"truncate_dim": "8"}"#, "truncate_dim"),
            ("config_sentence_transformers.json", r#"{"max_active_dims": 8}"#, "max_active_dims"),
            ("config_sentence_transformers.json", r#"{"model_type": "ColBERT"}"#, "`ColBERT`"),
            ("config_sentence_transformers.json", r#"{"query_prefix": "[Q] "}"#, "`query_prefix`"),
            ("sentence_bert_config.json", r#"{"query_length": 32}"#, "`query_length`"),
            ("sentence_bert_config.json", r#"{"query_expansion": {"length": 32}}"#, "expansion"),
            ("sentence_bert_config.json", r#"{"transformer_task": "retrieval"}"#, "`retrieval`"),
            ("sentence_bert_config.json", r#"{"module_output_name": "x"}"#, "`x`"),
            ("sentence_bert_config.json", r#"{"modality_config": {"image": {}}}"#, "modality"),
            ("sentence_bert_config.json", r#"{"modality_config": {"text": {}}}"#, "modality"),
            ("sentence_bert_config.json", r#"{"tokenizer_args": {"a": 1}}"#, "`tokenizer_args`"),
            ("sentence_bert_config.json", r#"{"processing_kwargs": {"text": {}}}"#, "`text`"),
            (
                "sentence_bert_config.json",
                r#"{"processing_kwargs": {"chat_template": {"add_generation_prompt": false}}}"#,
                "add_generation_prompt false",
            ),
            ("sentence_bert_config.json", r#"{"new_key": null}"#, "`new_key`"),
            (
                "modules.json",
                r#"[{"path": "", "type": "x.Transformer", "kwargs": ["a"]}]"#,
                "kwargs",
            ),
            ("modules.json", r#"[{"path": "", "type": "x.Transformer", "new": 1}]"#, "`new`"),
            ("modules.json", "{", "modules.json"),
        ] {
            assert!(of_files(&[(name, text)]).unwrap_err().contains(what), "{name}");
        }
    }
}
