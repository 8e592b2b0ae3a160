//! `Report`: what is said of an output, and the files that say it. No times are in them, so that
//! reports can be kept and compared.

mod html;
mod junit;
mod markdown;
mod text;
mod thumbnails;

use std::io;
use std::path::{Path, PathBuf};
use vllm_batch_dataset::PROGRAM;

use serde_json::{Map, Value, json};

pub use self::thumbnails::Thumbnails;
use super::baseline::{Baseline, Flipped};
use super::gates::Outcome;
use super::rows::JudgedFile;
use super::totals::{Failure, Totals};
use crate::args::{DocumentKind, ReportForm};
use crate::ledger::Document;
use crate::ledger::document::MARKDOWN_MARK;
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::meta::Meta;
use crate::run::JUDGE;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// The version of the JSON report's fields. They are only added to.
const SCHEMA: u32 = 1;

/// What is said of an output.
#[derive(Debug)]
pub struct Report {
    /// What the rows come to.
    pub totals: Totals,
    /// Gates and what came of them.
    pub outcomes: Vec<Outcome>,
    /// Beside an earlier output.
    pub baseline: Option<Baseline>,
    /// What the output was made of; null where nobody says it.
    pub origin: Value,
}

/// Fields of a fingerprint that people read in a report: what answers were asked for.
const SETTINGS: [&str; 15] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "max_tokens",
    "max_model_len",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "dtype",
    "quantization",
    "likelihoods",
];

/// Opens the judged rows once more.
type Rows<'a> = &'a mut dyn FnMut() -> Result<JudgedFile, CliError>;

/// Opens the images of the rows, where the input can be read once more.
type Pictures<'a> = &'a mut dyn FnMut() -> Option<Thumbnails>;

/// Refuses a name that does not say the form of its report. Before anything is computed.
///
/// # Errors
/// There is one.
pub fn check_names(paths: &[PathBuf]) -> Result<(), CliError> {
    let Some(path) = paths.iter().find(|path| ReportForm::of(path).is_none()) else {
        return Ok(());
    };
    let ends: Vec<&str> = ReportForm::ENDS.iter().map(|(end, _)| *end).collect();
    let ends = ends.join(", ");
    let message = format!("--report {}: its name ends with none of {ends}", path.display());
    Err(CliError::refused("report", message))
}

/// What an output's side file says of its making: the model and what it was asked, without who
/// judges; the rows that were read.
pub fn origin_of(out: &Path) -> Value {
    let Ok(meta) = Meta::beside(out) else { return Value::Null };
    let mut fields = meta.fingerprint.fields;
    fields.remove(JUDGE);
    let hash = |name: &str| fields.get(name).cloned();
    let (model, tokenizer) = (hash("model"), hash("tokenizer"));
    let settings = SETTINGS.iter().filter_map(|name| Some((name.to_string(), hash(name)?.into())));
    let settings: Map<String, Value> = settings.collect();
    json!({
        "model_name": meta.model,
        "settings": settings,
        "run": Fingerprint::new(fields).id,
        "model": model,
        "tokenizer": tokenizer,
        "input_rows": meta.input.rows,
        "input_digest": meta.input.digest,
    })
}

impl Report {
    /// Rows that became wrong, of those that reports show.
    pub fn newly_wrong(&self) -> impl Iterator<Item = &Flipped> {
        self.baseline.iter().flat_map(|baseline| baseline.newly_wrong())
    }

    /// Writes a document of it.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn write(
        &self,
        document: Document,
        rows: Rows<'_>,
        pictures: Pictures<'_>,
    ) -> Result<(), CliError> {
        let DocumentKind::Report(form) = document.kind else { unreachable!("of --report") };
        let failed = |error: io::Error| CliError::new(Exit::Stopped, "report", error.to_string());
        let written = document.write_with(&mut |out| match form {
            ReportForm::Json => writeln!(out, "{:#}", self.json()).map_err(failed),
            ReportForm::Markdown => {
                write!(out, "{MARKDOWN_MARK}{}", self.markdown()).map_err(failed)
            }
            ReportForm::JUnit => {
                junit::begin(&self.totals.all, &self.outcomes, out).map_err(failed)?;
                let mut file = rows()?;
                while let Some(row) = file.next_row()? {
                    junit::case(row, out).map_err(failed)?;
                }
                junit::end(out).map_err(failed)
            }
            ReportForm::Html => {
                html::begin(&self.json(), out).map_err(failed)?;
                let (mut file, mut pictures) = (rows()?, pictures());
                while let Some(row) = file.next_row()? {
                    let flip = self.baseline.as_ref().map(|then| then.flip(&row));
                    let flip = flip.unwrap_or_default();
                    let images = pictures.as_mut().map(|images| images.of_row(row.number));
                    html::row(&row, flip, images.unwrap_or_default(), out).map_err(failed)?;
                }
                html::end(out).map_err(failed)
            }
        });
        written.map_err(|error| match error.exit {
            Exit::Stopped => error.help(
                "the rows are written: the same command writes the report and computes nothing",
            ),
            _ => error,
        })
    }

    fn json(&self) -> Value {
        let totals = &self.totals;
        let groups = totals.groups.iter().map(|(name, group)| (name.clone(), totals.json(group)));
        let groups: Map<String, Value> = groups.collect();
        let Value::Object(all) = totals.json(&totals.all) else { unreachable!("it is an object") };
        let mut report = Map::new();
        report.insert("schema".to_owned(), SCHEMA.into());
        report.insert("tool".to_owned(), PROGRAM.into());
        report.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        report.insert("origin".to_owned(), self.origin.clone());
        report.extend(all);
        report.insert("acc_of".to_owned(), totals.verdicts_of().into());
        report.insert("groups".to_owned(), groups.into());
        report.insert("gates".to_owned(), self.outcomes.iter().map(Outcome::json).collect());
        if let Some(baseline) = &self.baseline {
            report.insert("baseline".to_owned(), baseline.json());
        }
        report.insert("failures".to_owned(), totals.failures.iter().map(Failure::json).collect());
        report.into()
    }
}

impl Failure {
    /// As reports have it.
    pub fn json(&self) -> Value {
        let row = &self.row;
        let mut json = json!({"row": row.number, "id": row.id, "group": row.group});
        json["question"] = row.question.clone().into();
        match &row.error {
            Some(error) => json["error"] = error.clone().into(),
            None => {
                json["expected"] = row.expected.clone().into();
                json["answer"] = row.answer.clone().into();
                json["extracted"] = row.extracted.clone().into();
                json["reason"] = row.reason.clone().into();
                json["score"] = row.score.into();
            }
        }
        json
    }

    /// What a person calls the row.
    pub fn name(&self) -> String {
        match &self.row.id {
            Some(id) => id.clone(),
            None => format!("row {}", self.row.number),
        }
    }

    /// What is wrong with the row, in one sentence.
    pub fn said(&self) -> String {
        let row = &self.row;
        match (&row.error, &row.reason) {
            (Some(error), _) => error.clone(),
            (None, Some(reason)) => reason.clone(),
            (None, None) => {
                let got = row.extracted.as_ref().unwrap_or(&row.answer);
                let [expected, got] = [&row.expected, got].map(|text| Value::from(text.trim()));
                format!("expected {expected}, got {got}")
            }
        }
    }
}
