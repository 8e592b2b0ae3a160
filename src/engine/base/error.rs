//! `EngineError`: why an engine could not be loaded, or could not go on.

/// Why an engine could not be loaded, or could not go on.
#[derive(Debug)]
pub enum EngineError {
    /// A model file is missing, corrupt, unsafe or unsupported (exit 7): path and remedy in the
    /// text.
    Model(String),
    /// A configuration value cannot be honoured (exit 2).
    Config(String),
    /// The device failed in the middle of a run (exit 5).
    Device(String),
    /// The machine refuses memory, a thread or an open file that no flag asked for (exit 5).
    Machine(String),
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Model(text)
            | EngineError::Config(text)
            | EngineError::Device(text)
            | EngineError::Machine(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for EngineError {}
