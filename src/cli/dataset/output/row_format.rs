//! `RowFormat`: which rows go out, by the flags, the output's name and what the input is.

use std::sync::Arc;

use super::format_settings::{Detail, FormatSettings};
use super::npy::NpyFormat;
use super::parquet::{Table, TableSpec, ours};
use super::pooled::{PooledForm, format_pooled};
use super::{
    Asked, CsvFormat, OutputOptions, RunFacts, Tokens, asks_for_more_than_text, collisions,
    format_answer, format_input, format_row, shown_name,
};
use crate::input::batch_line::BatchLines;
use crate::input::fields::Passthrough;
use crate::input::files::Shape;
use crate::input::reader::InputFormat;
use crate::input::row::{Likelihoods, Task};
use crate::input::row_error::{RowError, code};
use crate::input::shard::Shard;
use crate::judge::FIELDS;
use crate::terminal::error::CliError;
use crate::terminal::exit::Exit;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use vllm_batch_api::pooling::PoolingOutput;
use vllm_batch_api::request::{RequestOutput, RequestOutputKind, SamplingParams};
use vllm_batch_text::{AnswerForm, AnswerParser, ToolChoice};

/// Format of rows.
#[derive(Clone)]
pub enum RowFormat {
    /// JSON lines.
    Json(JsonFormat),
    /// CSV or TSV.
    Csv(CsvFormat),
    /// A matrix, and JSON lines of error rows beside it.
    Npy(NpyFormat),
    /// JSON lines until all are there, then a Parquet file of them.
    Parquet(ParquetFormat),
}

/// Settings of rows in a Parquet file.
#[derive(Clone, Debug)]
pub struct ParquetFormat {
    /// JSON of the rows until then.
    pub json: JsonFormat,
    spec: Arc<TableSpec>,
    shard: Shard,
}

/// Format of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// A JSON object per line.
    Jsonl,
    /// Comma separated, with a header.
    Csv,
    /// Tab separated, with a header.
    Tsv,
    /// A matrix of NumPy's.
    Npy,
    /// A Parquet file.
    Parquet,
}

impl FileFormat {
    /// As side files name it.
    pub fn name(self) -> &'static str {
        match self {
            FileFormat::Jsonl => "jsonl",
            FileFormat::Csv => "csv",
            FileFormat::Tsv => "tsv",
            FileFormat::Npy => "npy",
            FileFormat::Parquet => "parquet",
        }
    }
}

/// JSON lines: ours, or those of a batch API.
#[derive(Clone, Debug)]
pub struct JsonFormat {
    /// Name of the field with the text.
    pub out_field: String,
    /// Whether every output is written.
    pub detail: Detail,
    /// Facts of batch lines.
    pub facts: RunFacts,
    /// Splits the answers of chats.
    pub parser: AnswerParser,
    /// Rows are the text of their answer, and nothing else.
    pub is_answer_alone: bool,
    /// Form of pooled texts in rows.
    pub pooled: PooledForm,
    /// Names of fields that rows get beside that of the answer.
    pub more_fields: Vec<&'static str>,
}

