//! Some lanes of a vector, where a row ends within one.

use vllm_batch_device::simd::Vector;

/// The first `len` lanes from memory, at most all of them; the others are 0.
///
/// # Safety
/// `ptr` is readable for as many values; the CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn load_lanes<V: Vector>(ptr: *const f32, len: usize) -> V {
    // SAFETY: the caller's promise; the buffer has 16 >= LANES values.
    unsafe {
        if len >= V::LANES {
            return V::load(ptr);
        }
        let mut values = [0.0f32; 16];
        std::ptr::copy_nonoverlapping(ptr, values.as_mut_ptr(), len);
        V::load(values.as_ptr())
    }
}

/// The first `len` lanes to memory, at most all of them.
///
/// # Safety
/// `ptr` is writable for as many values; the CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn store_lanes<V: Vector>(vector: V, ptr: *mut f32, len: usize) {
    // SAFETY: the caller's promise; the buffer has 16 >= LANES values.
    unsafe {
        if len >= V::LANES {
            return vector.store(ptr);
        }
        let mut values = [0.0f32; 16];
        vector.store(values.as_mut_ptr());
        std::ptr::copy_nonoverlapping(values.as_ptr(), ptr, len);
    }
}
