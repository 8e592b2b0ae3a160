//! Tiny LoRA adapters of golden models against peft and transformers (`testdata/golden_adapters`):
//! greedy tokens identical, logprobs and classes within a tolerance.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use vllm_batch::engine::api::pooling::PoolingParams;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    LoraId, NumLogprobs, RequestOutput, RowKey, SamplingParams,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, EngineConfig, LoadFormat, LoraConfig, LoraModule, ModelConfig,
    SchedulerConfig,
};
use vllm_batch::engine::base::pooling::PoolingTask;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

/// Of a logprob, or of a logit of a class.
const TOLERANCE: f32 = 1e-4;

/// Adapters of language models.
const OF_TEXTS: [&str; 17] = [
    "biases",
    "conv1d",
    "fused",
    "fused_by_heads",
    "gated_and_recurrent",
    "latent",
    "pairs",
    "patterns",
    "rank_1",
    "rank_16_rslora",
    "rank_64",
    "rank_8",
    "scaled_table",
    "tables",
    "tied_tables",
    "v_alone",
    "zero",
];

/// Those of a table of tokens that is the output layer too.
const OF_TIED_TABLES: [&str; 2] = ["scaled_table", "tied_tables"];

/// Adapters of classifiers, with heads of their own.
const OF_CLASSES: [&str; 2] = ["classifier", "score"];

#[derive(Deserialize)]
struct Golden<T> {
    base: String,
    /// Of a classifier: the folder of `testdata/golden_embeddings` that has its tokenizer.
    tokenizer: Option<String>,
    #[serde(alias = "texts")]
    prompts: Vec<T>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    prompt_token_ids: Vec<u32>,
    output_token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    top: Vec<Vec<(u32, f32)>>,
    prompt_logprobs: Vec<Option<f32>>,
}

#[derive(Deserialize)]
struct GoldenText {
    token_ids: Vec<u32>,
    logits: Vec<f32>,
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn golden<T: for<'de> Deserialize<'de>>(name: &str) -> Golden<T> {
    let path = testdata("golden_adapters").join(name).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn module(name: &str) -> LoraModule {
    LoraModule { name: name.to_owned(), dir: testdata("golden_adapters").join(name) }
}

/// A base with adapters, in float32.
fn config(base: &str, adapters: &[&str], scheduler: SchedulerConfig) -> EngineConfig {
    let model = ModelConfig {
        model_dir: testdata(base),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(256), ..CacheConfig::default() };
    let modules = adapters.iter().map(|name| module(name)).collect();
    let lora = LoraConfig { modules, max_lora_rank: 64, ..LoraConfig::default() };
    EngineConfig { model, scheduler, cache, lora, ..EngineConfig::default() }
}

/// Greedy outputs of prompts, each with its adapter.
fn run(config: &EngineConfig, rows: &[(&GoldenPrompt, Option<LoraId>)]) -> Vec<RequestOutput> {
    let mut engine = Engine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let processor = engine.input_processor();
    for (index, (prompt, lora)) in (0u64..).zip(rows) {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(prompt.output_token_ids.len() as u32),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(5)),
            prompt_logprobs: Some(NumLogprobs::Top(0)),
            ..SamplingParams::default()
        };
        let ids = Prompt::TokenIds(prompt.prompt_token_ids.clone());
        let mut request = processor.process(index, ids, params, RowKey(index)).unwrap();
        request.lora = *lora;
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    assert_eq!(outputs.len(), rows.len());
    outputs
}

fn assert_close(got: f32, expected: f32, what: &str) {
    assert!((got - expected).abs() < TOLERANCE, "{what}: {got}, peft has {expected}");
}

fn check(name: &str, prompt: &GoldenPrompt, output: &RequestOutput) {
    let completion = &output.outputs[0];
    assert_eq!(completion.token_ids, prompt.output_token_ids, "{name}: greedy tokens");
    let logprobs = completion.logprobs.as_ref().unwrap();
    assert_eq!(logprobs.len(), prompt.logprobs.len(), "{name}");
    for (step, position) in logprobs.iter().enumerate() {
        assert_close(position.token.logprob, prompt.logprobs[step], &format!("{name}, {step}"));
        assert_eq!(position.top.len(), prompt.top[step].len(), "{name}");
        for ((id, expected), got) in prompt.top[step].iter().zip(&position.top) {
            assert_close(got.logprob, *expected, &format!("{name}, step {step}, top {id}"));
        }
    }
    let got = output.prompt_logprobs.as_ref().unwrap();
    assert_eq!(got.len(), prompt.prompt_logprobs.len(), "{name}");
    for (at, expected) in prompt.prompt_logprobs.iter().enumerate() {
        let got = got[at].as_ref().map(|position| position.token.logprob);
        assert_eq!(got.is_some(), expected.is_some(), "{name}, prompt token {at}");
        if let Some((got, expected)) = got.zip(*expected) {
            assert_close(got, expected, &format!("{name}, prompt token {at}"));
        }
    }
}

#[test]
fn every_adapter_agrees_with_peft() {
    for name in OF_TEXTS {
        let golden: Golden<GoldenPrompt> = golden(name);
        let rows: Vec<_> = golden.prompts.iter().map(|of| (of, Some(LoraId(0)))).collect();
        for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (8, 19)] {
            let scheduler = SchedulerConfig {
                max_num_seqs: Some(max_num_seqs),
                max_num_batched_tokens: Some(max_num_batched_tokens),
                ..SchedulerConfig::default()
            };
            let config = config(&golden.base, &[name], scheduler);
            for (output, (prompt, _)) in run(&config, &rows).iter().zip(&rows) {
                check(&format!("{name}, {max_num_seqs} at a time"), prompt, output);
            }
        }
    }
}

