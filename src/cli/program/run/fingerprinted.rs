//! What the bytes of a run depend on, as its fingerprint: the model's files, and what they and the
//! flags resolve to. `model_hashes` reads the files.

use std::collections::BTreeMap;

use super::model_hashes::{lora_hashes, mmproj_hash, model_hashes, module_hash};
use crate::config::{RunConfig, is_table};
use crate::ledger::fingerprint::{ALLOW_EMPTY_PROMPTS, Fingerprint, LORA_MODULES, MMPROJ};
use crate::model::{Folders, Summary};
use vllm_batch_api::request::{SamplingParams, SpeechParams, StructuredOutputs};
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::OutputSpec;
use vllm_batch_dataset::input::reader::Layout;
use vllm_batch_dataset::input::row::ChatDefaults;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::load::model_summary::ModelSummary;
use vllm_batch_engine::serve::pooling::{PoolingSummary, SparseSpec};

/// The version of what rows look like: raised when the same run would write other bytes.
const ROW_FORMAT: u32 = 8;

/// The field with who judges. Answers are the same whoever does.
pub const JUDGE: &str = "judge";

/// What can be said before the engine is loaded: the model's files, and what they and the flags
/// resolve to.
#[derive(Clone, Debug)]
pub struct FileFields(BTreeMap<String, String>);

/// Hashes the files of a model, and lists the settings that bytes depend on.
///
/// # Errors
/// A file cannot be read.
pub fn of_files(
    config: &RunConfig,
    folders: &Folders,
    summary: &Summary,
) -> Result<FileFields, CliError> {
    let mut fields = BTreeMap::new();
    let mut set = |name: &str, value: String| drop(fields.insert(name.to_owned(), value));
    let engine = &config.engine;
    let [weights, model_config, tokenizer] = model_hashes(engine.model.load_format, folders)?;
    set("model", weights);
    if let Some(mmproj) = &folders.mmproj {
        set(MMPROJ, mmproj_hash(mmproj)?);
    }
    set("config", model_config);
    set("tokenizer", tokenizer);
    if matches!(summary, Summary::Pooling(_)) {
        set("modules", module_hash(&folders.model)?);
    }
    if let Some(loras) = lora_hashes(&engine.lora, &folders.loras)? {
        set(LORA_MODULES, loras);
    }
    FileFields(fields).of_run(config, summary)
}

/// What the flags and the small files of a model resolve to.
fn set_settings(
    config: &RunConfig,
    summary: &Summary,
    mut set: &mut dyn FnMut(&str, String),
) -> Result<(), CliError> {
    let engine = &config.engine;
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    set("version", format!("{version}, rows {ROW_FORMAT}"));
    set("hf_overrides", engine.model.hf_overrides.text());
    match summary {
        Summary::Generate(summary) => set_generation(config, summary, &mut set),
        Summary::Pooling(summary) => set_pooling(config, summary, &mut set)?,
    }
    let template = engine.model.chat_template.as_deref();
    set("chat_template", template.map_or("the model's".to_owned(), |text| short(text.as_bytes())));
    set("seed", engine.model.seed.to_string());
    set("overflow", format!("{:?}", engine.model.overflow));
    set("allow_special", engine.model.allow_special.to_string());
    let name = |parser: &Option<String>| parser.clone().unwrap_or_default();
    set("reasoning_parser", name(&engine.model.reasoning_parser));
    set("tool_call_parser", name(&engine.model.tool_call_parser));
    set("quantization", format!("{:?}", engine.device.quantization));
    set("kv_cache_dtype", format!("{:?}", engine.cache.kv_cache_dtype));
    let input = &config.input;
    for (name, value) in of_layouts(&input.sources.layouts()) {
        set(name, value);
    }
    set("chat", format!("{:?}", input.rows.chat));
    set("template", format!("{:?}", input.rows.template));
    set("prompt_column", format!("{:?}", input.rows.prompt_column));
    set(ALLOW_EMPTY_PROMPTS, input.rows.allows_empty.to_string());
    set("row_params", input.rows.own_params.text());
    let ChatDefaults { system_prompt, last_assistant, template_kwargs } = &input.rows.chats;
    set("system_prompt", format!("{system_prompt:?}"));
    set("last_assistant", format!("{last_assistant:?}"));
    set("chat_template_kwargs", serde_json::Value::from(template_kwargs.clone()).to_string());
    set("out_field", config.output.field.clone());
    let is_table = config.output.path.as_deref().is_some_and(is_table);
    let matrix = match config.output.is_matrix {
        true => " npy",
        false if is_table => " parquet",
        false => "",
    };
    let judge = config.judge.as_ref().map_or("none".to_owned(), |judge| judge.text());
    set(JUDGE, judge);
    set("output_format", format!("{:?} {:?}{matrix}", input.rows.lines, config.output.detail));
    Ok(())
}

