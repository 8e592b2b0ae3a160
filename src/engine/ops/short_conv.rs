//! short_conv: a causal convolution over a few tokens, column by column, between two gates (LFM2).
//!
//! Its state is what it needs of the tokens before: the last inputs. It lies in the block that
//! holds the last of these tokens, so that a sequence goes on from a shared block as from one of
//! its own. Sums run over the tokens upward, from zeros before the first one, whatever the step
//! holds of them.

use super::for_row_chunks;
use crate::engine::batch::Batch;
use crate::engine::device::kv_cache::StateLayerMut;
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Device, Tensor};
use crate::engine::ops::Step;

/// Weights of a short convolution.
#[derive(Debug)]
pub struct ConvTaps {
    width: usize,
    /// (taps, width), that of the oldest token first.
    values: Vec<f32>,
    /// (width)
    bias: Option<Vec<f32>>,
    /// (width) what stands before the first token.
    zeros: Vec<f32>,
}

impl ConvTaps {
    /// Of (width, taps) values as `torch.nn.Conv1d` stores them, and (width) biases.
    ///
    /// # Panics
    /// Lengths do not fit each other.
    pub fn new(width: usize, stored: &[f32], bias: Option<Vec<f32>>) -> Self {
        assert!(stored.len().is_multiple_of(width));
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == width));
        let num_taps = stored.len() / width;
        let value = |index: usize| stored[index % width * num_taps + index / width];
        let values = (0..stored.len()).map(value).collect();
        Self { width, values, bias, zeros: vec![0.0; width] }
    }

    /// Tokens before the own one that it needs.
    fn num_before(&self) -> usize {
        self.values.len() / self.width - 1
    }
}

/// Rows of `bcx` (num_tokens, 3 * width) are two gates b and c, and x. out (num_tokens, width) =
/// c * conv(b * x), where the tokens before those of the step are in `states`: (num_blocks,
/// taps - 1, width), of each block the last inputs up to its last token. The step's are written
/// there; b * x replaces x.
///
/// # Panics
/// Widths differ, a block has fewer tokens than a state, or the device is a GPU: models that need
/// this run on the CPU.
pub fn short_conv(
    device: &Device,
    (bcx, step): (&mut Tensor, Step<'_>),
    taps: &ConvTaps,
    states: StateLayerMut<'_>,
    out: &mut Tensor,
) {
    let Device::Cpu(cpu) = device else { panic!("a GPU has no kernel for short convolutions") };
    let (num_rows, width) = (bcx.num_rows(), taps.width);
    let StateLayerMut { values, width: state_width, block_size } = states;
    assert_eq!(state_width, taps.num_before() * width);
    assert_eq!((bcx.width(), out.width()), (3 * width, width));
    assert!(taps.num_before() <= block_size);
    out.set_num_rows(num_rows);
    let work = || Work {
        flops: 2.0 * (num_rows * taps.values.len()) as f64,
        bytes: (num_rows * width * 5 * size_of::<f32>()) as f64,
    };
    let _timed = cpu.op_timer.timed(Op::new("short_conv"), work);
    let shared = SharedMut::new(bcx.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let row = unsafe { shared.slice(row * 3 * width, 3 * width) };
            let (gates, x) = row.split_at_mut(2 * width);
            x.iter_mut().zip(gates).for_each(|(x, b)| *x *= *b);
        }
    });
    let (states, out) = (SharedMut::new(values), SharedMut::new(out.values_mut()));
    let conv = Conv { batch: step.batch, bcx, taps, states, block_size, out };
    let num_seqs = conv.batch.num_seqs();
    // A block that this step fills may be what another sequence of the step goes on from: ends of
    // blocks come first, then what begins after one.
    cpu.pool.run(num_seqs, &|_, seq| conv.ends_of_blocks(conv.chunk(seq)));
    cpu.pool.run(num_seqs, &|_, seq| conv.last_state(conv.chunk(seq)));
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for row in start..end {
            let seq = conv.batch.query_start_loc.partition_point(|first| *first as usize <= row);
            let chunk = conv.chunk(seq - 1);
            let index = row - chunk.first_row;
            if index >= taps.num_before() || !conv.is_within_block(chunk) {
                conv.output(chunk, index);
            }
        }
    });
}

/// The tokens of a sequence in this step.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    first_row: usize,
    num_tokens: usize,
    /// Position of the first one.
    start: usize,
    table: &'a [u32],
}

impl Chunk<'_> {
    fn end(&self) -> usize {
        self.start + self.num_tokens
    }
}

#[derive(Clone, Copy)]
struct Conv<'a> {
    batch: &'a Batch,
    bcx: &'a Tensor,
    taps: &'a ConvTaps,
    /// (num_blocks, taps - 1, width)
    states: SharedMut<f32>,
    block_size: usize,
    out: SharedMut<f32>,
}

