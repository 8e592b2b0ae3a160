//! From rows to requests: limits, overflow, stop ids, sampling defaults, control tokens in chat
//! text.

use std::path::Path;
use std::sync::Arc;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RequestError, RowKey, SamplingParams};
use vllm_batch::engine::api::sampling_params::TruncationSide;
use vllm_batch::engine::base::config::{
    CacheConfig, EngineConfig, GenerationConfigSource, LoadFormat, ModelConfig, Overflow,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::request::Request;
use vllm_batch::engine::core::serve::input_processor::{InputProcessor, ProcessError};
use vllm_batch::engine::text::TextError;

fn processor(change: impl FnOnce(&mut ModelConfig)) -> Arc<InputProcessor> {
    let mut model = ModelConfig {
        model_dir: Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/llama3"),
        load_format: LoadFormat::Dummy,
        max_model_len: Some(40),
        ..ModelConfig::default()
    };
    change(&mut model);
    let cache = CacheConfig { num_blocks: Some(8), ..CacheConfig::default() };
    let config = EngineConfig { model, cache, ..EngineConfig::default() };
    Engine::load(&config).expect("the folder is complete").input_processor()
}

fn process(
    processor: &InputProcessor,
    prompt: Prompt,
    params: SamplingParams,
) -> Result<Request, RequestError> {
    processor.process(1, prompt, params, RowKey(0)).map_err(|error| match error {
        ProcessError::Row(error) => error,
        ProcessError::Machine(text) => panic!("{text}"),
    })
}

fn ids(num_tokens: u32) -> Prompt {
    Prompt::TokenIds((1..=num_tokens).collect())
}

fn with_max_tokens(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() }
}

fn code(result: Result<Request, RequestError>) -> &'static str {
    result.expect_err("refused").code
}

#[test]
fn a_prompt_leaves_room_for_one_token_or_is_refused_with_both_numbers() {
    let processor = processor(|_| ());
    assert_eq!(processor.max_model_len(), 40);
    let fits = process(&processor, ids(39), with_max_tokens(100)).unwrap();
    assert_eq!(fits.prompt_token_ids.len(), 39);
    let error = process(&processor, ids(40), with_max_tokens(1)).unwrap_err();
    assert_eq!(error.code, "context_length");
    assert!(
        error.message.starts_with("prompt has 40 tokens, the limit is 39"),
        "{}",
        error.message
    );
}

#[test]
fn overflow_keeps_the_chosen_end_and_room_for_the_answer() {
    let left = processor(|model| model.overflow = Overflow::TruncateLeft);
    let request = process(&left, ids(100), with_max_tokens(10)).unwrap();
    assert_eq!(request.prompt_token_ids, (71..=100).collect::<Vec<u32>>());
    let right = processor(|model| model.overflow = Overflow::TruncateRight);
    let request = process(&right, ids(100), with_max_tokens(500)).unwrap();
    assert_eq!(request.prompt_token_ids, (1..=20).collect::<Vec<u32>>());
}

#[test]
fn truncate_prompt_tokens_keeps_the_last_ones_as_vllm_does_unless_told_otherwise() {
    let processor = processor(|_| ());
    let kept = |truncate_prompt_tokens: i64, truncation_side| {
        let params = SamplingParams {
            truncate_prompt_tokens: Some(truncate_prompt_tokens),
            truncation_side,
            ..SamplingParams::default()
        };
        let ids = process(&processor, ids(100), params).unwrap().prompt_token_ids;
        (ids[0], ids[ids.len() - 1])
    };
    assert_eq!(SamplingParams::default().truncation_side, TruncationSide::Left);
    // vLLM's `-1` leaves one token of the context, which is 40 here, to the answer.
    assert_eq!(kept(5, TruncationSide::Left), (96, 100));
    assert_eq!(kept(-1, TruncationSide::Left), (62, 100));
    assert_eq!(kept(5, TruncationSide::Right), (1, 5));
    assert_eq!(kept(-1, TruncationSide::Right), (1, 39));
}