impl RowFormat {
    /// Follows the output's extension, else the input.
    ///
    /// # Errors
    /// CSV is asked for and the input has no columns, or the rows become batch lines.
    pub fn new(settings: &FormatSettings, shape: &Shape) -> Result<Self, CliError> {
        let parser = AnswerParser::default();
        let json = || JsonFormat::new(settings, parser);
        let named = settings.path.as_deref().map_or(InputFormat::Auto, InputFormat::from_path);
        let lines = settings.lines;
        if settings.is_judged {
            return JsonFormat::judged(settings, shape, named).map(RowFormat::Json);
        }
        if settings.is_answer_alone {
            return JsonFormat::answer(settings).map(RowFormat::Json);
        }
        if settings.is_matrix {
            return Ok(RowFormat::Npy(NpyFormat { width: 0, json: json() }));
        }
        if named == InputFormat::Parquet {
            return ParquetFormat::new(settings, shape, json()).map(RowFormat::Parquet);
        }
        let pooled = PooledForm::of(settings.task);
        if let Some(refusal) = has_no_columns(pooled.as_ref(), settings.likelihoods) {
            return match named {
                InputFormat::Csv | InputFormat::Tsv => refused(refusal),
                _ => Ok(RowFormat::Json(json())),
            };
        }
        let format = match (named, shape.format) {
            (InputFormat::Csv | InputFormat::Tsv, _) if lines == BatchLines::OpenAi => {
                return refused("--output-format openai: the lines are JSON, not CSV");
            }
            (InputFormat::Csv | InputFormat::Tsv, _) if shape.headers.is_none() => {
                let error = CliError::new(
                    Exit::Refused,
                    "output",
                    "CSV output needs CSV input: other rows have no fixed columns",
                );
                return Err(error.help(
                    "name the output FILE.jsonl (-o); if the input is a table, give --format csv",
                ));
            }
            (InputFormat::Csv | InputFormat::Tsv, _) => named,
            _ if lines == BatchLines::OpenAi => InputFormat::Jsonl,
            (InputFormat::Jsonl, _) => InputFormat::Jsonl,
            (_, format) => format,
        };
        // CSV is written as it was read. A TSV has tabs, whatever it is made of.
        let delimiter = match (format, shape.format) {
            (InputFormat::Csv, InputFormat::Csv) => shape.delimiter,
            (format, _) => format.delimiter(),
        };
        match delimiter {
            Some(delimiter) => csv_format(settings, delimiter, shape).map(RowFormat::Csv),
            None => Ok(RowFormat::Json(json())),
        }
    }

    /// Refuses parameters of a row that ask for what the output has no room for.
    ///
    /// # Errors
    /// They do.
    pub fn check_room(&self, params: &SamplingParams, line: u64) -> Result<(), RowError> {
        let RowFormat::Csv(csv) = self else { return Ok(()) };
        let Some(name) = csv.has_no_room_for(params) else { return Ok(()) };
        let message = format!("{name}: CSV output has room for the text of one completion only");
        Err(RowError::new(code::UNSUPPORTED_FIELD, line, message)
            .with_help("name the output FILE.jsonl"))
    }

    /// Format of the output, for its side file.
    pub fn file_format(&self) -> FileFormat {
        match self {
            RowFormat::Json(_) => FileFormat::Jsonl,
            RowFormat::Csv(csv) if csv.delimiter == b'\t' => FileFormat::Tsv,
            RowFormat::Csv(_) => FileFormat::Csv,
            RowFormat::Npy(_) => FileFormat::Npy,
            RowFormat::Parquet(_) => FileFormat::Parquet,
        }
    }

    fn json_mut(&mut self) -> Option<&mut JsonFormat> {
        match self {
            RowFormat::Csv(_) => None,
            RowFormat::Json(json)
            | RowFormat::Npy(NpyFormat { json, .. })
            | RowFormat::Parquet(ParquetFormat { json, .. }) => Some(json),
        }
    }

    /// The same with the `system_fingerprint` of OpenAI's lines.
    pub fn with_system_fingerprint(mut self, fingerprint: String) -> Self {
        if let Some(json) = self.json_mut() {
            json.facts.system_fingerprint = Some(fingerprint);
        }
        self
    }

    /// The same with the names of a classifier's classes.
    pub fn with_labels(mut self, labels: Arc<[String]>) -> Self {
        let form = match &mut self {
            RowFormat::Csv(csv) => csv.pooled.as_mut(),
            other => other.json_mut().map(|json| &mut json.pooled),
        };
        if let Some(form) = form {
            form.name(labels);
        }
        self
    }

    /// The same with what splits the answers of chats.
    pub fn with_parser(mut self, parser: AnswerParser) -> Self {
        match &mut self {
            RowFormat::Csv(csv) => csv.parser = parser,
            RowFormat::Json(json)
            | RowFormat::Npy(NpyFormat { json, .. })
            | RowFormat::Parquet(ParquetFormat { json, .. }) => json.parser = parser,
        }
        self
    }

    /// The same with the width of vectors.
    pub fn with_width(mut self, width: usize) -> Self {
        if let RowFormat::Npy(npy) = &mut self {
            npy.width = width;
        }
        self
    }

    /// Whether rows are printed while they are answered, where nothing else decides what a row is.
    fn shows_beginnings(&self, params: &SamplingParams) -> bool {
        grows_by_tokens(params) && matches!(self, RowFormat::Json(json) if json.is_answer_alone)
    }

