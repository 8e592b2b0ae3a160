//! Dot products of int8 and of bf16. Their intrinsics are not stable, so the instructions are
//! spelled out.
//!
//! `bfdot` and `bfmmla` add a pair of products to each other, then to the sum. Both additions, and
//! products, are rounded to odd; what is denormal counts as zero, before and after. Arm's manual
//! says so (`BFDotAdd`) of all CPUs while FPCR.EBF is 0, as Linux leaves it, so a sum of pairs has
//! the same bits by either.

#[cfg(test)]
mod tests;

use std::arch::aarch64::*;
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

/// Two words of each of two rows, as `smmla` and `bfmmla` take them; of rows that have one word
/// left, that one and a zero.
///
/// # Safety
/// The pointers are valid for the words; the CPU has NEON.
#[inline(always)]
pub unsafe fn words_of_rows(first: *const u32, second: *const u32, is_whole: bool) -> uint32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        match is_whole {
            true => vcombine_u32(vld1_u32(first), vld1_u32(second)),
            false => vcombine_u32(vcreate_u32((*first).into()), vcreate_u32((*second).into())),
        }
    }
}

/// sums + by lane the products of two bf16 of `weights` with the two of `x`.
///
/// # Safety
/// The CPU has `bfdot`, and the function that this becomes a part of is compiled for it.
#[inline(always)]
pub unsafe fn add_pairs(mut sums: float32x4_t, weights: uint32x4_t, x: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "bfdot {sums:v}.4s, {weights:v}.8h, {x:v}.8h",
            sums = inlateout(vreg) sums,
            weights = in(vreg) weights,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// sums + the products of two rows of four bf16 with two others, in the order of
/// [`add_products`]; of each, one pair after the other.
///
/// # Safety
/// The CPU has `bfmmla`.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub unsafe fn add_pair_products(
    mut sums: float32x4_t,
    rows: uint32x4_t,
    others: uint32x4_t,
) -> float32x4_t {
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "bfmmla {sums:v}.4s, {rows:v}.8h, {others:v}.8h",
            sums = inlateout(vreg) sums,
            rows = in(vreg) rows,
            others = in(vreg) others,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Eight floats as bf16, two to a word, rounded to nearest, ties to even.
///
/// # Safety
/// The CPU has `bfcvtn`.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub unsafe fn narrowed(first: float32x4_t, second: float32x4_t) -> uint32x4_t {
    let words: uint32x4_t;
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "bfcvtn {words:v}.4h, {first:v}.4s",
            "bfcvtn2 {words:v}.8h, {second:v}.4s",
            words = out(vreg) words,
            first = in(vreg) first,
            second = in(vreg) second,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    words
}
