//! What a run has finished, and what it was made of: journal, files of the output, side file,
//! fingerprints and hashes of rows. Knows no model and no run.
//!
//! Rows come into the `Ledger` in any order; each goes into the journal, and from there or from
//! memory into the output when all before it are out. The one owner of an output's files while a
//! run goes on.
//!
//! The order of operations is what makes a crash harmless: a journal's header is durable before its
//! records, the output and an `End` record before the rename, the names before the journal goes. So
//! an output has its name only when it is complete, and until then its rows are in the journal.

pub mod claim;
pub mod document;
pub mod error;
pub mod fetched_media;
pub mod files;
pub mod fingerprint;
pub mod journal;
pub mod journal_view;
pub mod locked_output;
pub mod meta;
pub mod names;
pub mod output;
pub mod plain_values;
pub mod record;
pub mod recovered;
pub mod remote;
pub mod row_hash;
pub mod row_key;
pub mod scan;
mod spill;
pub mod storage;
mod table;
#[cfg(test)]
mod tests;
pub mod watched_file;

use std::collections::VecDeque;
use std::path::Path;

use self::claim::Claim;
pub use self::document::Document;
pub use self::error::LedgerError;
use self::journal::{Found, Journal, Location, LockedJournal};
pub use self::locked_output::{LedgerOptions, LockedOutput, Outputs};
pub use self::names::Named;
use self::output::{Facts, Output};
use self::record::{Header, Kind, Record};
pub use self::recovered::{Recovered, Reused};
use self::spill::Spill;
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::output::parquet::Table;

/// Bytes of rows that wait for an earlier one and stay in memory; the others wait on disk.
const MAX_HELD: usize = 32 << 20;

/// Hash of everything that a row's bytes depend on and that is the row's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowHash(pub [u8; 16]);

/// A finished row.
#[derive(Clone, Debug)]
pub struct Finished {
    /// 0, 1, 2, ... in the output.
    pub position: u64,
    /// Of what was asked.
    pub hash: RowHash,
    /// The word of its error.
    pub code: Option<&'static str>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
    /// Its bytes, newline included.
    pub row: Vec<u8>,
    /// Its images at URLs, as `fetched_media` has them.
    pub media: Vec<u8>,
}

/// Where finished rows are kept until they are out.
enum Book {
    /// Standard output without a journal: on disk only what memory does not hold.
    Spill(Spill),
    /// Nothing is written yet; the header of a new journal.
    New(LockedJournal, Header),
    /// Nothing is written yet behind what was found.
    Continued(LockedJournal, Found),
    /// Rows are written.
    Open(Journal),
}

/// A row that waits for an earlier one.
struct Waiting {
    /// Its bytes, if memory holds them.
    row: Option<Vec<u8>>,
    /// Where else they are.
    location: Location,
    is_error: bool,
}

/// The files of a run, while it goes on.
pub struct Ledger {
    /// None while it changes.
    book: Option<Book>,
    output: Output,
    /// The header line of a CSV, for the journal.
    columns: Vec<u8>,
    /// `--errors`: where error rows go instead.
    errors: Option<Output>,
    /// Position of the row to emit next: as many rows are out.
    next: u64,
    /// From `next` on.
    waiting: VecDeque<Option<Waiting>>,
    held_bytes: usize,
    /// Rows go out as they come.
    in_any_order: bool,
    /// Its name is this run's from before the first row on.
    side_file: Option<Claim>,
    num_resumes: u64,
}

/// What the side file says of the output's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The output.
    pub output: Facts,
    /// How it is compressed.
    pub compression: Compression,
    /// The file of `--errors`.
    pub errors: Option<Facts>,
    /// How often the run was continued.
    pub num_resumes: u64,
}

impl Ledger {
    /// Takes a CSV header, before the first row.
    pub fn write_header(&mut self, bytes: &[u8]) {
        self.output.write_header(bytes);
        self.columns = bytes.to_vec();
        if let Some(errors) = &mut self.errors {
            errors.write_header(bytes);
        }
    }

