//! The rows of a benchmark: random token ids from a seed, or a dataset.

use std::sync::Arc;

use crate::config::InputConfig;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{LoraId, SamplingParams};
use vllm_batch_dataset::input::files::{self, Files};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// A row to run.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchRow {
    /// Its prompt.
    pub prompt: Prompt,
    /// Tokens to generate, exactly.
    pub num_tokens: u32,
    /// Its `max_tokens`, if it ends before by an end of text.
    pub max_tokens: Option<u32>,
    /// The adapter that it is computed with.
    pub lora: Option<LoraId>,
}

/// Which random rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomRows {
    /// Rows.
    pub num_prompts: usize,
    /// Tokens that all prompts begin with.
    pub prefix_len: usize,
    /// Tokens of a prompt after them.
    pub input_len: usize,
    /// Rows whose prompts are longer, and their tokens.
    pub long: (usize, usize),
    /// Tokens to generate.
    pub output_len: u32,
    /// Rows end by an end of text.
    pub end_of_text: bool,
    /// Lengths vary by this share, [0, 1).
    pub range_ratio: f64,
    /// Rows are a function of it.
    pub seed: u64,
    /// Adapters that rows are computed with, in turn.
    pub num_loras: u32,
}

/// Streams of random numbers: rows do not change when warm-ups are asked for.
const LENGTHS: u64 = 1;
const PROMPTS: u64 = 2;
const WARMUPS: u64 = 3;
const PREFIX: u64 = 4;

impl RandomRows {
    /// (prompt, output) lengths of the rows, without what all begin with. As vLLM, both vary evenly
    /// over `len * (1 - ratio) ..= len * (1 + ratio)`, rounded outwards, and are at least 1. Long
    /// prompts do not vary.
    pub fn lengths(&self) -> Vec<(usize, u32)> {
        let mut random = Random::new(self.seed, LENGTHS);
        let mut vary = |len: usize| {
            let low = (len as f64 * (1.0 - self.range_ratio)).floor().max(1.0) as u64;
            (low + random.below(self.most(len) - low + 1)) as usize
        };
        let (num_long, long_len) = self.long;
        let num_long_of = |num_rows: usize| num_rows * num_long / self.num_prompts.max(1);
        let is_long = |index: usize| num_long_of(index + 1) > num_long_of(index);
        let mut row = || {
            let (input_len, output_len) = (vary(self.input_len), vary(self.output_len as usize));
            // One output token is what prefill means, not a length that may vary.
            (input_len, if self.output_len == 1 { 1 } else { output_len as u32 })
        };
        let with_long = |index| match row() {
            (_, output_len) if is_long(index) => (long_len, output_len),
            lengths => lengths,
        };
        (0..self.num_prompts).map(with_long).collect()
    }

    /// The longest that a length varies to.
    fn most(&self, len: usize) -> u64 {
        (len as f64 * (1.0 + self.range_ratio)).ceil() as u64
    }

    /// The rows.
    pub fn rows(&self, vocab_size: usize) -> Vec<BenchRow> {
        let mut rows =
            random_rows(&self.lengths(), (self.seed, PROMPTS), vocab_size, self.num_loras);
        let prefix = random_ids(&mut Random::new(self.seed, PREFIX), self.prefix_len, vocab_size);
        let most = self.most(self.output_len as usize) as u32;
        for row in &mut rows {
            if let Prompt::TokenIds(ids) = &mut row.prompt {
                ids.splice(0..0, prefix.iter().copied());
            }
            // More than the longest, so that none is ended by its length.
            row.max_tokens = self.end_of_text.then_some(most + 1);
        }
        rows
    }
}

/// Rows to run first: as long as the measured ones, with other tokens, so that the prefix cache
/// cannot answer from them.
pub fn warmups(
    lengths: &[(usize, u32)],
    num_rows: usize,
    (seed, num_loras): (u64, u32),
    vocab_size: usize,
) -> Vec<BenchRow> {
    let lengths: Vec<_> = lengths.iter().copied().cycle().take(num_rows).collect();
    random_rows(&lengths, (seed, WARMUPS), vocab_size, num_loras)
}

fn random_rows(
    lengths: &[(usize, u32)],
    (seed, stream): (u64, u64),
    vocab_size: usize,
    num_loras: u32,
) -> Vec<BenchRow> {
    let mut random = Random::new(seed, stream);
    let row = |(index, &(input_len, num_tokens)): (usize, &(usize, u32))| {
        let ids = random_ids(&mut random, input_len, vocab_size);
        let lora = (index as u32).checked_rem(num_loras).map(LoraId);
        BenchRow { prompt: Prompt::TokenIds(ids), num_tokens, max_tokens: None, lora }
    };
    lengths.iter().enumerate().map(row).collect()
}

fn random_ids(random: &mut Random, len: usize, vocab_size: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(vocab_size as u64) as u32).collect()
}

