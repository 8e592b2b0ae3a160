//! Which tokens of which sequences a step computes. Knows no tensors.

pub mod block_pool;
pub mod completion;
pub mod prefix_cache;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod structured_output;
