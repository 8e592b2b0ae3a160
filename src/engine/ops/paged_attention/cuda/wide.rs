//! Launch sizes of kernels/wide_attention.cu, which derives its own from the same numbers.

use super::{ROWS, TILE};
use vllm_batch_device::cuda::Properties;

/// Tile of a block of the kernel. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub entry: &'static str,
    /// Rows, each a query token with a query head.
    pub num_rows: usize,
    pub threads: u32,
    /// Bytes of shared memory.
    pub smem: usize,
}

/// Rows of the largest block.
pub(super) const MAX_ROWS: usize = 64;

/// Entry, rows, threads.
const BLOCKS: [(&str, usize, u32); 3] = [
    ("wide_attention_64", MAX_ROWS, 256),
    ("wide_attention_32", 32, 256),
    ("wide_attention_16", 16, 128),
];

impl Block {
    /// For work items of so many rows: the largest that fits, and is not mostly empty.
    pub(super) fn new(num_rows: usize, head_dim: usize, properties: &Properties) -> Self {
        let smem = properties.max_smem_per_block_bytes >> 10 << 10;
        let of = |(entry, rows, threads)| Self {
            entry,
            num_rows: rows,
            threads,
            smem: bytes(rows, head_dim),
        };
        let mut blocks = BLOCKS.into_iter().map(of);
        let is_good = |block: &Self| {
            block.num_rows == ROWS || (block.smem <= smem && num_rows > block.num_rows / 2)
        };
        blocks.find(is_good).expect("the smallest takes any number")
    }
}

/// Queries, then two tiles, then scores.
fn bytes(num_rows: usize, head_dim: usize) -> usize {
    let head_dim = head_dim.next_multiple_of(ROWS);
    let row = 2 * head_dim + if head_dim.is_multiple_of(64) { 0 } else { 16 };
    (num_rows * row).next_multiple_of(128) + 2 * TILE * row + num_rows * TILE * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_every_generation_and_are_not_mostly_empty() {
        for (smem_kb, rows, head_dim, expected) in [
            // DeepSeek V3 and V2-Lite, MiniCPM3, Gemma 4.
            (227, 128, 576, 64),
            (163, 128, 576, 64),
            (99, 128, 576, 16),
            (227, 16, 576, 16),
            (227, 20, 576, 32),
            (99, 40, 288, 64),
            (163, 8, 512, 16),
            (163, 64, 512, 64),
            (99, 64, 512, 16),
            (99, 1, 8, 16),
        ] {
            let properties = Properties {
                name: String::new(),
                compute_capability: (9, 0),
                num_sms: 1,
                max_smem_per_block_bytes: smem_kb << 10,
                max_launch_positions: None,
            };
            let block = Block::new(rows, head_dim, &properties);
            assert!(block.smem <= smem_kb << 10, "{block:?}");
            assert_eq!(block.num_rows, expected, "{rows} rows of {head_dim}, {smem_kb} KB");
        }
        assert_eq!(bytes(64, 576), 155_648);
    }
}
