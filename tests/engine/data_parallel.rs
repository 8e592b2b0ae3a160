//! Several engines of one model on the CPU: each row has the bytes that one engine gives it, over
//! shared beginnings, several samples, beams, tight caches, slow engines, adapters and guesses; so
//! have vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::pooling::PoolingParams;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    BeamSearchParams, LoraId, NumLogprobs, RequestOutput, RowKey, SamplingParams,
};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{
    EngineConfig, Engines, LoraConfig, SpeculationConfig, SpeculationMethod, SuffixConfig,
};
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::data_parallel::{DataParallel, LoadEngine};
use vllm_batch::engine::core::serve::input_processor::InputProcessor;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;
use vllm_batch::engine::core::serve::runner::{Runner, Work};
use vllm_batch::engine::core::{Engine, Shared};

use super::aborts;
use super::adapters::{Made, make, testdata};
use super::pooled;

pub(super) const NUM_ROWS: u64 = 40;

/// What is compared of a row: tokens and bits of logprobs of each completion.
pub(super) type Bytes = Vec<Vec<(u32, u32)>>;

pub(super) fn config(engines: usize) -> EngineConfig {
    let mut config = pooled::config(pooled::testdata("golden/llama2"), (6, 32, 3));
    config.parallel.engines = Engines::Number(engines);
    config.cache.block_size = Some(16);
    config.cache.num_blocks = Some(24);
    config
}

pub(super) fn load_with(
    config: &EngineConfig,
    shared: Option<Shared>,
) -> Result<Runner, EngineError> {
    let summary = ModelSummary::read(&config.model)?;
    Ok(Runner::Generate(Box::new(Engine::load_with(config, &summary, shared)?)))
}

pub(super) fn several(config: &EngineConfig, load: LoadEngine) -> Runner {
    let engines = DataParallel::load(config, &load);
    Runner::Parallel(Box::new(engines.unwrap_or_else(|error| panic!("{error}"))))
}

/// Rows of three shared beginnings and of none, greedy, sampled, several at once, and beams.
pub(super) fn rows(processor: &InputProcessor) -> Vec<Work> {
    let row = |index: u64| {
        let shared = (0..40 * (index as u32 % 4)).map(move |at| (at * 37 + index as u32 % 4) % 80);
        let own = (0..index as u32 * 7 % 23 + 1).map(|at| at * 29 % 80);
        let prompt: Vec<u32> = shared.chain(own).map(|token| token + 20).collect();
        let mut params = SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 1.0 },
            n: 1 + (index % 3) as u32 * (index % 2) as u32,
            max_tokens: Some(3 + index as u32 % 17),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        if index % 10 == 4 {
            (params.n, params.beam_search) = (3, Some(BeamSearchParams::of_width(3)));
        }
        let prompt = Prompt::TokenIds(prompt);
        Work::Generate(processor.process(index, prompt, params, RowKey(index)).unwrap())
    };
    (0..NUM_ROWS).map(row).collect()
}

fn bytes(output: &RequestOutput) -> Bytes {
    let of = |completion: &vllm_batch::engine::api::request::CompletionOutput| {
        let logprobs = completion.logprobs.iter().flatten();
        let bits: Vec<_> =
            logprobs.map(|at| (at.token.token_id, at.token.logprob.to_bits())).collect();
        assert_eq!(bits.len(), completion.token_ids.len());
        assert!(completion.error.is_none(), "{:?}", completion.error);
        bits
    };
    output.outputs.iter().map(of).collect()
}

pub(super) fn answers(runner: &mut Runner) -> BTreeMap<u64, Bytes> {
    let rows = rows(&runner.input_processor());
    answers_of(runner, rows)
}

pub(super) fn answers_of(runner: &mut Runner, rows: Vec<Work>) -> BTreeMap<u64, Bytes> {
    rows.into_iter().for_each(|work| runner.add_request(work));
    let mut answers = BTreeMap::new();
    while runner.has_unfinished_requests() {
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            let Answer::Generate(output) = answer else { panic!("it completes") };
            let before = answers.insert(output.request_id, bytes(&output));
            assert!(before.is_none(), "row {} came twice", output.request_id);
        }
    }
    assert_eq!(answers.len() as u64, NUM_ROWS);
    answers
}