    /// What a row begins with whose answer has this text so far, where rows are answers alone.
    pub fn beginning(&self, form: Option<&AnswerForm>, text: &str) -> String {
        match (self, form) {
            (RowFormat::Json(json), Some(form)) if json.is_answer_alone => {
                json.parser.content_so_far(text, form)
            }
            (RowFormat::Json(json), None) if json.is_answer_alone => text.to_owned(),
            _ => String::new(),
        }
    }

    /// Sets what the text of an answer needs, so that its parts can be found in it: the tags of
    /// some models are special tokens. Asks for it as it grows, where rows are printed so.
    pub fn adjust(&self, params: &mut SamplingParams, form: Option<&AnswerForm>) {
        if self.shows_beginnings(params) {
            params.output_kind = RequestOutputKind::Delta;
        }
        let parser = match self {
            RowFormat::Csv(csv) => &csv.parser,
            RowFormat::Json(json)
            | RowFormat::Npy(NpyFormat { json, .. })
            | RowFormat::Parquet(ParquetFormat { json, .. }) => &json.parser,
        };
        let Some(form) = form else { return };
        let has_tools = !form.tools.is_empty() && form.tool_choice != ToolChoice::None;
        if has_tools && parser.needs_special_tokens() || parser.needs_special_tokens_to_think() {
            params.skip_special_tokens = false;
        }
    }

    /// Names of a row's fields that are also ours.
    pub fn collisions(&self, passthrough: &Passthrough) -> Vec<String> {
        match (self, passthrough) {
            (RowFormat::Csv(csv), Passthrough::Cells { names, .. }) => csv.collisions(names),
            (RowFormat::Csv(csv), _) => collisions(passthrough, &[&csv.out_field], &csv.parser),
            (RowFormat::Json(json) | RowFormat::Parquet(ParquetFormat { json, .. }), _) => {
                let out_fields = [&[json.out_field.as_str()], &*json.more_fields].concat();
                collisions(passthrough, &out_fields, &json.parser)
            }
            // Its error rows show fields of the input, and seldom one of them is renamed.
            (RowFormat::Npy(_), _) => Vec::new(),
        }
    }

    /// Whether a row of an output answers this row, by what it shows of it: the same fields, or the
    /// same request.
    pub fn answers(&self, passthrough: &Passthrough, row: &[u8]) -> bool {
        match self {
            RowFormat::Json(json) => json.answers(passthrough, row),
            RowFormat::Csv(csv) => csv.answers(passthrough, row),
            RowFormat::Parquet(ParquetFormat { json, .. }) => {
                json.fields_of_both(passthrough, row).is_some_and(|(asked, shown)| {
                    asked.iter().all(|(name, value)| is_same(value, shown.get(name)))
                })
            }
            RowFormat::Npy(_) => false,
        }
    }

    /// A row of an output that is taken over, as this format ends rows.
    pub fn taken_over(&self, row: Vec<u8>) -> Vec<u8> {
        match self {
            RowFormat::Csv(csv) => csv.with_line_end(row),
            RowFormat::Json(_) | RowFormat::Parquet(_) | RowFormat::Npy(_) => row,
        }
    }

    /// Whether a row of an output at the place of this row may answer it: it has its fields, as far
    /// as it shows any.
    pub fn may_answer(&self, passthrough: &Passthrough, row: &[u8]) -> bool {
        match self {
            RowFormat::Npy(_) => true,
            // Its values have the types of their columns.
            RowFormat::Parquet(ParquetFormat { json, .. }) => {
                json.fields_of_both(passthrough, row).is_some_and(|(asked, shown)| {
                    asked.iter().all(|(name, value)| value.is_null() || shown.contains_key(name))
                })
            }
            RowFormat::Json(_) | RowFormat::Csv(_) => self.answers(passthrough, row),
        }
    }

