//! Everything that touches users and files. Knows no tensors; uses only the engine's public API.

pub mod fields;
#[cfg(test)]
mod odd_inputs;
pub mod output;
pub mod overrides;
pub mod reader;
pub mod row;
pub mod row_error;
pub mod writer;
