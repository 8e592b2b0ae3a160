//! Calls of tools in the messages of a chat, as templates expect them (vLLM's rules): arguments are
//! objects, where OpenAI's form has their JSON text, and a message has a text, if an empty one.

use serde_json::{Map, Value, json};

use vllm_batch_text::json_with_integers;

const CALLS: &str = "tool_calls";
const OLD_CALL: &str = "function_call";

/// Id of a call that has none: nine letters or digits, as Mistral's templates want them.
const OLD_ID: &str = "call00000";

/// Makes a message what a template expects.
///
/// # Errors
/// What is wrong with it.
pub(super) fn prepare(message: &mut Value) -> Result<(), String> {
    let Some(message) = message.as_object_mut() else { return Ok(()) };
    renew(message);
    let is_empty = match message.get_mut(CALLS) {
        None => false,
        Some(Value::Null) => true,
        Some(Value::Array(calls)) => {
            for (number, call) in calls.iter_mut().enumerate() {
                prepare_call(call).map_err(|what| format!("has a call {number} {what}"))?;
            }
            calls.is_empty()
        }
        Some(_) => return Err("has `tool_calls` that are no list".to_owned()),
    };
    if is_empty {
        message.shift_remove(CALLS);
    }
    if message.get("content").is_none_or(Value::is_null) {
        message.insert("content".to_owned(), "".into());
    }
    Ok(())
}

/// OpenAI's older form: one `function_call`, and a message of role `function` with what it gave
/// back. Some templates want an id, and it is the function's only call.
fn renew(message: &mut Map<String, Value>) {
    if message.get("role").is_some_and(|role| role == "function") {
        message.insert("role".to_owned(), "tool".into());
        message.entry("tool_call_id").or_insert_with(|| OLD_ID.into());
    }
    let is_old =
        message.get(OLD_CALL).is_some_and(Value::is_object) && !message.contains_key(CALLS);
    if let Some(call) = is_old.then(|| message.shift_remove(OLD_CALL)).flatten() {
        let call = json!({"id": OLD_ID, "type": "function", "function": call});
        message.insert(CALLS.to_owned(), json!([call]));
    }
}

/// Some datasets have name and arguments in the call itself, which some templates read.
fn prepare_call(call: &mut Value) -> Result<(), String> {
    let Some(call) = call.as_object_mut() else { return Err("that is no object".to_owned()) };
    let function = match call.get_mut("function") {
        None => call,
        Some(Value::Object(function)) => function,
        Some(_) => return Err("with a `function` that is no object".to_owned()),
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err("without the `name` of a function".to_owned());
    }
    let parsed = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => json_with_integers(text).map_err(|error| {
            format!("with `arguments` that are no JSON: {}", super::prompt::reason(&error))
        })?,
        Some(_) => return Ok(()),
    };
    function.insert("arguments".to_owned(), parsed);
    Ok(())
}
