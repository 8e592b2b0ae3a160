// A V that is not finite, at a position that some tokens of a work item do not see: its product
// with their weight of 0 is NaN. So after prefill this looks at the V of such positions, and adds
// those tokens to the list of decode, which has one token's positions in shared memory and no
// others. The bits are the same in both, so more tokens than need it may be added.
//
// It is apart from prefill since registers spill there.
#include "attention.cuh"

static_assert(!IS_TEXTS, "texts have no decode");

// What an element has all of if it is infinite or NaN; E4M3 has a NaN alone.
constexpr u32 not_finite_bits(u8) { return 0x7F; }
constexpr u32 not_finite_bits(bf16) { return 0x7F80; }
constexpr u32 not_finite_bits(f16) { return 0x7C00; }

// Whether all elements of a word of a cache are finite: a carry out of the exponent shows others.
__device__ __forceinline__ bool is_finite(u32 word) {
  constexpr u32 OF_ONE = not_finite_bits(Kv{}), EACH = sizeof(Kv) == 1 ? 0x01010101 : 0x00010001;
  constexpr u32 LOWEST = OF_ONE & ~(OF_ONE - 1);
  constexpr u32 SIGNS = EACH << (8 * sizeof(Kv) - 1);
  return (((word & EACH * OF_ONE) + EACH * LOWEST) & SIGNS) == 0;
}

// Adds the tokens first .. end - 1 of a work item to a list, those that are not there yet.
__device__ __forceinline__ void add_tokens(const Inputs& in, const AttentionWork& item, u32 first,
                                           u32 end, const DecodeList& list) {
  for (u32 i = first; i < end; ++i) {
    const u32 token = item.token + i, position = item.position + i, bit = 1u << token % 32;
    u32* const word = list.is_added + token / 32;
    if ((*const_cast<volatile u32*>(word) & bit) != 0 || (atomicOr(word, bit) & bit) != 0) continue;
    const u32 place = atomicAdd(list.num_items, 1u);
    const u32 seen = in.last_seen(item, position) + 1;
    list.items[place] = {token, 1, item.seq, position, 0, seen, NO_SLOT};
  }
}

// Looks at the V of a KV head where only some tokens of a work item see it: after what the first
// token sees, and where the windows begin. All threads of the block take part.
__device__ __forceinline__ void look_at(const Inputs& in, const AttentionWork& item, u32 kv_head,
                                        const DecodeList& list) {
  constexpr u32 CHUNKS = V_DIM * sizeof(Kv) / 16;
  static_assert(V_DIM * sizeof(Kv) % 16 == 0, "V is loaded by 16 bytes");
  const u32 last = item.num_tokens - 1, start = in.first_seen(item.position);
  const u32 num_left = in.first_seen(item.position + last) - start;
  const u32 first_end = in.last_seen(item, item.position) + 1;
  const u32 num_right = in.last_seen(item, item.position + last) + 1 - first_end;
  const u32* block_table = in.block_tables + u64(item.seq) * in.max_blocks_per_seq;
  for (u32 i = threadIdx.x; i < (num_left + num_right) * CHUNKS; i += blockDim.x) {
    const u32 place = i / CHUNKS;
    const bool is_left = place < num_left;
    const u32 position = is_left ? start + place : first_end + place - num_left;
    const u32 block = block_table[position / in.block_size];
    const Kv* row = in.v_cache + in.rows_offset(block * in.cache_kv_heads + kv_head, position);
    const Words<4> v = *reinterpret_cast<const Words<4>*>(row + i % CHUNKS * (16 / sizeof(Kv)));
    if (is_finite(v.word[0]) && is_finite(v.word[1]) && is_finite(v.word[2]) &&
        is_finite(v.word[3])) {
      continue;
    }
    // Windows or chunks that begin after it, or tokens before it.
    const u32 first = is_left ? in.first_blind(position) - item.position : 0;
    const bool are_all = is_left || HAS_IMAGES;
    add_tokens(in, item, first, are_all ? item.num_tokens : position - item.position, list);
  }
}

// v_cache, work (num_work[0]) and block_tables as prefill has them; of latents v_cache is where the
// first position's V is in k_cache. Launch: 128 threads, no shared memory, any grid.
KERNEL(128)
unseen_values(const Kv* v_cache, const AttentionWork* work, const u32* num_work,
              const u32* block_tables, DecodeList list, AttentionParams params) {
  const Inputs in = {params, nullptr, nullptr, v_cache, work, block_tables};
  for (u32 unit = blockIdx.x; unit < num_work[0] * in.num_kv_heads; unit += gridDim.x) {
    look_at(in, work[unit / in.num_kv_heads], unit % in.num_kv_heads, list);
  }
}
EXPORT(unseen_values)
