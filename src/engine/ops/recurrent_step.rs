//! `RecurrentStep`: which rows of a step go on from which states, for ops that go over tokens one
//! after the other. On a GPU kernels are launched over runs of rows.

use std::ops::Range;

use crate::Step;
use crate::batch::Batch;
use vllm_batch_device::Gpu;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::gpu::{Defines, Kernel};
use vllm_batch_device::kv_cache::StateLayerMut;
use vllm_batch_device::tensor::SharedMut;

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
        let StateLayerMut { width, block_size, .. } = states;
        let states = SharedMut::new(states.into_host());
        Self { batch: step.batch, states, width, block_size }
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

/// `struct States` of kernels/states.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct StatesArg {
    runs: DevicePtr,
    starts: DevicePtr,
    block_tables: DevicePtr,
    values: DevicePtr,
    width: u32,
    block_size: u32,
}

/// Columns of a block of a kernel whose states are columns of `num_rows` rows: of four warps, as
/// kernels/states.cuh has them.
pub(super) fn columns_of_block(num_rows: usize) -> usize {
    let lanes = num_rows.div_ceil(32).next_power_of_two().clamp(4, 32);
    4 * (32 / lanes)
}

/// An entry of a kernel's file over states of `num_rows` rows whose columns do not see each other.
pub(super) fn states_kernel(
    (source, entry): (&'static str, &'static str),
    num_rows: usize,
) -> Kernel {
    Kernel::with_defines(source, entry, Defines::NONE.number("STATE_ROWS", num_rows as u32))
}

/// Queues a kernel over the rows of a step, level by level: blocks of 128 threads for each run and
/// each of `num_parts` parts of a state. `args` adds a launch's arguments, of which one is the
/// states.
pub(super) fn launch_over_runs(
    gpu: &Gpu,
    kernel: Kernel,
    num_parts: usize,
    (step, states): (Step<'_>, &StateLayerMut<'_>),
    args: impl Fn(&mut Args, StatesArg),
) {
    let inputs = step.gpu_inputs();
    let runs = inputs.runs();
    for (level, num_runs) in runs.levels().enumerate() {
        // A recorded launch serves every step of its rows.
        let num_runs = step.graph_key().map_or(num_runs, |_| step.num_rows());
        let states = StatesArg {
            runs: runs.runs.ptr(),
            starts: runs.starts.ptr().offset(level * size_of::<u32>()),
            block_tables: inputs.block_tables.ptr(),
            values: states.ptr(),
            width: states.width as u32,
            block_size: states.block_size as u32,
        };
        let mut values = Args::new();
        args(&mut values, states);
        let grid = [num_runs as u32, num_parts as u32];
        gpu.launch(kernel, grid, (128, 0), &mut values);
    }
}

/// Test support for ops with recurrent states.
#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use vllm_batch_base::matrix::SourceMatrix;

    const BLOCK_SIZE: usize = 16;
    const NUM_BLOCKS: usize = 40;
    const BLOCKS_PER_SEQ: usize = 8;

    /// Tokens `first..end` of the sequence of a seed, over these blocks.
    pub(crate) struct Part<'a> {
        pub seed: u64,
        pub first: usize,
        pub end: usize,
        pub table: &'a [u32],
    }

    /// An op over a step: its outputs, row by row.
    pub(crate) type Run<'a> = &'a dyn Fn(&Batch, &[Part<'_>], StateLayerMut<'_>) -> Vec<f32>;

    /// Random rows of the parts, the same for a token in whatever part it is.
    pub(crate) fn rows_of(parts: &[Part<'_>], width: usize) -> Vec<f32> {
        let of_part = |part: &Part<'_>| {
            let rows = SourceMatrix::random(part.end, width, part.seed, 1.0).to_vec();
            rows[part.first * width..].to_vec()
        };
        parts.iter().flat_map(of_part).collect()
    }

    /// One step; outputs of its parts.
    fn step(states: &mut [f32], run: Run<'_>, parts: &[Part<'_>]) -> Vec<Vec<f32>> {
        let mut batch = Batch {
            query_start_loc: vec![0],
            max_blocks_per_seq: BLOCKS_PER_SEQ,
            ..Batch::default()
        };
        for part in parts {
            batch.positions.extend(part.first as u32..part.end as u32);
            batch.query_start_loc.push(batch.positions.len() as u32);
            batch.seq_lens.push(part.end as u32);
            batch.block_tables.extend(part.table);
            batch.block_tables.resize(batch.seq_lens.len() * BLOCKS_PER_SEQ, 0);
        }
        let width = states.len() / NUM_BLOCKS;
        let states = StateLayerMut::on_host(states, width, BLOCK_SIZE);
        let out = run(&batch, parts, states);
        let row = out.len() / batch.positions.len();
        let rows = |pair: &[u32]| out[pair[0] as usize * row..pair[1] as usize * row].to_vec();
        batch.query_start_loc.windows(2).map(rows).collect()
    }

    /// Checks that an op's bits do not depend on chunks, on neighbours, or on whose blocks a
    /// sequence goes on from. Gives the outputs of the 50 tokens of seed 0.
    pub(crate) fn check(state_width: usize, run: Run<'_>) -> Vec<f32> {
        let states = || vec![f32::NAN; NUM_BLOCKS * state_width];
        let tables: [&[u32]; 2] = [&[3, 9, 1, 20], &[4, 2, 30, 21]];
        let part = |seq: usize, first: usize, end: usize| Part {
            seed: seq as u64,
            first,
            end,
            table: tables[seq],
        };
        let whole = step(&mut states(), run, &[part(0, 0, 50)]).remove(0);
        for chunk in [1, 2, 3, 7, 15, 16, 17, 32, 49] {
            let mut states = states();
            let mut got = Vec::new();
            for first in (0..50).step_by(chunk) {
                let end = (first + chunk).min(50);
                let both = [part(1, first, end), part(0, first, end)];
                got.extend(step(&mut states, run, &both).remove(1));
            }
            assert!(got == whole, "chunks of {chunk}");
        }
        let row = whole.len() / 50;
        for num_after in [1, 2, 3] {
            // The second sequence is the first one up to position 32, whose blocks it shares.
            let mut states = states();
            let first = part(0, 0, 33);
            let shared = |first, end| Part { seed: 0, first, end, table: &[3, 9, 10] };
            let outs = step(&mut states, run, &[first, shared(32, 32 + num_after)]);
            assert!(outs[1] == whole[32 * row..(32 + num_after) * row], "{num_after} after");
            let outs = step(&mut states, run, &[shared(32 + num_after, 40)]);
            assert!(outs[0] == whole[(32 + num_after) * row..40 * row], "{num_after} after");
        }
        whole
    }
}
