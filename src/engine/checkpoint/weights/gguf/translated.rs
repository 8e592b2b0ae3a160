//! Tensors of a GGUF file as those of a Hugging Face checkpoint.

use std::ops::Range;
use std::sync::Arc;

use super::{GgmlMatrix, GgmlType, TensorInfo};
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};

/// A tensor of a checkpoint: rows of one of a GGUF file, in some order.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// Hugging Face's name.
    pub name: String,
    /// Hugging Face's shape.
    pub shape: Vec<usize>,
    /// Row of the file for each row; `None`: all, as they are. Rows of a tensor of one
    /// dimension are single values.
    pub rows: Option<Arc<[u32]>>,
    /// Column of the file for each column; `None`: all, as they are.
    pub columns: Option<Arc<[u32]>>,
    /// Change of each value; for vectors only.
    pub change: Change,
    /// (index, count): it is one of so many of one shape, which the file has as one tensor.
    pub part: Option<(usize, usize)>,
    /// The tensor of the checkpoint that it is a piece of, where files have several for it; it has
    /// that one's name then.
    pub piece: Option<Piece>,
}

/// A tensor of a file that is a piece of one of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its place among the pieces.
    pub index: usize,
    /// Number of pieces.
    pub count: usize,
    /// Shape of the whole.
    pub shape: Vec<usize>,
    /// So many values of each piece stand beside each other, by turns; None: one piece behind the
    /// other.
    pub run: Option<usize>,
}

/// Change from the file's values to the checkpoint's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// They are the same.
    None,
    /// This was not added.
    Plus(f32),
    /// Logarithm: its exponential is the file's value, negated.
    LogOfNegated,
}

impl Change {
    /// A value of the checkpoint.
    pub fn of(self, value: f32) -> f32 {
        match self {
            Change::None => value,
            Change::Plus(offset) => value + offset,
            Change::LogOfNegated => (-value).ln(),
        }
    }
}

/// Position of the rows of such a tensor in the bytes of the file's.
#[derive(Clone, Debug)]
pub(in crate::weights) struct StoredRows {
    ty: GgmlType,
    /// Values of a row.
    width: usize,
    order: Option<Arc<[u32]>>,
    columns: Option<Arc<[u32]>>,
    /// Change of each value; none but for vectors.
    pub change: Change,
}

impl Translated {
    /// The same tensor by another name.
    pub fn named(name: String, tensor: &TensorInfo) -> Self {
        let (rows, columns, change, part) = (None, None, Change::None, None);
        let shape = tensor.shape.clone();
        Self { name, shape, rows, columns, change, part, piece: None }
    }

    /// All parts of a tensor, by their names.
    ///
    /// # Errors
    /// It has none.
    pub fn parts(tensor: &TensorInfo, name: impl Fn(usize) -> String) -> Result<Vec<Self>, String> {
        let [count, shape @ ..] = &tensor.shape[..] else {
            return Err("a single value has no parts".to_owned());
        };
        let part = |index| Self {
            name: name(index),
            shape: shape.to_vec(),
            part: Some((index, *count)),
            ..Self::named(String::new(), tensor)
        };
        Ok((0..*count).map(part).collect())
    }

    /// The bytes of the file that it is.
    pub(in crate::weights) fn range(&self, tensor: &TensorInfo) -> Range<usize> {
        let Range { start, end } = tensor.range;
        let Some((index, count)) = self.part else { return start..end };
        let len = (end - start) / count;
        start + index * len..start + (index + 1) * len
    }

    /// Reading of a tensor of the file as this one.
    ///
    /// # Errors
    /// It cannot be; the text says why.
    pub(in crate::weights) fn stored(&self, tensor: &TensorInfo) -> Result<StoredRows, String> {
        let &TensorInfo { ty, ref shape, .. } = tensor;
        let shape = &shape[usize::from(self.part.is_some())..];
        let width = match (shape, &self.shape[..]) {
            ([], _) => 1,
            ([_], _) if self.rows.is_some() => 1,
            // Plain values have rows of any width.
            ([_, _, ..], [_, .., width]) if ty.block_len() == 1 => (*width).max(1),
            ([.., width], _) => *width,
        };
        let num_rows = shape.iter().product::<usize>() / width;
        let has = |rows: &[u32]| rows.iter().all(|row| (*row as usize) < num_rows);
        if !width.is_multiple_of(ty.block_len()) || !self.rows.as_deref().is_none_or(has) {
            return Err(format!("its {num_rows} rows of {ty} cannot be put in order"));
        }
        let num_values = width * self.rows.as_ref().map_or(num_rows, |rows| rows.len());
        let is_other_row = matches!(self.shape[..], [_, .., last] if last != width);
        if is_other_row || self.shape.iter().product::<usize>() != num_values {
            return Err(format!("its shape {shape:?} is not that of {:?}", self.shape));
        }
        let are_columns = |columns: &[u32]| {
            columns.len() == width && columns.iter().all(|column| (*column as usize) < width)
        };
        if !self.columns.as_deref().is_none_or(are_columns) {
            return Err(format!("its {width} columns cannot be put in order"));
        }
        // Logarithms of Mamba 1 are a matrix, which is read as one vector.
        match matches!(self.change, Change::Plus(_)) && self.shape.len() > 1 {
            true => Err(format!("its shape {shape:?} is not that of a vector")),
            false => Ok(StoredRows {
                ty,
                width,
                order: self.rows.clone(),
                columns: self.columns.clone(),
                change: self.change,
            }),
        }
    }
}

