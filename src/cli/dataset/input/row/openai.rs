//! Rows of OpenAI's batch API: `custom_id`, `method`, `url`, `body`. The url decides of each row
//! what it asks for.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::asked::Asked;
use super::chat::{ChatDefaults, Origin};
use super::endpoint::Endpoint;
use super::near_miss::NearMisses;
use super::prompt::PromptBuilder;
use super::unsupported::{self, Place};
use super::{Task, compared, embeddings, messages, prompt, recordings, responses, unused};
use crate::input::batch_line::Echo;
use crate::input::fields::JsonFields;
use crate::input::overrides::{DefaultLength, Overrides};
use crate::input::row_error::{RowError, code};
use vllm_batch_api::prompt::Prompt;

/// Reads a request, in a run of this task.
pub(super) fn read(
    fields: &JsonFields,
    task: Task,
    builder: &PromptBuilder,
    names: &mut NearMisses,
    line: u64,
) -> Result<Asked, RowError> {
    check_custom_id(fields, line)?;
    check_method(fields, line)?;
    let url = url(fields, line)?;
    let endpoint = Endpoint::of_url(&url).filter(|endpoint| endpoint.is_served(task));
    let Some(endpoint) = endpoint else {
        let message = format!("Invalid URL (POST {url}): {}", Endpoint::served(task));
        return Err(RowError::new(code::UNSUPPORTED_URL, line, message).of_param("url"));
    };
    let body = object(fields, "body", line)?;
    let lora = builder.names().of_request(&body, line)?;
    let priority = priority(&body, builder.has_priorities, line)?;
    let asked = match endpoint {
        Endpoint::Chat => chat(&body, builder.chats(), line),
        Endpoint::Completions => completions(&body, line),
        Endpoint::Responses => responses::read(&body, builder.chats(), line),
        Endpoint::Transcriptions | Endpoint::Translations => {
            recordings::read(endpoint, &body, builder.chats(), line)
        }
        Endpoint::Embeddings | Endpoint::Classify => embeddings::read(&body, builder.chats(), line),
        Endpoint::Score | Endpoint::Rerank => {
            let options = (builder.variables(), builder.allows_empty());
            compared::read_request(endpoint, &body, options, line)
        }
    }?;
    let remarks = unused::remarks(&body, endpoint.place(), names, builder.own_params());
    let asked = Asked { lora, priority, ..asked }.with_remarks(remarks);
    Ok(asked.with_remarks(unused::of_line(fields)))
}

/// vLLM's `priority`, which needs a policy that regards it.
fn priority(body: &JsonFields, is_regarded: bool, line: u64) -> Result<i64, RowError> {
    let Some(json) = body.get("priority").filter(|json| *json != "null") else { return Ok(0) };
    match json.parse() {
        Ok(0) => Ok(0),
        Ok(priority) if is_regarded => Ok(priority),
        Ok(_) => {
            let message = "priority: not supported where rows are first come, first served";
            let error = RowError::new(code::UNSUPPORTED_FIELD, line, message);
            Err(error.of_param("priority").with_help("--scheduling-policy priority regards it"))
        }
        Err(_) => {
            let message = format!("priority: expected an integer, found {}", shown(json));
            Err(RowError::new(code::INVALID_PARAMETER, line, message).of_param("priority"))
        }
    }
}

/// A batch request has a name: nobody could find its answer without.
pub(super) fn check_custom_id(fields: &JsonFields, line: u64) -> Result<(), RowError> {
    match super::custom_id(fields) {
        Some(_) => Ok(()),
        None => {
            let message = match fields.get("custom_id") {
                None => "custom_id: missing".to_owned(),
                Some(json) => {
                    format!("custom_id: expected a string, found {}", super::shape::kind_name(json))
                }
            };
            Err(RowError::new(code::CUSTOM_ID, line, message).of_param("custom_id"))
        }
    }
}

