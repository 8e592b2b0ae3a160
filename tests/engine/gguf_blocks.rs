//! What a GGUF file is said to be.

use std::path::Path;

use vllm_batch::engine::base::config::ModelConfig;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

/// An input of the fuzz target: a header, with data behind it.
fn seed(name: &str) -> Vec<u8> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/gguf");
    let input = std::fs::read(corpus.join(name)).unwrap();
    let num_data_bytes = usize::from(u16::from_le_bytes([input[1], input[2]])) * 16;
    let mut file = input[3..].to_vec();
    file.resize(file.len() + num_data_bytes, 0);
    file
}

#[test]
fn the_format_of_a_file_names_the_types_of_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let model_dir = folder.path().join("a.gguf");
    std::fs::write(&model_dir, seed("heads_per_layer")).unwrap();
    let config = ModelConfig { model_dir, ..ModelConfig::default() };
    let summary = ModelSummary::read(&config).unwrap();
    assert_eq!(summary.checkpoint_format().unwrap(), "GGUF (Q8_0 8, F32 3)");
}
