//! Work that is left where the output is complete: none, new rows of the input, or error rows that
//! are asked again. Decided before the model is loaded.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use serde_json::json;

use super::read::{Digested, Order, ReadThread};
use super::{Job, fingerprinted, read, shape};
use crate::ledger::meta::Meta;
use crate::ledger::{Draft, LedgerError};
use crate::model;
use vllm_batch_dataset::input::files::{self, Shape};
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::output::{FileFormat, FinishedRows, RowFormat};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::numbers::num_rows;

/// Rows that a sample of an earlier run is looked for in: minutes of work.
const MAX_SAMPLED: u64 = 1 << 36;

/// What is to be done.
pub enum Next {
    /// The output is this run's.
    Nothing(Exit),
    /// Rows are to be asked.
    Run(GoesOn),
}

/// An input that is read from its beginning.
pub struct GoesOn {
    /// Who reads it.
    pub reading: ReadThread,
    /// What it is, where that is known.
    pub shape: Option<Shape>,
    /// The rows of the output that is there, where they are among its rows.
    pub then: Option<RowsThen>,
}

/// How the rows of the input are those of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Same,
    /// The same rows, and others behind or between them.
    Grown,
    Other,
}

impl Input {
    fn of(meta: &Meta, read: &Digested) -> Self {
        let (rows, digest) = (meta.input.rows, &meta.input.digest);
        match read.then.num_rows == rows && read.then.digest == *digest {
            true if read.all.num_rows == rows => Input::Same,
            true => Input::Grown,
            false => Input::Other,
        }
    }
}

