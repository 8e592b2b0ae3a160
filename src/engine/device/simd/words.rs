//! Vectors of 32-bit words, and how floats come out of their bits.

#[cfg(target_arch = "x86_64")]
mod double_avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::Vector;
#[cfg(target_arch = "x86_64")]
pub(super) use double_avx2::DoubleAvx2Words;
#[cfg(target_arch = "x86_64")]
pub use double_avx2::flushed_bf16_bits;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::NeonWords;

/// As many words as a vector has floats. All operations are lane by lane.
///
/// # Safety
/// As of [`Vector`].
#[allow(clippy::missing_safety_doc, missing_docs)]
pub trait Words: Copy {
    type Floats: Vector;
    unsafe fn load(ptr: *const u32) -> Self;
    /// A byte for each lane.
    unsafe fn load_bytes(ptr: *const u8) -> Self;
    unsafe fn store(self, ptr: *mut u32);
    unsafe fn shift_right(self, bits: u32) -> Self;
    unsafe fn shift_left(self, bits: u32) -> Self;
    unsafe fn and(self, mask: u32) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    /// The floats of integers below 2^31.
    unsafe fn to_floats(self) -> Self::Floats;
    /// The floats that have these bits.
    unsafe fn as_floats(self) -> Self::Floats;
    /// The entries of a table of 16 at the lowest four bits; the others do not count.
    unsafe fn lookup(self, table: *const f32) -> Self::Floats;
    /// The E4M3 floats with these bits: a byte, and not one of its two NaN.
    unsafe fn float8(self) -> Self::Floats;
    /// The bits of bf16, rounded to nearest, ties to even.
    unsafe fn bf16_bits(floats: Self::Floats) -> Self;
    /// The bits of two bf16, the first in the low half, rounded likewise; but where the CPU has
    /// dot products of bf16, what is below their smallest normal number may be 0, as it is there.
    /// With AVX-512 this needs AVX512-BF16: see [`super::dispatch_pairs`].
    #[inline(always)]
    unsafe fn bf16_pairs(first: Self::Floats, second: Self::Floats) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { Self::bf16_bits(first).or(Self::bf16_bits(second).shift_left(16)) }
    }
    /// sums + the products of these pairs of bf16 with the pair `x`, by the CPU's dot products: see
    /// [`super::dispatch_bf16`].
    #[inline(always)]
    unsafe fn add_bf16_products(self, _x: u32, _sums: Self::Floats) -> Self::Floats {
        unreachable!("these vectors have no products of bf16")
    }
}
