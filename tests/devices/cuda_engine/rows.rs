//! Sixteen rows: mixed lengths, some with a shared prefix, every way to sample.

use std::sync::Arc;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    BeamSearchParams, Constraint, NumLogprobs, SamplingParams, StructuredOutputs,
};

const WORDS: [&str; 8] = ["the", "sum", "of", "red", "and", "seven", "bird", "is"];
const MAX_TOKENS: u32 = 7;

fn words(seed: usize, num_words: usize) -> String {
    let word = |index: usize| WORDS[(seed * 5 + index * index * 3 + index) % WORDS.len()];
    (0..num_words).map(word).collect::<Vec<_>>().join(" ")
}

fn prompt(index: usize) -> Prompt {
    let own = words(index, 1 + index * 7 % 19);
    let text = if index.is_multiple_of(3) { format!("{} {own}", words(99, 16)) } else { own };
    Prompt::Text(text)
}

fn regex(text: &str) -> Constraint {
    Constraint::Regex(text.to_owned())
}

fn bound(constraint: Constraint, params: SamplingParams) -> SamplingParams {
    let structured_outputs = Some(Arc::new(StructuredOutputs::new(constraint)));
    SamplingParams { structured_outputs, ..params }
}

/// A row per way to sample.
pub fn rows() -> Vec<(Prompt, SamplingParams)> {
    let base = SamplingParams {
        max_tokens: Some(MAX_TOKENS),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let greedy = SamplingParams { temperature: 0.0, ..base.clone() };
    let top = |num: u32| Some(NumLogprobs::Top(num));
    let ways = vec![
        SamplingParams { prompt_logprobs: top(1), logprobs: top(2), ..greedy.clone() },
        base.clone(),
        SamplingParams { temperature: 0.8, top_p: 0.9, ..base.clone() },
        SamplingParams { temperature: 1.2, top_k: 20, ..base.clone() },
        SamplingParams { temperature: 0.7, min_p: 0.05, seed: Some(7), ..base.clone() },
        SamplingParams { n: 2, top_p: 0.95, logprobs: top(0), ..base.clone() },
        greedy.clone(),
        SamplingParams { repetition_penalty: 1.3, ..greedy.clone() },
        SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.4,
            logprobs: top(0),
            ..base.clone()
        },
        SamplingParams {
            allowed_token_ids: Some((20..60).collect()),
            logit_bias: vec![(25, 1.5), (30, -4.0)],
            ..base.clone()
        },
        SamplingParams {
            min_tokens: 6,
            ignore_eos: false,
            stop_token_ids: (5..90).collect(),
            ..base.clone()
        },
        SamplingParams {
            bad_words: vec!["the".to_owned(), "e".to_owned()],
            top_k: 50,
            ..base.clone()
        },
        SamplingParams {
            n: 3,
            beam_search: Some(BeamSearchParams::of_width(3)),
            logprobs: top(1),
            ..base.clone()
        },
        SamplingParams { n: 2, logprobs: top(2), ..bound(regex("[ab]{2,4}"), base.clone()) },
        // Its tokens are forced; what comes after its end is not.
        bound(Constraint::Choice(vec!["is".to_owned()]), base),
        SamplingParams { logprobs: top(0), ..bound(Constraint::JsonObject, greedy) },
    ];
    ways.into_iter().enumerate().map(|(index, params)| (prompt(index), params)).collect()
}
