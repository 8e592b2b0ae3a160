//! `Executor`: runs the model once over a `Batch`. The scheduler knows nothing behind this trait.

use std::time::Duration;

use vllm_batch_device::Tensor;
use vllm_batch_ops::batch::{Batch, LoraCounts, PartCounts};

/// One row per wanted token: logits, or hidden states for pooling models.
#[derive(Debug)]
pub struct Logits<'a> {
    /// (num_logits, vocab_size or hidden_size), on the device; row i belongs to
    /// `batch.logits_indices[i]`. A GPU has rows of padding after them.
    pub tensor: &'a mut Tensor,
    /// (num_logits) of a batch that `wants_likeliest`, where the device finds the likeliest tokens
    /// as it computes logits: `tensor` then holds none. None: NaN or +inf is among a row's, or all
    /// are -inf. Else empty.
    pub likeliest: &'a [Option<u32>],
}

impl Logits<'_> {
    /// The same, for one more use.
    pub fn again(&mut self) -> Logits<'_> {
        Logits { tensor: self.tensor, likeliest: self.likeliest }
    }

    /// One row.
    ///
    /// # Panics
    /// It is on a GPU, or only its likeliest token is known.
    pub fn row(&mut self, index: usize) -> &mut [f32] {
        assert!(self.likeliest.is_empty(), "the logits of this step were not kept");
        self.tensor.row_mut(index)
    }
}

/// Runs one step.
pub trait Executor {
    /// Writes K and V of the batch's tokens into the cache and returns the wanted logits.
    ///
    /// # Errors
    /// The device failed; the engine cannot go on.
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError>;

    /// Nobody looks at the logits of the last step any more.
    fn release(&mut self) {}

    /// Counts of the adapters that rows may name.
    fn lora_counts(&self) -> LoraCounts {
        LoraCounts::default()
    }

    /// Steps whose attention was computed in parts, since load.
    fn part_counts(&self) -> PartCounts {
        PartCounts::default()
    }

    /// Images that a vision tower encoded since load, and what that took.
    fn encoded(&self) -> (u64, Duration) {
        (0, Duration::ZERO)
    }
}

/// The device failed in the middle of a run.
#[derive(Debug)]
pub struct ExecutorError(pub String);
