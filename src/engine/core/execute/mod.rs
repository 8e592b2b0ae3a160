//! What computes steps: executors, models over devices, samplers.

pub mod cache_size;
pub mod draft_executor;
pub mod encoded_media;
pub mod executor;
pub mod model;
pub mod model_executor;
pub mod model_facts;
pub mod pipeline;
pub mod simulated_executor;
mod source_step;
pub mod step_sampler;
pub mod tensor_parallel;
mod tower_cache;
