//! The same answers with any guesses, and with none: the plain sampler decides at every position.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    Constraint, NumLogprobs, RequestOutput, RowKey, SamplingParams, StructuredOutputs,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, EngineConfig, GenerationConfigSource, ModelConfig, SchedulerConfig,
    SpeculationConfig, SpeculationMethod, SuffixConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::EngineStats;

use crate::guesser::{Guesser, Skill};
use crate::random::Rng;

pub const MODEL: &str = "testdata/golden/llama3";
const NUM_TOKENS: usize = 4;
/// So few that rows are preempted, however long they become on a CPU.
pub const FEW_BLOCKS: usize = 12;

/// Rows at a time, and blocks of the KV cache: in the last there is no room for all.
pub const BATCHES: [(usize, usize); 3] = [(1, 400), (7, 400), (64, FEW_BLOCKS)];

/// Who guesses in a run.
#[derive(Clone, Debug)]
pub enum Method {
    Of(SpeculationMethod),
    Known(Skill),
}

pub fn config(
    model: &str,
    (max_num_seqs, num_blocks): (usize, usize),
    method: Option<&Method>,
) -> EngineConfig {
    let unused = SpeculationMethod::Ngram { min: 1, max: 1 };
    let speculation = method.map(|method| SpeculationConfig {
        method: if let Method::Of(method) = method { method.clone() } else { unused.clone() },
        num_speculative_tokens: NUM_TOKENS,
        max_step_tokens: Some(4096),
        paced: false,
    });
    EngineConfig {
        model: ModelConfig {
            model_dir: Path::new(env!("CARGO_MANIFEST_DIR")).join(model),
            dtype: Some(DType::BFloat16),
            generation_config: GenerationConfigSource::Vllm,
            ..ModelConfig::default()
        },
        cache: CacheConfig {
            block_size: Some(16),
            num_blocks: Some(num_blocks),
            ..CacheConfig::default()
        },
        scheduler: SchedulerConfig {
            max_num_seqs: Some(max_num_seqs),
            ..SchedulerConfig::default()
        },
        speculation,
        ..EngineConfig::default()
    }
}

/// One of each way to sample.
fn kinds() -> Vec<(&'static str, SamplingParams)> {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampled = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
    let of_form = |constraint| Some(Arc::new(StructuredOutputs::new(constraint)));
    let schema = of_form(Constraint::Json(json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "big": {"type": "boolean"}},
        "required": ["name", "big"],
    })));
    let list = of_form(Constraint::Regex("(red|blue|green)( (red|blue|green)){2,9}".to_owned()));
    vec![
        ("greedy", SamplingParams { ignore_eos: true, ..greedy.clone() }),
        ("sampled", SamplingParams { top_p: 0.9, ..sampled.clone() }),
        (
            "penalties",
            SamplingParams {
                repetition_penalty: 1.2,
                presence_penalty: 0.4,
                frequency_penalty: 0.3,
                min_tokens: 5,
                logit_bias: vec![(20, 2.0)],
                bad_words: vec!["the".to_owned()],
                ..greedy.clone()
            },
        ),
        ("n = 3", SamplingParams { n: 3, top_k: 8, ..sampled.clone() }),
        ("stop", SamplingParams { stop: vec!["e".to_owned(), " a".to_owned()], ..sampled.clone() }),
        (
            "logprobs",
            SamplingParams {
                logprobs: Some(NumLogprobs::Top(3)),
                prompt_logprobs: Some(NumLogprobs::Top(1)),
                ..greedy.clone()
            },
        ),
        ("schema", SamplingParams { structured_outputs: schema.clone(), ..sampled.clone() }),
        ("greedy schema", SamplingParams { structured_outputs: schema.clone(), ..greedy.clone() }),
        (
            "regex with stop",
            SamplingParams {
                structured_outputs: list.clone(),
                stop: vec!["green".to_owned()],
                ..sampled.clone()
            },
        ),
        (
            "regex with logprobs",
            SamplingParams {
                structured_outputs: list,
                logprobs: Some(NumLogprobs::Top(2)),
                ..sampled
            },
        ),
    ]
}

/// Rows of all kinds; many begin alike.
pub fn rows() -> Vec<(Vec<u32>, SamplingParams)> {
    let kinds = kinds();
    let row = |index: usize| {
        let (_, params) = &kinds[index % kinds.len()];
        let shared = (0..20).map(|i| 5 + i % 7);
        let own = (0..1 + index as u32 * 5 % 23).map(|i| 3 + (i * 7 + index as u32) % 40);
        let prompt =
            if index.is_multiple_of(3) { shared.chain(own).collect() } else { own.collect() };
        (prompt, SamplingParams { max_tokens: Some(5 + index as u32 * 7 % 30), ..params.clone() })
    };
    (0..3 * kinds.len()).map(row).collect()
}

