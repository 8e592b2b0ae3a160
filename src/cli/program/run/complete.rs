//! Work that is left where the output is complete: none, new rows of the input, or error rows that
//! are asked again. Decided before the model is loaded.

use std::path::Path;
use std::sync::mpsc::channel;

use serde_json::json;

use super::fingerprinted::{self, FileFields};
use super::opened::Session;
use super::read::{self, Digested, Order, ReadThread};
use crate::config::RunConfig;
use crate::ledger::meta::Meta;
use crate::ledger::{LedgerError, LockedOutput};
use crate::model;
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::output::{FileFormat, FinishedRows, RowFormat};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::numbers::num_rows;

/// Rows that a sample of an earlier run is looked for in: minutes of work.
const MAX_SAMPLED: u64 = 1 << 36;

/// What an output leaves of the work.
pub enum Remaining {
    /// Nothing: the output is this run's.
    Nothing(Exit),
    /// Every row is read, and looked for in the output by its fields.
    All,
    /// Rows that are new, or that failed. The input was read to its end.
    Rest {
        /// The rows of the output, where they are among those of the input.
        then: Option<RowsThen>,
        /// The model's files, which the output was compared with.
        files: FileFields,
    },
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

/// A run beside the one that made the output.
pub struct Comparison<'a> {
    /// What it is for.
    pub config: &'a RunConfig,
    /// Its surroundings.
    pub session: &'a Session<'a>,
    /// What its input is.
    pub shape: &'a Shape,
    /// What the output's side file says.
    pub meta: &'a Meta,
}

