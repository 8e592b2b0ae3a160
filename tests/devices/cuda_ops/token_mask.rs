//! token_mask against a loop.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::device::Device;
use vllm_batch::engine::ops::sample::download_row;
use vllm_batch::engine::ops::token_mask::{MaskBuffers, MaskRow, token_mask};

use crate::cuda_ops::pair::Pair;

#[test]
fn token_mask_forbids_tokens_without_their_bit_in_the_rows_that_are_named() {
    let Some(pair) = Pair::open(DType::Float32, 17, None) else { return };
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    let mut buffers = MaskBuffers::new(gpu).expect("memory");
    for (num_rows, vocab_size) in [(1, 5), (3, 64), (5, 1000), (2, 3001)] {
        let logits = pair.values(num_rows, vocab_size, 3, 1.0).values;
        let word = |index: usize| (index as u32 + 1).wrapping_mul(2_654_435_761);
        // A row without a mask, one with all its words, one that has too few, one with none.
        let (mut masks, mut words) = (Vec::new(), Vec::new());
        for row in (0..num_rows).filter(|row| row % 3 != 1) {
            let num_words = [vocab_size.div_ceil(32), vocab_size / 64, 0][row % 3];
            let first_word = words.len() as u32;
            words.extend((0..num_words).map(|index| word(row * 97 + index)));
            let (logits_row, num_words) = (row as u32, num_words as u32);
            masks.push(MaskRow { logits_row, first_word, num_words, ..MaskRow::default() });
        }
        let mut tensor = pair.gpu.upload(logits.clone(), vocab_size).expect("memory");
        token_mask(gpu, &mut tensor, (&masks, &words), &mut buffers).expect("the GPU works");
        let mut expected = logits;
        for mask in &masks {
            let own = &words[mask.first_word as usize..][..mask.num_words as usize];
            let row = &mut expected[mask.logits_row as usize * vocab_size..][..vocab_size];
            for (token, logit) in row.iter_mut().enumerate() {
                if own.get(token / 32).is_none_or(|word| word >> (token % 32) & 1 == 0) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let mut got = Vec::new();
        for (row, expected) in expected.chunks(vocab_size).enumerate() {
            download_row(gpu, &tensor, row, &mut got);
            gpu.check().expect("the GPU works");
            assert_eq!(got, expected, "row {row} of {num_rows}, {vocab_size} tokens");
        }
    }
}
