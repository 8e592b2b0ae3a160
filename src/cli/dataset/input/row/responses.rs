//! Rows of OpenAI's batch API for `/v1/responses`. What they ask is told in the words of a chat
//! request, and then read as one.

mod items;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::asked::Asked;
use super::chat::{ChatDefaults, Origin, invalid, value};
use super::unsupported::{self, Place};
use super::{messages, prompt};
use crate::input::fields::JsonFields;
use crate::input::overrides::{DefaultLength, Overrides};
use crate::input::row_error::{RowError, code};
use crate::input::spellings::Spellings;

const INPUT: &str = "body.input";

/// The form of an answer.
const FORMAT: &str = "text.format";

/// Fields that have the same name and meaning in a chat request.
const TOLD: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include_reasoning",
    "parallel_tool_calls",
];

/// Fields of the request that an answer repeats, and their values if the request lacks them.
const ECHOED: &[(&str, &str)] = &[
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    ("temperature", "null"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
];

/// Reads a request.
pub(super) fn read(body: &JsonFields, chats: &ChatDefaults, line: u64) -> Result<Asked, RowError> {
    unsupported::check(body, Place::Responses, line)?;
    let messages = messages_of(body, line).map_err(|error| match error.param {
        None => error.of_param("input"),
        Some(_) => error,
    })?;
    let text = object(body, "text", line)?;
    let mut told: Vec<(&str, String)> =
        TOLD.iter().filter_map(|name| Some((*name, body.get(name)?.to_owned()))).collect();
    told.extend(tools(body, line)?);
    let effort = object(body, "reasoning", line)?.remove("effort");
    for (name, value) in
        [("reasoning_effort", effort), ("verbosity", text.get("verbosity").cloned())]
    {
        told.extend(value.map(|value| (name, value.to_string())));
    }
    let told: Vec<_> = told.iter().map(|(name, json)| (*name, json.as_str())).collect();
    let told = JsonFields::from_pairs(&told);
    let told_names = [("reasoning_effort", "reasoning.effort"), ("verbosity", "text.verbosity")];
    let made = chats
        .chat(messages, &told, Origin::OpenAi, (INPUT, line))
        .map_err(|error| Spellings::of(&told_names).in_words_of_row(error))?;
    let format = text.get("format").filter(|format| !format.is_null());
    let given = |name: &str| body.get(name).filter(|json| *json != "null").map(str::to_owned);
    let overrides = Overrides::collect(body)
        .with_written("max_tokens", "max_output_tokens", given("max_output_tokens"))
        .with_written("logprobs", "top_logprobs", logprobs(body, line)?)
        .spelling("structured_outputs", FORMAT)
        .with_written("response_format", FORMAT, format.map(Value::to_string))
        .with_default_length(DefaultLength::Context);
    Ok(Asked::of_chat(made, overrides))
}

/// Echo of a request in its answer: fields of a JSON object.
pub(super) fn echo(fields: &JsonFields) -> String {
    let body = fields.get("body").and_then(|json| JsonFields::parse(json.to_owned(), 0).ok());
    let field = |(name, default): &(&str, &str)| {
        let given = body.as_ref().and_then(|body| body.get(name));
        let given = given.filter(|json| *json != "null");
        format!("\"{name}\":{}", given.unwrap_or(default))
    };
    ECHOED.iter().map(field).collect::<Vec<_>>().join(",")
}

fn messages_of(body: &JsonFields, line: u64) -> Result<Vec<Value>, RowError> {
    let instructions = match body.get("instructions") {
        None | Some("null") => None,
        Some(json) if json.starts_with('"') => {
            Some(prompt::string("body.instructions", json, line)?)
        }
        Some(_) => return Err(invalid("instructions", "expected a text", line)),
    };
    let list = match body.get("input") {
        None | Some("null") => {
            return Err(RowError::new(code::INVALID_PROMPT, line, format!("{INPUT}: missing")));
        }
        Some(json) if json.starts_with('"') => {
            let text = prompt::string(INPUT, json, line)?;
            vec![json!({"role": "user", "content": text})]
        }
        Some(json) => items::told(INPUT, messages::list(INPUT, json, line)?, line)?,
    };
    // Instructions come before a system message of the input, as in OpenAI's API.
    let instructions = instructions.filter(|text| !text.is_empty());
    let system = instructions.map(|text| json!({"role": "system", "content": text}));
    messages::finish(INPUT, system.into_iter().chain(list).collect(), None, line)
}

/// A field that is an object; missing, an empty one.
fn object(
    body: &JsonFields,
    name: &'static str,
    line: u64,
) -> Result<Map<String, Value>, RowError> {
    match value(body, name, line)? {
        None => Ok(Map::new()),
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(invalid(name, "expected an object", line)),
    }
}

/// `tools` and `tool_choice`, which are flat here.
fn tools(body: &JsonFields, line: u64) -> Result<Vec<(&'static str, String)>, RowError> {
    const TOOLS: &str = "tools";
    const CHOICE: &str = "tool_choice";
    let mut told = Vec::new();
    let has_tools = match value(body, TOOLS, line)? {
        None => false,
        Some(Value::Array(tools)) if tools.is_empty() => false,
        Some(Value::Array(tools)) => {
            let tools = tools.into_iter().enumerate();
            let tools = tools.map(|(number, tool)| nested(tool).map_err(|what| (number, what)));
            let tools: Result<Vec<Value>, _> = tools.collect();
            let tools = tools
                .map_err(|(number, what)| invalid(TOOLS, format!("tool {number} {what}"), line))?;
            told.push((TOOLS, Value::Array(tools).to_string()));
            true
        }
        Some(_) => return Err(invalid(TOOLS, "expected a list", line)),
    };
    match value(body, CHOICE, line)? {
        // The default, which clients write where there are no tools too.
        Some(choice) if !has_tools && choice == "auto" => {}
        Some(Value::Object(mut choice)) if choice.get("type").is_some_and(is_function) => {
            let Some(name @ Value::String(_)) = choice.remove("name") else {
                return Err(invalid(CHOICE, "of type \"function\" without a `name`", line));
            };
            let choice = json!({"type": "function", "function": {"name": name}});
            told.push((CHOICE, choice.to_string()));
        }
        Some(choice) if !is_choice(&choice) => {
            const FORM: &str = r#"{"type": "function", "name": "..."}"#;
            let what = format!("expected \"none\", \"auto\", \"required\" or {FORM}");
            return Err(invalid(CHOICE, what, line));
        }
        choice => told.extend(choice.map(|choice| (CHOICE, choice.to_string()))),
    }
    Ok(told)
}

/// A tool in the form of a chat request. What is no function is refused there by its type.
fn nested(tool: Value) -> Result<Value, &'static str> {
    match tool {
        Value::Object(mut fields) if fields.get("type").is_some_and(is_function) => {
            fields.shift_remove("type");
            match fields.get("name").and_then(Value::as_str) {
                None | Some("") => Err("has no `name`"),
                Some(_) => Ok(json!({"type": "function", "function": fields})),
            }
        }
        other => Ok(other),
    }
}

/// Whether a choice is one by its form. One of another type is refused by its type.
fn is_choice(choice: &Value) -> bool {
    match choice {
        Value::String(word) => ["none", "auto", "required"].contains(&word.as_str()),
        choice => choice["type"].is_string(),
    }
}

fn is_function(kind: &Value) -> bool {
    kind == "function"
}

/// The number of log-probabilities: asked for by `include`, or by their number.
fn logprobs(body: &JsonFields, line: u64) -> Result<Option<String>, RowError> {
    let included = value(body, "include", line)?.unwrap_or_else(|| json!([]));
    let Value::Array(included) = included else {
        return Err(invalid("include", "expected a list", line));
    };
    let count = value(body, "top_logprobs", line)?;
    if count.as_ref().is_some_and(|count| count.as_u64().is_none()) {
        return Err(invalid("top_logprobs", "expected a whole number", line));
    }
    let is_included = included.iter().any(|name| name == "message.output_text.logprobs");
    let count = count.and_then(|count| count.as_u64()).unwrap_or(0);
    Ok((is_included || count > 0).then(|| count.to_string()))
}