    /// Appends a row with what its texts became, line end included.
    ///
    /// # Panics
    /// `NpyFormat::check` refuses this one.
    pub fn format_pooled(
        &self,
        passthrough: &Passthrough,
        output: &PoolingOutput,
        out: &mut Vec<u8>,
    ) {
        match self {
            RowFormat::Csv(csv) => csv.format_pooled(passthrough, output, out),
            RowFormat::Json(json) | RowFormat::Parquet(ParquetFormat { json, .. }) => {
                let row = (passthrough, output);
                format_pooled(row, &json.pooled, &json.options(&Tokens::none()), out);
            }
            RowFormat::Npy(npy) => npy.format_row(output, out),
        }
    }

    /// Appends one row, line end included: a function of what is given, and of nothing else.
    pub fn format_row(
        &self,
        asked: Asked<'_>,
        result: Result<&RequestOutput, &RowError>,
        tokens: &Tokens<'_>,
        out: &mut Vec<u8>,
    ) {
        match self {
            RowFormat::Csv(csv) => csv.format_row(asked, result, out),
            RowFormat::Json(json) if json.is_answer_alone => {
                format_answer(asked, result, &json.options(tokens), out);
            }
            RowFormat::Json(json)
            | RowFormat::Npy(NpyFormat { json, .. })
            | RowFormat::Parquet(ParquetFormat { json, .. }) => {
                format_row(asked, result, &json.options(tokens), out);
            }
        }
    }
}

/// Whether nothing but the next tokens decides what an answer is. Others come whole.
pub fn grows_by_tokens(params: &SamplingParams) -> bool {
    params.beam_search.is_none()
        && params.structured_outputs.is_none()
        && params.max_tokens != Some(0)
}

/// Whether a table shows a value as this one: numbers have the type of their column, and null is as
/// good as missing.
fn is_same(asked: &Value, shown: Option<&Value>) -> bool {
    match (asked, shown) {
        (Value::Null, shown) => shown.is_none_or(Value::is_null),
        (Value::Number(asked), Some(Value::Number(shown))) => {
            asked == shown || asked.as_f64() == shown.as_f64()
        }
        (asked, shown) => Some(asked) == shown,
    }
}

/// CSV format of the rows of a run.
fn csv_format(
    settings: &FormatSettings,
    delimiter: u8,
    shape: &Shape,
) -> Result<CsvFormat, CliError> {
    let sources = &settings.sources;
    if !sources.are_tables() && sources.list().len() > 1 {
        return refused("one CSV cannot hold the rows of tables and of other inputs");
    }
    let detail = settings.detail;
    let csv = CsvFormat {
        delimiter,
        crlf: shape.crlf,
        is_marked: shape.is_marked,
        out_field: settings.out_field.clone(),
        is_simple: detail == Detail::Simple,
        parser: AnswerParser::default(),
        pooled: PooledForm::of(settings.task),
    };
    if detail == Detail::Full {
        return refused("--output-format full: CSV has room for the text only");
    }
    let reasoning_parser = settings.reasoning_parser.as_deref();
    if reasoning_parser.is_some_and(|name| name != "none") && !csv.is_simple {
        return refused("--reasoning-parser: CSV has no room for the thinking");
    }
    if let Some(name) = csv.has_no_room_for(&settings.typed) {
        let flag = name.replace('_', "-");
        return refused(&format!("--{flag}: CSV has room for the text of one completion only"));
    }
    Ok(csv)
}

/// Why answers are no cells of a CSV, if they are none.
fn has_no_columns(pooled: Option<&PooledForm>, likelihoods: Likelihoods) -> Option<&'static str> {
    match likelihoods {
        Likelihoods::None => pooled.filter(|form| !form.has_columns()).map(|form| match form {
            PooledForm::Vectors => {
                "vectors are written as JSON lines, FILE.npy or FILE.parquet, not as CSV"
            }
            _ => "scores are written as JSON lines or FILE.parquet, not as CSV",
        }),
        Likelihoods::OfChoices | Likelihoods::OfTexts => {
            Some("--loglikelihood: answers are written as JSON lines, not as CSV")
        }
    }
}

/// The error of an output that cannot be as it is named.
fn refused<T>(message: &str) -> Result<T, CliError> {
    let error = CliError::new(Exit::Refused, "output", message);
    Err(error.help("name the output FILE.jsonl (-o)"))
}

