//! Rows of inputs as words, of two bf16 or of four int8.

use vllm_batch_device::simd::InstructionSet;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use vllm_batch_device::cuda::Plain;
use vllm_batch_device::simd::Isa;
use vllm_batch_device::simd::tiles::TILE_ROWS;

/// Bytes of a cache line, and words of it.
const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / 4;

/// Rows of inputs: each begins `stride` words behind the one before.
#[derive(Clone, Copy)]
pub(crate) struct WordRows<'a> {
    pub words: &'a [u32],
    pub stride: usize,
}

impl WordRows<'_> {
    /// Rows from `first` to `end`, of each the words from `word` on, `num_words` of them: where the
    /// first one is.
    pub(crate) fn at(
        &self,
        (first, end): (usize, usize),
        word: usize,
        num_words: usize,
    ) -> *const u32 {
        let start = first * self.stride + word;
        self.words[start..(end - 1) * self.stride + word + num_words].as_ptr()
    }

    /// Where a row begins, which as many follow as a tile has.
    pub(crate) fn at_tile(&self, row: usize) -> *const u32 {
        self.words[row * self.stride..(row + TILE_ROWS) * self.stride].as_ptr()
    }
}

/// Words that `room` takes.
pub(crate) fn room_len(num_rows: usize, stride: usize) -> usize {
    (num_rows + TILE_ROWS) * stride + LINE_WORDS
}

/// Room for rows, from a cache line on; tiles may read as many more as one of them has, which hold
/// anything.
pub(crate) fn room(words: &mut Vec<u32>, num_rows: usize, stride: usize) -> &mut [u32] {
    let num_words = (num_rows + TILE_ROWS) * stride;
    if words.len() < room_len(num_rows, stride) {
        words.resize(room_len(num_rows, stride), 0);
    }
    let start = words.as_ptr().align_offset(LINE_BYTES).min(LINE_WORDS);
    &mut words[start..start + num_words]
}

/// Values of two or four bytes as the words that they are.
///
/// # Panics
/// They do not begin and end with a word.
pub(crate) fn as_words<T: Plain>(values: &[T]) -> &[u32] {
    // SAFETY: a `Plain` value has no bits but its own, and any bits are a u32.
    let (before, words, after) = unsafe { values.align_to::<u32>() };
    assert!(before.is_empty() && after.is_empty(), "panels and rows begin at whole words");
    words
}

/// A row as words of two bf16, rounded to nearest, ties to even; subnormal values become zeros,
/// which all products of bf16 read them as. The CPU has AVX2 or more, or bf16.
pub(crate) fn narrow(x: &[f32], words: &mut [u32]) {
    assert_eq!(words.len(), x.len().div_ceil(2));
    // SAFETY: the words are those of the one row.
    unsafe { narrow_rows(x.as_ptr(), (1, x.len()), (words.as_mut_ptr(), 0)) };
}

/// A row of values becomes words, in its first half.
pub(crate) fn narrow_in_place(x: &mut [f32]) {
    let place = x.as_mut_ptr();
    // SAFETY: words are half as many, and begin where the row does.
    unsafe { narrow_rows(place, (1, x.len()), (place.cast(), 0)) };
}

/// (num_rows, num_columns) values, as `narrow` does each row; words of rows are so far from each
/// other.
///
/// # Safety
/// Values are readable and words writable, and nobody else touches these. A row's words may begin
/// where its values do, and else have no place in common.
pub(crate) unsafe fn narrow_rows(x: *const f32, shape: (usize, usize), words: (*mut u32, usize)) {
    debug_assert!(Isa::Avx2.is_available() || Isa::NeonBf16.is_available());
    // SAFETY: the caller's promise; the CPU has the instructions that are asked for, or else the
    // caller's has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
            x86::by_avx512_bf16(x, shape, words);
        } else {
            x86::by_avx2(x, shape, words);
        }
    }
    // SAFETY: the caller's promise; sets that take pairs have the instructions.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        neon::by_bf16(x, shape, words);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unreachable!("no set of this machine takes pairs of bf16: {x:?} {shape:?} {words:?}");
}
