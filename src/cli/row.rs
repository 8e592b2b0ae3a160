//! `RowParser`: from what was read to what the engine is asked, by the shape that the first row
//! decided.

mod messages;
mod prompt;
mod shape;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::prompt::PromptBuilder;
use self::shape::RowShape;
use super::fields::{JsonFields, Passthrough, json_string};
use super::overrides::{Overrides, parameter_cell};
use super::reader::{Content, InputError, InputFormat, Record, Records};
use super::row_error::{RowError, code};
use crate::engine::input_processor::Prompt;

/// Bytes that an error row keeps of a line that could not be parsed.
const KEPT_OF_BAD_LINE: usize = 64 << 10;

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

/// A row's fields by name, and whether it had names: bare values and text lines are named `prompt`.
struct NamedRow {
    fields: JsonFields,
    is_bare: bool,
}

/// Parses rows. The first readable one decides the shape, every other is checked against it.
pub struct RowParser {
    builder: PromptBuilder,
    format: InputFormat,
    names: Option<Arc<[String]>>,
    shape: Option<RowShape>,
    next_index: u64,
    note: Option<String>,
}

impl RowParser {
    /// A parser for the rows of an input.
    ///
    /// # Errors
    /// The options do not fit each other or the input's columns.
    pub fn new(records: &Records, options: &RowOptions) -> Result<Self, InputError> {
        let builder = PromptBuilder::new(options)?;
        let names = records.headers();
        let mut parser = Self {
            builder,
            format: records.format(),
            names,
            shape: None,
            next_index: 0,
            note: None,
        };
        if let Some(names) = &parser.names {
            // The columns are the same in every row, so the header decides before the first.
            if !names.is_empty() {
                let shape = parser.builder.shape_of_columns(names)?;
                parser.decide(shape, names.iter().any(|name| name == "system"));
            }
        }
        Ok(parser)
    }

    /// The next row.
    ///
    /// # Errors
    /// The first row has no shape that can be run: the whole input is refused.
    pub fn parse(&mut self, record: Record) -> Result<Result<Row, BadRow>, InputError> {
        let (index, line) = (self.next_index, record.line);
        self.next_index += 1;
        let bad = |passthrough, error| Ok(Err(BadRow { index, passthrough, error }));
        let (named, cells) = match self.name_fields(record)? {
            Ok(named) => named,
            Err((passthrough, error)) => return bad(passthrough, error),
        };
        if self.shape.is_none() {
            let shape = self.builder.shape_of_first(&named, line)?;
            self.decide(shape, named.fields.get("system").is_some());
        }
        let shape = self.shape.as_ref().expect("decided above");
        let prompt = self.builder.build(shape, &named, line);
        let overrides = Overrides::collect(&named.fields);
        let id = row_id(&named.fields);
        let passthrough = match (cells, &self.names) {
            (Some(cells), Some(names)) => Passthrough::Cells { names: Arc::clone(names), cells },
            _ => Passthrough::Json(named.fields),
        };
        match prompt {
            Ok(prompt) => Ok(Ok(Row { index, line, prompt, overrides, id, passthrough })),
            Err(error) => bad(passthrough, error),
        }
    }

    /// What the first row decided, for a line on standard error. `None` before it, and then only
    /// once.
    pub fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    fn decide(&mut self, shape: RowShape, has_system: bool) {
        let rows = match &shape {
            RowShape::Template => "fill --template".to_owned(),
            shape => format!("are {shape}"),
        };
        let mut note = format!("rows {rows}, {}", self.builder.treatment(&shape));
        if has_system && !self.builder.is_chat(&shape) {
            note.push_str("; their `system` field is not sent without --chat");
        }
        self.note = Some(note);
        self.shape = Some(shape);
    }

