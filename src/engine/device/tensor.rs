//! `Tensor`: 2-D, row-major, contiguous: (num_tokens, width). No batch dimension, no strides.

use half::{bf16, f16};

use super::cuda::{DeviceBuffer, DevicePtr};
use super::pages::Pages;
use super::simd::Bf16Products;
use super::simd::tiles::TILE_ROWS;
use vllm_batch_base::config::DType;
use vllm_batch_base::machine::{Refused, granted};

/// An activation buffer, allocated once at its largest size; a step sets how many rows it uses.
/// On the CPU they are f32, but for what only linear layers read where those round it; a GPU has
/// those between two linear layers in the model's dtype.
#[derive(Debug)]
pub struct Tensor {
    storage: Storage,
    num_rows: usize,
    width: usize,
}

#[derive(Debug)]
enum Storage {
    Host(Pages<f32>),
    /// Words of two bf16, rows as far apart as these products want them. What is behind a row's
    /// last value is zero, and there is room for as many rows more as a tile has.
    HostPairs {
        words: Pages<u32>,
        products: Bf16Products,
    },
    Cuda {
        buffer: DeviceBuffer,
        dtype: DType,
    },
    /// E4M3 elements, with a scale for each row.
    CudaFp8 {
        buffer: DeviceBuffer,
        scales: DeviceBuffer,
    },
}

/// Message for a tensor that has no f32 values on the host.
const NO_FLOATS: &str = "values of a GPU, or pairs of bf16, were read as f32 on the host";

/// Precision of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 on every device: the residual stream, logits, weights of norms.
    Full,
    /// Inputs and outputs of linear layers: f32 on the CPU, the model's dtype on a GPU.
    Activation,
    /// Inputs of linear layers of this type alone. Pairs of bf16 on a CPU that multiplies those;
    /// E4M3 on a GPU whose linear layers take that; else as `Activation`.
    LinearInput(DType),
    /// The same, written by attention, which has no E4M3.
    Attended(DType),
}

/// Rows of a tensor from `first` on, to be read.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// First row of the tensor among these.
    pub first: usize,
}

/// Rows of a tensor from `first` on, to be written.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// The tensor.
    pub tensor: &'a mut Tensor,
    /// First row of the tensor among these.
    pub first: usize,
}