#[test]
fn adapters_of_one_model_agree_with_peft_together() {
    let names: Vec<_> = OF_TEXTS
        .into_iter()
        .map(|name| (name, golden::<GoldenPrompt>(name)))
        .filter(|(_, golden)| golden.base == "golden/llama2")
        .collect();
    assert_eq!(names.len(), 8);
    let adapters: Vec<_> = names.iter().map(|(name, _)| *name).collect();
    let of = |at: usize| {
        (0..).zip(&names).map(move |(id, (_, golden))| (&golden.prompts[at], Some(LoraId(id))))
    };
    let rows: Vec<_> = (0..3).flat_map(of).collect();
    let scheduler = SchedulerConfig {
        max_num_batched_tokens: Some(40),
        max_loras: 3,
        ..SchedulerConfig::default()
    };
    let outputs = run(&config("golden/llama2", &adapters, scheduler), &rows);
    for (output, (prompt, lora)) in outputs.iter().zip(&rows) {
        check(adapters[lora.unwrap().0 as usize], prompt, output);
    }
}

/// Logits of the classes of texts.
fn classes(config: &EngineConfig, texts: &[GoldenText], lora: Option<LoraId>) -> Vec<Vec<f32>> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let processor = engine.input_processor();
    for (index, text) in (0u64..).zip(texts) {
        let params = PoolingParams { use_activation: Some(false), ..PoolingParams::default() };
        let ids = Prompt::TokenIds(text.token_ids.clone());
        let mut request = processor.process_pooling(index, ids, params).unwrap();
        request.lora = lora;
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs.iter().map(|output| output.texts[0].values().collect()).collect()
}

/// The config of a classifier with its adapter.
fn class_config(name: &str, golden: &Golden<GoldenText>) -> EngineConfig {
    let mut config = config(&golden.base, &[name], SchedulerConfig::default());
    let tokenizer = golden.tokenizer.as_ref().expect("a classifier's folder has none");
    config.model.tokenizer_dir = Some(testdata("golden_embeddings").join(tokenizer));
    config.model.pooling_task = Some(PoolingTask::Classify);
    config.cache = CacheConfig::default();
    config
}

fn check_classes(name: &str, texts: &[GoldenText], got: &[Vec<f32>]) {
    assert_eq!(got.len(), texts.len(), "{name}");
    for (got, text) in got.iter().zip(texts) {
        assert_eq!(got.len(), text.logits.len(), "{name}");
        for (got, expected) in got.iter().zip(&text.logits) {
            assert_close(*got, *expected, &format!("{name}, {:?}", text.token_ids));
        }
    }
}

#[test]
fn every_adapter_of_a_classifier_agrees_with_peft() {
    for name in OF_CLASSES {
        let golden: Golden<GoldenText> = golden(name);
        let config = class_config(name, &golden);
        check_classes(name, &golden.prompts, &classes(&config, &golden.prompts, Some(LoraId(0))));
    }
}

/// The same with its adapter merged into the weights.
fn merged(mut config: EngineConfig) -> EngineConfig {
    config.lora.merged = config.lora.modules.pop();
    config
}

#[test]
fn merged_adapters_agree_with_peft() {
    for name in OF_TEXTS.into_iter().filter(|name| !OF_TIED_TABLES.contains(name)) {
        let golden: Golden<GoldenPrompt> = golden(name);
        let rows: Vec<_> = golden.prompts.iter().map(|of| (of, None)).collect();
        let config = merged(config(&golden.base, &[name], SchedulerConfig::default()));
        for (output, (prompt, _)) in run(&config, &rows).iter().zip(&rows) {
            check(&format!("{name}, merged"), prompt, output);
        }
    }
    for name in OF_CLASSES {
        let golden: Golden<GoldenText> = golden(name);
        let config = merged(class_config(name, &golden));
        check_classes(name, &golden.prompts, &classes(&config, &golden.prompts, None));
    }
}

