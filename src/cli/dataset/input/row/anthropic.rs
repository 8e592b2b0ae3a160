//! Rows of Anthropic's message batches: `custom_id`, `params`. What they say of chats is told in
//! OpenAI's words, and then read as a request of theirs.

mod blocks;
#[cfg(test)]
mod tests;
mod thinking;
mod tools;

use serde_json::{Value, json};

use super::asked::Asked;
use super::chat::{Origin, invalid, value};
use super::near_miss::NearMisses;
use super::prompt::PromptBuilder;
use super::unsupported::{self, Place};
use super::{messages, openai, prompt, unused};
use crate::input::fields::{JsonFields, json_string};
use crate::input::overrides::Overrides;
use crate::input::row_error::{RowError, code};

/// Reads a request.
pub(super) fn read(
    fields: &JsonFields,
    builder: &PromptBuilder,
    names: &mut NearMisses,
    line: u64,
) -> Result<Asked, RowError> {
    openai::check_custom_id(fields, line)?;
    let params = openai::object(fields, "params", line)?;
    let lora = builder.names().of_request(&params, line)?;
    unsupported::check(&params, Place::Anthropic, line)?;
    const NAME: &str = "params.messages";
    let messages = messages_of(&params, NAME, line).map_err(|error| match error.param {
        None => error.of_param("messages"),
        Some(_) => error,
    })?;
    let said = thinking::read(&params, line)?;
    let mut told: Vec<(&str, String)> = TOLD
        .iter()
        .filter_map(|name| Some((*name, params.get(name)?.to_owned())))
        .chain(tools::told(&params, line)?)
        .collect();
    said.tell(&mut told);
    let told: Vec<_> = told.iter().map(|(name, json)| (*name, json.as_str())).collect();
    let told = JsonFields::from_pairs(&told);
    let made = builder.chats().chat(messages, &told, Origin::Anthropic, (NAME, line))?;
    let mut overrides = Overrides::collect(&params);
    let budget = said.budget.map(|budget| budget.to_string());
    let format = structured_outputs(&params, line)?;
    for (name, written, json) in [
        ("stop", STOP, stop_sequences(&params, line)?),
        ("thinking_token_budget", "thinking.budget_tokens", budget),
    ] {
        if json.is_some() {
            overrides = overrides.with_written(name, written, json);
        }
    }
    if let Some((written, json)) = format {
        overrides = overrides.with_written("structured_outputs", written, Some(json));
    }
    let remarks = unused::remarks(&params, Place::Anthropic, names, builder.own_params());
    let asked = Asked { lora, ..Asked::of_chat(made, overrides) }.with_remarks(remarks);
    Ok(asked.with_remarks(unused::of_line(fields)))
}

const STOP: &str = "stop_sequences";

/// Fields of a request that have the same meaning in OpenAI's.
const TOLD: &[&str] = &[
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_effort",
    "include_reasoning",
];

fn messages_of(params: &JsonFields, name: &str, line: u64) -> Result<Vec<Value>, RowError> {
    let system = system(params, line).map_err(|error| error.of_param("system"))?;
    match params.get("messages") {
        None | Some("null") => {
            Err(RowError::new(code::INVALID_PROMPT, line, format!("{name}: missing")))
        }
        Some(json) => {
            let messages = blocks::told(name, messages::list(name, json, line)?, line)?;
            messages::finish(name, messages, system, line)
        }
    }
}

/// The form of an answer: `output_config.format`, or `output_format` by its older name.
fn structured_outputs(
    params: &JsonFields,
    line: u64,
) -> Result<Option<(&'static str, String)>, RowError> {
    let config = value(params, "output_config", line)?;
    if config.as_ref().is_some_and(|config| !config.is_object()) {
        return Err(invalid("output_config", "expected an object", line));
    }
    let in_config = config.map(|mut config| ("output_config.format", config["format"].take()));
    let format = match in_config.filter(|(_, format)| !format.is_null()) {
        Some(format) => Some(format),
        None => value(params, "output_format", line)?.map(|format| ("output_format", format)),
    };
    let Some((name, format)) = format else { return Ok(None) };
    match (&format["type"], &format["schema"]) {
        (kind, schema @ Value::Object(_)) if kind == "json_schema" => {
            Ok(Some((name, json!({ "json": schema }).to_string())))
        }
        _ => {
            let what = "expected a format {\"type\": \"json_schema\", \"schema\": {...}}";
            Err(invalid(name, what, line))
        }
    }
}

/// `system` is text, or text blocks, which are one text without anything between them, as in vLLM.
/// An empty one is none.
fn system(params: &JsonFields, line: u64) -> Result<Option<String>, RowError> {
    const NAME: &str = "params.system";
    let invalid = |what: &str| RowError::new(code::INVALID_PROMPT, line, format!("{NAME}: {what}"));
    let text = match params.get("system") {
        None | Some("null") => return Ok(None),
        Some(json) if json.starts_with('"') => prompt::string(NAME, json, line)?,
        Some(json) => {
            let blocks: Vec<Value> =
                serde_json::from_str(json).map_err(|error| invalid(&prompt::reason(&error)))?;
            let text = |block: &Value| match (block["type"].as_str(), block["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (Some("text") | None, _) => Err(invalid("a block that is no text block")),
                (Some(kind), _) => {
                    let what = format!("{NAME}: a block of type '{kind}': only text is supported");
                    Err(RowError::new(code::UNSUPPORTED_FIELD, line, what))
                }
            };
            blocks.iter().map(text).collect::<Result<_, _>>()?
        }
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// `stop_sequences` as the JSON text of `stop`.
fn stop_sequences(params: &JsonFields, line: u64) -> Result<Option<String>, RowError> {
    match params.get(STOP) {
        None | Some("null") => Ok(None),
        Some(json) => match serde_json::from_str::<Vec<String>>(json) {
            Ok(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| json_string(text)).collect();
                Ok(Some(format!("[{}]", texts.join(","))))
            }
            Err(_) => {
                let message = format!("{STOP}: expected a list of strings");
                Err(RowError::new(code::INVALID_PARAMETER, line, message).of_param(STOP))
            }
        },
    }
}
