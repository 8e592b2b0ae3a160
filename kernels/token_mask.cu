// Structured output: logits of tokens that may not come.
#include "logits.cuh"

struct MaskRow {
  u32 logits_row;
  u32 first_word;
  u32 num_words;
  u32 unused;
};

// logits (any, vocab_size): of the rows that are named, those without their bit become -inf. Bit i
// of word j is token 32 * j + i; tokens past the last word have none. One block per row.
KERNEL(1024) token_mask(float* logits, u32 vocab_size, const MaskRow* rows, const u32* words) {
  const MaskRow row = rows[blockIdx.x];
  float* own = logits + u64(row.logits_row) * vocab_size;
  for (u32 token = threadIdx.x; token < vocab_size; token += blockDim.x) {
    const u32 word = token / 32 < row.num_words ? words[row.first_word + token / 32] : 0;
    if (!(word >> token % 32 & 1)) own[token] = -infinity();
  }
}
EXPORT(token_mask)
