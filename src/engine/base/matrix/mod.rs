//! Matrices as checkpoints hold them, read row by row: plain, made up, or quantized.

mod codes;
mod columns;
mod source;

pub use codes::{CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales, Table, UNIT};
pub use source::{QuantizedMatrix, SourceMatrix, SourceRows, SourceValues};
