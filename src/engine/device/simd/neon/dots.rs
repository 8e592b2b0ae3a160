//! Dot products of int8. Their intrinsics are not stable, so the instructions are spelled out.

use std::arch::aarch64::{int32x4_t, uint32x4_t};
use std::arch::asm;

/// sums + by lane the products of four int8 of `weights` with the four of lane `LANE` of `x`.
///
/// # Safety
/// The CPU has `sdot`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn add_dots<const LANE: usize>(
    mut sums: int32x4_t,
    weights: uint32x4_t,
    x: uint32x4_t,
) -> int32x4_t {
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {weights:v}.16b, {x:v}.4b[{lane}]",
            sums = inlateout(vreg) sums,
            weights = in(vreg) weights,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// sums + the products of two rows of eight int8 with two others: first by first, first by second,
/// second by first, second by second.
///
/// # Safety
/// The CPU has `smmla`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub unsafe fn add_products(mut sums: int32x4_t, rows: uint32x4_t, others: uint32x4_t) -> int32x4_t {
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {rows:v}.16b, {others:v}.16b",
            sums = inlateout(vreg) sums,
            rows = in(vreg) rows,
            others = in(vreg) others,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
