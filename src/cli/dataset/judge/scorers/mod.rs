//! The scorers: pure functions of an answer and what is expected. Knows no rows.

pub mod choice;
pub mod edits;
pub mod errors;
pub mod json;
pub mod letter;
pub mod ngrams;
pub mod number;
pub mod overlap;
pub mod perplexity;
pub mod promptfoo;
pub mod schema;
pub mod vqa;
pub mod words;
