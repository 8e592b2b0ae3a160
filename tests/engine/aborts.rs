//! Requests that are aborted in the middle of a run, of engines of every kind: they are gone, their
//! blocks are free, and what the others answer has the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::compared::Compared;
use vllm_batch::engine::api::pooling::PoolingParams;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::RowKey;
use vllm_batch::engine::base::config::{EngineConfig, SpeculationMethod, SuffixConfig};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;
use vllm_batch::engine::core::serve::runner::{Runner, Work};

use super::pooled::{self, testdata};
use super::random::Rng;
use super::speculation::{self, BATCHES, MODEL, Method, draft_model};

/// What requests answer, by their numbers.
pub type Answers = BTreeMap<u64, String>;

/// Runs requests to their end. With a generator some are aborted on the way, half of which come
/// again under their number; returns those that did not as well.
pub fn run(
    runner: &mut Runner,
    works: &[Work],
    mut rng: Option<&mut Rng>,
) -> (Answers, BTreeSet<u64>) {
    let (mut answers, mut aborted) = (Answers::new(), BTreeSet::new());
    works.iter().for_each(|work| runner.add_request(work.clone()));
    assert!(!runner.abort_request(1 << 40), "nobody has this number");
    while runner.has_unfinished_requests() {
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            let id = answer.request_id();
            assert!(!aborted.contains(&id), "row {id} was aborted");
            let before = answers.insert(id, text(&answer));
            assert!(before.is_none(), "row {id} came twice");
        }
        let Some(rng) = rng.as_deref_mut() else { continue };
        if rng.once_in(2) {
            continue;
        }
        let id = rng.up_to(works.len() - 1) as u64;
        let is_unfinished = !answers.contains_key(&id) && !aborted.contains(&id);
        assert_eq!(runner.abort_request(id), is_unfinished, "row {id}");
        if is_unfinished && rng.once_in(2) {
            runner.add_request(works[id as usize].clone());
        } else if is_unfinished {
            aborted.insert(id);
        }
    }
    let stats = runner.stats();
    let left = (stats.num_running, stats.num_waiting, stats.num_used_blocks);
    assert_eq!(left, (0, 0, 0), "{stats:?}");
    assert_eq!(answers.len() + aborted.len(), works.len());
    (answers, aborted)
}

/// What does not depend on scheduling.
pub fn text(answer: &Answer) -> String {
    match answer {
        Answer::Generate(output) => format!("{:?} {:?}", output.outputs, output.prompt_logprobs),
        Answer::Pooling(output) => format!("{:?}", output.texts),
    }
}

/// Runs with aborts, which must change nothing else; returns how many there were.
pub fn check(runner: &mut Runner, works: &[Work], expected: &Answers, seed: u64) -> usize {
    let (answers, aborted) = run(runner, works, Some(&mut Rng(seed)));
    for (id, answer) in &answers {
        assert_eq!(answer, &expected[id], "row {id}, seed {seed}");
    }
    aborted.len()
}

fn generate(config: &EngineConfig) -> Runner {
    Runner::Generate(Box::new(Engine::load(config).expect("the files are committed")))
}

#[test]
fn others_answer_the_same_with_guesses_samples_schemas_and_few_blocks() {
    let rows = speculation::rows();
    let mut plain = generate(&speculation::config(MODEL, (64, 400), None));
    let processor = plain.input_processor();
    let work = |(index, (prompt, params)): (u64, &(Vec<u32>, _))| {
        let prompt = Prompt::TokenIds(prompt.clone());
        let params = Clone::clone(params);
        Work::Generate(processor.process(index, prompt, params, RowKey(index)).expect("a row"))
    };
    let works: Vec<_> = (0..).zip(&rows).map(work).collect();
    let (expected, _) = run(&mut plain, &works, None);
    let methods = [
        None,
        Some(Method::Of(SpeculationMethod::Suffix(SuffixConfig::default()))),
        Some(Method::Of(draft_model(MODEL))),
    ];
    let mut num_aborted = 0;
    for (seed, method) in (1..).zip(&methods) {
        for batch in BATCHES {
            let mut runner = generate(&speculation::config(MODEL, batch, method.as_ref()));
            num_aborted += check(&mut runner, &works, &expected, seed * 31 + batch.0 as u64);
        }
    }
    assert!(num_aborted > 30, "{num_aborted} aborted");
}

#[test]
fn texts_of_others_become_the_same_whole_cached_or_compared() {
    let folders = ["golden_embeddings/bert", "golden_embeddings/qwen3"];
    let mut num_aborted = 0;
    for folder in folders {
        let load = || {
            let mut config = pooled::config(testdata(folder), (3, 24, 1));
            config.model.tokenizer_dir = Some(testdata("golden_embeddings/bert"));
            if folder.ends_with("qwen3") {
                // A decoder reads texts through a cache.
                config.cache.block_size = Some(16);
                config.cache.num_blocks = Some(8);
            }
            Runner::Pooling(Box::new(PoolingEngine::load(&config).expect("committed")))
        };
        let mut runner = load();
        let processor = runner.input_processor();
        let text = |own: u64| "no nice ".repeat(1 + own as usize * 5 % 17);
        let work = |index: u64| {
            let documents = (index..index + 4).map(|own| text(own % 7));
            // Two of three compare texts that others ask for too.
            let prompt = match index % 3 {
                0 => Prompt::Text(text(index)),
                _ => Prompt::Compared(Box::new(
                    Compared::new(vec![text(index % 5)], documents.collect(), true).expect("1:N"),
                )),
            };
            let request = processor.process_pooling(index, prompt, PoolingParams::default());
            Work::Pooling(request.expect("a row"))
        };
        let works: Vec<_> = (0..30).map(work).collect();
        let (expected, _) = run(&mut runner, &works, None);
        let aborted = (1..6).map(|seed| check(&mut load(), &works, &expected, seed));
        num_aborted += aborted.sum::<usize>();
    }
    assert!(num_aborted > 10, "{num_aborted} aborted");
}
