//! `OutputRecords`: the records of an output, for commands that read it again.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fields::JsonFields;
use super::reader::{HeaderNames, InputError, InputFormat, Opened, Reading, Record, Records};
use crate::terminal::error::CliError;

/// Longest row. One of output may be longer than one of input: it has logprobs.
pub const MAX_ROW: usize = 1 << 30;

/// The records of an output. The first that is wrong ends the command.
pub struct OutputRecords {
    name: String,
    records: Records,
}

impl OutputRecords {
    /// Opens an output whose answers are in `field`; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path, field: &str) -> Result<Self, CliError> {
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "<stdin>".to_owned() } else { path.display().to_string() };
        let (input, format) = match is_stdin {
            true => (Ok(Opened::Stream(Box::new(io::stdin()))), InputFormat::Auto),
            false => (Opened::named(path), InputFormat::from_path(path)),
        };
        // No output is lines of text.
        let names = HeaderNames::any_of([vec![field.to_owned()]]).needing_columns();
        Self::of(name, input, Reading { layout: format.into(), names: Some(&names) })
    }

    /// Those of an input that was opened, which messages call so.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of<'a>(
        name: String,
        input: io::Result<Opened>,
        reading: impl Into<Reading<'a>>,
    ) -> Result<Self, CliError> {
        let refused = |error| CliError::from_input(error, &name);
        let input = input.map_err(|error| refused(InputError::Io(error)))?;
        let records = Records::of(input, reading, MAX_ROW).map_err(refused)?;
        Ok(Self { name, records })
    }

    /// As messages name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its records are written.
    pub fn format(&self) -> InputFormat {
        self.records.format()
    }

    /// The names of its columns; None: it is no table.
    pub fn headers(&self) -> Option<Arc<[String]>> {
        self.records.headers()
    }

    /// What was found out of the file and a user may want to know.
    pub fn take_notes(&mut self) -> Vec<String> {
        let notes = self.records.take_notes().into_iter();
        notes.map(|note| format!("{}: {note}", self.name)).collect()
    }

    /// The next record.
    ///
    /// # Errors
    /// The file cannot be read, or this record.
    pub fn next_record(&mut self) -> Result<Option<Record>, CliError> {
        let refused = |error| CliError::from_input(InputError::Io(error), &self.name);
        let Some(record) = self.records.next().transpose().map_err(refused)? else {
            return Ok(None);
        };
        match &record.error {
            Some(error) => Err(CliError::from_row(error, &self.name)),
            None => Ok(Some(record)),
        }
    }

    /// The fields of a row of JSON that stands at a line.
    ///
    /// # Errors
    /// It is no object.
    pub fn fields(&self, text: String, line: u64) -> Result<JsonFields, CliError> {
        JsonFields::parse(text, line).map_err(|bad| CliError::from_row(&bad.1, &self.name))
    }
}
