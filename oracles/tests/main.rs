//! vllm-batch beside other programs' code in Rust: candle and tokenizers 0.23.

#[path = "../../tests/engine/byte_level.rs"]
mod byte_level;
mod candle;
mod gguf_blocks;
#[path = "../../tests/engine/random.rs"]
mod random;
mod tokenizers;

/// The checkout.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
