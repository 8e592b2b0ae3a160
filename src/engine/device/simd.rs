//! Vectors of f32 for the CPU kernels: AVX-512, AVX2 with FMA, NEON, or plain arrays, chosen at run
//! time; and AVX2's two by two, with the lanes and so the bits of AVX-512.
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]; [`dispatch`] runs it with the
//! vector type of the instruction set, inside a function that has the target features, so that
//! everything marked `inline(always)` is compiled for them. A closure is not, as `array::from_fn`
//! takes one: each of its instructions becomes a call (`scripts/inlined-instructions` finds them).

#[cfg(target_arch = "x86_64")]
mod double_avx2;
pub mod isa;
#[cfg(target_arch = "aarch64")]
pub mod neon;
mod portable;
#[cfg(test)]
mod tests;
pub mod tiles;
mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};

use super::cuda::Plain;
pub use isa::{Bf16Products, InstructionSet, Int8Dots};
use portable::Portable;
use vllm_batch_base::config::DType;
pub use vllm_batch_base::isa::Isa;
pub use words::Words;
#[cfg(target_arch = "x86_64")]
pub use words::flushed_bf16_bits;

/// Methods that are one intrinsic call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the promise of `Vector` and `Words`: instructions, and lanes of memory.
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use intrinsics;

/// A kernel body, generic over the vector type.
pub trait Kernel {
    /// Runs it. Implementations are `inline(always)`.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    unsafe fn run<V: Vector>(self);
}

/// Runs a kernel with the vectors of an instruction set.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    match isa {
        // SAFETY: arrays need no instructions.
        Isa::Portable => unsafe { kernel.run::<Portable>() },
        _ => dispatch_vectors(isa, kernel),
    }
}

