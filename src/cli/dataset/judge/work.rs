//! `Work`: how much may be done for the verdict over one answer. Counted, and not measured, so that
//! the same row is judged or not on every machine.

use std::cell::Cell;

/// Steps that one answer may take: some seconds at most.
const MAX_STEPS: u64 = 1 << 30;

/// Steps that are left of those that one answer may take.
#[derive(Debug)]
pub struct Work(Cell<u64>);

/// An answer that is too much work for a scorer.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMuch(pub String);

impl Default for Work {
    fn default() -> Self {
        Self(Cell::new(MAX_STEPS))
    }
}

impl Work {
    /// Takes steps.
    ///
    /// # Errors
    /// There are not as many left.
    pub fn take(&self, steps: u64) -> Result<(), TooMuch> {
        match self.0.get().checked_sub(steps) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => {
                let what = format!("it takes more than {MAX_STEPS} steps to compare these texts");
                Err(TooMuch(what))
            }
        }
    }

    /// Takes steps for every byte of two texts.
    ///
    /// # Errors
    /// There are not as many left.
    pub fn read(&self, steps: u64, lengths: [usize; 2]) -> Result<(), TooMuch> {
        self.take((lengths[0] as u64 + lengths[1] as u64).saturating_mul(steps))
    }

    /// Program bytes that a pattern may have to be matched against a text: matching takes a step
    /// for each state at each byte.
    pub fn program(length: usize) -> u64 {
        (MAX_STEPS * 32) / length.max(1) as u64
    }
}
