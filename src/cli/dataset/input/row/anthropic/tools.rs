//! Tools of a request, and which of them its answer calls, in OpenAI's words.

use serde_json::{Value, json};

use crate::input::fields::JsonFields;
use crate::input::row::chat::{invalid, value};
use crate::input::row_error::{RowError, code};

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

/// OpenAI's fields `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn told(
    params: &JsonFields,
    line: u64,
) -> Result<Vec<(&'static str, String)>, RowError> {
    let tools = match value(params, TOOLS, line)? {
        None => Vec::new(),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(invalid(TOOLS, "expected a list", line)),
    };
    let tools = tools.iter().enumerate().map(|(number, tool)| function(number, tool, line));
    let tools: Vec<Value> = tools.collect::<Result<_, _>>()?;
    let mut told = Vec::new();
    if !tools.is_empty() {
        told.push((TOOLS, Value::Array(tools).to_string()));
    }
    if let Some(choice) = value(params, CHOICE, line)? {
        told.push((CHOICE, choice_of(&choice, line)?.to_string()));
        match &choice["disable_parallel_tool_use"] {
            Value::Null => {}
            Value::Bool(is_single) => told.push(("parallel_tool_calls", (!is_single).to_string())),
            _ => {
                let what = "expected `disable_parallel_tool_use` that is true or false";
                return Err(invalid(CHOICE, what, line));
            }
        }
    }
    Ok(told)
}

/// A tool of the caller's. Others run on Anthropic's servers, or are known to its models.
fn function(number: usize, tool: &Value, line: u64) -> Result<Value, RowError> {
    let wrong = |what: &str| Err(invalid(TOOLS, format!("tool {number} {what}"), line));
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let what = format!("{TOOLS}: tool {number} is '{kind}': only tools of your own are");
        let error = RowError::new(code::UNSUPPORTED_FIELD, line, what + " supported");
        return Err(error.of_param(TOOLS));
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        return wrong("has no `name`");
    };
    let schema @ Value::Object(_) = &tool["input_schema"] else {
        return wrong("has no `input_schema` that is an object");
    };
    let function = match &tool["description"] {
        Value::Null => json!({"name": name, "parameters": schema}),
        description @ Value::String(_) => {
            json!({"name": name, "description": description, "parameters": schema})
        }
        _ => return wrong("has a `description` that is no string"),
    };
    Ok(json!({"type": "function", "function": function}))
}

fn choice_of(choice: &Value, line: u64) -> Result<Value, RowError> {
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok("auto".into()),
        (Some("any"), _) => Ok("required".into()),
        (Some("none"), _) => Ok("none".into()),
        (Some("tool"), Some(name)) => Ok(json!({"type": "function", "function": {"name": name}})),
        (Some("tool"), None) => Err(invalid(CHOICE, "of type \"tool\" without a `name`", line)),
        _ => {
            let what = "expected a `type` that is \"auto\", \"any\", \"tool\" or \"none\"";
            Err(invalid(CHOICE, what, line))
        }
    }
}