struct Run {
    /// What does not depend on scheduling.
    answers: Vec<String>,
    token_ids: HashMap<(u64, u32), Vec<u32>>,
    stats: EngineStats,
}

fn run(
    config: &EngineConfig,
    rows: &[(Vec<u32>, SamplingParams)],
    proposer: Option<Guesser>,
) -> Run {
    let mut engine = Engine::load(config).expect("the files are committed");
    if let Some(proposer) = proposer {
        engine.set_proposer(Box::new(proposer));
    }
    let processor = engine.input_processor();
    for (index, (prompt, params)) in (0..).zip(rows) {
        let prompt = Prompt::TokenIds(prompt.clone());
        let request = processor.process(index, prompt, params.clone(), RowKey(index));
        engine.add_request(request.expect("a valid row"));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the CPU does not fail"));
    }
    outputs.sort_by_key(|output| output.request_id);
    let answer =
        |output: &RequestOutput| format!("{:?} {:?}", output.outputs, output.prompt_logprobs);
    let completions = outputs.iter().flat_map(|output| {
        let id = output.request_id;
        output.outputs.iter().map(move |own| ((id, own.index), own.token_ids.clone()))
    });
    Run {
        answers: outputs.iter().map(answer).collect(),
        token_ids: completions.collect(),
        stats: engine.stats(),
    }
}

fn guesser(skill: Skill, answers: &HashMap<(u64, u32), Vec<u32>>) -> Guesser {
    Guesser { rng: Rng(9), skill, vocab_size: 100, answers: answers.clone() }
}

pub fn draft_model(model: &str) -> SpeculationMethod {
    SpeculationMethod::DraftModel { model_dir: Path::new(env!("CARGO_MANIFEST_DIR")).join(model) }
}

fn methods() -> Vec<Method> {
    vec![
        Method::Of(SpeculationMethod::Ngram { min: 1, max: 3 }),
        Method::Of(SpeculationMethod::Suffix(SuffixConfig::default())),
        Method::Of(draft_model(MODEL)),
        Method::Known(Skill::Perfect),
        Method::Known(Skill::AlwaysWrong),
        Method::Known(Skill::Random),
        Method::Known(Skill::Mostly),
    ]
}

#[test]
fn answers_are_the_same_with_any_guesses_in_any_batch() {
    let rows = rows();
    let plain = run(&config(MODEL, (64, 400), None), &rows, None);
    let errors = plain.answers.iter().filter(|answer| answer.contains("RequestError")).count();
    assert_eq!(errors, 0, "{:?}", plain.answers);
    for method in methods() {
        for batch in BATCHES {
            let proposer = match &method {
                Method::Known(skill) => Some(guesser(*skill, &plain.token_ids)),
                Method::Of(_) => None,
            };
            let run = run(&config(MODEL, batch, Some(&method)), &rows, proposer);
            for (index, (got, want)) in run.answers.iter().zip(&plain.answers).enumerate() {
                let (kind, _) = kinds()[index % kinds().len()];
                assert_eq!(got, want, "{method:?}, {batch:?}, {kind}");
            }
            let EngineStats { num_draft_tokens, num_accepted_tokens, .. } = run.stats;
            println!("{method:?}, {batch:?}: {num_accepted_tokens} of {num_draft_tokens}");
            assert_eq!(run.stats.num_preemptions > 0, batch.1 == FEW_BLOCKS, "{:?}", run.stats);
            match method {
                Method::Known(Skill::Perfect) => assert_eq!(num_accepted_tokens, num_draft_tokens),
                Method::Known(Skill::AlwaysWrong) => {
                    assert_eq!(num_accepted_tokens, run.stats.num_forced_tokens);
                }
                Method::Known(Skill::Random) => assert!(num_accepted_tokens < num_draft_tokens),
                _ => assert!((1..num_draft_tokens).contains(&num_accepted_tokens)),
            }
            assert!(num_draft_tokens > 50, "{num_draft_tokens} drafts");
        }
    }
}

#[test]
fn right_guesses_save_their_share_of_the_steps() {
    let kinds = ["greedy", "sampled", "penalties", "greedy schema", "regex with logprobs"];
    let all = self::kinds();
    let rows = kinds.map(|name| {
        let (_, params) = all.iter().find(|(kind, _)| *kind == name).expect("a kind");
        (vec![5, 6, 7], SamplingParams { max_tokens: Some(23), ..params.clone() })
    });
    let plain = run(&config(MODEL, (64, 400), None), &rows, None);
    let longest = plain.token_ids.values().map(Vec::len).max().expect("rows");
    assert_eq!(plain.stats.num_steps, longest as u64);
    let method = Method::Known(Skill::Perfect);
    let config = config(MODEL, (64, 400), Some(&method));
    let guessed = run(&config, &rows, Some(guesser(Skill::Perfect, &plain.token_ids)));
    assert_eq!(guessed.answers, plain.answers);
    assert_eq!(guessed.stats.num_steps, longest.div_ceil(NUM_TOKENS + 1) as u64);
    let rejected = guessed.stats.num_draft_tokens - guessed.stats.num_accepted_tokens;
    assert_eq!(rejected, 0);
}