/// How the bytes of an input become rows.
fn of_layouts(layouts: &[Layout]) -> [(&'static str, String); 4] {
    let each = |text: &dyn Fn(&Layout) -> String| {
        let mut texts: Vec<String> = layouts.iter().map(text).collect();
        texts.dedup();
        texts.join(", ")
    };
    [
        ("format", each(&|layout| format!("{:?}", layout.format))),
        ("encoding", each(&|layout| layout.encoding.to_string())),
        (
            "delimiter",
            each(&|layout| {
                layout.delimiter.map_or("auto".to_owned(), |byte| char::from(byte).to_string())
            }),
        ),
        ("no_header", each(&|layout| layout.no_header.to_string())),
    ]
}

impl FileFields {
    /// The same files, and what they and the flags of a run resolve to.
    ///
    /// # Errors
    /// A flag does not go with the model.
    pub fn of_run(mut self, config: &RunConfig, summary: &Summary) -> Result<Self, CliError> {
        let mut set = |name: &str, value: String| drop(self.0.insert(name.to_owned(), value));
        set_settings(config, summary, &mut set)?;
        Ok(self)
    }

    /// The same with the model's name, where rows show it. A model's path is no part of a run: the
    /// same files under another spelling or mount continue it.
    pub fn showing(mut self, model_name: Option<&str>) -> Self {
        let shown = model_name.map_or("not shown".to_owned(), |name| format!("`{name}`"));
        self.0.insert("served_model_name".to_owned(), shown);
        self
    }

    /// The fingerprint without what only a loaded engine knows.
    pub fn alone(self) -> Fingerprint {
        Fingerprint::new(self.0)
    }

    /// The fingerprint of a run.
    ///
    /// `date`: when the run began, where its rows show it.
    pub fn with_engine(mut self, info: &EngineInfo, date: Option<i64>) -> Fingerprint {
        let mut set = |name: &str, value: String| drop(self.0.insert(name.to_owned(), value));
        set("date", date.map_or("not shown".to_owned(), |seconds| seconds.to_string()));
        set("kernel_set", info.kernel_set.clone());
        Fingerprint::new(self.0)
    }
}

/// What answers of either kind depend on.
fn set_model(
    checkpoint_format: Option<String>,
    (dtype, max_model_len): (DType, usize),
    set: &mut dyn FnMut(&str, String),
) {
    if let Some(format) = checkpoint_format {
        set("checkpoint_format", format);
    }
    set("dtype", dtype.name().to_owned());
    set("max_model_len", max_model_len.to_string());
}

/// An output layer that is another than the config says.
fn set_head(note: Option<String>, set: &mut dyn FnMut(&str, String)) {
    set("output_layer", note.unwrap_or_else(|| "as the config says".to_owned()));
}

/// What completions depend on.
fn set_generation(config: &RunConfig, summary: &ModelSummary, set: &mut dyn FnMut(&str, String)) {
    set_model(summary.checkpoint_format(), (summary.dtype, summary.max_model_len), set);
    set_head(summary.spec.output.note_of_head(), set);
    set("eos_token_ids", format!("{:?}", summary.generation_config.eos_token_ids));
    set("likelihoods", format!("{:?}", config.input.rows.likelihoods));
    set_sampling(&config.sampling_params(summary.default_sampling_params()), set);
}

/// What vectors and classes depend on.
fn set_pooling(
    config: &RunConfig,
    summary: &PoolingSummary,
    set: &mut dyn FnMut(&str, String),
) -> Result<(), CliError> {
    set_model(summary.checkpoint_format(), (summary.dtype, summary.max_model_len), set);
    set_head(summary.spec.output.as_ref().and_then(OutputSpec::note_of_head), set);
    set("task", summary.task.name().to_owned());
    set("pooling", format!("{:?}", summary.pooling));
    set("sparse", format!("{:?}", summary.sparse.as_ref().map(SparseSpec::num_logs)));
    if let Some(words) = summary.sparse.as_ref().and_then(SparseSpec::words) {
        set("words", words);
    }
    set("classifier", format!("{:?}", summary.classifier));
    let params = config.pooling.as_ref().map(|pooling| pooling.params(summary)).transpose()?;
    set("vectors", format!("{params:?}"));
    Ok(())
}

/// Every parameter by its name: a new one does not compile until it is here.
fn set_sampling(params: &SamplingParams, set: &mut dyn FnMut(&str, String)) {
    let SamplingParams {
        n,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        stop,
        stop_token_ids,
        ignore_eos,
        max_tokens,
        min_tokens,
        logprobs,
        prompt_logprobs,
        prompt_logprobs_last,
        skip_special_tokens,
        include_stop_str_in_output,
        logit_bias,
        allowed_token_ids,
        bad_words,
        truncate_prompt_tokens,
        truncation_side,
        beam_search,
        // No byte of an answer depends on it.
        output_kind: _,
        structured_outputs,
        thinking_token_budget,
        speech,
    } = params;
    set("n", n.to_string());
    set("presence_penalty", presence_penalty.to_string());
    set("frequency_penalty", frequency_penalty.to_string());
    set("repetition_penalty", repetition_penalty.to_string());
    set("temperature", temperature.to_string());
    set("top_p", top_p.to_string());
    set("top_k", top_k.to_string());
    set("min_p", min_p.to_string());
    set("sampling_seed", format!("{seed:?}"));
    set("stop", format!("{stop:?}"));
    set("stop_token_ids", format!("{stop_token_ids:?}"));
    set("ignore_eos", ignore_eos.to_string());
    set("max_tokens", format!("{max_tokens:?}"));
    set("min_tokens", min_tokens.to_string());
    set("logprobs", format!("{logprobs:?}"));
    set("prompt_logprobs", format!("{prompt_logprobs:?}"));
    set("prompt_logprobs_last", format!("{prompt_logprobs_last:?}"));
    set("skip_special_tokens", skip_special_tokens.to_string());
    set("include_stop_str_in_output", include_stop_str_in_output.to_string());
    set("logit_bias", format!("{logit_bias:?}"));
    set("allowed_token_ids", format!("{allowed_token_ids:?}"));
    set("bad_words", format!("{bad_words:?}"));
    set("truncate_prompt_tokens", format!("{truncate_prompt_tokens:?}"));
    set("truncation_side", format!("{truncation_side:?}"));
    set("beam_search", format!("{beam_search:?}"));
    let outputs = structured_outputs.as_ref().map(|outputs| outputs.to_json().to_string());
    set("structured_outputs", format!("{}; {outputs:?}", StructuredOutputs::BACKEND));
    set("thinking_token_budget", format!("{thinking_token_budget:?}"));
    // Journals of earlier versions have no such entry.
    if *speech != SpeechParams::default() {
        set("speech", format!("{speech:?}"));
    }
}

fn short(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

/// What of a complete output is not this run's.
pub fn differences(config: &RunConfig, then: &Fingerprint, now: &Fingerprint) -> Vec<String> {
    match config.output.retry_failed {
        true => then.differences_of_answers(now),
        false => then.differences(now),
    }
}
