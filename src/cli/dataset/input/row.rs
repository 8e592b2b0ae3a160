//! `RowParser`: from what was read to what the engine is asked, by the shape that the first row
//! decided, or that a later one plainly has.

mod alpaca;
mod anthropic;
mod asked;
mod blank;
mod chat;
mod choices;
mod compared;
mod decide;
mod document_parts;
mod embeddings;
mod endpoint;
mod header;
mod image_parts;
mod likelihoods;
mod messages;
mod model_names;
mod named;
mod near_miss;
mod openai;
mod own;
mod own_images;
mod prompt;
mod recordings;
mod remarks;
mod requests;
mod responses;
mod score_inputs;
mod shape;
mod task;
mod template;
#[cfg(test)]
mod tests;
mod tool_history;
mod tools;
mod unsupported;
mod unused;
mod urls;

use std::sync::Arc;

use self::asked::Asked;
pub use self::chat::{ChatDefaults, LastAssistant, check_kwargs};
pub use self::choices::{ListedChoices, listed as listed_choices};
use self::endpoint::Endpoint;
pub use self::likelihoods::Likelihoods;
pub use self::model_names::ModelNames;
use self::named::{Named, NamedRow, custom_id, fields_of_cells, parse_json, row_id};
use self::near_miss::NearMisses;
use self::prompt::PromptBuilder;
use self::remarks::{Remark, Remarks};
pub use self::requests::{ReadRequest, RequestApi};
use self::shape::RowShape;
pub use self::task::Task;
pub use self::tools::are_functions;
pub use self::urls::Picture;
use super::batch_line::{BatchKind, BatchLine, BatchLines, Echo, recovered_custom_id};
use super::fields::{JsonFields, Passthrough, json_string};
use super::media::{FetchedImage, MediaOptions, Place};
use super::overrides::Overrides;
use super::own_params::OwnParams;
use super::reader::{Content, InputError, InputFormat, Record, Records};
use super::referred::Referred;
use super::row_error::{RowError, code};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::LoraId;
use vllm_batch_media::MediaKind;
use vllm_batch_text::AnswerForm;

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

/// Settings by which rows become prompts.
#[derive(Clone, Debug, Default)]
pub struct RowOptions {
    /// Task of the rows.
    pub task: Task,
    /// Lines of OpenAI's batch API may be for something else: the first of them decides for all.
    pub lines_decide: bool,
    /// Likelihoods that are asked of rows instead of a completion.
    pub likelihoods: Likelihoods,
    /// `--chat`, `--no-chat`.
    pub chat: ChatMode,
    /// `--template`: the prompt, with `{{name}}` for the row's fields.
    pub template: Option<String>,
    /// `--prompt-column`: the field that holds the prompt.
    pub prompt_column: Option<String>,
    /// `--expected-column` of a run that is judged: the prompt is elsewhere.
    pub expected_column: Option<String>,
    /// `--output-format`: which rows keep what a batch line shows, in place of their fields.
    pub lines: BatchLines,
    /// `--chat-template` of texts that are compared: rows may have an `instruction` for it.
    pub fills_template: bool,
    /// `--system-prompt`, `--last-assistant`, `--chat-template-kwargs`.
    pub chats: ChatDefaults,
    /// Names of the model and its adapters in rows.
    pub names: ModelNames,
    /// `--row-params`: which of their fields set parameters.
    pub own_params: OwnParams,
    /// `--allow-empty-prompts`: rows without text are asked like others.
    pub allows_empty: bool,
    /// `--image-column`: the field with a row's images; an empty one: none has any.
    pub image_column: Option<String>,
    /// `--audio-column`: the same of recordings.
    pub audio_column: Option<String>,
    /// Rows name their images in fields `file_name`, where no flag says another field.
    pub name_files: bool,
    /// Which images may be read.
    pub media: MediaOptions,
    /// `--scheduling-policy priority`: requests may have priorities.
    pub has_priorities: bool,
    /// They come one by one, and whoever sends them may wait for the answer to the first.
    pub are_streamed: bool,
}

