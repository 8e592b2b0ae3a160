//! GGUF files: a header of typed metadata and of tensors, then their bytes. Nothing of a file is
//! believed before it was held against the file's length.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. This folder knows no
//! model: what keys and tensor names mean is said elsewhere.

mod blocks;
mod container;
mod cursor;
mod files;
mod ggml_type;
mod matrix;
mod metadata;
mod translated;
#[cfg(test)]
pub(crate) mod written;

pub use blocks::read;
pub use container::{Gguf, TensorInfo};
pub use files::GgufFiles;
pub use ggml_type::GgmlType;
pub use matrix::GgmlMatrix;
pub use metadata::{Array, Metadata, NumberType, Numbers, Texts, Value};
pub(super) use translated::StoredRows;
pub use translated::{Change, Piece, Translated};