    /// Gives every kind of row named fields; the cells of a CSV row come along for its output.
    #[expect(clippy::type_complexity, reason = "what a bad row keeps, and why it is bad")]
    fn name_fields(
        &self,
        record: Record,
    ) -> Result<Result<(NamedRow, Option<Vec<String>>), (Passthrough, RowError)>, InputError> {
        let line = record.line;
        let text = match record.content {
            Content::Cells(cells) => {
                let names = Arc::clone(self.names.as_ref().expect("only a CSV has cells"));
                return Ok(match record.error {
                    Some(error) => Err((Passthrough::Cells { names, cells }, error)),
                    None => {
                        let fields = fields_of_cells(&names, &cells);
                        Ok((NamedRow { fields, is_bare: false }, Some(cells)))
                    }
                });
            }
            Content::Line(text) => text,
        };
        if let Some(error) = record.error {
            return Ok(Err((unreadable(&text, line), error)));
        }
        if self.format == InputFormat::Txt {
            let fields = JsonFields::from_pairs(&[("prompt", &json_string(&text))]);
            return Ok(Ok((NamedRow { fields, is_bare: true }, None)));
        }
        if self.shape.is_none() {
            shape::refuse_json_document(&text)?;
        }
        Ok(match parse_json(text, line) {
            Ok(named) => Ok((named, None)),
            Err(bad) => {
                let (text, error) = *bad;
                Err((unreadable(&text, line), error))
            }
        })
    }
}

/// A JSON line: an object, or a bare string or list, which becomes the field `prompt`.
fn parse_json(text: String, line: u64) -> Result<NamedRow, Box<(String, RowError)>> {
    let first = text.bytes().find(|b| !b.is_ascii_whitespace());
    if first == Some(b'{') {
        let fields = JsonFields::parse(text, line)?;
        return Ok(NamedRow { fields, is_bare: false });
    }
    let checked = super::fields::check_depth(&text, line).and_then(|()| {
        serde_json::from_str::<&serde_json::value::RawValue>(&text)
            .map(|value| JsonFields::from_pairs(&[("prompt", value.get())]))
            .map_err(|error| RowError::bad_json(&error, &text, line))
    });
    match checked {
        Ok(fields) if matches!(first, Some(b'"' | b'[')) => Ok(NamedRow { fields, is_bare: true }),
        Ok(_) => {
            let message = "a row must be an object, a string or a list of token ids";
            let error = RowError::new(code::ROW_SHAPE, line, message).at(&text, 0);
            Err(Box::new((text, error)))
        }
        Err(error) => Err(Box::new((text, error))),
    }
}

/// What the output shows of a row that has no fields: where it is, and its text.
fn unreadable(text: &str, line: u64) -> Passthrough {
    let mut end = text.len().min(KEPT_OF_BAD_LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let input = json_string(&text[..end]);
    Passthrough::Json(JsonFields::from_pairs(&[("line", &line.to_string()), ("input", &input)]))
}

/// A CSV row's cells as JSON fields. Cells are strings, except where the column's name asks for a
/// list of messages or a sampling parameter.
fn fields_of_cells(names: &[String], cells: &[String]) -> JsonFields {
    let value = |(name, cell): (&String, &String)| match name.as_str() {
        "messages" | "conversations" if is_json_list(cell) => cell.trim().to_owned(),
        name => parameter_cell(name, cell).unwrap_or_else(|| json_string(cell)),
    };
    let values: Vec<String> = names.iter().zip(cells).map(value).collect();
    let pairs: Vec<_> = names.iter().zip(&values).map(|(n, v)| (n.as_str(), v.as_str())).collect();
    JsonFields::from_pairs(&pairs)
}

fn is_json_list(cell: &str) -> bool {
    cell.trim_start().starts_with('[')
        && super::fields::check_depth(cell, 0).is_ok()
        && serde_json::from_str::<serde::de::IgnoredAny>(cell).is_ok()
}

/// `id`, else `custom_id`, as text: 7 and "7" are the same id. Empty and null are none.
fn row_id(fields: &JsonFields) -> Option<String> {
    ["id", "custom_id"].iter().find_map(|name| {
        let value = fields.get(name)?;
        match value.as_bytes()[0] {
            b'"' => serde_json::from_str(value).ok().filter(|id: &String| !id.is_empty()),
            b'-' | b'0'..=b'9' => Some(value.to_owned()),
            _ => None,
        }
    })
}
