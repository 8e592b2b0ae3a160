//! The tools of a chat: what its template shows, which calls the answer may make, and the form of
//! an answer that must make one. The words are OpenAI's.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::chat::{invalid, template_value, value};
use super::unsupported;
use crate::input::fields::JsonFields;
use crate::input::row_error::{RowError, code};
use vllm_batch_text::{AnswerForm, Tool, ToolChoice};

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";
const OLD_TOOLS: &str = "functions";
const OLD_CHOICE: &str = "function_call";
const PARALLEL: &str = "parallel_tool_calls";

/// Where a schema keeps the parts that it refers to.
const DEFINITIONS: &str = "$defs";

/// Tools of a chat.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RowTools {
    /// As the row has them, for the template.
    pub(super) shown: Option<Value>,
    /// Tools that an answer may call.
    callable: Vec<Tool>,
    choice: ToolChoice,
    is_single_call: bool,
}

impl RowTools {
    /// Those of a request.
    pub(super) fn of_request(fields: &JsonFields, line: u64) -> Result<Self, RowError> {
        let tools = match value(fields, TOOLS, line)? {
            None => return check_no_choice(fields, line).map(|()| Self::default()),
            Some(tools) => tools,
        };
        let list = tools.as_array().ok_or_else(|| invalid(TOOLS, "expected a list", line))?;
        if list.is_empty() {
            return Err(invalid(TOOLS, "an empty list: leave the field out, or give a tool", line));
        }
        let callable = list.iter().enumerate().map(|(number, tool)| callable(number, tool, line));
        let callable: Vec<Tool> = callable.collect::<Result<_, _>>()?;
        let choice = choice(fields, &callable, line)?;
        let is_single_call = match value(fields, PARALLEL, line)? {
            None => false,
            Some(Value::Bool(is_parallel)) => !is_parallel,
            Some(_) => return Err(invalid(PARALLEL, "expected true or false", line)),
        };
        let shown = template_value(fields, TOOLS, line)?;
        Ok(Self { shown, callable, choice, is_single_call })
    }

    /// Those of a dataset's row, where fields of these names may be the user's own.
    pub(super) fn of_row(fields: &JsonFields, line: u64) -> Result<Self, RowError> {
        if let Some(renewed) = renewed(fields) {
            return Self::of_request(&renewed, line);
        }
        match (are_functions(fields), asks_for_call(fields)) {
            (true, _) => Self::of_request(fields, line),
            (false, true) => Err(no_tools(line)),
            (false, false) => Ok(Self::default()),
        }
    }

    /// The structured output that makes the answer a call: the JSON text of vLLM's object.
    pub(super) fn constraint(&self, line: u64) -> Result<Option<String>, RowError> {
        let schema = match &self.choice {
            ToolChoice::None | ToolChoice::Auto => return Ok(None),
            ToolChoice::Named(name) => {
                let named = self.callable.iter().find(|tool| tool.name == *name);
                parameters_of(named.expect("the choice is one of the tools"))
            }
            ToolChoice::Required => self.schema_of_calls(line)?,
        };
        Ok(Some(json!({ "json": schema }).to_string()))
    }

    /// Parser settings of an answer's text.
    pub(super) fn into_form(self) -> (Option<Value>, AnswerForm) {
        let Self { shown, callable, choice, is_single_call } = self;
        let tool_choice = choice;
        (shown, AnswerForm { tools: callable, tool_choice, is_single_call, ..Default::default() })
    }

    /// A list of calls of any of the tools. Definitions move to its root, where references look for
    /// them.
    fn schema_of_calls(&self, line: u64) -> Result<Value, RowError> {
        let mut definitions = Map::new();
        let mut calls = Vec::new();
        for tool in &self.callable {
            let mut parameters = parameters_of(tool);
            if let Some(Value::Object(own)) =
                parameters.as_object_mut().and_then(|schema| schema.shift_remove(DEFINITIONS))
            {
                for (name, schema) in own {
                    if definitions.get(&name).is_some_and(|known| *known != schema) {
                        let what = format!("two of them define `{DEFINITIONS}/{name}` differently");
                        return Err(invalid(TOOLS, what, line));
                    }
                    definitions.insert(name, schema);
                }
            }
            calls.push(json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": [tool.name]},
                    "parameters": parameters,
                },
                "required": ["name", "parameters"],
                "additionalProperties": false,
            }));
        }
        let mut schema = json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}});
        if self.is_single_call {
            schema["maxItems"] = 1.into();
        }
        if !definitions.is_empty() {
            schema[DEFINITIONS] = Value::Object(definitions);
        }
        Ok(schema)
    }
}

/// Whether a row brings tools: its field `tools` is a list of functions in OpenAI's form, by its
/// first item, or `functions` is one in the older form.
pub fn are_functions(fields: &JsonFields) -> bool {
    are_tools(fields) || old_functions(fields).is_some()
}

fn are_tools(fields: &JsonFields) -> bool {
    let json = fields.get(TOOLS).filter(|json| json.starts_with('['));
    let value: Option<Value> = json.and_then(|json| serde_json::from_str(json).ok());
    value.is_some_and(|value| value[0]["type"] == "function")
}

