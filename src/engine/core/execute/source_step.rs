//! `SourceStep`: a step of a model whose prompts begin with states of a source, taken apart. To the
//! scheduler a state is a token like any other. Here they are two: states, which only leave K and V
//! in the cache, and tokens, whose positions and blocks begin behind those of the states.

use super::model::cross::Sources;
use super::model::decoder::GivenRows;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::SourceSpec;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::batch::{Batch, LoraRows};

/// The parts of a step. Buffers keep their memory.
#[derive(Debug)]
pub(super) struct SourceStep {
    spec: SourceSpec,
    block_size: usize,
    /// Tokens alone.
    tokens: Batch,
    /// Where K and V of the states go.
    of_states: Batch,
    /// The tokens, as they see states.
    seen: Batch,
    /// (rows, width), grown when needed.
    states: Tensor,
}

impl SourceStep {
    /// Of a cache of such blocks.
    pub(super) fn new(spec: SourceSpec, block_size: usize) -> Self {
        assert!(spec.num_positions.is_multiple_of(block_size), "checked before it was loaded");
        let (tokens, of_states, seen) = Default::default();
        Self { spec, block_size, tokens, of_states, seen, states: Tensor::zeros(0, 1) }
    }

    /// Takes a step apart, of which these rows are states.
    ///
    /// # Errors
    /// The device has no memory for the states.
    pub(super) fn split(
        &mut self,
        device: &Device,
        batch: &Batch,
        given: &[GivenRows<'_>],
    ) -> Result<(), EngineError> {
        self.split_tokens(batch);
        self.of_states.clear();
        let num_states = self.spec.num_states as u32;
        let states = given.iter().map(|given| {
            let first = batch.positions[given.rows.start];
            let num = num_states.saturating_sub(first).min(given.rows.len() as u32);
            (given.rows.start..given.rows.start + num as usize, given.from)
        });
        let states: Vec<_> = states.filter(|(rows, _)| !rows.is_empty()).collect();
        let num_rows = states.iter().map(|(rows, _)| rows.len()).sum();
        let width = given.first().map_or(self.states.width(), |given| given.from.tensor.width());
        if self.states.width() != width || self.states.num_rows() < num_rows {
            self.states = device.tensor(num_rows, width, Precision::Activation)?;
        }
        self.states.set_num_rows(num_rows);
        let mut first = 0;
        for (rows, from) in states {
            self.of_states.slot_mapping.extend_from_slice(&batch.slot_mapping[rows.clone()]);
            let out = self.states.rows_from_mut(first);
            ops::replace_rows(device, from, out, rows.len());
            first += rows.len();
        }
        Ok(())
    }

    /// The tokens of the step that was taken apart, and what they see.
    pub(super) fn parts(&self) -> (&Batch, Sources<'_>) {
        let Self { states, of_states, seen, .. } = self;
        (&self.tokens, Sources { states, of_states, seen })
    }

    fn split_tokens(&mut self, batch: &Batch) {
        let Self { spec, block_size, tokens, seen, .. } = self;
        let num_before = spec.num_positions as u32;
        let num_blocks = spec.num_positions / *block_size;
        for part in [&mut *tokens, &mut *seen] {
            part.clear();
            part.query_start_loc.push(0);
        }
        tokens.max_blocks_per_seq = batch.max_blocks_per_seq.saturating_sub(num_blocks).max(1);
        seen.max_blocks_per_seq = num_blocks;
        // Of each token of the step, how many before it are no states.
        let mut places = Vec::with_capacity(batch.num_tokens() + 1);
        for seq in 0..batch.num_seqs() {
            let [first, end] = [0, 1].map(|at| batch.query_start_loc[seq + at] as usize);
            let of_seq = (first..end).find(|token| batch.positions[*token] >= num_before);
            let own = of_seq.unwrap_or(end);
            places.extend(std::iter::repeat_n(tokens.num_tokens() as u32, own - first));
            if own == end {
                continue;
            }
            places.extend((tokens.num_tokens() as u32..).take(end - own));
            tokens.input_ids.extend_from_slice(&batch.input_ids[own..end]);
            tokens.slot_mapping.extend_from_slice(&batch.slot_mapping[own..end]);
            let positions = batch.positions[own..end].iter().map(|at| at - num_before);
            tokens.positions.extend(positions);
            tokens.query_start_loc.push(tokens.input_ids.len() as u32);
            tokens.seq_lens.push(batch.seq_lens[seq] - num_before);
            let (of_source, behind) = batch.block_table(seq).split_at(num_blocks);
            tokens.block_tables.extend_from_slice(behind);
            seen.block_tables.extend_from_slice(of_source);
            seen.seq_lens.push(spec.num_states as u32);
        }
        places.push(tokens.num_tokens() as u32);
        let place = |token: &u32| places[*token as usize];
        tokens.logits_indices.extend(batch.logits_indices.iter().map(place));
        let logits = batch.loras.iter().map(|rows| LoraRows {
            tokens: place(&rows.tokens.start)..place(&rows.tokens.end),
            ..rows.clone()
        });
        tokens.loras.extend(logits.filter(|rows| !rows.tokens.is_empty()));
        tokens.block_copies.extend_from_slice(&batch.block_copies);
        tokens.wants_likeliest = batch.wants_likeliest;
        let num_tokens = tokens.num_tokens();
        seen.query_start_loc.clone_from(&tokens.query_start_loc);
        seen.input_ids.resize(num_tokens, 0);
        seen.positions.resize(num_tokens, spec.num_states as u32 - 1);
        seen.attended_ends.resize(num_tokens, spec.num_states as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 2: two of a source of three states, then tokens.
    fn batch() -> Batch {
        Batch {
            // States 2.. and a token; two tokens; states alone.
            input_ids: vec![9, 9, 5, 6, 7, 9, 9],
            positions: vec![2, 3, 4, 6, 7, 0, 1],
            slot_mapping: vec![22, 23, 30, 52, 53, 60, 61],
            query_start_loc: vec![0, 3, 5, 7],
            seq_lens: vec![5, 8, 2],
            block_tables: vec![10, 11, 15, 0, 20, 21, 25, 26, 30, 0, 0, 0],
            max_blocks_per_seq: 4,
            logits_indices: vec![2, 3, 4],
            ..Batch::default()
        }
    }

    #[test]
    fn tokens_are_a_step_behind_their_sources() {
        let device = Device::cpu(Some(1));
        let mut step = SourceStep::new(SourceSpec { num_states: 3, num_positions: 4 }, 2);
        let mut rows = Tensor::zeros(4, 1);
        rows.set_num_rows(4);
        rows.values_mut().copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let given = |rows_of: std::ops::Range<usize>, first| GivenRows {
            rows: rows_of,
            from: rows.rows_from(first),
            deep: Vec::new(),
        };
        step.split(&device, &batch(), &[given(0..2, 2), given(5..7, 0)]).unwrap();
        let (tokens, Sources { states, of_states, seen }) = step.parts();
        assert_eq!(
            (&tokens.input_ids[..], &tokens.positions[..]),
            (&[5, 6, 7][..], &[0, 2, 3][..])
        );
        assert_eq!(
            (&tokens.query_start_loc[..], &tokens.seq_lens[..]),
            (&[0, 1, 3][..], &[1, 4][..])
        );
        assert_eq!(
            (&tokens.slot_mapping[..], &tokens.logits_indices[..]),
            (&[30, 52, 53][..], &[0, 1, 2][..])
        );
        assert_eq!((tokens.block_table(0), tokens.block_table(1)), (&[15, 0][..], &[25, 26][..]));
        // The state behind the last one has no K and V.
        assert_eq!(
            (states.values(), &of_states.slot_mapping[..]),
            (&[3.0, 1.0, 2.0][..], &[22, 60, 61][..])
        );
        assert_eq!((&seen.seq_lens[..], seen.block_table(1)), (&[3, 3][..], &[20, 21][..]));
        assert!((0..3).all(|token| seen.attended_end(token) == 3));
    }
}
