//! `Report`: what is said of an output, and the files that say it. No times are in them, so that
//! reports can be kept and compared.

mod html;
mod junit;
mod markdown;
mod text;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::baseline::{Baseline, Flipped};
use super::gates::Outcome;
use super::rows::JudgedFile;
use super::totals::{Failure, Totals};
use crate::cli::ledger::Named;
use crate::cli::ledger::fingerprint::Fingerprint;
use crate::cli::ledger::meta::Meta;
use crate::cli::ledger::names::{refuse_read, refuse_twice};
use crate::cli::run::JUDGE;
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;

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

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Markdown,
    JUnit,
    Html,
}

/// The end of a name, and what it asks for.
const FORMS: [(&str, Form); 4] = [
    (".json", Form::Json),
    (".md", Form::Markdown),
    (".junit.xml", Form::JUnit),
    (".html", Form::Html),
];

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

/// The files of `--report`.
#[derive(Debug)]
pub struct ReportFiles(Vec<(PathBuf, Form)>);

impl ReportFiles {
    /// Looks at the names before anything is computed.
    ///
    /// # Errors
    /// A name does not say its form, is that of a file that is read or written, or is in a folder
    /// that is not there.
    pub fn new(paths: &[PathBuf], out: &Path, read: &[Named]) -> Result<Self, CliError> {
        let reports = paths.iter().map(|path| Named::new("--report", path.clone()));
        let written: Vec<Named> = reports.chain([Named::new("--out", out)]).collect();
        refuse_twice(&written).map_err(CliError::from_output)?;
        refuse_read(&written[..paths.len()], read).map_err(CliError::from_output)?;
        paths.iter().map(|path| Self::one(path)).collect::<Result<_, _>>().map(Self)
    }

    fn one(path: &Path) -> Result<(PathBuf, Form), CliError> {
        let name = path.display();
        let refused = |message: String| Err(CliError::refused("report", message));
        let text = path.to_string_lossy();
        let Some((_, form)) = FORMS.iter().find(|(end, _)| text.ends_with(end)) else {
            let ends: Vec<&str> = FORMS.iter().map(|(end, _)| *end).collect();
            return refused(format!(
                "--report {name}: its name ends with none of {}",
                ends.join(", ")
            ));
        };
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                refused(format!("--report {name}: there is no folder {}", folder.display()))
            }
            _ if path.is_dir() => refused(format!("--report {name}: it is a folder")),
            _ => Ok((path.to_owned(), *form)),
        }
    }

    /// Writes all of them.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn write(&self, report: &Report, rows: Rows<'_>) -> Result<(), CliError> {
        for (path, form) in &self.0 {
            let failed = |error: io::Error| {
                let message = format!("cannot write {}: {error}", path.display());
                CliError::new(Exit::Stopped, "report", message).help(
                    "the rows are written: the same command writes the report and computes nothing",
                )
            };
            let mut out = BufWriter::new(File::create(path).map_err(failed)?);
            match form {
                Form::Json => writeln!(out, "{:#}", report.json()).map_err(failed)?,
                Form::Markdown => write!(out, "{}", report.markdown()).map_err(failed)?,
                Form::JUnit => {
                    junit::begin(&report.totals.all, &report.outcomes, &mut out).map_err(failed)?;
                    let mut file = rows()?;
                    while let Some(row) = file.next_row()? {
                        junit::case(row, &mut out).map_err(failed)?;
                    }
                    junit::end(&mut out).map_err(failed)?;
                }
                Form::Html => {
                    html::begin(&report.json(), &mut out).map_err(failed)?;
                    let mut file = rows()?;
                    while let Some(row) = file.next_row()? {
                        let flip = report.baseline.as_ref().map(|then| then.flip(&row));
                        let flip = flip.unwrap_or_default();
                        html::row(&row, flip, &mut out).map_err(failed)?;
                    }
                    html::end(&mut out).map_err(failed)?;
                }
            }
            out.flush().map_err(failed)?;
        }
        Ok(())
    }
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

    fn json(&self) -> Value {
        let totals = &self.totals;
        let groups = totals.groups.iter().map(|(name, group)| (name.clone(), totals.json(group)));
        let groups: Map<String, Value> = groups.collect();
        let Value::Object(all) = totals.json(&totals.all) else { unreachable!("it is an object") };
        let mut report = Map::new();
        report.insert("schema".to_owned(), SCHEMA.into());
        report.insert("tool".to_owned(), env!("CARGO_PKG_NAME").into());
        report.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        report.insert("origin".to_owned(), self.origin.clone());
        report.extend(all);
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
                format!("expected {:?}, got {:?}", row.expected.trim(), got.trim())
            }
        }
    }
}
