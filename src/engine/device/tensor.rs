//! `Tensor`: 2-D, row-major, contiguous f32: (num_tokens, width). No batch dimension, no strides.

/// An activation buffer, allocated once at its largest size; a step sets how many rows it uses.
#[derive(Clone, Debug)]
pub struct Tensor {
    data: Vec<f32>,
    num_rows: usize,
    width: usize,
}

impl Tensor {
    /// Room for `max_rows` rows; it starts with all of them in use, zeroed.
    pub fn zeros(max_rows: usize, width: usize) -> Self {
        Self { data: vec![0.0; max_rows * width], num_rows: max_rows, width }
    }

    /// A tensor of given values, for tests and tables.
    ///
    /// # Panics
    /// The length is no multiple of `width`.
    pub fn from_vec(data: Vec<f32>, width: usize) -> Self {
        assert!(data.len().is_multiple_of(width));
        let num_rows = data.len() / width;
        Self { data, num_rows, width }
    }

    /// Uses the first `num_rows` rows from now on.
    ///
    /// # Panics
    /// There is no room for them.
    pub fn set_num_rows(&mut self, num_rows: usize) {
        assert!(num_rows * self.width <= self.data.len(), "{num_rows} rows do not fit");
        self.num_rows = num_rows;
    }

    /// Makes room for `num_rows` rows and uses them; old values are not kept in any order.
    pub fn resize_rows(&mut self, num_rows: usize) {
        if num_rows * self.width > self.data.len() {
            self.data.resize(num_rows * self.width, 0.0);
        }
        self.num_rows = num_rows;
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
    pub fn values(&self) -> &[f32] {
        &self.data[..self.num_rows * self.width]
    }

    /// The rows in use, row-major.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.num_rows * self.width]
    }

    /// Uses `num_rows` rows, copied from row `start` of `source`, into this tensor from its row 0.
    pub fn take_rows(&mut self, source: &Tensor, start: usize, num_rows: usize) {
        assert_eq!(self.width, source.width);
        self.set_num_rows(num_rows);
        let from = start * self.width;
        let values = &source.values()[from..from + num_rows * self.width];
        self.values_mut().copy_from_slice(values);
    }

    /// Overwrites the rows from `start` with the rows of `source`.
    pub fn paste_rows(&mut self, start: usize, source: &Tensor) {
        assert_eq!(self.width, source.width);
        let (from, len) = (start * self.width, source.values().len());
        self.values_mut()[from..from + len].copy_from_slice(source.values());
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
