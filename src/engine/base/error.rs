//! `EngineError`: why an engine could not be loaded, or could not go on.

use crate::setting::Setting;

/// Why an engine could not be loaded, or could not go on.
#[derive(Debug)]
pub enum EngineError {
    /// A model file is missing, corrupt, unsafe or unsupported (exit 7): path and remedy in the
    /// text.
    Model(String),
    /// A configuration cannot be honoured (exit 2).
    Config(String),
    /// The same, and one setting is to blame.
    Setting {
        /// The setting.
        setting: Setting,
        /// What is wrong with it.
        text: String,
        /// Remedy.
        help: String,
    },
    /// The device failed in the middle of a run (exit 5).
    Device(String),
    /// The machine refuses memory, a thread or an open file that no flag asked for (exit 5).
    Machine(String),
}

impl EngineError {
    /// A setting that cannot be honoured.
    pub fn setting(setting: Setting, text: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Setting { setting, text: text.into(), help: help.into() }
    }

    /// The same error with words before its text: whose it is.
    pub fn of(self, whose: &str) -> Self {
        let named = |text: String| format!("{whose}: {text}");
        match self {
            EngineError::Model(text) => EngineError::Model(named(text)),
            EngineError::Config(text) => EngineError::Config(named(text)),
            EngineError::Setting { setting, text, help } => {
                EngineError::Setting { setting, text: named(text), help }
            }
            EngineError::Device(text) => EngineError::Device(named(text)),
            EngineError::Machine(text) => EngineError::Machine(named(text)),
        }
    }
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Model(text)
            | EngineError::Config(text)
            | EngineError::Device(text)
            | EngineError::Machine(text) => f.write_str(text),
            EngineError::Setting { setting, text, help } => write!(f, "{setting}: {text}; {help}"),
        }
    }
}

impl std::error::Error for EngineError {}
