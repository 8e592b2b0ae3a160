// wgmma on the shim. A warp's product reads operand b through its descriptor when it is started;
// its sums are kept here, and NaN stands in the accumulators, until it is waited for. Then what it
// read must be as it was. At the end of a block the four warps of a group have started the same
// products.
//
// Included by wgmma.cuh alone, after ptx.cuh.
#pragma once

#include <vector>

namespace shim {

constexpr u32 PRODUCT_COLUMNS = 64, PRODUCT_DEPTH = 16, SUMS = PRODUCT_COLUMNS / 2;

// 16 bytes of shared memory as a product has read them.
struct ReadChunk {
  const void* at;
  u32 group;
  u8 bytes[16];
};

// What is to come of the accumulators of a warp's lanes.
struct PendingSums {
  float* to[32];
  u32 group;  // the last one that adds to them
  float sums[32][SUMS];
};

struct WarpProducts {
  std::vector<PendingSums> pending;
  std::vector<ReadChunk> reads;
  u32 open_group = 0;
  bool is_fenced = false;
  u64 history = 0;  // a hash of what the warp has started

  void note(u64 what) { history = (history ^ what) * 0x9E3779B97F4A7C15ull + 1; }
};

inline WarpProducts& products_of(u32 warp) {
  static WarpProducts all[32];
  return all[warp];
}
inline WarpProducts& own_products() { return products_of(threadIdx.x / 32); }

inline const char* end_products() {
  const char* problem = nullptr;
  for (u32 warp = 0; warp < 32; ++warp) {
    if (products_of(warp).history != products_of(warp & ~3u).history)
      problem = "the warps of a group have started different products";
    if (!products_of(warp).pending.empty()) problem = "a product was not waited for";
  }
  for (u32 warp = 0; warp < 32; ++warp) products_of(warp) = {};
  return problem;
}
inline const int checks_products = (check_after_blocks(end_products), 0);

struct ProductArgs {
  float* d;
  const u32* a;
  u64 b;
};

// Operand b (16, 64) of a descriptor. Noted as read.
template <bool is_transposed>
void read_operand(u64 b, WarpProducts& products, u16 (&values)[PRODUCT_DEPTH][PRODUCT_COLUMNS]) {
  const u32 start = u32(b & 0x3FFF) << 4, stride = u32(b >> 32 & 0x3FFF) << 4;
  if (b >> 62 != 1) fail("wgmma: the shim knows the 128-byte swizzle alone");
  if (b >> 49 & 7 || start % 1024 >= 128) fail("wgmma: a pattern of 8 rows begins off its place");
  const u32 num_rows = is_transposed ? PRODUCT_DEPTH : PRODUCT_COLUMNS;
  const u32 num_chunks = (is_transposed ? PRODUCT_COLUMNS : PRODUCT_DEPTH) / 8;
  for (u32 row = 0; row < num_rows; ++row) {
    for (u32 chunk = 0; chunk < num_chunks; ++chunk) {
      const u32 plain = start + row / 8 * stride + row % 8 * 128 + chunk * 16;
      const u32 swizzled = plain ^ (plain >> 7 & 7) << 4;
      ReadChunk read = {read_by_async_proxy(swizzled), products.open_group, {}};
      memcpy(read.bytes, read.at, 16);
      for (u32 i = 0; i < 8; ++i) {
        u16& to = is_transposed ? values[row][chunk * 8 + i] : values[chunk * 8 + i][row];
        memcpy(&to, &read.bytes[2 * i], 2);
      }
      products.reads.push_back(read);
    }
  }
}

// The sums that a product adds to: zeros, its accumulators, or what is to come of them.
template <bool adds>
PendingSums& open_sums(void** payloads, WarpProducts& products) {
  const auto d_of = [&](u32 lane) { return static_cast<ProductArgs*>(payloads[lane])->d; };
  for (PendingSums& sums : products.pending) {
    if (sums.to[0] != d_of(0)) continue;
    if (!adds) memset(sums.sums, 0, sizeof(sums.sums));
    return sums;
  }
  if (!products.is_fenced) fail("wgmma without wgmma.fence before it");
  products.pending.push_back({});
  PendingSums& sums = products.pending.back();
  for (u32 lane = 0; lane < 32; ++lane) {
    sums.to[lane] = d_of(lane);
    if (adds) memcpy(sums.sums[lane], sums.to[lane], sizeof(sums.sums[lane]));
    memset(sums.to[lane], 0xFF, sizeof(sums.sums[lane]));
  }
  return sums;
}

inline void check_untouched(const PendingSums& sums) {
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < SUMS; ++i) {
      if (bit_cast<u32>(sums.to[lane][i]) != 0xFFFFFFFFu)
        fail("accumulators were written while a product was under way");
    }
  }
}