/// A row that can be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// 0, 1, 2, ... over all rows, bad ones included.
    pub index: u64,
    /// Physical line where it starts, from 1.
    pub line: u64,
    /// Prompt to complete; a `system` field is already folded into messages.
    pub prompt: Prompt,
    /// Sampling parameters of the row.
    pub overrides: Overrides,
    /// `id` or `custom_id` as text: the key of its random numbers.
    pub id: Option<String>,
    /// The adapter that it is computed with.
    pub lora: Option<LoraId>,
    /// Of a request of OpenAI's: a lower one goes first.
    pub priority: i64,
    /// Form of a chat's answer; a text that is completed has no parts.
    pub answer_form: Option<AnswerForm>,
    /// Fields that appear again in the output row.
    pub passthrough: Passthrough,
    /// Its images that came from URLs.
    pub fetched: Vec<FetchedImage>,
    /// These are known from an earlier run, and their bytes are not there.
    pub is_recalled: bool,
}

/// A row that cannot be asked; it becomes an error row in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// 0, 1, 2, ... over all rows.
    pub index: u64,
    /// Fields that appear again in the output row.
    pub passthrough: Passthrough,
    /// Why, and on which line.
    pub error: RowError,
}

impl BadRow {
    /// Why a file with the row is refused: it asks for something else than the rows before it.
    pub fn of_other_task(&self) -> Option<&RowError> {
        Some(&self.error).filter(|error| error.code == code::OTHER_TASK)
    }
}

/// Parses rows. The first readable one decides the shape of those that may have several.
pub struct RowParser {
    builder: PromptBuilder,
    task: Task,
    lines_decide: bool,
    format: InputFormat,
    lines: BatchLines,
    /// Columns of a table.
    names: Option<Arc<[String]>>,
    /// The same as fields of its rows.
    field_names: Arc<[String]>,
    shape: Option<RowShape>,
    next_index: u64,
    /// What the first row has beside its prompt.
    beside: Option<MediaKind>,
    note: Option<String>,
    remarks: Remarks,
    near_misses: NearMisses,
    /// Rows come one by one.
    are_streamed: bool,
    /// Fields that set parameters, and were named.
    named_params: Vec<String>,
    /// The field with what is expected, where none is named as the prompt.
    expected: Option<String>,
    /// The name of the file that is read, where there are several.
    file: Option<String>,
}

impl RowParser {
    /// A parser for the rows of an input. Reads ahead to the first readable row: how the ones
    /// before it are written depends on it.
    ///
    /// # Errors
    /// The options do not fit each other or the input's columns, or that row has no shape that can
    /// be run: the whole input is refused.
    pub fn new(records: &mut Records, options: &RowOptions) -> Result<Self, InputError> {
        let mut builder = PromptBuilder::new(options)?;
        builder.begin_records(records.brought());
        let names = records.headers();
        let mut parser = Self::undecided(builder, options, records.format());
        // The columns are the same in every row, so the header decides before the first.
        parser.take_columns(names);
        if parser.names.as_ref().is_some_and(|names| !names.is_empty()) {
            parser.decide_by_columns()?;
        }
        parser.read_ahead(records)?;
        Ok(parser)
    }

    /// Goes on with the records of another file.
    ///
    /// # Errors
    /// It is a table with other columns than the one before, or none that holds a prompt.
    pub fn begin_file(&mut self, records: &mut Records) -> Result<(), InputError> {
        let names = records.headers();
        let decides = match (&self.names, &names) {
            (Some(known), Some(found)) => check_columns(known, found).map(|()| false)?,
            (None, Some(found)) => !found.is_empty(),
            _ => false,
        };
        self.take_columns(names);
        if decides {
            self.decide_by_columns()?;
        }
        self.format = records.format();
        self.builder.begin_records(records.brought());
        self.read_ahead(records)
    }

    fn take_columns(&mut self, names: Option<Arc<[String]>>) {
        self.field_names =
            names.as_ref().map(|names| self.builder.field_names(names)).unwrap_or_default();
        self.names = names;
    }

    /// The place of the file that is read, which says what paths of images mean.
    pub fn begin(&mut self, place: Place<'_>) {
        self.builder.media_mut().begin(place);
    }

    /// The images that rows of a table name by the `index` of another row.
    pub fn refer(&mut self, referred: Option<Referred>) {
        self.builder.media_mut().refer(referred);
    }

