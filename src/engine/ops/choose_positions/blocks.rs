//! Choices of blocks of positions on the CPU: each head takes those with the largest products, and
//! the one that the token is in.

use std::ops::Range;

use crate::gemm::panel::PanelElement;
use vllm_batch_device::tensor::SharedMut;

use super::ChoiceSize;
use super::cpu::{ScoreRoom, Scoring, Token};
use super::select::select;

/// Positions that a thread scores at a time, about.
const CHUNK: usize = 512;

impl Scoring<'_> {
    /// Writes the choice of each token that has one into its row of `units`, (num_tokens, heads,
    /// blocks). `most`: the most positions up to a token's own.
    pub(super) fn choose_blocks<E: PanelElement>(
        &self,
        keys: &[E],
        (room, most): (&mut ScoreRoom, usize),
        (size, units): (ChoiceSize, &mut [u32]),
    ) {
        let ChoiceSize { unit, num_heads, .. } = size;
        let (num_units, num_of_token) = (size.num_units(), size.num_of_token());
        // Blocks of a token before its own.
        let num_before = |token: Token| (token.num_positions - 1) / unit;
        let most_blocks = most.div_ceil(unit);
        let stride = num_heads * most_blocks;
        let num_at_once = room.tokens_at_once(stride);
        let ScoreRoom { tokens, scores, threads } = room;
        let (threads, units) = (SharedMut::new(threads), SharedMut::new(units));
        let blocks_of_chunk = (CHUNK / unit).max(1);
        let num_chunks = most_blocks.div_ceil(blocks_of_chunk);
        for tokens in tokens.chunks(num_at_once) {
            let shared = SharedMut::new(&mut scores[..]);
            self.cpu.pool.run(tokens.len() * num_chunks, &|thread, item| {
                let (index, chunk) = (item / num_chunks, item % num_chunks);
                let token = tokens[index];
                // SAFETY: no two items with one thread index overlap.
                let room = unsafe { threads.slice(thread, 1) };
                let first = chunk * blocks_of_chunk;
                for block in first..(first + blocks_of_chunk).min(num_before(token)) {
                    let positions = (token, block * unit..(block + 1) * unit);
                    self.score_block(keys, positions, &mut room[0].0, |head, score| {
                        let at = index * stride + head * most_blocks + block;
                        // SAFETY: each item has the scores of its blocks.
                        unsafe { shared.slice(at, 1)[0] = score };
                    });
                }
            });
            let scores = &*scores;
            self.cpu.pool.run(tokens.len() * num_heads, &|thread, item| {
                let (index, head) = (item / num_heads, item % num_heads);
                let start = tokens[index].row * num_of_token + head * num_units;
                // SAFETY: as above; each item has the row of a head of a token.
                let (room, out) =
                    unsafe { (threads.slice(thread, 1), units.slice(start, num_units)) };
                let (own, before) = out.split_last_mut().expect("a block at least");
                let num_before = num_before(tokens[index]);
                *own = num_before as u32;
                if !before.is_empty() {
                    let scores = &scores[index * stride + head * most_blocks..][..num_before];
                    select(scores, &mut room[0].1, before);
                }
            });
        }
    }

    /// Gives `put` the largest product of each head with a key of some positions, which are whole
    /// panels. `room`: (num_heads, width + 1) values.
    fn score_block<E: PanelElement>(
        &self,
        keys: &[E],
        positions: (Token, Range<usize>),
        room: &mut [f32],
        put: impl Fn(usize, f32),
    ) {
        let (num_heads, width) = (self.scores.num_heads, self.kv.k_panel_width());
        let (products, largest) = room.split_at_mut(num_heads * width);
        largest.fill(f32::NEG_INFINITY);
        self.for_panels(keys, positions, products, |products| {
            for (products, largest) in products.chunks_exact(width).zip(&mut *largest) {
                // What is no number is never larger.
                products.iter().for_each(|product| *largest = largest.max(*product));
            }
        });
        largest.iter().enumerate().for_each(|(head, score)| put(head, *score));
    }
}
