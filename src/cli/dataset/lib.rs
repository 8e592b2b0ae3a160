//! Rows in and rows out: files, formats, object stores, scorers, and what is shown of them. Knows
//! no model and no engine.
//!
//! Read first: [`input::sources::Sources`], [`input::row::Row`], [`output::row_format::RowFormat`].

#![warn(missing_docs, unreachable_pub)]

pub mod input;
pub mod judge;
pub mod network;
pub mod object_store;
pub mod output;
pub mod terminal;

/// The program's name, as files and requests carry it.
pub const PROGRAM: &str = "vllm-batch";