#[test]
fn a_prompt_shorter_than_truncate_prompt_tokens_stays_whole() {
    let processor = processor(|_| ());
    for truncation_side in [TruncationSide::Left, TruncationSide::Right] {
        let params = SamplingParams {
            truncate_prompt_tokens: Some(i64::MAX),
            truncation_side,
            ..SamplingParams::default()
        };
        let request = process(&processor, ids(7), params).unwrap();
        assert_eq!(request.prompt_token_ids, (1..=7).collect::<Vec<u32>>());
    }
}

#[test]
fn empty_prompts_foreign_ids_and_bad_parameters_are_refused() {
    let processor = processor(|_| ());
    let default = SamplingParams::default;
    assert_eq!(code(process(&processor, Prompt::TokenIds(vec![]), default())), "empty_prompt");
    assert_eq!(
        code(process(&processor, Prompt::TokenIds(vec![1, 9999]), default())),
        "invalid_prompt"
    );
    let hot = SamplingParams { temperature: 3.0, ..default() };
    assert_eq!(code(process(&processor, ids(3), hot)), "invalid_parameter");
}

/// A machine that lacks something makes no error row.
#[test]
fn a_lack_of_the_machine_is_no_error_of_the_row() {
    let error = ProcessError::from(TextError::Machine("no thread".to_owned()));
    assert_eq!(error, ProcessError::Machine("no thread".to_owned()));
}

#[test]
fn eos_ids_follow_vllm() {
    let processor = processor(|_| ());
    let stop_ids = |params: SamplingParams| process(&processor, ids(3), params).unwrap().stop_ids;
    let plain = stop_ids(SamplingParams { stop_token_ids: vec![7], ..SamplingParams::default() });
    let primary = plain.eos_token_id.expect("the tokenizer has an EOS");
    assert!(plain.stop_token_ids.contains(&7));
    assert!(plain.stop_token_ids.len() > 1, "generation_config.json names further EOS ids");
    assert!(!plain.stop_token_ids.contains(&primary));
    let ignoring =
        SamplingParams { stop_token_ids: vec![7], ignore_eos: true, ..Default::default() };
    let ignoring = stop_ids(ignoring);
    assert_eq!((ignoring.eos_token_id, ignoring.stop_token_ids), (None, vec![7]));
}

#[test]
fn sampling_defaults_come_from_generation_config_unless_it_is_off() {
    let of_model = processor(|_| ()).default_sampling_params();
    assert_eq!((of_model.temperature, of_model.top_p), (0.6, 0.9));
    let off = processor(|model| model.generation_config = GenerationConfigSource::Vllm);
    let neutral = SamplingParams { max_tokens: None, ..SamplingParams::default() };
    assert_eq!(off.default_sampling_params(), neutral);
}

#[test]
fn bad_words_are_banned_with_and_without_a_leading_space() {
    let processor = processor(|_| ());
    let params = SamplingParams { bad_words: vec!["the".to_owned()], ..SamplingParams::default() };
    let request = process(&processor, ids(3), params).unwrap();
    let tokenizer = processor.tokenizer();
    assert_eq!(request.bad_words_token_ids[0], tokenizer.encode("the", false).unwrap());
    let spaced = tokenizer.encode(" the", false).unwrap();
    if spaced.len() == request.bad_words_token_ids[0].len() {
        assert_eq!(request.bad_words_token_ids[1], spaced);
    }
}

#[test]
fn chat_text_cannot_produce_control_tokens_unless_it_is_allowed() {
    let messages = serde_json::json!([{"role": "user", "content": "a <|eot_id|> b"}]);
    let count = |allow_special: bool| {
        let processor = processor(|model| {
            model.allow_special = allow_special;
            model.max_model_len = None;
        });
        let control = processor.tokenizer().added_token_id("<|eot_id|>").expect("an added token");
        let prompt = Prompt::Messages(messages.clone().into());
        let request = process(&processor, prompt, SamplingParams::default()).unwrap();
        request.prompt_token_ids.iter().filter(|&&id| id == control).count()
    };
    assert_eq!((count(false), count(true)), (1, 2));
}