impl ParquetFormat {
    fn new(settings: &FormatSettings, shape: &Shape, json: JsonFormat) -> Result<Self, CliError> {
        if shape.has_batch_lines {
            return refused("lines of a batch API are JSON, not the columns of a Parquet file");
        }
        let out_fields = [&[settings.out_field.as_str()], &*json.more_fields].concat();
        let of_input = TableSpec::of_inputs(&settings.sources, |name, is_taken| {
            shown_name(name, &out_fields, is_taken)
        });
        let task = settings.task;
        let (text_field, usage): (_, &[&str]) = match task {
            Task::Complete => {
                (Some(settings.out_field.as_str()), &["prompt_tokens", "completion_tokens"])
            }
            _ => (None, &["prompt_tokens", "total_tokens"]),
        };
        let vector = (task == Task::Embed).then(|| settings.out_field.clone());
        let spec = TableSpec { of_input, ours: ours(text_field, usage), vector };
        Ok(Self { json, spec: Arc::new(spec), shard: settings.shard })
    }

    /// The table of a run's rows.
    pub fn table(&self) -> Table {
        Table::new(Arc::clone(&self.spec), self.shard)
    }
}

impl JsonFormat {
    fn new(settings: &FormatSettings, parser: AnswerParser) -> Self {
        let pooled = PooledForm::of(settings.task).unwrap_or(PooledForm::Vectors);
        let judged = if settings.is_judged { FIELDS } else { &[] };
        let more_fields = [pooled.fields(), settings.likelihoods.fields(), judged].concat();
        Self {
            out_field: settings.out_field.clone(),
            detail: settings.detail,
            facts: RunFacts {
                model: settings.model.clone(),
                created: settings.started,
                system_fingerprint: None,
            },
            parser,
            is_answer_alone: settings.is_answer_alone,
            pooled,
            more_fields,
        }
    }

    /// The answer to one prompt.
    fn answer(settings: &FormatSettings) -> Result<Self, CliError> {
        let Some(name) = asks_for_more_than_text(&settings.typed) else {
            return Ok(Self::new(settings, AnswerParser::default()));
        };
        let message = format!("--{}: --prompt prints one text", name.replace('_', "-"));
        Err(CliError::refused("output", message)
            .help("print the row as JSON: --output-format full"))
    }

    /// The rows of `eval`.
    fn judged(
        settings: &FormatSettings,
        shape: &Shape,
        named: InputFormat,
    ) -> Result<Self, CliError> {
        if shape.has_batch_lines {
            return refused("eval: lines of a batch API show no verdict; --output-format full");
        }
        match named {
            InputFormat::Jsonl | InputFormat::Auto => {
                Ok(Self::new(settings, AnswerParser::default()))
            }
            _ => refused("eval: rows with verdicts are written as JSON lines"),
        }
    }

    pub(super) fn options<'a>(&'a self, tokens: &'a Tokens<'a>) -> OutputOptions<'a> {
        OutputOptions {
            out_field: &self.out_field,
            more_fields: &self.more_fields,
            detail: self.detail,
            usage_cached: false,
            facts: &self.facts,
            parser: &self.parser,
            tokens,
        }
    }

    /// Whether a line begins with the fields of a row, or is that of a batch request.
    fn answers(&self, passthrough: &Passthrough, line: &[u8]) -> bool {
        let mut shown = Vec::new();
        match passthrough {
            Passthrough::Batch(batch) => {
                shown.extend(batch.digest.id("").bytes());
                line.windows(shown.len()).any(|bytes| bytes == shown)
            }
            _ => {
                self.format_input(passthrough, &mut shown);
                // Our first field comes next.
                line.strip_prefix(&*shown).is_some_and(|rest| matches!(rest, [b',' | b'"', ..]))
            }
        }
    }

    /// What a row shows of its input, and all fields of a line of an output.
    fn fields_of_both(
        &self,
        passthrough: &Passthrough,
        line: &[u8],
    ) -> Option<(Map<String, Value>, Map<String, Value>)> {
        let mut asked = Vec::new();
        self.format_input(passthrough, &mut asked);
        asked.push(b'}');
        Some((serde_json::from_slice(&asked).ok()?, serde_json::from_slice(line).ok()?))
    }

    /// Appends what a row shows of its input.
    fn format_input(&self, passthrough: &Passthrough, out: &mut Vec<u8>) {
        format_input(passthrough, &self.options(&Tokens::none()), out);
    }
}