impl Job<'_> {
    /// Compares the run with the one that made the output.
    ///
    /// # Errors
    /// The output is another run's, or nobody can tell which of its rows are this run's.
    pub fn look_at_complete(
        &mut self,
        reading: ReadThread,
        known: Option<Shape>,
        draft: &mut Draft,
        meta: &Meta,
    ) -> Result<Next, CliError> {
        let are_files = self.config.input.sources.are_files();
        let is_complete = draft.complete().is_some();
        if !is_complete && !are_files {
            // Read once only: its rows are known by their fields.
            self.refuse_unknown_rows(draft, meta)?;
            return Ok(Next::Run(GoesOn { reading, shape: known, then: None }));
        }
        let shape = known.map_or_else(|| shape(&reading), Ok)?;
        self.turn_to(shape.task)?;
        let mut differences = self.other_settings(meta, &shape)?;
        let read = digest(&reading, meta)?;
        let input = Input::of(meta, &read);
        let path = draft.path().expect("a stream is never complete").to_owned();
        let stays = self.remote.is_some() && input == Input::Grown;
        // Rows that were edited are known by their fields.
        let retries = self.config.output.retry_failed && are_files && self.remote.is_none();
        if is_complete && (input == Input::Other && !retries || stays) {
            let (then, now, name) = (meta.input.rows, read.all.num_rows, &self.config.input.name);
            differences.push(format!("input: {then} rows then, {now} in {name} now, not the same"));
            let may_retry = are_files && self.remote.is_none() && meta.format != FileFormat::Npy;
            if input == Input::Other && may_retry && differences.len() == 1 {
                let error = LedgerError::at_start(LedgerError::Complete { path, differences });
                return Err(error.help(
                    "--retry-failed computes rows that were edited, are new or failed, and keeps \
                     the others; or choose another --out, or start over with --overwrite",
                ));
            }
        }
        if !differences.is_empty() {
            return Err(LedgerError::at_start(LedgerError::Complete { path, differences }));
        }
        if is_complete && input == Input::Same {
            return Ok(Next::Nothing(self.say_nothing_is_left(&path, meta)));
        }
        if !are_files {
            let difference = format!(
                "input: {} more rows now, from a stream that is read once",
                read.all.num_rows - meta.input.rows
            );
            let error = LedgerError::Complete { path, differences: vec![difference] };
            let help = "name the input as a file (-i FILE): then only its new rows are computed; \
                        or start over with --overwrite";
            return Err(LedgerError::at_start(error).help(help));
        }
        if input == Input::Other {
            self.refuse_unknown_rows(draft, meta)?;
        }
        self.refuse_other_columns(draft, meta, &shape)?;
        draft.go_on();
        self.say_what_is_left(meta, &read, input);
        let reading = self.read_again()?;
        let shape = Some(super::shape(&reading)?);
        let then = (input != Input::Other).then(|| rows_then(meta));
        Ok(Next::Run(GoesOn { reading, shape, then }))
    }

    /// What is different in what is known before the model is loaded.
    fn other_settings(&mut self, meta: &Meta, shape: &Shape) -> Result<Vec<String>, CliError> {
        let folders = model::find(&self.config, self.console)?;
        let summary = model::summary_for(&self.config, &folders)?;
        let files = fingerprinted::of_files(&self.config, &folders, &summary)?;
        self.files = Some(files.clone());
        let now = files.showing(self.config.shown_model_name(shape)).alone();
        let mut differences = match self.config.output.retry_failed {
            true => meta.fingerprint.differences_of_answers(&now),
            false => meta.fingerprint.differences(&now),
        };
        let shard = self.config.input.shard;
        if meta.shard != shard {
            differences.push(format!("shard: {} then, {shard} now", meta.shard));
        }
        Ok(differences)
    }

    /// Refuses rows that nobody can tell from each other.
    fn refuse_unknown_rows(&self, draft: &Draft, meta: &Meta) -> Result<(), CliError> {
        if meta.format != FileFormat::Npy {
            return Ok(());
        }
        let path = draft.path().expect("a matrix is a file").display().to_string();
        let message = format!(
            "{path} shows no fields of its rows, and the input is not the file of then with rows \
             behind it: which of its rows stay is not known"
        );
        Err(CliError::refused("retry_failed", message)
            .help("put corrected rows at the end of the input, or start over with --overwrite"))
    }

    /// Refuses a CSV whose columns would change in the middle.
    fn refuse_other_columns(
        &self,
        draft: &Draft,
        meta: &Meta,
        shape: &Shape,
    ) -> Result<(), CliError> {
        let (RowFormat::Csv(csv), Some(names)) =
            (RowFormat::new(&self.config.format_settings(), shape)?, &shape.headers)
        else {
            return Ok(());
        };
        let path = draft.path().expect("it was complete").to_owned();
        let name = path.display().to_string();
        let rows = FinishedRows::open(&path, meta.format);
        let rows = rows.map_err(|error| CliError::from_input(error, &name))?;
        if csv.is_header(names, rows.header()) {
            return Ok(());
        }
        let mut header = Vec::new();
        csv.format_header(names, &mut header);
        let [then, now] = [rows.header(), &header]
            .map(|header| String::from_utf8_lossy(header).trim_end().to_owned());
        let differences = vec![format!("columns: {then} then, {now} now")];
        Err(LedgerError::at_start(LedgerError::Complete { path, differences }))
    }

    fn say_nothing_is_left(&self, path: &Path, meta: &Meta) -> Exit {
        self.console.note(&format!(
            "Nothing to do: {} is complete, with {}, {} of them error rows",
            path.display(),
            num_rows(meta.rows.total),
            meta.rows.failed
        ));
        let failed = meta.rows.failed > 0;
        let exit = if failed { Exit::ErrorRows } else { Exit::Success };
        self.console.result(json!({
            "complete": true,
            "exit_code": exit.code(),
            "output": path.display().to_string(),
            "rows": { "total": meta.rows.total, "ok": meta.rows.ok,
                      "failed": meta.rows.failed, "reused": meta.rows.total },
        }));
        exit
    }

    fn say_what_is_left(&self, meta: &Meta, read: &Digested, input: Input) {
        let total = self.config.input.shard.num_rows(read.all.num_rows);
        let new = total.saturating_sub(meta.rows.total);
        let failed = match meta.rows.failed {
            0 => String::new(),
            failed => format!(", and the {failed} that failed"),
        };
        let edited = if input == Input::Other { ", and those that were edited" } else { "" };
        self.console.note(&format!(
            "Going on from {} with an answer: asking {new} new{failed}{edited}",
            num_rows(meta.rows.ok)
        ));
    }

    fn read_again(&self) -> Result<ReadThread, CliError> {
        let input = files::open(&self.read.sources, &self.read.rows)?;
        let (console, counters) = (self.console.clone(), self.counters.clone());
        Ok(read::start(Arc::clone(&self.read), input, console, counters))
    }
}

/// The rows that an output has of its input.
fn rows_then(meta: &Meta) -> RowsThen {
    match meta.sample {
        // A side file may say anything.
        Some(sampled) if sampled.of > MAX_SAMPLED => RowsThen::Sample(Vec::new()),
        Some(sampled) => RowsThen::Sample(sampled.indices()),
        None => RowsThen::First(meta.input.rows),
    }
}

/// Reads the input to its end.
fn digest(reading: &ReadThread, meta: &Meta) -> Result<Digested, CliError> {
    let (sender, digest) = channel();
    let _ = reading.order.send(Order::Digest(rows_then(meta), sender));
    digest.recv().expect("the reading thread answers")
}
