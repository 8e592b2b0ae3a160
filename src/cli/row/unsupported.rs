//! Fields of batch requests that would change the answer and are not supported: the row is refused,
//! not answered as if they were not there. Fields that nobody knows are ignored.

use serde_json::{Value, json};

use crate::cli::fields::JsonFields;
use crate::cli::row_error::{RowError, code};

/// A field, and whether a value of it asks for nothing special. null never does.
pub(super) type Field = (&'static str, fn(&Value) -> bool);

/// Of both endpoints of OpenAI's, with vLLM's extras.
pub(super) const OF_OPENAI: &[Field] = &[
    ("stream", is_false),
    ("use_beam_search", is_false),
    ("logits_processors", is_empty),
    ("guided_json", never),
    ("guided_regex", never),
    ("guided_choice", never),
    ("guided_grammar", never),
    ("structured_outputs", is_empty),
    ("response_format", |value| value["type"] == "text"),
    ("prompt_embeds", never),
    ("return_token_ids", is_false),
    ("return_tokens_as_token_ids", is_false),
    ("vllm_xargs", is_empty),
    ("echo", is_false),
];

/// Of chat alone.
pub(super) const OF_CHAT: &[Field] = &[
    ("tools", is_empty),
    ("tool_choice", is_no_choice),
    ("functions", is_empty),
    ("function_call", is_no_choice),
    ("modalities", |value| *value == json!(["text"])),
    ("audio", never),
    ("web_search_options", never),
    ("reasoning_effort", never),
    ("verbosity", |value| value == "medium"),
    ("chat_template", never),
    ("chat_template_kwargs", is_empty),
    ("documents", is_empty),
    ("continue_final_message", is_false),
    ("add_generation_prompt", |value| *value == true),
    ("add_special_tokens", is_false),
];

/// Of completions alone.
pub(super) const OF_COMPLETIONS: &[Field] =
    &[("suffix", |value| value == ""), ("add_special_tokens", |value| *value == true)];

/// Of Anthropic's. `n` and log-probabilities have no place in its answers.
pub(super) const OF_ANTHROPIC: &[Field] = &[
    ("stream", is_false),
    ("tools", is_empty),
    ("tool_choice", |value| value["type"] == "auto" || value["type"] == "none"),
    ("thinking", |value| value["type"] == "disabled"),
    ("output_config", is_empty),
    ("output_format", never),
    ("mcp_servers", is_empty),
    ("container", never),
    ("n", |value| *value == 1),
    ("logprobs", is_false),
    ("prompt_logprobs", is_false),
];

/// Refuses a request with a field that is not supported.
pub(super) fn check(body: &JsonFields, fields: &[Field], line: u64) -> Result<(), RowError> {
    let asks = |(name, is_nothing): &&Field| {
        let value: Result<Value, _> = body.get(name).map_or(Ok(Value::Null), serde_json::from_str);
        !value.is_ok_and(|value| value.is_null() || is_nothing(&value))
    };
    match fields.iter().find(asks) {
        None => Ok(()),
        Some(&(name, _)) => Err(error(name, line)),
    }
}

/// The error of a field that is not supported.
pub(super) fn error(name: &'static str, line: u64) -> RowError {
    let why = match name {
        "stream" => "a row is answered whole",
        _ => "the answer would not be what it asks for",
    };
    let message = format!("{name}: not supported: {why}");
    RowError::new(code::UNSUPPORTED_PARAMETER, line, message)
        .of_param(name)
        .with_help("leave the field out")
}

fn never(_: &Value) -> bool {
    false
}

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn is_no_choice(value: &Value) -> bool {
    value == "none" || value == "auto"
}
