//! Texts and their tokens: `/tokenize`, `/detokenize`, `/tokenizer_info`.

use serde_json::{Value, json};

use crate::errors::HttpError;
use crate::request::{Endpoint, check_name, line};
use crate::served::{RequestLine, Served};
use vllm_batch_api::prompt::Prompt;

/// Fields of `/tokenize` with messages that are not those of a chat.
const OWN_FIELDS: &[&str] = &["return_token_strs", "add_special_tokens"];

/// The tokens of a `prompt` or of `messages`.
pub(crate) fn tokenize(served: &Served, body: &str) -> Result<Value, HttpError> {
    let fields = object(body)?;
    check_name(&fields["model"], &served.names)?;
    let adds = flag(&fields, "add_special_tokens", true)?;
    let ids = match (&fields["prompt"], &fields["messages"]) {
        (Value::String(text), Value::Null) => {
            let prompt = Prompt::Text(text.clone());
            served.processor.tokenize(prompt, adds).map_err(|error| wrong(error.to_string()))?
        }
        (Value::Null, Value::Array(_)) => of_chat(served, fields.clone())?,
        _ => return Err(wrong("expected a `prompt`, a text, or `messages`".to_owned())),
    };
    let texts = flag(&fields, "return_token_strs", false)?;
    let texts =
        texts.then(|| ids.iter().map(|id| served.processor.token_text(*id)).collect::<Vec<_>>());
    Ok(json!({
        "count": ids.len(),
        "max_model_len": served.processor.max_model_len(),
        "tokens": ids,
        "token_strs": texts,
    }))
}

/// The tokens of a chat, as `/v1/chat/completions` would ask it.
fn of_chat(served: &Served, mut fields: Value) -> Result<Vec<u32>, HttpError> {
    let map = fields.as_object_mut().expect("it was looked into");
    map.retain(|name, _| !OWN_FIELDS.contains(&name.as_str()));
    map.insert("max_tokens".to_owned(), json!(1));
    num_tokens_of(served, Endpoint::Chat, &fields.to_string())
}

/// The tokens of the prompt of a request to an endpoint, which nobody answers.
pub(crate) fn num_tokens_of(
    served: &Served,
    endpoint: Endpoint,
    body: &str,
) -> Result<Vec<u32>, HttpError> {
    let line = line(endpoint, "tokenize", body);
    let line = RequestLine { api: endpoint.api(), line, request_id: u64::MAX };
    let asked = (served.ask)(line);
    let asked = asked
        .map_err(|refused| HttpError::bad(refused.error.code, refused.error.message.clone()))?;
    Ok(asked.work.prompts().concat())
}

/// The text of `tokens`.
pub(crate) fn detokenize(served: &Served, body: &str) -> Result<Value, HttpError> {
    let fields = object(body)?;
    check_name(&fields["model"], &served.names)?;
    let ids: Vec<u32> = serde_json::from_value(fields["tokens"].clone())
        .map_err(|_| wrong("tokens: expected a list of token ids".to_owned()))?;
    if !ids.is_empty() {
        served.processor.check_ids(&ids).map_err(|error| wrong(error.message))?;
    }
    let text = served.processor.tokenizer().decode(&ids, false);
    Ok(json!({ "prompt": text.map_err(|error| wrong(error.to_string()))? }))
}

/// What lm-evaluation-harness asks of a tokenizer.
pub(crate) fn tokenizer_info(served: &Served) -> Value {
    let tokenizer = served.processor.tokenizer();
    json!({
        "bos_token": tokenizer.bos_token(),
        "eos_token": tokenizer.eos_token(),
        "pad_token": tokenizer.pad_token_id().map(|id| served.processor.token_text(id)),
        "vocab_size": tokenizer.vocab_size(),
        "model_max_length": served.processor.max_model_len(),
    })
}

/// A body that is an object.
pub(crate) fn object(body: &str) -> Result<Value, HttpError> {
    let value: Value = serde_json::from_str(body)
        .map_err(|error| HttpError::bad("bad_json", error.to_string()))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(wrong("expected a JSON object".to_owned())),
    }
}

fn flag(fields: &Value, name: &'static str, default: bool) -> Result<bool, HttpError> {
    match &fields[name] {
        Value::Null => Ok(default),
        Value::Bool(value) => Ok(*value),
        _ => Err(wrong(format!("{name}: expected true or false")).of_param(name)),
    }
}

fn wrong(message: String) -> HttpError {
    HttpError::bad("invalid_parameter", message)
}
