//! Strings to token ids and back: tokenizers, chat templates, detokenizers, stop strings, the parts
//! of an answer, JSON Schema. Knows no tensor, no weights and no request.
//!
//! Read first: [`Tokenizer`], [`ChatTemplate`], [`AnswerParser`].

#![warn(missing_docs, unreachable_pub)]

mod answer;
mod chat;
mod chat_template;
mod content_parts;
mod control_tokens;
mod detokenizer;
mod dialect;
mod filters;
mod integers;
pub mod json_schema;
mod pair_template;
mod python;
mod python_methods;
mod regex_guard;
mod split_regex;
mod stop;
mod token_bytes;
mod tokenizer;
mod tokenizer_byte_gaps;
mod tokenizer_files;
mod tokenizer_gguf;
mod tokenizer_gguf_pre;
mod tokenizer_json;
mod tokenizer_limits;
mod tokenizer_sentencepiece;
mod tokenizer_sources;
mod tokenizer_unmade;
mod tokenizer_words;
mod word_class;

pub use answer::{
    AnswerForm, AnswerParser, Language, ParsedAnswer, SaidOfThinking, Segment, Tool, ToolCall,
    ToolChoice,
};
pub use chat::{Chat, ChatEnding, TypedTokens};
pub use chat_template::{ChatOptions, ChatTemplate};
pub use content_parts::COMPARED;
pub use control_tokens::{NumShown, RenderedChat, ShownMedia};
pub use detokenizer::Detokenizer;
pub use integers::{json_with_integers, without_marks};
pub use pair_template::{PairTemplate, longest_first};
pub use python::is_space;
pub use stop::{StopChecker, StopMatch};
pub use tokenizer::Tokenizer;
pub use tokenizer_gguf::GgufTokenizer;

use std::fmt;
use std::io;
use std::path::Path;

use vllm_batch_base::files::one_line;
use vllm_batch_base::machine::is_refusal;

/// Why text could not be handled: a fault of the model's files, or of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// Tokenizer or chat template files are missing, corrupt or unsupported: no row can run.
    Model(String),
    /// One row cannot be rendered or encoded: it becomes an error row.
    Row {
        /// Stable word: `chat_template` or `tokenize`.
        code: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The machine has no thread or memory for it now: no fault of a row or a file.
    Machine(String),
}

impl TextError {
    /// A file that cannot be read.
    fn io(path: &Path, error: &io::Error) -> Self {
        match is_refusal(error) {
            true => TextError::Machine(format!("cannot read {}: {error}", path.display())),
            false => Self::file(path, error),
        }
    }

    fn file(path: &Path, message: impl fmt::Display) -> Self {
        TextError::Model(format!("{}: {}", path.display(), one_line(&message.to_string())))
    }

    fn template(message: impl Into<String>) -> Self {
        TextError::Row { code: "chat_template", message: message.into() }
    }

    fn tokenize(message: impl fmt::Display) -> Self {
        TextError::Row {
            code: "tokenize",
            message: format!("the text cannot be tokenized: {message}"),
        }
    }

    /// The tokenizers crate panicked.
    fn tokenizer_failed() -> Self {
        Self::tokenize("the tokenizer failed on it")
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Model(message)
            | TextError::Machine(message)
            | TextError::Row { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for TextError {}
