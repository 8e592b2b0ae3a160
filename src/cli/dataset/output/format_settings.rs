//! `FormatSettings`: what flags say of the rows that go out.

use std::path::PathBuf;
use std::sync::Arc;

use crate::input::batch_line::BatchLines;
use crate::input::row::{Likelihoods, Task};
use crate::input::shard::Shard;
use crate::input::sources::Sources;
use vllm_batch_api::request::SamplingParams;

/// Settings of the rows' format, from the flags of a run.
#[derive(Debug)]
pub struct FormatSettings {
    /// Where rows go; None: standard output.
    pub path: Option<PathBuf>,
    /// Vectors are rows of a matrix of NumPy's.
    pub is_matrix: bool,
    /// Rows are the text of their answer, and nothing else.
    pub is_answer_alone: bool,
    /// Field of the answer.
    pub out_field: String,
    /// Whether every output is written.
    pub detail: Detail,
    /// Where rows come from.
    pub sources: Arc<Sources>,
    /// Shard of the rows that are written.
    pub shard: Shard,
    /// Task of the rows.
    pub task: Task,
    /// Likelihoods that are asked for.
    pub likelihoods: Likelihoods,
    /// Answers to batch requests.
    pub lines: BatchLines,
    /// Rows are judged.
    pub is_judged: bool,
    /// Parameters that the flags give.
    pub typed: SamplingParams,
    /// The parser of thinking.
    pub reasoning_parser: Option<String>,
    /// The model's name in batch lines.
    pub model: String,
    /// When the run began, in seconds since 1970.
    pub started: i64,
}

/// Whether `outputs` and `prompt_token_ids` are written (`--output-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Where there is more than one text to say: several completions, log-probabilities.
    #[default]
    Auto,
    /// In every row.
    Full,
    /// In no row.
    Simple,
}