impl Tensor {
    /// Rows from `first` on.
    pub fn rows_from(&self, first: usize) -> Rows<'_> {
        Rows { tensor: self, first }
    }

    /// The same, to be written.
    pub fn rows_from_mut(&mut self, first: usize) -> RowsMut<'_> {
        RowsMut { tensor: self, first }
    }

    /// Room for `max_rows` rows; it starts with all of them in use, zeroed.
    ///
    /// # Panics
    /// The system refuses the memory.
    pub fn zeros(max_rows: usize, width: usize) -> Self {
        granted(Self::try_zeros(max_rows, width))
    }

    /// The same, where the system grants the memory.
    pub(super) fn try_zeros(max_rows: usize, width: usize) -> Result<Self, Refused> {
        let pages = Pages::try_zeroed_huge(max_rows.saturating_mul(width))?;
        Ok(Self { storage: Storage::Host(pages), num_rows: max_rows, width })
    }

    /// Room for rows that these products take as pairs of bf16; it starts with none in use.
    pub(super) fn try_pairs(
        max_rows: usize,
        width: usize,
        products: Bf16Products,
    ) -> Result<Self, Refused> {
        let num_words = (max_rows + TILE_ROWS).saturating_mul(products.row_stride(width));
        let words = Pages::try_zeroed_huge(num_words)?;
        Ok(Self { storage: Storage::HostPairs { words, products }, num_rows: 0, width })
    }

    /// A tensor of given values, for tests and tables.
    ///
    /// # Panics
    /// The length is no multiple of `width`.
    pub fn from_vec(data: Vec<f32>, width: usize) -> Self {
        assert!(data.len().is_multiple_of(width));
        let num_rows = data.len() / width;
        Self { storage: Storage::Host(Pages::from_slice(&data)), num_rows, width }
    }

    /// A tensor in a GPU's memory, which `buffer` has room for; none of its rows are in use.
    pub(super) fn on_gpu(buffer: DeviceBuffer, dtype: DType, width: usize) -> Self {
        Self { storage: Storage::Cuda { buffer, dtype }, num_rows: 0, width }
    }

    /// E4M3 rows in a GPU's memory; none of them are in use.
    pub(super) fn on_gpu_in_fp8(buffer: DeviceBuffer, scales: DeviceBuffer, width: usize) -> Self {
        Self { storage: Storage::CudaFp8 { buffer, scales }, num_rows: 0, width }
    }

    /// Where the scales of the rows are, of E4M3 rows.
    pub fn scales_ptr(&self) -> Option<DevicePtr> {
        match &self.storage {
            Storage::CudaFp8 { scales, .. } => Some(scales.ptr()),
            Storage::Host(_) | Storage::HostPairs { .. } | Storage::Cuda { .. } => None,
        }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        match &self.storage {
            Storage::CudaFp8 { .. } => self.width,
            _ => self.width * self.dtype().size_bytes(),
        }
    }

    /// Where the values are in a GPU's memory.
    ///
    /// # Panics
    /// It is on the host.
    pub fn device_ptr(&self) -> DevicePtr {
        match &self.storage {
            Storage::Cuda { buffer, .. } | Storage::CudaFp8 { buffer, .. } => buffer.ptr(),
            Storage::Host(_) | Storage::HostPairs { .. } => {
                panic!("a tensor of the host was given to a GPU")
            }
        }
    }

    /// Memory of a GPU where the values are, of those that it has in one type.
    pub(super) fn gpu_buffer(&self) -> Option<&DeviceBuffer> {
        match &self.storage {
            Storage::Cuda { buffer, .. } => Some(buffer),
            Storage::CudaFp8 { .. } | Storage::Host(_) | Storage::HostPairs { .. } => None,
        }
    }

    /// Type of the values.
    ///
    /// # Panics
    /// They are E4M3.
    pub fn dtype(&self) -> DType {
        match &self.storage {
            Storage::Host(_) => DType::Float32,
            Storage::HostPairs { .. } => DType::BFloat16,
            Storage::Cuda { dtype, .. } => *dtype,
            Storage::CudaFp8 { .. } => panic!("E4M3 rows were given to what does not take them"),
        }
    }

    /// Rows that there is room for.
    fn max_rows(&self) -> usize {
        match &self.storage {
            Storage::Host(data) => data.len() / self.width.max(1),
            Storage::HostPairs { words, products } => {
                let num_rows = words.len() / products.row_stride(self.width).max(1);
                num_rows.saturating_sub(TILE_ROWS)
            }
            Storage::Cuda { buffer, .. } => buffer.bytes() / self.row_bytes().max(1),
            Storage::CudaFp8 { buffer, scales } => {
                (buffer.bytes() / self.row_bytes().max(1)).min(scales.bytes() / 4)
            }
        }
    }

    /// Uses the same memory for `num_rows` rows of `width` values from now on, so that layers of
    /// different widths share a buffer. Old values are not kept in any order.
    ///
    /// # Panics
    /// There is no room for them.
    pub fn reshape(&mut self, num_rows: usize, width: usize) {
        self.width = width;
        self.set_num_rows(num_rows);
    }

    /// Uses the first `num_rows` rows from now on.
    ///
    /// # Panics
    /// There is no room for them.
    pub fn set_num_rows(&mut self, num_rows: usize) {
        let width = self.width;
        assert!(num_rows <= self.max_rows(), "{num_rows} rows of {width} values do not fit");
        self.num_rows = num_rows;
    }

    /// Makes room for `num_rows` rows and uses them; old values are not kept in any order. Only
    /// tensors of f32 on the host grow.
    ///
    /// # Panics
    /// It does not grow and has no room for them.
    pub fn resize_rows(&mut self, num_rows: usize) {
        if let Storage::Host(data) = &mut self.storage
            && num_rows * self.width > data.len()
        {
            *data = Pages::zeroed_huge(num_rows * self.width);
        }
        self.set_num_rows(num_rows);
    }

    /// Rows in use.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The rows in use, row-major.
    ///
    /// # Panics
    /// They are on a GPU, or pairs of bf16.
    pub fn values(&self) -> &[f32] {
        match &self.storage {
            Storage::Host(data) => &data[..self.num_rows * self.width],
            _ => panic!("{NO_FLOATS}"),
        }
    }

    /// The rows in use, row-major.
    ///
    /// # Panics
    /// They are on a GPU, or pairs of bf16.
    pub fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.storage {
            Storage::Host(data) => &mut data[..self.num_rows * self.width],
            _ => panic!("{NO_FLOATS}"),
        }
    }

    /// The rows in use as words of two bf16, and those behind them that a tile may read; and how
    /// many words a row begins behind the one before. None: they are no pairs.
    pub fn pairs(&self) -> Option<(&[u32], usize)> {
        let Storage::HostPairs { words, products } = &self.storage else { return None };
        let stride = products.row_stride(self.width);
        Some((&words[..(self.num_rows + TILE_ROWS) * stride], stride))
    }

    /// The rows in use, as `pairs`, to be written: whoever writes a row's last value writes zeros
    /// behind it.
    pub fn pairs_mut(&mut self) -> Option<(&mut [u32], usize)> {
        let Storage::HostPairs { words, products } = &mut self.storage else { return None };
        let stride = products.row_stride(self.width);
        Some((&mut words[..self.num_rows * stride], stride))
    }

    /// The rows in use, widened, of a tensor of the host.
    pub(super) fn widened(&self) -> Vec<f32> {
        let Some((words, stride)) = self.pairs() else { return self.values().to_vec() };
        let rows = words.chunks_exact(stride.max(1)).take(self.num_rows);
        let halves = |word: &u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
        rows.flat_map(|row| row.iter().flat_map(halves).take(self.width)).collect()
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.width..(row + 1) * self.width]
    }

    /// One row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.values_mut()[row * width..(row + 1) * width]
    }
}

