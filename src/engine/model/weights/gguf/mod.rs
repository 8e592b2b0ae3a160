//! GGUF files: a header of typed metadata and of tensors, then their bytes. Nothing of a file is
//! believed before it was held against the file's length.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. This folder knows no
//! model: what keys and tensor names mean is said elsewhere.

mod blocks;
mod container;
mod cursor;
mod ggml_type;
mod metadata;
#[cfg(test)]
mod written;

pub use blocks::read;
pub use container::{Gguf, TensorInfo};
pub use ggml_type::GgmlType;
pub use metadata::{Array, Metadata, NumberType, Numbers, Texts, Value};
