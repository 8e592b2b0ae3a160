//! The scores of an item's rows, which become its weights in their place.

use std::ops::{Deref, DerefMut};

/// Scores of a cache line.
const LINE_SCORES: usize = 16;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; LINE_SCORES]);

/// (rows, positions and padding), from a cache line on. Weights are of f32, or words of two bf16 in
/// the first half of their row.
#[derive(Debug, Default)]
pub(super) struct ScoreRows(Vec<Line>);

impl ScoreRows {
    /// Makes room for so many scores; what is there is lost.
    pub fn reserve(&mut self, num_scores: usize) {
        let num_lines = num_scores.div_ceil(LINE_SCORES);
        if self.0.len() < num_lines {
            self.0.resize(num_lines.next_power_of_two(), Line([0.0; _]));
        }
    }

    /// The same as words.
    pub fn words(&self) -> &[u32] {
        // SAFETY: any bits are a u32, which is aligned as an f32.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) }
    }
}

impl Deref for ScoreRows {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: lines are scores and nothing else, one behind the other.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LINE_SCORES) }
    }
}

impl DerefMut for ScoreRows {
    fn deref_mut(&mut self) -> &mut [f32] {
        let len = self.0.len() * LINE_SCORES;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
