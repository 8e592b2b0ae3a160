//! Beam search of whole models: against vLLM's loop over the engine's own logprobs, one token at a
//! time; against transformers; and with the same bits in any company.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    BeamSearchParams, FinishReason, NumLogprobs, RequestOutput, RowKey, SamplingParams,
    TokenLogprob,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, GenerationConfigSource, ModelConfig,
    SchedulerConfig,
};
use vllm_batch::engine::core::Engine;

use crate::gpu;

const FAMILIES: [&str; 5] = ["gemma2", "llama3", "mistral", "opt", "qwen3"];
const MAX_TOKENS: u32 = 10;
/// The shim is slow.
const MAX_TOKENS_ON_GPU: u32 = 4;

fn testdata() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn config(family: &str, device: &DeviceConfig) -> EngineConfig {
    EngineConfig {
        model: ModelConfig {
            model_dir: testdata().join("golden").join(family),
            dtype: Some(DType::Float32),
            generation_config: GenerationConfigSource::Vllm,
            ..ModelConfig::default()
        },
        cache: CacheConfig {
            block_size: Some(16),
            num_blocks: Some(256),
            ..CacheConfig::default()
        },
        scheduler: SchedulerConfig { max_num_seqs: Some(32), ..SchedulerConfig::default() },
        device: device.clone(),
        ..EngineConfig::default()
    }
}

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    prompt_token_ids: Vec<u32>,
}

fn prompts(family: &str) -> Vec<Vec<u32>> {
    let path = testdata().join("golden").join(family).join("golden.json");
    let golden: Golden = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    golden.prompts.into_iter().map(|prompt| prompt.prompt_token_ids).collect()
}

fn beams(beam_width: u32, length_penalty: f64) -> SamplingParams {
    SamplingParams {
        n: beam_width,
        beam_search: Some(BeamSearchParams { beam_width, length_penalty }),
        max_tokens: Some(MAX_TOKENS),
        ..SamplingParams::default()
    }
}

