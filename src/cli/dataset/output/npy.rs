//! NumPy's format of a matrix, version 1.0: a header of fixed length, then rows of little-endian
//! f32, one for every row of the input. Error rows are NaN here, and are lines of another file.

use super::JsonFormat;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::pooling::{EncodingFormat, Pooled, PoolingOutput, PoolingParams};
use vllm_batch_api::prompt::Prompt;

/// Length of the header in bytes. It has room for any number of rows, so that it can be written
/// when all rows are out.
pub const HEADER_BYTES: usize = 128;

/// Before the length of the text, in two bytes.
const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";

/// The header's text up to the number of rows.
const BEFORE_SHAPE: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (";

/// How vectors are written as a matrix.
#[derive(Clone, Debug)]
pub struct NpyFormat {
    /// Values of a row; 0 until the model is known.
    pub width: usize,
    /// Of error rows.
    pub json: JsonFormat,
}

/// The header of a matrix.
pub fn header(num_rows: u64, width: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [b' '; HEADER_BYTES];
    let length = (HEADER_BYTES - MAGIC.len() - 2) as u16;
    let text = format!("{BEFORE_SHAPE}{num_rows}, {width}), }}");
    let start = MAGIC.len() + 2;
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..start].copy_from_slice(&length.to_le_bytes());
    bytes[start..start + text.len()].copy_from_slice(text.as_bytes());
    bytes[HEADER_BYTES - 1] = b'\n';
    bytes
}

/// Rows and width of a matrix that `header` began.
pub fn shape(bytes: &[u8; HEADER_BYTES]) -> Option<(u64, usize)> {
    let text = std::str::from_utf8(&bytes[MAGIC.len() + 2..]).ok()?;
    let (rows, width) = text.strip_prefix(BEFORE_SHAPE)?.split_once(')')?.0.split_once(", ")?;
    let (rows, width) = (rows.parse().ok()?, width.parse().ok()?);
    (header(rows, width) == *bytes).then_some((rows, width))
}

/// The row of a text without a vector.
pub fn hole(width: usize) -> Vec<u8> {
    f32::NAN.to_le_bytes().repeat(width)
}

/// Whether these bytes are such a row. No vector begins with NaN.
pub fn is_hole(row: &[u8]) -> bool {
    row.starts_with(&f32::NAN.to_le_bytes())
}

impl NpyFormat {
    /// Appends the row of an answer.
    pub fn format_row(&self, output: &PoolingOutput, out: &mut Vec<u8>) {
        let [Pooled::Vector(vector)] = &output.texts[..] else {
            panic!("`check` lets one text of a row pass, and a vector")
        };
        assert_eq!(vector.len(), self.width, "all rows of a matrix have one width");
        out.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Refuses a row that a matrix has no room for.
    ///
    /// `width`: values of its vectors.
    ///
    /// # Errors
    /// It has several texts, or a vector of another form.
    pub fn check(
        &self,
        prompt: &Prompt,
        params: &PoolingParams,
        width: usize,
        line: u64,
    ) -> Result<(), RowError> {
        let message = match prompt {
            Prompt::Several(texts) if texts.len() != 1 => {
                format!("the row has {} texts, and a row of a matrix is one vector", texts.len())
            }
            _ if width != self.width => {
                format!("dimensions: {width} values, where the matrix has {} columns", self.width)
            }
            _ if params.encoding_format != EncodingFormat::Float => {
                "encoding_format: a matrix has floats alone".to_owned()
            }
            _ => return Ok(()),
        };
        let error = RowError::new(code::UNSUPPORTED_FIELD, line, message);
        Err(error.with_help("name the output FILE.jsonl"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_that_of_numpy_and_says_the_shape() {
        let bytes = header(3, 384);
        // What numpy.lib.format.write_array_header_1_0 writes, with more spaces.
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&bytes[10..]).unwrap();
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 384), }";
        assert_eq!((text.trim_end(), text.ends_with(" \n")), (dict, true));
        assert_eq!(shape(&bytes), Some((3, 384)));
        assert_eq!(shape(&header(u64::MAX, 1 << 30)), Some((u64::MAX, 1 << 30)));
        let mut other = bytes;
        other[20] = b'>';
        assert_eq!(shape(&other), None);
    }

    #[test]
    fn a_hole_is_no_vector() {
        assert!(is_hole(&hole(3)) && hole(3).len() == 12);
        assert!(!is_hole(&0.5f32.to_le_bytes()));
    }
}
