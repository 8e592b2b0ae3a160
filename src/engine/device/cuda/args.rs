//! The arguments of one launch, by value and without an allocation.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::driver::DevicePtr;

/// Arguments that a launch may have.
pub const MAX_ARGS: usize = 16;
/// Bytes that an argument may have.
pub const MAX_ARG_BYTES: usize = 80;

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Slot([MaybeUninit<u8>; MAX_ARG_BYTES]);

/// The arguments of one launch, in the order of the kernel's parameters:
/// `Args::new().ptr(x).u32(width).f32(eps)`.
pub struct Args {
    slots: [Slot; MAX_ARGS],
    sizes: [u8; MAX_ARGS],
    len: usize,
}

impl Default for Args {
    fn default() -> Self {
        Self::new()
    }
}

impl Args {
    /// No arguments yet.
    #[inline]
    pub fn new() -> Self {
        Self {
            slots: [Slot([MaybeUninit::uninit(); MAX_ARG_BYTES]); MAX_ARGS],
            sizes: [0; MAX_ARGS],
            len: 0,
        }
    }

    /// A device address.
    #[inline]
    pub fn ptr(&mut self, ptr: DevicePtr) -> &mut Self {
        self.value(ptr.0)
    }

    /// A 32-bit unsigned integer.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.value(value)
    }

    /// A 64-bit unsigned integer.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.value(value)
    }

    /// A 32-bit float.
    #[inline]
    pub fn f32(&mut self, value: f32) -> &mut Self {
        self.value(value)
    }

    /// A `#[repr(C)]` struct of at most `MAX_ARG_BYTES`, or any other value that C++ sees alike. It
    /// has no padding: recorded launches are compared by all bytes.
    ///
    /// # Panics
    /// More than 16 arguments.
    #[inline]
    pub fn value<T: Copy>(&mut self, value: T) -> &mut Self {
        const { assert!(size_of::<T>() <= MAX_ARG_BYTES && align_of::<T>() <= align_of::<Slot>()) };
        assert!(self.len < MAX_ARGS, "a launch has at most {MAX_ARGS} arguments");
        // SAFETY: the slot is large and aligned enough, by the assertion above.
        unsafe { self.slots[self.len].0.as_mut_ptr().cast::<T>().write(value) };
        self.sizes[self.len] = size_of::<T>() as u8;
        self.len += 1;
        self
    }

    /// Bytes of each argument.
    #[inline]
    pub fn sizes(&self) -> &[u8] {
        &self.sizes[..self.len]
    }

    /// Calls `launch` with the addresses of the values, as `cuLaunchKernel` takes them, and their
    /// sizes.
    #[inline]
    pub fn with_pointers<R>(&mut self, launch: impl FnOnce(&mut [*mut c_void], &[u8]) -> R) -> R {
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (pointer, slot) in pointers.iter_mut().zip(&mut self.slots[..self.len]) {
            *pointer = slot.0.as_mut_ptr().cast();
        }
        launch(&mut pointers[..self.len], &self.sizes[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Params {
        heads: u32,
        scale: f32,
        window: u64,
    }

    #[test]
    fn each_pointer_is_at_its_value() {
        let mut args = Args::new();
        args.ptr(DevicePtr(7)).u32(8).f32(1.5).u64(9);
        args.value(Params { heads: 3, scale: 0.5, window: 11 });
        assert_eq!(args.sizes(), [8, 4, 4, 8, 16]);
        args.with_pointers(|pointers, _| {
            assert_eq!(pointers.len(), 5);
            // SAFETY: each pointer is at a value of this type, as added above.
            unsafe {
                assert_eq!(*pointers[0].cast::<u64>(), 7);
                assert_eq!(*pointers[1].cast::<u32>(), 8);
                assert_eq!(*pointers[2].cast::<f32>(), 1.5);
                assert_eq!(*pointers[3].cast::<u64>(), 9);
                let params = *pointers[4].cast::<Params>();
                assert_eq!((params.heads, params.scale, params.window), (3, 0.5, 11));
            }
        });
    }
}
