//! Rows that are computed with adapters: alone and in steps of others, in chunks, preempted, from
//! the prefix cache; and what an adapter that adds nothing changes.

use std::path::Path;

use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{LoraId, NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, EngineConfig, LoraConfig, LoraModule, ModelConfig, ParallelConfig,
    Quantization, SchedulerConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;
use vllm_batch::engine::core::stats::EngineStats;

use super::adapters::{Made, make, testdata};
use super::pooled;

/// Biases and heads that share K and V; fused matrices in the checkpoint; q, k and v by turns.
const MODELS: [&str; 3] = ["golden/qwen2", "golden/phi3", "golden/gpt_neox"];

/// Weights of 8 bits as they are stored; short convolutions; latents; K and V of other layers.
const OTHERS: [(&str, &[&str]); 4] = [
    ("golden/fp8", &[]),
    ("golden/lfm2", &["conv.in_proj", "conv.out_proj", "q_proj", "feed_forward.w1"]),
    ("golden/deepseek_v2", &["q_a_proj", "kv_a_proj_with_mqa", "o_proj"]),
    ("golden/gemma4", &["q_proj", "v_proj", "gate_proj", "down_proj"]),
];

/// Weights of 4 bits (of 3 in one), and a GGUF file: q and k have their rows in another order.
const PACKED: [&str; 6] = [
    "golden/gptq",
    "golden/gptq_asym",
    "golden/gptq_v2",
    "golden/awq",
    "golden/ct_int4",
    "gguf/llama.gguf",
];

fn config(model: &str, dtype: DType) -> EngineConfig {
    let model_dir = testdata(model);
    EngineConfig {
        model: ModelConfig { model_dir, dtype: Some(dtype), ..ModelConfig::default() },
        cache: CacheConfig {
            block_size: Some(16),
            num_blocks: Some(200),
            ..CacheConfig::default()
        },
        parallel: ParallelConfig { num_threads: Some(1), ..ParallelConfig::default() },
        ..EngineConfig::default()
    }
}

/// A row's prompt, and its adapter.
type Row = (Vec<u32>, Option<LoraId>);

/// Sixteen rows of three prompts, of which each meets each adapter and none.
fn rows(num_loras: u32) -> Vec<Row> {
    let prompt = |index: u32| {
        let own = (0..index * 7 % 23 + 1).map(move |token| (token * 29 + index * 11) % 80 + 20);
        (0..20 * (index % 3)).map(|token| token * 37 % 80 + 20).chain(own).collect()
    };
    (0..16)
        .map(|index| (prompt(index % 3), (index / 3 % (num_loras + 1)).checked_sub(1).map(LoraId)))
        .collect()
}

/// Tokens of each row with the bits of their logprobs, in the order of the rows.
type Answers = Vec<Vec<(u32, u32)>>;

fn run(config: &EngineConfig, rows: &[Row]) -> (Answers, EngineStats) {
    let mut engine = Engine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let processor = engine.input_processor();
    for (index, (prompt, lora)) in (0u64..).zip(rows) {
        let params = SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 1.0 },
            max_tokens: Some(5 + index as u32 % 9),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        let prompt = Prompt::TokenIds(prompt.clone());
        let mut request = processor.process(index, prompt, params, RowKey(index)).unwrap();
        request.lora = *lora;
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap_or_else(|error| panic!("{error}")));
    }
    outputs.sort_by_key(|output| output.request_id);
    let answer = |output: &vllm_batch::engine::api::request::RequestOutput| {
        let logprobs = output.outputs[0].logprobs.as_ref().expect("they were asked for");
        logprobs.iter().map(|at| (at.token.token_id, at.token.logprob.to_bits())).collect()
    };
    (outputs.iter().map(answer).collect(), engine.stats())
}

/// Three adapters: of all these matrices, of few, and of a higher rank.
fn adapters(folder: &Path, model: &str, modules: &[&str]) -> Vec<LoraModule> {
    let model = testdata(model);
    let of_all = Made { rank: 4, seed: 1, modules, b: 0.3 };
    let few = ["v_proj", "down_proj", "qkv_proj", "query_key_value", "conv.in_proj", "o_proj"];
    vec![
        make(folder, "all", &model, of_all),
        make(folder, "few", &model, Made { rank: 1, seed: 2, modules: &few, b: 0.6 }),
        make(folder, "wide", &model, Made { rank: 16, seed: 3, b: 0.1, ..of_all }),
    ]
}