/// The rows of a dataset, read as `run` reads them. Of their parameters only `max_tokens` counts;
/// a row without it gets `output_len`.
///
/// # Errors
/// The file cannot be read, or has a bad row, or none.
pub fn dataset(
    input: &InputConfig,
    num_prompts: Option<usize>,
    output_len: u32,
) -> Result<Vec<BenchRow>, CliError> {
    let sources = &input.sources;
    let first = files::open(sources, &input.rows)?;
    let mut files = Files::new(Arc::clone(sources), first, &input.rows)?;
    let base = SamplingParams { max_tokens: Some(output_len), ..SamplingParams::default() };
    let mut rows = Vec::new();
    while rows.len() < num_prompts.unwrap_or(usize::MAX) {
        let Some(record) = files.next_record()? else { break };
        let row = files.parse(record)?.map_err(|row| sources.row_error(&row.error))?;
        let params = row.overrides.apply(&base);
        let params = params
            .map_err(|error| sources.row_error(&row.overrides.row_error(&error, row.line)))?;
        let num_tokens = params.max_tokens.unwrap_or(output_len);
        rows.push(BenchRow { prompt: row.prompt, num_tokens, max_tokens: None, lora: row.lora });
    }
    match rows.is_empty() {
        true => Err(CliError::new(Exit::NoRows, "no_rows", format!("{} has no rows", input.name))),
        false => Ok(rows),
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): enough for ids that nobody should guess a pattern in.
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        let mixed = random.next();
        Self(mixed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0..bound.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: RandomRows = RandomRows {
        num_prompts: 500,
        prefix_len: 0,
        input_len: 10,
        long: (0, 0),
        output_len: 4,
        end_of_text: false,
        range_ratio: 0.25,
        seed: 7,
        num_loras: 0,
    };

    fn ids(row: &BenchRow) -> &[u32] {
        match &row.prompt {
            Prompt::TokenIds(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_fill_their_range_and_no_more() {
        let lengths = ROWS.lengths();
        let range =
            |values: Vec<usize>| (values.iter().min().copied(), values.iter().max().copied());
        let inputs = range(lengths.iter().map(|(input, _)| *input).collect());
        let outputs = range(lengths.iter().map(|(_, output)| *output as usize).collect());
        assert_eq!((inputs, outputs), ((Some(7), Some(13)), (Some(3), Some(5))));
        let fixed = RandomRows { range_ratio: 0.0, ..ROWS };
        assert!(fixed.lengths().iter().all(|lengths| *lengths == (10, 4)));
        let prefill = RandomRows { output_len: 1, range_ratio: 0.9, ..ROWS };
        assert!(prefill.lengths().iter().all(|(_, output)| *output == 1));
    }

    #[test]
    fn rows_are_a_function_of_the_seed_and_ids_cover_the_vocabulary() {
        let rows = ROWS.rows(50);
        assert_eq!(rows, ROWS.rows(50));
        assert_ne!(rows, RandomRows { seed: 8, ..ROWS }.rows(50));
        let mut seen = [false; 50];
        rows.iter().flat_map(ids).for_each(|id| seen[*id as usize] = true);
        assert!(seen.iter().all(|seen| *seen));
        for (row, (input_len, output_len)) in rows.iter().zip(ROWS.lengths()) {
            assert_eq!((ids(row).len(), row.num_tokens), (input_len, output_len));
        }
    }

    #[test]
    fn rows_take_adapters_in_turn() {
        let loras = |rows: Vec<BenchRow>| -> Vec<_> {
            rows.iter().take(5).map(|row| row.lora.map(|lora| lora.0)).collect()
        };
        let with = RandomRows { num_loras: 3, ..ROWS };
        assert_eq!(loras(with.rows(50)), [0, 1, 2, 0, 1].map(Some));
        assert_eq!(loras(ROWS.rows(50)), [None; 5]);
        assert_eq!(loras(warmups(&ROWS.lengths(), 5, (7, 2), 50)), [0, 1, 0, 1, 0].map(Some));
        let prompts =
            |rows: Vec<BenchRow>| rows.into_iter().map(|row| row.prompt).collect::<Vec<_>>();
        assert_eq!(prompts(with.rows(50)), prompts(ROWS.rows(50)), "rows are those without");
    }

    #[test]
    fn rows_of_a_queue_have_a_prefix_long_ones_among_them_and_an_end_of_text() {
        let queue = RandomRows { prefix_len: 6, long: (7, 40), end_of_text: true, ..ROWS };
        let (rows, plain) = (queue.rows(50), ROWS.rows(50));
        let is_long: Vec<usize> = (0..500).filter(|row| ids(&rows[*row]).len() == 46).collect();
        assert_eq!(is_long.len(), 7);
        let gaps = is_long.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.clone().all(|gap| (71..=72).contains(&gap)), "{is_long:?}");
        for (row, plain) in rows.iter().zip(&plain) {
            assert_eq!(ids(row)[..6], ids(&rows[0])[..6], "the prefix");
            assert_eq!((row.num_tokens, row.max_tokens), (plain.num_tokens, Some(6)));
        }
        assert_eq!(ids(&rows[0])[6..], *ids(&plain[0]), "its own ids are as without");
    }

    #[test]
    fn warmups_are_as_long_and_share_no_block() {
        let (rows, lengths) = (ROWS.rows(50), ROWS.lengths());
        let warmups = warmups(&lengths, 600, (ROWS.seed, 0), 50);
        assert_eq!(warmups.len(), 600);
        assert_eq!(ids(&warmups[501]).len(), ids(&rows[1]).len());
        let starts: Vec<&[u32]> = rows.iter().map(|row| &ids(row)[..7]).collect();
        assert!(warmups.iter().all(|row| !starts.contains(&&ids(row)[..7])));
    }
}
