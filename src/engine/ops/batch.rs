//! `Batch`: one step flattened, the whole interface between scheduler and executor.

use std::ops::Range;

use vllm_batch_base::config::LoraId;

/// The rows of a step that are computed with one adapter: they lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraRows {
    /// Adapter of the rows.
    pub lora: LoraId,
    /// Their tokens in the flat axis.
    pub tokens: Range<u32>,
    /// Their entries of `logits_indices`.
    pub logits: Range<u32>,
}

impl LoraRows {
    /// Adds the next rows of a step: to those of their adapter, which lie directly before them, or
    /// as its first ones.
    ///
    /// # Panics
    /// Others lie between.
    pub fn add(all: &mut Vec<Self>, lora: Option<LoraId>, tokens: Range<u32>, logits: Range<u32>) {
        let Some(lora) = lora else { return };
        match all.last_mut().filter(|rows| rows.lora == lora) {
            None => all.push(Self { lora, tokens, logits }),
            Some(rows) => {
                assert_eq!(rows.tokens.end, tokens.start, "rows of an adapter lie together");
                rows.tokens.end = tokens.end;
                rows.logits.end = logits.end;
            }
        }
    }
}

/// Counts of adapters over all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoraCounts {
    /// Those that were loaded, one as often as it was.
    pub num_loads: u64,
    /// Those that are loaded.
    pub num_resident: usize,
}

/// Steps whose attention was computed in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Steps with rows in parts.
    pub num_steps: u64,
    /// Those of them in which parts were of several rows.
    pub num_shared_steps: u64,
}

impl PartCounts {
    /// Counts a step: whether it has parts, and whether some are of several rows.
    pub fn add_step(&mut self, (has_parts, shares): (bool, bool)) {
        self.num_steps += u64::from(has_parts);
        self.num_shared_steps += u64::from(shares);
    }
}

/// Rows of a step that a vision tower gives in place of the table of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaRows {
    /// The medium, by the number that it has among all of the engine.
    pub medium: u64,
    /// First of its tokens that is here.
    pub first_token: u32,
    /// Their places in the flat axis.
    pub rows: Range<u32>,
}

/// One step's tokens, sequence after sequence. Names and meaning are vLLM's attention metadata.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// (num_tokens) token ids.
    pub input_ids: Vec<u32>,
    /// (num_tokens) absolute position of each token in its sequence.
    pub positions: Vec<u32>,
    /// (num_tokens) or empty: positions of each token on three axes, which its rotary embedding is
    /// of in the place of `positions`. Those of text are equal.
    pub axes: Vec<[u32; 3]>,
    /// Where what each token attends to ends, up to the last token of an image whose tokens attend
    /// to all of it: own position + 1 of others, and of those behind. No token's is less than that
    /// of one before it in its sequence, nor more than `seq_lens`.
    pub attended_ends: Vec<u32>,
    /// (num_seqs) or fewer: tokens of each sequence that see all of each other, also past a window;
    /// 0 of those that are not there.
    pub prefix_lens: Vec<u32>,
    /// (num_texts) or empty: tokens of each text that are seen, the first ones, of a vision tower's
    /// step; empty: all.
    pub seen_lens: Vec<u32>,
    /// (num_tokens) segment of each token, of an encoder's step; else empty.
    pub token_types: Vec<u32>,
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
    /// (num_logits) flat token indices whose logits are wanted, ascending. Of a vision tower's
    /// step, patches in the order of tokens.
    pub logits_indices: Vec<u32>,
    /// (num_tokens) or empty: of a step ahead, rows of the step before whose sampled tokens are the
    /// `input_ids`, which are unknown here; `KNOWN` of others.
    pub sampled_rows: Vec<u32>,
    /// KV blocks whose contents, of all layers, are copied before the forward pass, one after the
    /// other: from and to. Those of the host come after those of the device.
    pub block_copies: Vec<(u32, u32)>,
    /// Tokens of media, in the order of their rows: their ids here are the model's placeholder.
    pub media: Vec<MediaRows>,
    /// Adapters of the step, each once, in the order of their rows. Other rows have none.
    pub loras: Vec<LoraRows>,
    /// Whether nobody looks at more of any row's logits than which token is the likeliest; who
    /// samples says so.
    pub wants_likeliest: bool,
}

impl Batch {
    /// In `sampled_rows`: the token is known.
    pub const KNOWN: u32 = u32::MAX;

