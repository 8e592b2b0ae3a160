//! `PromptBuilder`: the prompt of a row, by its shape and the user's options.

mod images;

use std::sync::Arc;

use serde_json::{Map, Value};

use self::images::refuse_media;
use super::alpaca::alpaca;
use super::chat::{ChatDefaults, LastAssistant, MadeChat, Origin};
use super::header::{field_names, no_prompt_column};
use super::named::NamedRow;
use super::own_images::{self, MediaFields};
use super::shape::{
    MAY_BE_NULL, NoShape, PROMPT_COLUMNS, PromptKind, RowShape, field_list, kind_name,
};
use super::template::Template;
use super::{ChatMode, Likelihoods, ModelNames, RowOptions, Task};
use super::{blank, compared, messages, own};
use crate::input::fields::JsonFields;
use crate::input::media::{MediaReader, Named};
use crate::input::own_params::OwnParams;
use crate::input::path::{self, Missing};
use crate::input::reader::InputError;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_media::MediaKind;

/// Makes prompts of rows.
pub(super) struct PromptBuilder {
    task: Task,
    likelihoods: Likelihoods,
    chat: ChatMode,
    template: Option<Template>,
    prompt_column: Option<String>,
    chats: ChatDefaults,
    fills_template: bool,
    names: ModelNames,
    own_params: OwnParams,
    allows_empty: bool,
    pub(super) has_priorities: bool,
    media_fields: MediaFields,
    media: MediaReader,
}

/// What is beside a text that becomes a prompt.
struct Beside<'a> {
    fields: &'a JsonFields,
    /// Those of them that may set parameters.
    settings: &'a JsonFields,
    images: Vec<Named>,
    line: u64,
}

/// The prompt of a row.
pub(super) enum Built {
    /// Text or token ids, to be completed.
    Plain(Prompt),
    /// Messages, to be answered.
    Chat(Box<MadeChat>),
    /// What is compared, with its images.
    Compared(Prompt, Vec<Named>),
}

impl From<Prompt> for Built {
    fn from(prompt: Prompt) -> Self {
        Built::Plain(prompt)
    }
}

impl From<MadeChat> for Built {
    fn from(made: MadeChat) -> Self {
        Built::Chat(Box::new(made))
    }
}

pub(super) const NO_PROMPT_HELP: &str = "name the field with --prompt-column, or make a prompt of \
                                         several with --template '... {{field}} ...'";

impl PromptBuilder {
    pub(super) fn new(options: &RowOptions) -> Result<Self, InputError> {
        if options.template.is_some() && options.prompt_column.is_some() {
            return Err(InputError::refused(
                "--template and --prompt-column exclude each other",
                "write the column into the template as {{name}}",
            ));
        }
        Ok(Self {
            task: options.task,
            likelihoods: options.likelihoods,
            chat: options.chat,
            template: options.template.as_deref().map(Template::parse).transpose()?,
            prompt_column: options.prompt_column.clone(),
            chats: options.chats.clone(),
            fills_template: options.fills_template,
            names: options.names.clone(),
            own_params: options.own_params.clone(),
            allows_empty: options.allows_empty,
            has_priorities: options.has_priorities,
            media_fields: MediaFields::of(options),
            media: MediaReader::new(&options.media),
        })
    }

    /// Names of the model and its adapters in rows.
    pub(super) fn names(&self) -> &ModelNames {
        &self.names
    }

    /// Fields of rows that set parameters.
    pub(super) fn own_params(&self) -> &OwnParams {
        &self.own_params
    }

    /// Whether rows without text are asked.
    pub(super) fn allows_empty(&self) -> bool {
        self.allows_empty
    }

    /// Whether the user says where the prompt is.
    pub(super) fn is_told(&self) -> bool {
        self.template.is_some() || self.prompt_column.is_some()
    }

