//! Matrices as checkpoints hold them: read row by row, whatever they are stored as.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::codes::{CodeKind, CodedMatrix};
use crate::config::DType;
use crate::split_mix::{GAMMA, mix};

/// A matrix that can be read row by row: bytes of a weight file, or made up.
#[derive(Clone, Debug)]
pub struct SourceMatrix<'a> {
    /// Rows: outputs of a linear layer.
    pub num_rows: usize,
    /// Columns: its inputs.
    pub num_columns: usize,
    /// Where values come from.
    pub values: SourceValues<'a>,
    /// Of a transpose, the columns that are stored, and which of them is its first row; None: it is
    /// none.
    transposed: Option<(usize, usize)>,
    /// Stored row of each row; `None`: row by row.
    order: Option<Arc<[u32]>>,
    /// Columns that are stored, and which of them is the first; None: all are columns of this.
    window: Option<(usize, usize)>,
}

/// Where the values of a `SourceMatrix` come from.
#[derive(Clone, Debug)]
pub enum SourceValues<'a> {
    /// Little-endian elements, row-major, of any alignment.
    Bytes(DType, &'a [u8]),
    /// Uniform in [-scale, scale], a pure function of seed and index.
    Random {
        /// Seed of this tensor.
        seed: u64,
        /// Largest absolute value.
        scale: f32,
    },
    /// One value everywhere.
    Constant(f32),
    /// Row-major values.
    Slice(&'a [f32]),
    /// The same, made for this.
    Owned(Arc<[f32]>),
    /// Codes with scales, in the layout of some format.
    Quantized(Arc<dyn QuantizedMatrix + 'a>),
}

/// A matrix that a checkpoint holds narrower than its values are: codes with scales.
pub trait QuantizedMatrix: Debug + Send + Sync {
    /// Values `columns` of a stored row, with the bits that the format's reference dequantizer
    /// gives in f32.
    ///
    /// # Panics
    /// The row or a column is out of range, or `out` has another length than `columns`.
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]);

    /// Quantized weights, if a device may keep them; `None`: it is widened at load.
    fn codes(&self) -> Option<&dyn CodedMatrix> {
        None
    }
}

impl<'a> SourceMatrix<'a> {
    /// A matrix whose rows are stored one after the other.
    pub fn new(num_rows: usize, num_columns: usize, values: SourceValues<'a>) -> Self {
        Self { num_rows, num_columns, values, transposed: None, order: None, window: None }
    }

    /// Elements of a weight file.
    ///
    /// # Panics
    /// The bytes are not as many as the shape asks for.
    pub fn from_bytes(num_rows: usize, num_columns: usize, dtype: DType, bytes: &'a [u8]) -> Self {
        assert_eq!(bytes.len(), num_rows * num_columns * dtype.size_bytes());
        Self::new(num_rows, num_columns, SourceValues::Bytes(dtype, bytes))
    }

    /// Seeded random values.
    pub fn random(num_rows: usize, num_columns: usize, seed: u64, scale: f32) -> Self {
        Self::new(num_rows, num_columns, SourceValues::Random { seed, scale })
    }

    /// The transpose of this, as which it is read from then on.
    ///
    /// # Panics
    /// The rows have an order, it is the transpose of some columns, or it is quantized: no format
    /// of ours is transposed.
    pub fn transposed(self) -> Self {
        let is_quantized = matches!(self.values, SourceValues::Quantized(_));
        assert!(self.order.is_none() && !is_quantized, "only plain matrices are transposed");
        let transposed = match (self.transposed, self.window) {
            (None, _) => Some(self.stored_columns()),
            (Some(stored), None) if stored == (self.num_rows, 0) => None,
            _ => unreachable!("all columns of a matrix become rows again"),
        };
        Self {
            num_rows: self.num_columns,
            num_columns: self.num_rows,
            transposed,
            window: None,
            ..self
        }
    }

    /// The same, whose row i is row `order[i]` of this.
    ///
    /// # Panics
    /// The order has another length, or there is one.
    pub fn in_order(self, order: Arc<[u32]>) -> Self {
        assert!(self.order.is_none() && order.len() == self.num_rows, "an order of all rows");
        Self { order: Some(order), ..self }
    }

