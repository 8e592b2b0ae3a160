//! Which files a model folder must have, and which of a repository's files are worth fetching.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::names::{is_plain_file_name, quoted};
use super::{HubError, HubErrorKind, Need};
use vllm_batch_base::files::read;
use vllm_batch_base::machine::is_refusal;
use vllm_batch_base::weight_files::{
    ADAPTER_FILES, FORMATS, Format, MAX_INDEX_BYTES, PROCESSOR_CONFIGS, QUANTIZATION_CONFIGS,
};
use vllm_batch_dataset::terminal::remedy;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Small files that the engine reads when they exist.
pub(super) const SMALL: [&str; 10] = [
    CONFIG,
    TOKENIZER,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    PROCESSOR_CONFIGS[0].0,
    PROCESSOR_CONFIGS[1].0,
];

/// What a tokenizer is read from where there is no `TOKENIZER`: all files of one of these.
const OTHER_TOKENIZERS: [&[&str]; 2] = [&["tokenizer.model"], &["vocab.json", "merges.txt"]];

/// Files that hold weights in formats that are not read.
const FOREIGN: [&str; 8] = [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".gguf"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The weight files of a folder, by its index or by what lies there; empty when there are none.
/// A file that the index names need not exist.
pub(super) fn weight_files(folder: &Path) -> Result<BTreeSet<String>, HubError> {
    let entries = fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let present: BTreeSet<String> = names.filter(|name| folder.join(name).is_file()).collect();
    match choose(|| present.iter().map(String::as_str)) {
        Choice::Index(format) => shards(&folder.join(format.index), format),
        Choice::Files(files) => Ok(files),
    }
}

/// Where the weights of a folder or a repository are.
enum Choice {
    /// In the files that an index names.
    Index(&'static Format),
    /// In these; there may be none.
    Files(BTreeSet<String>),
}

/// The index or the files of the best format that is there.
fn choose<'a, N: Iterator<Item = &'a str>>(names: impl Fn() -> N) -> Choice {
    for format in &FORMATS {
        if names().any(|name| name == format.index) {
            return Choice::Index(format);
        }
        let files = without_index(&names, format);
        if !files.is_empty() {
            return Choice::Files(files);
        }
    }
    Choice::Files(BTreeSet::new())
}

/// The index of a repository's weights, and the files that it names; None without an index.
pub(super) fn shards_of(
    files: &BTreeMap<String, Option<u64>>,
    snapshot: &Path,
) -> Result<Option<(&'static str, BTreeSet<String>)>, HubError> {
    match choose(|| files.keys().map(String::as_str)) {
        Choice::Index(format) => {
            Ok(Some((format.index, shards(&snapshot.join(format.index), format)?)))
        }
        Choice::Files(_) => Ok(None),
    }
}

/// The shards that an index names, each a plain file name.
fn shards(index: &Path, format: &Format) -> Result<BTreeSet<String>, HubError> {
    let text = read(index, MAX_INDEX_BYTES).map_err(|error| cannot_read(index, &error))?;
    let parsed: Index =
        serde_json::from_slice(&text).map_err(|error| unreadable(index, &error.to_string()))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    for shard in &shards {
        if !is_plain_file_name(shard) {
            return Err(HubError::new(
                HubErrorKind::Unsafe,
                format!("{} names {}, not a file of its folder", index.display(), quoted(shard)),
                "do not use this model: its index is damaged or made to read other files",
            ));
        }
        if !format.ends(shard) {
            return Err(HubError::new(
                HubErrorKind::Unsafe,
                format!(
                    "{} names {}, not a .{} file",
                    index.display(),
                    quoted(shard),
                    format.extension
                ),
                CONVERT_HINT,
            ));
        }
    }
    if shards.is_empty() {
        return Err(unreadable(index, "its weight_map is empty"));
    }
    Ok(shards)
}

/// Without an index: `model.safetensors`, else every safetensors file but adapters. Of pickles
/// `pytorch_model.bin` alone.
fn without_index<'a, N: Iterator<Item = &'a str>>(
    names: impl Fn() -> N,
    format: &Format,
) -> BTreeSet<String> {
    if names().any(|name| name == format.single) {
        return BTreeSet::from([format.single.to_string()]);
    }
    names()
        .filter(|name| format.is_loose(name) && is_plain_file_name(name))
        .map(str::to_string)
        .collect()
}

/// The needed files that a folder lacks.
pub(super) fn missing_files(folder: &Path, need: Need) -> Result<Vec<String>, HubError> {
    let mut wanted = BTreeSet::new();
    if need.adapter {
        wanted.extend(ADAPTER_FILES.map(str::to_owned));
    }
    if need.config {
        wanted.insert(CONFIG.to_string());
    }
    let is_file = |name: &str| folder.join(name).is_file();
    if needs_tokenizer(need, is_file) && other_tokenizer(is_file).is_none() {
        wanted.insert(TOKENIZER.to_string());
    }
    if need.weights {
        let weights = weight_files(folder)?;
        let none = weights.is_empty();
        wanted.extend(weights);
        if none {
            wanted.insert(FORMATS[0].single.to_string());
        }
    }
    wanted.retain(|name| !folder.join(name).is_file());
    Ok(wanted.into_iter().collect())
}

/// Whether a tokenizer cannot be missing: a model of images alone, which has no words, has none.
/// That of others is missed when the model is loaded.
fn needs_tokenizer(need: Need, is_there: impl Fn(&str) -> bool) -> bool {
    let may_be_of_images = need.modules && PROCESSOR_CONFIGS.iter().any(|(name, _)| is_there(name));
    need.tokenizer && !may_be_of_images
}

/// The files of a tokenizer that is not in `TOKENIZER`.
fn other_tokenizer(is_there: impl Fn(&str) -> bool) -> Option<&'static [&'static str]> {
    OTHER_TOKENIZERS.into_iter().find(|files| files.iter().all(|name| is_there(name)))
}

/// Of a repository's files, those to fetch first. With an index the shards follow from its content.
pub(super) fn first_files(files: &BTreeMap<String, Option<u64>>, need: Need) -> Vec<String> {
    if need.adapter {
        return ADAPTER_FILES.map(str::to_owned).to_vec();
    }
    let beside = QUANTIZATION_CONFIGS.into_iter().map(|(name, _)| name);
    let small = SMALL.into_iter().chain(beside).filter(|name| files.contains_key(*name));
    let mut chosen: Vec<String> = small.map(str::to_owned).collect();
    if !files.contains_key(TOKENIZER) {
        let other = other_tokenizer(|name| files.contains_key(name)).unwrap_or_default();
        chosen.extend(other.iter().map(|name| name.to_string()));
    }
    if need.weights {
        match choose(|| files.keys().map(String::as_str)) {
            Choice::Index(format) => chosen.push(format.index.to_string()),
            Choice::Files(files) => chosen.extend(files),
        }
    }
    chosen
}

/// Whether a repository has what is needed at all: said before anything large is fetched.
pub(super) fn check_repository(
    files: &BTreeMap<String, Option<u64>>,
    need: Need,
    what: &str,
) -> Result<(), HubError> {
    let has = |name: &str| files.contains_key(name);
    if need.adapter {
        return check_adapter(has, what);
    }
    let foreign = |name: &&String| FOREIGN.iter().any(|end| name.ends_with(end));
    let weights = choose(|| files.keys().map(String::as_str));
    let no_weights = need.weights && matches!(weights, Choice::Files(found) if found.is_empty());
    if no_weights && let Some(file) = files.keys().find(foreign) {
        return Err(HubError::new(
            HubErrorKind::Unsupported,
            format!("{what} has no weights in a format that is read, only {}", quoted(file)),
            CONVERT_HINT,
        ));
    }
    if no_weights || (need.config && !has(CONFIG)) {
        let absent = if no_weights { "*.safetensors" } else { CONFIG };
        return Err(HubError::new(
            HubErrorKind::Incomplete,
            format!("{what} has no {absent}"),
            "this is not the repository of a transformers model; check the name",
        ));
    }
    if needs_tokenizer(need, has) && !has(TOKENIZER) && other_tokenizer(has).is_none() {
        return Err(HubError::new(
            HubErrorKind::Incomplete,
            format!("{what} has no {TOKENIZER}"),
            "give another repository or folder with --tokenizer, or convert it with transformers: \
             AutoTokenizer.from_pretrained(name).save_pretrained(folder)",
        ));
    }
    Ok(())
}

/// The same of the repository of an adapter.
fn check_adapter(has: impl Fn(&str) -> bool, what: &str) -> Result<(), HubError> {
    let Some(absent) = ADAPTER_FILES.into_iter().find(|name| !has(name)) else { return Ok(()) };
    let (kind, help) = match has("adapter_model.bin") {
        true => (
            HubErrorKind::Unsupported,
            "a pickle is not read of adapters: save it with peft's \
             save_pretrained(safe_serialization=True), and give the folder",
        ),
        false => (
            HubErrorKind::Incomplete,
            "this is not the repository of an adapter that PEFT has saved; check the name",
        ),
    };
    Err(HubError::new(kind, format!("{what} has no {absent}"), help))
}

const CONVERT_HINT: &str = "convert it with transformers: \
    AutoModelForCausalLM.from_pretrained(name).save_pretrained(folder, safe_serialization=True)";

pub(super) fn cannot_read(path: &Path, error: &io::Error) -> HubError {
    if !is_refusal(error) {
        return unreadable(path, &error.to_string());
    }
    HubError::new(
        HubErrorKind::Machine,
        format!("cannot read {}: {error}", path.display()),
        "the same command continues when the machine has room: see ulimit -a",
    )
}

fn unreadable(path: &Path, why: &str) -> HubError {
    let message = format!("{} cannot be used: {why}", path.display());
    let help = remedy::of(&message);
    let help = help.unwrap_or("delete the file or the folder and fetch the model again");
    HubError::new(HubErrorKind::Incomplete, message, help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_two_files() {
        let of = |names: &[&str]| -> BTreeMap<String, Option<u64>> {
            names.iter().map(|name| (name.to_string(), None)).collect()
        };
        let whole = of(&["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]);
        assert!(check_repository(&whole, Need::ADAPTER, "it").is_ok());
        assert_eq!(first_files(&whole, Need::ADAPTER), ADAPTER_FILES);
        for (names, message, kind) in [
            (
                &["adapter_config.json", "adapter_model.bin"][..],
                "it has no adapter_model.safetensors",
                HubErrorKind::Unsupported,
            ),
            (&["config.json"], "it has no adapter_config.json", HubErrorKind::Incomplete),
        ] {
            let error = check_repository(&of(names), Need::ADAPTER, "it").unwrap_err();
            assert_eq!((error.to_string().as_str(), error.kind()), (message, kind));
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(ADAPTER_FILES[0]), "").unwrap();
        assert_eq!(missing_files(folder.path(), Need::ADAPTER).unwrap(), [ADAPTER_FILES[1]]);
    }

    #[test]
    fn a_tokenizer_need_not_be_in_tokenizer_json() {
        let of = |names: &[&str]| -> BTreeMap<String, Option<u64>> {
            names.iter().map(|name| (name.to_string(), None)).collect()
        };
        for (files, fetched) in [
            (&["tokenizer.json", "vocab.json", "merges.txt"][..], Some(&["tokenizer.json"][..])),
            (&["vocab.json", "merges.txt"], Some(&["vocab.json", "merges.txt"])),
            (&["tokenizer.model", "vocab.json", "x.bin"], Some(&["tokenizer.model"])),
            (&["vocab.json", "x.txt"], None),
            (&["merges.txt"], None),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                fs::write(folder.path().join(file), "").unwrap();
            }
            let absent = missing_files(folder.path(), Need::TOKENIZER).unwrap();
            let checked = check_repository(&of(files), Need::TOKENIZER, "it");
            assert_eq!(
                (absent.is_empty(), checked.is_ok()),
                (fetched.is_some(), fetched.is_some())
            );
            let first = first_files(&of(files), Need::TOKENIZER);
            assert_eq!(first, fetched.unwrap_or_default(), "{files:?}");
        }
    }

    #[test]
    fn a_model_of_images_alone_needs_no_tokenizer() {
        let names = ["config.json", "model.safetensors", "preprocessor_config.json"];
        let files: BTreeMap<_, _> = names.iter().map(|name| (name.to_string(), None)).collect();
        let folder = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        for (modules, absent) in [(true, &[][..]), (false, &["tokenizer.json"])] {
            let need = Need { modules, ..Need::MODEL };
            assert_eq!(missing_files(folder.path(), need).unwrap(), absent);
            assert_eq!(check_repository(&files, need, "it").is_ok(), absent.is_empty());
        }
        let first = first_files(&files, Need { modules: true, ..Need::MODEL });
        assert_eq!(first, ["config.json", "preprocessor_config.json", "model.safetensors"]);
    }
}