/// The functions of a row in OpenAI's older form, as fine-tuning files have them.
fn old_functions(fields: &JsonFields) -> Option<Vec<Value>> {
    let json = fields.get(OLD_TOOLS).filter(|json| json.starts_with('['))?;
    let functions: Vec<Value> = serde_json::from_str(json).ok()?;
    functions.first()?["name"].is_string().then_some(functions)
}

/// The tools of a row in OpenAI's older form, and its choice of them, in the newer one. A
/// `function_call` with arguments is an answer, and no choice.
fn renewed(fields: &JsonFields) -> Option<JsonFields> {
    let functions = old_functions(fields).filter(|_| !are_tools(fields))?;
    let tool = |function| json!({"type": "function", "function": function});
    let tools = Value::Array(functions.into_iter().map(tool).collect()).to_string();
    let old = fields.get(OLD_CHOICE).and_then(|json| serde_json::from_str::<Value>(json).ok());
    let choice = old.and_then(|old| match &old {
        Value::String(_) => Some(old),
        Value::Object(call) if call.len() == 1 => Some(tool(old)),
        _ => None,
    });
    let choice = choice.map(|choice| choice.to_string());
    let choice = choice.as_deref().or_else(|| fields.get(CHOICE));
    let told = [(TOOLS, Some(tools.as_str())), (CHOICE, choice), (PARALLEL, fields.get(PARALLEL))];
    let told: Vec<_> = told.iter().filter_map(|(name, json)| Some((*name, (*json)?))).collect();
    Some(JsonFields::from_pairs(&told))
}

/// Refuses tools beside a prompt that is no chat: there is no template that could show them.
pub(super) fn refuse_beside_text(fields: &JsonFields, line: u64) -> Result<(), RowError> {
    match (are_functions(fields), asks_for_call(fields)) {
        (true, _) => Err(unsupported::error(TOOLS, line)),
        (false, true) => Err(unsupported::error(CHOICE, line)),
        (false, false) => Ok(()),
    }
}

/// Whether `tool_choice` can only be meant for us.
fn asks_for_call(fields: &JsonFields) -> bool {
    let choice = fields.get(CHOICE).and_then(|json| serde_json::from_str::<Value>(json).ok());
    choice.is_some_and(|choice| choice == "required" || choice["type"].is_string())
}

fn check_no_choice(fields: &JsonFields, line: u64) -> Result<(), RowError> {
    match value(fields, CHOICE, line)? {
        None => Ok(()),
        Some(choice) if choice == "none" => Ok(()),
        Some(_) => Err(no_tools(line)),
    }
}

fn no_tools(line: u64) -> RowError {
    invalid(CHOICE, "when it is given, `tools` must be as well", line)
}

/// A tool that can be called.
fn callable(number: usize, tool: &Value, line: u64) -> Result<Tool, RowError> {
    let wrong = |what: &str| Err(invalid(TOOLS, format!("tool {number} {what}"), line));
    match tool["type"].as_str() {
        Some("function") => {}
        Some(kind) => {
            let what = format!("{TOOLS}: tool {number} is of type '{kind}': only functions are");
            let error = RowError::new(code::UNSUPPORTED_FIELD, line, what + " supported");
            return Err(error.of_param(TOOLS));
        }
        None => return wrong("is no object with a `type`"),
    }
    let function = &tool["function"];
    let Some(name) = function["name"].as_str().filter(|name| !name.is_empty()) else {
        return wrong("has no `function` with a `name`");
    };
    if !(function["description"].is_string() || function["description"].is_null()) {
        return wrong("has a `description` that is no string");
    }
    let parameters = &function["parameters"];
    if !(parameters.is_object() || parameters.is_null()) {
        return wrong("has `parameters` that are no JSON schema");
    }
    Ok(Tool { name: name.to_owned(), parameters: parameters.clone() })
}

fn choice(fields: &JsonFields, tools: &[Tool], line: u64) -> Result<ToolChoice, RowError> {
    const FORM: &str = r#"{"type": "function", "function": {"name": "..."}}"#;
    let Some(choice) = value(fields, CHOICE, line)? else { return Ok(ToolChoice::Auto) };
    match choice.as_str() {
        Some("none") => return Ok(ToolChoice::None),
        Some("auto") => return Ok(ToolChoice::Auto),
        Some("required") => return Ok(ToolChoice::Required),
        Some(_) => {
            let what = format!("expected \"none\", \"auto\", \"required\" or {FORM}");
            return Err(invalid(CHOICE, what, line));
        }
        None => {}
    }
    if let Some(kind) = choice["type"].as_str().filter(|kind| *kind != "function") {
        let what = format!("{CHOICE}: of type '{kind}': only a function can be chosen");
        return Err(RowError::new(code::UNSUPPORTED_FIELD, line, what).of_param(CHOICE));
    }
    match choice["function"]["name"].as_str() {
        Some(name) if tools.iter().any(|tool| tool.name == name) => {
            Ok(ToolChoice::Named(name.to_owned()))
        }
        Some(name) => {
            let what = format!("the function '{name}' is none of the tools");
            Err(invalid(CHOICE, what, line))
        }
        None => Err(invalid(CHOICE, format!("expected {FORM}"), line)),
    }
}

/// The schema of a tool's arguments. A tool without one takes any object.
fn parameters_of(tool: &Tool) -> Value {
    match &tool.parameters {
        Value::Null => json!({"type": "object", "properties": {}}),
        schema => schema.clone(),
    }
}
