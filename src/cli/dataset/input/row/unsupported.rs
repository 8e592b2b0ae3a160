//! Fields that ask for a feature of vLLM or OpenAI that is not there: the row is refused, not
//! answered as if they were not there. Fields that nobody knows are the user's own, and pass.

use serde_json::{Value, json};

use super::own_images::flag;
use crate::input::fields::JsonFields;
use crate::input::media::{Named, nouns};
use crate::input::row_error::{RowError, code};

/// Where a field stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a row that is no batch request, among the user's own fields.
    Row,
    /// In the body of a chat request of OpenAI's.
    Chat,
    /// In the body of a completions request of OpenAI's.
    Completions,
    /// In the body of a request of OpenAI's for a response.
    Responses,
    /// In the body of a request of OpenAI's for a transcript.
    Recordings,
    /// In the body of a request for vectors.
    Embeddings,
    /// In the body of a request for scores or a ranking.
    Score,
    /// In the `params` of a request of Anthropic's.
    Anthropic,
}

use Place::{Anthropic, Chat, Completions, Embeddings, Recordings, Responses, Row, Score};

/// Whether a value asks for nothing. null never asks.
type AsksNothing = fn(&Value) -> bool;

const EVERYWHERE: &[Place] = &[Row, Chat, Completions, Responses, Recordings, Anthropic];
const REQUESTS: &[Place] = &[Chat, Completions, Responses, Recordings, Anthropic];
/// Places whose images are parts of their messages.
const BODIES: &[Place] = &[Chat, Completions, Responses, Embeddings, Score, Anthropic];
const OPENAI: &[Place] = &[Chat, Completions, Responses];
/// Places with one answer, and no log-probabilities of a prompt.
const MESSAGES: &[Place] = &[Responses, Recordings, Anthropic];

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
    // Tools.
    ("tools", &[Completions], is_nothing),
    ("tool_choice", &[Completions], is_no_choice),
    ("functions", OPENAI, is_nothing),
    ("functions", &[Row], |value| is_no_list_of_objects(value) || value[0]["name"].is_string()),
    ("function_call", OPENAI, is_no_choice),
    ("web_search_options", EVERYWHERE, never),
    ("mcp_servers", EVERYWHERE, is_nothing),
    ("container", &[Anthropic], never),
    ("context_management", MESSAGES, is_nothing),
    // Responses that were kept, and prompts.
    ("previous_response_id", &[Responses], never),
    ("conversation", &[Responses], never),
    ("prompt", &[Responses], never),
    ("background", &[Responses], is_nothing),
    ("truncation", &[Responses], |value| value == "disabled"),
    // They have another name there.
    ("max_tokens", &[Responses], never),
    ("max_completion_tokens", &[Responses], never),
    ("response_format", &[Responses], never),
    ("messages", &[Responses], never),
    // Pictures and sound.
    ("image", BODIES, is_nothing),
    ("images", BODIES, is_nothing),
    ("audios", BODIES, is_nothing),
    ("multi_modal_data", EVERYWHERE, is_nothing),
    ("mm_processor_kwargs", EVERYWHERE, is_nothing),
    ("mm_processor_kwargs", &[Embeddings, Score], is_nothing),
    ("modalities", EVERYWHERE, |value| value.is_string() || *value == json!(["text"])),
    ("audio", OPENAI, never),
    ("audio", &[Row], |value| value["voice"].is_null()),
    ("prompt_embeds", EVERYWHERE, is_nothing),
    // Adapters.
    ("lora_request", EVERYWHERE, is_nothing),
    // How tokens are chosen.
    ("best_of", &[Row, Chat, Responses, Anthropic], |value| *value == 1),
    ("logits_processors", EVERYWHERE, is_nothing),
    ("repetition_detection", EVERYWHERE, is_nothing),
    ("extra_args", EVERYWHERE, |value| !value.is_object() || is_nothing(value)),
    ("vllm_xargs", EVERYWHERE, is_nothing),
    ("n", MESSAGES, |value| *value == 1),
    ("use_beam_search", MESSAGES, is_nothing),
    ("beam_width", MESSAGES, is_nothing),
    // What an answer shows.
    ("stream", REQUESTS, is_nothing),
    ("echo", &[Chat, Responses], is_nothing),
    ("echo", &[Row], |value| *value != true),
    ("suffix", OPENAI, is_nothing),
    ("detokenize", EVERYWHERE, |value| *value != false),
    ("spaces_between_special_tokens", EVERYWHERE, |value| *value == true),
    ("return_token_ids", EVERYWHERE, is_nothing),
    ("return_tokens_as_token_ids", EVERYWHERE, is_nothing),
    ("logprob_token_ids", EVERYWHERE, is_nothing),
    ("prompt_logprob_token_ids", EVERYWHERE, is_nothing),
    ("flat_logprobs", EVERYWHERE, is_nothing),
    ("logprobs", MESSAGES, is_nothing),
    ("prompt_logprobs", MESSAGES, is_nothing),
    // Transcripts.
    ("file", &[Recordings], never),
    ("chunking_strategy", &[Recordings], |value| value == "auto"),
    ("include", &[Recordings], is_nothing),
    ("known_speaker_names", &[Recordings], is_nothing),
    ("known_speaker_references", &[Recordings], is_nothing),
    ("hotwords", &[Recordings], is_nothing),
    ("vad_filter", &[Recordings], is_nothing),
    ("to_language", &[Recordings], |value| value == "en"),
    // How the prompt is made.
    ("chat_template", EVERYWHERE, is_nothing),
    ("chat_template", &[Embeddings, Score], never),
    ("chat_template_kwargs", &[Embeddings, Score], is_nothing),
    ("embed_dtype", &[Embeddings], |value| value == "float32"),
    ("endianness", &[Embeddings], |value| value == "native" || value == "little"),
    ("normalize", &[Embeddings], never),
    ("activation", &[Score], never),
    ("softmax", &[Score], never),
    ("add_special_tokens", &[Chat, Responses, Anthropic], is_nothing),
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

