//! Hashes of a model's files, as a fingerprint has them: weights, configuration, tokenizer, layers
//! behind the model, adapters. Every byte counts, and no name of a folder does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};

use crate::model::Folders;
use vllm_batch_base::config::{LoadFormat, LoraConfig};
use vllm_batch_base::machine::{is_refusal, started};
use vllm_batch_base::weight_files::{
    ADAPTER_FILES, FORMATS, PROCESSOR_CONFIGS, QUANTIZATION_CONFIGS, gguf_parts, is_gguf_model,
};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::pooling::{LEXICAL_LAYER, ListedModule, TOKEN_LAYER};

/// Hashes of weights, configuration and tokenizer. A GGUF file is all three.
///
/// # Errors
/// A file cannot be read.
pub fn model_hashes(load_format: LoadFormat, folders: &Folders) -> Result<[String; 3], CliError> {
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

/// Hash of the file that makes a GGUF model see.
///
/// # Errors
/// It cannot be read.
pub fn mmproj_hash(path: &Path) -> Result<String, CliError> {
    // Whatever it is called.
    Ok(hash_file(path).map_err(|error| unreadable(path, &error))?.to_hex()[..32].to_owned())
}

/// Hashes of adapters by their names, in the order of these; None: there are none. One that is not
/// there is refused when the model is loaded.
///
/// # Errors
/// A file cannot be read.
pub fn lora_hashes(config: &LoraConfig, folders: &[PathBuf]) -> Result<Option<String>, CliError> {
    let mut by_name = BTreeMap::new();
    let of_images = config.of_images.map(|lora| lora.0 as usize);
    let modules = config.modules.iter().chain(&config.merged).zip(folders);
    for (index, (module, folder)) in modules.enumerate() {
        let files = ADAPTER_FILES.map(|name| folder.join(name)).to_vec();
        let merged = if config.merged.is_some() { "merged " } else { "" };
        let of_images = if of_images == Some(index) { "of images " } else { "" };
        by_name.insert(&module.name, format!("{merged}{of_images}{}", hashed(files, folder)?));
    }
    Ok((!by_name.is_empty()).then(|| serde_json::json!(by_name).to_string()))
}

/// The files that say what the weights are.
fn config_files(folder: &Path) -> Vec<PathBuf> {
    let beside = QUANTIZATION_CONFIGS.into_iter().map(|(name, _)| name);
    let of_images = PROCESSOR_CONFIGS.into_iter().map(|(name, _)| name);
    let names = ["config.json"].into_iter().chain(beside).chain(of_images);
    names.map(|name| folder.join(name)).collect()
}

/// One hash over layers behind a model.
///
/// # Errors
/// A file cannot be read.
pub fn module_hash(folder: &Path) -> Result<String, CliError> {
    hashed(module_files(folder), folder)
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

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::{LoraId, LoraModule};

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
            let loras = LoraConfig::default();
            let config = LoraConfig { modules, merged: merged.map(module), ..loras };
            let dirs = names.iter().chain(&merged).map(|name| root.path().join(name));
            lora_hashes(&config, &dirs.collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(of(&[], None), None);
        let both = of(&["a", "b"], None);
        assert_eq!(of(&["b", "a"], None), both, "the order of flags says nothing");
        let alone = of(&["a"], None);
        let of_images = Some(LoraId(0));
        let config = LoraConfig { modules: vec![module("a")], of_images, ..LoraConfig::default() };
        let of_images = lora_hashes(&config, &[root.path().join("a")]).unwrap();
        assert!(of_images != alone && of_images.unwrap().contains("of images "));
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
            let (model, loras) = (part(1), Vec::new());
            let folders = Folders { model, mmproj: None, tokenizer: None, loras };
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
