//! `Overrides`: the sampling parameters that a row brings, by vLLM's field names.

use crate::engine::request::{RequestError, SamplingParams};

/// Sampling fields of one row, not yet converted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    entries: Vec<(&'static str, String)>,
}

impl Overrides {
    /// `base` with the row's fields over it.
    ///
    /// # Errors
    /// A field has the wrong type or value: code `invalid_parameter`.
    pub fn apply(&self, base: &SamplingParams) -> Result<SamplingParams, RequestError> {
        let _ = (&self.entries, base);
        unimplemented!()
    }

    /// The row's own seed: such a row is keyed by it alone. A seed of -1 is none.
    pub fn seed(&self) -> Option<u64> {
        unimplemented!()
    }

    /// Whether the row overrides nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
