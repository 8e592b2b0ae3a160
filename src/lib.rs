//! `vllm-batch`: run a language model over a dataset. The engine follows vLLM's
//! offline `LLM` class.

pub mod cli;
pub mod engine;
