// The token ids of a step whose tokens the host does not know yet: what the step before sampled.
#include "common.cuh"

struct SampleResult {
  u32 token;
  u32 status;
};

// In rows: the token is known.
constexpr u32 KNOWN = 0xffffffffu;

// input_ids[i] = the token of results[rows[i]] (num_rows), or 0 where none was sampled: what comes
// of such a row is not used. Tokens that are known stay.
KERNEL(256)
take_sampled(const SampleResult* results, const u32* rows, u32* input_ids, u32 num_rows) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= num_rows || rows[i] == KNOWN) return;
  const SampleResult result = results[rows[i]];
  input_ids[i] = result.status == 0 ? result.token : 0;
}
EXPORT(take_sampled)
