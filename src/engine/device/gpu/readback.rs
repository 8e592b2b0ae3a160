//! Small results on their way to the host: copied beside the launches that come after them, so that
//! the next step may be queued before this one's tokens are read.

use crate::cuda::{CudaError, DevicePtr, Driver, Event, PinnedBuffer, Runtime, Stream};

/// Results under way at a time.
const NUM_SLOTS: usize = 2;

/// Pinned memory that results are copied to, in turn.
pub(super) struct Readbacks {
    slots: Vec<Slot>,
    next: usize,
}

struct Slot {
    buffer: PinnedBuffer,
    copied: Event,
    num_bytes: usize,
}

/// Results under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readback {
    slot: usize,
}

impl Readbacks {
    pub(super) fn new(runtime: &Runtime, max_bytes: usize) -> Result<Self, CudaError> {
        let slot = |_| {
            let buffer = PinnedBuffer::new(runtime.driver(), max_bytes)?;
            Ok(Slot { buffer, copied: runtime.driver().create_event(false)?, num_bytes: 0 })
        };
        Ok(Self { slots: (0..NUM_SLOTS).map(slot).collect::<Result<_, CudaError>>()?, next: 0 })
    }

    /// Starts to copy; the results of the start before the last are lost.
    pub(super) fn start(
        &mut self,
        driver: &Driver,
        from: DevicePtr,
        num_bytes: usize,
    ) -> Result<Readback, CudaError> {
        let index = self.next;
        self.next = (index + 1) % NUM_SLOTS;
        let slot = &mut self.slots[index];
        slot.num_bytes = num_bytes;
        driver.copy_from_device_async(&mut slot.buffer, 0..num_bytes, from, Stream::Compute)?;
        driver.record_event(&slot.copied, Stream::Compute)?;
        Ok(Readback { slot: index })
    }

    /// Waits for the copy and gives the bytes.
    pub(super) fn finish(&self, driver: &Driver, readback: Readback) -> Result<&[u8], CudaError> {
        let slot = &self.slots[readback.slot];
        driver.synchronize_event(&slot.copied)?;
        Ok(&slot.buffer.as_slice()[..slot.num_bytes])
    }
}
