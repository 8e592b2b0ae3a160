//! Plain words that every layer shares: settings, errors, the machine's refusals, untrusted files,
//! layers and matrices as values. Knows no tokenizer, no device and no model.
//!
//! Read first: [`config::EngineConfig`], [`EngineError`], [`matrix::SourceMatrix`].

#![warn(missing_docs, unreachable_pub)]

pub mod config;
pub mod contained;
pub mod deep_stack;
mod error;
pub mod files;
pub mod hf_overrides;
pub mod isa;
pub mod layers;
pub mod machine;
pub mod matrix;
pub mod pooling;
pub mod run_date;
mod setting;
pub mod split_mix;
pub mod weight_files;

pub use error::EngineError;
pub use setting::Setting;
