//! Message content as a list of parts, OpenAI's form, for templates that expect a string.
//!
//! Some templates loop over the parts, most print `content` as it is. vLLM finds out by reading the
//! template's syntax tree; here a probe is rendered: a template that takes parts prints their text
//! only.

use serde_json::{Value, json};

use super::{ChatOptions, ChatTemplate, TextError};

const PROBE: &str = "vllm-batch probe of content parts";

/// Whether any message has a list as its content.
pub(super) fn occur_in(messages: &Value) -> bool {
    let messages = messages.as_array().into_iter().flatten();
    messages.into_iter().any(|message| message["content"].is_array())
}

/// Whether the template prints the text of parts by itself.
pub(super) fn are_taken_by(template: &ChatTemplate) -> bool {
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": PROBE}]}]);
    let rendered = template.render(&messages, &ChatOptions::default());
    rendered.is_ok_and(|text| {
        text.contains(PROBE) && !text.contains("'type'") && !text.contains("\"type\"")
    })
}

/// Every list of text parts as one string, joined by newlines as in vLLM.
///
/// # Errors
/// A part is no text: the models here read nothing else.
pub(super) fn joined(messages: &Value) -> Result<Value, TextError> {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let Some(parts) = message["content"].as_array() else { continue };
        let texts: Result<Vec<_>, _> = parts.iter().map(text_of).collect();
        message["content"] = Value::String(texts?.join("\n"));
    }
    Ok(messages)
}

fn text_of(part: &Value) -> Result<&str, TextError> {
    let text = part.as_str().or_else(|| part["text"].as_str());
    text.ok_or_else(|| {
        let kind = part["type"].as_str().unwrap_or("a part without type");
        TextError::template(format!("message content holds {kind}; only text parts are supported"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    const PARTS: &str =
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}";

    #[test]
    fn the_probe_tells_templates_apart() {
        let template = |source| ChatTemplate::new(source, None, None).unwrap();
        assert!(!are_taken_by(&template(PLAIN)));
        assert!(are_taken_by(&template(PARTS)));
    }

    #[test]
    fn text_parts_are_joined_and_others_refused() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]);
        assert!(occur_in(&messages));
        let joined_messages = joined(&messages).unwrap();
        assert!(!occur_in(&joined_messages));
        assert_eq!(joined_messages[1]["content"], "a\nb");
        assert_eq!(joined_messages[0], messages[0]);
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert!(joined(&image).unwrap_err().to_string().contains("image_url"));
    }
}
