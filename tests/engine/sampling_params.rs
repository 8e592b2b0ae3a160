//! `SamplingParams`: vLLM's words for values out of range, and the values that take effect.

use std::sync::Arc;

use vllm_batch::engine::api::request::{
    BeamSearchParams, Constraint, NumLogprobs, RequestError, SamplingParams, StructuredOutputs,
};
use vllm_batch::engine::api::sampling_params::{DEFAULT_MAX_LOGPROBS, UNLIMITED_LOGPROBS};

fn message(change: impl FnOnce(&mut SamplingParams)) -> String {
    let mut params = SamplingParams::default();
    change(&mut params);
    match params.verify(100, DEFAULT_MAX_LOGPROBS) {
        Ok(()) => "ok".to_owned(),
        Err(RequestError { code, message }) => {
            assert_eq!(code, "invalid_parameter");
            message
        }
    }
}

#[test]
fn sampling_params_refuse_values_in_vllms_words() {
    type Change = fn(&mut SamplingParams);
    let table: &[(Change, &str)] = &[
        (|_| {}, "ok"),
        (|p| p.n = 0, "n must be at least 1, got 0."),
        (|p| p.n = 16_385, "n must be at most 16384, got 16385."),
        (|p| (p.n, p.temperature) = (2, 0.0), "n must be 1 when using greedy sampling, got 2."),
        (|p| (p.n, p.temperature) = (2, 1e-6), "ok"),
        (|p| p.presence_penalty = 2.5, "presence_penalty must be in [-2, 2], got 2.5."),
        (|p| p.presence_penalty = -2.0, "ok"),
        (|p| p.frequency_penalty = f32::NAN, "frequency_penalty must be in [-2, 2], got nan."),
        (
            |p| p.repetition_penalty = f32::INFINITY,
            "repetition_penalty must be a finite number, got inf.",
        ),
        (|p| p.repetition_penalty = 0.0, "repetition_penalty must be greater than zero, got 0.0."),
        (|p| p.temperature = f32::NAN, "temperature must be a finite number, got nan."),
        (|p| p.temperature = -1e-7, "temperature must be non-negative, got -1e-07."),
        (|p| p.temperature = 2.1, "temperature must be in [0, 2], got 2.1."),
        (|p| p.top_p = 0.0, "top_p must be in (0, 1], got 0.0."),
        (|p| p.top_p = 1e20, "top_p must be in (0, 1], got 1e+20."),
        (|p| (p.top_p, p.temperature) = (3.0, 0.0), "top_p must be in (0, 1], got 3.0."),
        (|p| p.min_p = 1.5, "min_p must be in [0, 1], got 1.5."),
        (
            |p| (p.max_tokens, p.min_tokens) = (Some(4), 5),
            "min_tokens must be less than or equal to max_tokens=4, got 5.",
        ),
        (|p| (p.max_tokens, p.min_tokens) = (None, 500), "ok"),
        (|p| p.stop = vec!["a".into(), String::new()], "stop cannot contain an empty string."),
        (
            |p| p.bad_words = vec!["a".into(), String::new()],
            "bad_words cannot contain an empty string. Got bad_words=['a', '']",
        ),
        (
            |p| p.logprobs = Some(NumLogprobs::Top(21)),
            "Requested sample logprobs of 21, which is greater than max allowed: 20",
        ),
        (
            |p| p.prompt_logprobs = Some(NumLogprobs::All),
            "Requested prompt logprobs of 100, which is greater than max allowed: 20",
        ),
        (
            |p| p.stop_token_ids = vec![100, 3, 101],
            "token_id(s) [100, 101] in stop_token_ids contain out-of-vocab token ids. \
             Vocabulary size: 100",
        ),
        (
            |p| p.logit_bias = vec![(100, 1.0)],
            "token_id(s) [100] in logit_bias contain out-of-vocab token ids. Vocabulary size: 100",
        ),
        (
            |p| p.logit_bias = vec![(7, f32::NAN)],
            "logit_bias of token 7 must be a number, got nan.",
        ),
        (|p| p.allowed_token_ids = Some(vec![]), "allowed_token_ids is not None and empty!"),
        (
            |p| p.allowed_token_ids = Some(vec![1, 100]),
            "allowed_token_ids contains out-of-vocab token id!",
        ),
        (
            |p| p.truncate_prompt_tokens = Some(0),
            "truncate_prompt_tokens must be an integer >= 1 or -1, got 0.",
        ),
        (|p| p.truncate_prompt_tokens = Some(-1), "ok"),
    ];
    for (change, want) in table {
        assert_eq!(message(change), *want);
    }
    let everything = SamplingParams { logprobs: Some(NumLogprobs::All), ..Default::default() };
    assert_eq!(everything.verify(100, UNLIMITED_LOGPROBS), Ok(()));
}