impl Comparison<'_> {
    /// What is left to do.
    ///
    /// # Errors
    /// The output is another run's, or nobody can tell which of its rows are this run's.
    pub fn remaining(
        &self,
        reading: &ReadThread,
        output: &mut LockedOutput,
    ) -> Result<Remaining, CliError> {
        let are_files = self.config.input.sources.are_files();
        let is_complete = output.complete().is_some();
        if !is_complete && !are_files {
            // Read once only: its rows are known by their fields.
            refuse_unknown_rows(output, self.meta)?;
            return Ok(Remaining::All);
        }
        let files = self.files()?;
        let mut differences = self.other_settings(files.clone());
        if is_complete && are_files && differences.is_empty() && self.is_trusted()? {
            let path = output.path().expect("a stream is never complete");
            return Ok(Remaining::Nothing(self.say_nothing_is_left(path)));
        }
        let read = digest(reading, self.meta)?;
        let input = Input::of(self.meta, &read);
        let path = output.path().expect("a stream is never complete").to_owned();
        let stays = self.session.remote.is_some() && input == Input::Grown;
        // Rows that were edited are known by their fields.
        let may_retry = are_files && self.session.remote.is_none();
        let retries = may_retry && self.config.output.retry_failed;
        if is_complete && (input == Input::Other && !retries || stays) {
            let (then, now) = (self.meta.input.rows, read.all.num_rows);
            let name = &self.config.input.name;
            differences.push(format!("input: {then} rows then, {now} in {name} now, not the same"));
            let is_known = may_retry && self.meta.format != FileFormat::Npy;
            if input == Input::Other && is_known && differences.len() == 1 {
                return Err(LedgerError::Complete { path, differences }.at_start().help(
                    "--retry-failed computes rows that were edited, are new or failed, and keeps \
                     the others; or choose another --out, or start over with --overwrite",
                ));
            }
        }
        if !differences.is_empty() {
            return Err(LedgerError::Complete { path, differences }.at_start());
        }
        if is_complete && input == Input::Same {
            return Ok(Remaining::Nothing(self.say_nothing_is_left(&path)));
        }
        if !are_files {
            let difference = format!(
                "input: {} more rows now, from a stream that is read once",
                read.all.num_rows - self.meta.input.rows
            );
            let error = LedgerError::Complete { path, differences: vec![difference] };
            let help = "name the input as a file (-i FILE): then only its new rows are computed; \
                        or start over with --overwrite";
            return Err(error.at_start().help(help));
        }
        if input == Input::Other {
            refuse_unknown_rows(output, self.meta)?;
        }
        self.refuse_other_columns(&path)?;
        output.go_on();
        self.say_what_is_left(&read, input);
        let then = (input != Input::Other).then(|| rows_then(self.meta));
        Ok(Remaining::Rest { then, files })
    }

    /// Whether the rows are those of then without a look at their images, and that is enough.
    fn is_trusted(&self) -> Result<bool, CliError> {
        let Self { config, meta, .. } = self;
        let is_asked = config.input.trusts_media && !config.output.retry_failed;
        match meta.input.texts.as_ref().filter(|_| is_asked) {
            Some(texts) => read::has_texts(&config.input, meta.input.rows, texts),
            None => Ok(false),
        }
    }

    /// What is known of the model before it is loaded.
    fn files(&self) -> Result<FileFields, CliError> {
        let folders = model::find(self.config, self.session.console)?;
        let summary = model::summary_for(self.config, &folders)?;
        fingerprinted::of_files(self.config, &folders, &summary)
    }

    /// What is different in what is known before the model is loaded.
    fn other_settings(&self, files: FileFields) -> Vec<String> {
        let now = files.showing(self.config.shown_model_name(self.shape)).alone();
        let then = &self.meta.fingerprint;
        let mut differences = fingerprinted::differences(self.config, then, &now);
        let shard = self.config.input.shard;
        if self.meta.shard != shard {
            differences.push(format!("shard: {} then, {shard} now", self.meta.shard));
        }
        differences
    }

    /// Refuses a CSV whose columns would change in the middle.
    fn refuse_other_columns(&self, path: &Path) -> Result<(), CliError> {
        let (RowFormat::Csv(csv), Some(names)) =
            (RowFormat::new(&self.config.format_settings(), self.shape)?, &self.shape.headers)
        else {
            return Ok(());
        };
        let name = path.display().to_string();
        let rows = FinishedRows::open(path, self.meta.format);
        let rows = rows.map_err(|error| CliError::from_input(error, &name))?;
        if csv.is_header(names, rows.header()) {
            return Ok(());
        }
        let mut header = Vec::new();
        csv.format_header(names, &mut header);
        let [then, now] = [rows.header(), &header]
            .map(|header| String::from_utf8_lossy(header).trim_end().to_owned());
        let differences = vec![format!("columns: {then} then, {now} now")];
        Err(LedgerError::Complete { path: path.to_owned(), differences }.at_start())
    }

    /// Says that the output is this run's, and how that ends.
    fn say_nothing_is_left(&self, path: &Path) -> Exit {
        let (rows, console) = (&self.meta.rows, self.session.console);
        console.note(&format!(
            "Nothing to do: {} is complete, with {}, {} of them error rows",
            path.display(),
            num_rows(rows.total),
            rows.failed
        ));
        let exit = if rows.failed > 0 { Exit::ErrorRows } else { Exit::Success };
        console.result(json!({
            "complete": true,
            "exit_code": exit.code(),
            "output": path.display().to_string(),
            "rows": { "total": rows.total, "ok": rows.ok,
                      "failed": rows.failed, "reused": rows.total },
        }));
        exit
    }

    fn say_what_is_left(&self, read: &Digested, input: Input) {
        let rows = &self.meta.rows;
        let total = self.config.input.shard.num_rows(read.all.num_rows);
        let new = total.saturating_sub(rows.total);
        let failed = match rows.failed {
            0 => String::new(),
            failed => format!(", and the {failed} that failed"),
        };
        let edited = if input == Input::Other { ", and those that were edited" } else { "" };
        self.session.console.note(&format!(
            "Going on from {} with an answer: asking {new} new{failed}{edited}",
            num_rows(rows.ok)
        ));
    }
}

/// Refuses rows that nobody can tell from each other.
///
/// # Errors
/// The output is a matrix: it shows no fields.
pub fn refuse_unknown_rows(output: &LockedOutput, meta: &Meta) -> Result<(), CliError> {
    if meta.format != FileFormat::Npy {
        return Ok(());
    }
    let path = output.path().expect("a matrix is a file").display().to_string();
    let message = format!(
        "{path} shows no fields of its rows, and the input is not the file of then with rows \
         behind it: which of its rows stay is not known"
    );
    Err(CliError::refused("retry_failed", message)
        .help("put corrected rows at the end of the input, or start over with --overwrite"))
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
    let unread = meta.input.unread_images.iter().copied().collect();
    let _ = reading.order.send(Order::Digest(rows_then(meta), unread, sender));
    digest.recv().expect("the reading thread answers")
}
