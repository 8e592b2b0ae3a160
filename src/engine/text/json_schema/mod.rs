//! JSON Schema: whether a value is as a schema says, by the crate `jsonschema`. Structured output
//! and the scorers of `eval` ask the same validator.
//!
//! Schemas come from rows. The crate bounds neither its recursion nor its work, so both are counted
//! before it runs: a schema's size and references once (`limits`), and for each value the steps
//! that the crate would take (`graph`, `work`). Counts, not times: a row meets them everywhere.

mod graph;
pub mod limits;
mod validator;
mod work;

pub use validator::{Validator, Verdict};
