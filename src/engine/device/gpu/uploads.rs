//! Small uploads of a step: a ring of pinned memory, so that the host goes on while they are
//! copied.

use crate::engine::device::cuda::{CudaError, DeviceBuffer, Driver, PinnedBuffer, Runtime, Stream};

/// Steps' worth of uploads; the end of the ring is waited for.
const RING_BYTES: usize = 16 << 20;
const ALIGN: usize = 16;

/// The ring.
pub(super) struct Uploads {
    ring: PinnedBuffer,
    used: usize,
}

impl Uploads {
    pub(super) fn new(runtime: &Runtime) -> Result<Self, CudaError> {
        Ok(Self { ring: PinnedBuffer::new(runtime.driver(), RING_BYTES)?, used: 0 })
    }

    /// Copies to `buffer`, from the byte `start` on, in order with the launches.
    pub(super) fn upload(
        &mut self,
        driver: &Driver,
        (buffer, start): (&DeviceBuffer, usize),
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        assert!(start + bytes.len() <= buffer.bytes(), "past the end of a buffer");
        if bytes.is_empty() {
            return Ok(());
        }
        let to = buffer.ptr().offset(start);
        if bytes.len() > RING_BYTES {
            return driver.copy_to_device(to, bytes);
        }
        if self.used + bytes.len() > RING_BYTES {
            driver.synchronize()?;
            self.used = 0;
        }
        let range = self.used..self.used + bytes.len();
        self.ring.write(range.start, bytes);
        self.used = range.end.next_multiple_of(ALIGN);
        driver.copy_to_device_async(to, &self.ring, range, Stream::Compute)
    }
}
