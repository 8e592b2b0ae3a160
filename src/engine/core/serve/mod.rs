//! Engines as their callers see them: prompts to requests, runners of both kinds, several at once.

pub mod data_parallel;
pub mod input_processor;
pub mod pooling;
pub mod runner;
