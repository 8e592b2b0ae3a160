//! Memory that kernels read and write by whole vectors: it begins at a page, so no vector of a row
//! of whole vectors crosses a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};

use super::cuda::Plain;
use vllm_batch_base::machine::{Refused, granted};

/// Bytes from which a buffer asks for huge pages: the size of one on most machines.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of a mapping that small buffers share.
const SHARED_BYTES: usize = 16 * HUGE_PAGE_BYTES;

/// Alignment of buffers.
const PAGE_BYTES: usize = 4096;

/// Elements in pages of their own, zero at first. Pages that nobody writes take no memory.
#[derive(Debug)]
pub struct Pages<E> {
    /// Mapping of this buffer alone, or of several: then each has pages of its own there.
    mapping: Arc<MmapRaw>,
    /// Where they begin in it, in bytes.
    start: usize,
    len: usize,
    element: PhantomData<E>,
}

/// Zeros, as many bytes.
fn map(num_bytes: usize) -> Result<MmapRaw, Refused> {
    let map = MmapMut::map_anon(num_bytes)
        .map_err(|error| Refused(format!("no memory for {num_bytes} bytes: {error}")))?;
    Ok(map.into())
}

/// The same in huge pages, where the system has them and it is large enough.
fn map_huge(num_bytes: usize) -> Result<MmapRaw, Refused> {
    let map = map(num_bytes)?;
    #[cfg(target_os = "linux")]
    if num_bytes >= HUGE_PAGE_BYTES {
        // It is advice: a system without huge pages refuses it, and nothing is lost.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

/// A mapping for small buffers that live as long as a model: they lie beside each other, so that
/// they are in huge pages too. One that is dropped leaves its place empty until all beside it are.
#[derive(Debug, Default)]
pub struct SharedPages {
    /// The mapping that has room, and its bytes in use.
    open: Mutex<(Weak<MmapRaw>, usize)>,
}

impl SharedPages {
    /// `len` zeros that will all be written; as `Pages::zeroed_huge` if they are not few.
    ///
    /// # Panics
    /// The system refuses the memory.
    pub fn zeroed<E: Plain>(&self, len: usize) -> Pages<E> {
        let num_bytes =
            num_bytes::<E>(len).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
        if num_bytes > SHARED_BYTES / 2 {
            return Pages::zeroed_huge(len);
        }
        // A poisoned lock only says that a thread was refused memory.
        let (open, end) = &mut *self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let with_room = open.upgrade().filter(|_| *end + num_bytes <= SHARED_BYTES);
        let mapping = with_room.unwrap_or_else(|| {
            let new = Arc::new(granted(map_huge(SHARED_BYTES)));
            (*open, *end) = (Arc::downgrade(&new), 0);
            new
        });
        let start = *end;
        *end += num_bytes;
        Pages { mapping, start, len, element: PhantomData }
    }
}

/// Bytes of a buffer.
fn num_bytes<E>(len: usize) -> usize {
    // No size that overflows can be granted.
    len.saturating_mul(size_of::<E>()).max(1)
}

impl<E: Plain> Pages<E> {
    /// `len` zeros.
    ///
    /// # Panics
    /// The system refuses the memory.
    pub fn zeroed(len: usize) -> Self {
        granted(Self::try_zeroed(len))
    }

    /// `len` zeros, where the system grants the memory.
    pub fn try_zeroed(len: usize) -> Result<Self, Refused> {
        Ok(Self::alone(map(num_bytes::<E>(len))?, len))
    }

    /// `len` zeros that will all be written, in huge pages where the system has them: fewer entries
    /// in the TLB.
    ///
    /// # Panics
    /// The system refuses the memory.
    pub fn zeroed_huge(len: usize) -> Self {
        granted(Self::try_zeroed_huge(len))
    }

    /// The same, where the system grants the memory.
    pub fn try_zeroed_huge(len: usize) -> Result<Self, Refused> {
        Ok(Self::alone(map_huge(num_bytes::<E>(len))?, len))
    }

    fn first(&self) -> *mut E {
        self.mapping.as_mut_ptr().wrapping_add(self.start).cast()
    }

    fn alone(mapping: MmapRaw, len: usize) -> Self {
        Self { mapping: Arc::new(mapping), start: 0, len, element: PhantomData }
    }

    /// The values of a slice.
    ///
    /// # Panics
    /// The system refuses the memory.
    pub fn from_slice(values: &[E]) -> Self {
        let mut pages = Self::zeroed(values.len());
        pages.copy_from_slice(values);
        pages
    }
}

impl<E: Plain> Default for Pages<E> {
    /// An empty buffer.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<E: Plain> Deref for Pages<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the mapping has room for `len` elements from `start` on, which is a page's first
        // byte; zeros and whatever was written are values of a `Plain` type.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }
}

impl<E: Plain> DerefMut for Pages<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as above; exclusive by `&mut self`, since no other buffer has these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn they_begin_at_a_page_hold_zeros_and_keep_what_is_written() {
        for len in [0, 1, 5000, HUGE_PAGE_BYTES] {
            let mut pages = Pages::<bf16>::zeroed_huge(len);
            assert_eq!((pages.len(), pages.as_ptr().addr() % 4096), (len, 0));
            assert!(pages.iter().all(|value| value.to_bits() == 0));
            pages.iter_mut().for_each(|value| *value = bf16::ONE);
            assert!(pages.iter().all(|&value| value == bf16::ONE));
        }
        assert_eq!(*Pages::from_slice(&[1.0f32, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn buffers_of_a_mapping_have_places_of_their_own() {
        for len in [1, 5000, SHARED_BYTES / 8, SHARED_BYTES] {
            let shared = SharedPages::default();
            let mut all: Vec<_> = (0..5).map(|_| shared.zeroed::<f32>(len)).collect();
            for (index, pages) in all.iter_mut().enumerate() {
                assert!(pages.iter().all(|&value| value == 0.0), "{len}");
                assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE_BYTES), (len, 0));
                pages.fill(index as f32 + 1.0);
            }
            all.remove(2);
            for (pages, index) in all.iter().zip([0, 1, 3, 4]) {
                assert!(pages.iter().all(|&value| value == index as f32 + 1.0), "{len}");
            }
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_refused() {
        for len in [1 << 60, usize::MAX] {
            let refused = Pages::<f32>::try_zeroed_huge(len).unwrap_err();
            assert!(refused.0.starts_with("no memory for "), "{}", refused.0);
        }
    }
}