    /// The field of a row that would hold its prompt, and is null.
    pub(super) fn null_prompt(&self, row: &NamedRow) -> Option<&str> {
        let is_null = |name: &str| path::find(&row.fields, name) == Ok("null");
        match (&self.prompt_column, &self.template) {
            (Some(name), _) => Some(name.as_str()).filter(|name| is_null(name)),
            (None, Some(_)) => None,
            (None, None) => MAY_BE_NULL.iter().copied().find(|name| is_null(name)),
        }
    }

    /// Goes on for another task, which the first row decides.
    pub(super) fn decide(&mut self, task: Task) {
        self.task = task;
    }

    /// Names of a table's columns as fields of its rows. A name that the user wrote is as it is.
    pub(super) fn field_names(&self, names: &Arc<[String]>) -> Arc<[String]> {
        match self.is_told() {
            true => Arc::clone(names),
            false => field_names(names, self.task).into(),
        }
    }

    /// The shape of a CSV, by its columns.
    pub(super) fn shape_of_columns(&self, names: &[String]) -> Result<RowShape, InputError> {
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        let missing = |flag: &str, name: &str| {
            let message = format!("{flag}: there is no column '{name}'");
            let root = path::root(name);
            let help = match root != name && has(root) {
                true => format!(
                    "cells of a table are text, so '{root}' has no parts; convert the table to \
                     JSON lines"
                ),
                false => format!("the columns are {}", names.join(", ")),
            };
            InputError::refused(message, help)
        };
        if let Some(spellings) = compared::spellings(self.task) {
            return match compared::spelling(spellings, has) {
                Some(_) => Ok(RowShape::Compared(spellings)),
                None => Err(InputError::refused(
                    format!("no columns hold {}", compared::described(spellings)),
                    format!("the columns are {}", names.join(", ")),
                )),
            };
        }
        if self.likelihoods == Likelihoods::OfChoices && !has(Likelihoods::CHOICES) {
            return Err(missing("--loglikelihood choices", Likelihoods::CHOICES));
        }
        if let Some((flag, name)) = self.media_fields.named().find(|(_, name)| !has(name)) {
            return Err(missing(flag, name));
        }
        if let Some(template) = &self.template {
            if template.names().next().is_none() && self.beside_of_columns(names).is_none() {
                return Err(Template::refuse_constant());
            }
            return match template.names().find(|name| !has(name)) {
                Some(name) => Err(Template::refuse_expression(name)
                    .unwrap_or_else(|| missing("--template", name))),
                None => Ok(RowShape::Template),
            };
        }
        if self.prompt_column.is_none() && self.is_pair(has) {
            return Ok(RowShape::Compared(compared::PAIR));
        }
        let name = match &self.prompt_column {
            Some(name) if !has(name) => return Err(missing("--prompt-column", name)),
            Some(name) => name.as_str(),
            // Of a table without header that has one column.
            None if matches!(names, [only] if only == "column_1") => "column_1",
            None => match PROMPT_COLUMNS.iter().copied().find(|name| has(name)) {
                Some(name) => name,
                None => match self.of_media_columns(names) {
                    Some(shape) => return self.accept(shape),
                    None => return Err(no_prompt_column(names)),
                },
            },
        };
        let shape = match name {
            "messages" => RowShape::Field(name.to_owned(), PromptKind::Messages),
            // A prompt column that the user named is the prompt, as it is.
            "instruction" if self.prompt_column.is_none() => RowShape::Alpaca,
            _ => RowShape::Field(name.to_owned(), PromptKind::Text),
        };
        self.accept(shape)
    }

