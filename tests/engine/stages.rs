//! A model in stages: each row has the bytes of one device, for every golden model, beside aborted
//! rows, over adapters, guesses and tight caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    EngineConfig, LoraConfig, SpeculationConfig, SpeculationMethod,
};
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::data_parallel::DataParallel;
use vllm_batch::engine::core::serve::input_processor::InputProcessor;
use vllm_batch::engine::core::serve::runner::{Runner, Work};

use super::aborts;
use super::adapters::{Made, make, testdata};
use super::data_parallel::{
    ADAPTED, adapted_rows, answers, answers_of, config, load_with, of_adapters, rows, several,
};
use super::golden::{Golden, GoldenPrompt, folders};
use super::pooled;

fn in_stages(mut config: EngineConfig, num_stages: usize) -> EngineConfig {
    config.parallel.pipeline_parallel_size = Some(num_stages);
    config
}

fn refusal(config: &EngineConfig) -> String {
    DataParallel::load(config, &(Arc::new(load_with) as _)).err().expect("refused").to_string()
}

#[test]
fn rows_of_stages_are_those_of_one_device() {
    let mut one = load_with(&config(1), None).unwrap();
    let expected = answers(&mut one);
    let num_layers = ModelSummary::read(&config(1).model).unwrap().spec.layers.len();
    assert!(num_layers > 2, "{num_layers} layers");
    for num_stages in 2..=num_layers.min(3) {
        let mut staged = several(&in_stages(config(1), num_stages), Arc::new(load_with));
        assert_eq!(answers(&mut staged), expected, "{num_stages} stages");
        let (info, of_one) = (staged.info(), one.info());
        assert_eq!(info.kernel_set, of_one.kernel_set);
        // Each engine has what the one has.
        assert_eq!(info.num_cache_tokens, (num_stages + 1) * of_one.num_cache_tokens);
        assert_eq!((info.num_threads, staged.makes_vectors()), (3, false));
        let note = format!("{num_stages} stages compute one model: layers 0 to ");
        assert!(info.notes.iter().any(|text| text.starts_with(&note)), "{:?}", info.notes);
        let stats = staged.stats();
        assert_eq!((stats.num_running, stats.num_waiting, stats.num_used_blocks), (0, 0, 0));
        assert_eq!(stats.num_generation_tokens, one.stats().num_generation_tokens);
    }
    // One engine alone, which has one step under way.
    let mut alone = load_with(&in_stages(config(1), 2), None).unwrap();
    assert_eq!(answers(&mut alone), expected);
}

#[test]
fn rows_beside_aborted_ones_are_those_of_one_device() {
    let mut one = load_with(&config(1), None).unwrap();
    let works = rows(&one.input_processor());
    let (expected, _) = aborts::run(&mut one, &works, None);
    let mut num_aborted = 0;
    for seed in 1..4 {
        let mut staged = several(&in_stages(config(1), 2), Arc::new(load_with));
        num_aborted += aborts::check(&mut staged, &works, &expected, seed);
    }
    assert!(num_aborted > 5, "{num_aborted} aborted");
}

#[test]
fn rows_of_adapters_are_those_of_one_device() {
    let folder = tempfile::tempdir().unwrap();
    let model = testdata(ADAPTED);
    let few = Made { rank: 3, seed: 2, modules: &["v_proj", "down_proj"], b: 0.6 };
    let all = Made { rank: 8, seed: 1, modules: &[], b: 0.3 };
    let modules =
        vec![make(folder.path(), "all", &model, all), make(folder.path(), "few", &model, few)];
    let lora = LoraConfig { modules: modules.clone(), ..LoraConfig::default() };
    let mut adapted = EngineConfig { lora, ..of_adapters(1) };
    adapted.scheduler.max_loras = 1;
    let merged = LoraConfig { merged: Some(modules[0].clone()), ..LoraConfig::default() };
    let merged = EngineConfig { lora: merged, ..of_adapters(1) };
    let mut one = load_with(&adapted, None).unwrap();
    let rows_of = |runner: &Runner| adapted_rows(&runner.input_processor());
    let rows = rows_of(&one);
    let expected = answers_of(&mut one, rows);
    let mut staged = several(&in_stages(adapted, 2), Arc::new(load_with));
    let rows = rows_of(&staged);
    assert_eq!(answers_of(&mut staged, rows), expected);
    assert!(staged.stats().num_lora_loads >= 2, "{:?}", staged.stats());
    let expected = answers(&mut load_with(&merged, None).unwrap());
    assert_eq!(answers(&mut several(&in_stages(merged, 2), Arc::new(load_with))), expected);
}

