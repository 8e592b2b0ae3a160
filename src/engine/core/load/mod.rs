//! What is decided before weights are read: what goes together, summaries, sizes of steps, memory.

pub(crate) mod beside;
pub mod combinations;
pub(crate) mod devices;
pub(crate) mod gguf_text;
pub(crate) mod held_weights;
pub mod images;
pub(crate) mod info;
pub(crate) mod model;
pub mod model_summary;
pub(crate) mod processor_file;
pub mod sounds;
pub mod step_sizes;
pub(crate) mod text_alone;
pub(crate) mod worker;

pub use info::EngineInfo;
