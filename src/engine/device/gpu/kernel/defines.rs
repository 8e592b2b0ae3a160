//! Constants that a kernel is compiled with, in the words of the op that launches it.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::cuda_name;
use vllm_batch_base::config::DType;

/// Most constants of a kernel.
const MAX_DEFINES: usize = 16;

/// Names and values that a kernel is compiled with, beside those of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Defines {
    /// The first `num` are given.
    pairs: [(&'static str, Value); MAX_DEFINES],
    num: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Value {
    Number(u32),
    Word(&'static str),
}

impl Defines {
    /// No constants.
    pub const NONE: Self = Self { pairs: [("", Value::Number(0)); MAX_DEFINES], num: 0 };

    /// With one more, a number.
    ///
    /// # Panics
    /// There are more than a kernel has.
    #[must_use]
    pub fn number(self, name: &'static str, value: u32) -> Self {
        self.with(name, Value::Number(value))
    }

    /// With one more, a word that the source knows.
    ///
    /// # Panics
    /// As `number`.
    #[must_use]
    pub fn word(self, name: &'static str, value: &'static str) -> Self {
        self.with(name, Value::Word(value))
    }

    /// With one more, a type of elements.
    ///
    /// # Panics
    /// As `number`.
    #[must_use]
    pub fn dtype(self, name: &'static str, value: DType) -> Self {
        self.with(name, Value::Word(cuda_name(value)))
    }

    fn with(mut self, name: &'static str, value: Value) -> Self {
        self.pairs[self.num] = (name, value);
        self.num += 1;
        self
    }

    fn pairs(&self) -> &[(&'static str, Value)] {
        &self.pairs[..self.num]
    }

    /// As the compiler takes them.
    pub(super) fn to_texts(self) -> impl Iterator<Item = (&'static str, String)> {
        self.pairs.into_iter().take(self.num).map(|(name, value)| match value {
            Value::Number(value) => (name, value.to_string()),
            Value::Word(value) => (name, value.to_owned()),
        })
    }
}

/// Values alone: each launch hashes them, and a kernel's names are the same but for switches.
impl Hash for Defines {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pairs().iter().for_each(|(_, value)| value.hash(state));
    }
}

impl fmt::Debug for Defines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.pairs().iter().map(|(name, value)| (name, value))).finish()
    }
}
