//! `RowShape`: where in a row its prompt is.

use std::fmt;

use super::compared::{self, Sides};
use super::named::NamedRow;
use crate::input::fields::JsonFields;
use crate::input::media::nouns;
use crate::input::path::{self, Missing};
use crate::input::reader::InputError;
use vllm_batch_media::MediaKind;

/// Kind of prompt of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptKind {
    Text,
    Messages,
    TokenIds,
}

impl PromptKind {
    /// By the first bytes of the value; `None` if it can be no prompt.
    pub(super) fn of(json: &str) -> Option<Self> {
        match json.as_bytes().first()? {
            b'"' => Some(PromptKind::Text),
            b'[' if json[1..].trim_start().starts_with('{') => Some(PromptKind::Messages),
            b'[' => Some(PromptKind::TokenIds),
            _ => None,
        }
    }
}

/// Where a row's prompt is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowShape {
    /// `custom_id`, `url`, `body`.
    OpenAiBatch,
    /// `custom_id`, `params`.
    AnthropicBatch,
    /// ShareGPT.
    Conversations,
    /// `instruction`, perhaps with `input`.
    Alpaca,
    /// A field.
    Field(String, PromptKind),
    /// The row itself is the prompt.
    Bare(PromptKind),
    /// `--template` makes the prompt.
    Template,
    /// Its media alone are asked about: images of which vectors or classes are made, recordings.
    Media(MediaKind),
    /// Texts that are compared, in fields of one of these spellings.
    Compared(&'static [Sides]),
}

/// Why a row decides no shape.
#[derive(Debug)]
pub(super) enum NoShape {
    /// It lacks what others may have.
    Lacks(InputError),
    /// Rows like it cannot be run.
    Refused(InputError),
}

impl From<InputError> for NoShape {
    fn from(error: InputError) -> Self {
        NoShape::Refused(error)
    }
}

/// Fields that may hold a prompt, or a request, in the order a message names one that is null.
pub(super) const MAY_BE_NULL: &[&str] = &[
    "prompt",
    "messages",
    "conversations",
    "prompt_token_ids",
    "instruction",
    "question",
    "text",
    "input",
    "body",
    "params",
];

/// Fields that hold a prompt, and what it may be, in the order they are looked for.
const PROMPT_FIELDS: &[(&str, &[PromptKind])] = &[
    ("prompt", &[PromptKind::Text, PromptKind::Messages, PromptKind::TokenIds]),
    ("prompt_token_ids", &[PromptKind::TokenIds]),
    ("instruction", &[PromptKind::Text]),
    ("question", &[PromptKind::Text]),
    ("text", &[PromptKind::Text]),
    ("input", &[PromptKind::Text, PromptKind::Messages]),
];

/// Columns of a CSV that hold a prompt, in the order they are looked for.
pub(super) const PROMPT_COLUMNS: &[&str] =
    &["prompt", "messages", "text", "question", "instruction", "input", "content"];

impl RowShape {
    /// The shape of a row, if it has one: the first of all that it could have.
    pub(super) fn of(row: &NamedRow) -> Option<Self> {
        Self::all_of(row).into_iter().next()
    }

    /// Every shape that a row could have, in the order they are looked for. A batch request is
    /// nothing else.
    pub(super) fn all_of(row: &NamedRow) -> Vec<Self> {
        let kind = |name| row.fields.get(name).and_then(PromptKind::of);
        if row.is_bare {
            return kind("prompt").map(RowShape::Bare).into_iter().collect();
        }
        let has = |name| row.fields.get(name).is_some();
        let is_object = |name| row.fields.get(name).is_some_and(|value| value.starts_with('{'));
        // One of the other two may be missing: that is a bad row, not another shape.
        if is_object("body") && (has("custom_id") || has("url")) {
            return vec![RowShape::OpenAiBatch];
        }
        if is_object("params") && has("custom_id") {
            return vec![RowShape::AnthropicBatch];
        }
        let is_list = |name| row.fields.get(name).is_some_and(|value| value.starts_with('['));
        let mut shapes = Vec::new();
        if is_list("messages") {
            shapes.push(RowShape::Field("messages".to_owned(), PromptKind::Messages));
        }
        if is_list("conversations") {
            shapes.push(RowShape::Conversations);
        }
        for &(name, kinds) in PROMPT_FIELDS {
            let Some(kind) = kind(name).filter(|kind| kinds.contains(kind)) else { continue };
            match name {
                "instruction" => shapes.push(RowShape::Alpaca),
                // Alpaca's second field.
                "input" if shapes.contains(&RowShape::Alpaca) => {}
                _ => shapes.push(RowShape::Field(name.to_owned(), kind)),
            }
        }
        shapes
    }

    /// Whether rows are requests of a batch API, which say themselves what they are.
    pub(super) fn is_batch(&self) -> bool {
        matches!(self, RowShape::OpenAiBatch | RowShape::AnthropicBatch)
    }

    /// Whether a row can be taken to have this shape, where the first row has another: an empty
    /// list, or one of texts, is not plainly a list of token ids.
    pub(super) fn is_plain_in(&self, row: &NamedRow) -> bool {
        let name = match self {
            RowShape::Field(name, PromptKind::TokenIds) => name.as_str(),
            RowShape::Bare(PromptKind::TokenIds) => "prompt",
            _ => return !self.is_batch(),
        };
        let list = row.fields.get(name).and_then(|json| json.strip_prefix('['));
        list.is_some_and(|items| items.trim_start().starts_with(|c: char| c.is_ascii_digit()))
    }

