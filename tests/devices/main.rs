//! What runs on every device: ops, the sampler, whole models. The GPU is the CPU shim of its
//! kernels, or a real one where VLLM_BATCH_TEST_DEVICE=cuda says so (`gpu`, scripts/gpu-check).

mod beam_search;
mod cuda_driver;
mod cuda_engine;
mod cuda_ops;
mod golden;
mod golden_adapters;
mod gpu;
mod images;
mod kernels_compile;
mod penalties;
mod pooling;
mod quantized_weights;
mod step_sampler;
mod wgmma_emulation;
