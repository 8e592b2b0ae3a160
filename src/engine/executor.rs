//! `Executor`: runs the model once over a `Batch`. The scheduler knows nothing behind this trait.

use super::batch::Batch;

/// Logits of a step: (num_logits, vocab_size), row i belongs to `batch.logits_indices[i]`.
#[derive(Debug)]
pub struct Logits<'a> {
    /// Row-major values.
    pub values: &'a mut [f32],
    /// Width of a row.
    pub vocab_size: usize,
}

impl Logits<'_> {
    /// One row.
    pub fn row(&mut self, index: usize) -> &mut [f32] {
        &mut self.values[index * self.vocab_size..(index + 1) * self.vocab_size]
    }
}

/// Runs one step.
pub trait Executor {
    /// Writes K and V of the batch's tokens into the cache and returns the wanted logits.
    ///
    /// # Errors
    /// The device failed; the engine cannot go on.
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError>;
}

/// The device failed in the middle of a run.
#[derive(Debug)]
pub struct ExecutorError(pub String);