fn run(engine: &mut Engine, rows: &[(Vec<u32>, SamplingParams)]) -> Vec<RequestOutput> {
    let processor = engine.input_processor();
    for (index, (prompt, params)) in rows.iter().enumerate() {
        let (prompt, key) = (Prompt::TokenIds(prompt.clone()), RowKey(index as u64));
        let request = processor.process(index as u64, prompt, params.clone(), key);
        engine.add_request(request.expect("a row that can be answered"));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the device works"));
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

/// Token ids, bits of the cumulative logprob, and whether it ended by itself.
type Found = (Vec<u32>, u64, bool);

fn found(output: &RequestOutput) -> Vec<Found> {
    let completion = |(index, completion): (u32, &_)| {
        let vllm_batch::engine::api::request::CompletionOutput { token_ids, .. } = completion;
        assert_eq!((completion.index, &completion.error), (index, &None));
        let sum = completion.cumulative_logprob.expect("of a search");
        (token_ids.clone(), sum.to_bits(), completion.finish_reason == FinishReason::Stop)
    };
    (0..).zip(&output.outputs).map(completion).collect()
}

/// The next tokens of sequences, likeliest first, each by a request of one token.
fn next_tokens(
    engine: &mut Engine,
    sequences: Vec<Vec<u32>>,
    logprobs: NumLogprobs,
) -> Vec<Vec<TokenLogprob>> {
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(1),
        logprobs: Some(logprobs),
        ..SamplingParams::default()
    };
    let rows: Vec<_> = sequences.into_iter().map(|tokens| (tokens, params.clone())).collect();
    let top = |output: RequestOutput| {
        output.outputs.into_iter().flat_map(|c| c.logprobs).flatten().next().unwrap().top
    };
    run(engine, &rows).into_iter().map(top).collect()
}

/// `LLM.beam_search` of vLLM, word for word.
fn reference(
    engine: &mut Engine,
    (prompt, params): (&[u32], &SamplingParams),
    logprobs: NumLogprobs,
) -> Vec<Found> {
    let BeamSearchParams { beam_width, length_penalty } = params.beam_search.expect("asked for");
    let (width, eos) = (beam_width as usize, engine.input_processor().tokenizer().eos_token_id());
    let score = |(tokens, sum): &(Vec<u32>, f64)| {
        let ends = tokens.last().is_some_and(|&last| Some(last) == eos);
        sum / ((tokens.len() - usize::from(ends)).max(1) as f64).powf(length_penalty)
    };
    let best = |beams: &mut Vec<(Vec<u32>, f64)>| {
        beams.sort_by(|a, b| score(b).total_cmp(&score(a)));
        beams.truncate(width);
    };
    let (mut live, mut completed) = (vec![(prompt.to_vec(), 0.0)], Vec::new());
    for _ in 0..params.max_tokens.expect("asked for") {
        let sequences = live.iter().map(|(tokens, _)| tokens.clone()).collect();
        let mut candidates = Vec::new();
        for ((tokens, sum), next) in live.iter().zip(next_tokens(engine, sequences, logprobs)) {
            for token in next.iter().take(2 * width) {
                let mut tokens = tokens.clone();
                tokens.push(token.token_id);
                let longer = (tokens, sum + f64::from(token.logprob));
                match Some(token.token_id) == eos {
                    true => completed.push(longer),
                    false => candidates.push(longer),
                }
            }
        }
        best(&mut candidates);
        live = candidates;
    }
    completed.extend(live);
    best(&mut completed);
    let found = |(tokens, sum): (Vec<u32>, f64)| {
        let ended = Some(*tokens.last().unwrap()) == eos;
        (tokens[prompt.len()..].to_vec(), sum.to_bits(), ended)
    };
    completed.into_iter().map(found).collect()
}

#[test]
fn a_search_is_vllms_loop_over_the_engines_own_logprobs() {
    let mut num_ended = 0;
    for family in FAMILIES {
        let mut engine = Engine::load(&config(family, &DeviceConfig::default())).expect("a model");
        let widths = [(2, 1.0), (4, 0.0), (8, 2.0)];
        for (prompt, (width, penalty)) in prompts(family).iter().zip(widths) {
            let row = (prompt.clone(), beams(width, penalty));
            let got = run(&mut engine, std::slice::from_ref(&row));
            let expected = reference(&mut engine, (prompt, &row.1), NumLogprobs::All);
            assert_eq!(found(&got[0]), expected, "{family}, width {width}");
            assert_eq!(expected.len(), width as usize);
            num_ended += expected.iter().filter(|(_, _, ended)| *ended).count();
        }
    }
    assert!(num_ended > 0, "no completion ended in EOS");
}

#[test]
fn a_search_on_the_gpu_is_vllms_loop_over_its_logprobs() {
    let Some(device) = gpu::device(80) else { return };
    let mut engine = Engine::load(&config("llama3", &device)).expect("a model");
    // From 33 beams on the host takes the logprobs, and the row takes more sequences than a step.
    for (prompt, width) in prompts("llama3").iter().zip([3, 33]) {
        let params = SamplingParams { max_tokens: Some(MAX_TOKENS_ON_GPU), ..beams(width, 1.0) };
        let row = (prompt.clone(), params);
        let got = run(&mut engine, std::slice::from_ref(&row));
        let expected = reference(&mut engine, (prompt, &row.1), NumLogprobs::Top(2 * width));
        assert_eq!(found(&got[0]), expected, "width {width}");
    }
}

#[derive(Deserialize)]
struct Searched {
    prompt_token_ids: Vec<u32>,
    beam_width: u32,
    outputs: Vec<Vec<u32>>,
    cumulative_logprobs: Vec<f64>,
}

#[test]
fn a_search_finds_what_transformers_finds() {
    let text = std::fs::read_to_string(testdata().join("beams.json")).unwrap();
    let mut all: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    all.remove("transformers");
    assert_eq!(all.len(), FAMILIES.len());
    for (family, searches) in all {
        let searches: Vec<Searched> = serde_json::from_value(searches).unwrap();
        assert!(searches.len() >= 6, "{family}: {} searches", searches.len());
        let row = |searched: &Searched| {
            let max_tokens = Some(searched.outputs[0].len() as u32);
            let base = beams(searched.beam_width, 0.0);
            let params = SamplingParams { max_tokens, ignore_eos: true, ..base };
            (searched.prompt_token_ids.clone(), params)
        };
        let rows: Vec<_> = searches.iter().map(row).collect();
        let mut engine = Engine::load(&config(&family, &DeviceConfig::default())).expect("a model");
        for (searched, output) in searches.iter().zip(run(&mut engine, &rows)) {
            let what = format!("{family}, width {}", searched.beam_width);
            let tokens: Vec<_> = output.outputs.iter().map(|c| c.token_ids.clone()).collect();
            assert_eq!(tokens, searched.outputs, "{what}");
            for (completion, expected) in output.outputs.iter().zip(&searched.cumulative_logprobs) {
                let sum = completion.cumulative_logprob.expect("of a search");
                assert!((sum - expected).abs() < 1e-3, "{what}: {sum}, {expected}");
            }
        }
    }
}

/// Rows with beams among others, by their turn.
fn mixed_rows(order: &[usize]) -> Vec<(usize, (Vec<u32>, SamplingParams))> {
    let prompts = prompts("qwen3");
    let row = |index: usize| {
        let prompt = prompts[index % prompts.len()].repeat(1 + index % 3);
        let params = match index % 3 {
            0 => SamplingParams { logprobs: Some(NumLogprobs::Top(2)), ..beams(4, 1.0) },
            1 => SamplingParams { ignore_eos: true, ..beams(3, 0.0) },
            _ => SamplingParams { max_tokens: Some(MAX_TOKENS), n: 2, ..SamplingParams::default() },
        };
        (index, (prompt, params))
    };
    order.iter().map(|&index| row(index)).collect()
}

#[test]
fn a_search_has_the_same_bits_in_any_company() {
    const NUM_ROWS: usize = 9;
    let searched = |config: &EngineConfig, order: &[usize]| {
        let mut engine = Engine::load(config).expect("a model");
        let (indices, rows): (Vec<_>, Vec<_>) = mixed_rows(order).into_iter().unzip();
        let outputs = indices.into_iter().zip(run(&mut engine, &rows));
        // Other rows are keyed by their place.
        let outputs = outputs.filter(|(index, _)| index % 3 != 2);
        let shown = |output: &RequestOutput| format!("{:?}", output.outputs);
        let outputs: BTreeMap<_, _> =
            outputs.map(|(index, output)| (index, (found(&output), shown(&output)))).collect();
        (outputs, engine.stats().num_preemptions)
    };
    let base = config("qwen3", &DeviceConfig::default());
    let forward: Vec<usize> = (0..NUM_ROWS).collect();
    let (expected, _) = searched(&base, &forward);
    assert_eq!(expected.len(), 6);
    let backward: Vec<usize> = (0..NUM_ROWS).rev().collect();
    type Change = fn(&mut EngineConfig);
    let changes: [(&str, Change); 6] = [
        ("two sequences", |c| c.scheduler.max_num_seqs = Some(2)),
        ("five sequences", |c| c.scheduler.max_num_seqs = Some(5)),
        ("7 tokens a step", |c| c.scheduler.max_num_batched_tokens = Some(7)),
        ("blocks of 32", |c| c.cache.block_size = Some(32)),
        ("no prefix cache", |c| c.cache.enable_prefix_caching = false),
        ("few blocks", |c| c.cache.num_blocks = Some(12)),
    ];
    for (what, change) in changes {
        let mut changed = base.clone();
        change(&mut changed);
        let (got, num_preemptions) = searched(&changed, &backward);
        assert_eq!(got, expected, "{what}");
        assert_eq!(num_preemptions > 0, what == "few blocks", "{what}: {num_preemptions}");
    }
}
