//! Output for a person: messages on standard error, colours, errors, exit codes. The bottom
//! of `cli`: knows no other folder of it, and nothing of rows, files or models.

pub mod clock;
pub mod console;
pub mod display;
pub mod error;
pub mod exit;
pub mod flags;
pub mod numbers;
pub mod remedy;
pub mod stdout;
pub mod style;
