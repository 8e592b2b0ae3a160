//! Steps of whole texts. On a GPU their K and V stand in a cache of the step alone: each text has
//! the blocks behind those of the text before it, so that one table of blocks serves every step.

use super::{AttentionWork, GpuInputs, StepInputs, StepLimits, work_of};
use crate::batch::Batch;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::QkvHeads;
use vllm_batch_device::cuda::DeviceBuffer;
use vllm_batch_device::kv_cache::KV_GROUP_TOKENS;
use vllm_batch_device::{Device, Gpu, bytes_of};

/// Limits of a step of whole texts that buffers are sized by.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextLimits {
    /// Tokens of a step.
    pub max_num_tokens: usize,
    /// Texts of a step.
    pub max_num_texts: usize,
    /// Rows of a step that are wanted behind the last layer.
    pub max_num_logits: usize,
    /// Longest text.
    pub max_model_len: usize,
    /// Tokens have positions on axes.
    pub has_axes: bool,
}

impl TextLimits {
    /// Tokens of a block of K and V.
    pub const BLOCK_SIZE: usize = KV_GROUP_TOKENS;

    /// Blocks that the texts of a step take at most.
    pub fn num_blocks(self) -> usize {
        self.max_num_tokens / Self::BLOCK_SIZE + self.max_num_texts
    }
}

impl StepInputs {
    /// Room for the largest step of whole texts, to be attended to by heads in these numbers.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn of_texts(
        device: &Device,
        heads: QkvHeads,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let gpu = match device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(GpuInputs::of_texts(gpu, heads, limits)?),
        };
        Ok(Self { gpu })
    }
}

impl GpuInputs {
    fn of_texts(gpu: &Gpu, heads: QkvHeads, limits: TextLimits) -> Result<Self, EngineError> {
        let inputs = Self::new(
            gpu,
            StepLimits {
                max_num_tokens: limits.max_num_tokens,
                max_num_seqs: limits.max_num_texts,
                max_num_logits: limits.max_num_logits,
                // The table of blocks is made below.
                max_model_len: 0,
                block_size: TextLimits::BLOCK_SIZE,
                num_q_per_kv: heads.num_heads / heads.num_kv_heads,
                heads,
                attends_to_all: false,
                has_states: false,
                has_axes: limits.has_axes,
                has_whole_images: false,
                has_choices: false,
            },
        )?;
        let blocks: Vec<u32> = (0..limits.num_blocks() as u32).collect();
        let block_tables = gpu.alloc(size_of_val(&blocks[..]))?;
        gpu.upload(&block_tables, bytes_of(&blocks));
        let token_types = gpu.alloc(inputs.input_ids.bytes())?;
        let starts = gpu.alloc((limits.max_num_texts + 1) * 4)?;
        let texts = TextInputs { token_types, starts, places: TextPlaces::default() };
        Ok(Self { block_tables, texts: Some(texts), ..inputs })
    }

    /// # Panics
    /// The steps are not of texts.
    pub(super) fn texts(&self) -> &TextInputs {
        self.texts.as_ref().expect("a step of sequences has no texts")
    }
}

/// Inputs that only steps of texts have.
#[derive(Debug)]
pub(super) struct TextInputs {
    /// (num_rows)
    pub token_types: DeviceBuffer,
    /// (num_texts + 1)
    pub starts: DeviceBuffer,
    pub places: TextPlaces,
}

/// Where the texts of a step are.
#[derive(Debug, Default)]
pub(super) struct TextPlaces {
    /// (num_tokens) where each token's K and V go.
    pub slots: Vec<u32>,
    /// (num_texts)
    first_blocks: Vec<u32>,
}

impl TextPlaces {
    /// Gives each text of a step its blocks.
    pub(super) fn place(&mut self, batch: &Batch) {
        let block_size = TextLimits::BLOCK_SIZE as u32;
        self.slots.clear();
        self.first_blocks.clear();
        let mut next_block = 0;
        for text in batch.query_start_loc.windows(2) {
            let len = text[1] - text[0];
            let first_slot = next_block * block_size;
            self.first_blocks.push(next_block);
            self.slots.extend(first_slot..first_slot + len);
            next_block += len.div_ceil(block_size);
        }
    }

    /// One unit per tile of a text. All tokens may see the whole text, or as much as is seen of it.
    pub(super) fn list_work(
        &self,
        batch: &Batch,
        tokens_per_item: u32,
        work: &mut Vec<AttentionWork>,
    ) {
        let texts = batch.query_start_loc.windows(2).zip(&self.first_blocks);
        for (index, (text, first_block)) in texts.enumerate() {
            let tokens = text[0]..text[1];
            let end = batch.seen_len(index);
            let of_text = work_of(tokens, tokens_per_item, (*first_block, 0));
            work.extend(of_text.map(|work| AttentionWork { end, ..work }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NO_SLOT;
    use super::*;

    #[test]
    fn texts_have_blocks_of_their_own_one_after_the_other() {
        let mut places = TextPlaces::default();
        // What an earlier step leaves does not count.
        places.place(&Batch { query_start_loc: vec![0, 100], ..Batch::default() });
        let batch = Batch { query_start_loc: vec![0, 1, 18, 50], ..Batch::default() };
        places.place(&batch);
        assert_eq!(places.first_blocks, [0, 1, 3]);
        assert_eq!(places.slots, [0..1, 16..33, 48..80].into_iter().flatten().collect::<Vec<_>>());
        let limits = TextLimits { max_num_tokens: 50, max_num_texts: 3, ..TextLimits::default() };
        assert!(limits.num_blocks() >= 5);
        let mut work = Vec::new();
        places.list_work(&batch, 20, &mut work);
        let of = |token, num_tokens, seq, position, end| AttentionWork {
            token,
            num_tokens,
            seq,
            position,
            start: 0,
            end,
            slot: NO_SLOT,
        };
        let expected =
            [of(0, 1, 0, 0, 1), of(1, 17, 1, 0, 17), of(18, 20, 3, 0, 32), of(38, 12, 3, 20, 32)];
        assert_eq!(work, expected);
        work.clear();
        places.list_work(&Batch { seen_lens: vec![1, 9, 32], ..batch }, 20, &mut work);
        assert_eq!(work.iter().map(|work| work.end).collect::<Vec<_>>(), [1, 9, 32, 32]);
    }
}