    /// The column of a table that may name other rows.
    pub fn image_column(&self) -> &str {
        self.builder.image_column()
    }

    /// Looks at no image from now on: rows with images become chats without.
    pub fn skip_images(&mut self) {
        self.builder.media_mut().skip_images();
    }

    /// The name of the file that is read, where there are several: rows that cannot be read show
    /// it.
    pub fn name_file(&mut self, name: Option<&str>) {
        self.file = name.map(str::to_owned);
    }

    /// The next row.
    ///
    /// # Errors
    /// The first readable row has no shape that can be run: the whole input is refused. Or the
    /// machine lacks what an image needs.
    pub fn parse(&mut self, mut record: Record) -> Result<Result<Row, BadRow>, InputError> {
        self.builder.media_mut().attach(record.take_members());
        let (index, line) = (self.next_index, record.line);
        self.next_index += 1;
        let bad = |passthrough, error| Ok(Err(BadRow { index, passthrough, error }));
        let (named, cells) = match self.name_fields(record)? {
            Named::Row(named, cells) => (named, cells),
            Named::Line(text, error) => return bad(self.unreadable(&text, line, index), error),
            Named::Fields(fields, error) => {
                return bad(self.passthrough(fields, None, None, index), error);
            }
            Named::Cells(cells, error) => {
                let fields = self.fields_of(&cells);
                return bad(self.passthrough(fields, Some(cells), None, index), error);
            }
        };
        if let Some(error) = self.undecided_by(&named, line)? {
            return bad(self.passthrough(named.fields, cells, None, index), error);
        }
        self.name_params(&named);
        let first = self.shape.as_ref().expect("decided above");
        let other = match self.names {
            // The columns are the same in every record.
            Some(_) => None,
            None => self.builder.other_shape(first, &named),
        };
        let shape = other.as_ref().unwrap_or(first);
        let names = &mut self.near_misses;
        let tasks = (self.task, self.lines_decide.then_some(self.task));
        let asked = ask(&self.builder, tasks, names, (shape, &named), line);
        let (fetched, is_recalled) = self.builder.media().take_fetched();
        if let Some(error) = self.builder.media().take_refusal() {
            return Err(error.into());
        }
        let id = match shape.is_batch() {
            true => custom_id(&named.fields),
            false => row_id(&named.fields),
        };
        let passthrough = self.passthrough(named.fields, cells, asked.as_ref().ok(), index);
        match asked {
            Ok(Asked { prompt, overrides, lora, priority, answer_form, images: _, remarks }) => {
                for remark in remarks {
                    self.remarks.add(remark, line);
                }
                if let Some(other) = other {
                    let treatment = self.builder.treatment(&other, None);
                    let shape = other.to_string();
                    self.remarks.add(Remark::OtherShape { shape, treatment }, line);
                }
                Ok(Ok(Row {
                    index,
                    line,
                    prompt,
                    overrides,
                    id,
                    lora,
                    priority,
                    answer_form,
                    passthrough,
                    fetched,
                    is_recalled,
                }))
            }
            Err(error) => bad(passthrough, error),
        }
    }

    /// Passes over a row that is in no sample. It may decide the shape of the others all the same.
    ///
    /// # Errors
    /// As `parse`.
    pub fn pass_over(&mut self, record: Record) -> Result<(), InputError> {
        self.next_index += 1;
        let line = record.line;
        if self.shape.is_none()
            && let Named::Row(named, _) = self.name_fields(record)?
        {
            self.undecided_by(&named, line)?;
        }
        Ok(())
    }

    /// Decision of the first row, for a line on standard error. `None` before it, and once it was
    /// taken.
    pub fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// Surprises in the rows since the last call, each thing once.
    pub fn take_remarks(&mut self) -> Vec<String> {
        self.remarks.take_new()
    }

    /// Number of rows of each remark, at the end of the input.
    pub fn remark_totals(&self) -> Vec<String> {
        self.remarks.totals()
    }

    /// The fields of a table's row.
    fn fields_of(&self, cells: &[String]) -> JsonFields {
        fields_of_cells(&self.field_names, cells, self.builder.own_params())
    }

