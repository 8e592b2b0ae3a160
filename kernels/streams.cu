// Streams beside each other (Gemma 3n): (num_rows, num_streams * width) f32, and what mixes them.
// In f32; a row's results depend on the row alone.
#include "common.cuh"

constexpr u32 MAX_STREAMS = 4;
constexpr u32 NUM_THREADS = 256;
constexpr u32 NUM_WARPS = NUM_THREADS / WARP_SIZE;

// out (num_rows, num_weights) = coefs (num_weights, num_streams) tanh(router (num_streams, width)
// x (num_rows, width)). A block for each row.
KERNEL(NUM_THREADS)
mixing_weights(const T* x, const float* router, const float* coefs, float* out, u32 width,
               u32 num_streams, u32 num_weights) {
  __shared__ float kinds[MAX_STREAMS];
  x += u64(blockIdx.x) * width;
  const u32 lane = threadIdx.x % WARP_SIZE;
  for (u32 stream = threadIdx.x / WARP_SIZE; stream < num_streams; stream += NUM_WARPS) {
    const float* of_stream = router + u64(stream) * width;
    float sum = 0.0f;
    for (u32 i = lane; i < width; i += WARP_SIZE) sum = fmaf(to_float(x[i]), of_stream[i], sum);
    sum = warp_reduce<Sum>(sum);
    if (lane == 0) kinds[stream] = tanhf(sum);
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < num_weights; i += NUM_THREADS) {
    float sum = 0.0f;
    for (u32 j = 0; j < num_streams; ++j) sum = fmaf(kinds[j], coefs[i * num_streams + j], sum);
    out[u64(blockIdx.x) * num_weights + i] = sum;
  }
}
EXPORT(mixing_weights)

// Stream i += sum over j of weights (num_rows, num_streams * num_streams)[i][j] * stream j, of all
// streams as they were. Grid (num_rows, any).
KERNEL(NUM_THREADS)
predict_streams(float* streams, const float* weights, u32 width, u32 num_streams) {
  streams += u64(blockIdx.x) * num_streams * width;
  weights += u64(blockIdx.x) * num_streams * num_streams;
  for (u32 at = blockIdx.y * NUM_THREADS + threadIdx.x; at < width;
       at += gridDim.y * NUM_THREADS) {
    float before[MAX_STREAMS];
#pragma unroll
    for (u32 j = 0; j < MAX_STREAMS; ++j) before[j] = j < num_streams ? streams[j * width + at] : 0;
#pragma unroll
    for (u32 i = 0; i < MAX_STREAMS; ++i) {
      if (i >= num_streams) continue;
      float sum = 0.0f;
#pragma unroll
      for (u32 j = 0; j < MAX_STREAMS; ++j) {
        if (j < num_streams) sum = fmaf(weights[i * num_streams + j], before[j], sum);
      }
      streams[i * width + at] = before[i] + sum;
    }
  }
}
EXPORT(predict_streams)

// Stream i += (x (num_rows, width) - stream `active`, as it was) * (weights (num_rows,
// num_streams)[i] + 1). Grid (num_rows, any).
KERNEL(NUM_THREADS)
correct_streams(float* streams, const float* x, const float* weights, u32 width, u32 num_streams,
                u32 active) {
  streams += u64(blockIdx.x) * num_streams * width;
  weights += u64(blockIdx.x) * num_streams;
  x += u64(blockIdx.x) * width;
  for (u32 at = blockIdx.y * NUM_THREADS + threadIdx.x; at < width;
       at += gridDim.y * NUM_THREADS) {
    const float news = x[at] - streams[active * width + at];
    for (u32 i = 0; i < num_streams; ++i) {
      streams[i * width + at] += news * (weights[i] + 1.0f);
    }
  }
}
EXPORT(correct_streams)

// Streams 1 .. += x (num_rows, width). Grid (num_rows, any).
KERNEL(NUM_THREADS) add_to_streams(float* streams, const T* x, u32 width, u32 num_streams) {
  streams += u64(blockIdx.x) * num_streams * width;
  x += u64(blockIdx.x) * width;
  for (u32 at = blockIdx.y * NUM_THREADS + threadIdx.x; at < width;
       at += gridDim.y * NUM_THREADS) {
    const float added = to_float(x[at]);
    for (u32 i = 1; i < num_streams; ++i) streams[i * width + at] += added;
  }
}
EXPORT(add_to_streams)

// Columns of out (num_rows, out_stride) from `out_start` on = `width` columns of x (num_rows,
// x_stride) from `x_start` on, times factors (width) if there are some. Grid (num_rows, any).
KERNEL(NUM_THREADS)
copy_stream(const float* x, u32 x_stride, u32 x_start, const float* factors, float* out,
            u32 out_stride, u32 out_start, u32 width) {
  x += u64(blockIdx.x) * x_stride + x_start;
  out += u64(blockIdx.x) * out_stride + out_start;
  for (u32 at = blockIdx.y * NUM_THREADS + threadIdx.x; at < width;
       at += gridDim.y * NUM_THREADS) {
    out[at] = factors == nullptr ? x[at] : x[at] * factors[at];
  }
}
EXPORT(copy_stream)

// Stream `stream` = x (num_rows, width) at the root mean square of stream 0. A block for each row.
KERNEL(NUM_THREADS)
set_stream(float* streams, const T* x, u32 width, u32 num_streams, u32 stream, float least) {
  __shared__ float scratch[2][WARP_SIZE];
  streams += u64(blockIdx.x) * num_streams * width;
  x += u64(blockIdx.x) * width;
  float of_first = 0.0f, of_x = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    const float value = to_float(x[i]);
    of_first = fmaf(streams[i], streams[i], of_first);
    of_x = fmaf(value, value, of_x);
  }
  of_first = block_reduce<Sum>(of_first, scratch[0]) / width;
  of_x = block_reduce<Sum>(of_x, scratch[1]) / width;
  const float factor = sqrtf(of_first) / sqrtf(fmaxf(of_x, least));
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    streams[stream * width + i] = to_float(x[i]) * factor;
  }
}
EXPORT(set_stream)

// out (num_rows, width) = the mean of all streams. Grid (num_rows, any).
KERNEL(NUM_THREADS) mean_streams(const float* streams, float* out, u32 width, u32 num_streams) {
  streams += u64(blockIdx.x) * num_streams * width;
  out += u64(blockIdx.x) * width;
  for (u32 at = blockIdx.y * NUM_THREADS + threadIdx.x; at < width;
       at += gridDim.y * NUM_THREADS) {
    float sum = 0.0f;
    for (u32 i = 0; i < num_streams; ++i) sum += streams[i * width + at];
    out[at] = sum / num_streams;
  }
}
EXPORT(mean_streams)

// The first `width` values of each row of x (num_rows, row_stride) = max(value - (mean + deviation
// * multiplier), 0), of their mean and standard deviation. A block for each row.
KERNEL(NUM_THREADS) keep_largest(T* x, u32 row_stride, u32 width, float multiplier) {
  __shared__ float scratch[2][WARP_SIZE];
  x += u64(blockIdx.x) * row_stride;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) sum += to_float(x[i]);
  const float mean = block_reduce<Sum>(sum, scratch[0]) / width;
  float squares = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    const float off = to_float(x[i]) - mean;
    squares = fmaf(off, off, squares);
  }
  const float deviation = sqrtf(block_reduce<Sum>(squares, scratch[1]) / width);
  const float least = mean + deviation * multiplier;
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    x[i] = from_float<T>(fmaxf(to_float(x[i]) - least, 0.0f));
  }
}
EXPORT(keep_largest)