/// The error of media where none can be used.
pub(super) fn media(medium: &Named, why: &str, line: u64) -> RowError {
    let (place, nouns, flag) = (&medium.place, nouns(medium.kind), flag(medium.kind));
    let message = format!("{place}: {nouns} are not supported {why}");
    RowError::new(code::UNSUPPORTED_FIELD, line, message).with_help(format!(
        "leave the {nouns} out; a field of your own is left alone with {flag} ''"
    ))
}

/// Whether a field of a place is looked at here.
pub(super) fn is_checked(name: &str, place: Place) -> bool {
    FEATURES.iter().any(|(known, places, _)| *known == name && places.contains(&place))
}

/// Whether a field would have a meaning if its feature were there.
pub(super) fn is_known(name: &str) -> bool {
    FEATURES.iter().any(|(known, ..)| *known == name)
}

/// The error of a field that is not supported.
pub(super) fn error(name: &'static str, line: u64) -> RowError {
    let why = match name {
        "stream" | "background" => "a row is answered whole",
        "functions" => "it is the older form of `tools`",
        "function_call" => "it is the older form of `tool_choice`",
        "messages" => "the request has an `input`",
        "file" => "a line holds no file",
        _ => "the answer would not be what it asks for",
    };
    let message = format!("{name}: not supported: {why}");
    let help = match name {
        "functions" => "give `tools`, a list of {\"type\": \"function\", \"function\": {...}}",
        "function_call" => "give `tool_choice`",
        "max_tokens" | "max_completion_tokens" => "give `max_output_tokens`",
        "response_format" => "give `text.format`",
        "file" => "give `file_url`: a URL, a data: URI or a path",
        "normalize" | "activation" | "softmax" => "give `use_activation`",
        "lora_request" => "name an adapter of --lora-modules: in `lora`, of a request in `model`",
        _ => "leave the field out; a field of your own needs another name",
    };
    RowError::new(code::UNSUPPORTED_FIELD, line, message).of_param(name).with_help(help)
}

fn never(_: &Value) -> bool {
    false
}

/// Whether a value is off, or empty.
pub(super) fn is_nothing(value: &Value) -> bool {
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
