//! Harmony, the form of gpt-oss: messages on channels.
//!
//! `<|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>commentary
//! to=functions.f <|constrain|>json<|message|>{..}<|call|>`. An answer begins after
//! `<|start|>assistant`, and may end anywhere.

use std::ops::Range;

use super::ToolCall;
use super::tags;
use super::tool_calls::{first_value, is_json};

/// Start of the thinking.
pub(super) const THINKING: &str = "<|channel|>analysis<|message|>";
/// Start of the answer to the user: where structured output begins.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// Ends of a message. The next one's `<|start|>` ends it too, if a model forgot the end.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// A message of an answer.
#[derive(Debug)]
struct Message {
    kind: Kind,
    /// Range in the answer.
    body: Range<usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Content,
    /// To this function.
    Call(String),
}

/// An answer's parts.
#[derive(Debug, Default)]
pub(super) struct Harmony<'a> {
    /// Messages of the analysis channel, by place.
    pub(super) thinking: Vec<Range<usize>>,
    /// Messages to the user, and what is no message.
    pub(super) content: Vec<&'a str>,
    /// Messages to functions.
    pub(super) calls: Vec<ToolCall>,
}

/// Reads the messages of an answer. Where no call is wanted, or its arguments are not JSON, what it
/// says is content.
pub(super) fn read(text: &str, wants_calls: bool) -> Harmony<'_> {
    let mut parts = Harmony::default();
    for message in messages(text) {
        let body = &text[message.body.clone()];
        match message.kind {
            _ if body.is_empty() => {}
            Kind::Thinking => parts.thinking.push(message.body),
            Kind::Call(name) if wants_calls && is_json(body) => {
                parts.calls.push(ToolCall { name, arguments: body.trim().to_owned() });
            }
            Kind::Content | Kind::Call(_) => parts.content.push(body),
        }
    }
    parts
}

fn messages(text: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let Some(offset) = text[at..].find(MESSAGE) else {
            // A header without a message, or a text without channels.
            messages.push(Message { kind: Kind::Content, body: at..text.len() });
            break;
        };
        let kind = kind(&text[at..at + offset]);
        let body = at + offset + MESSAGE.len();
        // A string of a call's arguments may have tags in it: they end where their JSON ends.
        let arguments = matches!(kind, Kind::Call(_)).then(|| first_value(&text[body..])).flatten();
        let from = arguments.map_or(body, |(_, after)| text.len() - after.len());
        let (end, next) =
            match tags::first(&text[from..], ENDS).map(|(at, tag)| (from - body + at, tag)) {
                // The start of the next message belongs to its header.
                Some((offset, tag)) if tag == ENDS.len() - 1 => (body + offset, body + offset),
                Some((offset, tag)) => (body + offset, body + offset + ENDS[tag].len()),
                None => (text.len(), text.len()),
            };
        messages.push(Message { kind, body: body..end });
        at = next;
    }
    messages
}

/// Kind of a header: `<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json`.
fn kind(header: &str) -> Kind {
    let channel = header.split_once(CHANNEL).map_or("", |(_, after)| after.trim_start());
    let recipient = header.split_once("to=").map(|(_, after)| word(after));
    match (recipient.and_then(|name| name.strip_prefix("functions.")), word(channel)) {
        (Some(name), _) => Kind::Call(name.to_owned()),
        (None, "analysis") => Kind::Thinking,
        _ => Kind::Content,
    }
}

/// The text up to a space or a tag.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::super::{AnswerForm, AnswerParser, ParsedAnswer, ToolChoice};

    fn parse(text: &str) -> ParsedAnswer {
        let form = AnswerForm { tool_choice: ToolChoice::Auto, ..AnswerForm::default() };
        AnswerParser::new("auto", "openai", None).expect("known names").parse(text, &form)
    }

    fn parts(text: &str) -> (Option<String>, Option<String>, Vec<(String, String)>) {
        let answer = parse(text);
        let calls = answer.tool_calls.into_iter().map(|call| (call.name, call.arguments));
        (answer.reasoning, answer.content, calls.collect())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn channels_are_thinking_and_content() {
        let answer = "<|channel|>analysis<|message|>one<|end|>\
                      <|start|>assistant<|channel|>final<|message|>two";
        assert_eq!(parts(answer), (text("one"), text("two"), vec![]));
        assert_eq!(parts(&format!("{answer}<|return|>")), (text("one"), text("two"), vec![]));
        assert_eq!(parts("<|channel|>analysis<|message|>one"), (text("one"), None, vec![]));
        let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant\
                        <|channel|>final <|constrain|>json<|message|>{}";
        assert_eq!(parts(preamble), (None, text("I look.\n{}"), vec![]));
    }

    #[test]
    fn messages_to_functions_are_calls() {
        let after = "<|channel|>analysis<|message|>one<|end|><|start|>assistant\
                     <|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1e3}";
        let calls = vec![call("f", "{\"a\": 1e3}")];
        assert_eq!(parts(after), (text("one"), None, calls.clone()));
        let before = " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1e3}<|call|>";
        assert_eq!(parts(before), (None, None, calls.clone()));
        let two = format!("{before}<|start|>assistant{before}");
        assert_eq!(parts(&two), (None, None, [calls.clone(), calls].concat()));
    }

    #[test]
    fn what_is_no_call_is_content() {
        let cut = "<|channel|>commentary to=functions.f<|message|>{\"a\": ";
        assert_eq!(parts(cut), (None, text("{\"a\": "), vec![]));
        assert_eq!(parts("<|channel|>comm"), (None, text("<|channel|>comm"), vec![]));
        assert_eq!(parts("Hello."), (None, text("Hello."), vec![]));
        let tool = "<|channel|>commentary to=python<|message|>print(1)";
        assert_eq!(parts(tool), (None, text("print(1)"), vec![]));
    }
}
