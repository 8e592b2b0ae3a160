//! Chunks of few tokens behind long contexts: the ends of long prompts, and rows with guesses.
//! Their units of prefill would be few chains of many splits, with most of the GPU idle. In parts,
//! the splits before the chunk are units of all of its tokens, and each token computes the rest as
//! a row that decodes.

use crate::batch::Batch;
use crate::step::AttentionWork;

use super::{Group, MIN_CUT_SPLITS, Plan, Row, SHARED_PRICE, SPLIT, Shape, slots_of};

/// Splits that launches take which a step would not have without parts.
const LAUNCHES_PRICE: usize = 2;

/// A chunk that may be cut.
struct Chunk {
    /// Sequence in the batch.
    seq: usize,
    num_tokens: usize,
    /// Splits that end before its first token.
    num_splits: usize,
    /// Splits of a unit behind these, of the last token.
    rest: usize,
}

impl Chunk {
    fn of(batch: &Batch, seq: usize) -> Self {
        let tokens = batch.query_start_loc[seq]..batch.query_start_loc[seq + 1];
        let num_splits = ((batch.seq_lens[seq] - tokens.len() as u32) / SPLIT) as usize;
        let rest = batch.seq_lens[seq].div_ceil(SPLIT) as usize - num_splits;
        Self { seq, num_tokens: tokens.len(), num_splits, rest }
    }

    /// Splits of a unit of several tokens, if cutting pays with so many slots. `share`: those of a
    /// block, if the units of all prompts were spread over the GPU.
    fn part(&self, share: usize, shape: Shape, num_slots: usize) -> Option<usize> {
        let of_token = num_slots / self.num_tokens;
        // The first unit of a token keeps one slot, whatever its length.
        let fewest = (self.num_splits + 1 + self.rest).saturating_sub(of_token);
        let part = share.div_ceil(2).max(fewest).max(1);
        if self.num_splits < MIN_CUT_SPLITS || self.num_splits <= 2 * part {
            return None;
        }
        let saved = SHARED_PRICE * (self.num_splits - share.max(part));
        let rests = self.num_tokens * self.rest * shape.num_kv_heads;
        let fits = self.num_tokens * (slots_of(self.num_splits, part) + self.rest) <= num_slots;
        (fits && saved > rests.div_ceil(shape.decode_blocks) + LAUNCHES_PRICE).then_some(part)
    }
}

impl Plan {
    /// Lists the parts of chunks where that pays; `prefill` are the units of all chunks as a whole.
    pub(super) fn cut_chunks(&mut self, batch: &Batch, shape: Shape, prefill: &[AttentionWork]) {
        let splits = |work: &AttentionWork| (work.end - work.start).div_ceil(SPLIT) as usize;
        let num_splits = shape.num_kv_heads * prefill.iter().map(splits).sum::<usize>();
        let share = num_splits.div_ceil(shape.shared_blocks);
        for chunk in (0..batch.num_seqs()).map(|seq| Chunk::of(batch, seq)) {
            if chunk.num_tokens < 2 {
                continue;
            }
            let num_slots = shape.max_slots - self.num_slots;
            let Some(part) = chunk.part(share, shape, num_slots) else { continue };
            let first = self.rows.len();
            let seq = (chunk.seq * batch.max_blocks_per_seq) as u32;
            let last = batch.query_start_loc[chunk.seq + 1] - 1;
            self.rows.extend((0..chunk.num_tokens as u32).rev().map(|behind| Row {
                token: last - behind,
                seq,
                seq_len: batch.seq_lens[chunk.seq] - behind,
                depth: chunk.num_splits,
                shared: 0,
                slot: None,
            }));
            let group = Group { rows: first..self.rows.len(), num_splits: chunk.num_splits };
            self.add_group(&group, part, shape.shared_tokens);
            self.cut_seqs.push(seq);
        }
    }
}
