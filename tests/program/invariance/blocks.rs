//! A GGUF file with blocks of many types, made up: what stays quantized in memory is run as well.

use vllm_batch::engine::checkpoint::weights::gguf::GgmlType;
use written::{Written, text};

#[expect(dead_code, reason = "this model needs no arrays")]
#[path = "../../../src/engine/checkpoint/weights/gguf/written.rs"]
mod written;

/// Ids of the metadata's types.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;

/// Of the demo model, whose tokenizer is used.
const VOCAB_SIZE: u64 = 448;
/// Blocks of k-quants have 256 values.
const HIDDEN: u64 = 256;
const INNER: u64 = 512;
const KV: u64 = 128;

/// Matrices of a layer, with their types in the two layers.
const LAYER: [(&str, [u64; 2], [GgmlType; 2]); 7] = [
    ("attn_q", [HIDDEN, HIDDEN], [GgmlType::Q4_0, GgmlType::Q4_K]),
    ("attn_k", [KV, HIDDEN], [GgmlType::Q5_0, GgmlType::Q5_K]),
    ("attn_v", [KV, HIDDEN], [GgmlType::Q6_K, GgmlType::Q8_0]),
    ("attn_output", [HIDDEN, HIDDEN], [GgmlType::Q4_1, GgmlType::Q3_K]),
    ("ffn_gate", [INNER, HIDDEN], [GgmlType::Q4_K, GgmlType::IQ4_NL]),
    ("ffn_up", [INNER, HIDDEN], [GgmlType::Q4_K, GgmlType::MXFP4]),
    ("ffn_down", [HIDDEN, INNER], [GgmlType::Q2_K, GgmlType::Q6_K]),
];

/// The file.
pub fn file() -> Vec<u8> {
    let mut written = Written::new().key("general.architecture", TEXT, &text("llama"));
    for (key, value) in [
        ("llama.block_count", 2),
        ("llama.context_length", 512),
        ("llama.embedding_length", HIDDEN as u32),
        ("llama.feed_forward_length", INNER as u32),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("tokenizer.ggml.eos_token_id", 1),
    ] {
        written = written.key(key, U32, &value.to_le_bytes());
    }
    let eps = 1e-5f32.to_le_bytes();
    written = written.key("llama.attention.layer_norm_rms_epsilon", F32, &eps);
    let ones = 1f32.to_le_bytes().repeat(HIDDEN as usize);
    for layer in 0..2 {
        for norm in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{norm}.weight");
            written = written.tensor(&name, &[HIDDEN], GgmlType::F32, &ones);
        }
        for (name, shape, types) in LAYER {
            let name = format!("blk.{layer}.{name}.weight");
            written = matrix(written, &name, shape, types[layer]);
        }
    }
    written = written.tensor("output_norm.weight", &[HIDDEN], GgmlType::F32, &ones);
    let shape = [VOCAB_SIZE, HIDDEN];
    written = matrix(written, "token_embd.weight", shape, GgmlType::Q8_0);
    matrix(written, "output.weight", shape, GgmlType::Q6_K).bytes()
}

/// Adds a matrix of random blocks, whose values are some 0.07 on average.
fn matrix(written: Written, name: &str, shape: [u64; 2], ty: GgmlType) -> Written {
    let block = ty.block_bytes();
    let num_blocks = shape.iter().product::<u64>() as usize / ty.block_len();
    let mut state =
        name.bytes().fold(1u64, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    let random = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..num_blocks * block).map(random).collect();
    for block in bytes.chunks_exact_mut(block) {
        for (place, scale) in scales(ty) {
            block[place..place + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        }
        if ty == GgmlType::MXFP4 {
            // A power of two.
            block[0] = 121;
        }
    }
    written.tensor(name, &shape, ty, &bytes)
}

/// Where a block has its float16 scales, and what they are.
fn scales(ty: GgmlType) -> Vec<(usize, f32)> {
    match ty {
        GgmlType::Q4_0 => vec![(0, 0.015)],
        GgmlType::Q4_1 => vec![(0, 0.015), (2, -0.11)],
        GgmlType::Q5_0 => vec![(0, 0.008)],
        GgmlType::Q8_0 => vec![(0, 0.001)],
        GgmlType::IQ4_NL => vec![(0, 0.001)],
        GgmlType::Q4_K => vec![(0, 3e-4), (2, 2.2e-3)],
        GgmlType::Q5_K => vec![(0, 1.5e-4), (2, 2.2e-3)],
        GgmlType::Q6_K => vec![(208, 5e-5)],
        GgmlType::Q2_K => vec![(80, 8e-3), (82, 0.012)],
        GgmlType::Q3_K => vec![(108, 1.5e-3)],
        GgmlType::MXFP4 => Vec::new(),
        other => panic!("{other} is not used"),
    }
}
