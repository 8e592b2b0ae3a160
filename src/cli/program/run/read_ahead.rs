//! `Reading`: rows of files that are read a little ahead, so that their images are decoded while
//! those before them are tokenized. A pipe is read row by row: its next row may wait for an answer.

use std::collections::{HashSet, VecDeque};

use super::read::{Input, Parsed};
use crate::config::{InputConfig, RunConfig};
use crate::ledger::row_hash::InputDigest;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::input_processor::{DecodedAhead, InputProcessor};

/// Rows that are read ahead at most.
const MAX_ROWS: usize = 64;

/// Bytes of them, unless a single row has more.
const MAX_BYTES: usize = 64 << 20;

/// A row that was read.
pub struct ReadRow {
    /// The row.
    pub parsed: Parsed,
    /// What outputs of this row and those behind it depend on, of good and of bad ones, where it is
    /// another than before.
    pub shapes: Option<[String; 2]>,
    /// It is of this shard.
    pub is_own: bool,
    /// Its images, which are decoded meanwhile.
    ahead: DecodedAhead,
}

/// Rows that were read and not fed.
pub struct Reading<'a> {
    config: &'a InputConfig,
    rows: VecDeque<ReadRow>,
    num_bytes: usize,
    /// Rows whose images are decoded.
    num_ahead: usize,
    /// Of all rows that were read.
    pub digest: InputDigest,
    /// No row comes any more.
    pub is_at_end: bool,
}

impl<'a> Reading<'a> {
    /// Nothing was read.
    pub fn new(run: &'a RunConfig) -> Self {
        let (rows, digest) = Default::default();
        Self { config: &run.input, rows, num_bytes: 0, num_ahead: 0, digest, is_at_end: false }
    }

    /// Reads at least a row, and as many more as images can be decoded of.
    ///
    /// # Errors
    /// The input cannot be read. What was read before can be fed.
    pub fn fill(
        &mut self,
        input: &mut Input,
        console: &Console,
        processor: &InputProcessor,
        decodes_ahead: bool,
    ) -> Result<(), CliError> {
        while !self.is_at_end && !self.is_full() {
            if self.config.limit.is_some_and(|limit| self.digest.num_rows() >= limit) {
                self.is_at_end = true;
                return Ok(());
            }
            let next = input.next_row().map_err(|error| match error {
                // Rows are finished: it is no refusal, and the same command continues.
                error if self.digest.num_rows() > 0 => CliError { exit: Exit::Stopped, ..error },
                error => error,
            })?;
            let Some(parsed) = next else {
                self.is_at_end = true;
                return Ok(());
            };
            let may_differ = input.take_notes();
            input.say_notes(console);
            let shapes = may_differ.then(|| [input.shape_text(), input.shape_text_of_bad()]);
            // Shards share out the rows of a sample, not those of all the input.
            let is_own = self.config.shard.owns(self.digest.num_rows());
            parsed.add_to(&mut self.digest, &HashSet::new());
            let ahead = match &parsed.row {
                // Most rows with images of an earlier run are finished, and need none of them.
                Ok(row) if decodes_ahead && is_own && !row.is_recalled => {
                    processor.decode_ahead(&row.prompt)
                }
                _ => DecodedAhead::default(),
            };
            self.num_bytes += parsed.bytes;
            self.num_ahead += usize::from(!ahead.is_empty());
            self.rows.push_back(ReadRow { parsed, shapes, is_own, ahead });
        }
        Ok(())
    }

    /// The next row to feed; None: more are read first, unless it is `all` that there are.
    pub fn next(&mut self, all: bool) -> Option<ReadRow> {
        if !all && !self.is_full() {
            return None;
        }
        let next = self.rows.pop_front()?;
        self.num_bytes -= next.parsed.bytes;
        self.num_ahead -= usize::from(!next.ahead.is_empty());
        Some(next)
    }

    /// Rows wait for nothing where none of them has an image, nor where the next one may not be
    /// there yet.
    fn is_full(&self) -> bool {
        let waits = self.config.sources.are_files() && self.num_ahead > 0;
        !self.rows.is_empty()
            && (!waits || self.rows.len() >= MAX_ROWS || self.num_bytes >= MAX_BYTES)
    }
}
