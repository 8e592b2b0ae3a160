//! Strings to token ids and back (placeholder until branch `text` is merged).

mod detokenizer;
mod stop;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use stop::{StopChecker, StopMatch};
pub use tokenizer::{TextError, Tokenizer};
