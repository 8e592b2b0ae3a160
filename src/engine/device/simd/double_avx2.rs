//! Vectors of 16 lanes where registers have eight: two of AVX2 to a vector.
//!
//! Every method does what AVX-512's does, sums in its order, so that kernels give its bits.

use std::arch::x86_64::__m256;

use super::Vector;
use super::words::DoubleAvx2Words;

/// Sixteen floats: the first eight, and the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoubleAvx2(pub(super) __m256, pub(super) __m256);

/// Methods that do the same to both halves.
macro_rules! by_halves {
    ($($name:ident($($other:ident),*);)*) => {$(
        #[inline(always)]
        unsafe fn $name(self $(, $other: Self)*) -> Self {
            // SAFETY: the promise of `Vector`.
            unsafe { Self(self.0.$name($($other.0),*), self.1.$name($($other.1),*)) }
        }
    )*};
}

/// Loads of eight elements, and of the eight behind them.
macro_rules! loads {
    ($($name:ident($element:ty);)*) => {$(
        #[inline(always)]
        unsafe fn $name(ptr: *const $element) -> Self {
            // SAFETY: the promise of `Vector`.
            unsafe { Self(__m256::$name(ptr), __m256::$name(ptr.add(8))) }
        }
    )*};
}

impl Vector for DoubleAvx2 {
    type Words = DoubleAvx2Words;
    const LANES: usize = 16;
    /// 16 registers of half the size.
    const NUM_REGISTERS: usize = 8;
    loads! {
        load(f32);
        load_bf16(u16);
        load_f16(u16);
        load_low_bf16(u32);
        load_high_bf16(u32);
    }
    by_halves! {
        add(other);
        sub(other);
        mul(other);
        div(other);
        max(other);
        min(other);
        mul_add(factor, addend);
        round();
        mul_exp2(exponent);
        zero_below(limit, other);
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { Self(__m256::splat(value), __m256::splat(value)) }
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut f32) {
        // SAFETY: the promise of `Vector`.
        unsafe {
            self.0.store(ptr);
            self.1.store(ptr.add(8));
        }
    }
    #[inline(always)]
    unsafe fn butterflies<const H: usize>(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            match H {
                8 => Self(self.0.add(self.1), self.0.sub(self.1)),
                _ => Self(self.0.butterflies::<H>(), self.1.butterflies::<H>()),
            }
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe { self.0.add(self.1).sum() }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe { self.0.max(self.1).largest() }
    }
    #[inline(always)]
    unsafe fn any_not_below(self, limit: f32) -> bool {
        // SAFETY: the promise of `Vector`.
        unsafe { self.0.any_not_below(limit) | self.1.any_not_below(limit) }
    }
}
