//! Kind of a folder that lacks files of an adapter.

use std::path::Path;

use super::WEIGHTS_FILE;
use super::config::CONFIG_FILE;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, quoted};

/// Files of pickles that older versions of peft write in its place.
const PICKLES: [&str; 2] = ["adapter_model.bin", "adapter_model.pt"];

/// Most entries of a folder that are looked at for the adapter within.
const MAX_LISTED: usize = 1000;

/// Says what a folder is that has no files of an adapter, or not those that are read.
pub(super) fn refuse_missing_files(dir: &Path) -> Result<(), EngineError> {
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let error = |text: String| Err(EngineError::Model(format!("{}: {text}", dir.display())));
    match (has(CONFIG_FILE), has(WEIGHTS_FILE)) {
        (true, true) => Ok(()),
        (true, false) => match PICKLES.into_iter().find(|name| has(name)) {
            Some(pickle) => error(format!(
                "{pickle} is a pickle, which is not read of adapters; write {WEIGHTS_FILE} with \
                 peft's save_pretrained(safe_serialization=True)"
            )),
            None => error(format!("it has {CONFIG_FILE} and no {WEIGHTS_FILE}")),
        },
        (false, _) => match folder_within(dir)? {
            Some(name) => error(format!(
                "the adapter is in its folder {}, as peft writes those that have a name; give that \
                 one",
                quoted(&name)
            )),
            None => error(format!(
                "no {CONFIG_FILE}; a folder of an adapter has it, and {WEIGHTS_FILE}, as peft's \
                 save_pretrained writes them"
            )),
        },
    }
}

/// A folder in this one that has an adapter, the first by name.
fn folder_within(dir: &Path) -> Result<Option<String>, EngineError> {
    let listing = std::fs::read_dir(dir).map_err(|error| files::unreadable(dir, &error))?;
    let entries = listing.take(MAX_LISTED).filter_map(Result::ok);
    let found = entries.filter(|entry| entry.path().join(CONFIG_FILE).is_file());
    Ok(found.map(|entry| entry.file_name().to_string_lossy().into_owned()).min())
}
