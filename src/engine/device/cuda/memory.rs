//! Buffers of the device and of the host, and the upload of weights.

use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::{DevicePtr, Driver, Event, Stream};
use super::error::{CudaError, Result};

/// A type without padding of which every pattern of bits is a value.
///
/// # Safety
/// As said: such a value may be read from, and written as, any bytes.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty),*) => {
        $(
            // SAFETY: a number.
            unsafe impl Plain for $t {}
        )*
    };
}

plain!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, half::bf16, half::f16);

/// The bytes of a slice.
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the same memory, and plain values have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of a slice, to write.
pub fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: the same memory, and any bytes are plain values.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Memory of the device, freed when dropped.
pub struct DeviceBuffer {
    driver: Arc<Driver>,
    ptr: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Uninitialised memory.
    pub fn new(driver: &Arc<Driver>, bytes: usize) -> Result<Self> {
        let ptr = driver.alloc(bytes)?;
        Ok(Self { driver: Arc::clone(driver), ptr, bytes })
    }

    /// Zeroed memory, in order with the launches.
    pub fn zeroed(driver: &Arc<Driver>, bytes: usize) -> Result<Self> {
        let buffer = Self::new(driver, bytes)?;
        driver.memset(buffer.ptr, 0, bytes)?;
        Ok(buffer)
    }

    /// Memory with these values.
    pub fn from_slice<T: Plain>(driver: &Arc<Driver>, values: &[T]) -> Result<Self> {
        let buffer = Self::new(driver, size_of_val(values))?;
        driver.copy_to_device(buffer.ptr, bytes_of(values))?;
        Ok(buffer)
    }

    /// Copies values to the start, in order with the launches.
    ///
    /// # Panics
    /// They are more than the buffer has room for.
    pub fn write<T: Plain>(&self, values: &[T]) -> Result<()> {
        assert!(size_of_val(values) <= self.bytes, "past the end of a buffer");
        self.driver.copy_to_device(self.ptr, bytes_of(values))
    }

    /// Copies values from the start, after all launches before, and waits.
    ///
    /// # Panics
    /// The buffer has fewer.
    pub fn read<T: Plain + Default>(&self, len: usize) -> Result<Vec<T>> {
        assert!(len * size_of::<T>() <= self.bytes, "past the end of a buffer");
        let mut values = vec![T::default(); len];
        self.driver.copy_from_device(bytes_of_mut(&mut values), self.ptr)?;
        Ok(values)
    }

    /// Address of the buffer.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Size of the buffer.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer({} bytes)", self.bytes)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // After a failed kernel every call fails; the failure has been reported by then.
        let _ = self.driver.free(self.ptr);
    }
}

/// Host memory that the device copies from and to by itself. Zeroed at first.
pub struct PinnedBuffer {
    driver: Arc<Driver>,
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owns its memory, as a Vec does.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above; writes need &mut.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Zeroed memory, cacheable by the CPU.
    pub fn new(driver: &Arc<Driver>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        let ptr = match &**driver {
            Driver::Cuda(driver) => driver.alloc_pinned(bytes)?,
            Driver::Host(driver) => driver.alloc_pinned(bytes),
        };
        let ptr = NonNull::new(ptr).ok_or_else(|| {
            CudaError::new("cuMemHostAlloc", format!("{bytes} bytes"), "no memory", "")
        })?;
        if let Driver::Cuda(_) = &**driver {
            // SAFETY: just allocated with this size. The host's is zero already, page by page.
            unsafe { ptr.write_bytes(0, bytes) };
        }
        Ok(Self { driver: Arc::clone(driver), ptr, bytes })
    }

    /// All of it. Not while the device writes to it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and initialised in `new`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }

    /// All of it. Not while the device reads or writes it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }

    /// Address as kernels see it: the device and the host have one address space.
    pub fn device_ptr(&self) -> DevicePtr {
        DevicePtr(self.ptr.as_ptr() as u64)
    }

