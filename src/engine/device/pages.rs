//! Memory that kernels read and write by whole vectors: it begins at a page, so no vector of a row
//! of whole vectors crosses a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use super::cuda::Plain;
use crate::engine::machine::{Refused, granted};

/// Bytes from which a buffer asks for huge pages: the size of one on most machines.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Elements in pages of their own, zero at first. Pages that nobody writes take no memory.
#[derive(Debug)]
pub struct Pages<E> {
    map: MmapMut,
    len: usize,
    element: PhantomData<E>,
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
        // No size that overflows can be granted.
        let bytes = len.saturating_mul(size_of::<E>()).max(1);
        let map = MmapMut::map_anon(bytes)
            .map_err(|error| Refused(format!("no memory for {bytes} bytes: {error}")))?;
        Ok(Self { map, len, element: PhantomData })
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
        let pages = Self::try_zeroed(len)?;
        #[cfg(target_os = "linux")]
        if pages.map.len() >= HUGE_PAGE_BYTES {
            // It is advice: a system without huge pages refuses it, and nothing is lost.
            let _ = pages.map.advise(memmap2::Advice::HugePage);
        }
        Ok(pages)
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

impl<E: Plain> Deref for Pages<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the mapping has room for `len` elements and begins at a page; zeros and whatever
        // was written are values of a `Plain` type.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<E: Plain> DerefMut for Pages<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as above; exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
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
    fn memory_that_no_machine_has_is_refused() {
        for len in [1 << 60, usize::MAX] {
            let refused = Pages::<f32>::try_zeroed_huge(len).unwrap_err();
            assert!(refused.0.starts_with("no memory for "), "{}", refused.0);
        }
    }
}
