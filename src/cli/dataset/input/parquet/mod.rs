//! Parquet: the rows of a file as the JSON objects that JSON lines would have, in bounded memory.
//!
//! The parquet crate reads the footer and decodes values. Pages are read here, since neither the
//! footer nor a page is trusted with the size of what it asks for, and rows are put together here,
//! without Arrow. A panic of the crate is the error of a damaged file.

mod codec;
pub mod column;
mod delta;
pub mod file;
mod footer;
mod intake;
mod pages;
pub mod rows;
pub mod schema;
#[cfg(test)]
mod tests;
pub mod text;
mod thrift;
pub mod values;

pub use file::{MAGIC_LEN, ParquetFile, footer_of, is_parquet, may_be_parquet};
pub use rows::ParquetRows;
