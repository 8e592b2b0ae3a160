//! Sampling flags as parameters: laid over a model's defaults; and what answers must match, where a
//! flag says it.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::args::{FileOrText, SamplingArgs, StructuredOutputsArgs, TruncationSideArg};
use vllm_batch_api::request::{
    BeamSearchParams, NumLogprobs, SamplingParams, SpeechParams, SpeechTask, StructuredOutputs,
    TruncationSide,
};
use vllm_batch_dataset::terminal::error::{CliError, Excerpt, Location};

/// What the flags say that answers must match.
pub(super) fn structured_outputs(
    args: &StructuredOutputsArgs,
) -> Result<Option<Arc<StructuredOutputs>>, CliError> {
    refuse_list(&args.choice)?;
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        fields.extend(value.map(|value| (name.to_owned(), value)));
    };
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let read = |read: &Option<FileOrText>| read.as_ref().map(|read| Value::from(&*read.text));
    let switch = |is_on: bool| is_on.then_some(Value::Bool(true));
    put("json", read(&args.json));
    put("regex", text(&args.regex));
    put("choice", (!args.choice.is_empty()).then(|| args.choice.clone().into()));
    put("grammar", read(&args.grammar));
    put("json_object", switch(args.json_object));
    put("structural_tag", read(&args.structural_tag));
    put("whitespace_pattern", text(&args.whitespace_pattern));
    put("disable_any_whitespace", switch(args.disable_any_whitespace));
    put("disable_additional_properties", switch(args.disable_additional_properties));
    put("strict", switch(args.strict));
    if fields.is_empty() {
        return Ok(None);
    }
    [&args.json, &args.structural_tag].into_iter().flatten().try_for_each(check_json)?;
    let outputs = StructuredOutputs::from_json(&Value::Object(fields));
    outputs.map(|outputs| Some(Arc::new(outputs))).map_err(|what| {
        let message = format!("{}: {what}", args.place());
        CliError::refused("structured_outputs", message)
    })
}

/// Refuses one choice that looks like several: every answer would be the whole list.
fn refuse_list(choices: &[String]) -> Result<(), CliError> {
    let [only] = choices else { return Ok(()) };
    let Some((first, rest)) = only.split_once(',') else { return Ok(()) };
    let message = format!("--structured-outputs.choice: {only:?} is one choice");
    let flag = |choice: &str| format!("--structured-outputs.choice '{}'", choice.trim());
    let flags: Vec<_> = std::iter::once(first).chain(rest.split(',')).map(flag).collect();
    Err(CliError::refused("structured_outputs", message)
        .help(format!("repeat the flag: {}", flags.join(" "))))
}

/// Refuses a file that is not JSON, with the place of what is wrong.
fn check_json(read: &FileOrText) -> Result<(), CliError> {
    let FileOrText { text, file: Some(file) } = read else { return Ok(()) };
    let Err(error) = serde_json::from_str::<IgnoredAny>(text) else { return Ok(()) };
    let (line, column) = (error.line().max(1), error.column().max(1));
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or_default();
    let of_line = text.lines().nth(line - 1).unwrap_or_default();
    let location = Location {
        file: file.clone(),
        line: line as u64,
        column: Some(column as u64),
        excerpt: Some(Excerpt::around(of_line, column - 1)),
    };
    let error = CliError::refused("structured_outputs", format!("the file is not JSON: {said}"));
    Err(error.at(location))
}

/// How recordings are written down.
fn speech(args: &SamplingArgs) -> SpeechParams {
    SpeechParams {
        language: args.language.clone(),
        task: match args.translate {
            true => SpeechTask::Translate,
            false => SpeechTask::Transcribe,
        },
        return_timestamps: args.return_timestamps,
    }
}

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
    let beam_search = args.beam_width.map(|beam_width| BeamSearchParams {
        length_penalty: args.length_penalty.unwrap_or(BeamSearchParams::DEFAULT_LENGTH_PENALTY),
        ..BeamSearchParams::of_width(beam_width)
    });
    SamplingParams {
        n: args.n.or(args.beam_width).unwrap_or(base.n),
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
        prompt_logprobs_last: args.prompt_logprobs_last.or(base.prompt_logprobs_last),
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
        beam_search: beam_search.or(base.beam_search),
        output_kind: base.output_kind,
        structured_outputs: base.structured_outputs,
        thinking_token_budget: args.thinking_token_budget.or(base.thinking_token_budget),
        speech: speech(args),
    }
}