#[test]
fn a_merged_adapter_is_another_kernel_set() {
    let of = |config: &EngineConfig| Engine::load(config).unwrap().info().clone();
    let config = config("golden/llama2", &["rank_8"], SchedulerConfig::default());
    let (beside, merged) = (of(&config), of(&merged(config)));
    assert_eq!(merged.kernel_set, format!("{}-merged", beside.kernel_set));
    assert_eq!((beside.lora_ranks, merged.lora_ranks), (vec![8], vec![8]));
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let refused = |config: &EngineConfig| match Engine::load(config) {
        Ok(_) => panic!("it is merged"),
        Err(error) => error.to_string(),
    };
    for name in OF_TIED_TABLES {
        let golden: Golden<GoldenPrompt> = golden(name);
        let error = refused(&merged(config(&golden.base, &[name], SchedulerConfig::default())));
        assert!(error.contains("`model.embed_tokens`: the model's output layer is"), "{error}");
    }
    let mut dummy = merged(config("golden/llama2", &["rank_8"], SchedulerConfig::default()));
    dummy.model.load_format = LoadFormat::Dummy;
    let error = refused(&dummy);
    assert!(error.contains("dummy weights"), "{error}");
    // A folder whose layers are quantized, with an adapter of one of them.
    let folder = tempfile::tempdir().unwrap();
    let mut quantized = config("golden/gptq", &[], SchedulerConfig::default());
    let text = std::fs::read_to_string(quantized.model.model_dir.join("config.json")).unwrap();
    let keys: serde_json::Value = serde_json::from_str(&text).unwrap();
    let size = |key: &str| keys[key].as_u64().unwrap() as usize;
    write_down_proj(folder.path(), size("intermediate_size"), size("hidden_size"));
    let dir = folder.path().to_owned();
    quantized.lora.merged = Some(LoraModule { name: "mine".to_owned(), dir });
    let error = refused(&quantized);
    assert!(error.contains("layers.0.mlp.down_proj.weight is quantized"), "{error}");
}

#[test]
fn an_adapter_of_another_table_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = testdata("golden_adapters/tables");
    let weights = "adapter_model.safetensors";
    std::fs::copy(of.join("adapter_config.json"), folder.path().join("adapter_config.json"))
        .unwrap();
    let mut bytes = std::fs::read(of.join(weights)).unwrap();
    let name = "base_model.model.model.embed_tokens.base_layer.weight";
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let at = file.tensor(name).unwrap().data().as_ptr().addr() - bytes.as_ptr().addr();
    bytes[at] ^= 1;
    std::fs::write(folder.path().join(weights), bytes).unwrap();
    let mut config = config("golden/llama2", &[], SchedulerConfig::default());
    let mine = LoraModule { name: "mine".to_owned(), dir: folder.path().to_owned() };
    let error = |config: &EngineConfig| Engine::load(config).map(|_| ()).unwrap_err().to_string();
    config.lora.modules = vec![mine.clone()];
    let beside = error(&config);
    let row = "`model.embed_tokens`: row 0 of its copy is not that of the model";
    assert!(beside.contains(row), "{beside}");
    (config.lora.modules, config.lora.merged) = (Vec::new(), Some(mine));
    let merged = error(&config);
    assert!(merged.contains("`model.embed_tokens`: its copy is not that of the model"), "{merged}");
}

/// An adapter of rank 1 of one matrix.
fn write_down_proj(folder: &Path, num_inputs: usize, num_outputs: usize) {
    let config = r#"{"peft_type": "LORA", "r": 1, "target_modules": ["down_proj"]}"#;
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
    let zeros = vec![0; 4 * num_inputs.max(num_outputs)];
    let view = |shape: [usize; 2]| {
        let bytes = &zeros[..4 * shape[0] * shape[1]];
        TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()
    };
    let name = |end: &str| format!("base_model.model.model.layers.0.mlp.down_proj.{end}.weight");
    let tensors =
        [(name("lora_A"), view([1, num_inputs])), (name("lora_B"), view([num_outputs, 1]))];
    let bytes = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
}

#[test]
fn every_folder_has_a_test() {
    let listing = std::fs::read_dir(testdata("golden_adapters")).expect("it is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    let mut known = [&OF_TEXTS[..], &OF_CLASSES].concat();
    known.sort_unstable();
    assert_eq!(names, known);
}
