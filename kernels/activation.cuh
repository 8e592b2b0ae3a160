// Activation functions, in f32.
#pragma once

#include "common.cuh"

// Values of `kind`, in the order of the engine's `Activation`.
constexpr u32 SILU = 0;
constexpr u32 GELU_TANH = 1;
constexpr u32 GELU = 2;
constexpr u32 RELU = 3;
constexpr u32 RELU2 = 4;
constexpr u32 XIELU = 5;
constexpr u32 CLAMPED_SWIGLU = 6;  // Of gates only.
constexpr u32 SCALED_SILU = 7;
constexpr u32 QUICK_GELU = 8;
constexpr u32 BOUNDED_SILU = 9;  // Of gates only.

// The parameters of XIELU; of CLAMPED_SWIGLU alpha and the limit, as the first two; of SCALED_SILU
// the factor, as the first; of BOUNDED_SILU the limit, as the second.
struct XIelu {
  float alpha_p, alpha_n, beta, eps;
};

template <u32 KIND>
__device__ __forceinline__ float activated(float x, const XIelu& xielu) {
  if (KIND == SILU) return x * logistic(x);
  if (KIND == BOUNDED_SILU) {
    // The comparison lets a NaN through.
    const float value = x * logistic(x);
    return value > xielu.alpha_n ? xielu.alpha_n : value;
  }
  if (KIND == QUICK_GELU) return x * logistic(1.702f * x);
  if (KIND == SCALED_SILU) {
    const float scaled = x * xielu.alpha_p;
    return scaled * logistic(scaled);
  }
  if (KIND == GELU_TANH) {
    // (1 + tanh(y)) / 2 is the logistic function of 2 y.
    const float inner = fmaf(x * x * x, 0.044715f, x) * 1.5957691216f;
    return x * logistic(inner);
  }
  if (KIND == CLAMPED_SWIGLU) {
    // The comparison lets a NaN through.
    const float bounded = x > xielu.alpha_n ? xielu.alpha_n : x;
    return bounded * logistic(xielu.alpha_p * bounded);
  }
  if (KIND == GELU) return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
  if (KIND == XIELU) {
    // The comparisons let a NaN through.
    const float below = x > xielu.eps ? xielu.eps : x;
    const float side = x > 0.0f ? xielu.alpha_p * x * x : (expm1f(below) - x) * xielu.alpha_n;
    return side + xielu.beta * x;
  }
  const float positive = x < 0.0f ? 0.0f : x;
  return KIND == RELU2 ? positive * positive : positive;
}

// The same where the kind is known at run time; none that is of gates only.
__device__ __forceinline__ float activated_as(u32 kind, float x, const XIelu& xielu) {
  if (kind == SILU) return activated<SILU>(x, xielu);
  if (kind == GELU_TANH) return activated<GELU_TANH>(x, xielu);
  if (kind == GELU) return activated<GELU>(x, xielu);
  if (kind == RELU) return activated<RELU>(x, xielu);
  if (kind == RELU2) return activated<RELU2>(x, xielu);
  if (kind == SCALED_SILU) return activated<SCALED_SILU>(x, xielu);
  if (kind == QUICK_GELU) return activated<QUICK_GELU>(x, xielu);
  return activated<XIELU>(x, xielu);
}