    /// Whether a row has its prompt where this shape says.
    pub(super) fn fits(&self, row: &NamedRow) -> bool {
        let value = |name: &str| row.fields.get(name);
        let is_kind = |name: &str, kind: PromptKind| {
            // An empty list can be a list of anything.
            path::find(&row.fields, name).is_ok_and(|json| {
                let is_empty = json.starts_with('[') && json[1..].trim_start() == "]";
                PromptKind::of(json) == Some(kind) || is_empty && kind != PromptKind::Text
            })
        };
        match self {
            RowShape::Template => true,
            RowShape::Bare(kind) => row.is_bare && is_kind("prompt", *kind),
            _ if row.is_bare => false,
            RowShape::Media(_) => Self::of(row).is_none(),
            RowShape::Compared(spellings) => {
                compared::spelling(spellings, |name| value(name).is_some()).is_some()
            }
            RowShape::Field(name, kind) => is_kind(name, *kind),
            RowShape::Alpaca => is_kind("instruction", PromptKind::Text),
            RowShape::Conversations => is_kind("conversations", PromptKind::Messages),
            RowShape::OpenAiBatch | RowShape::AnthropicBatch => {
                Self::of(row).as_ref() == Some(self)
            }
        }
    }

    /// Description of a row that does not fit, for the error.
    pub(super) fn describe_misfit(&self, row: &NamedRow) -> String {
        let own_field = match self {
            RowShape::Field(name, _) if !row.is_bare => Some(name.as_str()),
            RowShape::Alpaca if !row.is_bare => Some("instruction"),
            RowShape::Conversations if !row.is_bare => Some("conversations"),
            _ => None,
        };
        match own_field.map(|name| (name, path::find(&row.fields, name))) {
            Some((name, Ok(value))) => return format!("`{name}` with {}", kind_name(value)),
            Some((_, Err(Missing::Part(text)))) => return format!("a row whose {text}"),
            _ => {}
        }
        match Self::of(row) {
            Some(shape) => shape.to_string(),
            None if row.is_bare => "a bare list".to_owned(),
            None => format!("an object with {}", field_list(&row.fields)),
        }
    }
}

impl fmt::Display for RowShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind_text = |kind: &PromptKind| match kind {
            PromptKind::Text => "text",
            PromptKind::Messages => "messages",
            PromptKind::TokenIds => "token ids",
        };
        match self {
            RowShape::OpenAiBatch => f.write_str("OpenAI batch requests"),
            RowShape::AnthropicBatch => f.write_str("Anthropic batch requests"),
            RowShape::Conversations => f.write_str("ShareGPT `conversations`"),
            RowShape::Alpaca => f.write_str("Alpaca `instruction` rows"),
            RowShape::Field(name, PromptKind::Messages) if name == "messages" => {
                f.write_str("chat `messages`")
            }
            RowShape::Field(name, _) if name == "prompt_token_ids" => write!(f, "`{name}`"),
            RowShape::Field(name, kind) => write!(f, "`{name}` {}", kind_text(kind)),
            RowShape::Bare(kind) => write!(f, "bare {}", kind_text(kind)),
            RowShape::Template => f.write_str("fields for --template"),
            RowShape::Media(kind) => f.write_str(nouns(*kind)),
            RowShape::Compared(spellings) => f.write_str(&compared::described(spellings)),
        }
    }
}

/// The kind of a JSON value, in words.
pub(super) fn kind_name(json: &str) -> &'static str {
    match (json.as_bytes().first(), PromptKind::of(json)) {
        (_, Some(PromptKind::Text)) => "a string",
        (_, Some(PromptKind::Messages)) => "a list of objects",
        (_, Some(PromptKind::TokenIds)) => "a list",
        (Some(b'{'), _) => "an object",
        (Some(b't' | b'f'), _) => "true or false",
        (Some(b'n'), _) => "null",
        _ => "a number",
    }
}

/// The names of a row's fields, the first few of them.
pub(super) fn field_list(fields: &JsonFields) -> String {
    let names: Vec<_> = fields.iter().map(|field| field.name).collect();
    match names.len() {
        0 => "no fields".to_owned(),
        1..=8 => format!("the fields {}", names.join(", ")),
        count => format!("the fields {}, ... ({count} in all)", names[..8].join(", ")),
    }
}

/// The first line of a file that is one JSON document, not one per line.
pub(super) fn refuse_json_document(text: &str) -> Result<(), InputError> {
    let text = text.trim();
    let (message, filter) = match text {
        "{" => ("the input is JSON spread over lines, not one row per line", "."),
        "[" => ("the input is one JSON list, not one row per line", ".[]"),
        _ if text.starts_with('[') && is_list_of_rows(text) => {
            ("the input is one JSON list, not one row per line", ".[]")
        }
        _ => return Ok(()),
    };
    Err(InputError::refused(message, format!("use `jq -c '{filter}' FILE | vllm-batch run ...`")))
}

/// A list of objects that are not messages, or the beginning of one.
fn is_list_of_rows(text: &str) -> bool {
    if PromptKind::of(text) != Some(PromptKind::Messages) {
        return false;
    }
    let mut items =
        serde_json::Deserializer::from_str(text[1..].trim_start()).into_iter::<serde_json::Value>();
    matches!(items.next(), Some(Ok(first)) if first.get("role").is_none())
}