    /// Writes values from this byte on.
    ///
    /// # Panics
    /// They end past the buffer's end.
    pub fn write<T: Plain>(&mut self, offset: usize, values: &[T]) {
        self.as_mut_slice()[offset..offset + size_of_val(values)].copy_from_slice(bytes_of(values));
    }

    /// Reads values from this byte on.
    ///
    /// # Panics
    /// They end past the buffer's end.
    pub fn read<T: Plain + Default>(&self, offset: usize, len: usize) -> Vec<T> {
        let mut values = vec![T::default(); len];
        let bytes = bytes_of_mut(&mut values);
        bytes.copy_from_slice(&self.as_slice()[offset..offset + bytes.len()]);
        values
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.bytes)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        match &*self.driver {
            // SAFETY: from `alloc_pinned`, freed only here.
            Driver::Cuda(driver) => unsafe { driver.free_pinned(self.ptr.as_ptr()) },
            // SAFETY: as above, with the same size.
            Driver::Host(driver) => unsafe { driver.free_pinned(self.ptr.as_ptr(), self.bytes) },
        }
    }
}

/// Bytes of each of the two staging buffers.
const CHUNK_BYTES: usize = 64 << 20;
/// Chunks start here, so that a caller can write whole values of any type.
const CHUNK_ALIGN: usize = 256;

/// Uploads weights through two pinned buffers: one is filled while the other is copied.
pub struct Staging {
    driver: Arc<Driver>,
    buffers: [PinnedBuffer; 2],
    /// Passed when the buffer's copies are done.
    copied: [Event; 2],
    /// Orders the copies after the launches queued before them.
    computed: Event,
    current: usize,
    used: usize,
}

impl Staging {
    /// Two buffers of 64 MiB.
    pub fn new(driver: &Arc<Driver>) -> Result<Self> {
        Self::with_chunk_bytes(driver, CHUNK_BYTES)
    }

    /// Two buffers of this size, rounded up to 256 bytes.
    pub fn with_chunk_bytes(driver: &Arc<Driver>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(CHUNK_ALIGN);
        let buffer = || PinnedBuffer::new(driver, bytes);
        let event = || driver.create_event(false);
        Ok(Self {
            driver: Arc::clone(driver),
            buffers: [buffer()?, buffer()?],
            copied: [event()?, event()?],
            computed: event()?,
            current: 0,
            used: 0,
        })
    }

    /// Copies `bytes` to `dst`. `fill(offset, chunk)` writes the bytes from that offset on into
    /// the chunk; it is called in order, and offsets are multiples of 256. The copies are done
    /// after `finish`, not before.
    pub fn upload<E: From<CudaError>>(
        &mut self,
        dst: DevicePtr,
        bytes: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.driver.record_event(&self.computed, Stream::Compute)?;
        self.driver.wait_event(Stream::Copy, &self.computed)?;
        let mut offset = 0;
        while offset < bytes {
            let room = self.buffers[self.current].as_slice().len() - self.used;
            if room == 0 {
                self.next_buffer()?;
                continue;
            }
            let range = self.used..self.used + room.min(bytes - offset);
            let buffer = &mut self.buffers[self.current];
            fill(offset, &mut buffer.as_mut_slice()[range.clone()])?;
            let (to, len) = (dst.offset(offset), range.len());
            self.driver.copy_to_device_async(to, buffer, range, Stream::Copy)?;
            self.used += len.next_multiple_of(CHUNK_ALIGN);
            offset += len;
        }
        Ok(())
    }

    /// Goes on with the other buffer, once what it held has been copied.
    fn next_buffer(&mut self) -> Result<()> {
        self.driver.record_event(&self.copied[self.current], Stream::Copy)?;
        self.current = 1 - self.current;
        self.used = 0;
        self.driver.synchronize_event(&self.copied[self.current])
    }

    /// Waits for all copies: launches from now on see them.
    pub fn finish(&mut self) -> Result<()> {
        self.driver.record_event(&self.copied[self.current], Stream::Copy)?;
        self.driver.synchronize_event(&self.copied[self.current])?;
        self.used = 0;
        Ok(())
    }
}