pub(super) fn check_method(fields: &JsonFields, line: u64) -> Result<(), RowError> {
    match fields.get("method") {
        None | Some("null" | "\"POST\"") => Ok(()),
        Some(json) => {
            let message = format!("method: expected \"POST\", found {}", shown(json));
            Err(RowError::new(code::UNSUPPORTED_METHOD, line, message).of_param("method"))
        }
    }
}

pub(super) fn url(fields: &JsonFields, line: u64) -> Result<String, RowError> {
    let wrong = |what: String| RowError::new(code::ROW_SHAPE, line, what).of_param("url");
    match fields.get("url") {
        None => Err(wrong("url: missing".to_owned())),
        Some(json) if json.starts_with('"') => prompt::string("url", json, line),
        Some(json) => Err(wrong(format!("url: expected a string, found {}", shown(json)))),
    }
}

/// A field that is an object, which a fitting row has.
pub(super) fn object(
    fields: &JsonFields,
    name: &'static str,
    line: u64,
) -> Result<JsonFields, RowError> {
    let json = fields.get(name).expect("the shape fits");
    JsonFields::parse(json.to_owned(), line).map_err(|bad| bad.1)
}

fn chat(body: &JsonFields, chats: &ChatDefaults, line: u64) -> Result<Asked, RowError> {
    unsupported::check(body, Place::Chat, line)?;
    const NAME: &str = "body.messages";
    let messages = messages_of(body, NAME, None, line)?;
    let made = chats.chat(messages, body, Origin::OpenAi, (NAME, line))?;
    let overrides = Overrides::collect(body)
        .with("logprobs", chat_logprobs(body, line)?)
        .with_default_length(DefaultLength::Context);
    let overrides = match body.get("top_logprobs") {
        None => overrides,
        Some(_) => overrides.spelling("logprobs", "top_logprobs"),
    };
    Ok(Asked::of_chat(made, overrides))
}

/// The `messages` of a request, which errors call by their whole name.
pub(super) fn messages_of(
    body: &JsonFields,
    name: &str,
    system: Option<String>,
    line: u64,
) -> Result<Vec<Value>, RowError> {
    let parsed = match body.get("messages") {
        None | Some("null") => {
            Err(RowError::new(code::INVALID_PROMPT, line, format!("{name}: missing")))
        }
        Some(json) => messages::parse(name, json, system, line),
    };
    parsed.map_err(|error| error.of_param("messages"))
}

/// The number of log-probabilities: chat has a switch, and a number beside it.
fn chat_logprobs(body: &JsonFields, line: u64) -> Result<Option<String>, RowError> {
    let invalid = |param, message: String| {
        Err(RowError::new(code::INVALID_PARAMETER, line, message).of_param(param))
    };
    let given = |name| body.get(name).filter(|json| *json != "null");
    match (given("logprobs"), given("top_logprobs")) {
        (Some("true"), None) => Ok(Some("0".to_owned())),
        (Some("true"), Some(count)) if is_number(count) => Ok(Some(count.to_owned())),
        (Some("true"), Some(other)) => {
            let message = format!("top_logprobs: expected an integer, found {}", shown(other));
            invalid("top_logprobs", message)
        }
        (None | Some("false"), Some(count)) if count != "0" => {
            let message = "when using `top_logprobs`, `logprobs` must be set to true.";
            invalid("top_logprobs", message.to_owned())
        }
        (None, _) => Ok(None),
        (Some("false"), _) => Ok(Some("false".to_owned())),
        (Some(other), _) => {
            invalid("logprobs", format!("logprobs: expected true or false, found {}", shown(other)))
        }
    }
}

