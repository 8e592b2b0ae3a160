// From the bytes of an image's patches to the numbers that a vision tower's first product reads.
#include "common.cuh"

// out (num_patches, 3, num_frames, band_len) = tables (3, 256)[band][samples (num_patches, 3,
// band_len)], the same for each frame. One block per patch.
KERNEL(256)
patch_values(const u8* samples, const float* tables, T* out, u32 band_len, u32 num_frames) {
  const u32 len = 3 * band_len;
  samples += u64(blockIdx.x) * len;
  out += u64(blockIdx.x) * len * num_frames;
  for (u32 i = threadIdx.x; i < len; i += blockDim.x) {
    const u32 band = i / band_len, within = i % band_len;
    const T value = from_float<T>(tables[256 * band + samples[i]]);
    for (u32 frame = 0; frame < num_frames; ++frame) {
      out[(band * num_frames + frame) * band_len + within] = value;
    }
  }
}
EXPORT(patch_values)