#[test]
fn rows_of_several_engines_are_those_of_one() {
    let mut one = load_with(&config(1), None).unwrap();
    let expected = answers(&mut one);
    let cache = one.info().num_cache_tokens;
    for num in [2, 3] {
        let mut engines = several(&config(num), Arc::new(load_with));
        assert_eq!(engines.info().num_cache_tokens, num * cache);
        assert_eq!((engines.info().num_threads, engines.makes_vectors()), (3, false));
        assert_eq!(answers(&mut engines), expected, "{num} engines");
        let stats = engines.stats();
        assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
        assert_eq!(stats.num_generation_tokens, one.stats().num_generation_tokens);
        assert_eq!(stats.num_prompt_tokens, one.stats().num_prompt_tokens);
    }
}

#[test]
fn engines_of_different_pace_give_the_same_rows() {
    let expected = answers(&mut load_with(&config(1), None).unwrap());
    // The second engine runs one row and few tokens at a time: it is slower by far.
    let uneven: LoadEngine = Arc::new(|config, shared| {
        let mut config = config.clone();
        if shared.is_some() {
            config.scheduler.max_num_seqs = Some(3);
            config.scheduler.max_num_batched_tokens = Some(4);
            config.cache.enable_prefix_caching = false;
        }
        load_with(&config, shared)
    });
    assert_eq!(answers(&mut several(&config(2), uneven)), expected);
}

#[test]
fn rows_beside_aborted_ones_are_those_of_one_engine() {
    let mut one = load_with(&config(1), None).unwrap();
    let works = rows(&one.input_processor());
    let (expected, _) = aborts::run(&mut one, &works, None);
    let mut num_aborted = 0;
    for num in [2, 3] {
        for seed in 1..4 {
            let mut engines = several(&config(num), Arc::new(load_with));
            num_aborted += aborts::check(&mut engines, &works, &expected, seed);
        }
    }
    assert!(num_aborted > 10, "{num_aborted} aborted");
}

#[test]
fn engines_take_rows_after_all_that_they_had_were_aborted() {
    let mut engines = several(&config(2), Arc::new(load_with));
    let works = rows(&engines.input_processor());
    for _ in 0..3 {
        works.iter().for_each(|work| engines.add_request(work.clone()));
        engines.step().unwrap();
        let aborted = (0..NUM_ROWS).filter(|id| engines.abort_request(*id)).count();
        assert!(aborted > 10, "{aborted} aborted");
        // The engines say that they have none.
        while engines.has_unfinished_requests() {
            assert!(engines.step().unwrap().is_empty());
        }
        let stats = engines.stats();
        assert_eq!((stats.num_running, stats.num_waiting, stats.num_used_blocks), (0, 0, 0));
    }
    let (answers, _) = aborts::run(&mut engines, &works, None);
    let (expected, _) = aborts::run(&mut load_with(&config(1), None).unwrap(), &works, None);
    assert_eq!(answers, expected);
}

/// A model whose adapters tests can make.
pub(super) const ADAPTED: &str = "golden/qwen2";

pub(super) fn of_adapters(engines: usize) -> EngineConfig {
    let mut config = config(engines);
    config.model.model_dir = testdata(ADAPTED);
    config
}

/// Rows of two adapters and of none.
pub(super) fn adapted_rows(processor: &InputProcessor) -> Vec<Work> {
    let mut rows = rows(processor);
    for (index, work) in (0u32..).zip(&mut rows) {
        let Work::Generate(request) = work else { panic!("it completes") };
        request.lora = (index % 3).checked_sub(1).map(LoraId);
    }
    rows
}

#[test]
fn rows_of_adapters_are_those_of_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata(ADAPTED);
    let few = Made { rank: 3, seed: 2, modules: &["v_proj", "down_proj"], b: 0.6 };
    let all = Made { rank: 8, seed: 1, modules: &[], b: 0.3 };
    let modules =
        vec![make(folder.path(), "all", &model, all), make(folder.path(), "few", &model, few)];
    // One adapter in a step, or both.
    for max_loras in [1, 2] {
        let adapted = |engines| {
            let lora = LoraConfig { modules: modules.clone(), ..LoraConfig::default() };
            let mut config = EngineConfig { lora, ..of_adapters(engines) };
            config.scheduler.max_loras = max_loras;
            config
        };
        let mut one = load_with(&adapted(1), None).unwrap();
        let rows = adapted_rows(&one.input_processor());
        let expected = answers_of(&mut one, rows);
        let plain = answers(&mut load_with(&of_adapters(1), None).unwrap());
        let differ = |index: &u64| !index.is_multiple_of(3) && expected[index] != plain[index];
        assert!(expected.keys().filter(|index| differ(index)).count() > 10, "adapters do much");
        let mut engines = several(&adapted(2), Arc::new(load_with));
        let rows = adapted_rows(&engines.input_processor());
        assert_eq!(answers_of(&mut engines, rows), expected, "{max_loras} at a time");
        let stats = engines.stats();
        assert!(stats.num_lora_loads >= 2, "{stats:?}");
    }
}