    /// Gives every kind of row named fields.
    fn name_fields(&self, record: Record) -> Result<Named, InputError> {
        let is_json = self.format == InputFormat::Parquet;
        let (text, is_json) = match record.content {
            Content::Sample(sample) => (sample.text, true),
            Content::Cells(cells) => {
                return Ok(match record.error {
                    Some(error) => Named::Cells(cells, error),
                    None => {
                        let fields = self.fields_of(&cells);
                        Named::Row(NamedRow { fields, is_bare: false }, Some(cells))
                    }
                });
            }
            Content::Line(text) => (text, is_json),
        };
        if let Some(error) = record.error {
            if !is_json {
                return Ok(Named::Line(text, error));
            }
            return Ok(match JsonFields::parse(text, record.line) {
                Ok(fields) => Named::Fields(fields, error),
                Err(cut) => Named::Line(cut.0, error),
            });
        }
        if self.format == InputFormat::Txt {
            let fields = JsonFields::from_pairs(&[("prompt", &json_string(&text))]);
            return Ok(Named::Row(NamedRow { fields, is_bare: true }, None));
        }
        if self.shape.is_none() {
            shape::refuse_json_document(&text)?;
        }
        Ok(match parse_json(text, record.line) {
            Ok(named) => Named::Row(named, None),
            Err(bad) => {
                let (text, error) = *bad;
                Named::Line(text, error)
            }
        })
    }

    /// Part of a row that the output shows: its name and ids if it becomes a batch line, else its
    /// fields. `asked` is None of a bad row.
    fn passthrough(
        &self,
        fields: JsonFields,
        cells: Option<Vec<String>>,
        asked: Option<&Asked>,
        index: u64,
    ) -> Passthrough {
        if let Some(kind) = self.line_kind(Some(&fields), asked.map(|asked| &asked.prompt)) {
            let line = match self.is_batch() {
                true => BatchLine::new(kind, custom_id(&fields), fields.text()),
                false => BatchLine::new(kind, row_id(&fields), fields.text())
                    .or_named(|| format!("row-{index}")),
            };
            let lora = asked.and_then(|asked| asked.lora);
            let lora = lora.map(|lora| self.builder.names().name_of(lora));
            let line = line.answered_by(lora);
            return Passthrough::Batch(match kind {
                BatchKind::Response => line.with_echo(Echo::Fields(responses::echo(&fields))),
                BatchKind::Completions => line.with_echo_of(openai::echoed_prompt(&fields)),
                BatchKind::Transcription => line.with_echo_of(recordings::echo(&fields, asked)),
                _ => line,
            });
        }
        match (cells, &self.names) {
            (Some(cells), Some(names)) => Passthrough::Cells { names: Arc::clone(names), cells },
            _ => Passthrough::Json(fields),
        }
    }

    /// Part of a row without fields that the output shows: its name if that can be found, or its
    /// place, and its text.
    fn unreadable(&self, text: &str, line: u64, index: u64) -> Passthrough {
        if let Some(kind) = self.line_kind(None, None) {
            let line = BatchLine::new(kind, recovered_custom_id(text), text);
            return Passthrough::Batch(match self.is_batch() {
                true => line,
                false => line.or_named(|| format!("row-{index}")),
            });
        }
        let mut end = text.len().min(KEPT_OF_BAD_LINE);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (line, input) = (line.to_string(), json_string(&text[..end]));
        let file = self.file.as_deref().map(json_string);
        let file = file.as_deref().map(|file| ("file", file));
        let pairs = [("line", line.as_str()), ("input", input.as_str())];
        let pairs: Vec<_> = file.into_iter().chain(pairs).collect();
        Passthrough::Json(JsonFields::from_pairs(&pairs))
    }

    /// Whether rows are requests of a batch API, as far as is known.
    pub fn is_batch(&self) -> bool {
        self.shape.as_ref().is_some_and(RowShape::is_batch)
    }

    /// Task of the rows, as far as is known.
    pub fn task(&self) -> Task {
        self.task
    }

    /// Whether every row of the shape is chat. Of OpenAI's requests each says it itself.
    pub fn is_chat(&self) -> bool {
        let is_chat =
            |shape| self.builder.is_chat(shape) || matches!(shape, RowShape::AnthropicBatch);
        self.beside.is_some() || self.shape.as_ref().is_some_and(is_chat)
    }