impl<'a> Conv<'a> {
    fn chunk(&self, seq: usize) -> Chunk<'a> {
        let first_row = self.batch.query_start_loc[seq] as usize;
        let num_tokens = self.batch.query_start_loc[seq + 1] as usize - first_row;
        let start = self.batch.positions[first_row] as usize;
        Chunk { first_row, num_tokens, start, table: self.batch.block_table(seq) }
    }

    /// It goes on in a block that it has begun, which is its own.
    fn is_within_block(&self, chunk: Chunk<'_>) -> bool {
        !chunk.start.is_multiple_of(self.block_size)
    }

    fn block_of(&self, chunk: Chunk<'_>, position: usize) -> usize {
        chunk.table[position / self.block_size] as usize
    }

    /// Where a position's input is in the state after the token before the chunk.
    fn in_state(&self, chunk: Chunk<'_>, position: usize) -> usize {
        (position + self.taps.num_before() - chunk.start) * self.taps.width
    }

    /// The input of a position, counted from `num_before` positions before the first.
    fn input(&self, chunk: Chunk<'_>, shifted: usize) -> &[f32] {
        let width = self.taps.width;
        let Some(position) = shifted.checked_sub(self.taps.num_before()) else {
            return &self.taps.zeros;
        };
        if position >= chunk.start {
            return &self.bcx.row(chunk.first_row + position - chunk.start)[2 * width..];
        }
        let slot = self.block_of(chunk, chunk.start - 1) * self.taps.num_before() * width;
        // SAFETY: the block's state is the sequence's own, read before it is written, or that of a
        // full block, which was written before.
        unsafe { self.states.slice(slot + self.in_state(chunk, position), width) }
    }

    /// One token's output.
    fn output(&self, chunk: Chunk<'_>, index: usize) {
        let width = self.taps.width;
        let row = chunk.first_row + index;
        // SAFETY: each row is written once.
        let out = unsafe { self.out.slice(row * width, width) };
        match &self.taps.bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (tap, weights) in self.taps.values.chunks_exact(width).enumerate() {
            let input = self.input(chunk, chunk.start + index + tap);
            for ((out, weight), input) in out.iter_mut().zip(weights).zip(input) {
                *out += weight * input;
            }
        }
        let gate = &self.bcx.row(row)[width..2 * width];
        out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= gate);
    }

    /// States at the ends of the blocks that the chunk fills. Where it goes on within a block, all
    /// its states, and before them the outputs that read the one that is there.
    fn ends_of_blocks(&self, chunk: Chunk<'_>) {
        let is_within = self.is_within_block(chunk);
        if is_within {
            let num_first = self.taps.num_before().min(chunk.num_tokens);
            (0..num_first).for_each(|index| self.output(chunk, index));
        }
        // Downward: the first block's state is what others may read.
        for block in (chunk.start / self.block_size..chunk.end().div_ceil(self.block_size)).rev() {
            let end = (block + 1) * self.block_size;
            if is_within || end <= chunk.end() {
                self.write_state(chunk, end.min(chunk.end()));
            }
        }
    }

    /// The state of the last block, where the chunk begins a block and does not fill the last one.
    fn last_state(&self, chunk: Chunk<'_>) {
        if !self.is_within_block(chunk) && !chunk.end().is_multiple_of(self.block_size) {
            self.write_state(chunk, chunk.end());
        }
    }

    /// The state after the token before `end`, in that token's block.
    fn write_state(&self, chunk: Chunk<'_>, end: usize) {
        let (width, num_before) = (self.taps.width, self.taps.num_before());
        let block = self.block_of(chunk, end - 1);
        let is_before = chunk.start > 0 && self.block_of(chunk, chunk.start - 1) == block;
        // SAFETY: the block is written by this sequence alone, and read by others after that.
        let state = unsafe { self.states.slice(block * num_before * width, num_before * width) };
        for index in 0..num_before {
            let at = index * width;
            let shifted = end + index;
            match shifted.checked_sub(num_before) {
                // The state is shifted in place: what is read lies behind what is written.
                Some(position) if is_before && position < chunk.start => {
                    let from = self.in_state(chunk, position);
                    state.copy_within(from..from + width, at);
                }
                _ => state[at..at + width].copy_from_slice(self.input(chunk, shifted)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ops::linear::SourceMatrix;

    const WIDTH: usize = 5;
    const BLOCK_SIZE: usize = 16;
    const NUM_BLOCKS: usize = 40;

    fn taps(num_taps: usize) -> ConvTaps {
        let stored = SourceMatrix::random(WIDTH, num_taps, 1, 1.0).to_vec();
        ConvTaps::new(WIDTH, &stored, Some(vec![0.25; WIDTH]))
    }

    fn bcx(seed: u64, num_tokens: usize) -> Vec<f32> {
        SourceMatrix::random(num_tokens, 3 * WIDTH, seed, 1.0).to_vec()
    }

    /// Tokens `first..end` of the sequence of a seed, over these blocks.
    struct Part<'a> {
        seed: u64,
        first: usize,
        end: usize,
        table: &'a [u32],
    }

    /// One step; outputs of its parts.
    fn step(
        device: &Device,
        taps: &ConvTaps,
        states: &mut [f32],
        parts: &[Part<'_>],
    ) -> Vec<Vec<f32>> {
        let mut batch =
            Batch { query_start_loc: vec![0], max_blocks_per_seq: 8, ..Batch::default() };
        let mut values = Vec::new();
        for part in parts {
            batch.positions.extend(part.first as u32..part.end as u32);
            batch.query_start_loc.push(batch.positions.len() as u32);
            batch.seq_lens.push(part.end as u32);
            batch.block_tables.extend(part.table);
            batch.block_tables.resize(batch.seq_lens.len() * 8, 0);
            let row = 3 * WIDTH;
            values.extend_from_slice(&bcx(part.seed, part.end)[part.first * row..part.end * row]);
        }
        let mut bcx = Tensor::from_vec(values, 3 * WIDTH);
        let mut out = Tensor::zeros(bcx.num_rows(), WIDTH);
        let states = StateLayerMut {
            values: states,
            width: taps.num_before() * WIDTH,
            block_size: BLOCK_SIZE,
        };
        short_conv(device, (&mut bcx, Step::on_host(&batch)), taps, states, &mut out);
        let rows = |pair: &[u32]| (pair[0]..pair[1]).flat_map(|row| out.row(row as usize).to_vec());
        batch.query_start_loc.windows(2).map(|pair| rows(pair).collect()).collect()
    }

    fn states(num_taps: usize) -> Vec<f32> {
        vec![f32::NAN; NUM_BLOCKS * (num_taps - 1) * WIDTH]
    }

    fn expected(num_taps: usize, seed: u64, num_tokens: usize) -> Vec<f64> {
        let stored = SourceMatrix::random(WIDTH, num_taps, 1, 1.0).to_vec();
        let bcx = bcx(seed, num_tokens);
        let at = |token: usize, column: usize| f64::from(bcx[token * 3 * WIDTH + column]);
        let output = |token: usize, column: usize| {
            let input = |before: usize| match token.checked_sub(before) {
                None => 0.0,
                Some(token) => at(token, column) * at(token, 2 * WIDTH + column),
            };
            let weight = |tap: usize| f64::from(stored[column * num_taps + tap]);
            let sum: f64 = (0..num_taps).map(|tap| weight(tap) * input(num_taps - 1 - tap)).sum();
            at(token, WIDTH + column) * (sum + 0.25)
        };
        (0..num_tokens)
            .flat_map(|t| (0..WIDTH).map(move |c| (t, c)))
            .map(|(t, c)| output(t, c))
            .collect()
    }

    #[test]
    fn agrees_with_a_naive_loop_and_bits_do_not_depend_on_chunks() {
        let device = Device::cpu(Some(2));
        for num_taps in [2, 3, 4] {
            let taps = taps(num_taps);
            let tables = [[3, 9, 1, 20, 0, 0, 0, 0], [4, 2, 30, 21, 0, 0, 0, 0]];
            let part = |seq: usize, first: usize, end: usize| Part {
                seed: seq as u64,
                first,
                end,
                table: &tables[seq],
            };
            let whole = step(&device, &taps, &mut states(num_taps), &[part(0, 0, 50)]).remove(0);
            for (got, expected) in whole.iter().zip(expected(num_taps, 0, 50)) {
                assert!((f64::from(*got) - expected).abs() < 1e-5, "{got}, not {expected}");
            }
            for chunk in [1, 2, 3, 7, 15, 16, 17, 32, 49] {
                let mut states = states(num_taps);
                let mut got = Vec::new();
                for first in (0..50).step_by(chunk) {
                    let end = (first + chunk).min(50);
                    let both = [part(1, first, end), part(0, first, end)];
                    got.extend(step(&device, &taps, &mut states, &both).remove(1));
                }
                assert_eq!(got, whole, "{num_taps} taps, chunks of {chunk}");
            }
        }
    }

    #[test]
    fn a_sequence_goes_on_from_blocks_that_another_fills_in_the_same_step() {
        let device = Device::cpu(Some(2));
        for num_taps in [2, 3, 4] {
            let taps = taps(num_taps);
            let own = [7, 8, 9, 0, 0, 0, 0, 0];
            let alone = Part { seed: 5, first: 0, end: 35, table: &own };
            let whole = step(&device, &taps, &mut states(num_taps), &[alone]).remove(0);
            for num_after in [1, 2, 3] {
                // The first sequence is the same up to position 32, and fills the two blocks.
                let mut states = states(num_taps);
                let shared = [7, 8, 10, 0, 0, 0, 0, 0];
                let first = Part { seed: 5, first: 0, end: 33, table: &own };
                let second = Part { seed: 5, first: 32, end: 32 + num_after, table: &shared };
                let outs = step(&device, &taps, &mut states, &[second, first]);
                assert_eq!(outs[0], whole[32 * WIDTH..(32 + num_after) * WIDTH]);
                let rest = Part { seed: 5, first: 32 + num_after, end: 35, table: &shared };
                if num_after < 3 {
                    let outs = step(&device, &taps, &mut states, &[rest]);
                    assert_eq!(outs[0], whole[(32 + num_after) * WIDTH..]);
                }
            }
        }
    }
}
