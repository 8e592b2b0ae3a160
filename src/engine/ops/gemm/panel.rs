//! Layout of the elements of a panel: by pairs of inputs.

use half::{bf16, f16};

use vllm_batch_device::simd::{Element, Vector};

/// An element of packed weights. A panel of `width` outputs holds, for each pair of inputs,
/// 2 * width elements; an odd last input has zeros beside it.
pub(crate) trait PanelElement: Element {
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

    /// Narrows the weights of an output: value i is of input i.
    ///
    /// # Safety
    /// The panel has this lane and as many inputs, and nobody else touches these.
    #[inline(always)]
    unsafe fn put_inputs(values: &[f32], panel: *mut Self, (lane, width): (usize, usize)) {
        // SAFETY: the caller's promise.
        unsafe { scatter(values, panel, |input| Self::index(input, lane, width)) };
    }

    /// Narrows weights of an input: value i is of lane i.
    ///
    /// # Safety
    /// The panel has this input and as many lanes, and nobody else touches these. The CPU has the
    /// instructions of `V`.
    #[inline(always)]
    unsafe fn put_lanes<V: Vector>(
        values: &[f32],
        panel: *mut Self,
        (input, width): (usize, usize),
    ) {
        // SAFETY: the caller's promise.
        unsafe { scatter(values, panel, |lane| Self::index(input, lane, width)) };
    }
}

/// Values narrowed at a time, in one loop, before each goes to its place.
const NUM_NARROWED: usize = 64;

/// Narrows values and writes them to `to`, value i at `place(i)`.
///
/// # Safety
/// The places are within what `to` points to, and nobody else touches them meanwhile.
#[inline(always)]
unsafe fn scatter<E: Element>(values: &[f32], to: *mut E, place: impl Fn(usize) -> usize) {
    for (chunk, values) in values.chunks(NUM_NARROWED).enumerate() {
        let mut narrowed = [E::from_f32(0.0); NUM_NARROWED];
        for (narrowed, &value) in narrowed.iter_mut().zip(values) {
            *narrowed = E::from_f32(value);
        }
        for (i, &value) in narrowed[..values.len()].iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *to.add(place(chunk * NUM_NARROWED + i)) = value };
        }
    }
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

    #[inline(always)]
    unsafe fn put_inputs(values: &[f32], panel: *mut Self, (lane, width): (usize, usize)) {
        for (index, pair) in values.chunks(2).enumerate() {
            let place = panel.wrapping_add(Self::index(2 * index, lane, width));
            // SAFETY: the caller's promise; pairs lie beside each other at whole words.
            unsafe {
                match *pair {
                    [first, second] => place.cast::<u32>().write(
                        u32::from(bf16::from_f32(first).to_bits())
                            | u32::from(bf16::from_f32(second).to_bits()) << 16,
                    ),
                    _ => place.write(bf16::from_f32(pair[0])),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put_lanes<V: Vector>(
        values: &[f32],
        panel: *mut Self,
        (input, width): (usize, usize),
    ) {
        let place = |lane| panel.wrapping_add(Self::index(input, lane, width));
        let num_whole = values.len() / V::LANES * V::LANES;
        for lane in (0..num_whole).step_by(V::LANES) {
            // SAFETY: the caller's promise; bf16 is a transparent u16.
            unsafe { V::load(values[lane..].as_ptr()).store_bf16_apart(place(lane).cast()) };
        }
        for (lane, &value) in values.iter().enumerate().skip(num_whole) {
            // SAFETY: as above.
            unsafe { place(lane).write(bf16::from_f32(value)) };
        }
    }
}
