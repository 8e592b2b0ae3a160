//! Rows of a tensor of the host, which threads write at places of their own.

use super::gemm::words::{narrow, narrow_rows};
use vllm_batch_device::Tensor;
use vllm_batch_device::tensor::SharedMut;

/// Rows of f32, or of pairs of bf16, which values are rounded to on their way.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedRows {
    /// Values of a row.
    width: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// (num_rows, width)
    Floats(SharedMut<f32>),
    /// (num_rows, stride) words
    Pairs { words: SharedMut<u32>, stride: usize },
}

impl SharedRows {
    /// The rows in use.
    pub(crate) fn of(tensor: &mut Tensor) -> Self {
        let width = tensor.width();
        let place = match tensor.pairs_mut() {
            Some((words, stride)) => Place::Pairs { words: SharedMut::new(words), stride },
            None => Place::Floats(SharedMut::new(tensor.values_mut())),
        };
        Self { width, place }
    }

    /// Puts values into a row, from a column on, which is even where the rows are pairs.
    ///
    /// # Safety
    /// The tensor is alive, and nobody else touches these columns meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, (row, column): (usize, usize), values: &[f32]) {
        let end = column + values.len();
        assert!(end <= self.width);
        // SAFETY: the caller's promise. The words behind the last column are its writer's.
        unsafe {
            match self.place {
                Place::Floats(out) => {
                    let out = out.slice(row * self.width + column, values.len());
                    out.copy_from_slice(values);
                }
                Place::Pairs { words, stride } => {
                    debug_assert!(column.is_multiple_of(2));
                    let num_words = values.len().div_ceil(2);
                    narrow(values, words.slice(row * stride + column / 2, num_words));
                    if end == self.width {
                        let num_before = end.div_ceil(2);
                        words.slice(row * stride + num_before, stride - num_before).fill(0);
                    }
                }
            }
        }
    }

    /// Puts rows of `num_columns` values, one behind the other, as `put` does each.
    ///
    /// # Safety
    /// As `put`, of all of these rows.
    pub(crate) unsafe fn put_block(
        &self,
        (first_row, column): (usize, usize),
        values: &[f32],
        num_columns: usize,
    ) {
        if let Place::Pairs { words, stride } = self.place
            && column + num_columns < self.width
        {
            debug_assert!(column.is_multiple_of(2));
            let num_rows = values.len() / num_columns;
            let len = num_rows.saturating_sub(1) * stride + num_columns.div_ceil(2);
            let first = words.ptr(first_row * stride + column / 2, len);
            // SAFETY: the caller's promise.
            unsafe {
                narrow_rows(values.as_ptr(), (num_rows, num_columns), (first, stride));
            }
            return;
        }
        for (row, values) in values.chunks_exact(num_columns).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.put((first_row + row, column), values) };
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use vllm_batch_device::simd::InstructionSet;

    use super::*;
    use vllm_batch_base::config::DType;
    use vllm_batch_device::simd::Isa;
    use vllm_batch_device::{Device, Precision};

    /// Values that bf16 rounds up, down, and to even, and one that it takes for zero.
    fn values(num: usize) -> Vec<f32> {
        let value = |i: usize| match i % 7 {
            3 => f32::from_bits(0x3f80_8000),
            5 => f32::from_bits(0x0040_0000),
            _ => (i as f32 - 9.0) * 0.123,
        };
        (0..num).map(value).collect()
    }

    #[test]
    fn pairs_hold_what_narrowed_rows_do_and_zeros_behind_it() {
        for isa in Isa::all_available().into_iter().filter(|isa| isa.bf16_products().take_pairs()) {
            let device = Device::cpu_with_isa(1, isa);
            let precision = Precision::LinearInput(DType::BFloat16);
            let mut tensor = device.tensor(3, 70, precision).unwrap();
            // What a wider row left behind goes.
            for width in [70, 37] {
                tensor.reshape(3, width);
                let rows = SharedRows::of(&mut tensor);
                let values = values(3 * width);
                for (row, values) in values.chunks_exact(width).enumerate() {
                    // SAFETY: there is one thread, and the tensor lives on.
                    unsafe {
                        rows.put((row, 32), &values[32..]);
                        rows.put_block((row, 0), &values[..32], 32);
                    }
                }
                let (words, stride) = tensor.pairs().unwrap();
                for (row, values) in values.chunks_exact(width).enumerate() {
                    let (words, rest) = words[row * stride..][..stride].split_at(width.div_ceil(2));
                    let mut expected = vec![0; words.len()];
                    narrow(values, &mut expected);
                    assert_eq!(words, expected, "{isa:?}, {width} values");
                    assert!(rest.iter().all(|&word| word == 0), "{isa:?}, {width} values");
                }
                let rounded = |&value: &f32| match value.is_subnormal() {
                    true => 0.0,
                    false => bf16::from_f32(value).to_f32(),
                };
                let expected: Vec<f32> = values.iter().map(rounded).collect();
                assert_eq!(device.read(&tensor).unwrap(), expected, "{isa:?}, {width} values");
            }
        }
    }
}
