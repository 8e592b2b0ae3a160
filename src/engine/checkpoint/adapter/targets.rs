//! `target_modules`: which modules an adapter was trained on, held against its tensors. They decide
//! what is computed; a file that lost some of them, or has those of another adapter, shows here.
//!
//! Lists of names are held. A pattern is Python's, and a word such as `all-linear` depends on the
//! model: of those the tensors are believed.

use serde_json::Value;

use super::places::bare;
use crate::hf_config::Section;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// Names of `target_modules`.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    /// Names of modules; `None`: any module may have an adapter.
    names: Vec<String>,
    /// Some modules of these names, or all, may have none.
    is_narrowed: bool,
}

impl Targets {
    /// Targets of a config.
    ///
    /// # Errors
    /// A list is none of names.
    pub(super) fn read(root: &Section<'_>) -> Result<Self, EngineError> {
        const KEYS: [&str; 2] = ["exclude_modules", "layers_to_transform"];
        root.ignore(&[KEYS[0], KEYS[1], "layers_pattern"]);
        let is_narrowed = KEYS.iter().any(|key| match root.value(key) {
            None => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
        });
        let names = match root.value("target_modules") {
            Some(Value::String(_)) => Vec::new(),
            _ => root.texts("target_modules")?.unwrap_or_default(),
        };
        Ok(Self { names: names.into_iter().map(str::to_owned).collect(), is_narrowed })
    }

    /// Refuses a module with tensors that none of the names is.
    ///
    /// # Errors
    /// It is such a module.
    pub(super) fn check(&self, module: &str) -> Result<(), String> {
        if self.names.is_empty() || self.names.iter().any(|name| is_named(module, name)) {
            return Ok(());
        }
        Err(format!(
            "it has tensors of {}, which `target_modules` of adapter_config.json does not name",
            quoted(module)
        ))
    }

    /// Refuses a name that is one of the model's modules, and of which there are no tensors. A name
    /// that the model has not is no fault: lists are written for several models.
    ///
    /// # Errors
    /// There is such a name.
    pub(super) fn check_all<'a>(
        &self,
        of_model: impl Iterator<Item = &'a str> + Clone,
        of_adapter: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), String> {
        let is_lost = |name: &&String| {
            let has = |module: &str| is_named(module, name);
            of_model.clone().any(has) && !of_adapter.clone().any(has)
        };
        match self.names.iter().filter(|_| !self.is_narrowed).find(is_lost) {
            None => Ok(()),
            Some(name) => Err(format!(
                "`target_modules` of adapter_config.json names {}, and there are no tensors of it; \
                 leave it out of a copy if it was left out on purpose",
                quoted(name)
            )),
        }
    }
}

/// Whether a name of `target_modules` is that of a module, as peft compares them: its end, from a
/// dot on. What wraps the model may have changed since.
fn is_named(module: &str, name: &str) -> bool {
    let is_end = |module: &str, name: &str| {
        module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    is_end(module, name) || is_end(bare(module), bare(name))
}
