//! Runs: the tokens of each sequence of a step, for ops that go from token to token with states on
//! a GPU.
//!
//! A sequence may go on from a block that another one fills in the same step. So runs have levels:
//! those of level 0 wait for none, and one of level n goes on from a block that one of the level
//! before fills. Levels are launched one after the other.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::batch::Batch;
use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{DeviceBuffer, Plain};
use vllm_batch_device::{Gpu, bytes_of};

/// `struct Run` of kernels/states.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// First row of the step.
    row: u32,
    num_rows: u32,
    /// First entry of the sequence in `block_tables`.
    table: u32,
    /// Absolute position of the first row.
    position: u32,
}

// SAFETY: four integers without padding.
unsafe impl Plain for Run {}

/// The runs of a step in a GPU's memory.
#[derive(Debug)]
pub(crate) struct RunInputs {
    /// (max_num_seqs) runs, level by level.
    pub runs: DeviceBuffer,
    /// (levels + 1) where each level's begin.
    pub starts: DeviceBuffer,
    list: RunList,
}

impl RunInputs {
    pub(super) fn new(
        gpu: &Gpu,
        (max_num_seqs, block_size): (usize, usize),
    ) -> Result<Self, EngineError> {
        // Two at least, for the warm-up.
        let max_num_seqs = max_num_seqs.max(2);
        Ok(Self {
            runs: gpu.alloc(max_num_seqs * size_of::<Run>())?,
            starts: gpu.alloc((max_num_seqs + 1) * 4)?,
            list: RunList::new(block_size),
        })
    }

    pub(super) fn upload(&mut self, gpu: &Gpu, batch: &Batch) {
        self.list.refill(batch);
        gpu.upload(&self.runs, bytes_of(&self.list.runs));
        gpu.upload(&self.starts, bytes_of(&self.list.starts));
    }

    /// Number of runs of each level.
    pub(crate) fn levels(&self) -> impl Iterator<Item = usize> + '_ {
        self.list.starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize)
    }
}

/// The same on the host. Buffers are reused.
#[derive(Debug, Default)]
struct RunList {
    block_size: usize,
    runs: Vec<Run>,
    starts: Vec<u32>,
    /// (runs) their levels, and themselves.
    by_level: Vec<(u32, Run)>,
    /// The blocks that the step's sequences write, and the level of who does.
    writers: HashMap<u32, u32>,
}

impl RunList {
    fn new(block_size: usize) -> Self {
        Self { block_size, ..Self::default() }
    }

    /// Lists the runs of a step: the longest of a level first, since the last ones to be computed
    /// should be short.
    fn refill(&mut self, batch: &Batch) {
        let Self { block_size, runs, starts, by_level, writers } = self;
        by_level.clear();
        writers.clear();
        for seq in 0..batch.num_seqs() {
            let (row, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
            let num_rows = end - row;
            if num_rows == 0 {
                continue;
            }
            let blocks = batch.block_table(seq);
            let position = (batch.seq_lens[seq] - num_rows) as usize;
            let before = position.checked_sub(1).map(|before| blocks[before / *block_size]);
            let level = before.and_then(|block| writers.get(&block)).map_or(0, |level| level + 1);
            let last = position + num_rows as usize - 1;
            let written = &blocks[position / *block_size..=last / *block_size];
            writers.extend(written.iter().map(|block| (*block, level)));
            let table = (seq * batch.max_blocks_per_seq) as u32;
            by_level.push((level, Run { row, num_rows, table, position: position as u32 }));
        }
        by_level.sort_unstable_by_key(|(level, run)| (*level, Reverse(run.num_rows), run.row));
        runs.clear();
        runs.extend(by_level.iter().map(|(_, run)| *run));
        let num_levels = by_level.last().map_or(0, |(level, _)| level + 1);
        let start_of = |level| by_level.partition_point(|(own, _)| *own < level) as u32;
        starts.clear();
        starts.extend((0..=num_levels).map(start_of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sequences of (first position, rows), over these blocks of 16.
    fn batch(seqs: &[(u32, u32, &[u32])]) -> Batch {
        let mut batch =
            Batch { query_start_loc: vec![0], max_blocks_per_seq: 4, ..Batch::default() };
        for (position, num_rows, blocks) in seqs {
            batch.query_start_loc.push(batch.query_start_loc.last().unwrap() + num_rows);
            batch.seq_lens.push(position + num_rows);
            batch.block_tables.extend(*blocks);
            batch.block_tables.resize(batch.seq_lens.len() * 4, 0);
        }
        batch
    }

    #[test]
    fn who_goes_on_from_a_block_of_the_step_has_the_level_after_its_writer() {
        let mut list = RunList::new(16);
        // What an earlier step leaves does not count.
        list.refill(&batch(&[(0, 40, &[5, 6, 7])]));
        let step = batch(&[
            // Goes on in its own block, which none of the step writes.
            (15, 1, &[5]),
            (0, 40, &[1, 2, 3]),
            // From block 2, which the one before fills.
            (32, 20, &[1, 2, 4, 8]),
            (32, 1, &[1, 2, 9]),
            // From block 4, which is of level 1.
            (48, 2, &[1, 2, 4, 10]),
            // From block 0, which begins as padding of tables.
            (16, 1, &[0, 11]),
        ]);
        list.refill(&step);
        assert_eq!(list.starts, [0, 3, 5, 6]);
        let run = |row, num_rows, table, position| Run { row, num_rows, table, position };
        let levels = [
            [run(1, 40, 4, 0), run(0, 1, 0, 15), run(64, 1, 20, 16)].to_vec(),
            [run(41, 20, 8, 32), run(61, 1, 12, 32)].to_vec(),
            [run(62, 2, 16, 48)].to_vec(),
        ];
        assert_eq!(list.runs, levels.concat());
        // Steps of decoding have one level.
        list.refill(&batch(&[(16, 1, &[1, 2]), (31, 1, &[1, 3]), (0, 1, &[4])]));
        assert_eq!(list.starts, [0, 3]);
        list.refill(&batch(&[]));
        assert_eq!((list.runs.len(), &list.starts[..]), (0, &[0][..]));
    }
}
