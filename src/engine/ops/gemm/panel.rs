//! How the elements of a panel lie: by pairs of inputs.

use half::{bf16, f16};

use crate::engine::device::simd::{Element, Vector};

/// An element of packed weights. A panel of `width` outputs holds, for each pair of inputs,
/// 2 * width elements; an odd last input has zeros beside it.
pub trait PanelElement: Element {
    /// The elements are f32: nothing is to be widened.
    const IS_WIDE: bool;

    /// Where in its panel the weight of input `k` and output `lane` is.
    fn index(k: usize, lane: usize, width: usize) -> usize;

    /// The weights of the first input of a pair, widened, of a panel of C vectors; where the
    /// elements are f32, of any input.
    ///
    /// # Safety
    /// `pair` is readable for C * `V::LANES` elements, of halves for twice as many; the CPU has the
    /// instructions of `V`.
    unsafe fn load_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C];

    /// The weights of the second input of a pair.
    ///
    /// # Safety
    /// `pair` is readable for 2 * C * `V::LANES` elements; the CPU has the instructions of `V`.
    unsafe fn load_odd_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C];
}

macro_rules! one_row_after_the_other {
    ($element:ty, $is_wide:literal) => {
        impl PanelElement for $element {
            const IS_WIDE: bool = $is_wide;

            fn index(k: usize, lane: usize, width: usize) -> usize {
                k * width + lane
            }

            #[inline(always)]
            unsafe fn load_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C] {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut row = [V::splat(0.0); C];
                    for (c, row) in row.iter_mut().enumerate() {
                        *row = Self::load::<V>(pair.add(c * V::LANES));
                    }
                    row
                }
            }

            #[inline(always)]
            unsafe fn load_odd_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C] {
                // SAFETY: the caller's promise.
                unsafe { Self::load_row(pair.add(C * V::LANES)) }
            }
        }
    };
}

one_row_after_the_other!(f32, true);
one_row_after_the_other!(f16, false);

/// The two inputs of a pair beside each other: widening is then one shift or one mask of a whole
/// vector, and dot-product instructions read pairs as they are.
impl PanelElement for bf16 {
    const IS_WIDE: bool = false;

    fn index(k: usize, lane: usize, width: usize) -> usize {
        (k / 2) * 2 * width + 2 * lane + k % 2
    }

    #[inline(always)]
    unsafe fn load_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C] {
        let pair: *const u32 = pair.cast();
        // SAFETY: the caller's promise; two bf16 are as large as one u32.
        unsafe {
            let mut row = [V::splat(0.0); C];
            for (c, row) in row.iter_mut().enumerate() {
                *row = V::load_low_bf16(pair.add(c * V::LANES));
            }
            row
        }
    }

    #[inline(always)]
    unsafe fn load_odd_row<V: Vector, const C: usize>(pair: *const Self) -> [V; C] {
        let pair: *const u32 = pair.cast();
        // SAFETY: as above.
        unsafe {
            let mut row = [V::splat(0.0); C];
            for (c, row) in row.iter_mut().enumerate() {
                *row = V::load_high_bf16(pair.add(c * V::LANES));
            }
            row
        }
    }
}