    /// Makes a matrix of NumPy's of the output, before the first row: error rows are NaN in it.
    ///
    /// `width`: values of a row.
    ///
    /// # Panics
    /// It is no file, or there is no file of errors.
    pub fn begin_matrix(&mut self, width: usize) {
        assert!(self.errors.is_some(), "a matrix shows no errors");
        self.output.begin_matrix(width);
    }

    /// Makes rows go out as they come, before the first row.
    ///
    /// # Panics
    /// There is a journal, a file, or a file of errors: they promise the order of the input.
    pub fn emit_in_any_order(&mut self) {
        let is_stream = self.output.part().is_none() && self.errors.is_none();
        assert!(is_stream && matches!(self.book, Some(Book::Spill(_))), "files are in order");
        self.in_any_order = true;
    }

    /// Makes a Parquet file of the output, before the first row.
    ///
    /// # Panics
    /// It is no file.
    pub fn begin_table(&mut self, table: Table) {
        self.output.begin_table(table);
    }

    /// Hands a piece of the row whose turn it is to the system: `push` takes the row whole.
    ///
    /// # Errors
    /// It cannot be written. Nothing more may follow.
    pub fn begin_row(&mut self, piece: &[u8]) -> Result<(), LedgerError> {
        self.output.begin_row(piece)
    }

    /// Takes a row that has just finished; emits it and those that waited for it, when its turn has
    /// come.
    ///
    /// # Errors
    /// Journal or output cannot be written. Nothing more may follow.
    pub fn push(&mut self, finished: Finished) -> Result<(), LedgerError> {
        let Finished { position, hash, code, input_tokens, output_tokens, row, media } = finished;
        if self.in_any_order {
            self.next += 1;
            return self.output.emit(&row);
        }
        let is_error = code.is_some();
        let kind = if is_error { Kind::Error } else { Kind::Answer };
        let code = code.unwrap_or_default();
        let is_next = position == self.next;
        let keep = is_next || self.held_bytes + row.len() <= MAX_HELD;
        let location = match self.book()? {
            Book::Open(journal) => {
                if !media.is_empty() {
                    let mark = Record::mark(Kind::Media, &media);
                    journal.append(&Record { position, hash, ..mark })?;
                }
                let row = &row;
                journal.append(&Record {
                    kind,
                    position,
                    hash,
                    input_tokens,
                    output_tokens,
                    code,
                    row,
                })?
            }
            Book::Spill(_) if keep => Location { offset: 0, length: row.len() as u64 },
            Book::Spill(spill) => spill.append(&row)?,
            Book::New(..) | Book::Continued(..) => unreachable!("opened above"),
        };
        let row = keep.then_some(row);
        self.place(position, Waiting { row, location, is_error })
    }

    /// Takes a row that an earlier run finished.
    ///
    /// # Errors
    /// As `push`.
    pub fn reuse(&mut self, position: u64, reused: &Reused) -> Result<(), LedgerError> {
        let is_error = reused.code.is_some();
        self.place(position, Waiting { row: None, location: reused.location, is_error })
    }

    fn place(&mut self, position: u64, row: Waiting) -> Result<(), LedgerError> {
        assert!(position >= self.next, "row {position} was emitted before");
        if position > self.next {
            let index = (position - self.next) as usize;
            if self.waiting.len() <= index {
                self.waiting.resize_with(index + 1, || None);
            }
            self.held_bytes += row.row.as_ref().map_or(0, Vec::len);
            let twice = self.waiting[index].replace(row);
            assert!(twice.is_none(), "row {position} came twice");
            return Ok(());
        }
        assert!(self.waiting.front().is_none_or(Option::is_none), "row {position} came twice");
        self.waiting.pop_front();
        self.emit(row)?;
        while let Some(Some(_)) = self.waiting.front() {
            let row = self.waiting.pop_front().flatten().expect("looked at above");
            self.held_bytes -= row.row.as_ref().map_or(0, Vec::len);
            self.emit(row)?;
        }
        Ok(())
    }