    /// The shape that the first row decides.
    pub(super) fn shape_of_first(&self, row: &NamedRow, line: u64) -> Result<RowShape, NoShape> {
        let missing = |flag: &str, name: &str, missing: &Missing| {
            let found = field_list(&row.fields);
            let message = format!("{flag}: the row on line {line} has no field '{name}'");
            let help = match missing {
                Missing::Field => format!("it has {found}"),
                Missing::Part(text) => text.clone(),
            };
            NoShape::Lacks(InputError::refused(message, help))
        };
        if let Some(spellings) = compared::spellings(self.task) {
            let compared = RowShape::Compared(spellings);
            return match RowShape::of(row) {
                _ if compared.fits(row) => Ok(compared),
                Some(shape) if shape.is_batch() => Ok(self.accept(shape)?),
                _ => Err(NoShape::Lacks(InputError::refused(
                    format!("line {line}: the row has no {compared}"),
                    format!("it has {}", field_list(&row.fields)),
                ))),
            };
        }
        let is_batch = RowShape::of(row).is_some_and(|shape| shape.is_batch());
        for (flag, name) in self.media_fields.named().filter(|_| !is_batch) {
            path::find(&row.fields, name).map_err(|why| missing(flag, name, &why))?;
        }
        if let Some(template) = &self.template {
            if template.names().next().is_none() && self.beside(row).is_none() {
                return Err(Template::refuse_constant().into());
            }
            let lacks = |name| template_value(row, name).err().map(|missing| (name, missing));
            return match template.names().find_map(lacks) {
                Some((name, why)) => Err(Template::refuse_expression(name)
                    .map_or_else(|| missing("--template", name, &why), NoShape::Lacks)),
                None => Ok(RowShape::Template),
            };
        }
        if let Some(name) = &self.prompt_column {
            if row.is_bare {
                return Err(InputError::refused(
                    format!("--prompt-column {name}: the rows are text without named fields"),
                    "give --format csv if the input is CSV; else leave out --prompt-column",
                )
                .into());
            }
            let value = path::find(&row.fields, name)
                .map_err(|why| missing("--prompt-column", name, &why))?;
            let kind = PromptKind::of(value).ok_or_else(|| {
                let found = kind_name(value);
                let message = format!("line {line}: '{name}' cannot be a prompt: it is {found}");
                let help = "a prompt is text, a list of messages, or token ids";
                NoShape::Lacks(InputError::refused(message, help))
            })?;
            return Ok(self.accept(RowShape::Field(name.clone(), kind))?);
        }
        if !row.is_bare && self.is_pair(|name| row.fields.get(name).is_some()) {
            return Ok(RowShape::Compared(compared::PAIR));
        }
        let shape = RowShape::of(row).or_else(|| self.of_media(row)).ok_or_else(|| {
            let found = field_list(&row.fields);
            let message = format!("line {line}: the row has no prompt; it has {found}");
            let help = match own::nested_messages(&row.fields) {
                Some(name) => format!("name the field with the chat: --prompt-column {name}"),
                None => NO_PROMPT_HELP.to_owned(),
            };
            NoShape::Lacks(InputError::refused(message, help))
        })?;
        Ok(self.accept(shape)?)
    }

    /// The shape of a row that is not of the first row's, if it can only be that one: chat among
    /// text, or token ids among text. Files for batch APIs stay of one kind, and a field that the
    /// user named is where the prompt is.
    pub(super) fn other_shape(&self, first: &RowShape, row: &NamedRow) -> Option<RowShape> {
        let may_differ = !first.is_batch()
            && !matches!(first, RowShape::Template | RowShape::Compared(_))
            && self.prompt_column.is_none()
            && !first.fits(row);
        if !may_differ {
            return None;
        }
        let mut shapes = RowShape::all_of(row).into_iter().filter(|shape| shape.is_plain_in(row));
        let (shape, another) = (shapes.next().or_else(|| self.of_media(row))?, shapes.next());
        another.is_none().then(|| self.accept(shape).ok()).flatten()
    }

    /// Whether a row of these fields is two texts of one class.
    fn is_pair(&self, has: impl Fn(&str) -> bool) -> bool {
        self.task == Task::Classify && compared::spelling(compared::PAIR, has).is_some()
    }

