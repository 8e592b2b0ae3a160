//! Whole models by both twins of AMX: a CPU with AVX2 gives the bytes of one with AVX-512, however
//! rows are put together, in bfloat16, over codes and in int8. Products and vectors of either are
//! compared with what they stand for beside their sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vllm_batch::engine::device::simd::InstructionSet;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    NumLogprobs, PositionLogprobs, RequestOutput, RowKey, SamplingParams,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, DeviceKind, EngineConfig, ModelConfig, ParallelConfig,
    Quantization, SchedulerConfig,
};
use vllm_batch::engine::base::isa::Isa;
use vllm_batch::engine::core::Engine;

const NUM_ROWS: u64 = 12;

/// Tokens, and bits of their logarithms of probabilities: of the prompt, then of the completion.
type Bytes = Vec<(u32, u32)>;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// How rows are put together: at most so many sequences and tokens in a step, positions of a block.
type Way = (usize, usize, usize);

fn engine(model: &str, quantization: Option<Quantization>, (isa, way): (Isa, Way)) -> Engine {
    let (max_num_seqs, max_num_batched_tokens, block_size) = way;
    let config = EngineConfig {
        model: ModelConfig {
            model_dir: testdata().join(model),
            dtype: Some(DType::BFloat16),
            ..ModelConfig::default()
        },
        device: DeviceConfig { kind: DeviceKind::Cpu, quantization, ..DeviceConfig::default() },
        cache: CacheConfig {
            num_blocks: Some(128),
            block_size: Some(block_size),
            ..CacheConfig::default()
        },
        scheduler: SchedulerConfig {
            max_num_seqs: Some(max_num_seqs),
            max_num_batched_tokens: Some(max_num_batched_tokens),
            ..SchedulerConfig::default()
        },
        parallel: ParallelConfig { isa: Some(isa), ..ParallelConfig::default() },
        ..EngineConfig::default()
    };
    Engine::load(&config).unwrap_or_else(|error| panic!("{model}: {error}"))
}

fn bytes(output: &RequestOutput) -> Bytes {
    let bits = |at: &PositionLogprobs| (at.token.token_id, at.token.logprob.to_bits());
    let prompt = output.prompt_logprobs.iter().flatten().flatten();
    let completion = &output.outputs[0];
    assert!(completion.error.is_none(), "{:?}", completion.error);
    prompt.chain(completion.logprobs.iter().flatten()).map(bits).collect()
}

/// Rows of 1 to 60 tokens, some of one beginning, greedy and sampled.
fn answers(mut engine: Engine) -> BTreeMap<u64, Bytes> {
    let processor = engine.input_processor();
    for index in 0..NUM_ROWS {
        let shared = (0..20 * (index as u32 % 3)).map(|at| at * 37 % 60);
        let own = (0..index as u32 * 7 % 23 + 1).map(|at| (at * 29 + index as u32) % 60);
        let params = SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 1.0 },
            max_tokens: Some(4 + index as u32 % 9),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            prompt_logprobs: Some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        let prompt = Prompt::TokenIds(shared.chain(own).map(|token| token + 5).collect());
        engine.add_request(processor.process(index, prompt, params, RowKey(index)).unwrap());
    }
    let mut answers = BTreeMap::new();
    while engine.has_unfinished_requests() {
        let outputs = engine.step().unwrap().into_iter();
        answers.extend(outputs.map(|output| (output.request_id, bytes(&output))));
    }
    assert_eq!(answers.len() as u64, NUM_ROWS);
    answers
}

fn check(model: &str, quantization: Option<Quantization>) {
    if !Isa::AmxTwin.is_available() {
        println!("SKIP {model}: this CPU has no AVX-512");
        return;
    }
    let by = |isa: Isa, way: Way| {
        let engine = engine(model, quantization, (isa, way));
        (engine.info().kernel_set.clone(), answers(engine))
    };
    let all_at_once = (NUM_ROWS as usize, 2048, 32);
    let expected = by(Isa::AmxTwin, all_at_once);
    for way in [all_at_once, (3, 24, 16), (1, 64, 64)] {
        assert_eq!(by(Isa::AmxTwinAvx2, way), expected, "{model} {quantization:?} {way:?}");
    }
    let (kernel_set, other) = by(Isa::Avx512, all_at_once);
    assert_ne!(kernel_set, expected.0);
    assert_ne!(other, expected.1, "{model}: other kernels have other bits");
}

#[test]
fn attention_and_linear_layers_have_one_answer() {
    check("demo", None);
    check("golden/gemma3", None);
    check("golden/deepseek_v2_lite", None);
}

#[test]
fn experts_and_states_have_one_answer() {
    check("golden/qwen3_moe", None);
    check("golden/granite_hybrid", None);
    check("golden/qwen3_next", None);
}

#[test]
fn codes_have_one_answer() {
    check("golden/gptq", None);
    check("golden/fp8", None);
    check("golden/gpt_oss_mxfp4", None);
}

#[test]
fn layers_in_int8_have_one_answer() {
    check("demo", Some(Quantization::Int8));
    check("golden/qwen3_moe", Some(Quantization::Int8));
}
