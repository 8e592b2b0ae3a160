//! `Previous`: the good rows of a complete output that a run goes on from: its input has more rows,
//! or its error rows are asked again. A row is found by its place where the rows of then are among
//! those of now, else by what the output shows of it, in the order of the input.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::ledger::meta::{Meta, TokenCounts};
use vllm_batch_dataset::input::fields::Passthrough;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::{FileFormat, FinishedRows, RowFormat};
use vllm_batch_dataset::terminal::error::CliError;

/// Good rows among which a row of an edited input is looked for, wherever it is now.
const NEAR: usize = 64;

/// Good rows that are kept at once, and their bytes: rows in the place of as many may be edited.
const MAX_KEPT: (usize, usize) = (4096, 64 << 20);

/// The rows of an output, one after the other.
pub struct Previous {
    rows: FinishedRows,
    /// Good rows that were read and not taken, with their places among all rows of the output.
    kept: VecDeque<(u64, Good)>,
    num_bytes: usize,
    is_read: bool,
    num_read: u64,
    finds_by: FindsBy,
    shard: Shard,
    /// The output is that of a sample: a row's position says nothing of its number.
    is_sample: bool,
    /// The input was compared with that of then, images and all.
    knows_images: bool,
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
    /// It has images, which its output does not show.
    pub has_images: bool,
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
        let knows_images = then.is_some();
        let finds_by = match (then, meta.errors.is_some() && !is_matrix) {
            (Some(then), false) => FindsBy::Place(then),
            (None, false) => FindsBy::Fields,
            (_, true) => FindsBy::FieldsOfSome,
        };
        let untold = if is_matrix { meta.tokens.clone() } else { TokenCounts::default() };
        let (shard, is_sample) = (meta.shard, meta.sample.is_some());
        let kept = VecDeque::new();
        let (num_bytes, is_read, num_read) = (0, false, 0);
        Ok(Self {
            rows,
            kept,
            num_bytes,
            is_read,
            num_read,
            finds_by,
            shard,
            is_sample,
            knows_images,
            untold,
        })
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
        Place { index, is_key, has_images }: Place,
    ) -> io::Result<Option<Good>> {
        if has_images && !self.knows_images {
            // Its fields may be those of then, and its images others.
            return Ok(None);
        }
        let good = match &self.finds_by {
            FindsBy::Place(then) => {
                // Where it was in the output of then.
                let place = then.place(index).filter(|place| self.shard.owns(*place));
                let Some(place) = place.map(|place| place / self.shard.count) else {
                    return Ok(None);
                };
                self.at(place, |good| format.may_answer(passthrough, &good.row))
            }
            FindsBy::Fields | FindsBy::FieldsOfSome => {
                let (count, first) = (self.shard.count, self.shard.index);
                let knows_numbers = !self.is_sample && matches!(self.finds_by, FindsBy::Fields);
                let place = knows_numbers.then(|| index.saturating_sub(first) / count);
                let is_it = |(of_row, good): &(u64, Good)| {
                    let has_number = place == Some(*of_row) && of_row * count + first == index;
                    (!is_key || has_number) && format.answers(passthrough, &good.row)
                };
                self.among_near(place, is_it)
            }
        }?;
        Ok(good.map(|good| Good { row: format.taken_over(good.row), ..good }))
    }

    /// The good row of a place.
    fn at(&mut self, place: u64, is_it: impl Fn(&Good) -> bool) -> io::Result<Option<Good>> {
        while self.kept.front().is_none_or(|(known, _)| *known < place) {
            self.pop();
            if !self.keep_next()? {
                return Ok(None);
            }
        }
        let is_there = |(known, good): &(u64, Good)| *known == place && is_it(good);
        Ok(if self.kept.front().is_some_and(is_there) { self.pop() } else { None })
    }

    /// The good row that shows a row: one of the next ones, or the one in its place. Those before
    /// it are of rows that were edited or are gone.
    fn among_near(
        &mut self,
        place: Option<u64>,
        is_it: impl Fn(&(u64, Good)) -> bool,
    ) -> io::Result<Option<Good>> {
        let (max_rows, max_bytes) = MAX_KEPT;
        let is_near = |kept: &VecDeque<(u64, Good)>| {
            let reaches = |place| kept.back().is_some_and(|(last, _)| *last >= place);
            kept.len() >= NEAR && place.is_none_or(reaches)
        };
        while !is_near(&self.kept)
            && self.kept.len() < max_rows
            && (self.kept.is_empty() || self.num_bytes < max_bytes)
            && self.keep_next()?
        {}
        let in_place = place
            .and_then(|place| self.kept.binary_search_by_key(&place, |(known, _)| *known).ok());
        let mut near = (0..self.kept.len().min(NEAR)).chain(in_place);
        let Some(found) = near.find(|at| is_it(&self.kept[*at])) else { return Ok(None) };
        for _ in 0..found {
            self.pop();
        }
        Ok(self.pop())
    }

    fn pop(&mut self) -> Option<Good> {
        let (_, good) = self.kept.pop_front()?;
        self.num_bytes -= good.row.len();
        Some(good)
    }

    /// Reads the next good row; false: there is none.
    fn keep_next(&mut self) -> io::Result<bool> {
        let next = if self.is_read { None } else { self.read_good()? };
        self.is_read = next.is_none();
        self.num_bytes += next.as_ref().map_or(0, |(_, good)| good.row.len());
        self.kept.extend(next);
        Ok(!self.is_read)
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
