//! `Wide`: the passes over a row, as values. The code that knows the machine's instructions has
//! them compiled for its widest vectors. Results do not depend on that: the source fixes the order
//! of operations, and the compiler keeps it.

use super::draw::draw;
use super::logprobs::position_logprobs;
use super::reduce::{RowMax, divide, row_max};
use super::truncation::{Survivors, TruncationScratch, truncate};
use super::{NumLogprobs, SamplingParams};
use vllm_batch_api::request::PositionLogprobs;

/// Work whose `run`, and all that it calls in loops, is `inline(always)`.
pub trait Wide {
    /// What it gives.
    type Output;

    /// Does it.
    fn run(self) -> Self::Output;
}

/// Who runs such work.
pub trait Vectors: Copy {
    /// Runs it.
    fn run<W: Wide>(self, work: W) -> W::Output;
}

/// With the vectors that every machine has.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

impl Vectors for Baseline {
    fn run<W: Wide>(self, work: W) -> W::Output {
        work.run()
    }
}

/// `row_max`.
pub(super) struct MaxOf<'a>(pub(super) &'a [f32]);

impl Wide for MaxOf<'_> {
    type Output = Option<RowMax>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        row_max(self.0)
    }
}

/// `divide`.
pub(super) struct Divide<'a>(pub(super) &'a mut [f32], pub(super) f32);

impl Wide for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        divide(self.0, self.1);
    }
}

/// `truncate`.
pub(super) struct Truncate<'a> {
    pub(super) logits: &'a [f32],
    pub(super) max: f32,
    pub(super) params: &'a SamplingParams,
    pub(super) scratch: &'a mut TruncationScratch,
}

impl<'a> Wide for Truncate<'a> {
    type Output = Survivors<'a>;

    #[inline(always)]
    fn run(self) -> Survivors<'a> {
        truncate(self.logits, self.max, self.params, self.scratch)
    }
}

/// `draw`.
pub(super) struct Draw<'a> {
    pub(super) survivors: Survivors<'a>,
    pub(super) uniform: f64,
    pub(super) block_sums: &'a mut Vec<f64>,
}

impl Wide for Draw<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        draw(&self.survivors, self.uniform, self.block_sums)
    }
}

/// `position_logprobs`.
pub(super) struct LogprobsOf<'a> {
    pub(super) row: &'a [f32],
    pub(super) max: f32,
    pub(super) token_id: u32,
    pub(super) num_logprobs: NumLogprobs,
    pub(super) scratch: &'a mut TruncationScratch,
}

impl Wide for LogprobsOf<'_> {
    type Output = PositionLogprobs;

    #[inline(always)]
    fn run(self) -> PositionLogprobs {
        let Self { row, max, token_id, num_logprobs, scratch } = self;
        position_logprobs(row, max, token_id, num_logprobs, scratch)
    }
}
