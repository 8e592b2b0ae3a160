//! The commands besides `run`, each in a file or folder. None knows another.

pub mod bench;
pub mod check;
pub mod completions;
pub mod diff;
pub mod eval;
pub mod join;
pub mod man;
pub mod merge;
pub mod plan;
pub mod serve;
pub mod show;