impl StoredRows {
    /// Whether its values are others than the file's.
    pub(in crate::weights) fn is_changed(&self) -> bool {
        self.change != Change::None
    }

    /// Source of a number of values, unchanged, of the tensor with these bytes.
    pub(crate) fn source<'a>(&self, num_values: usize, bytes: &'a [u8]) -> SourceMatrix<'a> {
        let values = match self.ty {
            GgmlType::F32 => SourceValues::Bytes(DType::Float32, bytes),
            GgmlType::F16 => SourceValues::Bytes(DType::Float16, bytes),
            GgmlType::BF16 => SourceValues::Bytes(DType::BFloat16, bytes),
            ty => SourceValues::Quantized(Arc::new(GgmlMatrix::new(ty, self.width, bytes))),
        };
        let matrix = SourceMatrix::new(num_values / self.width, self.width, values);
        let matrix = match &self.columns {
            Some(columns) => matrix.columns_in_order(Arc::clone(columns)),
            None => matrix,
        };
        match &self.order {
            Some(order) => matrix.in_order(Arc::clone(order)),
            None => matrix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::written::Written;
    use super::super::{GgufFiles, read};
    use super::*;
    use crate::weights::{Checkpoint, TranslatedFiles};

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// A file with a matrix of three rows in blocks, one of floats, and a vector.
    fn checkpoint(
        translate: impl Fn(&TensorInfo) -> Result<Vec<Translated>, String>,
    ) -> Result<Checkpoint, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let blocks: Vec<u8> = (0..102).collect();
        let written = Written::new()
            .tensor("q", &[3, 32], GgmlType::Q8_0, &blocks)
            .tensor("f", &[2, 2], GgmlType::F32, &floats(&[1.0, 2.0, 3.0, 4.0]))
            .tensor("v", &[3], GgmlType::F32, &floats(&[5.0, 6.0, 7.0]));
        std::fs::write(&path, written.bytes()).unwrap();
        let files = GgufFiles::open(&path, None).unwrap();
        let of_file = TranslatedFiles { path: &path, files: &files, translate: &translate };
        Checkpoint::of_gguf(&path, &[of_file]).map_err(|error| error.to_string())
    }

    #[test]
    fn tensors_are_read_by_the_names_and_in_the_order_of_their_translation() {
        let mut checkpoint = checkpoint(|tensor| {
            let whole = Translated::named(format!("hf.{}", tensor.name), tensor);
            let rows = |rows: [u32; 3]| Some(rows.into());
            Ok(match &tensor.name[..] {
                "q" => vec![Translated { rows: rows([2, 0, 1]), ..whole }],
                "f" => Translated::parts(tensor, |row| format!("hf.{row}")).unwrap(),
                _ => {
                    let change = Change::Plus(-1.0);
                    vec![Translated { change, rows: rows([1, 2, 0]), ..whole }]
                }
            })
        })
        .unwrap();
        let asked = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        let all = [
            asked("hf.q", &[3, 32]),
            asked("hf.0", &[2]),
            asked("hf.1", &[2]),
            asked("hf.v", &[3]),
        ];
        checkpoint.check(&all, &[]).unwrap();
        assert!(checkpoint.check(&all[1..], &[]).unwrap_err().to_string().contains("`hf.q`"));
        let mut row = [0.0; 32];
        let bytes: Vec<u8> = (68..102).collect();
        read(GgmlType::Q8_0, &bytes, 0..32, &mut row);
        assert_eq!(checkpoint.matrix(&all[0]).unwrap().to_vec()[..32], row);
        assert_eq!(checkpoint.vector(&all[2], 0.0).unwrap(), [3.0, 4.0]);
        assert_eq!(checkpoint.vector(&all[3], 0.0).unwrap(), [5.0, 6.0, 4.0]);
        let error = checkpoint.finish().unwrap_err().to_string();
        assert!(error.contains("1 tensors") && error.contains("`hf.0`"), "{error}");
    }

    #[test]
    fn what_a_tensor_cannot_be_is_refused() {
        type Wrong = fn(Translated) -> Result<Translated, String>;
        let changes: [(Wrong, &str); 8] = [
            (|t| Ok(Translated { shape: vec![2, 16], ..t }), "is not that of [2, 16]"),
            (|t| Ok(Translated { shape: vec![6, 16], ..t }), "is not that of [6, 16]"),
            (|t| Ok(Translated { rows: Some([0, 0].into()), ..t }), "is not that of"),
            (|t| Ok(Translated { rows: Some([0, 1, 3].into()), ..t }), "cannot be put in order"),
            (|t| Ok(Translated { change: Change::Plus(-1.0), ..t }), "not that of a vector"),
            (|t| Ok(Translated { columns: Some([1, 0].into()), ..t }), "32 columns cannot be put"),
            (|t| Ok(Translated { name: "f".to_owned(), ..t }), "`f`: another one is `f` too"),
            (|_| Err("unknown".to_owned()), "a.gguf: tensor `q`: unknown"),
        ];
        for (change, wanted) in changes {
            let error = checkpoint(|tensor| {
                let whole = Translated::named(tensor.name.clone(), tensor);
                Ok(vec![if tensor.name == "q" { change(whole)? } else { whole }])
            });
            let error = error.unwrap_err();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
    }
}