    /// The same values, one after the other, in so many rows.
    ///
    /// # Panics
    /// They do not fill the rows, have an order, or are quantized.
    pub fn in_rows(self, num_rows: usize) -> Self {
        let is_quantized = matches!(self.values, SourceValues::Quantized(_));
        let is_stored = self.is_as_stored();
        let num_values = self.num_rows * self.num_columns;
        assert!(is_stored && !is_quantized && num_values.is_multiple_of(num_rows), "rows");
        Self { num_rows, num_columns: num_values / num_rows, ..self }
    }

    /// Some columns of this alone.
    ///
    /// # Panics
    /// It has fewer, or is a window already.
    pub fn of_columns(self, columns: Range<usize>) -> Self {
        assert!(self.window.is_none() && columns.end <= self.num_columns, "columns of a matrix");
        let window = Some((self.num_columns, columns.start));
        Self { num_columns: columns.len(), window, ..self }
    }

    /// Number `index` of `count` matrices that are stored one after the other as this.
    ///
    /// # Panics
    /// `index` is not below `count`, the rows are no multiple of it, or have another order.
    pub fn slice(self, index: usize, count: usize) -> Self {
        let is_stored = self.is_as_stored();
        assert!(is_stored && index < count && self.num_rows.is_multiple_of(count), "a slice");
        let num_rows = self.num_rows / count;
        let (first, len) = (index * num_rows * self.num_columns, num_rows * self.num_columns);
        let mut order = None;
        let values = match self.values {
            SourceValues::Bytes(dtype, bytes) => {
                let size = dtype.size_bytes();
                SourceValues::Bytes(dtype, &bytes[first * size..(first + len) * size])
            }
            SourceValues::Random { seed, scale } => {
                let seed = seed.wrapping_add((first as u64).wrapping_mul(GAMMA));
                SourceValues::Random { seed, scale }
            }
            SourceValues::Constant(value) => SourceValues::Constant(value),
            SourceValues::Slice(values) => SourceValues::Slice(&values[first..first + len]),
            SourceValues::Owned(values) => SourceValues::Owned(values[first..first + len].into()),
            SourceValues::Quantized(matrix) => {
                let first = (index * num_rows) as u32;
                order = Some((first..first + num_rows as u32).collect());
                SourceValues::Quantized(matrix)
            }
        };
        Self { num_rows, values, order, ..self }
    }

    /// The stored row of row `row`.
    fn stored_row(&self, row: usize) -> usize {
        self.order.as_ref().map_or(row, |order| order[row] as usize)
    }

    /// Columns that are stored, and which of them is the first of this.
    fn stored_columns(&self) -> (usize, usize) {
        self.window.unwrap_or((self.num_columns, 0))
    }

    /// The codes of a row and which stored row it is, where it has codes.
    pub fn coded(&self, row: usize) -> Option<(&dyn CodedMatrix, usize)> {
        match &self.values {
            SourceValues::Quantized(matrix) if self.window.is_none() => {
                Some((matrix.codes()?, self.stored_row(row)))
            }
            _ => None,
        }
    }

    /// Whether it is held narrower than its values are.
    pub fn is_quantized(&self) -> bool {
        matches!(self.values, SourceValues::Quantized(_))
    }

    /// Format of its codes, if a device may keep them; `None`: it has none, or only some of its
    /// columns are wanted.
    pub fn code_kind(&self) -> Option<CodeKind> {
        match &self.values {
            SourceValues::Quantized(matrix) if self.window.is_none() => {
                Some(matrix.codes()?.kind())
            }
            _ => None,
        }
    }