    /// Whether no row can have another shape than the first: a text file or a table has none, nor
    /// have rows whose prompt the user named.
    pub fn is_fixed(&self) -> bool {
        self.names.is_some() || self.format == InputFormat::Txt || self.builder.is_told()
    }

    /// Whether rows become lines of a batch API, which say when they were made.
    pub fn writes_batch_lines(&self) -> bool {
        match self.lines {
            BatchLines::Never => false,
            BatchLines::Own => self.is_batch(),
            BatchLines::OpenAi => true,
        }
    }

    /// The batch line that a row becomes, if it becomes one.
    fn line_kind(&self, fields: Option<&JsonFields>, prompt: Option<&Prompt>) -> Option<BatchKind> {
        let own = match &self.shape {
            Some(RowShape::OpenAiBatch) => Some(Endpoint::kind_of_line(fields, self.task)),
            Some(RowShape::AnthropicBatch) => Some(BatchKind::Message),
            _ => None,
        };
        match (self.lines, own) {
            (BatchLines::Never, _) => None,
            (BatchLines::Own, own) => own,
            (BatchLines::OpenAi, Some(BatchKind::Message)) => Some(BatchKind::Chat),
            (BatchLines::OpenAi, Some(kind)) => Some(kind),
            (BatchLines::OpenAi, None) if self.task != Task::Complete => {
                Some(Endpoint::kind_of_line(None, self.task))
            }
            (BatchLines::OpenAi, None) => Some(match prompt {
                Some(prompt) if prompt.chat().is_none() => BatchKind::Completions,
                _ => BatchKind::Chat,
            }),
        }
    }
}

/// Request of a row of a shape, in a run of a task, which the first line may have decided.
fn ask(
    builder: &PromptBuilder,
    (task, decided): (Task, Option<Task>),
    names: &mut NearMisses,
    (shape, named): (&RowShape, &NamedRow),
    line: u64,
) -> Result<Asked, RowError> {
    let fields = &named.fields;
    let asked = match shape {
        RowShape::OpenAiBatch if shape.fits(named) => {
            check_task(fields, decided, line)?;
            openai::read(fields, task, builder, names, line)
        }
        RowShape::AnthropicBatch if shape.fits(named) => {
            anthropic::read(fields, builder, names, line)
        }
        shape => own::read(builder, task, names, (shape, named), line),
    }?;
    let asked = asked.with_media(builder.media(), line).map_err(|error| {
        match shape.is_batch().then(|| prompt_field(shape, fields)) {
            Some(param) => error.of_param(param),
            None => error,
        }
    })?;
    if !builder.allows_empty() {
        blank::check(&asked.prompt, (shape, named), line)?;
    }
    Ok(asked)
}

/// The field of a batch request with its prompt.
fn prompt_field(shape: &RowShape, fields: &JsonFields) -> &'static str {
    match shape {
        RowShape::OpenAiBatch => Endpoint::of_line(fields).map_or("body", Endpoint::prompt_field),
        _ => "messages",
    }
}

/// Refuses a line of OpenAI's batch API that asks for something else than the first one, where that
/// has decided the task: a run has one.
fn check_task(fields: &JsonFields, decided: Option<Task>, line: u64) -> Result<(), RowError> {
    let Some((task, endpoint)) = decided.zip(Endpoint::of_line(fields)) else { return Ok(()) };
    if endpoint.is_served(task) {
        return Ok(());
    }
    let (this, first) = (endpoint.task().gives(), task.gives());
    let message = format!("the request asks for {this}, and those before it for {first}");
    let help = format!("put requests for {this} into a file of their own");
    Err(RowError::new(code::OTHER_TASK, line, message).of_param("url").with_help(help))
}

/// Refuses a table that cannot follow another: rows have one header.
///
/// # Errors
/// It has other columns, or the same in another order.
pub fn check_columns(known: &[String], found: &[String]) -> Result<(), InputError> {
    if known == found {
        return Ok(());
    }
    let message = format!(
        "the columns are {}, and {} in the table before it",
        found.join(", "),
        known.join(", ")
    );
    Err(InputError::refused(message, "give tables with the same columns, or run them apart"))
}
