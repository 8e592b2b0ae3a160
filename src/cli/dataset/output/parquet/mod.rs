//! Rows out as Parquet. While a run goes on its rows are JSON lines; the file is made of them when
//! all are there, since only then the types of all columns are known.

mod inferred;
mod shred;
mod spec;
mod table;
#[cfg(test)]
mod tests;

pub use inferred::Evidence;
pub use spec::{Inferences, TableSpec, ours};
pub use table::{Table, TableWriter};
