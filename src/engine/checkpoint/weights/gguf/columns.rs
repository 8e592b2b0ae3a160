//! A matrix whose columns are those of another one in some order.

use std::ops::Range;
use std::sync::Arc;

use vllm_batch_base::matrix::{QuantizedMatrix, SourceMatrix, SourceValues};

/// A matrix as its file has it, and which of its columns each column is. It has no codes: outer
/// scales of blocks span more columns than move together, so it is widened at load.
#[derive(Debug)]
pub(super) struct ColumnsInOrder<'a> {
    stored: SourceMatrix<'a>,
    columns: Arc<[u32]>,
}

impl<'a> ColumnsInOrder<'a> {
    /// The matrix whose column i is column `columns[i]` of this.
    ///
    /// # Panics
    /// They are not so many as it has.
    pub(super) fn of(stored: SourceMatrix<'a>, columns: Arc<[u32]>) -> SourceMatrix<'a> {
        let (num_rows, num_columns) = (stored.num_rows, stored.num_columns);
        assert_eq!(columns.len(), num_columns);
        let values = SourceValues::Quantized(Arc::new(Self { stored, columns }));
        SourceMatrix::new(num_rows, num_columns, values)
    }
}

impl QuantizedMatrix for ColumnsInOrder<'_> {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let runs = self.columns[columns].chunk_by(|left, right| left + 1 == *right);
        let mut rest = out;
        for run in runs {
            let (values, others) = rest.split_at_mut(run.len());
            let first = run[0] as usize;
            self.stored.read_row(row, first..first + run.len(), values);
            rest = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GgmlMatrix, GgmlType};
    use super::*;

    #[test]
    fn columns_are_read_where_the_file_has_them() {
        let bytes: Vec<u8> = (0..2 * 2 * 34).map(|byte| byte as u8 % 60).collect();
        let values = SourceValues::Quantized(Arc::new(GgmlMatrix::new(GgmlType::Q8_0, 64, &bytes)));
        let stored = SourceMatrix::new(2, 64, values);
        let columns: Vec<u32> = (32..64).chain(16..32).chain((0..16).rev()).collect();
        let moved = ColumnsInOrder::of(stored.clone(), columns.clone().into());
        let (stored, got) = (stored.to_vec(), moved.to_vec());
        for (index, got) in got.iter().enumerate() {
            let column = columns[index % 64] as usize;
            assert_eq!(got.to_bits(), stored[index / 64 * 64 + column].to_bits(), "{index}");
        }
        let mut some = [0.0; 20];
        moved.read_row(1, 30..50, &mut some);
        assert_eq!(some, got[64 + 30..64 + 50]);
        assert_eq!(moved.code_kind(), None);
    }
}
