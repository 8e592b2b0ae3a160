//! GGUF files: the format they are said to have, and their blocks as packed weights.

use std::path::Path;
use std::sync::Arc;

use vllm_batch::engine::base::config::{DType, ModelConfig};
use vllm_batch::engine::base::matrix::{QuantizedMatrix, SourceMatrix, SourceValues};
use vllm_batch::engine::checkpoint::weights::gguf::{GgmlMatrix, GgmlType};
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::device::Device;
use vllm_batch::engine::ops::LinearWeight;

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

#[test]
fn panels_of_every_quantized_type_hold_the_values_of_its_blocks_in_little_more_memory() {
    let device = Device::cpu(Some(1));
    let (n, k) = (64, 512);
    let mut num_types = 0;
    for ty in GgmlType::all().filter(|ty| k % ty.block_len() == 0) {
        let num_bytes = n * k / ty.block_len() * ty.block_bytes();
        // Any bytes are blocks; some scales are then infinite or no number.
        let bytes: Vec<u8> =
            (1..=num_bytes as u64).map(|i| ((i * i * 40_503) >> 7) as u8).collect();
        let matrix = GgmlMatrix::new(ty, k, &bytes);
        if matrix.codes().is_none() {
            continue;
        }
        num_types += 1;
        let source = SourceMatrix::new(n, k, SourceValues::Quantized(Arc::new(matrix)));
        let weight = LinearWeight::load(&device, DType::Float32, &[source].into(), None);
        let weight = weight.expect("memory");
        for row in 0..n {
            let (mut got, mut expected) = (vec![0.0; k], vec![0.0; k]);
            weight.copy_row(row, &mut got);
            matrix.read_row(row, 0..k, &mut expected);
            for (column, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let is_same = got.to_bits() == expected.to_bits();
                let are_nan = got.is_nan() && expected.is_nan();
                assert!(is_same || are_nan, "{ty} at {row}, {column}: {got} for {expected}");
            }
        }
        // Small scales of 4 and 6 bits take a byte, digits to the base of 3 take 2 bits.
        let most = match ty {
            GgmlType::Q2_K => 1.2,
            GgmlType::TQ1_0 => 1.23,
            _ => 1.07,
        };
        let ratio = weight.num_bytes() as f64 / num_bytes as f64;
        assert!(ratio <= most, "{ty}: {ratio} times its blocks");
    }
    assert_eq!(num_types, 16);
}
