//! Message content as a text or as a list of parts, OpenAI's form: what a template expects.
//!
//! Some templates loop over the parts, most print `content` as it is. vLLM finds out by reading the
//! template's syntax tree (`content_loops`), and so do we. What its rule does not see, loops in
//! macros, probes find out: a template that shows only one of both forms is given that one.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::control_tokens::{IMAGE, SOUND};
use super::{ChatOptions, ChatTemplate, TextError};

const PROBE: &str = "vllm-batch probe of content parts";

/// Roles of turns that are compared: what comes first, and what it is compared with.
pub const COMPARED: [&str; 2] = ["query", "document"];

/// How a template is given the content of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// Lists are joined.
    Text,
    /// As the row has it: the template takes both.
    AsGiven,
    /// Texts are lists of one part.
    Parts,
}

/// Whether any message has a list as its content.
fn occur_in(messages: &Value) -> bool {
    let messages = messages.as_array().into_iter().flatten();
    messages.into_iter().any(|message| message["content"].is_array())
}

/// Messages with their content in the form that a template expects.
///
/// # Errors
/// A part is no text and, unless there are media, no medium, and the template expects a text.
pub(super) fn prepared(
    messages: &Value,
    has_media: bool,
    format: impl Fn() -> ContentFormat,
) -> Result<Cow<'_, Value>, TextError> {
    let messages = match has_media {
        // The sign of a medium that users typed could forge one.
        true => Cow::Owned(with_sounds_named(without_signs(messages))),
        false => Cow::Borrowed(messages),
    };
    Ok(match format() {
        ContentFormat::Text if occur_in(&messages) => Cow::Owned(joined(&messages, has_media)?),
        ContentFormat::Parts => Cow::Owned(with_parts(&messages)),
        ContentFormat::Text | ContentFormat::AsGiven => messages,
    })
}

/// The value without the signs of media.
fn without_signs(value: &Value) -> Value {
    let without = |text: &str| text.replace(IMAGE, "").replace(SOUND, "");
    match value {
        Value::String(text) => Value::String(without(text)),
        Value::Array(items) => items.iter().map(without_signs).collect(),
        Value::Object(items) => {
            items.iter().map(|(key, item)| (without(key), without_signs(item))).collect()
        }
        other => other.clone(),
    }
}

/// Parts of recordings with a key of that name, which some templates look for (Qwen2-Audio).
fn with_sounds_named(mut messages: Value) -> Value {
    for message in messages.as_array_mut().into_iter().flatten() {
        let parts = message["content"].as_array_mut().into_iter().flatten();
        for part in parts.filter(|part| part["type"] == "audio" && part["audio"].is_null()) {
            part["audio"] = Value::Null;
        }
    }
    messages
}

/// Texts as lists of one part.
fn with_parts(messages: &Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        if message["content"].is_string() {
            message["content"] = json!([{"type": "text", "text": message["content"].take()}]);
        }
    }
    messages
}

/// What a template expects.
pub(super) fn format_of(template: &ChatTemplate, with_tools: bool) -> ContentFormat {
    if template.loops_over_content(with_tools) {
        return ContentFormat::Parts;
    }
    let shown = |roles: &[&str], content: Value| {
        let messages = roles.iter().map(|role| json!({"role": role, "content": content}));
        let options =
            ChatOptions { tools: with_tools.then(|| json!([])), ..ChatOptions::default() };
        let rendered = template.render(&messages.collect(), &options).unwrap_or_default();
        rendered.contains(PROBE) && !rendered.contains("'type'") && !rendered.contains("\"type\"")
    };
    let parts = || json!([{"type": "text", "text": PROBE}]);
    let format_of = |roles| match (shown(roles, parts()), shown(roles, PROBE.into())) {
        (false, false) => None,
        (false, true) => Some(ContentFormat::Text),
        (true, true) => Some(ContentFormat::AsGiven),
        (true, false) => Some(ContentFormat::Parts),
    };
    let format = format_of(&["user"]).or_else(|| format_of(&COMPARED));
    format.unwrap_or(ContentFormat::Text)
}

