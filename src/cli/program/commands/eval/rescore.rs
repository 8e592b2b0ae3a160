//! `--rescore`: the rows of a finished output with other verdicts. No model is loaded, and no token
//! is computed: answers stay as they are, to the byte.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use vllm_batch_dataset::PROGRAM;

use super::rows::JudgedFile;
use crate::args::FlagFiles;
use crate::ledger::files::side_file_of;
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::meta::{self, FileFacts, InputFacts, Meta, RowCounts, TokenCounts};
use crate::ledger::record::Header;
use crate::ledger::storage::Disk;
use crate::ledger::{
    Document, Finished, LedgerError, LedgerOptions, LockedOutput, RowHash, Totals,
};
use crate::run::{self, JUDGE, utc};
use vllm_batch_dataset::input::fields::{JsonFields, json_string};
use vllm_batch_dataset::judge::{FIELDS, Judge};
use vllm_batch_dataset::output::{FileFormat, kept_name};
use vllm_batch_dataset::terminal::clock::now;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// An output that is judged again.
pub struct Rescore<'a> {
    /// The output.
    pub old: &'a Path,
    /// Where its rows go.
    pub new: &'a Path,
    /// Replace what exists.
    pub overwrite: bool,
    /// Who judges.
    pub judge: &'a Judge,
}

impl Rescore<'_> {
    /// Judges every row again. Says whether there are error rows, and which reports are to be
    /// written.
    ///
    /// # Errors
    /// A row cannot be judged, and then nothing is written; or a file cannot be read or written.
    pub fn run(
        &self,
        flags: FlagFiles,
        console: &Console,
    ) -> Result<(Exit, Vec<Document>), CliError> {
        // It is a file, and no device without end.
        drop(self.file()?);
        let meta = self.meta()?;
        let counts = self.check()?;
        let options = LedgerOptions {
            out: Some(self.new.to_owned()),
            flags,
            overwrite: self.overwrite,
            ..LedgerOptions::default()
        };
        let locked = LockedOutput::open(Arc::new(Disk), options);
        let mut locked = locked.map_err(LedgerError::at_start)?;
        let reports = locked.take_documents("--report");
        let exit = if counts.failed > 0 { Exit::ErrorRows } else { Exit::Success };
        if let Some(found) = locked.complete() {
            let mut differences = found.fingerprint.differences(&meta.fingerprint);
            if found.input.digest != meta.input.digest {
                differences.push("the rows that were judged".to_owned());
            }
            if !differences.is_empty() {
                let path = self.new.to_owned();
                return Err(LedgerError::Complete { path, differences }.at_start());
            }
            console.note(&format!("Nothing to do: {} is complete", self.new.display()));
            return Ok((exit, reports));
        }
        let fingerprint = meta.fingerprint.clone();
        let header = Header { started: now(), replaces: self.overwrite, keeps: false, fingerprint };
        let (mut ledger, mut recovered) = locked.begin(header).map_err(LedgerError::at_start)?;
        let mut file = self.file()?;
        let mut position = 0;
        while let Some((_, fields)) = file.next_fields()? {
            let hash = hash_of(&fields);
            let reused = match &mut recovered {
                Some(recovered) => recovered.find(position, &hash).map_err(|error| {
                    CliError::new(Exit::Stopped, "journal", format!("cannot read it: {error}"))
                })?,
                None => None,
            };
            let pushed = match reused {
                Some(reused) => ledger.reuse(position, &reused),
                None => match self.finished(position, hash, &fields) {
                    Ok(finished) => ledger.push(finished),
                    Err(error) => {
                        ledger.stop().map_err(LedgerError::midway)?;
                        return Err(error);
                    }
                },
            };
            pushed.map_err(LedgerError::midway)?;
            position += 1;
        }
        let text = |totals: &Totals| Meta { rows: counts, ..of(meta, totals) }.text();
        ledger.finish(text).map_err(LedgerError::midway)?;
        Ok((exit, reports))
    }

    fn file(&self) -> Result<JudgedFile, CliError> {
        JudgedFile::open(self.old, self.judge.out_field(), None)
    }

    /// Judges every row, before anything is written.
    fn check(&self) -> Result<RowCounts, CliError> {
        let mut file = self.file()?;
        let mut counts = RowCounts::default();
        while let Some((line, fields)) = file.next_fields()? {
            counts.total += 1;
            match self.judge.check_output(&fields).map_err(|reason| file.refused(line, &reason))? {
                true => counts.ok += 1,
                false => {
                    counts.failed += 1;
                    *counts.by_code.entry(code_of(&fields)).or_default() += 1;
                }
            }
        }
        match counts.total {
            0 => {
                let message = format!("{} has no rows", self.old.display());
                Err(CliError::new(Exit::NoRows, "no_rows", message))
            }
            _ => Ok(counts),
        }
    }

    fn finished(
        &self,
        position: u64,
        hash: RowHash,
        fields: &JsonFields,
    ) -> Result<Finished, CliError> {
        let mut row = without_verdict(fields);
        self.judge.append(&mut row).map_err(run::no_verdict)?;
        let usage = fields.get("usage").and_then(|usage| serde_json::from_str(usage).ok());
        let usage: serde_json::Value = usage.unwrap_or_default();
        let tokens = |name: &str| usage[name].as_u64().unwrap_or_default() as u32;
        Ok(Finished {
            position,
            hash,
            code: fields.get("error").map(|_| "error"),
            input_tokens: tokens("prompt_tokens"),
            output_tokens: tokens("completion_tokens"),
            row,
            media: Vec::new(),
        })
    }

    /// What is said beside the new output: what the old one's side file says, with another judge.
    /// An output without one is known by its bytes.
    fn meta(&self) -> Result<Meta, CliError> {
        let found = match Meta::beside(self.old) {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                let name = side_file_of(self.old);
                let message = format!("cannot read {}: {error}", name.display());
                return Err(CliError::new(Exit::OutputExists, "changed", message)
                    .help("put back what the run wrote, or remove it to judge rows of any run"));
            }
        };
        let failed = |error: std::io::Error| {
            let message = format!("cannot read {}: {error}", self.old.display());
            CliError::refused("eval", message)
        };
        let mut meta = match found {
            Some(meta) if meta.errors.is_some() && meta.rows.failed > 0 => {
                let message = "its error rows are in a file of their own, and would not be counted";
                let message = format!("{}: {message}", self.old.display());
                return Err(CliError::refused("eval", message));
            }
            Some(meta) => {
                let length = fs::metadata(self.old).map_err(failed)?.len();
                if meta.output.bytes != length {
                    let message = format!("{} is not what its run left", self.old.display());
                    return Err(CliError::new(Exit::OutputExists, "changed", message));
                }
                meta
            }
            None => {
                let mut hasher = blake3::Hasher::new();
                let file = File::open(self.old).map_err(failed)?;
                hasher.update_reader(file).map_err(failed)?;
                unknown(self.old, hasher.finalize().to_hex()[..32].to_owned())
            }
        };
        let mut fields = meta.fingerprint.fields;
        fields.insert(JUDGE.to_owned(), self.judge.text());
        meta.fingerprint = Fingerprint::new(fields);
        Ok(meta)
    }
}

