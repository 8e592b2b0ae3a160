//! The rows of a run that is not complete, from its journal: in the order in which they finished.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::{Rows, complete, matrix_line, unreadable};
use crate::ledger::journal_view::{JournalView, Viewed};
use crate::ledger::record::{Header, Kind};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Between two looks at a journal.
const POLL: Duration = Duration::from_millis(200);

/// Looks without a new row before it is asked whether the run still works.
const PATIENCE: u32 = 5;

/// A journal whose run is not complete.
pub struct Unfinished {
    path: PathBuf,
    view: JournalView,
    /// Rows are those of a matrix.
    is_matrix: bool,
    /// All rows are there.
    has_end: bool,
    /// Records before this one have other columns.
    columns_at: u64,
    /// Error rows that were asked again later.
    replaced: HashSet<u64>,
}

/// What ends the reading of a journal.
enum Ended {
    Read(io::Error),
    Written(CliError),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Ended::Read(error)
    }
}

impl Unfinished {
    /// Opens the journal, unless the output is complete beside it.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(
        path: &Path,
        output: Option<&Path>,
        follow: bool,
    ) -> Result<Option<Self>, CliError> {
        let failed = |error| unreadable(path, &error);
        let Some(mut view) = JournalView::open(path).map_err(failed)? else { return Ok(None) };
        let header = view.header().map_err(failed)?;
        let exists = output.is_some_and(Path::exists);
        let is_of_output = match &header {
            // A run begins over a complete output, or one is just being looked at.
            None => !exists || (follow && view.is_written()),
            Some(header) => !exists || header.replaces,
        };
        let mut unfinished = Self {
            path: path.to_owned(),
            view,
            is_matrix: header.as_ref().is_some_and(is_matrix),
            has_end: false,
            columns_at: 0,
            replaced: HashSet::new(),
        };
        unfinished.look().map_err(failed)?;
        Ok((is_of_output || unfinished.has_end).then_some(unfinished))
    }

    /// Finds out which records count.
    fn look(&mut self) -> io::Result<()> {
        let mut columns: Option<Vec<u8>> = None;
        let mut errors = HashMap::new();
        let (columns_at, has_end, replaced) =
            (&mut self.columns_at, &mut self.has_end, &mut self.replaced);
        self.view.records(|record| -> io::Result<bool> {
            *has_end = record.kind == Kind::End;
            match record.kind {
                Kind::Columns if columns.as_ref() != Some(&record.bytes) => {
                    *columns_at = record.offset;
                    columns = Some(record.bytes);
                }
                Kind::Answer | Kind::Error => {
                    replaced.extend(errors.remove(&record.position));
                    if record.kind == Kind::Error {
                        errors.insert(record.position, record.offset);
                    }
                }
                Kind::Columns | Kind::Resumed | Kind::End | Kind::Media => {}
            }
            Ok(true)
        })?;
        self.view.rewind()
    }

    /// Prints the rows; with `follow` those to come too.
    ///
    /// # Errors
    /// The journal cannot be read, standard output not be written, or the run that is followed
    /// ended before its last row.
    pub fn show(
        mut self,
        rows: &mut Rows,
        follow: bool,
        output: Option<&Path>,
    ) -> Result<(), CliError> {
        self.print(rows)?;
        let mut quiet = 0;
        while follow && !self.has_end {
            rows.flush()?;
            sleep(POLL);
            // First: what comes before it is gone or given up is read below.
            let is_there = self.view.is_there();
            let works = is_there && (quiet < PATIENCE || self.view.is_written());
            match self.print(rows)? {
                0 => quiet += 1,
                _ => quiet = 0,
            }
            if !works && !self.has_end {
                return self.is_over(rows, output);
            }
        }
        Ok(())
    }

    /// The run has ended, and the journal has no end.
    fn is_over(&self, rows: &mut Rows, output: Option<&Path>) -> Result<(), CliError> {
        if !self.view.is_there() && rows.num_shown == 0 && output.is_some_and(Path::exists) {
            // Nothing was to be done, or it had no rows.
            return complete::show(output.expect("looked at above"), rows);
        }
        let message = format!("the run of {} ended before its last row", self.path.display());
        Err(CliError::new(Exit::Stopped, "stopped", message).help(
            "the command of the run continues it; `show` without --follow prints what it has",
        ))
    }

    /// Prints what came; how many records that were.
    fn print(&mut self, rows: &mut Rows) -> Result<u64, CliError> {
        let header = self.view.header().map_err(|error| unreadable(&self.path, &error))?;
        self.is_matrix = header.as_ref().is_some_and(is_matrix);
        let (mut count, mut has_end) = (0, self.has_end);
        let (is_matrix, columns_at, replaced) = (self.is_matrix, self.columns_at, &self.replaced);
        let read = self.view.records(|record| {
            count += 1;
            has_end |= record.kind == Kind::End;
            if record.offset >= columns_at && !replaced.contains(&record.offset) {
                print_record(&record, is_matrix, rows).map_err(Ended::Written)?;
            }
            Ok(true)
        });
        self.has_end = has_end;
        match read {
            Ok(()) => Ok(count),
            Err(Ended::Read(error)) => Err(unreadable(&self.path, &error)),
            Err(Ended::Written(error)) => Err(error),
        }
    }
}

fn print_record(record: &Viewed, is_matrix: bool, rows: &mut Rows) -> Result<(), CliError> {
    match record.kind {
        Kind::Columns => rows.header(&record.bytes),
        Kind::Answer if rows.wants(false) && is_matrix => {
            rows.row(&matrix_line(record.position, &record.bytes))
        }
        Kind::Answer if rows.wants(false) => rows.row(&record.bytes),
        Kind::Error => rows.row(&record.bytes),
        Kind::Answer | Kind::Resumed | Kind::End | Kind::Media => Ok(()),
    }
}

/// Whether rows of a run are those of a matrix.
fn is_matrix(header: &Header) -> bool {
    let format = header.fingerprint.fields.get("output_format");
    format.is_some_and(|format| format.ends_with(" npy"))
}
