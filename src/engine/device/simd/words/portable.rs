//! Words without instructions of their own.

use half::bf16;

use super::Words;
use crate::simd::Vector;
use crate::simd::portable::Portable;

/// 2^-6, E4M3's smallest normal number.
const SMALLEST_NORMAL: f32 = 0.015_625;

impl Words for [u32; 8] {
    type Floats = Portable;
    #[inline(always)]
    unsafe fn load(ptr: *const u32) -> Self {
        // SAFETY: the caller's promise: 8 words.
        unsafe { ptr.cast::<[u32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bytes(ptr: *const u8) -> Self {
        // SAFETY: the caller's promise: 8 bytes.
        unsafe { ptr.cast::<[u8; 8]>().read() }.map(u32::from)
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut u32) {
        // SAFETY: the caller's promise: 8 words.
        unsafe { ptr.cast::<[u32; 8]>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn shift_right(self, bits: u32) -> Self {
        self.map(|word| word >> bits)
    }
    #[inline(always)]
    unsafe fn shift_left(self, bits: u32) -> Self {
        self.map(|word| word << bits)
    }
    #[inline(always)]
    unsafe fn and(self, mask: u32) -> Self {
        self.map(|word| word & mask)
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] | other[lane])
    }
    #[inline(always)]
    unsafe fn to_floats(self) -> Portable {
        let floats = self.map(|word| word as i32 as f32);
        // SAFETY: 8 floats.
        unsafe { Portable::load(floats.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn as_floats(self) -> Portable {
        // SAFETY: 8 floats of as many bits.
        unsafe { Portable::load(self.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn lookup(self, table: *const f32) -> Portable {
        // SAFETY: the caller's promise: 16 entries.
        let floats = self.map(|word| unsafe { *table.add(word as usize & 15) });
        // SAFETY: 8 floats.
        unsafe { Portable::load(floats.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn float8(self) -> Portable {
        let floats = self.map(|word| {
            let magnitude = word & 0x7f;
            let is_small = magnitude < 8;
            // What has no hidden bit is read as if it had one, which is then taken off.
            let bits = (magnitude | u32::from(is_small) << 3) << 20;
            let float = f32::from_bits(bits + (120 << 23));
            let float = if is_small { float - SMALLEST_NORMAL } else { float };
            f32::from_bits(float.to_bits() | (word & 0x80) << 24)
        });
        // SAFETY: 8 floats.
        unsafe { Portable::load(floats.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn bf16_bits(floats: Portable) -> Self {
        let mut values = [0.0; 8];
        // SAFETY: 8 floats.
        unsafe { floats.store(values.as_mut_ptr()) };
        values.map(|value| u32::from(bf16::from_f32(value).to_bits()))
    }
}