/// Holds rows of three adapters and of none, in steps of several kinds, against runs of one alone.
fn check(model: &str, base: &EngineConfig, modules: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let modules = adapters(folder.path(), model, modules);
    let rows = rows(modules.len() as u32);
    let adapted = |modules: Vec<LoraModule>| {
        let lora = LoraConfig { modules, ..LoraConfig::default() };
        EngineConfig { lora, ..base.clone() }
    };
    let together = adapted(modules.clone());
    let with = |max_loras, limits: (usize, usize), num_blocks, is_cached, threads| {
        let mut config = together.clone();
        let (max_num_seqs, max_num_batched_tokens) = limits;
        config.scheduler = SchedulerConfig {
            max_num_seqs: Some(max_num_seqs),
            max_num_batched_tokens: Some(max_num_batched_tokens),
            max_loras,
            ..SchedulerConfig::default()
        };
        config.cache.num_blocks = Some(num_blocks);
        config.cache.enable_prefix_caching = is_cached;
        config.parallel.num_threads = Some(threads);
        config
    };
    let (expected, stats) = run(&with(3, (16, 4096), 200, false, 1), &rows);
    assert_eq!((stats.num_lora_loads, stats.num_resident_loras), (3, 3));
    assert_eq!(expected.len(), rows.len());
    // Adapters do something, and each something else.
    for (index, row) in rows.iter().enumerate().take(9) {
        let same = (0..9).find(|other| rows[*other].0 == row.0 && rows[*other].1 != row.1);
        let other = same.expect("each prompt meets several adapters");
        assert_ne!(expected[index][0], expected[other][0], "{model}: rows {index}, {other}");
    }
    let of = |config: &EngineConfig| run(config, &rows).0;
    assert_eq!(of(&with(1, (4, 16), 12, true, 2)), expected, "{model}, one at a time");
    assert_eq!(of(&with(2, (7, 5), 9, false, 1)), expected, "{model}, tight");
    assert_eq!(of(&with(3, (16, 64), 200, true, 2)), expected, "{model}, cached");
    // The runs of one adapter alone, and of none, have the same rows in their places.
    for lora in [None, Some(0), Some(1), Some(2)].map(|lora| lora.map(LoraId)) {
        let own: Vec<_> = (0..rows.len()).filter(|index| rows[*index].1 == lora).collect();
        let only = lora.map(|lora| modules[lora.0 as usize].clone());
        let mut of_lora = rows.clone();
        of_lora.iter_mut().for_each(|row| row.1 = lora.map(|_| LoraId(0)));
        let (got, _) = run(&adapted(only.into_iter().collect()), &of_lora);
        for index in own {
            assert_eq!(got[index], expected[index], "{model}: row {index}, {lora:?}");
        }
    }
}

#[test]
fn rows_of_three_adapters_and_of_none_are_those_of_separate_runs() {
    for model in MODELS {
        check(model, &config(model, DType::Float32), &[]);
    }
    check(MODELS[0], &config(MODELS[0], DType::BFloat16), &[]);
    check(MODELS[1], &config(MODELS[1], DType::Float16), &[]);
}

#[test]
fn so_are_those_of_other_kinds_of_layers_and_weights() {
    for (model, modules) in OTHERS {
        check(model, &config(model, DType::Float32), modules);
    }
    let mut int8 = config(MODELS[0], DType::Float32);
    int8.device.quantization = Some(Quantization::Int8);
    check(MODELS[0], &int8, &[]);
}

/// What is packed stays packed under the adapters: rows without one are those of the model alone.
#[test]
fn so_are_those_of_packed_weights() {
    for model in PACKED {
        let base = config(model, DType::Float32);
        check(model, &base, &[]);
        let folder = tempfile::tempdir().unwrap();
        let modules = adapters(folder.path(), model, &[]);
        let mixed = rows(modules.len() as u32);
        let lora = LoraConfig { modules, ..LoraConfig::default() };
        let (got, _) = run(&EngineConfig { lora, ..base.clone() }, &mixed);
        let bare: Vec<Row> = mixed.iter().map(|(prompt, _)| (prompt.clone(), None)).collect();
        let (alone, _) = run(&base, &bare);
        for index in (0..mixed.len()).filter(|index| mixed[*index].1.is_none()) {
            assert_eq!(got[index], alone[index], "{model}: row {index}");
        }
    }
}