#[test]
fn rows_that_are_guessed_at_are_those_of_one_engine_without_guesses() {
    let expected = answers(&mut load_with(&config(1), None).unwrap());
    let model_dir = testdata("golden/llama2");
    for method in [
        SpeculationMethod::Ngram { min: 1, max: 3 },
        SpeculationMethod::Suffix(SuffixConfig::default()),
        // The model itself guesses: it is mostly right.
        SpeculationMethod::DraftModel { model_dir },
    ] {
        let guessed = |engines| {
            let (method, max_step_tokens) = (method.clone(), Some(128));
            let speculation = Some(SpeculationConfig {
                method,
                num_speculative_tokens: 4,
                max_step_tokens,
                paced: false,
            });
            EngineConfig { speculation, ..config(engines) }
        };
        let mut engines = several(&guessed(2), Arc::new(load_with));
        assert_eq!(answers(&mut engines), expected, "{method:?}");
        let stats = engines.stats();
        assert!(stats.num_draft_tokens > 0, "{method:?} {stats:?}");
        let is_right = stats.num_accepted_tokens > 0;
        assert!(is_right || !matches!(method, SpeculationMethod::DraftModel { .. }), "{stats:?}");
    }
}

#[test]
fn an_engine_that_cannot_be_loaded_is_named() {
    let refused: LoadEngine = Arc::new(|config, shared| match shared {
        None => load_with(config, None),
        Some(_) => Err(EngineError::Device("no room".to_owned())),
    });
    let error = DataParallel::load(&config(2), &refused).err().expect("it is refused");
    assert!(matches!(&error, EngineError::Device(text) if text == "engine 1: no room"), "{error}");
}

#[test]
fn engines_of_different_kernels_are_refused() {
    let mixed: LoadEngine = Arc::new(|config, shared| {
        let mut config = config.clone();
        if shared.is_some() {
            config.parallel.isa = Some(vllm_batch::engine::base::isa::Isa::Portable);
        }
        load_with(&config, shared)
    });
    let error = DataParallel::load(&config(2), &mixed).err().expect("it is refused").to_string();
    assert!(error.contains("engine 0 (cpu, kernels cpu-"), "{error}");
    assert!(error.contains("engine 1 (cpu, kernels cpu-portable)"), "{error}");
}

#[test]
fn vectors_of_several_engines_are_those_of_one() {
    let model = pooled::testdata("golden_embeddings/bert");
    let mut config = pooled::config(model, (4, 64, 2));
    let load: LoadEngine = Arc::new(|config, shared| {
        let processor = shared.map(|shared| shared.input_processor);
        let summary =
            vllm_batch::engine::core::serve::pooling::PoolingSummary::read(&config.model)?;
        Ok(Runner::Pooling(Box::new(PoolingEngine::load_with(config, &summary, processor)?)))
    });
    let of = |runner: &mut Runner| {
        let processor = runner.input_processor();
        for index in 0..30 {
            let prompt: Vec<u32> = (0..3 + index as u32 * 5 % 31).map(|at| at % 50 + 5).collect();
            let prompt = Prompt::TokenIds(prompt);
            let request = processor.process_pooling(index, prompt, PoolingParams::default());
            runner.add_request(Work::Pooling(request.unwrap()));
        }
        let mut found = BTreeMap::new();
        while runner.has_unfinished_requests() {
            for answer in runner.step().unwrap() {
                let Answer::Pooling(output) = answer else { panic!("it makes vectors") };
                found.insert(output.request_id, format!("{:?}", output.texts));
            }
        }
        assert_eq!(found.len(), 30);
        found
    };
    let expected = of(&mut load(&config, None).unwrap());
    config.parallel.engines = Engines::Number(2);
    let mut engines = several(&config, load);
    assert!(engines.makes_vectors());
    assert_eq!(of(&mut engines), expected);
}
