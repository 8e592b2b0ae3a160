//! Matrices whose columns are those of another one: in some order, or divided by their lengths.

use std::ops::Range;
use std::sync::Arc;

use super::source::{QuantizedMatrix, SourceMatrix, SourceValues};

/// A matrix as its file has it, and which of its columns each column is. It has no codes: their
/// scales may span columns that do not move together, so it is widened at load.
#[derive(Debug)]
struct ColumnsInOrder<'a> {
    stored: SourceMatrix<'a>,
    columns: Arc<[u32]>,
}

impl<'a> SourceMatrix<'a> {
    /// The matrix whose column i is column `columns[i]` of this.
    ///
    /// # Panics
    /// They are not so many as it has.
    pub fn columns_in_order(self, columns: Arc<[u32]>) -> Self {
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        assert_eq!(columns.len(), num_columns);
        let values = SourceValues::Quantized(Arc::new(ColumnsInOrder { stored: self, columns }));
        Self::new(num_rows, num_columns, values)
    }
}

impl QuantizedMatrix for ColumnsInOrder<'_> {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let columns = &self.columns[columns];
        let runs = columns.chunk_by(|left, right| left + 1 == *right);
        if runs.clone().count() * SHORT_RUN > columns.len() {
            let first = columns.iter().min().map_or(0, |first| *first as usize);
            let end = columns.iter().max().map_or(0, |last| *last as usize + 1);
            let mut stored = vec![0.0; end - first];
            self.stored.read_row(row, first..end, &mut stored);
            for (value, column) in out.iter_mut().zip(columns) {
                *value = stored[*column as usize - first];
            }
            return;
        }
        let mut rest = out;
        for run in runs {
            let (values, others) = rest.split_at_mut(run.len());
            let first = run[0] as usize;
            self.stored.read_row(row, first..first + run.len(), values);
            rest = others;
        }
    }
}

/// A matrix as its file has it, and the length of each of its columns.
#[derive(Debug)]
struct ColumnsOfLengthOne<'a> {
    stored: SourceMatrix<'a>,
    lengths: Vec<f32>,
}

impl<'a> SourceMatrix<'a> {
    /// The matrix whose columns are those of this, divided by their lengths, or by `least` where
    /// that is more.
    pub fn columns_of_length_one(self, least: f32) -> Self {
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let (mut squares, mut values) = (vec![0.0f64; num_columns], vec![0.0; num_columns]);
        for row in 0..num_rows {
            self.read_row(row, 0..num_columns, &mut values);
            for (square, &value) in squares.iter_mut().zip(&values) {
                *square += f64::from(value) * f64::from(value);
            }
        }
        let lengths = squares.into_iter().map(|square| (square.sqrt() as f32).max(least)).collect();
        let values =
            SourceValues::Quantized(Arc::new(ColumnsOfLengthOne { stored: self, lengths }));
        Self::new(num_rows, num_columns, values)
    }
}

impl QuantizedMatrix for ColumnsOfLengthOne<'_> {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        self.stored.read_row(row, columns.clone(), out);
        for (value, length) in out.iter_mut().zip(&self.lengths[columns]) {
            *value /= length;
        }
    }
}

/// Columns of a run on average, below which it is faster to read all between.
const SHORT_RUN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_where_the_file_has_them() {
        let stored = SourceMatrix::random(2, 64, 7, 1.0);
        let columns: Vec<u32> = (32..64).chain(16..32).chain((0..16).rev()).collect();
        let moved = stored.clone().columns_in_order(columns.clone().into());
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

    #[test]
    fn columns_are_divided_by_their_lengths() {
        let values = [3.0, 0.0, 1.0, 4.0, 0.0, -1.0];
        let stored = SourceMatrix::new(2, 3, SourceValues::Slice(&values));
        let of_one = stored.columns_of_length_one(2.0);
        assert_eq!(of_one.to_vec(), [0.6, 0.0, 0.5, 0.8, 0.0, -0.5]);
        let mut some = [0.0; 2];
        of_one.read_row(1, 1..3, &mut some);
        assert_eq!(some, [0.0, -0.5]);
    }
}
