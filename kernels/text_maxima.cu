// What SPLADE keeps of a text: the largest number that any of its tokens has for each word.
#include "common.cuh"

// x (num_rows, num_words): rows first_row .. end_row of a step. starts (num_texts + 1): the first
// row of each text, and the end. largest (num_texts, num_words) = the maxima of the text's rows so
// far, from its first row on; NaN comes in, and stays.
// Grid: a thread for each word; a row of blocks for each text from `first_text` on.
KERNEL(256)
text_maxima(const float* x, const u32* starts, u32 first_text, u32 first_row, u32 end_row,
            u32 num_words, float* largest) {
  const u32 word = blockIdx.x * blockDim.x + threadIdx.x;
  if (word >= num_words) return;
  const u32 text = first_text + blockIdx.y;
  const u32 start = max(starts[text], first_row), end = min(starts[text + 1], end_row);
  float* to = largest + u64(text) * num_words + word;
  float top = starts[text] >= first_row ? -infinity() : *to;
  const float* at = x + u64(start - first_row) * num_words + word;
#pragma unroll 8
  for (u32 row = start; row < end; ++row, at += num_words) {
    const float value = *at;
    top = value > top || value != value ? value : top;
  }
  *to = top;
}
EXPORT(text_maxima)