template <class E, bool is_transposed, bool adds>
void product_lanes(void** payloads, u32 mask) {
  if (mask != FULL_WARP) fail("wgmma in a part of a warp");
  WarpProducts& products = own_products();
  const u64 b = static_cast<ProductArgs*>(payloads[0])->b;
  products.note(b);
  static u16 bits[PRODUCT_DEPTH][PRODUCT_COLUMNS];
  read_operand<is_transposed>(b, products, bits);
  static float right[PRODUCT_DEPTH][PRODUCT_COLUMNS], left[16][PRODUCT_DEPTH];
  for (u32 k = 0; k < PRODUCT_DEPTH; ++k)
    for (u32 n = 0; n < PRODUCT_COLUMNS; ++n) right[k][n] = to_float(E{bits[k][n]});
  for (u32 lane = 0; lane < 32; ++lane) {
    const auto* args = static_cast<ProductArgs*>(payloads[lane]);
    if (args->b != b) fail("wgmma: lanes of a warp describe different operands");
    for (u32 i = 0; i < 4; ++i)
      for (u32 half = 0; half < 2; ++half)
        left[lane / 4 + i % 2 * 8][lane % 4 * 2 + half + i / 2 * 8] = half_of<E>(args->a[i], half);
  }
  PendingSums& sums = open_sums<adds>(payloads, products);
  check_untouched(sums);
  sums.group = products.open_group;
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < SUMS; ++i) {
      const u32 row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = sums.sums[lane][i];
      for (u32 k = 0; k < PRODUCT_DEPTH; ++k) sum += left[row][k] * right[k][column];
      sums.sums[lane][i] = sum;
    }
  }
}

template <class E, bool is_transposed, bool adds>
void start_product(float* d, const u32* a, u64 b) {
  ProductArgs args{d, a, b};
  warp_collective(FULL_WARP, &args, product_lanes<E, is_transposed, adds>);
}

inline void fence_lanes(void**, u32) { own_products().is_fenced = true; }
inline void fence_products() { warp_collective(FULL_WARP, nullptr, fence_lanes); }

inline void commit_lanes(void**, u32) {
  WarpProducts& products = own_products();
  ++products.open_group;
  products.is_fenced = false;
}
inline void commit_products() { warp_collective(FULL_WARP, nullptr, commit_lanes); }

// Ends the groups before `first_left`.
inline void end_groups(WarpProducts& products, u32 first_left) {
  std::vector<ReadChunk> reads;
  for (const ReadChunk& read : products.reads) {
    if (read.group >= first_left) reads.push_back(read);
    else if (memcmp(read.at, read.bytes, 16) != 0)
      fail("shared memory was written while a product was reading it");
  }
  products.reads.swap(reads);
  std::vector<PendingSums> pending;
  for (const PendingSums& sums : products.pending) {
    check_untouched(sums);
    if (sums.group >= first_left) pending.push_back(sums);
    else
      for (u32 lane = 0; lane < 32; ++lane)
        memcpy(sums.to[lane], sums.sums[lane], sizeof(sums.sums[lane]));
  }
  products.pending.swap(pending);
}

inline void wait_lanes(void** payloads, u32) {
  WarpProducts& products = own_products();
  const u32 groups_left = *static_cast<u32*>(payloads[0]);
  end_groups(products, products.open_group - Min()(groups_left, products.open_group));
}
inline void wait_products(u32 groups_left) {
  warp_collective(FULL_WARP, &groups_left, wait_lanes);
}

}  // namespace shim
