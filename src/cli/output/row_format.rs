//! `RowFormat`: which rows go out, by the flags, the output's name and what the input is.

use std::sync::Arc;

use super::{CsvFormat, collisions};
use crate::cli::config::RunConfig;
use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::fields::Passthrough;
use crate::cli::reader::InputFormat;

/// What is known of the input once it is open and its first row is read.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Never `Auto`.
    pub format: InputFormat,
    /// Column names of a CSV.
    pub headers: Option<Arc<[String]>>,
    /// Lines end with CRLF.
    pub crlf: bool,
}

/// How rows are written.
#[derive(Clone)]
pub enum RowFormat {
    /// JSON lines.
    Json,
    /// CSV or TSV.
    Csv(CsvFormat),
}

impl RowFormat {
    /// Follows the output's extension, else the input.
    ///
    /// # Errors
    /// CSV is asked for and the input has no columns.
    pub fn new(config: &RunConfig, shape: &Shape) -> Result<Self, CliError> {
        let named = config.output.path.as_deref().map_or(InputFormat::Auto, InputFormat::from_path);
        let format = match (named, shape.format) {
            (InputFormat::Csv | InputFormat::Tsv, _) if shape.headers.is_none() => {
                let message = "CSV output needs CSV input: other rows have no fixed columns";
                let error = CliError::new(Exit::Refused, "output", message);
                return Err(error.help("name the output FILE.jsonl"));
            }
            (InputFormat::Csv | InputFormat::Tsv, _) => named,
            (InputFormat::Jsonl, _) => InputFormat::Jsonl,
            (_, format) => format,
        };
        let Some(delimiter) = format.delimiter() else { return Ok(RowFormat::Json) };
        let out_field = config.output.field.clone();
        Ok(RowFormat::Csv(CsvFormat { delimiter, crlf: shape.crlf, out_field }))
    }

    /// Names of a row's fields that are also ours.
    pub fn collisions(&self, passthrough: &Passthrough, config: &RunConfig) -> Vec<String> {
        match (self, passthrough) {
            (RowFormat::Csv(csv), Passthrough::Cells { names, .. }) => csv.collisions(names),
            _ => collisions(passthrough, &config.output.field),
        }
    }
}
