//! Vectors without instructions of their own.

use half::f16;

use super::Vector;

/// Arrays of 8: what every CPU can run. No fused multiply-add, which would be a library call.
#[derive(Clone, Copy, Debug)]
pub struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Vector for Portable {
    type Words = [u32; 8];
    const LANES: usize = 8;
    /// SSE has sixteen of half this size.
    const NUM_REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    #[inline(always)]
    unsafe fn load(ptr: *const f32) -> Self {
        // SAFETY: the caller's promise: 8 elements.
        Self(std::array::from_fn(|lane| unsafe { *ptr.add(lane) }))
    }
    #[inline(always)]
    unsafe fn load_bf16(ptr: *const u16) -> Self {
        // SAFETY: the caller's promise: 8 elements.
        Self(std::array::from_fn(|lane| f32::from_bits(u32::from(unsafe { *ptr.add(lane) }) << 16)))
    }
    #[inline(always)]
    unsafe fn load_f16(ptr: *const u16) -> Self {
        // SAFETY: the caller's promise: 8 elements.
        Self(std::array::from_fn(|lane| f16::from_bits(unsafe { *ptr.add(lane) }).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_low_bf16(ptr: *const u32) -> Self {
        // SAFETY: the caller's promise: 8 pairs.
        Self(std::array::from_fn(|lane| f32::from_bits(unsafe { *ptr.add(lane) } << 16)))
    }
    #[inline(always)]
    unsafe fn load_high_bf16(ptr: *const u32) -> Self {
        // SAFETY: the caller's promise: 8 pairs.
        Self(std::array::from_fn(|lane| f32::from_bits(unsafe { *ptr.add(lane) } & 0xffff_0000)))
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut f32) {
        // SAFETY: the caller's promise: 8 elements.
        unsafe { ptr.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.zip(factor, |a, b| a * b).zip(addend, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    unsafe fn mul_exp2(self, exponent: Self) -> Self {
        self.zip(exponent, |value, n| value * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn zero_below(self, limit: Self, other: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < limit.0[i] { 0.0 } else { other.0[i] }))
    }
    #[inline(always)]
    unsafe fn butterflies<const H: usize>(self) -> Self {
        let v = self.0;
        Self(std::array::from_fn(|lane| match lane & H {
            0 => v[lane] + v[lane ^ H],
            _ => v[lane ^ H] - v[lane],
        }))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let v = self.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn any_not_below(self, limit: f32) -> bool {
        !self.0.into_iter().all(|lane| lane < limit)
    }
}