/// Values as elements of `dtype`, little-endian.
pub fn narrowed(values: &[f32], dtype: DType) -> Vec<u8> {
    let values = values.iter();
    match dtype {
        DType::Float32 => values.flat_map(|x| x.to_le_bytes()).collect(),
        DType::BFloat16 => values.flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        DType::Float16 => values.flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
    }
}

/// The values of little-endian elements of `dtype`.
pub(super) fn widened(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        DType::Float32 => {
            let words = bytes.chunks_exact(4);
            words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
        }
        DType::BFloat16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        DType::Float16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
    }
}

/// A mutable slice that several threads write at disjoint places.
#[derive(Clone, Copy, Debug)]
pub struct SharedMut<T> {
    ptr: *mut T,
    len: usize,
}

// SAFETY: the user of `slice` promises that no two threads touch one element.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// Shares `values` for the time of a parallel region.
    pub fn new(values: &mut [T]) -> Self {
        Self { ptr: values.as_mut_ptr(), len: values.len() }
    }

    /// Where element `start` is, with `len` elements from there on: for kernels that write parts of
    /// them.
    #[inline(always)]
    pub fn ptr(&self, start: usize, len: usize) -> *mut T {
        assert!(start + len <= self.len);
        self.ptr.wrapping_add(start)
    }

    /// Elements `start..start + len`.
    ///
    /// # Safety
    /// The slice passed to `new` is alive, and no other thread touches these elements meanwhile.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len);
        // SAFETY: inside the allocation by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_shape_uses_the_same_memory() {
        let mut tensor = Tensor::zeros(4, 6);
        let before = tensor.values().as_ptr();
        tensor.reshape(3, 8);
        assert_eq!((tensor.num_rows(), tensor.width(), tensor.values().len()), (3, 8, 24));
        tensor.row_mut(2)[7] = 1.0;
        tensor.reshape(2, 5);
        tensor.set_num_rows(4);
        assert_eq!((tensor.row(3).len(), tensor.values().as_ptr()), (5, before));
    }

    #[test]
    #[should_panic(expected = "5 rows of 5000 values do not fit")]
    fn another_shape_needs_room() {
        Tensor::zeros(4, 6).reshape(5, 5000);
    }
}