fn completions(body: &JsonFields, line: u64) -> Result<Asked, RowError> {
    unsupported::check(body, Place::Completions, line)?;
    // More candidates than answers: the best of them would have to be chosen.
    let given = |name| body.get(name).filter(|json| *json != "null");
    if given("best_of").is_some_and(|best_of| best_of != given("n").unwrap_or("1")) {
        return Err(unsupported::error("best_of", line));
    }
    if let Some(other) = given("logprobs").filter(|json| !is_number(json)) {
        let message = format!("logprobs: expected an integer, found {}", shown(other));
        let error = RowError::new(code::INVALID_PARAMETER, line, message);
        return Err(error.of_param("logprobs"));
    }
    let prompt = match body.get("prompt") {
        None | Some("null") => Err(wrong_prompt("missing", line)),
        Some(json) => one_prompt(json, line),
    };
    let prompt = prompt.map_err(|error| error.of_param("prompt"))?;
    let mut overrides = Overrides::collect(body).with_default_length(DefaultLength::Completions);
    if echoes(body, line)? && given("prompt_logprobs").is_none() {
        overrides = overrides.with("prompt_logprobs", given("logprobs").map(str::to_owned));
    }
    Ok(Asked::new(prompt, overrides))
}

/// Whether the answer begins with its prompt.
fn echoes(body: &JsonFields, line: u64) -> Result<bool, RowError> {
    match body.get("echo") {
        None | Some("null" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let message = format!("echo: expected true or false, found {}", shown(other));
            Err(RowError::new(code::INVALID_PARAMETER, line, message).of_param("echo"))
        }
    }
}

/// The prompt that the answer to a request begins with, where it asks for that.
pub(super) fn echoed_prompt(fields: &JsonFields) -> Option<Echo> {
    let body = JsonFields::parse(fields.get("body")?.to_owned(), 1).ok()?;
    if !echoes(&body, 1).ok()? {
        return None;
    }
    let prompt = body.get("prompt")?;
    let text = serde_json::from_str(prompt).ok();
    let only = || serde_json::from_str::<[String; 1]>(prompt).ok().map(|[text]| text);
    Some(Echo::Prompt(text.or_else(only)))
}

/// A prompt is text or token ids, or a list of one of these.
fn one_prompt(json: &str, line: u64) -> Result<Prompt, RowError> {
    if json.starts_with('"') {
        return prompt::string("body.prompt", json, line).map(Prompt::Text);
    }
    if !json.starts_with('[') {
        let found = super::shape::kind_name(json);
        return Err(wrong_prompt(&format!("expected text or token ids, found {found}"), line));
    }
    if let Ok(ids) = serde_json::from_str(json) {
        return Ok(Prompt::TokenIds(ids));
    }
    let items: Vec<Value> =
        serde_json::from_str(json).map_err(|error| wrong_prompt(&prompt::reason(&error), line))?;
    match items.as_slice() {
        [Value::String(text)] => Ok(Prompt::Text(text.clone())),
        [Value::Array(_)] => serde_json::from_value(items.into_iter().next().expect("one item"))
            .map(Prompt::TokenIds)
            .map_err(|error| {
                wrong_prompt(&format!("not token ids: {}", prompt::reason(&error)), line)
            }),
        prompts if prompts.iter().all(|item| item.is_string() || item.is_array()) => {
            let message = format!(
                "body.prompt: a list of {} prompts, where a row has one: make a row of each",
                prompts.len()
            );
            Err(RowError::new(code::SEVERAL_PROMPTS, line, message))
        }
        _ => Err(wrong_prompt("neither text nor token ids", line)),
    }
}

fn wrong_prompt(what: &str, line: u64) -> RowError {
    RowError::new(code::INVALID_PROMPT, line, format!("body.prompt: {what}"))
}

fn is_number(json: &str) -> bool {
    json.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

/// A value as it is written; of text and lists what they are.
fn shown(json: &str) -> String {
    match json.as_bytes().first() {
        Some(b'"') if json.len() <= 40 => json.to_owned(),
        Some(b'"' | b'[' | b'{') => super::shape::kind_name(json).to_owned(),
        _ => json.to_owned(),
    }
}
