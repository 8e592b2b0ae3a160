//! `Previous`: the good rows of a complete output that a run goes on from: its input has more rows,
//! or its error rows are asked again. A row is found by its place where the input begins as it did
//! then, else by what the output shows of it, in the order of the input.

use std::io;
use std::path::Path;

use crate::cli::input::fields::Passthrough;
use crate::cli::ledger::meta::{Meta, TokenCounts};
use crate::cli::output::{FileFormat, FinishedRows, RowFormat};
use crate::cli::terminal::error::CliError;

/// The rows of an output, one after the other.
pub struct Previous {
    rows: FinishedRows,
    /// The next good row that was not taken, and its place among all rows of the output.
    next: Option<(u64, Good)>,
    num_read: u64,
    finds_by: FindsBy,
    /// Of answers whose rows do not say how many they took.
    untold: TokenCounts,
}

/// How the answer of a row is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FindsBy {
    /// The input begins with the rows that it had then.
    Place,
    /// The input was edited.
    Fields,
    /// Error rows are in another file: a row's place says nothing of its place in the input.
    FieldsOfSome,
}

/// A row with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Good {
    /// Its bytes, line end included.
    pub row: Vec<u8>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
}

impl Previous {
    /// Opens an output that is complete. `is_prefix`: the input begins with the rows that it had.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path, meta: &Meta, is_prefix: bool) -> Result<Self, CliError> {
        let name = path.display().to_string();
        let rows = FinishedRows::open(path, meta.format);
        let rows = rows.map_err(|error| CliError::from_input(error, &name))?;
        let is_matrix = meta.format == FileFormat::Npy;
        let finds_by = match (is_prefix, meta.errors.is_some() && !is_matrix) {
            (true, false) => FindsBy::Place,
            (false, false) => FindsBy::Fields,
            (_, true) => FindsBy::FieldsOfSome,
        };
        let untold = if is_matrix { meta.tokens.clone() } else { TokenCounts::default() };
        Ok(Self { rows, next: None, num_read: 0, finds_by, untold })
    }

    /// Tokens of answers whose rows do not say how many they took.
    pub fn untold(&self) -> TokenCounts {
        self.untold.clone()
    }

    /// The good row of an input row at this position of the output. `by_place`: its answer depends
    /// on the position.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn take(
        &mut self,
        passthrough: &Passthrough,
        format: &RowFormat,
        (position, by_place): (u64, bool),
    ) -> io::Result<Option<Good>> {
        let finds_by = self.finds_by;
        let is_past = |next: &Option<(u64, Good)>| {
            let place = next.as_ref().map(|(place, _)| *place);
            place.is_none_or(|place| finds_by == FindsBy::Place && place < position)
        };
        while is_past(&self.next) {
            self.next = self.read_good()?;
            if self.next.is_none() {
                return Ok(None);
            }
        }
        let is_it = |(place, good): &mut (u64, Good)| match finds_by {
            FindsBy::Place => *place == position && format.may_answer(passthrough, &good.row),
            FindsBy::FieldsOfSome if by_place => false,
            FindsBy::Fields | FindsBy::FieldsOfSome => {
                (!by_place || *place == position) && format.answers(passthrough, &good.row)
            }
        };
        Ok(self.next.take_if(is_it).map(|(_, good)| good))
    }

    fn read_good(&mut self) -> io::Result<Option<(u64, Good)>> {
        while let Some(row) = self.rows.next_row()? {
            let place = self.num_read;
            self.num_read += 1;
            if let Some((input_tokens, output_tokens)) = row.tokens {
                let row = row.bytes;
                return Ok(Some((place, Good { row, input_tokens, output_tokens })));
            }
        }
        Ok(None)
    }
}
