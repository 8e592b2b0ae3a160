//! `JudgedFile`: the rows of an output with their verdicts, one after the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

use vllm_batch_dataset::input::fields::JsonFields;
use vllm_batch_dataset::input::output_records::OutputRecords;
use vllm_batch_dataset::input::reader::{Content, InputFormat, Layout, Opened, TextEncoding};
use vllm_batch_dataset::judge::NOT_JUDGED;
use vllm_batch_dataset::judge::row::{JudgedRow as OwnFields, text_of};
use vllm_batch_dataset::judge::scorers::errors::Errors;
use vllm_batch_dataset::judge::scorers::perplexity::Loglikelihood;
use vllm_batch_dataset::terminal::error::{CliError, Location};

/// A row of an output, and what it is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JudgedRow {
    /// In the output, from 1.
    pub number: u64,
    /// Its `custom_id` or `id`.
    pub id: Option<String>,
    /// Its `group`.
    pub group: Option<String>,
    /// Code and message, if it is an error row; then nothing below is there.
    pub error: Option<String>,
    /// The mean over its completions.
    pub score: f64,
    /// Whether the answer that counts passes; None: nothing says which do.
    pub passed: Option<bool>,
    /// Scores by name.
    pub scores: Vec<(String, f64)>,
    /// Of several completions, whether each passes.
    pub samples: Vec<bool>,
    /// Of a text.
    pub loglikelihood: Option<Loglikelihood>,
    /// Of a transcript.
    pub errors: Option<Errors>,
    /// The answer.
    pub answer: String,
    /// What was expected of it.
    pub expected: String,
    /// What was found in the answer.
    pub extracted: Option<String>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The names of the scorers.
    pub scorer: String,
    /// What was asked.
    pub question: String,
    /// An answer was ended by `--max-tokens` or by the context.
    pub is_cut: bool,
    /// Of the prompt, and of the answers.
    pub tokens: [u64; 2],
}

/// The rows of one output.
pub struct JudgedFile {
    out_field: String,
    expected_column: Option<String>,
    records: OutputRecords,
    num_rows: u64,
}

impl JudgedFile {
    /// Opens an output.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path, out_field: &str, expected: Option<&str>) -> Result<Self, CliError> {
        let name = path.display().to_string();
        // It is read more than once, and to its end.
        let regular = |file: File| match file.metadata()?.is_file() {
            true => Opened::of_file(file),
            false => Err(io::Error::other("it is not a regular file")),
        };
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).and_then(regular);
        let layout = Layout { encoding: TextEncoding::UTF_8, ..InputFormat::Jsonl.into() };
        let records = OutputRecords::of(name, file, layout)?;
        let (out_field, expected_column) = (out_field.to_owned(), expected.map(str::to_owned));
        Ok(Self { out_field, expected_column, records, num_rows: 0 })
    }

    /// Opens another output whose rows are as those of this one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn like(&self, path: &Path) -> Result<Self, CliError> {
        Self::open(path, &self.out_field, self.expected_column.as_deref())
    }

    /// The fields of the next row.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is no row.
    pub fn next_fields(&mut self) -> Result<Option<(u64, JsonFields)>, CliError> {
        let Some(record) = self.records.next_record()? else { return Ok(None) };
        self.num_rows += 1;
        let Content::Line(line) = record.content else {
            let message = "rows with verdicts are JSON lines";
            return Err(CliError::refused("eval", message));
        };
        Ok(Some((record.line, self.records.fields(line, record.line)?)))
    }

    /// The next row.
    ///
    /// # Errors
    /// As `next_fields`; or the row has no verdict.
    pub fn next_row(&mut self) -> Result<Option<JudgedRow>, CliError> {
        let Some((line, fields)) = self.next_fields()? else { return Ok(None) };
        let row = JudgedRow::of(&fields, &self.out_field, self.expected_column.as_deref());
        match row {
            Some(row) => Ok(Some(JudgedRow { number: self.num_rows, ..row })),
            None => Err(self.refused(line, "the row has no `score`: it was not judged")),
        }
    }

    /// The refusal of a row.
    pub fn refused(&self, line: u64, message: &str) -> CliError {
        let location =
            Location { file: self.records.name().to_owned(), line, ..Location::default() };
        CliError::refused("eval", message).at(location)
    }
}

