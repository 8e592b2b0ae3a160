//! `RowFormat`: which rows go out, by the flags, the output's name and what the input is.

use super::{CsvFormat, OutputOptions, RunFacts, collisions, format_input, format_row};
use crate::cli::config::{Detail, RunConfig};
use crate::cli::input::batch_line::BatchLines;
use crate::cli::input::fields::Passthrough;
use crate::cli::input::files::Shape;
use crate::cli::input::reader::InputFormat;
use crate::cli::input::row_error::{RowError, code};
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;
use crate::engine::request::{RequestOutput, SamplingParams};
use serde::{Deserialize, Serialize};

/// How rows are written.
#[derive(Clone)]
pub enum RowFormat {
    /// JSON lines.
    Json(JsonFormat),
    /// CSV or TSV.
    Csv(CsvFormat),
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// A JSON object per line.
    Jsonl,
    /// Comma separated, with a header.
    Csv,
    /// Tab separated, with a header.
    Tsv,
}

/// JSON lines: ours, or those of a batch API.
#[derive(Clone, Debug)]
pub struct JsonFormat {
    /// Name of the field with the text.
    pub out_field: String,
    /// Whether every output is written.
    pub detail: Detail,
    /// Of batch lines.
    pub facts: RunFacts,
}

impl RowFormat {
    /// Follows the output's extension, else the input.
    ///
    /// # Errors
    /// CSV is asked for and the input has no columns, or the rows become batch lines.
    pub fn new(config: &RunConfig, shape: &Shape) -> Result<Self, CliError> {
        let named = config.output.path.as_deref().map_or(InputFormat::Auto, InputFormat::from_path);
        let refused = |message: &str| {
            let error = CliError::new(Exit::Refused, "output", message);
            Err(error.help("name the output FILE.jsonl (-o)"))
        };
        let lines = config.input.rows.lines;
        let format = match (named, shape.format) {
            (InputFormat::Csv | InputFormat::Tsv, _) if lines == BatchLines::OpenAi => {
                return refused("--output-format openai: the lines are JSON, not CSV");
            }
            (InputFormat::Csv | InputFormat::Tsv, _) if shape.headers.is_none() => {
                return refused("CSV output needs CSV input: other rows have no fixed columns");
            }
            (InputFormat::Csv | InputFormat::Tsv, _) => named,
            _ if lines == BatchLines::OpenAi => InputFormat::Jsonl,
            (InputFormat::Jsonl, _) => InputFormat::Jsonl,
            (_, format) => format,
        };
        let out_field = config.output.field.clone();
        Ok(match format.delimiter() {
            Some(delimiter) => {
                let sources = &config.input.sources;
                let has_others = sources.formats().iter().any(|other| other.delimiter().is_none());
                if has_others && sources.list().len() > 1 {
                    return refused("one CSV cannot hold the rows of tables and of other inputs");
                }
                let detail = config.output.detail;
                let is_simple = detail == Detail::Simple;
                let csv = CsvFormat { delimiter, crlf: shape.crlf, out_field, is_simple };
                if detail == Detail::Full {
                    return refused("--output-format full: CSV has room for the text only");
                }
                let typed = config.row_params(SamplingParams::default());
                if let Some(name) = csv.has_no_room_for(&typed) {
                    let flag = name.replace('_', "-");
                    return refused(&format!(
                        "--{flag}: CSV has room for the text of one completion only"
                    ));
                }
                RowFormat::Csv(csv)
            }
            None => RowFormat::Json(JsonFormat {
                out_field,
                detail: config.output.detail,
                facts: RunFacts {
                    model: config.model.served_name.clone(),
                    created: config.started,
                    system_fingerprint: None,
                },
            }),
        })
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

    /// What the output is, for its side file.
    pub fn file_format(&self) -> FileFormat {
        match self {
            RowFormat::Json(_) => FileFormat::Jsonl,
            RowFormat::Csv(csv) if csv.delimiter == b'\t' => FileFormat::Tsv,
            RowFormat::Csv(_) => FileFormat::Csv,
        }
    }

    /// The same with the `system_fingerprint` of OpenAI's lines.
    pub fn with_system_fingerprint(mut self, fingerprint: String) -> Self {
        if let RowFormat::Json(json) = &mut self {
            json.facts.system_fingerprint = Some(fingerprint);
        }
        self
    }

    /// Names of a row's fields that are also ours.
    pub fn collisions(&self, passthrough: &Passthrough, config: &RunConfig) -> Vec<String> {
        match (self, passthrough) {
            (RowFormat::Csv(csv), Passthrough::Cells { names, .. }) => csv.collisions(names),
            _ => collisions(passthrough, &config.output.field),
        }
    }

    /// Whether a JSON line is an output of this row: it shows the same input, or has the id that is
    /// made of it.
    pub fn answers(&self, passthrough: &Passthrough, line: &[u8]) -> bool {
        let RowFormat::Json(json) = self else { return false };
        let mut shown = Vec::new();
        match passthrough {
            Passthrough::Batch(batch) => shown.extend(batch.digest.id("").bytes()),
            _ => json.format_input(passthrough, &mut shown),
        }
        match passthrough {
            Passthrough::Batch(_) => line.windows(shown.len()).any(|bytes| bytes == shown),
            // Our first field comes next.
            _ => line.strip_prefix(&*shown).is_some_and(|rest| matches!(rest, [b',' | b'"', ..])),
        }
    }

    /// Appends one row, line end included: a function of what is given, and of nothing else.
    pub fn format_row(
        &self,
        passthrough: &Passthrough,
        result: Result<&RequestOutput, &RowError>,
        token_text: &dyn Fn(u32) -> String,
        out: &mut Vec<u8>,
    ) {
        match self {
            RowFormat::Csv(csv) => csv.format_row(passthrough, result, out),
            RowFormat::Json(json) => {
                format_row(passthrough, result, &json.options(token_text), out);
            }
        }
    }
}

impl JsonFormat {
    fn options<'a>(&'a self, token_text: &'a dyn Fn(u32) -> String) -> OutputOptions<'a> {
        OutputOptions {
            out_field: &self.out_field,
            detail: self.detail,
            usage_cached: false,
            facts: &self.facts,
            token_text,
        }
    }

    /// Appends what a row shows of its input.
    fn format_input(&self, passthrough: &Passthrough, out: &mut Vec<u8>) {
        format_input(passthrough, &self.options(&|_| String::new()), out);
    }
}