#[test]
fn rows_that_are_guessed_at_are_those_of_one_device_without_guesses() {
    let expected = answers(&mut load_with(&config(1), None).unwrap());
    let speculation = |method| {
        Some(SpeculationConfig {
            method,
            num_speculative_tokens: 4,
            max_step_tokens: Some(128),
            paced: false,
        })
    };
    let ngram = speculation(SpeculationMethod::Ngram { min: 1, max: 3 });
    let guessed = EngineConfig { speculation: ngram, ..config(1) };
    let mut staged = several(&in_stages(guessed, 2), Arc::new(load_with));
    assert_eq!(answers(&mut staged), expected);
    assert!(staged.stats().num_draft_tokens > 0);
    let model_dir = pooled::testdata("golden/llama2");
    let draft = speculation(SpeculationMethod::DraftModel { model_dir });
    let text = refusal(&in_stages(EngineConfig { speculation: draft, ..config(1) }, 2));
    assert!(text.contains("pipeline parallelism is not supported with a draft model"), "{text}");
}

#[test]
fn stages_that_cannot_be_are_refused() {
    let text = refusal(&in_stages(config(1), 60));
    assert!(text.contains("stages at most") && text.contains("pipeline_parallel_size"), "{text}");
    let mut few_threads = in_stages(config(1), 2);
    few_threads.parallel.num_threads = Some(1);
    let text = refusal(&few_threads);
    assert!(text.contains("there are 1 threads to share out"), "{text}");
    // A stage that fails is named, and no other waits for it.
    let mut no_room = in_stages(config(1), 2);
    no_room.cache.num_blocks = Some(0);
    let text = refusal(&no_room);
    assert!(text.contains("engine 0") && text.contains("stage 0"), "{text}");
}

/// What the golden prompts come to, each tokens and bits of logprobs, those of the prompt too.
fn of_prompts(runner: &mut Runner, prompts: &[GoldenPrompt]) -> BTreeMap<u64, String> {
    let processor = runner.input_processor();
    for work in prompts_of(&processor, prompts) {
        runner.add_request(work);
    }
    let mut found = BTreeMap::new();
    while runner.has_unfinished_requests() {
        for answer in runner.step().unwrap_or_else(|error| panic!("{error}")) {
            let Answer::Generate(output) = answer else { panic!("it completes") };
            let completion = &output.outputs[0];
            assert!(completion.error.is_none(), "{:?}", completion.error);
            let of_prompt = output.prompt_logprobs.iter().flatten().flatten();
            let logprobs = of_prompt.chain(completion.logprobs.iter().flatten());
            let bits: Vec<_> =
                logprobs.map(|at| (at.token.token_id, at.token.logprob.to_bits())).collect();
            found.insert(output.request_id, format!("{bits:?}"));
        }
    }
    assert_eq!(found.len(), 2 * prompts.len());
    found
}

/// Each prompt greedily, and once more by chance.
fn prompts_of(processor: &InputProcessor, prompts: &[GoldenPrompt]) -> Vec<Work> {
    let ids = (0..2).flat_map(|_| prompts).map(|prompt| prompt.prompt_token_ids.clone());
    let work = |(index, ids): (usize, Vec<u32>)| {
        let is_greedy = index < prompts.len();
        let params = SamplingParams {
            temperature: if is_greedy { 0.0 } else { 0.8 },
            max_tokens: Some(6),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(1)),
            prompt_logprobs: is_greedy.then_some(NumLogprobs::Top(1)),
            ..SamplingParams::default()
        };
        let (id, prompt) = (index as u64, Prompt::TokenIds(ids));
        Work::Generate(processor.process(id, prompt, params, RowKey(id)).unwrap())
    };
    ids.enumerate().map(work).collect()
}

/// Models that no layer of parts from those before it.
const WHOLE: &[&str] = &["gemma3n_wrapped", "gemma4_e2b", "gemma4_unified_text", "glm_moe_dsa"];

#[test]
fn every_golden_model_in_stages_is_the_model() {
    let mut whole = Vec::new();
    for (index, folder) in folders().iter().enumerate() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let golden: Golden = pooled::golden(folder);
        let mut one = pooled::config(folder.clone(), (4, 24, 3));
        one.cache.num_blocks = Some(40);
        let summary = ModelSummary::read(&one.model).unwrap();
        let most = (1..=3).rfind(|&count| summary.stages(count).is_ok()).unwrap();
        if most == 1 {
            whole.push(name);
            continue;
        }
        // Most have stages of one layer, some have larger ones.
        let num_stages = if index % 3 == 0 { 2 } else { most };
        println!("{name} in {num_stages} stages");
        let expected = of_prompts(&mut load_with(&one, None).unwrap(), &golden.prompts);
        let mut staged = several(&in_stages(one, num_stages), Arc::new(load_with));
        let got = of_prompts(&mut staged, &golden.prompts);
        assert_eq!(got, expected, "{name} in {num_stages} stages");
    }
    assert_eq!(whole, WHOLE, "models that cannot be parted");
}