    /// Bytes of elements of `dtype` in these columns, where they lie like that.
    pub fn bytes_of(&self, dtype: DType, row: usize, columns: Range<usize>) -> Option<&'a [u8]> {
        match self.values {
            SourceValues::Bytes(of, bytes) if of == dtype && self.transposed.is_none() => {
                let (num_stored, first) = self.stored_columns();
                let start = self.stored_row(row) * num_stored + first;
                let size = dtype.size_bytes();
                Some(&bytes[(start + columns.start) * size..(start + columns.end) * size])
            }
            _ => None,
        }
    }

    fn is_as_stored(&self) -> bool {
        self.transposed.is_none() && self.order.is_none() && self.window.is_none()
    }

    /// Bytes of all elements in order of rows, where they are stored so in `dtype`.
    pub fn all_bytes_of(&self, dtype: DType) -> Option<&'a [u8]> {
        match self.values {
            SourceValues::Bytes(of, bytes) if of == dtype && self.is_as_stored() => Some(bytes),
            _ => None,
        }
    }

    /// Seed and scale of random values in order of rows.
    pub fn as_random(&self) -> Option<(u64, f32)> {
        match self.values {
            SourceValues::Random { seed, scale } if self.is_as_stored() => Some((seed, scale)),
            _ => None,
        }
    }

    /// Values `columns` of a row as f32.
    ///
    /// # Panics
    /// The row or a column is out of range, or `out` has another length than `columns`.
    pub fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        assert!(row < self.num_rows && columns.end <= self.num_columns);
        assert_eq!(columns.len(), out.len());
        let row = self.stored_row(row);
        let (num_stored, first) = self.stored_columns();
        let columns = first + columns.start..first + columns.end;
        // Indices of the first value and of those behind it.
        let (first, step) = match self.transposed {
            None => (row * num_stored + columns.start, 1),
            Some((num_stored, first)) => (columns.start * num_stored + first + row, num_stored),
        };
        let indices = (first..).step_by(step);
        match &self.values {
            SourceValues::Quantized(matrix) => matrix.read_row(row, columns, out),
            SourceValues::Bytes(dtype, bytes) => read_elements(*dtype, bytes, (first, step), out),
            SourceValues::Random { seed, scale } => {
                for (value, index) in out.iter_mut().zip(indices) {
                    *value = scale * uniform(*seed, index as u64);
                }
            }
            SourceValues::Constant(constant) => out.fill(*constant),
            SourceValues::Slice(values) => read_values(values, indices, out),
            SourceValues::Owned(values) => read_values(values, indices, out),
        }
    }

    /// Little-endian elements of `dtype` from element `first` on, as many as `out` has room for.
    pub fn write_as(&self, dtype: DType, first: usize, out: &mut [u8]) {
        const NUM_VALUES: usize = 256;
        let size = dtype.size_bytes();
        let mut values = [0.0; NUM_VALUES];
        let (mut at, end) = (first, first + out.len() / size);
        while at < end {
            let (row, column) = (at / self.num_columns, at % self.num_columns);
            let num = (self.num_columns - column).min(end - at).min(NUM_VALUES);
            self.read_row(row, column..column + num, &mut values[..num]);
            let bytes = &mut out[(at - first) * size..][..num * size];
            for (&value, bytes) in values.iter().zip(bytes.chunks_exact_mut(size)) {
                match dtype {
                    DType::Float32 => bytes.copy_from_slice(&value.to_le_bytes()),
                    DType::BFloat16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    DType::Float16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                }
            }
            at += num;
        }
    }

    /// All values in row-major order.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.num_rows * self.num_columns];
        if self.num_columns > 0 {
            for (row, values) in values.chunks_exact_mut(self.num_columns).enumerate() {
                self.read_row(row, 0..self.num_columns, values);
            }
        }
        values
    }
}

/// Values at these indices.
fn read_values(values: &[f32], indices: impl Iterator<Item = usize>, out: &mut [f32]) {
    for (value, index) in out.iter_mut().zip(indices) {
        *value = values[index];
    }
}

/// Every `step`th element of `dtype` from the one at `first` on.
fn read_elements(dtype: DType, bytes: &[u8], (first, step): (usize, usize), out: &mut [f32]) {
    let size = dtype.size_bytes();
    let elements = bytes[first * size..].chunks_exact(size).step_by(step);
    match dtype {
        DType::Float32 => {
            for (value, bytes) in out.iter_mut().zip(elements) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        DType::BFloat16 => {
            for (value, bytes) in out.iter_mut().zip(elements) {
                *value = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            }
        }
        DType::Float16 => {
            for (value, bytes) in out.iter_mut().zip(elements) {
                *value = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            }
        }
    }
}

/// Uniform in [-1, 1): number `index` of SplitMix64.
fn uniform(seed: u64, index: u64) -> f32 {
    let z = mix(seed.wrapping_add((index + 1).wrapping_mul(GAMMA)));
    (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// The rows of a linear layer: those of several matrices, one after the other, in an order.
#[derive(Clone, Debug)]
pub struct SourceRows<'a> {
    parts: Vec<SourceMatrix<'a>>,
    /// The first row of each part, and how many rows there are.
    starts: Vec<usize>,
    /// Row of the parts for each row; `None`: one after the other.
    order: Option<Arc<[u32]>>,
}

impl<'a> From<Vec<SourceMatrix<'a>>> for SourceRows<'a> {
    fn from(parts: Vec<SourceMatrix<'a>>) -> Self {
        assert!(parts.windows(2).all(|pair| pair[0].num_columns == pair[1].num_columns));
        let mut starts = vec![0];
        for part in &parts {
            starts.push(starts[starts.len() - 1] + part.num_rows);
        }
        Self { parts, starts, order: None }
    }
}

impl<'a, const N: usize> From<[SourceMatrix<'a>; N]> for SourceRows<'a> {
    fn from(parts: [SourceMatrix<'a>; N]) -> Self {
        Vec::from(parts).into()
    }
}

