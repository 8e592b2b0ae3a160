//! Rows of a batch beside requests that somebody waits for, of models of every kind: whoever goes
//! first and whoever is preempted, all answer the same bytes.

use std::sync::Arc;

use vllm_batch::engine::api::pooling::PoolingParams;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    BeamSearchParams, NumLogprobs, Precedence, RequestClass, RowKey, SamplingParams,
};
use vllm_batch::engine::base::config::{EngineConfig, Engines};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;
use vllm_batch::engine::core::serve::runner::{Runner, Work};

use super::pooled::{self, testdata};
use super::random::Rng;
use super::{aborts, data_parallel, speculation};

/// Attention with a window, states of two kinds, latent K and V.
const MODELS: [&str; 4] = ["llama3", "mamba2", "qwen3_next", "deepseek_v3"];

fn load(config: &EngineConfig) -> Runner {
    Runner::Generate(Box::new(Engine::load(config).expect("the files are committed")))
}

/// Rows of every way to sample, of a few prefixes.
fn works(runner: &Runner) -> Vec<Work> {
    let processor = runner.input_processor();
    let params = |index: u64| {
        let max_tokens = Some(3 + (index * 7 % 20) as u32);
        let plain = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        match index % 4 {
            0 => SamplingParams { temperature: 0.0, logprobs: Some(NumLogprobs::Top(2)), ..plain },
            1 => SamplingParams { n: 3, temperature: 0.9, ..plain },
            2 => {
                let beam_search = Some(BeamSearchParams::of_width(3));
                SamplingParams { n: 3, temperature: 0.0, beam_search, ..plain }
            }
            _ => SamplingParams { prompt_logprobs: Some(NumLogprobs::Top(1)), ..plain },
        }
    };
    let work = |index: u64| {
        let prompt = (0..4 + index as u32 * 5 % 40).map(|at| 1 + (at + index as u32 % 3) % 50);
        let prompt = Prompt::TokenIds(prompt.collect());
        let request = processor.process(index, prompt, params(index), RowKey(index));
        Work::Generate(request.expect("a row"))
    };
    (0..24).map(work).collect()
}

/// Half are rows of a batch, and priorities differ.
fn mixed(works: &[Work], rng: &mut Rng) -> Vec<Work> {
    let mix = |work: &Work| {
        let class = [RequestClass::Online, RequestClass::Batch][rng.up_to(1)];
        work.clone().with_precedence(Precedence { class, priority: rng.up_to(2) as i64 })
    };
    works.iter().map(mix).collect()
}

#[test]
fn rows_of_every_kind_of_model_answer_the_same() {
    let mut num_preempted = 0;
    for model in MODELS {
        let config = |batch| {
            let mut config = speculation::config(&format!("testdata/golden/{model}"), batch, None);
            config.cache.block_size = None;
            config
        };
        let mut plain = load(&config((64, 600)));
        let works = works(&plain);
        let (expected, _) = aborts::run(&mut plain, &works, None);
        for (seed, batch) in [(1, (64, 600)), (2, (4, 600)), (3, (9, 16)), (4, (2, 16))] {
            let mut runner = load(&config(batch));
            let works = mixed(&works, &mut Rng(seed));
            let (answers, _) = arriving(&mut runner, &works);
            assert_eq!(answers, expected, "{model}, {batch:?}");
            num_preempted += runner.stats().num_batch_preemptions;
        }
    }
    assert!(num_preempted > 10, "{num_preempted} were preempted");
}

/// Requests come one after the other, two steps apart; the last ones of them first.
fn arriving(runner: &mut Runner, works: &[Work]) -> (aborts::Answers, usize) {
    let (online, batch): (Vec<_>, Vec<_>) =
        works.iter().partition(|work| work.precedence().class == RequestClass::Online);
    batch.into_iter().for_each(|work| runner.add_request(work.clone()));
    let mut online = online.into_iter();
    let (mut answers, mut num_steps) = (aborts::Answers::new(), 0);
    while runner.has_unfinished_requests() || online.len() > 0 {
        if num_steps % 2 == 0 {
            online.next().into_iter().for_each(|work| runner.add_request(work.clone()));
        }
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            answers.insert(answer.request_id(), aborts::text(&answer));
        }
        num_steps += 1;
    }
    assert_eq!(runner.stats().num_used_blocks, 0);
    (answers, num_steps)
}

#[test]
fn rows_of_several_engines_answer_the_same() {
    let mut plain = load(&speculation::config(speculation::MODEL, (64, 600), None));
    let works = works(&plain);
    let (expected, _) = aborts::run(&mut plain, &works, None);
    let mut config = speculation::config(speculation::MODEL, (3, 40), None);
    config.parallel.engines = Engines::Number(2);
    let mut engines = data_parallel::several(&config, Arc::new(data_parallel::load_with));
    let (answers, _) = arriving(&mut engines, &mixed(&works, &mut Rng(5)));
    assert_eq!(answers, expected);
}

#[test]
fn texts_become_the_same_and_those_that_are_waited_for_come_first() {
    for folder in ["golden_embeddings/bert", "golden_embeddings/qwen3"] {
        let mut config = pooled::config(testdata(folder), (3, 24, 1));
        config.model.tokenizer_dir = Some(testdata("golden_embeddings/bert"));
        if folder.ends_with("qwen3") {
            config.cache.block_size = Some(16);
            config.cache.num_blocks = Some(8);
        }
        let mut runner = Runner::Pooling(Box::new(PoolingEngine::load(&config).unwrap()));
        let processor = runner.input_processor();
        let work = |index: u64| {
            let prompt = Prompt::Text("no nice ".repeat(1 + index as usize * 5 % 3));
            let request = processor.process_pooling(index, prompt, PoolingParams::default());
            Work::Pooling(request.expect("a row"))
        };
        let works: Vec<_> = (0..30).map(work).collect();
        let (expected, _) = aborts::run(&mut runner, &works, None);
        let of_batch =
            |index: usize| if index < 20 { Precedence::BATCH } else { Precedence::default() };
        for (index, work) in works.iter().enumerate() {
            runner.add_request(work.clone().with_precedence(of_batch(index)));
        }
        assert_eq!(runner.stats().num_waiting_batch, 20);
        let mut order = Vec::new();
        while runner.has_unfinished_requests() {
            for answer in runner.step().unwrap() {
                assert_eq!(aborts::text(&answer), expected[&answer.request_id()]);
                order.push(answer.request_id());
            }
        }
        let first_of_batch = order.iter().position(|id| *id < 20).unwrap();
        let last_online = order.iter().rposition(|id| *id >= 20).unwrap();
        assert!(first_of_batch >= 8 && last_online <= 12, "{order:?}");
    }
}
