//! What the bytes of a run depend on, as its fingerprint: the model's files, and what they and the
//! flags resolve to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};

use crate::config::{RunConfig, is_table};
use crate::ledger::fingerprint::{ALLOW_EMPTY_PROMPTS, Fingerprint, LORA_MODULES};
use crate::model::{Folders, Summary};
use vllm_batch_api::request::{SamplingParams, StructuredOutputs};
use vllm_batch_base::config::{DType, LoadFormat, LoraConfig};
use vllm_batch_base::machine::{is_refusal, started};
use vllm_batch_base::weight_files::{
    ADAPTER_FILES, FORMATS, QUANTIZATION_CONFIGS, gguf_parts, is_gguf_model,
};
use vllm_batch_checkpoint::spec::OutputSpec;
use vllm_batch_dataset::input::reader::Layout;
use vllm_batch_dataset::input::row::ChatDefaults;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::load::model_summary::ModelSummary;
use vllm_batch_engine::serve::pooling::{
    LEXICAL_LAYER, ListedModule, PoolingSummary, SparseSpec, TOKEN_LAYER,
};

/// The version of what rows look like: raised when the same run would write other bytes.
const ROW_FORMAT: u32 = 7;

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
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    set("version", format!("{version}, rows {ROW_FORMAT}"));
    let [weights, model_config, tokenizer] = model_hashes(engine.model.load_format, folders)?;
    set("model", weights);
    set("hf_overrides", engine.model.hf_overrides.text());
    set("config", model_config);
    set("tokenizer", tokenizer);
    match summary {
        Summary::Generate(summary) => set_generation(config, summary, &mut set),
        Summary::Pooling(summary) => {
            set("modules", hashed(module_files(&folders.model), &folders.model)?);
            set_pooling(config, summary, &mut set)?;
        }
    }
    if let Some(loras) = lora_hashes(&engine.lora, &folders.loras)? {
        set(LORA_MODULES, loras);
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
    Ok(FileFields(fields))
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
        structured_outputs,
        thinking_token_budget,
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
}

/// Hashes of weights, configuration and tokenizer. A GGUF file is all three.
fn model_hashes(load_format: LoadFormat, folders: &Folders) -> Result<[String; 3], CliError> {
    let model = folders.model.as_path();
    let is_dummy = load_format == LoadFormat::Dummy;
    let of_gguf = |path: &Path| hashed(gguf_parts(path), path.parent().unwrap_or(path));
    let of_tokenizer = |path: &Path| match is_gguf_model(path) {
        true => of_gguf(path),
        false => hashed(tokenizer_files(path), path),
    };
    let tokenizer = folders.tokenizer.as_deref().map(of_tokenizer).transpose()?;
    let (weights, config) = match (is_gguf_model(model), is_dummy) {
        (true, _) => (None, of_gguf(model)?),
        (false, true) => (None, hashed(config_files(model), model)?),
        (false, false) => {
            let weights = hashed(weight_files(model), model)?;
            (Some(weights), hashed(config_files(model), model)?)
        }
    };
    let tokenizer = match tokenizer {
        None if is_gguf_model(model) => config.clone(),
        None => of_tokenizer(model)?,
        Some(tokenizer) => tokenizer,
    };
    let weights = match is_dummy {
        true => "dummy".to_owned(),
        false => weights.unwrap_or_else(|| config.clone()),
    };
    Ok([weights, config, tokenizer])
}

/// Hashes of adapters by their names, in the order of these; None: there are none. One that is not
/// there is refused when the model is loaded.
fn lora_hashes(config: &LoraConfig, folders: &[PathBuf]) -> Result<Option<String>, CliError> {
    let mut by_name = BTreeMap::new();
    for (module, folder) in config.modules.iter().chain(&config.merged).zip(folders) {
        let files = ADAPTER_FILES.map(|name| folder.join(name)).to_vec();
        let merged = if config.merged.is_some() { "merged " } else { "" };
        by_name.insert(&module.name, format!("{merged}{}", hashed(files, folder)?));
    }
    Ok((!by_name.is_empty()).then(|| serde_json::json!(by_name).to_string()))
}

/// The files that say what the weights are.
fn config_files(folder: &Path) -> Vec<PathBuf> {
    let beside = QUANTIZATION_CONFIGS.into_iter().map(|(name, _)| name);
    let names = ["config.json"].into_iter().chain(beside);
    names.map(|name| folder.join(name)).collect()
}

/// The files of layers behind a model: modules of sentence-transformers that have weights, and
/// layers of FlagEmbedding. A GGUF file has none.
fn module_files(folder: &Path) -> Vec<PathBuf> {
    if is_gguf_model(folder) {
        return Vec::new();
    }
    // Their list was read before: it is none, or sound.
    let list = ListedModule::list(folder).ok().flatten().unwrap_or_default();
    let with_weights = list.iter().filter(|module| module.has_weights());
    let names = || ["config.json"].into_iter().chain(FORMATS.iter().map(|format| format.single));
    let in_folders =
        with_weights.flat_map(|module| names().map(|name| folder.join(&module.folder).join(name)));
    in_folders.chain([LEXICAL_LAYER, TOKEN_LAYER].map(|name| folder.join(name))).collect()
}

