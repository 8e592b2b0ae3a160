//! How large constraints may be, before anything compiles them. llguidance recurses over the rules
//! of a grammar, and takes quadratic time for some lists.

use serde_json::Value;

use vllm_batch_api::request::{Constraint, StructuredOutputs};
use vllm_batch_text::json_schema::limits::{self, MAX_LEVELS};

/// Bytes of a grammar, and of all choices.
const MAX_BYTES: usize = 2 << 20;

/// Bytes of a regular expression.
const MAX_REGEX_BYTES: usize = 200_000;

/// Choices, and alternatives of a grammar.
const MAX_CHOICES: usize = 20_000;

/// Quotes and slashes of a grammar: its texts and regular expressions have two each.
const MAX_QUOTES: usize = 65_536;

/// Checks a constraint as it was given.
///
/// # Errors
/// In words: a limit, and what helps.
pub(super) fn check(outputs: &StructuredOutputs) -> Result<(), String> {
    if let Some(pattern) = &outputs.whitespace_pattern {
        check_regex(pattern)?;
    }
    match &outputs.constraint {
        Constraint::Json(schema) | Constraint::StructuralTag(schema) => limits::check(schema),
        Constraint::JsonObject => Ok(()),
        Constraint::Regex(regex) => check_regex(regex),
        Constraint::Choice(choices) => {
            let bytes: usize = choices.iter().map(String::len).sum();
            at_most("choices", choices.len(), MAX_CHOICES)?;
            at_most("bytes of choices", bytes, MAX_BYTES)
        }
        Constraint::Grammar(grammar) => check_grammar(grammar),
    }
}

fn check_regex(regex: &str) -> Result<(), String> {
    at_most("bytes in a regular expression", regex.len(), MAX_REGEX_BYTES)
}

/// Checks a grammar, in Lark or in EBNF. Its levels are no more than what may begin one: a line, a
/// colon or a bracket, in whatever it stands.
///
/// # Errors
/// In words: a limit.
pub(super) fn check_grammar(grammar: &str) -> Result<(), String> {
    at_most("bytes of grammar", grammar.len(), MAX_BYTES)?;
    let (mut levels, mut alternatives, mut quotes) = (0, 0, 0);
    let mut rest = grammar;
    while !rest.is_empty() {
        let end = value_of_directive(rest)?;
        let outside = match end {
            Some((begin, _)) => &rest[..begin],
            None => rest,
        };
        for byte in outside.bytes() {
            match byte {
                b'\n' | b':' | b'(' | b'[' | b'{' => levels += 1,
                b'|' => alternatives += 1,
                b'"' | b'/' => quotes += 1,
                _ => {}
            }
        }
        rest = end.map_or("", |(_, end)| &rest[end..]);
    }
    at_most("lines, colons and opening brackets in a grammar", levels, MAX_LEVELS)?;
    at_most("alternatives in a grammar", alternatives, MAX_CHOICES)?;
    at_most("quotes and slashes in a grammar", quotes, MAX_QUOTES)
}

/// Where the first JSON value after `%json` or another directive begins and ends. Only what is JSON
/// is passed over: no rule can stand in it.
fn value_of_directive(grammar: &str) -> Result<Option<(usize, usize)>, String> {
    for (at, directive) in grammar.match_indices('%') {
        let after = at + directive.len();
        let names = ["json", "llguidance", "regex"];
        let Some(name) = names.iter().find(|name| grammar[after..].starts_with(*name)) else {
            continue;
        };
        let begin = after + name.len();
        let mut values = serde_json::Deserializer::from_str(&grammar[begin..]).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            limits::check(&value)?;
            return Ok(Some((begin, begin + values.byte_offset())));
        }
    }
    Ok(None)
}

fn at_most(what: &str, count: usize, most: usize) -> Result<(), String> {
    match count <= most {
        true => Ok(()),
        false => Err(format!("{count} {what}, more than {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_counted_and_json_is_passed_over() {
        let rule = |at: usize| format!("r{at}: r{}\n", at + 1);
        let chain = |num: usize| (0..num).map(rule).collect::<String>();
        assert_eq!(check_grammar(&chain(8_000)), Ok(()));
        assert!(check_grammar(&chain(9_000)).unwrap_err().contains("lines, colons"));
        let schema = format!("{{\"enum\": [{}1]}}", "1,\n".repeat(20_000));
        assert_eq!(check_grammar(&format!("start: %json {schema} \"a\"")), Ok(()));
        let text = format!("start: \"%json {{\"\n{}", chain(9_000));
        assert!(check_grammar(&text).is_err(), "what is no JSON counts");
        let references: Vec<Value> =
            (0..9_000).map(|at| serde_json::json!({"$ref": format!("#/{at}")})).collect();
        let nested = format!("start: %json {}", serde_json::json!({"anyOf": references}));
        assert!(check_grammar(&nested).unwrap_err().contains("references"));
        assert!(check_grammar(&format!("start: \"a\"{}", "|\"a\"".repeat(30_000))).is_err());
        assert!(check_grammar(&format!("start: {}", "\"a\" ".repeat(40_000))).is_err());
    }
}