    /// Refuses a shape that cannot be run, or not with these options.
    fn accept(&self, shape: RowShape) -> Result<RowShape, InputError> {
        let is_for_run = match self.task {
            Task::Complete => false,
            Task::Embed | Task::Score | Task::Rerank => {
                matches!(shape, RowShape::AnthropicBatch | RowShape::Alpaca)
            }
            Task::Classify | Task::Reward => shape.is_batch() || shape == RowShape::Alpaca,
        };
        if is_for_run {
            return Err(InputError::refused(
                format!("the rows are {shape}, which are for `run`"),
                "name the field with the text: --prompt-column NAME",
            ));
        }
        if self.likelihoods != Likelihoods::None && shape.is_batch() {
            return Err(InputError::refused(
                format!("--loglikelihood: the rows are {shape}, which ask for completions"),
                "give rows with a field for the prompt",
            ));
        }
        if self.likelihoods == Likelihoods::OfTexts && self.is_chat(&shape) {
            let (message, help) = match self.chat {
                ChatMode::Always => {
                    ("--chat: with --loglikelihood text a row's text", "leave out --chat")
                }
                _ => ("--loglikelihood text: the rows are chat, and a text", NO_PROMPT_HELP),
            };
            return Err(InputError::refused(format!("{message} is asked about as it is"), help));
        }
        if !self.own_params.are_all() && shape.is_batch() {
            return Err(InputError::refused(
                format!("--row-params: the rows are {shape}, whose fields are all the request's"),
                "leave out --row-params",
            ));
        }
        if let Some((flag, _)) = self.media_fields.named().next().filter(|_| shape.is_batch()) {
            return Err(InputError::refused(
                format!("{flag}: the rows are {shape}, whose media are in their messages"),
                format!("leave out {flag}"),
            ));
        }
        match (&shape, self.chat) {
            (RowShape::Media(_), ChatMode::Never) => Err(InputError::refused(
                format!("--no-chat: the rows are {shape}, which are turns of a user"),
                "leave out --no-chat",
            )),
            (_, ChatMode::Always | ChatMode::Never) if shape.is_batch() => {
                let flag = if self.chat == ChatMode::Always { "--chat" } else { "--no-chat" };
                let message = format!("{flag}: the rows are {shape}, which say what they are");
                Err(InputError::refused(message, format!("leave out {flag}")))
            }
            (_, ChatMode::Never) if is_messages(&shape) => Err(InputError::refused(
                format!("--no-chat: the rows are {shape}"),
                "leave out --no-chat, or name a field of text with --prompt-column",
            )),
            (
                RowShape::Field(_, PromptKind::TokenIds) | RowShape::Bare(PromptKind::TokenIds),
                ChatMode::Always,
            ) => Err(InputError::refused(
                format!("--chat: the rows are {shape}, which are used as they are"),
                "leave out --chat",
            )),
            _ => Ok(shape),
        }
    }

    /// Whether rows of a shape become chat messages.
    pub(super) fn is_chat(&self, shape: &RowShape) -> bool {
        is_messages(shape) || self.chat == ChatMode::Always
    }