/// Nobody guesses but the grammar.
#[test]
fn tokens_that_a_grammar_forces_are_guessed() {
    let keys = ["the_name_of_the_customer", "the_number_of_things", "whether_it_is_done"];
    let properties: Vec<(String, Value)> =
        keys.iter().map(|key| (key.to_string(), json!({"type": "boolean"}))).collect();
    let constraint = Constraint::Json(json!({
        "type": "object",
        "properties": Value::Object(properties.into_iter().collect()),
        "required": keys,
        "additionalProperties": false,
    }));
    let outputs =
        StructuredOutputs { disable_any_whitespace: true, ..StructuredOutputs::new(constraint) };
    let outputs = Arc::new(outputs);
    let rows: Vec<_> = [0.0, 0.9]
        .map(|temperature| {
            let structured_outputs = Some(Arc::clone(&outputs));
            let max_tokens = Some(200);
            let params = SamplingParams {
                structured_outputs,
                temperature,
                max_tokens,
                logprobs: Some(NumLogprobs::Top(2)),
                ..SamplingParams::default()
            };
            (vec![5, 6, 7], params)
        })
        .to_vec();
    let plain = run(&config(MODEL, (64, 400), None), &rows, None);
    let nobody = Method::Of(SpeculationMethod::Ngram { min: 500, max: 500 });
    for (batch, paced) in BATCHES.iter().flat_map(|batch| [(*batch, true), (*batch, false)]) {
        let mut config = config(MODEL, batch, Some(&nobody));
        config.speculation.as_mut().expect("it is there").paced = paced;
        let guessed = run(&config, &rows, None);
        assert_eq!(guessed.answers, plain.answers, "{batch:?}");
        let EngineStats { num_draft_tokens, num_forced_tokens, num_accepted_tokens, .. } =
            guessed.stats;
        println!("{batch:?}: {num_accepted_tokens} of {num_forced_tokens}");
        assert_eq!(num_draft_tokens, num_forced_tokens);
        assert_eq!(num_accepted_tokens, num_forced_tokens, "what is forced is right");
        let longest = plain.token_ids.values().map(Vec::len).max().expect("rows") as u64;
        println!("{} steps, {longest} tokens", guessed.stats.num_steps);
        if batch.0 > 1 {
            assert!(guessed.stats.num_steps * 2 < longest, "{} steps", guessed.stats.num_steps);
        }
    }
}

#[test]
fn a_model_with_states_is_refused() {
    let method = Method::Known(Skill::Random);
    let config = config("testdata/golden/mamba2", (4, 400), Some(&method));
    let error = Engine::load(&config).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("speculative_config") && error.contains("recurrent"), "{error}");
}

/// Greedy rows alone, of all lengths.
fn greedy_rows() -> Vec<(Vec<u32>, SamplingParams)> {
    let greedy = |(prompt, params): (Vec<u32>, SamplingParams)| {
        let params = SamplingParams {
            max_tokens: params.max_tokens,
            temperature: 0.0,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        (prompt, params)
    };
    rows().into_iter().map(greedy).collect()
}

#[test]
fn a_draft_model_that_is_its_own_target_guesses_all_greedy_rows() {
    let method = Method::Of(draft_model(MODEL));
    for batch in BATCHES {
        let mut config = config(MODEL, batch, Some(&method));
        // Prompts are read in pieces.
        config.scheduler.max_num_batched_tokens = Some(37);
        let EngineStats { num_draft_tokens, num_accepted_tokens, .. } =
            run(&config, &greedy_rows(), None).stats;
        assert!(num_draft_tokens > 100, "{num_draft_tokens} drafts");
        assert_eq!(num_accepted_tokens, num_draft_tokens, "{batch:?}");
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let method = Method::Of(draft_model("testdata/golden/mistral"));
    let error = Engine::load(&config(MODEL, (4, 400), Some(&method))).map(|_| ()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("475 tokens") && error.contains("438"), "{error}");
}

#[test]
fn a_draft_models_cache_counts_beside_its_targets() {
    let method = Method::Of(draft_model(MODEL));
    let info = |method: Option<&Method>| {
        let mut config = config(MODEL, (4, 400), method);
        config.cache.num_blocks = None;
        config.cache.kv_cache_memory_bytes = Some(1 << 20);
        Engine::load(&config).expect("the files are committed").info().clone()
    };
    let (alone, with_draft) = (info(None), info(Some(&method)));
    let num_blocks = alone.num_cache_tokens / alone.block_size;
    assert_eq!(with_draft.num_cache_tokens, num_blocks / 2 * alone.block_size);
    assert!(with_draft.kv_cache_bytes <= 1 << 20);
    assert_eq!(with_draft.weight_bytes, 2 * alone.weight_bytes);
}
