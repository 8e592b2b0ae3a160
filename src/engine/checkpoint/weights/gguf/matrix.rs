//! A matrix in blocks, read row by row.

use std::ops::Range;

use super::blocks::kind_of;
use super::{GgmlType, read};
use vllm_batch_base::matrix::CodedMatrix;
use vllm_batch_base::matrix::QuantizedMatrix;

/// A matrix of a GGUF file. Rows are one after the other, each of whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct GgmlMatrix<'a> {
    ty: GgmlType,
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> GgmlMatrix<'a> {
    /// Rows of `num_columns` values.
    ///
    /// # Panics
    /// A row is no whole blocks, or the bytes are no whole rows.
    pub fn new(ty: GgmlType, num_columns: usize, bytes: &'a [u8]) -> Self {
        assert!(num_columns.is_multiple_of(ty.block_len()));
        let row_bytes = num_columns / ty.block_len() * ty.block_bytes();
        assert!(bytes.len().is_multiple_of(row_bytes));
        Self { ty, bytes, row_bytes }
    }

    /// Type of the values.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// The blocks of a row.
    ///
    /// # Panics
    /// There is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

impl QuantizedMatrix for GgmlMatrix<'_> {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        read(self.ty, self.row(row), columns, out);
    }

    fn codes(&self) -> Option<&dyn CodedMatrix> {
        kind_of(self.ty).is_some().then_some(self)
    }
}