    /// Treatment of rows of a shape, in words. `beside`: what they have beside their prompts.
    pub(super) fn treatment(&self, shape: &RowShape, beside: Option<MediaKind>) -> &'static str {
        if let Some(treatment) = self.likelihoods.treatment() {
            return treatment;
        }
        match shape {
            RowShape::Media(_) => "each a user turn without text",
            _ if beside.is_some() && !self.task.compares() && !self.is_chat(shape) => {
                match beside {
                    Some(MediaKind::Sound) => "each sent as a user turn with its recordings",
                    _ => "each sent as a user turn with its images",
                }
            }
            RowShape::OpenAiBatch if self.task == Task::Embed => "each `input` embedded",
            RowShape::OpenAiBatch if self.task.compares() => "scored or ranked by their `url`",
            RowShape::Compared(_) if self.task == Task::Rerank => "documents put in an order",
            RowShape::Compared(_) if self.task == Task::Classify => "classified together",
            RowShape::Compared(_) => "texts compared",
            RowShape::OpenAiBatch => "chat or completions by their `url`",
            RowShape::AnthropicBatch => "rendered with the chat template",
            RowShape::Conversations if self.chats.last_assistant == LastAssistant::Drop => {
                "sent as chat without the last answer"
            }
            _ if is_messages(shape) => "rendered with the chat template",
            _ if self.is_chat(shape) => "each sent as a user turn",
            RowShape::Field(_, PromptKind::TokenIds) | RowShape::Bare(PromptKind::TokenIds) => {
                "used as they are"
            }
            _ if self.task == Task::Embed => "embedded as text (--chat sends a user turn)",
            _ if self.task == Task::Classify => "classified as text (--chat sends a user turn)",
            _ if self.task == Task::Reward => "scored as text (--chat sends a user turn)",
            RowShape::Alpaca => "completed with the Alpaca prompt (--chat sends a user turn)",
            _ => "completed as text (--chat sends a user turn)",
        }
    }

    /// The prompt of a row. `settings` are those of its fields that may set parameters.
    pub(super) fn build(
        &self,
        shape: &RowShape,
        row: &NamedRow,
        settings: &JsonFields,
        line: u64,
    ) -> Result<Built, RowError> {
        if !shape.fits(row) {
            if let Some(name) = self.null_prompt(row) {
                let message = format!("`{name}` is null: the row has no prompt");
                return Err(RowError::new(code::ROW_SHAPE, line, message));
            }
            let found = shape.describe_misfit(row);
            let message = format!("expected {shape} as in the first row, found {found}");
            return Err(RowError::new(code::ROW_SHAPE, line, message));
        }
        let fields = &row.fields;
        let images = self.media_of(row, line)?;
        let beside = |images| Beside { fields, settings, images, line };
        let (name, kind) = match shape {
            RowShape::Template => {
                return self.text(self.fill(row, line)?, beside(images));
            }
            RowShape::Media(_) => return self.alone(beside(images)),
            RowShape::Alpaca => {
                let is_chat = self.chat == ChatMode::Always || !images.is_empty();
                return self
                    .text(alpaca(fields, (is_chat, self.allows_empty), line)?, beside(images));
            }
            RowShape::Conversations => {
                let json = fields.get("conversations").expect("the shape fits");
                let system = system_text(fields, line)?;
                let mut messages = messages::parse_share_gpt(json, system, line)?;
                own_images::place(&mut messages, images, line)?;
                let made = self.chat(messages, settings, ("conversations", line))?;
                // The note on the shape says what becomes of an answer.
                return Ok(MadeChat { dropped_answer: false, ..made }.into());
            }
            RowShape::Field(name, kind) => (name.as_str(), *kind),
            RowShape::Bare(kind) => ("prompt", *kind),
            RowShape::Compared(spellings) => {
                refuse_media(&images, "beside what is compared", line)?;
                let sides = compared::spelling(spellings, |name| fields.get(name).is_some());
                let sides = sides.expect("the shape fits");
                let (compared, images) = compared::read(sides, fields, self.allows_empty, line)?;
                let compared = compared::instructed(compared, fields, self.variables());
                let prompt = compared::prompt(self.task, compared, (sides, line))?;
                return Ok(Built::Compared(prompt, images));
            }
            RowShape::OpenAiBatch | RowShape::AnthropicBatch => {
                unreachable!("batch requests that fit have readers of their own")
            }
        };
        let json = path::find(fields, name).expect("the shape fits");
        match kind {
            PromptKind::Text => self.text(string(name, json, line)?, beside(images)),
            PromptKind::TokenIds => {
                refuse_media(&images, "beside token ids", line)?;
                let ids = serde_json::from_str(json).map_err(|error| {
                    let message = format!("{name}: not token ids: {}", reason(&error));
                    RowError::new(code::INVALID_PROMPT, line, message)
                })?;
                Ok(Prompt::TokenIds(ids).into())
            }
            PromptKind::Messages => {
                let system = system_text(settings, line)?;
                let mut messages = messages::parse(name, json, system, line)?;
                own_images::place(&mut messages, images, line)?;
                self.chat(messages, settings, (name, line)).map(Built::from)
            }
        }
    }

    fn chat(
        &self,
        messages: Vec<Value>,
        fields: &JsonFields,
        place: (&str, u64),
    ) -> Result<MadeChat, RowError> {
        self.chats.chat(messages, fields, Origin::Dataset, place)
    }

    /// Variables of the template that texts are compared with, if there is one.
    pub(super) fn variables(&self) -> Option<&Map<String, Value>> {
        self.fills_template.then_some(&self.chats.template_kwargs)
    }

    /// Likelihoods that are asked of rows.
    pub(super) fn likelihoods(&self) -> Likelihoods {
        self.likelihoods
    }

    /// Flags for chats.
    pub(super) fn chats(&self) -> &ChatDefaults {
        &self.chats
    }

    /// A text to be completed, or to be answered: with `--chat`, and where it has images.
    fn text(&self, text: String, beside: Beside<'_>) -> Result<Built, RowError> {
        let Beside { fields, settings, images, line } = beside;
        if self.chat == ChatMode::Never {
            refuse_media(&images, "with --no-chat", line)?;
        }
        if self.chat != ChatMode::Always && images.is_empty() {
            return Ok(Prompt::Text(text).into());
        }
        let mut messages = messages::from_text(text, system_text(fields, line)?);
        own_images::place(&mut messages, images, line)?;
        self.chat(messages, settings, ("prompt", line)).map(Built::from)
    }

    fn fill(&self, row: &NamedRow, line: u64) -> Result<String, RowError> {
        let template = self.template.as_ref().expect("the shape exists only with a template");
        let mut is_blank = template.names().next().is_some();
        let filled = template.fill(|name| {
            let text = template_text(row, name, line)?;
            is_blank &= blank::is_blank(&text);
            Ok(text)
        })?;
        match is_blank && !self.allows_empty {
            true => Err(blank::error("every field of --template", line)),
            false => Ok(filled),
        }
    }
}

