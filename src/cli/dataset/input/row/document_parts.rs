//! Content parts that are documents, in the spellings of OpenAI and Anthropic: a PDF, whose pages
//! become images in its place, or a plain text.

use serde_json::{Value, json};

use super::image_parts::{self, Fault};
use crate::input::row_error::code;

/// The type of plain texts.
const PLAIN: &str = "text/plain";

/// Whether a part is a document, whatever is wrong with it.
pub(super) fn is_document(part: &Value) -> bool {
    matches!(part["type"].as_str(), Some("document" | "input_file" | "file"))
}

/// Makes parts of our own of a document. `place` is what errors call its message.
pub(super) fn read(part: &Value, place: &str) -> Result<Vec<Value>, Fault> {
    match part["type"].as_str() {
        Some("document") => of_anthropic(part, place),
        Some("file") => of_openai(&part["file"], "file_data", place),
        _ => of_openai(part, "file_data", place),
    }
}

/// `file_data`, a data: URI, or `file_url`. What a file is called changes nothing.
fn of_openai(file: &Value, data: &str, place: &str) -> Result<Vec<Value>, Fault> {
    if file.get("file_id").is_some_and(|id| !id.is_null()) {
        return Err(unsupported("has a file with `file_id`: not supported; give `file_data`"));
    }
    match (file[data].as_str(), file["file_url"].as_str()) {
        (Some(data), None) => Ok(vec![image_parts::document(place, data)]),
        (None, Some(url)) => Ok(vec![image_parts::document(place, url)]),
        (Some(_), Some(_)) => Err(invalid("has a file with `file_data` and `file_url`")),
        (None, None) => Err(invalid("has a file without `file_data` that is a text")),
    }
}

fn of_anthropic(part: &Value, place: &str) -> Result<Vec<Value>, Fault> {
    if part["citations"]["enabled"] == true {
        return Err(unsupported("has a document with `citations`: not supported"));
    }
    let mut parts = Vec::new();
    for name in ["title", "context"] {
        match &part[name] {
            Value::Null => {}
            Value::String(said) => parts.push(text(said)),
            _ => return Err(invalid(&format!("has a document whose `{name}` is no text"))),
        }
    }
    let source = &part["source"];
    let given = |name: &str| {
        let missing = || invalid(&format!("has a document whose `source` has no `{name}`"));
        source[name].as_str().ok_or_else(missing)
    };
    match source["type"].as_str() {
        Some("base64") => match given("media_type")? {
            "application/pdf" => parts.push(image_parts::document(place, given("data")?)),
            _ => return Err(unsupported("has a document that is no PDF: not supported")),
        },
        Some("text") => match source["media_type"].as_str() {
            None | Some(PLAIN) => parts.push(text(given("data")?)),
            Some(_) => return Err(unsupported("has a document that is no plain text")),
        },
        Some("url") => parts.push(image_parts::document(place, given("url")?)),
        Some("content") => match &source["content"] {
            Value::String(said) => parts.push(text(said)),
            Value::Array(blocks) if blocks.iter().all(is_text) => {
                parts.extend(blocks.iter().filter_map(|block| block["text"].as_str()).map(text));
            }
            _ => return Err(unsupported("has a document of blocks that are no texts")),
        },
        Some(kind) => {
            let kind = vllm_batch_base::files::quoted(kind);
            return Err(unsupported(&format!(
                "has a document whose `source` has the type {kind}: not supported"
            )));
        }
        None => return Err(invalid("has a document whose `source` has no `type`")),
    }
    Ok(parts)
}

fn is_text(block: &Value) -> bool {
    block["type"] == "text" && block["text"].is_string()
}

fn text(said: &str) -> Value {
    json!({"type": "text", "text": said})
}

fn invalid(what: &str) -> Fault {
    (code::INVALID_PROMPT, what.to_owned())
}

fn unsupported(what: &str) -> Fault {
    (code::UNSUPPORTED_FIELD, what.to_owned())
}