impl<'a> SourceRows<'a> {
    /// The same, whose row i is row `order[i]` of this, which may have others too.
    ///
    /// # Panics
    /// There is no such row, or this has an order.
    pub fn in_order(self, order: Option<Arc<[u32]>>) -> Self {
        let (num_rows, rows) = (self.num_rows(), order.as_deref().unwrap_or_default());
        assert!(self.order.is_none() && rows.iter().all(|&row| (row as usize) < num_rows));
        Self { order, ..self }
    }

    /// Outputs of the layer.
    pub fn num_rows(&self) -> usize {
        let of_parts = self.starts[self.parts.len()];
        self.order.as_ref().map_or(of_parts, |order| order.len())
    }

    /// Inputs of the layer.
    pub fn num_columns(&self) -> usize {
        self.parts[0].num_columns
    }

    /// The parts, where their rows are in no other order.
    pub fn in_parts(&self) -> Option<&[SourceMatrix<'a>]> {
        self.order.is_none().then_some(&self.parts)
    }

    /// The matrix that has row `row`, and which of its rows that is.
    pub fn locate(&self, row: usize) -> (&SourceMatrix<'a>, usize) {
        let row = self.order.as_ref().map_or(row, |order| order[row] as usize);
        let part = self.starts.partition_point(|start| *start <= row) - 1;
        assert!(part < self.parts.len(), "row {row} is past the last part");
        (&self.parts[part], row - self.starts[part])
    }