/// As [`dispatch`] for kernels that plain arrays do without: they are not compiled for them.
///
/// # Panics
/// The set has no vectors.
#[inline]
pub fn dispatch_vectors<K: Kernel>(isa: Isa, kernel: K) {
    // To ask for AMX is a call of the system.
    debug_assert!(if isa == Isa::Amx { Isa::Avx512 } else { isa }.is_available());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::detect` or `cpu_with_isa` found the instructions.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxTwin => unsafe {
            x86::run_avx512(kernel)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AmxTwinAvx2 => unsafe { x86::run_double_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every CPU of this target has NEON.
        Isa::Neon | Isa::NeonBf16 => unsafe { kernel.run::<neon::Neon>() },
        _ => {
            drop(kernel);
            unreachable!("`{}` has no vectors", isa.name())
        }
    }
}

/// As [`dispatch`] for sets that multiply pairs of bf16, with [`Words::bf16_pairs`] among the
/// instructions: kernels that do without are not compiled once more.
#[inline]
pub fn dispatch_pairs<K: Kernel>(isa: Isa, kernel: K) {
    match isa {
        // A twin of two AVX2 vectors has the lanes and the bits of one of AVX-512.
        Isa::AmxTwin if !Isa::Avx512Bf16.is_available() => {
            dispatch_vectors(Isa::AmxTwinAvx2, kernel);
        }
        Isa::AmxTwinAvx2 => dispatch_vectors(isa, kernel),
        _ => dispatch_bf16(kernel),
    }
}

/// As [`dispatch`] for the sets with dot products of bf16, which are among the instructions too:
/// AVX512-BF16, and aarch64's.
#[inline]
pub fn dispatch_bf16<K: Kernel>(kernel: K) {
    debug_assert!(Isa::Avx512Bf16.is_available() || Isa::NeonBf16.is_available());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `dispatch_vectors`.
    unsafe {
        x86::run_avx512_bf16(kernel);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `dispatch_vectors`.
    unsafe {
        neon::run_bf16(kernel);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    drop(kernel);
}

/// Asks for the cache line at `ptr`, which need not be readable.
#[inline(always)]
pub fn prefetch(ptr: *const u8) {
    // SAFETY: a prefetch of any address is allowed, and SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(ptr.cast());
    }
    #[cfg(target_arch = "aarch64")]
    neon::prefetch(ptr);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = ptr;
}

/// Asks for the cache lines of `len` values from `ptr` on, to write to them: stores wait in order,
/// each for its line. They need not be writable.
#[inline(always)]
pub fn prefetch_to_write(ptr: *const f32, len: usize) {
    for first in (0..len).step_by(16) {
        // SAFETY: a prefetch of any address is allowed, and SSE is part of x86-64.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(ptr.wrapping_add(first).cast());
        }
        #[cfg(target_arch = "aarch64")]
        neon::prefetch_to_write(ptr.wrapping_add(first).cast());
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = ptr.wrapping_add(first);
    }
}

/// An element type of weights and KV cache: plain bits, of which zeros are a value.
pub trait Element: Plain + Send + Sync + std::fmt::Debug + 'static {
    /// Name among types.
    const DTYPE: DType;
    /// From the little-endian bytes of one.
    fn from_le_bytes(bytes: &[u8]) -> Self;
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// Exact.
    fn to_f32(self) -> f32;
    /// `V::LANES` elements, widened.
    ///
    /// # Safety
    /// `ptr` is readable for `V::LANES` elements; the CPU has the instructions of `V`.
    unsafe fn load<V: Vector>(ptr: *const Self) -> V;
}

impl Element for f32 {
    const DTYPE: DType = DType::Float32;
    #[inline(always)]
    fn from_le_bytes(bytes: &[u8]) -> Self {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    fn from_f32(value: f32) -> Self {
        value
    }
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<V: Vector>(ptr: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(ptr) }
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::BFloat16;
    #[inline(always)]
    fn from_le_bytes(bytes: &[u8]) -> Self {
        bf16::from_le_bytes([bytes[0], bytes[1]])
    }
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    unsafe fn load<V: Vector>(ptr: *const Self) -> V {
        // SAFETY: the caller's promise; bf16 is a transparent u16.
        unsafe { V::load_bf16(ptr.cast()) }
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::Float16;
    #[inline(always)]
    fn from_le_bytes(bytes: &[u8]) -> Self {
        f16::from_le_bytes([bytes[0], bytes[1]])
    }
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    unsafe fn load<V: Vector>(ptr: *const Self) -> V {
        // SAFETY: the caller's promise; f16 is a transparent u16.
        unsafe { V::load_f16(ptr.cast()) }
    }
}

/// Most lanes of a vector.
const MAX_LANES: usize = 16;

/// A vector of f32. All operations are lane by lane, but `sum`, which has one fixed order.
///
/// # Safety
/// Every method needs the CPU instructions of the implementing type; loads and stores need `LANES`
/// elements behind their pointer.
#[allow(clippy::missing_safety_doc, missing_docs)]
pub trait Vector: Copy {
    type Words: Words<Floats = Self>;
    const LANES: usize;
    /// Vectors that the CPU's registers hold.
    const NUM_REGISTERS: usize;
    /// Whether the CPU has AVX-512 where a vector is of this type.
    const IS_AVX512: bool = false;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(ptr: *const f32) -> Self;
    unsafe fn load_bf16(ptr: *const u16) -> Self;
    unsafe fn load_f16(ptr: *const u16) -> Self;
    /// The first bf16 of each pair, widened; `LANES` pairs.
    unsafe fn load_low_bf16(ptr: *const u32) -> Self;
    /// The second ones.
    unsafe fn load_high_bf16(ptr: *const u32) -> Self;
    unsafe fn store(self, ptr: *mut f32);
    /// Stores every lane as bf16, to nearest, ties to even, two places from the one before; what
    /// is between stays as it is, and others may write it meanwhile.
    #[inline(always)]
    unsafe fn store_bf16_apart(self, ptr: *mut u16) {
        let mut lanes = [0; MAX_LANES];
        // SAFETY: this method's own promise; there are not more lanes.
        unsafe {
            Self::Words::bf16_bits(self).store(lanes.as_mut_ptr());
            for (lane, &bits) in lanes[..Self::LANES].iter().enumerate() {
                *ptr.add(2 * lane) = bits as u16;
            }
        }
    }
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// The larger; `other` where either is NaN, so that a constant receiver keeps NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller; `other` where either is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// self * factor + addend, fused where the instruction set has it.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// Nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// self * 2^exponent for integral exponents in [-126, 127].
    unsafe fn mul_exp2(self, exponent: Self) -> Self;
    /// 0 in the lanes where self < limit, `other` elsewhere.
    unsafe fn zero_below(self, limit: Self, other: Self) -> Self;
    /// Sum in the first and difference in the second of each two lanes that are `H` apart (1, 2, 4
    /// or 8, less than `LANES`).
    unsafe fn butterflies<const H: usize>(self) -> Self;
    /// The sum of the lanes, by halves.
    unsafe fn sum(self) -> f32;
    /// The largest of the lanes; anything if one is NaN.
    unsafe fn largest(self) -> f32;
    /// Whether a lane is at least the limit, or NaN, or the limit is NaN.
    unsafe fn any_not_below(self, limit: f32) -> bool;

    /// n and e^r - 1 of self = n ln 2 + r, |r| <= ln 2 / 2; self is bounded to [-87.3, 88.3] first.
    #[inline(always)]
    unsafe fn exp_parts(self) -> (Self, Self) {
        // SAFETY: this method's own promise, lane-wise arithmetic only.
        unsafe {
            // Cephes' expf: a polynomial in r.
            let x = Self::splat(88.3).min(Self::splat(-87.3).max(self));
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
            let r = n.mul_add(Self::splat(-0.693_359_4), x);
            let r = n.mul_add(Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
                p = p.mul_add(r, Self::splat(coefficient));
            }
            (n, p.mul_add(r.mul(r), r))
        }
    }

    /// e^self, relative error about 1e-7; 0 below -87.3 (also for -infinity).
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let (n, p) = self.exp_parts();
            self.zero_below(Self::splat(-87.3), p.add(Self::splat(1.0)).mul_exp2(n))
        }
    }

    /// e^self where self is at most 0, relative error 1.1e-4: for what is rounded to bf16 after it,
    /// which has an error of 2e-3. 1 at 0; 0 below -87.3 (also for -infinity).
    #[inline(always)]
    unsafe fn coarse_exp(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let log2_e = Self::splat(std::f32::consts::LOG2_E);
            let n = self.mul(log2_e).round();
            let r = self.mul_add(log2_e, Self::splat(0.0).sub(n));
            // Of 2^r for |r| <= 1/2, with the least largest relative error (Remez, from 1 at 0).
            let mut p = Self::splat(0.055_008_97);
            for coefficient in [0.242_211_06, 0.693_282_9, 1.0] {
                p = p.mul_add(r, Self::splat(coefficient));
            }
            self.zero_below(Self::splat(-87.3), p.mul_exp2(n))
        }
    }

    /// e^self - 1, relative error about 2e-7, near 0 too: there n is 0, and nothing is added to
    /// e^r - 1. Elsewhere 2^n - 1 is exact or near -1, and the sum keeps most of its places.
    #[inline(always)]
    unsafe fn exp_m1(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let (n, p) = self.exp_parts();
            let one = Self::splat(1.0);
            let power = one.mul_exp2(n);
            p.mul(power).add(power.sub(one))
        }
    }

    /// 1 / (1 + e^-self).
    #[inline(always)]
    unsafe fn sigmoid(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let one = Self::splat(1.0);
            one.div(one.add(Self::splat(0.0).sub(self).exp()))
        }
    }

    /// ln(1 + e^self), relative error about 3e-7, where it is near 0 too.
    #[inline(always)]
    unsafe fn softplus(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let zero = Self::splat(0.0);
            let negated = zero.sub(self);
            let e = zero.sub(self.max(negated)).exp();
            // ln(1 + e) is 2 artanh(s) of this s, which is at most 1/3: its series, s² a time.
            let s = e.div(Self::splat(2.0).add(e));
            let square = s.mul(s);
            let mut sum = Self::splat(1.0 / 15.0);
            for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
                sum = sum.mul_add(square, Self::splat(1.0 / odd));
            }
            zero.max(self).add(s.add(s).mul(sum))
        }
    }

    /// tanh(self), by exp.
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        // SAFETY: this method's own promise.
        unsafe {
            let e = self.add(self).exp();
            let one = Self::splat(1.0);
            one.sub(Self::splat(2.0).div(e.add(one)))
        }
    }
}