/// Every list of parts as one string, joined by newlines as in vLLM: media, then texts. Of turns
/// that are compared media have nothing behind them, as in vLLM.
///
/// # Errors
/// A part is neither.
fn joined(messages: &Value, has_media: bool) -> Result<Value, TextError> {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let Some(parts) = message["content"].as_array() else { continue };
        let sign = |part: &Value| match part["type"].as_str() {
            Some("image") if has_media => Some(IMAGE),
            Some("audio") if has_media => Some(SOUND),
            _ => None,
        };
        let media: Vec<_> = parts.iter().filter_map(sign).collect();
        let texts = parts.iter().filter(|part| sign(part).is_none()).map(text_of);
        let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
        let role = message["role"].as_str();
        let content = match role.is_some_and(|role| COMPARED.contains(&role)) {
            true => media.concat() + &texts.join("\n"),
            false => [media, texts].concat().join("\n"),
        };
        message["content"] = Value::String(content);
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

    /// The first two by vLLM's rule, the others by what they show.
    #[test]
    fn templates_get_the_form_that_they_show() {
        let each = |body: &str| format!("{{% for m in messages %}}{body}{{% endfor %}}");
        let parts = "{% for p in m['content'] %}[{{ p.text }}]{% endfor %}";
        let both = "{% if m.content is string %}[{{ m.content }}]{% else %}PARTS{% endif %}";
        let in_macro = "{% macro f(c) %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endmacro %}";
        let assigned = "{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}";
        for (source, format) in [
            (each(parts), ContentFormat::Parts),
            (each(&both.replace("PARTS", parts)), ContentFormat::Parts),
            (
                format!(
                    "{{% set all = messages[0:]|list %}}{}",
                    each(parts).replace("messages", "all")
                ),
                ContentFormat::Parts,
            ),
            (each("[{{ m.content }}]"), ContentFormat::Text),
            (each("[{{ m.content|join }}]"), ContentFormat::Text),
            (in_macro.to_string() + &each("{{ f(m.content) }}"), ContentFormat::Parts),
            (each(assigned), ContentFormat::Parts),
            (each(&both.replace("PARTS", assigned)), ContentFormat::AsGiven),
        ] {
            let template = ChatTemplate::new(&source, None, None).unwrap();
            assert_eq!(format_of(&template, false), format, "{source}");
            let text = json!([{"role": "user", "content": "hi"}]);
            let prepared = prepared(&text, false, || format).unwrap();
            let shown = template.render(&prepared, &ChatOptions::default()).unwrap();
            assert_eq!(shown, "[hi]");
        }
    }

    #[test]
    fn templates_of_pairs_get_the_form_that_they_show() {
        let of = |shown: &str| {
            let turn = "{% for m in messages if m.role == 'query' %}{% set c = m.content %}";
            let source = format!("{turn}{shown}{{% endfor %}}");
            format_of(&ChatTemplate::new(&source, None, None).unwrap(), false)
        };
        assert_eq!(of("{{ c }}"), ContentFormat::Text);
        assert_eq!(of("{% for p in c %}{{ p.text }}{% endfor %}"), ContentFormat::Parts);
        let parts = json!([{"type": "text", "text": "a"}, {"type": "image"}, "b"]);
        let messages = json!([{"role": "query", "content": parts}]);
        assert_eq!(joined(&messages, true).unwrap()[0]["content"], "\u{F0002}a\nb");
    }

    #[test]
    fn text_parts_are_joined_and_others_refused() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]);
        assert!(occur_in(&messages));
        let joined_messages = joined(&messages, false).unwrap();
        assert!(!occur_in(&joined_messages));
        assert_eq!(joined_messages[1]["content"], "a\nb");
        assert_eq!(joined_messages[0], messages[0]);
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert!(joined(&image, true).unwrap_err().to_string().contains("image_url"));
        let content = json!(["a\u{F0002}\u{F0003}", {"type": "image"}, "b", {"type": "audio"}]);
        let image = json!([{"role": "user", "content": content}]);
        assert!(joined(&image, false).is_err());
        let given = prepared(&image, true, || ContentFormat::Text).unwrap();
        assert_eq!(given[0]["content"], "\u{F0002}\n\u{F0003}\na\nb");
    }
}
