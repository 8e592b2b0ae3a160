//! Counters of the engine: what progress lines and summaries show.

use std::time::Duration;

use crate::request::{MediaRun, images_of};

pub use vllm_batch_device::limits::{Arithmetic, GivenLimits, Limit, Limits};
pub use vllm_batch_device::op_times::{Op, OpTime, OpTimes, Work};
use vllm_batch_ops::batch::{LoraCounts, PartCounts};

/// Counters since load, and the present queue lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Model steps run.
    pub num_steps: u64,
    /// Sequences running now.
    pub num_running: usize,
    /// Sequences waiting now.
    pub num_waiting: usize,
    /// Those of the running ones that are rows of a batch.
    pub num_running_batch: usize,
    /// Those of the waiting ones.
    pub num_waiting_batch: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Blocks in use by running sequences now.
    pub num_used_blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Tokens computed by the model so far (prompt and generated, recomputation included).
    pub num_computed_tokens: u64,
    /// Prompt tokens of requests added so far.
    pub num_prompt_tokens: u64,
    /// Tokens generated so far.
    pub num_generation_tokens: u64,
    /// Prompt tokens found in the prefix cache so far.
    pub num_cached_tokens: u64,
    /// Times that a row was computed with drafts so far.
    pub num_drafted_rows: u64,
    /// Drafts so far.
    pub num_draft_tokens: u64,
    /// Those of them that a grammar forced.
    pub num_forced_tokens: u64,
    /// Those of all drafts that were right.
    pub num_accepted_tokens: u64,
    /// Preemptions so far.
    pub num_preemptions: u64,
    /// Those of rows of a batch.
    pub num_batch_preemptions: u64,
    /// Blocks of prefixes that went to the host's memory so far.
    pub num_offloaded_blocks: u64,
    /// Those that came back.
    pub num_returned_blocks: u64,
    /// Steps in which a GPU computed rows in parts so far.
    pub num_steps_in_parts: u64,
    /// Those of them in which parts were computed once for several rows.
    pub num_steps_with_shared_parts: u64,
    /// Adapters loaded so far, one as often as it was.
    pub num_lora_loads: u64,
    /// Adapters that are loaded now.
    pub num_resident_loras: usize,
    /// Images of rows, and what their tower did.
    pub images: ImageStats,
    /// Where the time of `step` has gone.
    pub time: StepTime,
}

/// Images since load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Images of requests added, equal ones as often as they are.
    pub num_images: u64,
    /// Their tokens.
    pub num_tokens: u64,
    /// Images that a vision tower encoded, one as often as it did.
    pub num_encoded: u64,
    /// What that took, with the wait for pixels. A part of `StepTime::execute`.
    pub encode_time: Duration,
}

impl ImageStats {
    /// Adds the images of a request.
    pub(crate) fn add(&mut self, media: &[MediaRun]) {
        self.num_images += images_of(media).count() as u64;
        self.num_tokens += media.iter().map(|run| run.positions.len() as u64).sum::<u64>();
    }
}

impl std::ops::Add for ImageStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            num_images: self.num_images + other.num_images,
            num_tokens: self.num_tokens + other.num_tokens,
            num_encoded: self.num_encoded + other.num_encoded,
            encode_time: self.encode_time + other.encode_time,
        }
    }
}

impl EngineStats {
    /// The same with what became of adapters.
    pub fn with_loras(self, counts: LoraCounts) -> Self {
        let LoraCounts { num_loads, num_resident } = counts;
        Self { num_lora_loads: num_loads, num_resident_loras: num_resident, ..self }
    }

    /// The same with how many steps were computed in parts.
    pub fn with_parts(self, counts: PartCounts) -> Self {
        let PartCounts { num_steps, num_shared_steps } = counts;
        let num_steps_with_shared_parts = num_shared_steps;
        Self { num_steps_in_parts: num_steps, num_steps_with_shared_parts, ..self }
    }

    /// The same with what a vision tower encoded.
    pub fn with_encoded(self, (num_encoded, encode_time): (u64, Duration)) -> Self {
        Self { images: ImageStats { num_encoded, encode_time, ..self.images }, ..self }
    }

    /// The sums of two engines that share requests. Blocks are of one size.
    pub fn beside(self, other: Self) -> Self {
        Self {
            num_steps: self.num_steps + other.num_steps,
            num_running: self.num_running + other.num_running,
            num_waiting: self.num_waiting + other.num_waiting,
            num_running_batch: self.num_running_batch + other.num_running_batch,
            num_waiting_batch: self.num_waiting_batch + other.num_waiting_batch,
            num_blocks: self.num_blocks + other.num_blocks,
            num_used_blocks: self.num_used_blocks + other.num_used_blocks,
            block_size: self.block_size.max(other.block_size),
            num_computed_tokens: self.num_computed_tokens + other.num_computed_tokens,
            num_prompt_tokens: self.num_prompt_tokens + other.num_prompt_tokens,
            num_generation_tokens: self.num_generation_tokens + other.num_generation_tokens,
            num_cached_tokens: self.num_cached_tokens + other.num_cached_tokens,
            num_drafted_rows: self.num_drafted_rows + other.num_drafted_rows,
            num_draft_tokens: self.num_draft_tokens + other.num_draft_tokens,
            num_forced_tokens: self.num_forced_tokens + other.num_forced_tokens,
            num_accepted_tokens: self.num_accepted_tokens + other.num_accepted_tokens,
            num_preemptions: self.num_preemptions + other.num_preemptions,
            num_batch_preemptions: self.num_batch_preemptions + other.num_batch_preemptions,
            num_offloaded_blocks: self.num_offloaded_blocks + other.num_offloaded_blocks,
            num_returned_blocks: self.num_returned_blocks + other.num_returned_blocks,
            num_steps_in_parts: self.num_steps_in_parts + other.num_steps_in_parts,
            num_steps_with_shared_parts: self.num_steps_with_shared_parts
                + other.num_steps_with_shared_parts,
            num_lora_loads: self.num_lora_loads + other.num_lora_loads,
            num_resident_loras: self.num_resident_loras + other.num_resident_loras,
            images: self.images + other.images,
            time: self.time + other.time,
        }
    }

    /// Tokens that a row got from a step in which it had drafts, on average. None: none had any.
    pub fn tokens_per_drafted_row(&self) -> Option<f64> {
        let per_row = |num: u64| num as f64 / self.num_drafted_rows as f64;
        (self.num_drafted_rows > 0).then(|| 1.0 + per_row(self.num_accepted_tokens))
    }
}

/// Where the time of `Engine::step` has gone since load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Choosing the sequences of a step, and flattening them into arrays.
    pub schedule: Duration,
    /// The model: on a GPU, what it takes to queue it.
    pub execute: Duration,
    /// Sampling: on a GPU, the wait for all that was queued.
    pub sample: Duration,
    /// Appending the tokens, and ending what is finished.
    pub update: Duration,
}

impl std::ops::Add for StepTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            schedule: self.schedule + other.schedule,
            execute: self.execute + other.execute,
            sample: self.sample + other.sample,
            update: self.update + other.update,
        }
    }
}

impl std::ops::Sub for StepTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            schedule: self.schedule - earlier.schedule,
            execute: self.execute - earlier.execute,
            sample: self.sample - earlier.sample,
            update: self.update - earlier.update,
        }
    }
}
