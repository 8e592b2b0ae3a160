//! `RowParser`: from what was read to what the engine is asked, by the shape that the first row decided.

use super::fields::Passthrough;
use super::overrides::Overrides;
use super::reader::{InputError, Record, Records};
use super::row_error::RowError;
use crate::engine::input_processor::Prompt;

/// Whether text prompts become chat messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatMode {
    /// Text is completed as it is, messages are chat.
    #[default]
    Auto,
    /// `--chat`: text becomes a user turn, after the row's `system` text if it has one.
    Always,
    /// `--no-chat`: rows of messages are refused.
    Never,
}

/// How rows become prompts.
#[derive(Clone, Debug, Default)]
pub struct RowOptions {
    /// `--chat`, `--no-chat`.
    pub chat: ChatMode,
    /// `--template`: the prompt, with `{{name}}` for the row's fields.
    pub template: Option<String>,
    /// `--prompt-column`: the field that holds the prompt.
    pub prompt_column: Option<String>,
}

/// A row that can be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// 0, 1, 2, ... over all rows, bad ones included.
    pub index: u64,
    /// Physical line where it starts, from 1.
    pub line: u64,
    /// What to complete; a `system` field is already folded into messages.
    pub prompt: Prompt,
    /// Its own sampling parameters.
    pub overrides: Overrides,
    /// `id` or `custom_id` as text: the key of its random numbers.
    pub id: Option<String>,
    /// What appears again in the output row.
    pub passthrough: Passthrough,
}

/// A row that cannot be asked; it becomes an error row in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// 0, 1, 2, ... over all rows.
    pub index: u64,
    /// What appears again in the output row.
    pub passthrough: Passthrough,
    /// Why, and on which line.
    pub error: RowError,
}

/// Parses rows. The first readable one decides the shape, every other is checked against it.
pub struct RowParser {}

impl RowParser {
    /// A parser for the rows of an input.
    ///
    /// # Errors
    /// The options do not fit each other or the input's columns.
    pub fn new(records: &Records, options: &RowOptions) -> Result<Self, InputError> {
        let _ = (records, options);
        unimplemented!()
    }

    /// The next row.
    ///
    /// # Errors
    /// The first row has no shape that can be run: the whole input is refused.
    pub fn parse(&mut self, record: Record) -> Result<Result<Row, BadRow>, InputError> {
        let _ = record;
        unimplemented!()
    }

    /// What the first row decided, for a line on standard error. `None` before it, and then only once.
    pub fn take_note(&mut self) -> Option<String> {
        unimplemented!()
    }
}
