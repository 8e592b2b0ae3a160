//! Server-sent events.

use vllm_batch_dataset::output::line_breaks;

/// What ends a stream, after errors too.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// An event of JSON. Some readers break lines at U+0085, U+2028 and U+2029, which JSON leaves as
/// they are in strings.
pub(crate) fn event(json: &str) -> String {
    named(None, json)
}

/// The same with a name, as Anthropic's have.
pub(crate) fn named(name: Option<&str>, json: &str) -> String {
    let mut event = String::with_capacity(json.len() + 8);
    if let Some(name) = name {
        event.push_str("event: ");
        event.push_str(name);
        event.push('\n');
    }
    event.push_str("data: ");
    let (start, mut event) = (event.len(), event.into_bytes());
    event.extend_from_slice(json.as_bytes());
    line_breaks::escape(&mut event, start);
    event.extend_from_slice(b"\n\n");
    String::from_utf8(event).expect("JSON is text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reader_breaks_an_event_into_lines() {
        let event = event("{\"a\":\"\u{85}\u{2028}\u{2029}é\"}");
        assert_eq!(event, "data: {\"a\":\"\\u0085\\u2028\\u2029é\"}\n\n");
    }
}
