//! `RecurrentStep`: which rows of a step go on from which states, for ops that go over tokens one
//! after the other.

use std::ops::Range;

use crate::engine::batch::Batch;
use crate::engine::device::kv_cache::StateLayerMut;
use crate::engine::device::tensor::SharedMut;
use crate::engine::ops::Step;

/// A step and the states of one layer. A block's state is the one after its last token, so a
/// sequence goes on from the block of the token before.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentStep<'a> {
    batch: &'a Batch,
    /// (num_blocks, width)
    states: SharedMut<f32>,
    width: usize,
    block_size: usize,
}

impl<'a> RecurrentStep<'a> {
    /// Over the states of a layer, which nobody else touches as long as this is used.
    pub fn new(step: Step<'a>, states: StateLayerMut<'a>) -> Self {
        let StateLayerMut { values, width, block_size } = states;
        Self { batch: step.batch, states: SharedMut::new(values), width, block_size }
    }

    /// Runs `run(rows, state)` for the tokens of every sequence, a block at a time: rows of the
    /// step, and the values `part` of their block's state, which are those after the token before
    /// the first row (zeros before the first token) and should be those after the last one in the
    /// end.
    ///
    /// Sequences come in the step's order: one that goes on from a block that another one fills in
    /// the same step comes after it.
    ///
    /// # Panics
    /// A state has no such values.
    ///
    /// # Safety
    /// No other thread touches these values of any block meanwhile.
    pub unsafe fn for_each_run(
        &self,
        part: Range<usize>,
        run: &mut dyn FnMut(Range<usize>, &mut [f32]),
    ) {
        assert!(part.end <= self.width);
        for seq in 0..self.batch.num_seqs() {
            let table = self.batch.block_table(seq);
            let end_row = self.batch.query_start_loc[seq + 1] as usize;
            let mut row = self.batch.query_start_loc[seq] as usize;
            while row < end_row {
                let position = self.batch.positions[row] as usize;
                let in_block = position % self.block_size;
                let end = end_row.min(row + self.block_size - in_block);
                let block = table[position / self.block_size] as usize;
                // SAFETY: the caller's promise.
                let state = unsafe { self.state(block, &part) };
                if position == 0 {
                    state.fill(0.0);
                } else if in_block == 0 {
                    let before = table[position / self.block_size - 1] as usize;
                    assert_ne!(before, block, "a block was given twice");
                    // SAFETY: the caller's promise; it is another block.
                    state.copy_from_slice(unsafe { self.state(before, &part) });
                }
                run(row..end, state);
                row = end;
            }
        }
    }

    /// # Safety
    /// As `for_each_run`; the caller has no other slice of the same values.
    #[allow(clippy::mut_from_ref)]
    unsafe fn state(&self, block: usize, part: &Range<usize>) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.states.slice(block * self.width + part.start, part.len()) }
    }
}