    /// All values of a row as f32.
    ///
    /// # Panics
    /// The row is out of range, or `out` has another length than a row.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let (matrix, row) = self.locate(row);
        matrix.read_row(row, 0..matrix.num_columns, out);
    }

    /// As [`SourceMatrix::write_as`], over the rows of all parts.
    pub fn write_as(&self, dtype: DType, first: usize, out: &mut [u8]) {
        let (size, width) = (dtype.size_bytes(), self.num_columns());
        let (mut at, end) = (first, first + out.len() / size);
        while at < end {
            let (matrix, row) = self.locate(at / width);
            let column = at % width;
            let num = (width - column).min(end - at);
            let bytes = &mut out[(at - first) * size..][..num * size];
            matrix.write_as(dtype, row * width + column, bytes);
            at += num;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes that are their own values, two to a byte.
    #[derive(Debug)]
    struct Nibbles<'a>(&'a [u8]);

    impl QuantizedMatrix for Nibbles<'_> {
        fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
            for (value, column) in out.iter_mut().zip(columns) {
                *value = f32::from(self.0[2 * row + column / 2] >> (4 * (column % 2)) & 15);
            }
        }
    }

    #[test]
    fn rows_are_read_in_their_order_whatever_they_are_stored_as() {
        let bytes: Vec<u8> = (0..6).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
        let plain = SourceMatrix::from_bytes(3, 2, DType::Float16, &bytes);
        let order: Arc<[u32]> = [2, 0, 1].into();
        let ordered = plain.clone().in_order(order.clone());
        assert_eq!(ordered.to_vec(), [4.0, 5.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(plain.clone().transposed().to_vec(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        let flat = plain.clone().in_rows(2);
        assert_eq!((flat.num_columns, flat.to_vec()), (3, plain.to_vec()));
        assert_eq!(plain.bytes_of(DType::Float16, 1, 1..2), Some(&bytes[6..8]));
        assert_eq!(ordered.bytes_of(DType::Float16, 1, 1..2), Some(&bytes[2..4]));
        assert_eq!(ordered.all_bytes_of(DType::Float16), None);
        assert_eq!(plain.transposed().bytes_of(DType::Float16, 0, 0..1), None);

        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let slice = SourceMatrix::new(2, 3, SourceValues::Slice(&values)).transposed();
        assert_eq!(slice.to_vec(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let stored = SourceMatrix::random(2, 3, 9, 1.0);
        let random = stored.clone().transposed().to_vec();
        assert_eq!(random[1], stored.to_vec()[3]);

        let codes = [0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb];
        let values = SourceValues::Quantized(Arc::new(Nibbles(&codes)));
        let quantized = SourceMatrix::new(3, 4, values);
        let ordered = quantized.clone().in_order(order);
        assert_eq!(ordered.to_vec()[..5], [9.0, 10.0, 11.0, 12.0, 1.0]);

        let plain = SourceMatrix::from_bytes(3, 2, DType::Float16, &bytes);
        for stored in [plain, quantized, slice.transposed(), stored.slice(1, 2)] {
            for index in 0..stored.num_rows {
                let row = stored.clone().slice(index, stored.num_rows);
                let start = index * stored.num_columns;
                assert_eq!(row.to_vec(), stored.to_vec()[start..start + stored.num_columns]);
            }
        }
        let halves = SourceMatrix::random(4, 3, 9, 1.0);
        let second = halves.clone().slice(1, 2);
        assert_eq!(second.transposed().to_vec()[..2], [halves.to_vec()[6], halves.to_vec()[9]]);
    }

    #[test]
    fn columns_are_read_alone_whatever_they_are_stored_as() {
        let bytes: Vec<u8> = (0..12).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
        let plain = SourceMatrix::from_bytes(3, 4, DType::Float16, &bytes);
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba];
        let nibbles = SourceValues::Quantized(Arc::new(Nibbles(&codes)));
        let by_columns: Vec<f32> = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11].map(|i| i as f32).into();
        let transposed = SourceMatrix::new(4, 3, SourceValues::Slice(&by_columns)).transposed();
        let owned = SourceMatrix::new(3, 4, SourceValues::Owned(values.clone().into()));
        let quantized = SourceMatrix::new(3, 4, nibbles);
        for stored in [plain.clone(), owned, transposed, quantized] {
            assert_eq!(stored.to_vec(), values);
            let columns = stored.of_columns(1..3);
            assert_eq!(columns.num_columns, 2);
            assert_eq!(columns.to_vec(), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
            let rows = SourceRows::from([columns]).in_order(Some([2, 0].into()));
            assert_eq!((rows.num_rows(), rows.num_columns()), (2, 2));
            let mut bytes = [0; 16];
            rows.write_as(DType::Float32, 0, &mut bytes);
            let value = |i: usize| f32::from_le_bytes(*bytes[4 * i..].first_chunk().unwrap());
            assert_eq!([value(0), value(1), value(2), value(3)], [9.0, 10.0, 1.0, 2.0]);
        }
        let columns = plain.of_columns(1..3);
        assert_eq!(columns.bytes_of(DType::Float16, 1, 1..2), Some(&bytes[12..14]));
        assert_eq!(columns.all_bytes_of(DType::Float16), None);
        let random = SourceMatrix::random(3, 4, 9, 1.0);
        assert_eq!(random.clone().of_columns(2..4).as_random(), None);
        assert_eq!(random.clone().of_columns(2..4).to_vec()[2..4], random.to_vec()[6..8]);
    }

    #[test]
    fn rows_of_several_matrices_are_written_in_one_order() {
        let values: Vec<f32> = (0..600).map(|i| i as f32).collect();
        let parts = [(1, 0..300), (1, 300..600)]
            .map(|(rows, at)| SourceMatrix::new(rows, 300, SourceValues::Slice(&values[at])));
        let rows = SourceRows::from(parts).in_order(Some([1, 0].into()));
        assert!(rows.in_parts().is_none());
        let mut bytes = [0; 4 * 310];
        rows.write_as(DType::Float32, 290, &mut bytes);
        let value = |index: usize| f32::from_le_bytes(*bytes[4 * index..].first_chunk().unwrap());
        assert_eq!((value(0), value(9), value(10), value(309)), (590.0, 599.0, 0.0, 299.0));
    }
}
