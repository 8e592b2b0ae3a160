//! Rows whose prompt has no text: whatever a model answers them, it makes up.

use serde_json::Value;

use super::endpoint::Endpoint;
use super::named::NamedRow;
use super::shape::RowShape;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::compared::{Compared, ScoreInput};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_text::Chat;

/// Whether a text is empty, or white space alone.
pub(super) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The error of a row in which something has no text.
pub(super) fn error(what: &str, line: u64) -> RowError {
    let message = format!("{what} is empty; --allow-empty-prompts asks it all the same");
    RowError::new(code::EMPTY_PROMPT, line, message)
}

/// Refuses a prompt in which there is nothing to answer. Texts that are compared were looked at
/// where their names are known.
pub(super) fn check(
    prompt: &Prompt,
    (shape, row): (&RowShape, &NamedRow),
    line: u64,
) -> Result<(), RowError> {
    let Some(part) = blank_part(prompt) else { return Ok(()) };
    let (name, param) = field(shape, row);
    let what = match part {
        Part::Whole => name,
        Part::LastMessage => format!("{name}: the last message"),
        Part::Text(number) => format!("{name}: text {number}"),
    };
    let error = error(&what, line);
    Err(match param {
        Some(param) => error.of_param(param),
        None => error,
    })
}

/// Refuses texts that are compared, of which one side has none. A document without text among
/// others is one that fits badly.
pub(super) fn check_sides(
    compared: &Compared,
    [queries, documents]: [&'static str; 2],
    line: u64,
) -> Result<(), RowError> {
    let name = match () {
        () if compared.queries().iter().any(is_blank_input) => queries,
        () if compared.documents().iter().all(is_blank_input) => documents,
        () => return Ok(()),
    };
    Err(error(&format!("`{name}`"), line).of_param(name))
}

fn is_blank_input(input: &ScoreInput) -> bool {
    !input.has_images() && is_blank(&input.text())
}

/// What of a prompt has no text.
enum Part {
    Whole,
    LastMessage,
    /// One of several, from 0.
    Text(usize),
}

fn blank_part(prompt: &Prompt) -> Option<Part> {
    match prompt {
        Prompt::Text(text) | Prompt::Rolling(text) => is_blank(text).then_some(Part::Whole),
        Prompt::Messages(chat) => blank_question(chat),
        Prompt::WithMedia(asked) => blank_question(&asked.chat),
        Prompt::Choices(choices) => blank_part(&choices.context),
        Prompt::Several(prompts) => {
            let number = prompts.iter().position(|prompt| blank_part(prompt).is_some())?;
            Some(if prompts.len() == 1 { Part::Whole } else { Part::Text(number) })
        }
        // What has no tokens the engine refuses.
        Prompt::TokenIds(_) | Prompt::Pair(_) | Prompt::Compared(_) => None,
    }
}

/// The last message of a chat, where it is a question without text or image.
fn blank_question(chat: &Chat) -> Option<Part> {
    let last = chat.messages.as_array()?.last()?;
    let is_asked = last["role"] == "user" && is_blank_content(&last["content"]);
    is_asked.then_some(Part::LastMessage)
}

/// A content without text, or of parts that are all without. Parts of other kinds say something.
fn is_blank_content(content: &Value) -> bool {
    match content {
        Value::String(text) => is_blank(text),
        Value::Array(parts) => parts.iter().all(|part| part["text"].as_str().is_some_and(is_blank)),
        _ => false,
    }
}

/// The field with the prompt, as errors call it, and its name in a request.
fn field(shape: &RowShape, row: &NamedRow) -> (String, Option<&'static str>) {
    let param = match shape {
        RowShape::OpenAiBatch => Endpoint::of_line(&row.fields).map(Endpoint::prompt_field),
        RowShape::AnthropicBatch => Some("messages"),
        _ => None,
    };
    let name = match (shape, param) {
        (RowShape::AnthropicBatch, Some(param)) => format!("params.{param}"),
        (_, Some(param)) => format!("body.{param}"),
        (RowShape::Field(name, _), None) => format!("`{name}`"),
        (RowShape::Conversations, None) => "`conversations`".to_owned(),
        (RowShape::Alpaca, None) => "`instruction`".to_owned(),
        _ => "the prompt".to_owned(),
    };
    (name, param)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(messages: Value) -> Prompt {
        Prompt::Messages(messages.into())
    }

    #[test]
    fn a_chat_is_empty_where_its_last_question_is() {
        let user = |content: Value| json!({"role": "user", "content": content});
        let system = json!({"role": "system", "content": "Sort it."});
        let answer = json!({"role": "assistant", "content": "good"});
        let text = |text: &str| json!([{"type": "text", "text": text}]);
        let blank = [
            json!([user(json!(""))]),
            json!([system, user(json!(" \n\u{a0}"))]),
            json!([user(json!("I like it")), answer, user(json!(""))]),
            json!([user(text(" "))]),
            json!([user(json!([]))]),
        ];
        for messages in blank {
            assert!(blank_part(&chat(messages.clone())).is_some(), "{messages}");
        }
        let asked = [
            json!([user(json!("a"))]),
            json!([system]),
            json!([user(json!("")), json!({"role": "assistant", "content": ""})]),
            json!([user(json!("call it")), json!({"role": "tool", "content": ""})]),
            json!([user(json!([{"type": "image_url", "image_url": {"url": "a"}}]))]),
        ];
        for messages in asked {
            assert!(blank_part(&chat(messages.clone())).is_none(), "{messages}");
        }
    }
}