#[test]
fn what_is_asked_of_generated_tokens_is_refused_where_there_are_none() {
    let scored = |change: fn(&mut SamplingParams)| {
        message(|p| {
            (p.max_tokens, p.prompt_logprobs) = (Some(0), Some(NumLogprobs::Top(0)));
            change(p);
        })
    };
    assert_eq!(scored(|p| p.prompt_logprobs_last = Some(1)), "ok");
    let bare = message(|p| p.max_tokens = Some(0));
    assert_eq!(bare, "max_tokens must be at least 1, got 0 (0 goes with prompt_logprobs).");
    let bare = message(|p| p.prompt_logprobs_last = Some(1));
    assert_eq!(bare, "prompt_logprobs_last goes with prompt_logprobs.");
    type Change = (&'static str, fn(&mut SamplingParams));
    let table: &[Change] = &[
        ("n", |p| p.n = 2),
        ("min_tokens", |p| p.min_tokens = 1),
        ("logprobs", |p| p.logprobs = Some(NumLogprobs::Top(0))),
        ("thinking_token_budget", |p| p.thinking_token_budget = Some(3)),
        ("structured_outputs", |p| {
            let json = StructuredOutputs::new(Constraint::JsonObject);
            p.structured_outputs = Some(Arc::new(json));
        }),
    ];
    for (name, change) in table {
        let refused = format!("{name} does not go with max_tokens=0; leave it out");
        assert_eq!(scored(*change), refused);
    }
}

#[test]
fn what_does_not_go_with_beam_search_is_refused_by_name() {
    let beams = |change: fn(&mut SamplingParams)| {
        message(|p| {
            (p.n, p.temperature, p.beam_search) = (4, 0.0, Some(BeamSearchParams::of_width(4)));
            change(p);
        })
    };
    assert_eq!(beams(|_| {}), "ok");
    assert_eq!(beams(|p| (p.top_p, p.seed) = (0.5, Some(3))), "ok");
    assert_eq!(beams(|p| p.n = 3), "n must be the beam width, got n=3 and beam_width=4.");
    let infinite = beams(|p| p.beam_search.as_mut().unwrap().length_penalty = f64::INFINITY);
    assert_eq!(infinite, "length_penalty must be a finite number, got inf.");
    let json = || Arc::new(StructuredOutputs::new(Constraint::JsonObject));
    type Change = (&'static str, fn(&mut SamplingParams));
    let table: &[Change] = &[
        ("stop", |p| p.stop = vec!["a".into()]),
        ("stop_token_ids", |p| p.stop_token_ids = vec![1]),
        ("min_tokens", |p| p.min_tokens = 1),
        ("presence_penalty", |p| p.presence_penalty = 0.5),
        ("frequency_penalty", |p| p.frequency_penalty = 0.5),
        ("repetition_penalty", |p| p.repetition_penalty = 1.1),
        ("logit_bias", |p| p.logit_bias = vec![(1, 1.0)]),
        ("allowed_token_ids", |p| p.allowed_token_ids = Some(vec![1])),
        ("bad_words", |p| p.bad_words = vec!["a".into()]),
        ("prompt_logprobs", |p| p.prompt_logprobs = Some(NumLogprobs::Top(0))),
        ("thinking_token_budget", |p| p.thinking_token_budget = Some(3)),
    ];
    for (name, change) in table {
        let refused = beams(*change);
        assert!(refused.starts_with(&format!("{name} ")), "{refused}");
        assert!(refused.contains("does not go with beam search"), "{refused}");
    }
    let constrained = message(|p| {
        (p.beam_search, p.structured_outputs) = (Some(BeamSearchParams::of_width(1)), Some(json()));
    });
    assert_eq!(constrained, "structured_outputs does not go with beam search; leave it out");
}

#[test]
fn sampling_params_normalize_as_vllm() {
    let raised = SamplingParams { temperature: 1e-6, top_k: 5, ..Default::default() }.normalized();
    assert_eq!((raised.temperature, raised.top_k, raised.is_greedy()), (0.01, 5, false));
    let greedy = SamplingParams {
        temperature: 0.0,
        top_p: 0.5,
        top_k: 5,
        min_p: 0.1,
        logit_bias: vec![(1, 1e9), (2, f32::NEG_INFINITY), (3, 4.0)],
        stop_token_ids: vec![3, 1, 3],
        bad_words: vec!["b".into(), "a".into(), "b".into()],
        ..Default::default()
    }
    .normalized();
    assert!(greedy.is_greedy());
    assert_eq!((greedy.top_p, greedy.top_k, greedy.min_p), (1.0, 0, 0.0));
    assert_eq!(greedy.logit_bias, [(1, 100.0), (2, -100.0), (3, 4.0)]);
    assert_eq!(greedy.stop_token_ids, [3, 1]);
    assert_eq!(greedy.bad_words, ["b", "a"]);
}
