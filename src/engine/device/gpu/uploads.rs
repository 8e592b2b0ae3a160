//! Small uploads of a step: through pinned memory, so that the host goes on while they are copied.
//! It has two halves. One is filled while the copies from the other are under way, and an event
//! says when they are done.

use std::ops::Range;

use crate::cuda::{
    CudaError, DeviceBuffer, DevicePtr, Driver, Event, PinnedBuffer, Plain, Runtime, Stream,
};

/// Steps' worth of uploads.
const HALF_BYTES: usize = 16 << 20;
/// Room of a half that is kept for the list of packed uploads.
const LIST_BYTES: usize = 16 << 10;
const ALIGN: usize = 16;

/// The halves.
pub(super) struct Uploads {
    halves: [Half; 2],
    current: usize,
    /// Bytes of the current half.
    used: usize,
    is_packing: bool,
    /// Written to the current half, and not copied yet.
    packed: Vec<Segment>,
}

struct Half {
    buffer: PinnedBuffer,
    /// All that was copied from it.
    copied: Event,
}

/// `struct Segment` of kernels/copy_segments.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    from: DevicePtr,
    to: DevicePtr,
    num_words: u64,
}

// SAFETY: three integers of 64 bits, without padding.
unsafe impl Plain for Segment {}

/// Packed uploads, to be copied by one kernel.
pub(super) struct Packed {
    /// Their list, in pinned memory.
    pub list: DevicePtr,
    /// Number of segments.
    pub num_segments: usize,
    /// Words of the longest.
    pub max_words: u64,
}

impl Segment {
    fn overlaps(&self, to: DevicePtr, bytes: usize) -> bool {
        to.0 < self.to.0 + 4 * self.num_words && self.to.0 < to.0 + bytes as u64
    }
}

impl Uploads {
    pub(super) fn new(runtime: &Runtime) -> Result<Self, CudaError> {
        let driver = runtime.driver();
        let half = || {
            let buffer = PinnedBuffer::new(driver, HALF_BYTES)?;
            Ok(Half { buffer, copied: driver.create_event(false)? })
        };
        let halves = [half()?, half()?];
        Ok(Self { halves, current: 0, used: 0, is_packing: false, packed: Vec::new() })
    }

    /// Uploads are packed from now on, until they are taken.
    pub(super) fn pack(&mut self) {
        self.is_packing = true;
    }

    /// Whether the packed uploads have to be copied before this one: it does not fit beside them,
    /// or goes where one of them goes.
    pub(super) fn is_full_for(
        &self,
        (buffer, start): (&DeviceBuffer, usize),
        bytes: usize,
    ) -> bool {
        let to = buffer.ptr().offset(start);
        let fits = self.used + bytes <= HALF_BYTES - LIST_BYTES;
        let is_listed = (self.packed.len() + 1) * size_of::<Segment>() <= LIST_BYTES;
        let overlaps = || self.packed.iter().any(|segment| segment.overlaps(to, bytes));
        !self.packed.is_empty() && (!fits || !is_listed || overlaps())
    }

    /// Copies to `buffer`, from the byte `start` on, in order with the launches; while uploads are
    /// packed, with the others.
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
        if bytes.len() > HALF_BYTES - LIST_BYTES {
            return driver.copy_to_device(to, bytes);
        }
        let range = self.room(driver, bytes.len())?;
        let half = &mut self.halves[self.current].buffer;
        half.write(range.start, bytes);
        self.used = range.end.next_multiple_of(ALIGN);
        let has_words = bytes.len().is_multiple_of(4) && to.0.is_multiple_of(4);
        if !self.is_packing || !has_words {
            return driver.copy_to_device_async(to, half, range, Stream::Compute);
        }
        let from = half.device_ptr().offset(range.start);
        self.packed.push(Segment { from, to, num_words: bytes.len() as u64 / 4 });
        Ok(())
    }

    /// Where so many bytes go: in the current half, or at the start of the other one.
    fn room(&mut self, driver: &Driver, bytes: usize) -> Result<Range<usize>, CudaError> {
        if self.used + bytes > HALF_BYTES - LIST_BYTES {
            assert!(self.packed.is_empty(), "packed uploads are copied before");
            driver.record_event(&self.halves[self.current].copied, Stream::Compute)?;
            self.current = 1 - self.current;
            self.used = 0;
            driver.synchronize_event(&self.halves[self.current].copied)?;
        }
        Ok(self.used..self.used + bytes)
    }

    /// Takes the packed uploads, if there are any. None are packed then until it is asked for.
    pub(super) fn take_packed(&mut self) -> Option<Packed> {
        self.is_packing = false;
        if self.packed.is_empty() {
            return None;
        }
        let half = &mut self.halves[self.current].buffer;
        half.write(self.used, &self.packed);
        let list = half.device_ptr().offset(self.used);
        self.used = (self.used + size_of_val(&self.packed[..])).next_multiple_of(ALIGN);
        let max_words = self.packed.iter().map(|segment| segment.num_words).max().unwrap_or(0);
        let num_segments = self.packed.len();
        self.packed.clear();
        Some(Packed { list, num_segments, max_words })
    }
}
