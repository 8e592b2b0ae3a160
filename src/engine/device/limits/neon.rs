//! Dot products of aarch64, the instructions of `ops::linear` without its loads: rounds of one per
//! accumulator, none of which can be computed beforehand.

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;
use std::hint::black_box;

use crate::simd::neon::dots::{add_dots, add_pair_products, add_products};
use vllm_batch_base::isa::Isa;

/// As many as hide the latency and fit the registers.
const NUM: usize = 16;

/// Operations of a round: 4 lanes of four products.
pub(super) const SDOT_FLOPS: f64 = 2.0 * 4.0 * 4.0 * NUM as f64;
/// 4 lanes of eight products.
pub(super) const SMMLA_FLOPS: f64 = 2.0 * 8.0 * 4.0 * NUM as f64;

/// 4 lanes of four products of bf16.
pub(super) const BFMMLA_FLOPS: f64 = 2.0 * 4.0 * 4.0 * NUM as f64;

pub(super) fn bfmmlas(isa: Isa, num_rounds: usize) {
    assert!(isa == Isa::NeonBf16 && isa.is_available());
    // SAFETY: this CPU has the set.
    unsafe { bfmmla(num_rounds) }
}

pub(super) fn sdots(_: Isa, num_rounds: usize) {
    assert!(is_aarch64_feature_detected!("dotprod"));
    // SAFETY: this CPU has the instruction.
    unsafe { sdot(num_rounds) }
}

pub(super) fn smmlas(_: Isa, num_rounds: usize) {
    assert!(is_aarch64_feature_detected!("i8mm"));
    // SAFETY: this CPU has the instruction.
    unsafe { smmla(num_rounds) }
}

/// Rounds of one instruction, which `$step` adds with.
macro_rules! rounds {
    ($name:ident, $features:literal, $step:expr) => {
        /// # Safety
        /// The CPU has the instruction.
        #[target_feature(enable = $features)]
        unsafe fn $name(num_rounds: usize) {
            let x = vdupq_n_u32(black_box(0x0102_0304));
            let mut sums: [int32x4_t; NUM] =
                std::array::from_fn(|index| vdupq_n_s32(black_box(index as i32)));
            for _ in 0..num_rounds {
                for sum in &mut sums {
                    // SAFETY: the caller's promise.
                    *sum = unsafe { $step(*sum, x, x) };
                }
            }
            for sum in sums {
                black_box(vaddvq_s32(sum));
            }
        }
    };
}

rounds!(sdot, "neon,dotprod", add_dots::<0>);
rounds!(smmla, "neon,i8mm", add_products);
rounds!(bfmmla, "neon,bf16", add_bits);

/// Floats as bits, as the rounds have them.
///
/// # Safety
/// The CPU has `bfmmla`.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn add_bits(sums: int32x4_t, rows: uint32x4_t, others: uint32x4_t) -> int32x4_t {
    // SAFETY: the caller's promise.
    vreinterpretq_s32_f32(unsafe { add_pair_products(vreinterpretq_f32_s32(sums), rows, others) })
}