    /// A step of the kinds that there are, in the first of so many blocks: what is run so that a
    /// GPU has compiled its kernels before the first row. What it writes is overwritten before
    /// anything reads it.
    pub fn warm_up(num_blocks: usize, block_size: usize) -> Self {
        let block_size = block_size as u32;
        let block = 1.min(num_blocks as u32 - 1);
        Batch {
            input_ids: vec![0; 3],
            positions: vec![0, 1, 0],
            axes: Vec::new(),
            attended_ends: Vec::new(),
            prefix_lens: Vec::new(),
            seen_lens: Vec::new(),
            token_types: Vec::new(),
            slot_mapping: vec![0, 1, block * block_size + 2],
            query_start_loc: vec![0, 2, 3],
            seq_lens: vec![2, 1],
            block_tables: vec![0, block],
            max_blocks_per_seq: 1,
            logits_indices: vec![1, 2],
            sampled_rows: Vec::new(),
            block_copies: Vec::new(),
            media: Vec::new(),
            loras: Vec::new(),
            wants_likeliest: false,
        }
    }

    /// Empties it; buffers keep their memory.
    pub fn clear(&mut self) {
        for buffer in [
            &mut self.input_ids,
            &mut self.positions,
            &mut self.attended_ends,
            &mut self.prefix_lens,
            &mut self.seen_lens,
            &mut self.slot_mapping,
            &mut self.query_start_loc,
            &mut self.seq_lens,
            &mut self.block_tables,
            &mut self.logits_indices,
            &mut self.sampled_rows,
        ] {
            buffer.clear();
        }
        self.axes.clear();
        self.block_copies.clear();
        self.media.clear();
        self.loras.clear();
        self.wants_likeliest = false;
    }

    /// The same with blocks that are numbered from this one on.
    pub fn from_block(&self, first: u32, block_size: u32) -> Self {
        let mut own = self.clone();
        own.slot_mapping.iter_mut().for_each(|slot| *slot += first * block_size);
        own.block_tables.iter_mut().for_each(|block| *block += first);
        own.block_copies.iter_mut().for_each(|(from, to)| {
            *from += first;
            *to += first;
        });
        own
    }

    /// Tokens of a text that its tokens see, of a step of whole texts.
    pub fn seen_len(&self, text: usize) -> u32 {
        let len = self.query_start_loc[text + 1] - self.query_start_loc[text];
        self.seen_lens.get(text).copied().unwrap_or(len)
    }

    /// The last sequence, from this token on, is computed with an adapter, or with none. Its tokens
    /// and logits are there.
    pub fn add_lora(&mut self, lora: Option<LoraId>, first_token: usize) {
        let first_token = first_token as u32;
        let is_before = |index: &u32| *index < first_token;
        let first_logit = self.logits_indices.partition_point(is_before) as u32;
        let tokens = first_token..self.input_ids.len() as u32;
        let logits = first_logit..self.logits_indices.len() as u32;
        LoraRows::add(&mut self.loras, lora, tokens, logits);
    }

    /// Tokens of an image attend to all of it, which ends at this position. Those before them are
    /// there already.
    pub fn attend_to_image(&mut self, rows: Range<usize>, end: u32) {
        for token in self.attended_ends.len()..rows.end {
            let own_end = self.positions[token] + 1;
            self.attended_ends.push(if token < rows.start { own_end } else { end });
        }
    }

    /// So many tokens of the last sequence see all of each other, also past a window.
    pub fn set_prefix_len(&mut self, len: usize) {
        self.prefix_lens.resize(self.seq_lens.len(), 0);
        self.prefix_lens.push(len as u32);
    }

    /// Tokens of a sequence that see all of each other, also past a window.
    pub fn prefix_len(&self, seq: usize) -> usize {
        self.prefix_lens.get(seq).map_or(0, |len| *len as usize)
    }

    /// Where what a token attends to ends.
    pub fn attended_end(&self, token: usize) -> u32 {
        self.attended_ends.get(token).copied().unwrap_or_else(|| self.positions[token] + 1)
    }

    /// Tokens of the step.
    pub fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Sequences of the step.
    pub fn num_seqs(&self) -> usize {
        self.seq_lens.len()
    }

    /// The adapter of a sequence.
    pub fn lora_of(&self, seq: usize) -> Option<LoraId> {
        let token = self.query_start_loc[seq];
        self.loras.iter().find(|rows| rows.tokens.contains(&token)).map(|rows| rows.lora)
    }

    /// Block ids of one sequence (padded).
    pub fn block_table(&self, seq: usize) -> &[u32] {
        &self.block_tables[seq * self.max_blocks_per_seq..(seq + 1) * self.max_blocks_per_seq]
    }
}