fn is_messages(shape: &RowShape) -> bool {
    matches!(
        shape,
        RowShape::Conversations
            | RowShape::Field(_, PromptKind::Messages)
            | RowShape::Bare(PromptKind::Messages)
            | RowShape::Media(_)
    )
}

/// The value of a name in a template. Text without names answers to `text` as well.
fn template_value<'a>(row: &'a NamedRow, name: &str) -> Result<&'a str, Missing> {
    let name = if row.is_bare && name == "text" { "prompt" } else { name };
    path::find(&row.fields, name)
}

/// The same as text: numbers and lists as they are written.
fn template_text(row: &NamedRow, name: &str, line: u64) -> Result<String, RowError> {
    match template_value(row, name) {
        Err(why) => {
            let part = match why {
                Missing::Field => String::new(),
                Missing::Part(text) => format!(": {text}"),
            };
            let message = format!("the row has no field '{name}' for --template{part}");
            Err(RowError::new(code::TEMPLATE, line, message))
        }
        Ok(json) if json.starts_with('"') => string(name, json, line),
        Ok("null") => Ok(String::new()),
        Ok(json) => Ok(json.to_owned()),
    }
}

/// The row's `system` text; an empty one is none.
fn system_text(fields: &JsonFields, line: u64) -> Result<Option<String>, RowError> {
    match fields.get("system") {
        None | Some("null") => Ok(None),
        Some(json) if json.starts_with('"') => {
            string("system", json, line).map(|text| Some(text).filter(|text| !text.is_empty()))
        }
        Some(json) => {
            let message = format!("system: expected text, found {}", kind_name(json));
            Err(RowError::new(code::INVALID_PROMPT, line, message))
        }
    }
}

/// A JSON string's text. It is valid JSON already, but may have half of a surrogate pair.
pub(super) fn string(name: &str, json: &str, line: u64) -> Result<String, RowError> {
    serde_json::from_str(json).map_err(|error| {
        let message = format!("{name}: not text: {}", reason(&error));
        RowError::new(code::INVALID_PROMPT, line, message)
    })
}

/// serde_json's text, without a position in something that is only a part of the line.
pub(super) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).replace('`', "'")
}
