//! `Previous`: the good rows of a complete output that a run goes on from: its input has more rows,
//! or its error rows are asked again. A row is found by its place where the rows of then are among
//! those of now, else by what the output shows of it, in the order of the input.

use std::io;
use std::path::Path;

use crate::ledger::meta::{Meta, TokenCounts};
use vllm_batch_dataset::input::fields::Passthrough;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::{FileFormat, FinishedRows, RowFormat};
use vllm_batch_dataset::terminal::error::CliError;

/// The rows of an output, one after the other.
pub struct Previous {
    rows: FinishedRows,
    /// The next good row that was not taken, and its place among all rows of the output.
    next: Option<(u64, Good)>,
    num_read: u64,
    finds_by: FindsBy,
    shard: Shard,
    /// The output is that of a sample: a row's position says nothing of its number.
    is_sample: bool,
    /// Of answers whose rows do not say how many they took.
    untold: TokenCounts,
}

/// How the answer of a row is known.
enum FindsBy {
    /// The rows of then are among those of now.
    Place(RowsThen),
    /// The input was edited.
    Fields,
    /// Error rows are in another file: a row's place says nothing of its place in the input.
    FieldsOfSome,
}

/// Where a row is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Among all rows of the input.
    pub index: u64,
    /// Its answer depends on its number.
    pub is_key: bool,
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
    /// Opens an output that is complete. `then`: the rows that it has, where they are those of then
    /// in the input of now.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path, meta: &Meta, then: Option<RowsThen>) -> Result<Self, CliError> {
        let name = path.display().to_string();
        let rows = FinishedRows::open(path, meta.format);
        let rows = rows.map_err(|error| CliError::from_input(error, &name))?;
        let is_matrix = meta.format == FileFormat::Npy;
        let finds_by = match (then, meta.errors.is_some() && !is_matrix) {
            (Some(then), false) => FindsBy::Place(then),
            (None, false) => FindsBy::Fields,
            (_, true) => FindsBy::FieldsOfSome,
        };
        let untold = if is_matrix { meta.tokens.clone() } else { TokenCounts::default() };
        let (shard, is_sample) = (meta.shard, meta.sample.is_some());
        Ok(Self { rows, next: None, num_read: 0, finds_by, shard, is_sample, untold })
    }

    /// Tokens of answers whose rows do not say how many they took.
    pub fn untold(&self) -> TokenCounts {
        self.untold.clone()
    }

    /// The good row of an input row.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn take(
        &mut self,
        passthrough: &Passthrough,
        format: &RowFormat,
        Place { index, is_key }: Place,
    ) -> io::Result<Option<Good>> {
        // Where it was in the output of then.
        let wanted = match &self.finds_by {
            FindsBy::Place(then) => {
                let place = then.place(index).filter(|place| self.shard.owns(*place));
                let Some(place) = place else { return Ok(None) };
                Some(place / self.shard.count)
            }
            FindsBy::Fields | FindsBy::FieldsOfSome => None,
        };
        let is_past = |next: &Option<(u64, Good)>| {
            let place = next.as_ref().map(|(place, _)| *place);
            place.is_none_or(|place| wanted.is_some_and(|wanted| place < wanted))
        };
        while is_past(&self.next) {
            self.next = self.read_good()?;
            if self.next.is_none() {
                return Ok(None);
            }
        }
        let knows_numbers = !self.is_sample && matches!(self.finds_by, FindsBy::Fields);
        let (count, first) = (self.shard.count, self.shard.index);
        let has_number = |place: u64| knows_numbers && place * count + first == index;
        let is_it = |(place, good): &mut (u64, Good)| match wanted {
            Some(wanted) => *place == wanted && format.may_answer(passthrough, &good.row),
            None if is_key && !has_number(*place) => false,
            None => format.answers(passthrough, &good.row),
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
