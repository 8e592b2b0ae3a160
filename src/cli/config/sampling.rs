//! Sampling flags as parameters.

use crate::cli::args::{SamplingArgs, TruncationSideArg};
use crate::engine::request::{NumLogprobs, SamplingParams, TruncationSide};

/// The flags over the model's defaults.
pub(super) fn overlay(args: &SamplingArgs, base: SamplingParams) -> SamplingParams {
    let top = |number: i64| match number {
        ..0 => NumLogprobs::All,
        _ => NumLogprobs::Top(number as u32),
    };
    let text = |flag: &Vec<String>, base: Vec<String>| match flag.is_empty() {
        true => base,
        false => flag.clone(),
    };
    SamplingParams {
        n: args.n.unwrap_or(base.n),
        presence_penalty: args.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(base.frequency_penalty),
        repetition_penalty: args.repetition_penalty.unwrap_or(base.repetition_penalty),
        temperature: args.temperature.unwrap_or(base.temperature),
        top_p: args.top_p.unwrap_or(base.top_p),
        top_k: args.top_k.map_or(base.top_k, |k| k.max(0) as u32),
        min_p: args.min_p.unwrap_or(base.min_p),
        // `--seed` is the engine's: one seed for all rows would give equal prompts equal answers.
        seed: base.seed,
        stop: text(&args.stop, base.stop),
        stop_token_ids: args.stop_token_ids.clone().unwrap_or(base.stop_token_ids),
        ignore_eos: args.ignore_eos || base.ignore_eos,
        max_tokens: args.max_tokens.or(base.max_tokens),
        min_tokens: args.min_tokens.map_or(base.min_tokens, |n| n.min(u32::MAX as usize) as u32),
        logprobs: args.logprobs.map(top).or(base.logprobs),
        prompt_logprobs: args.prompt_logprobs.map(top).or(base.prompt_logprobs),
        skip_special_tokens: !args.no_skip_special_tokens && base.skip_special_tokens,
        include_stop_str_in_output: args.include_stop_str_in_output
            || base.include_stop_str_in_output,
        logit_bias: match args.logit_bias.is_empty() {
            true => base.logit_bias,
            false => args.logit_bias.clone(),
        },
        allowed_token_ids: args.allowed_token_ids.clone().or(base.allowed_token_ids),
        bad_words: text(&args.bad_words, base.bad_words),
        truncate_prompt_tokens: args.truncate_prompt_tokens.or(base.truncate_prompt_tokens),
        truncation_side: match args.truncation_side {
            None => base.truncation_side,
            Some(TruncationSideArg::Left) => TruncationSide::Left,
            Some(TruncationSideArg::Right) => TruncationSide::Right,
        },
    }
}
