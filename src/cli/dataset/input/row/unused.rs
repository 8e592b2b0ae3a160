//! Fields of requests that change nothing in their answers: a remark names each, so that none is
//! dropped in silence. What is not in a list of fields that are done, and is not refused, is one.

use serde_json::Value;

use super::near_miss::NearMisses;
use super::remarks::Remark;
use super::unsupported::{self, Place, is_nothing};
use crate::input::fields::JsonFields;
use crate::input::overrides::parameter_names;
use crate::input::own_params::OwnParams;

/// Fields of a place that are done, beside sampling parameters.
fn is_done(name: &str, place: Place) -> bool {
    let (own, samples): (&[&str], bool) = match place {
        Place::Row => return true,
        Place::Chat => (CHAT, true),
        Place::Completions => (&["echo", "model", "priority", "prompt"], true),
        Place::Responses => (RESPONSES, true),
        Place::Anthropic => (ANTHROPIC, true),
        Place::Recordings => (RECORDINGS, true),
        Place::Embeddings => (EMBEDDINGS, false),
        Place::Score => (SCORE, false),
    };
    own.contains(&name) || samples && parameter_names().any(|known| known == name)
}

const CHAT: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include_reasoning",
    "messages",
    "model",
    "parallel_tool_calls",
    "priority",
    "reasoning_effort",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
];

const RESPONSES: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include",
    "include_reasoning",
    "input",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "priority",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
];

const ANTHROPIC: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "include_reasoning",
    "messages",
    "model",
    "output_config",
    "output_format",
    "reasoning_effort",
    "stop_sequences",
    "system",
    "thinking",
    "tool_choice",
    "tools",
];

const EMBEDDINGS: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "continue_final_message",
    "dimensions",
    "encoding_format",
    "input",
    "messages",
    "model",
    "priority",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
];

const RECORDINGS: &[&str] = &[
    "file_url",
    "language",
    "model",
    "priority",
    "prompt",
    "response_format",
    "timestamp_granularities",
];

const SCORE: &[&str] = &[
    "add_special_tokens",
    "data_1",
    "data_2",
    "documents",
    "instruction",
    "items",
    "max_tokens_per_doc",
    "max_tokens_per_query",
    "model",
    "priority",
    "queries",
    "query",
    "text_1",
    "text_2",
    "top_n",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
];

/// Values of fields that ask for nothing, beside what is off or empty.
const DEFAULTS: &[(&str, &[&str])] = &[
    ("service_tier", &["auto", "default", "standard_only"]),
    ("truncation", &["disabled"]),
    ("return_documents", &["true"]),
];

/// Fields of the line itself, around a request.
const ENVELOPE: &[&str] = &["custom_id", "method", "url", "body", "params"];

/// The remarks on a request: its body, or `params`.
pub(super) fn remarks(
    body: &JsonFields,
    place: Place,
    names: &mut NearMisses,
    own_params: &OwnParams,
) -> Vec<Remark> {
    let samples = !matches!(place, Place::Embeddings | Place::Score);
    let mut remarks = if samples { names.find(body, true) } else { Vec::new() };
    let num_near = remarks.len();
    for field in body.iter().filter(|field| field.value != "null") {
        let name = &*field.name;
        if is_done(name, place) {
            let flag = own_params.overruled(name);
            remarks.extend(flag.map(|flag| Remark::Overrules { name: name.to_owned(), flag }));
            continue;
        }
        let is_near = remarks[..num_near]
            .iter()
            .any(|remark| matches!(remark, Remark::NearMiss { name: near, .. } if near == name));
        if !is_near && !unsupported::is_checked(name, place) && !asks_nothing(name, field.value) {
            remarks.push(no_effect(name));
        }
    }
    nested(body, place, &mut remarks);
    remarks
}

/// The remarks on the fields of a line around its request.
pub(super) fn of_line(fields: &JsonFields) -> impl Iterator<Item = Remark> + '_ {
    let others = fields.iter().filter(|field| !ENVELOPE.contains(&&*field.name));
    others.filter(|field| field.value != "null").map(|field| no_effect(&field.name))
}

