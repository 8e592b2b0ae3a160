//! `vllm-batch`: run a language model over a dataset. The engine follows vLLM's
//! offline `LLM` class. Names for tests, benchmarks and examples; all of it is in the crates.

/// The program, and the rows that it reads and writes.
pub mod cli {
    pub use vllm_batch_cli::*;
    pub use vllm_batch_dataset::*;
}

/// The crates of the engine.
pub mod engine {
    pub use vllm_batch_api as api;
    pub use vllm_batch_base as base;
    pub use vllm_batch_checkpoint as checkpoint;
    pub use vllm_batch_device as device;
    pub use vllm_batch_engine as core;
    pub use vllm_batch_media as media;
    pub use vllm_batch_ops as ops;
    pub use vllm_batch_text as text;
}
