//! `--sample N`: a random part of an input's rows, in their order. Which rows it has is a function
//! of the seed and of how many rows there are, so it is the same on every machine; and the rows of
//! a smaller sample are among those of a larger one.

use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use vllm_batch_base::split_mix::{GAMMA, mix};

use super::files;
use super::reader::HeaderNames;
use super::sources::Sources;
use crate::terminal::error::CliError;

/// `--sample`, `--sample-seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Number of rows, or all if there are fewer.
    pub rows: u64,
    /// Seed of the choice.
    pub seed: u64,
}

impl Sample {
    /// The sample of an input of so many rows.
    pub fn of(self, num_rows: u64) -> Sampled {
        Sampled { rows: self.rows, seed: self.seed, of: num_rows }
    }
}

/// The sample of an input that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// `--sample`.
    pub rows: u64,
    /// `--sample-seed`.
    pub seed: u64,
    /// Rows that it was taken from.
    pub of: u64,
}

impl Sampled {
    /// The numbers of its rows, from 0, in their order: those with the lowest ranks.
    pub fn indices(self) -> Vec<u64> {
        if self.rows >= self.of {
            return (0..self.of).collect();
        }
        let mut lowest = BinaryHeap::new();
        for index in 0..self.of {
            let ranked = (rank(self.seed, index), index);
            if (lowest.len() as u64) < self.rows {
                lowest.push(ranked);
            } else if lowest.peek().is_some_and(|highest| ranked < *highest) {
                lowest.pop();
                lowest.push(ranked);
            }
        }
        let mut indices: Vec<u64> = lowest.into_iter().map(|(_, index)| index).collect();
        indices.sort_unstable();
        indices
    }
}

/// Where a row would be in the input if it was shuffled. Changing this changes every
/// sample.
fn rank(seed: u64, index: u64) -> u64 {
    mixed(mixed(seed) ^ index)
}

fn mixed(seed: u64) -> u64 {
    mix(seed.wrapping_add(GAMMA))
}

/// The rows that a sample has, in their order.
#[derive(Debug)]
pub struct Chosen {
    /// Sample of the input.
    pub sampled: Sampled,
    /// Numbers of rows, ascending.
    pub indices: Vec<u64>,
}

/// Picks the records of an input that are in its sample, one after the other.
#[derive(Debug)]
pub struct Picker {
    chosen: Arc<Chosen>,
    num_read: u64,
    num_picked: usize,
}

impl Picker {
    /// Before the first record.
    pub fn new(chosen: Arc<Chosen>) -> Self {
        Self { chosen, num_read: 0, num_picked: 0 }
    }

    /// Whether no record that may come is in the sample.
    pub fn is_done(&self) -> bool {
        self.num_picked == self.chosen.indices.len()
    }

    /// Whether the next record is.
    pub fn picks_next(&mut self) -> bool {
        let picks = self.chosen.indices.get(self.num_picked) == Some(&self.num_read);
        self.num_read += 1;
        self.num_picked += usize::from(picks);
        picks
    }
}

/// The sample of an input's files. They are read to their end once to find it.
#[derive(Debug)]
pub struct SampledInput {
    sample: Sample,
    /// `--limit`: it is taken from so many rows at the beginning.
    limit: Option<u64>,
    sources: Arc<Sources>,
    chosen: OnceLock<Result<Arc<Chosen>, CliError>>,
}

impl SampledInput {
    /// # Errors
    /// An input can be read once only.
    pub fn new(
        sample: Sample,
        limit: Option<u64>,
        sources: Arc<Sources>,
    ) -> Result<Self, CliError> {
        let is_stream = |path: &Path| path.exists() && !path.is_file() && !path.is_dir();
        let stream = sources
            .list()
            .iter()
            .filter(|source| source.object.is_none() && source.pictures.is_none())
            .find(|source| source.path.as_deref().is_none_or(is_stream));
        match stream {
            None => Ok(Self { sample, limit, sources, chosen: OnceLock::new() }),
            Some(source) => {
                let name = &source.name;
                let message = format!("--sample: {name} is a stream, and would be read twice");
                Err(CliError::refused("input", message).help(
                    "write it to a file and name that with -i; --limit N takes the first rows",
                ))
            }
        }
    }

    /// The rows; the files are read at the first call. `names`: columns by which tables are known.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn chosen(&self, names: &HeaderNames) -> Result<Arc<Chosen>, CliError> {
        let choose = || {
            let limit = self.limit.unwrap_or(u64::MAX);
            let num_rows = files::count(&self.sources, names, limit)?;
            let sampled = self.sample.of(num_rows);
            Ok(Arc::new(Chosen { sampled, indices: sampled.indices() }))
        };
        self.chosen.get_or_init(choose).clone()
    }
}

/// The rows that an earlier run had of an input, by their numbers in it.
#[derive(Debug)]
pub enum RowsThen {
    /// Number of rows from the beginning.
    First(u64),
    /// A sample of them.
    Sample(Vec<u64>),
}

impl RowsThen {
    /// The place of a row among them.
    pub fn place(&self, index: u64) -> Option<u64> {
        match self {
            RowsThen::First(rows) => Some(index).filter(|index| index < rows),
            RowsThen::Sample(indices) => {
                indices.binary_search(&index).ok().map(|place| place as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(rows: u64, seed: u64, of: u64) -> Vec<u64> {
        Sample { rows, seed }.of(of).indices()
    }

    /// These numbers are an interface: a run with a larger sample goes on from a smaller one.
    #[test]
    fn samples_stay_the_same_and_grow() {
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf, "splitmix64, as published");
        let small = indices(20, 0, 1000);
        assert_eq!(small.len(), 20);
        assert!(small.is_sorted());
        for (rows, seed) in [(100, 0), (999, 0), (1000, 0), (5000, 0)] {
            let large = indices(rows, seed, 1000);
            assert_eq!(large.len() as u64, rows.min(1000));
            assert!(small.iter().all(|index| large.contains(index)), "{rows}");
        }
        assert_ne!(small, indices(20, 1, 1000));
        assert_eq!(indices(3, 0, 3), [0, 1, 2]);
        assert!(indices(3, 0, 0).is_empty());
    }

    #[test]
    fn every_row_is_as_likely_as_another() {
        let mut counts = [0; 10];
        for seed in 0..2000 {
            indices(3, seed, 10).into_iter().for_each(|index| counts[index as usize] += 1);
        }
        // 600 of each on the mean, with a deviation of 20.
        assert!(counts.iter().all(|count| (520..680).contains(count)), "{counts:?}");
    }

    #[test]
    fn rows_of_an_earlier_run_have_places() {
        assert_eq!([0, 2, 3].map(|row| RowsThen::First(3).place(row)), [Some(0), Some(2), None]);
        let sample = RowsThen::Sample(vec![2, 5, 9]);
        assert_eq!([2, 3, 9].map(|row| sample.place(row)), [Some(0), None, Some(2)]);
    }
}
