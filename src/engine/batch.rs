//! `Batch`: one step flattened, the whole interface between scheduler and executor.

/// One step's tokens, sequence after sequence. Names and meaning are vLLM's attention metadata.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// (num_tokens) token ids.
    pub input_ids: Vec<u32>,
    /// (num_tokens) absolute position of each token in its sequence.
    pub positions: Vec<u32>,
    /// (num_tokens) where its K and V go: block id * block_size + offset.
    pub slot_mapping: Vec<u32>,
    /// (num_seqs + 1) first token of each sequence in the flat axis.
    pub query_start_loc: Vec<u32>,
    /// (num_seqs) tokens of the sequence after this step: cached ones and this step's.
    pub seq_lens: Vec<u32>,
    /// (num_seqs, max_blocks_per_seq) block ids, row-major, padded with 0.
    pub block_tables: Vec<u32>,
    /// Width of `block_tables`.
    pub max_blocks_per_seq: usize,
    /// (num_logits) flat token indices whose logits are wanted, ascending.
    pub logits_indices: Vec<u32>,
}

impl Batch {
    /// Tokens of the step.
    pub fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Sequences of the step.
    pub fn num_seqs(&self) -> usize {
        self.seq_lens.len()
    }

    /// Block ids of one sequence (padded).
    pub fn block_table(&self, seq: usize) -> &[u32] {
        &self.block_tables[seq * self.max_blocks_per_seq..(seq + 1) * self.max_blocks_per_seq]
    }
}
