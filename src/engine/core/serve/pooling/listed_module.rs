//! `ListedModule`: an entry of modules.json, and the kinds of modules that there are.

use std::path::Path;

use serde_json::Value;

use super::module_keys::Keys;
use super::modules::{bad, read};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// The list of modules, in the model's folder.
pub const MODULES: &str = "modules.json";

/// Kinds of modules in the order in which they may come, and whether their folders have weights.
const KINDS: &[(&str, bool)] = &[
    ("Transformer", false),
    ("MLMTransformer", false),
    ("LogitScore", false),
    ("Pooling", false),
    ("SpladePooling", false),
    ("Dense", true),
    ("Normalize", false),
];

/// A module of modules.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModule {
    /// As it is written there: a class of sentence-transformers.
    pub class: String,
    /// Its folder in the model's; empty: the model's own.
    pub folder: String,
}

impl ListedModule {
    /// The modules of a model's folder, in their order; None: it has no list.
    ///
    /// # Errors
    /// The list is corrupt, or names what is no folder of the model's.
    pub fn list(dir: &Path) -> Result<Option<Vec<Self>>, EngineError> {
        let path = dir.join(MODULES);
        let Some(list) = read(&path)? else { return Ok(None) };
        let list = list.as_array().ok_or_else(|| bad(&path, "it is no list"))?;
        let module = |module: &Value| {
            let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
            let (class, folder) = (text("type").to_owned(), text("path").to_owned());
            if let Some(keys) = module.as_object() {
                let keys = Keys { keys, path: &path };
                keys.refuse_others(&["idx", "kwargs", "name", "path", "type"])?;
                keys.refuse_set(&["kwargs"])?;
            }
            match folder.contains(['/', '\\']) || folder == ".." {
                true => Err(bad(&path, &format!("{} is no folder of a module", quoted(&folder)))),
                false => Ok(Self { class, folder }),
            }
        };
        list.iter().map(module).collect::<Result<_, _>>().map(Some)
    }

    /// The last part of its class, which is the same in all versions of sentence-transformers.
    pub fn kind(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }

    /// Whether it is a kind that is known.
    pub(super) fn is_known(&self) -> bool {
        KINDS.iter().any(|(kind, _)| *kind == self.kind())
    }

    /// Whether its folder has weights; that of a kind that nobody knows may.
    pub fn has_weights(&self) -> bool {
        let known = KINDS.iter().find(|(kind, _)| *kind == self.kind());
        known.is_none_or(|(_, has_weights)| *has_weights)
    }
}