#[test]
fn an_adapter_of_zeros_changes_no_bit() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let zeros = Made { rank: 8, seed: 5, modules: &[], b: 0.0 };
        let modules = vec![make(folder.path(), "zeros", &testdata(model), zeros)];
        let rows = rows(1);
        let base = config(model, DType::Float32);
        let bare: Vec<Row> = rows.iter().map(|(prompt, _)| (prompt.clone(), None)).collect();
        let lora = LoraConfig { modules, ..LoraConfig::default() };
        let (got, _) = run(&EngineConfig { lora, ..base.clone() }, &rows);
        assert_eq!(got, run(&base, &bare).0, "{model}");
    }
}

#[test]
fn adapters_come_and_go_as_rows_ask_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let modules = adapters(folder.path(), MODELS[0], &[]);
    let lora = LoraConfig { modules, ..LoraConfig::default() };
    let mut config = EngineConfig { lora, ..config(MODELS[0], DType::Float32) };
    config.scheduler.look_ahead = Some(0);
    // First come, first served: 0, 1, 2, 0, 1, 2, with one slot.
    let row = |lora| (vec![25, 30, 35], Some(LoraId(lora)));
    let (_, stats) = run(&config, &[row(0), row(1), row(2), row(0), row(1), row(2)]);
    assert_eq!((stats.num_lora_loads, stats.num_resident_loras), (6, 1));
    // Rows of one adapter go together where they may.
    config.scheduler.look_ahead = None;
    let (_, stats) = run(&config, &[row(0), row(1), row(2), row(0), row(1), row(2)]);
    assert_eq!((stats.num_lora_loads, stats.num_resident_loras), (3, 1));
}

/// What texts become with their adapters, in the order of the texts.
fn pooled_texts(config: &EngineConfig, rows: &[Row]) -> Vec<Vec<Pooled>> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let prompts = rows.iter().map(|(ids, _)| Prompt::TokenIds(ids.clone()));
    let mut requests = pooled::requests(&engine, prompts, &PoolingParams::default());
    for (request, (_, lora)) in requests.iter_mut().zip(rows) {
        request.lora = *lora;
    }
    pooled::answers(&mut engine, requests).into_iter().map(|output| output.texts).collect()
}

#[test]
fn texts_of_adapters_are_pooled_as_in_separate_runs() {
    // Through a KV cache, and whole.
    for model in ["golden_embeddings/qwen3", "golden_embeddings/bert"] {
        let folder = tempfile::tempdir().unwrap();
        let few = ["v_proj", "value", "down_proj", "output.dense"];
        let made = Made { rank: 4, seed: 1, modules: &[], b: 0.3 };
        let other = Made { rank: 2, seed: 2, modules: &few, b: 0.5 };
        let modules = vec![
            make(folder.path(), "all", &testdata(model), made),
            make(folder.path(), "few", &testdata(model), other),
        ];
        let rows = rows(2);
        let of = |modules: &[LoraModule], max_loras, limits: pooled::Limits, rows: &[Row]| {
            let mut config = pooled::config(testdata(model), limits);
            config.model.tokenizer_dir = Some(testdata("golden_embeddings/bert"));
            config.scheduler.max_loras = max_loras;
            config.lora.modules = modules.to_vec();
            pooled_texts(&config, rows)
        };
        let expected = of(&modules, 2, pooled::WIDE, &rows);
        assert_eq!(of(&modules, 1, (3, 50, 1), &rows), expected, "{model}");
        assert_ne!(expected[0], expected[3], "one prompt, another adapter");
        for lora in [None, Some(0), Some(1)].map(|lora| lora.map(LoraId)) {
            let only: Vec<_> = lora.iter().map(|lora| modules[lora.0 as usize].clone()).collect();
            let mut of_lora = rows.clone();
            of_lora.iter_mut().for_each(|row| row.1 = lora.map(|_| LoraId(0)));
            let got = of(&only, 1, pooled::WIDE, &of_lora);
            for index in (0..rows.len()).filter(|index| rows[*index].1 == lora) {
                assert_eq!(got[index], expected[index], "{model}: row {index}, {lora:?}");
            }
        }
    }
}
