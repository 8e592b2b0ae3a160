//! Fields that ask for a feature of vLLM or OpenAI that is not there: the row is refused, not
//! answered as if they were not there. Fields that nobody knows are the user's own, and pass.

use serde_json::{Value, json};

use crate::cli::input::fields::JsonFields;
use crate::cli::input::row_error::{RowError, code};

/// Where a field stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a row that is no batch request, among the user's own fields.
    Row,
    /// In the body of a chat request of OpenAI's.
    Chat,
    /// In the body of a completions request of OpenAI's.
    Completions,
    /// In the `params` of a request of Anthropic's.
    Anthropic,
}

use Place::{Anthropic, Chat, Completions, Row};

/// Whether a value asks for nothing. null never asks.
type AsksNothing = fn(&Value) -> bool;

const EVERYWHERE: &[Place] = &[Row, Chat, Completions, Anthropic];
const OPENAI: &[Place] = &[Chat, Completions];

/// Every field that asks for what is not there: its name, where it counts, and what of it asks for
/// nothing. Among the fields of a [`Row`] may be a user's own of the same name, so there a name or
/// its value must be unmistakable.
const FEATURES: &[(&str, &[Place], AsksNothing)] = &[
    // Answers of a given form.
    ("guided_json", EVERYWHERE, never),
    ("guided_regex", EVERYWHERE, never),
    ("guided_choice", EVERYWHERE, never),
    ("guided_grammar", EVERYWHERE, never),
    ("guided_decoding", EVERYWHERE, is_nothing),
    ("verbosity", &[Chat], |value| value == "medium"),
    // Tools.
    ("tools", &[Completions], is_nothing),
    ("tool_choice", &[Completions], is_no_choice),
    ("functions", OPENAI, is_nothing),
    ("functions", &[Row], is_no_list_of_objects),
    ("function_call", OPENAI, is_no_choice),
    ("web_search_options", EVERYWHERE, never),
    ("mcp_servers", EVERYWHERE, is_nothing),
    ("container", &[Anthropic], never),
    // Pictures and sound.
    ("images", &[Row, Chat, Completions], |value| value.is_string() || is_nothing(value)),
    ("multi_modal_data", EVERYWHERE, is_nothing),
    ("mm_processor_kwargs", EVERYWHERE, is_nothing),
    ("modalities", EVERYWHERE, |value| value.is_string() || *value == json!(["text"])),
    ("audio", OPENAI, never),
    ("audio", &[Row], |value| value["voice"].is_null()),
    ("prompt_embeds", EVERYWHERE, is_nothing),
    // Adapters.
    ("lora_request", EVERYWHERE, is_nothing),
    // How tokens are chosen.
    ("best_of", &[Row, Chat, Anthropic], |value| *value == 1),
    ("logits_processors", EVERYWHERE, is_nothing),
    ("repetition_detection", EVERYWHERE, is_nothing),
    ("extra_args", EVERYWHERE, |value| !value.is_object() || is_nothing(value)),
    ("vllm_xargs", EVERYWHERE, is_nothing),
    ("n", &[Anthropic], |value| *value == 1),
    ("use_beam_search", &[Anthropic], is_nothing),
    ("beam_width", &[Anthropic], is_nothing),
    // What an answer shows.
    ("stream", &[Chat, Completions, Anthropic], is_nothing),
    ("echo", OPENAI, is_nothing),
    ("echo", &[Row], |value| *value != true),
    ("suffix", &[Completions], is_nothing),
    ("detokenize", EVERYWHERE, |value| *value != false),
    ("spaces_between_special_tokens", EVERYWHERE, |value| *value == true),
    ("return_token_ids", EVERYWHERE, is_nothing),
    ("return_tokens_as_token_ids", EVERYWHERE, is_nothing),
    ("logprob_token_ids", EVERYWHERE, is_nothing),
    ("prompt_logprob_token_ids", EVERYWHERE, is_nothing),
    ("flat_logprobs", EVERYWHERE, is_nothing),
    ("logprobs", &[Anthropic], is_nothing),
    ("prompt_logprobs", &[Anthropic], is_nothing),
    // How the prompt is made.
    ("chat_template", EVERYWHERE, is_nothing),
    ("add_special_tokens", &[Chat], is_nothing),
    ("add_special_tokens", &[Row, Completions], |value| *value == true),
    ("tokenization_kwargs", EVERYWHERE, is_nothing),
];

/// Refuses a row with a field that is not supported.
pub(super) fn check(fields: &JsonFields, place: Place, line: u64) -> Result<(), RowError> {
    for &(name, places, asks_nothing) in FEATURES {
        if !places.contains(&place) {
            continue;
        }
        let Some(json) = fields.get(name) else { continue };
        // A number or text that serde_json cannot hold asks for something.
        let value: Result<Value, _> = serde_json::from_str(json);
        if !value.is_ok_and(|value| value.is_null() || asks_nothing(&value)) {
            return Err(error(name, line));
        }
    }
    Ok(())
}

/// Refuses fields of a request's body that would change `what`: their names, each with the values
/// that ask for nothing.
pub(super) fn check_body<'a>(
    mut refused: impl Iterator<Item = &'a (&'static str, &'a [&'a str])>,
    (body, line): (&JsonFields, u64),
    what: &str,
) -> Result<(), RowError> {
    let is_asked = |(name, nothing): &&(&str, &[&str])| {
        body.get(name).is_some_and(|json| json != "null" && !nothing.contains(&json))
    };
    let Some((name, _)) = refused.find(is_asked) else { return Ok(()) };
    let message = format!("{name}: not supported: the {what} would not be what it asks for");
    let error = RowError::new(code::UNSUPPORTED_FIELD, line, message).of_param(name);
    Err(error.with_help("leave the field out"))
}

/// Whether a field would have a meaning if its feature were there.
pub(super) fn is_known(name: &str) -> bool {
    FEATURES.iter().any(|(known, ..)| *known == name)
}

/// The error of a field that is not supported.
pub(super) fn error(name: &'static str, line: u64) -> RowError {
    let why = match name {
        "stream" => "a row is answered whole",
        _ => "the answer would not be what it asks for",
    };
    let message = format!("{name}: not supported: {why}");
    let help = match name {
        "lora_request" => "name an adapter of --lora-modules: in `lora`, of a request in `model`",
        _ => "leave the field out; a field of your own needs another name",
    };
    RowError::new(code::UNSUPPORTED_FIELD, line, message).of_param(name).with_help(help)
}

fn never(_: &Value) -> bool {
    false
}

/// What is off, or empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Bool(is_on) => !is_on,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn is_no_choice(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn is_no_list_of_objects(value: &Value) -> bool {
    !value.get(0).is_some_and(Value::is_object)
}