/// Of an output of which nothing is known but its bytes.
fn unknown(path: &Path, digest: String) -> Meta {
    let fields = [("rows".to_owned(), digest.clone())];
    Meta {
        schema: meta::SCHEMA,
        tool: PROGRAM.to_owned(),
        version: String::new(),
        started: utc(now()),
        finished: String::new(),
        resumes: 0,
        rows: RowCounts::default(),
        tokens: TokenCounts::default(),
        input: InputFacts { path: path.display().to_string(), digest, ..InputFacts::default() },
        output: FileFacts::default(),
        errors: None,
        format: FileFormat::Jsonl,
        compression: String::new(),
        model: None,
        fingerprint: Fingerprint::new(fields.into()),
        shard: Default::default(),
        limit: None,
        sample: None,
    }
}

/// The same of the file that was written.
fn of(meta: Meta, totals: &Totals) -> Meta {
    Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        finished: utc(now()),
        output: totals.output.clone().into(),
        compression: totals.compression.name().to_owned(),
        errors: None,
        format: FileFormat::Jsonl,
        ..meta
    }
}

fn hash_of(fields: &JsonFields) -> RowHash {
    let hash = blake3::hash(fields.text().as_bytes());
    let (half, _) = hash.as_bytes().split_first_chunk().expect("it has 32 bytes");
    RowHash(*half)
}

fn code_of(fields: &JsonFields) -> String {
    let error = fields.get("error").and_then(|error| serde_json::from_str(error).ok());
    let error: serde_json::Value = error.unwrap_or_default();
    error["code"].as_str().unwrap_or("error").to_owned()
}

/// A row as `run` writes it: without its verdict. A field of the input that is named like one of a
/// verdict is renamed, as in a run that judges.
fn without_verdict(fields: &JsonFields) -> Vec<u8> {
    let names: Vec<_> = fields.iter().map(|field| field.name.into_owned()).collect();
    let answered = names.iter().rposition(|name| name == "finish_reason").unwrap_or(names.len());
    let is_taken = |name: &str| names.iter().any(|other| other == name);
    let mut row = String::from("{");
    for (at, field) in fields.iter().enumerate() {
        let is_ours = FIELDS.contains(&&*field.name);
        if is_ours && at > answered {
            continue;
        }
        if row.len() > 1 {
            row.push(',');
        }
        match is_ours {
            true => row.push_str(&json_string(&kept_name(&field.name, is_taken))),
            false => row.push_str(field.raw_name),
        }
        row.push(':');
        row.push_str(field.value);
    }
    row.push_str("}\n");
    row.into_bytes()
}