impl JudgedRow {
    /// What the row counts beside that of another output: whether it passed; of several
    /// completions the share that did; else its score.
    pub fn worth(&self) -> f64 {
        let share = |passed: bool| f64::from(u8::from(passed));
        match (self.passed, &self.error) {
            (_, Some(_)) => 0.0,
            (Some(_), _) if !self.samples.is_empty() => {
                let right: f64 = self.samples.iter().map(|passed| share(*passed)).sum();
                right / self.samples.len() as f64
            }
            (Some(passed), _) => share(passed),
            (None, _) => self.score,
        }
    }

    /// None: it has no verdict.
    fn of(fields: &JsonFields, out_field: &str, expected: Option<&str>) -> Option<Self> {
        let own = OwnFields::of_output(fields, out_field);
        let value = |name: &str| -> Option<Value> {
            let value: Value = serde_json::from_str(fields.get(name)?).ok()?;
            Some(value).filter(|value| !value.is_null())
        };
        let text = |value: Option<Value>| value.as_ref().map(text_of);
        let usage = value("usage").unwrap_or_default();
        let tokens = |name: &str| usage[name].as_u64().unwrap_or_default();
        let row = Self {
            id: text(own.own("custom_id").or_else(|| own.own("id"))),
            group: text(own.own("group")),
            scorer: text(value("scorer")).unwrap_or_default(),
            question: question(&own),
            is_cut: is_cut(value("finish_reason"), value("outputs")),
            tokens: ["prompt_tokens", "completion_tokens"].map(tokens),
            ..Self::default()
        };
        if own.is_error() {
            let error = value("error").unwrap_or_default();
            let part = |name: &str| error[name].as_str().unwrap_or_default();
            return Some(Self {
                error: Some(format!("{}: {}", part("code"), part("message"))),
                ..row
            });
        }
        let reason = text(value("reason"));
        if let Some(reason) = reason.as_ref().filter(|text| text.starts_with(NOT_JUDGED))
            && fields.get("score") == Some("null")
        {
            return Some(Self { error: Some(reason.clone()), ..row });
        }
        let passed = |value: &Value| value["passed"].as_bool();
        let score = value("score")?.as_f64()?;
        let named = match value("scores") {
            Some(Value::Object(named)) => named
                .into_iter()
                .filter_map(|(name, score)| Some((name, score.as_f64()?)))
                .collect(),
            _ => vec![(row.scorer.clone(), score)],
        };
        let samples = match value("samples") {
            Some(Value::Array(samples)) => samples.iter().filter_map(passed).collect(),
            _ => Vec::new(),
        };
        let expected = own.expected_name(expected).and_then(|name| own.own(name));
        Some(Self {
            score,
            passed: value("passed").and_then(|passed| passed.as_bool()),
            scores: named,
            samples,
            loglikelihood: own.loglikelihood().ok(),
            errors: value("errors").and_then(|errors| serde_json::from_value(errors).ok()),
            answer: text(value(out_field)).unwrap_or_default(),
            expected: text(expected).unwrap_or_default(),
            extracted: text(value("extracted")),
            reason,
            ..row
        })
    }
}

/// Fields that may hold what was asked, the first that is there.
const QUESTIONS: [&str; 10] = [
    "prompt",
    "messages",
    "conversations",
    "question",
    "instruction",
    "text",
    "input",
    "ctx",
    "sentence",
    "problem",
];

/// Whether one of a row's answers ended before it was complete.
fn is_cut(reason: Option<Value>, outputs: Option<Value>) -> bool {
    let is_length = |value: &Value| value == "length";
    let of_outputs = outputs.as_ref().and_then(Value::as_array).into_iter().flatten();
    reason.as_ref().is_some_and(is_length)
        || of_outputs.map(|output| &output["finish_reason"]).any(is_length)
}

/// What was asked: a text, or the messages of a chat.
fn question(own: &OwnFields<'_>) -> String {
    match QUESTIONS.iter().find_map(|name| own.own(name)) {
        Some(Value::Array(messages)) => {
            let said = messages.iter().map(|message| {
                let part = |names: [&str; 2]| {
                    let value = names.iter().find_map(|name| message.get(name));
                    value.map(text_of).unwrap_or_default()
                };
                format!("{}: {}", part(["role", "from"]), part(["content", "value"]))
            });
            said.collect::<Vec<_>>().join("\n")
        }
        Some(value) => text_of(&value),
        None => String::new(),
    }
}
