//! `SimulatedExecutor`: an executor whose "model" is a hash of what it reads from the KV cache.
//!
//! It keeps a token id in every KV slot, with a hash of the whole prefix up to it, as real K and V
//! depend on the whole prefix. The logits of a position are a function of all the tokens read back
//! through the block table. So a wrong block table, slot, cached block, chunk or recomputation
//! either fails an assertion or changes the generated text. Used to test the scheduler without a
//! model, over many seeds and many rows.
//!
//! What is computed with an adapter begins from a hash of its own.
//!
//! Each block has a state besides, as recurrent layers have it: the hash after the last token that
//! was computed of the block. A sequence goes on from the state of the block of its last token, and
//! that must be the state after this token. An executor without states takes drafts, after which a
//! sequence goes back to any token.

use super::executor::{Executor, ExecutorError, Logits};
use vllm_batch_base::config::LoraId;
use vllm_batch_device::Tensor;
use vllm_batch_ops::batch::Batch;

/// What a KV slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    token_id: u32,
    /// Hash of the sequence's tokens up to and with this one; 0: never written.
    prefix_hash: u64,
}

/// The state of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Tokens of the sequence that it is after.
    num_tokens: usize,
    /// Their hash.
    hash: u64,
}

/// Token ids in place of K and V.
#[derive(Debug)]
pub struct SimulatedExecutor {
    block_size: usize,
    /// (num_blocks * block_size)
    slots: Vec<Slot>,
    /// (num_blocks)
    states: Vec<State>,
    has_states: bool,
    /// (num_logits, vocab_size) of the last step.
    logits: Tensor,
}

impl SimulatedExecutor {
    /// An empty cache of `num_blocks` blocks of `block_size` tokens, those of the host included.
    pub fn new(num_blocks: usize, block_size: usize, vocab_size: usize) -> Self {
        let empty = Slot { token_id: u32::MAX, prefix_hash: 0 };
        let slots = vec![empty; num_blocks * block_size];
        let states = vec![State::default(); num_blocks];
        let logits = Tensor::zeros(0, vocab_size);
        Self { block_size, slots, states, has_states: true, logits }
    }

    /// The same with K and V alone.
    pub fn without_states(num_blocks: usize, block_size: usize, vocab_size: usize) -> Self {
        Self { has_states: false, ..Self::new(num_blocks, block_size, vocab_size) }
    }

    fn slot_of(&self, block_table: &[u32], position: usize) -> usize {
        let block = block_table[position / self.block_size] as usize;
        block * self.block_size + position % self.block_size
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        self.states[to as usize] = self.states[from as usize];
        let first_slot = |block: u32| block as usize * self.block_size;
        let (from, to) = (first_slot(from), first_slot(to));
        self.slots.copy_within(from..from + self.block_size, to);
    }

    /// Writes one sequence's new tokens.
    fn write(&mut self, batch: &Batch, seq: usize) {
        let (block_table, seed) = (batch.block_table(seq), prefix_seed(batch.lora_of(seq)));
        let rows = batch.query_start_loc[seq] as usize..batch.query_start_loc[seq + 1] as usize;
        assert!(!rows.is_empty(), "sequence {seq} has no tokens in the step");
        let start = batch.seq_lens[seq] as usize - rows.len();
        for (position, row) in (start..).zip(rows) {
            let (at, token_id) = (self.slot_of(block_table, position), batch.input_ids[row]);
            assert_eq!(batch.positions[row] as usize, position, "position of row {row}");
            assert_eq!(batch.slot_mapping[row] as usize, at, "slot of row {row}");
            let parent = match position {
                0 => seed,
                _ => self.slots[self.slot_of(block_table, position - 1)].prefix_hash,
            };
            let before = match position {
                0 => State { num_tokens: 0, hash: seed },
                _ => self.states[self.slot_of(block_table, position - 1) / self.block_size],
            };
            let expected = State { num_tokens: position, hash: parent };
            let goes_on = !self.has_states || before == expected;
            assert!(goes_on, "position {position} goes on from {before:?}, not {expected:?}");
            let hash = extend_hash(parent, token_id);
            self.slots[at] = Slot { token_id, prefix_hash: hash };
            self.states[at / self.block_size] = State { num_tokens: position + 1, hash };
        }
    }

    /// Hash of the tokens 0..=position of one sequence, read back through its block table.
    fn read_back(&self, seed: u64, block_table: &[u32], position: usize) -> u64 {
        (0..=position).fold(seed, |hash, p| {
            let slot = self.slots[self.slot_of(block_table, p)];
            assert_ne!(slot.prefix_hash, 0, "position {p} reads a slot that was never written");
            let hash = extend_hash(hash, slot.token_id);
            assert_eq!(slot.prefix_hash, hash, "position {p} reads K/V of another prefix");
            hash
        })
    }
}

impl Executor for SimulatedExecutor {
    fn execute(&mut self, batch: &Batch) -> Result<Logits<'_>, ExecutorError> {
        let num_tokens = batch.num_tokens();
        assert_eq!(batch.positions.len(), num_tokens);
        assert_eq!(batch.slot_mapping.len(), num_tokens);
        assert_eq!(batch.query_start_loc.len(), batch.num_seqs() + 1);
        assert_eq!(batch.query_start_loc[batch.num_seqs()] as usize, num_tokens);
        batch.block_copies.iter().for_each(|&(from, to)| self.copy_block(from, to));
        (0..batch.num_seqs()).for_each(|seq| self.write(batch, seq));
        self.logits.resize_rows(batch.logits_indices.len());
        let mut seq = 0;
        for (i, &row) in batch.logits_indices.iter().enumerate() {
            assert!(i == 0 || batch.logits_indices[i - 1] < row, "logits_indices ascend");
            while batch.query_start_loc[seq + 1] <= row {
                seq += 1;
            }
            let position = batch.positions[row as usize] as usize;
            let seed = prefix_seed(batch.lora_of(seq));
            let hash = self.read_back(seed, batch.block_table(seq), position);
            fill_logits(hash, self.logits.row_mut(i));
        }
        Ok(Logits { tensor: &mut self.logits, likeliest: &[] })
    }
}

/// Logits of the token after `token_ids`: what the executor gives, from a plain list.
pub fn simulated_logits(lora: Option<LoraId>, token_ids: &[u32], row: &mut [f32]) {
    let hash = token_ids.iter().fold(prefix_seed(lora), |hash, &id| extend_hash(hash, id));
    fill_logits(hash, row);
}

/// What prefixes that are computed with an adapter begin from.
fn prefix_seed(lora: Option<LoraId>) -> u64 {
    lora.map_or(PREFIX_SEED, |LoraId(index)| mix(PREFIX_SEED ^ (u64::from(index) + 1)))
}

const PREFIX_SEED: u64 = 0x243F_6A88_85A3_08D3;

/// Never 0, which marks a slot that was never written.
fn extend_hash(hash: u64, token_id: u32) -> u64 {
    mix(hash ^ u64::from(token_id).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// One clear winner, `hash % vocab_size`, over logits spread in [-1, 1).
fn fill_logits(hash: u64, row: &mut [f32]) {
    let mut state = hash;
    for logit in row.iter_mut() {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        *logit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    }
    row[(hash % row.len() as u64) as usize] = 2.0;
}