/// The files that weights may come from.
fn weight_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, |name| {
        name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json")
            || name.starts_with("pytorch_model")
    })
}

/// The files that may decide how text becomes token ids.
fn tokenizer_files(folder: &Path) -> Vec<PathBuf> {
    let is_one = |name: &str| {
        name.starts_with("tokenizer")
            || name.starts_with("vocab.")
            || ["merges.txt", "special_tokens_map.json", "added_tokens.json"].contains(&name)
            || name.starts_with("chat_template")
    };
    files(folder, is_one)
}

fn files(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_file() && name.is_some_and(&is_wanted)
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_wanted).collect();
    paths.sort();
    paths
}

/// One hash over names and contents. The files are read at the same time: what is large is in many
/// files. One that is not there counts as such.
fn hashed(paths: Vec<PathBuf>, folder: &Path) -> Result<String, CliError> {
    let results: Vec<io::Result<blake3::Hash>> = std::thread::scope(|scope| {
        let threads: Vec<_> = paths.iter().map(|path| started(hashing(scope, path))).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| {
            thread.join().expect("a panic ends the process in its hook")
        };
        threads.into_iter().map(join).collect()
    });
    let mut hasher = blake3::Hasher::new();
    for (path, result) in paths.iter().zip(results) {
        let name = path.strip_prefix(folder).unwrap_or(path).to_string_lossy();
        let hash = match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            hash => hash.map_err(|error| unreadable(path, &error))?,
        };
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(hash.as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Stack of a thread that hashes a file: there may be many, and each has a buffer of 64 KiB on it.
const HASHING_STACK: usize = 512 << 10;

fn hashing<'scope>(
    scope: &'scope Scope<'scope, '_>,
    path: &'scope Path,
) -> io::Result<ScopedJoinHandle<'scope, io::Result<blake3::Hash>>> {
    let thread = std::thread::Builder::new().stack_size(HASHING_STACK);
    thread.spawn_scoped(scope, move || hash_file(path))
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    let text = format!("cannot read {}: {error}", path.display());
    match is_refusal(error) {
        true => CliError::from_machine(text),
        false => CliError::new(Exit::Model, "model", text),
    }
}

fn hash_file(path: &Path) -> io::Result<blake3::Hash> {
    if !fs::metadata(path)?.is_file() {
        // A pipe or a device may have no end.
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

fn short(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::LoraModule;

    #[test]
    fn every_byte_of_a_model_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let hash = || hashed(weight_files(folder.path()), folder.path()).unwrap();
        write("a.safetensors", "one");
        write("readme.md", "one");
        let first = hash();
        write("readme.md", "two");
        assert_eq!(hash(), first);
        write("a.safetensors", "onf");
        assert_ne!(hash(), first);
        write("a.safetensors", "one");
        write("b.safetensors", "");
        assert_ne!(hash(), first);
    }

    #[test]
    fn adapters_are_known_by_name_and_content() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join(file), text).unwrap();
        };
        for name in ["a", "b"] {
            write(name, "adapter_config.json", "{}");
            write(name, "adapter_model.safetensors", name);
        }
        let module = |name: &str| LoraModule { name: name.to_owned(), dir: root.path().join(name) };
        let of = |names: &[&str], merged: Option<&str>| {
            let modules = names.iter().map(|name| module(name)).collect();
            let config = LoraConfig { modules, merged: merged.map(module), max_lora_rank: 16 };
            let dirs = names.iter().chain(&merged).map(|name| root.path().join(name));
            lora_hashes(&config, &dirs.collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(of(&[], None), None);
        let both = of(&["a", "b"], None);
        assert_eq!(of(&["b", "a"], None), both, "the order of flags says nothing");
        let alone = of(&["a"], None);
        assert_ne!(of(&[], Some("a")), alone);
        write("a", "README.md", "text");
        assert_eq!(of(&["a"], None), alone);
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            write("b", file, "other");
            assert_ne!(of(&["a", "b"], None), both, "{file}");
            write("b", file, if file.ends_with("json") { "{}" } else { "b" });
            assert_eq!(of(&["a", "b"], None), both);
        }
    }

    #[test]
    fn a_gguf_file_is_weights_config_and_tokenizer_with_all_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
        let write = |number, text| fs::write(part(number), text).unwrap();
        write(1, "one");
        write(2, "two");
        let hashes = |load_format| {
            let folders = Folders { model: part(1), tokenizer: None, loras: Vec::new() };
            model_hashes(load_format, &folders).unwrap()
        };
        let [weights, config, tokenizer] = hashes(LoadFormat::Auto);
        assert_eq!([&weights, &config], [&config, &tokenizer]);
        let dummy = ["dummy".to_owned(), config.clone(), tokenizer];
        assert_eq!(hashes(LoadFormat::Dummy), dummy);
        write(2, "twp");
        assert!(hashes(LoadFormat::Auto).iter().all(|hash| *hash != config));
    }
}
