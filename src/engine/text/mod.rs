//! Strings to token ids and back.

pub mod detokenizer;
pub mod stop;
pub mod tokenizer;
