//! The files of sentence-transformers in a repository. Which of them there are is known from the
//! repository alone, so the cache notes which there are not, where huggingface_hub does:
//! `.no_exist/<commit>/<file>`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::model_files::CONFIG;
use super::{HubError, HubErrorKind};
use vllm_batch_base::weight_files::FORMATS;
use vllm_batch_engine::serve::pooling::{
    LEXICAL_LAYER, ListedModule, MODULES, PROMPTS, TOKEN_LAYER, TRANSFORMER_FILES,
};

/// Files that mean something else when they are not there.
const DECISIVE: [&str; 2] = [MODULES, PROMPTS];

/// Of a repository's files, those that say how vectors are made, but for those in folders.
pub(super) fn beside(files: &BTreeMap<String, Option<u64>>) -> Vec<String> {
    let names = DECISIVE.iter().chain(TRANSFORMER_FILES).chain(&[LEXICAL_LAYER, TOKEN_LAYER]);
    names.filter(|name| files.contains_key(**name)).map(|name| (*name).to_owned()).collect()
}

/// Of a repository's files, those in the folders of the modules that the snapshot lists.
pub(super) fn in_folders(
    files: &BTreeMap<String, Option<u64>>,
    snapshot: &Path,
) -> Result<Vec<String>, HubError> {
    let mut chosen = Vec::new();
    for module in listed(snapshot)? {
        let mut add = |name: &str| {
            let path = format!("{}/{name}", module.folder);
            let is_there = files.contains_key(&path);
            chosen.extend(is_there.then_some(path));
            is_there
        };
        add(CONFIG);
        if module.has_weights() {
            // The first format that is there.
            let _ = FORMATS.iter().any(|format| add(format.single));
        }
    }
    Ok(chosen)
}

/// Every file of these that a snapshot has.
pub(super) fn present(snapshot: &Path) -> Result<Vec<String>, HubError> {
    let files = listed(snapshot)?.into_iter().flat_map(|module| {
        let names = [CONFIG].into_iter().chain(FORMATS.iter().map(|format| format.single));
        names.map(move |name| format!("{}/{name}", module.folder)).collect::<Vec<_>>()
    });
    Ok(files.filter(|path| snapshot.join(path).is_file()).collect())
}

/// What a snapshot lacks, or may lack: nobody has noted that the repository has it not.
///
/// `absent`: the folder of such notes.
pub(super) fn missing(snapshot: &Path, absent: &Path) -> Result<Vec<String>, HubError> {
    let is_known = |name: &str| snapshot.join(name).is_file() || absent.join(name).is_file();
    if !snapshot.join(MODULES).is_file() {
        let missing = (!is_known(MODULES)).then(|| MODULES.to_owned());
        return Ok(missing.into_iter().collect());
    }
    let mut missing: Vec<String> = Vec::new();
    missing.extend((!is_known(PROMPTS)).then(|| PROMPTS.to_owned()));
    for module in listed(snapshot)?.iter().filter(|module| module.kind() != "Normalize") {
        let is_there = |name: &str| snapshot.join(&module.folder).join(name).is_file();
        let mut need = |name: &str, is_there: bool| {
            missing.extend((!is_there).then(|| format!("{}/{name}", module.folder)));
        };
        need(CONFIG, is_there(CONFIG));
        if module.has_weights() {
            let has_weights = FORMATS.iter().any(|format| is_there(format.single));
            need(FORMATS[0].single, has_weights);
        }
    }
    Ok(missing)
}

/// Notes which files a repository has not.
pub(super) fn note_absent(files: &BTreeMap<String, Option<u64>>, absent: &Path) -> io::Result<()> {
    for name in DECISIVE.iter().filter(|name| !files.contains_key(**name)) {
        fs::create_dir_all(absent)?;
        fs::write(absent.join(name), "")?;
    }
    Ok(())
}

/// The modules that have a folder.
fn listed(snapshot: &Path) -> Result<Vec<ListedModule>, HubError> {
    let list = ListedModule::list(snapshot).map_err(|error| {
        let help =
            "do not use this model: its modules.json is damaged, or made to read other files";
        HubError::new(HubErrorKind::Unsafe, error.to_string(), help)
    })?;
    let mut list = list.unwrap_or_default();
    list.retain(|module| !module.folder.is_empty());
    Ok(list)
}
