//! GGUF files by candle's reader and its blocks, beside ours. Types that candle lacks are left out:
//! the golden of `weights/gguf/blocks` has them all.

use std::io::Cursor;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device};
use vllm_batch::engine::checkpoint::weights::gguf::{GgmlType, Gguf, read};

/// Types of both, with candle's name.
const TYPES: [(GgmlType, GgmlDType); 13] = [
    (GgmlType::F32, GgmlDType::F32),
    (GgmlType::F16, GgmlDType::F16),
    (GgmlType::BF16, GgmlDType::BF16),
    (GgmlType::Q4_0, GgmlDType::Q4_0),
    (GgmlType::Q4_1, GgmlDType::Q4_1),
    (GgmlType::Q5_0, GgmlDType::Q5_0),
    (GgmlType::Q5_1, GgmlDType::Q5_1),
    (GgmlType::Q8_0, GgmlDType::Q8_0),
    (GgmlType::Q2_K, GgmlDType::Q2K),
    (GgmlType::Q3_K, GgmlDType::Q3K),
    (GgmlType::Q4_K, GgmlDType::Q4K),
    (GgmlType::Q5_K, GgmlDType::Q5K),
    (GgmlType::Q6_K, GgmlDType::Q6K),
];

/// Bytes of all kinds, the same for ever.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn candle_makes_the_same_of_the_same_blocks() {
    for (ty, candle_type) in TYPES {
        let num_blocks = 4096 / ty.block_len();
        let bytes = noise(num_blocks * ty.block_bytes());
        let tensor = qtensor_from_ggml(candle_type, &bytes, vec![1, 4096], &Device::Cpu).unwrap();
        let theirs = tensor.dequantize(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        let theirs: Vec<f32> = theirs.flatten_all().unwrap().to_vec1().unwrap();
        let mut ours = vec![0.0; 4096];
        read(ty, &bytes, 0..4096, &mut ours);
        for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let is_same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(is_same, "{ty}, value {index}: {ours} and candle's {theirs}");
        }
    }
}

/// An input of the fuzz target: a header, with data behind it.
fn seed(name: &str) -> Vec<u8> {
    let corpus = Path::new(crate::ROOT).join("fuzz/corpus/gguf");
    let input = std::fs::read(corpus.join(name)).unwrap();
    let num_data_bytes = usize::from(u16::from_le_bytes([input[1], input[2]])) * 16;
    let mut file = input[3..].to_vec();
    file.resize(file.len() + num_data_bytes, 0);
    file
}

#[test]
fn candle_finds_the_same_tensors() {
    for name in ["llama", "falcon", "alignment"] {
        let file = seed(name);
        let ours = Gguf::parse(&file).unwrap();
        let theirs = Content::read(&mut Cursor::new(&file)).unwrap();
        assert_eq!(ours.tensors.len(), theirs.tensor_infos.len());
        assert_eq!(ours.metadata.iter().count(), theirs.metadata.len());
        for tensor in &ours.tensors {
            let info = &theirs.tensor_infos[&tensor.name];
            assert_eq!(info.shape.dims(), tensor.shape, "{tensor:?}");
            let start = theirs.tensor_data_offset + info.offset;
            assert_eq!(start, tensor.range.start as u64, "{tensor:?}");
        }
    }
}