pub(super) fn no_effect(name: &str) -> Remark {
    Remark::NoEffect { name: name.to_owned() }
}

fn asks_nothing(name: &str, json: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(json) else { return false };
    let is_default = |known: &&str| value.as_str() == Some(known) || json == *known;
    match DEFAULTS.iter().find(|(known, _)| *known == name) {
        Some((_, defaults)) => defaults.iter().any(is_default),
        None => is_nothing(&value),
    }
}

/// Looks into the fields that hold objects of several meanings.
fn nested(body: &JsonFields, place: Place, remarks: &mut Vec<Remark>) {
    let value = |name: &str| -> Option<Value> { serde_json::from_str(body.get(name)?).ok() };
    let mut unknown = |path: &str, value: &Value, known: &[&str]| {
        for (name, value) in value.as_object().into_iter().flatten() {
            let remark = no_effect(&format!("{path}.{name}"));
            if !value.is_null() && !known.contains(&name.as_str()) && !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
    };
    match place {
        Place::Row | Place::Recordings | Place::Embeddings | Place::Score => {}
        Place::Chat | Place::Completions => {
            if let Some(format) = value("response_format") {
                format_keys("response_format", &format, &mut unknown);
            }
        }
        Place::Responses => {
            if let Some(text) = value("text") {
                unknown("text", &text, &["format", "verbosity"]);
                format_keys("text.format", &text["format"], &mut unknown);
            }
            if let Some(reasoning) = value("reasoning") {
                unknown("reasoning", &reasoning, &["effort"]);
            }
            for tool in value("tools").iter().flat_map(|tools| tools.as_array()).flatten() {
                let known = ["type", "name", "description", "parameters", "strict"];
                unknown("tools[]", tool, &known);
            }
        }
        Place::Anthropic => {
            if let Some(config) = value("output_config") {
                unknown("output_config", &config, &["effort", "format"]);
            }
            if let Some(thinking) = value("thinking") {
                unknown("thinking", &thinking, &["type", "budget_tokens", "display"]);
            }
            for tool in value("tools").iter().flat_map(|tools| tools.as_array()).flatten() {
                let known = ["type", "name", "description", "input_schema", "strict"];
                unknown("tools[]", tool, &known);
            }
            for name in ["messages", "system"] {
                let has_it = |json: &str| json.contains("\"cache_control\"");
                if body.get(name).is_some_and(has_it) {
                    let remark = no_effect("cache_control");
                    if !remarks.contains(&remark) {
                        remarks.push(remark);
                    }
                }
            }
        }
    }
    if strict_is_idle(body, place) {
        remarks.push(no_effect("tools[].strict"));
    }
}

/// The keys of a format of answers, by its type.
fn format_keys(path: &str, format: &Value, unknown: &mut impl FnMut(&str, &Value, &[&str])) {
    match format["type"].as_str() {
        Some("json_object") => unknown(path, format, &["type", "schema"]),
        Some("json_schema") => {
            unknown(path, format, &["type", "json_schema", "schema", "name", "strict"]);
            let path = format!("{path}.json_schema");
            unknown(&path, &format["json_schema"], &["name", "schema", "strict"]);
        }
        Some("text") => unknown(path, format, &["type"]),
        _ => {}
    }
}

/// Whether a tool wants its schema kept to, and the model decides what it calls: only an answer
/// that must be a call is held to a schema.
fn strict_is_idle(body: &JsonFields, place: Place) -> bool {
    let given = |name: &str| body.get(name).filter(|json| *json != "null");
    let is_chat = matches!(place, Place::Chat | Place::Responses | Place::Anthropic);
    let Some(tools) = given("tools").filter(|json| is_chat && json.contains("\"strict\"")) else {
        return false;
    };
    let decides = given("tool_choice").is_none_or(|choice| {
        choice == "\"auto\""
            || serde_json::from_str::<Value>(choice).is_ok_and(|choice| choice["type"] == "auto")
    });
    let tools: Value = serde_json::from_str(tools).unwrap_or_default();
    let is_strict = |tool: &Value| tool["strict"] == true || tool["function"]["strict"] == true;
    decides && tools.as_array().is_some_and(|tools| tools.iter().any(is_strict))
}