    fn emit(&mut self, waiting: Waiting) -> Result<(), LedgerError> {
        self.next += 1;
        let row = match waiting.row {
            Some(row) => row,
            None => match self.book.as_mut().expect("it is there between calls") {
                Book::Spill(spill) => spill.read(waiting.location)?,
                Book::Open(journal) => journal.read(waiting.location)?,
                Book::New(journal, _) | Book::Continued(journal, _) => {
                    journal.read_row(waiting.location)?
                }
            },
        };
        match &mut self.errors {
            Some(errors) if waiting.is_error => {
                errors.emit(&row)?;
                self.output.emit_hole()
            }
            _ => self.output.emit(&row),
        }
    }

    /// Rows that are out, or in the file of errors.
    pub fn emitted(&self) -> u64 {
        self.next
    }

    /// Rows that came before their turn.
    pub fn num_waiting(&self) -> usize {
        self.waiting.iter().flatten().count()
    }

    /// Whether a finished row is not durable yet. Without a journal none ever is.
    pub fn is_unsynced(&self) -> bool {
        matches!(&self.book, Some(Book::Open(journal)) if journal.is_unsynced())
    }

    /// Makes every finished row durable.
    ///
    /// # Errors
    /// The system does not say so.
    pub fn sync(&mut self) -> Result<(), LedgerError> {
        match &mut self.book {
            Some(Book::Open(journal)) => journal.sync(),
            _ => Ok(()),
        }
    }

    /// Hands everything to the system that is in order: call it when no further row is immediately
    /// ready.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        if let Some(Book::Open(journal)) = &mut self.book {
            journal.flush()?;
        }
        self.output.flush()?;
        self.errors.as_mut().map_or(Ok(()), Output::flush)
    }

    /// Ends a run whose output failed: what is finished is kept where the journal takes it.
    pub fn rescue(mut self) {
        if matches!(&self.book, Some(Book::Open(journal)) if journal.is_usable()) {
            // It failed already, and that is reported.
            let _ = self.sync();
        }
    }

    /// Ends a run that is not complete: what is finished is kept.
    ///
    /// # Errors
    /// It cannot be written or synced.
    pub fn stop(mut self) -> Result<(), LedgerError> {
        self.sync()?;
        self.flush()
    }

    /// Ends a complete run: the outputs get their names, and the side file with the text that
    /// `side_text` makes of them. The journal goes last.
    ///
    /// # Errors
    /// Anything of that fails. The same command does the rest.
    pub fn finish(mut self, side_text: impl FnOnce(&Totals) -> String) -> Result<(), LedgerError> {
        assert!(self.waiting.is_empty(), "row {} never came", self.next);
        let totals = match self.complete_outputs() {
            Ok(totals) => totals,
            Err(error) => {
                self.rescue();
                return Err(error);
            }
        };
        self.book()?;
        let mut journal = match self.book.take() {
            Some(Book::Open(journal)) => Some(journal),
            _ => None,
        };
        let text = side_text(&totals);
        if let Some(journal) = &mut journal {
            // From here on the outputs are whole, whatever happens to their names.
            journal.append(&Record::mark(Kind::End, text.as_bytes()))?;
            journal.sync()?;
        }
        if let Some(errors) = &self.errors {
            errors.publish()?;
        }
        self.output.publish()?;
        if let Some(side_file) = self.side_file.take() {
            side_file.publish_text(&text)?;
        }
        journal.map_or(Ok(()), Journal::remove)
    }

    fn complete_outputs(&mut self) -> Result<Totals, LedgerError> {
        Ok(Totals {
            output: self.output.complete()?,
            compression: self.output.compression(),
            errors: self.errors.as_mut().map(Output::complete).transpose()?,
            num_resumes: self.num_resumes,
        })
    }

    /// The file that holds the first rows of an unfinished run.
    pub fn part(&self) -> Option<&Path> {
        self.output.part()
    }

    /// Where rows are written down, ready for them.
    fn book(&mut self) -> Result<&mut Book, LedgerError> {
        let mut journal = match self.book.take().expect("it is there between calls") {
            Book::New(locked, header) => locked.create(&header)?,
            Book::Continued(locked, found) => locked.resume(&found)?,
            open => return Ok(self.book.insert(open)),
        };
        if !self.columns.is_empty() {
            journal.append(&Record::mark(Kind::Columns, &self.columns))?;
        }
        Ok(self.book.insert(Book::Open(journal)))
    }
}
