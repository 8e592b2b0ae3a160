//! Greedy rows, of whose logits a step keeps the likeliest token alone where nobody looks at more:
//! they have the tokens that they have beside rows whose logits are read.

use std::collections::BTreeMap;
use std::path::Path;
use vllm_batch::engine::device::simd::InstructionSet;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, DeviceKind, EngineConfig, ModelConfig, ParallelConfig,
    Quantization,
};
use vllm_batch::engine::base::isa::Isa;
use vllm_batch::engine::core::Engine;

const NUM_ROWS: u64 = 8;

/// A model, its type and what its layers are narrowed to.
type Case<'a> = (&'a str, DType, Option<Quantization>);

fn engine((model, dtype, quantization): Case<'_>, isa: Isa) -> Engine {
    let config = EngineConfig {
        model: ModelConfig {
            model_dir: Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(model),
            dtype: Some(dtype),
            ..ModelConfig::default()
        },
        device: DeviceConfig { kind: DeviceKind::Cpu, quantization, ..DeviceConfig::default() },
        cache: CacheConfig { num_blocks: Some(64), ..CacheConfig::default() },
        parallel: ParallelConfig { isa: Some(isa), ..ParallelConfig::default() },
        ..EngineConfig::default()
    };
    Engine::load(&config).unwrap_or_else(|error| panic!("{model}: {error}"))
}

/// Tokens of the greedy rows, with these log probabilities, beside one row at this temperature.
fn tokens(
    mut engine: Engine,
    logprobs: Option<NumLogprobs>,
    temperature: f32,
) -> BTreeMap<u64, Vec<u32>> {
    let processor = engine.input_processor();
    for index in 0..=NUM_ROWS {
        let is_beside = index == NUM_ROWS;
        let prompt = (0..index as u32 % 5 + 1).map(|at| (at * 31 + index as u32 * 7) % 60 + 5);
        let params = SamplingParams {
            temperature: if is_beside { temperature } else { 0.0 },
            max_tokens: Some(if is_beside { 12 } else { 6 + index as u32 % 7 }),
            ignore_eos: true,
            logprobs: logprobs.filter(|_| !is_beside),
            ..SamplingParams::default()
        };
        let prompt = Prompt::TokenIds(prompt.collect());
        engine.add_request(processor.process(index, prompt, params, RowKey(index)).unwrap());
    }
    let mut tokens = BTreeMap::new();
    while engine.has_unfinished_requests() {
        for output in engine.step().unwrap() {
            let completion = &output.outputs[0];
            assert!(completion.error.is_none(), "{:?}", completion.error);
            tokens.insert(output.request_id, completion.token_ids.clone());
        }
    }
    assert_eq!(tokens.len() as u64, NUM_ROWS + 1);
    tokens.remove(&NUM_ROWS);
    tokens
}

#[test]
fn tokens_do_not_depend_on_whether_logits_are_kept() {
    let int8 = Some(Quantization::Int8);
    for isa in Isa::all_available() {
        for case in [
            ("demo", DType::Float32, None),
            ("demo", DType::BFloat16, None),
            ("demo", DType::BFloat16, int8),
            ("golden/gptq", DType::BFloat16, None),
            // With what comes after the layer, and before it.
            ("golden/granite", DType::BFloat16, None),
            ("golden/gemma2", DType::BFloat16, None),
            ("golden/opt350", DType::Float32, None),
        ] {
            let of = |logprobs, temperature| tokens(engine(case, isa), logprobs, temperature);
            let expected = of(Some(NumLogprobs::Top(0)), 1.0);
            let different: std::collections::BTreeSet<_> = expected.values().flatten().collect();
            assert!(different.len() > 8, "{case:?}: rows of one token show nothing");
            assert_eq!(of(None, 0.0), expected, "{isa:?} {case:?}: all greedy");
            assert_eq!(of(None, 1.0), expected, "{isa:?} {case:?}: beside a sampled row");
        }
    }
}
