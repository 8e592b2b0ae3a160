//! Speculation: who guesses the next tokens of rows, and how many.
//!
//! A guess costs or gains time and changes no byte (`scheduler/drafts.rs`). So a proposer may use
//! what a row may not depend on: other rows, earlier answers, the time.

mod draft_model;
mod ngram;
mod pace;
mod step_cost;
mod suffix;

use std::time::Duration;

use super::scheduler::{DraftLimits, DraftStep, Scheduled, ScheduledSeq, Scheduler};
use crate::execute::executor::ExecutorError;
use crate::request::FIRST_MEDIA_ID;
pub use draft_model::{DraftModel, DraftSizes};
pub use ngram::Ngram;
pub use pace::Pace;
pub use step_cost::StepCost;
pub use suffix::Suffix;
use vllm_batch_api::request::RequestOutput;
use vllm_batch_base::config::{SpeculationConfig, SpeculationMethod};

/// Guesses what comes next.
pub trait Proposer {
    /// Adds drafts to a step.
    ///
    /// # Errors
    /// The device failed, of a proposer that uses one.
    fn propose(&mut self, step: &mut DraftStep<'_>) -> Result<(), ExecutorError>;

    /// Learns from rows that are finished.
    fn learn(&mut self, _outputs: &[RequestOutput]) {}

    /// Forgets a row that is finished before its time.
    fn forget(&mut self, _request_id: u64) {}
}

/// Adds to each row of a step what `guess` makes of its tokens and of the room that there is.
fn guess_each(step: &mut DraftStep<'_>, mut guess: impl FnMut(&[u32], usize) -> Vec<u32>) {
    for place in 0..step.num_seqs() {
        let room = step.room(place);
        if room == 0 {
            continue;
        }
        for token_id in guess(&step.seq(place).token_ids, room) {
            // Nobody samples a token of an image.
            if token_id >= FIRST_MEDIA_ID || !step.push(place, token_id) {
                break;
            }
        }
    }
}

/// A proposer, and how much of it a step takes.
pub struct Speculation {
    proposer: Box<dyn Proposer>,
    /// As long as nothing is known of what steps cost.
    limits: DraftLimits,
    /// None: the limits stay.
    cost: Option<StepCost>,
}

/// Tokens of a step up to which one more costs little beside what the step costs anyway, until that
/// is measured. On the CPU a step of SmolLM2-135M takes about 6 ms and 1 ms for each token
/// (docs/PERFORMANCE.md: one row 138 tokens/s, four 417, 64 about 900): a draft for one row pays
/// where one in seven is right,
/// for 8 rows where every second one is.
const CPU_STEP_TOKENS: usize = 24;

/// On a GPU: weights are read once for 175 tokens or so before arithmetic takes longer (H200), and
/// rows are padded to 128.
const GPU_STEP_TOKENS: usize = 128;

impl Speculation {
    /// What is configured; a draft model is given where that is. On the CPU the sampler takes rows
    /// that have a guide in rounds.
    ///
    /// # Panics
    /// A draft model is configured and not given.
    pub fn new(config: &SpeculationConfig, draft: Option<DraftModel>, on_cpu: bool) -> Self {
        let proposer: Box<dyn Proposer> = match &config.method {
            &SpeculationMethod::Ngram { min, max } => Box::new(Ngram::new(min, max)),
            SpeculationMethod::Suffix(config) => Box::new(Suffix::new(config.clone())),
            SpeculationMethod::DraftModel { .. } => {
                Box::new(draft.expect("a draft model is loaded where one is configured"))
            }
        };
        let of_device = if on_cpu { CPU_STEP_TOKENS } else { GPU_STEP_TOKENS };
        let max_step_tokens = config.max_step_tokens.unwrap_or(of_device);
        let limits = DraftLimits {
            per_row: config.num_speculative_tokens,
            per_step: max_step_tokens - 1,
            max_step_tokens,
            in_rounds: on_cpu,
            paced: config.paced,
        };
        let cost = config.max_step_tokens.is_none().then(StepCost::default);
        Self { proposer, limits, cost }
    }

    /// What a step of so many rows may have.
    fn limits(&self, num_rows: usize) -> DraftLimits {
        let Some(cost) = &self.cost else { return self.limits };
        let max_step_tokens = cost.max_step_tokens(num_rows, self.limits.max_step_tokens);
        DraftLimits { max_step_tokens, per_step: max_step_tokens - 1, ..self.limits }
    }

    /// Learns how long a step took, guesses included. Those that read prompts say nothing: most of
    /// their tokens have no logits.
    pub fn take_in_step(&mut self, scheduled: &Scheduled, took: Duration) {
        let only_samples = |seq: &ScheduledSeq| {
            seq.samples && seq.num_tokens == 1 + seq.num_drafts && seq.num_prompt_logits == 0
        };
        if let Some(cost) = &mut self.cost
            && scheduled.seqs.iter().all(only_samples)
        {
            cost.take_in(scheduled.num_tokens, took);
        }
    }

    /// Another proposer.
    pub fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        self.proposer = proposer;
    }

    /// Adds drafts to a step that was scheduled.
    ///
    /// # Errors
    /// As `Proposer::propose`.
    pub fn add_drafts(
        &mut self,
        scheduler: &mut Scheduler,
        scheduled: &mut Scheduled,
    ) -> Result<(), ExecutorError> {
        let limits = self.limits(scheduled.seqs.len());
        let mut step = scheduler.draft_step(scheduled, limits);
        step.push_forced();
        if (0..step.num_seqs()).all(|place| step.room(place) == 0) {
            return Ok(());
        }
        self.proposer.propose(&mut step)?;
        // A GPU's steps are begun ahead as long as no row may have drafts.
        if limits.paced && !limits.in_rounds {
            step.pause_others();
        }
        Ok(())
    }

    /// Whether the step after the current one may have drafts: they need its tokens, so it cannot
    /// be begun before these are there.
    pub fn may_guess_after(&self, scheduler: &Scheduler) -> bool {
        scheduler.may_draft(self.limits(scheduler.num_running()))
    }

    /// Learns from rows that are finished.
    pub fn learn(&mut self, outputs: &[RequestOutput]) {
        self.proposer.learn(outputs);
    }

    /// Forgets a row that is finished before its time.
    pub fn forget(&mut self, request_id: u64) {
        self.proposer.forget(request_id);
    }
}
