//! Rows of Anthropic's message batches: `custom_id`, `params`.

use serde_json::Value;

use super::chat::{ChatDefaults, Origin};
use super::near_miss::NearMisses;
use super::unsupported::{self, Place};
use super::{Asked, openai, prompt};
use crate::cli::input::fields::{JsonFields, json_string};
use crate::cli::input::overrides::Overrides;
use crate::cli::input::row_error::{RowError, code};

/// What a request asks for.
pub(super) fn read(
    fields: &JsonFields,
    chats: &ChatDefaults,
    names: &mut NearMisses,
    line: u64,
) -> Result<Asked, RowError> {
    openai::check_custom_id(fields, line)?;
    let params = openai::object(fields, "params", line)?;
    unsupported::check(&params, Place::Anthropic, line)?;
    let system = system(&params, line).map_err(|error| error.of_param("system"))?;
    const NAME: &str = "params.messages";
    let messages = openai::messages_of(&params, NAME, system, line)?;
    let made = chats.chat(messages, &params, Origin::Anthropic, (NAME, line))?;
    let mut overrides = Overrides::collect(&params);
    if let Some(texts) = stop_sequences(&params, line)? {
        overrides = overrides.with("stop", Some(texts));
    }
    Ok(Asked { near_misses: names.find(&params, true), ..Asked::of_chat(made, overrides) })
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
    const NAME: &str = "stop_sequences";
    match params.get(NAME) {
        None | Some("null") => Ok(None),
        Some(json) => match serde_json::from_str::<Vec<String>>(json) {
            Ok(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| json_string(text)).collect();
                Ok(Some(format!("[{}]", texts.join(","))))
            }
            Err(_) => {
                let message = format!("{NAME}: expected a list of strings");
                Err(RowError::new(code::INVALID_PARAMETER, line, message).of_param(NAME))
            }
        },
    }
}
