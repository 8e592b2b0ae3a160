//! How differences are shown: lines for people, JSON objects for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::difference::Difference;
use super::rows::OutputRow;
use vllm_batch_dataset::terminal::error::Excerpt;
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_dataset::terminal::style::Style;

/// Characters shown of an error's text or an id.
const SHOWN_OF_TEXT: usize = 200;

/// Something that is not the same in both files.
pub enum Finding {
    /// A row of both.
    Different(OutputRow, OutputRow, Box<Difference>),
    /// A row of A has no partner.
    OnlyInA(OutputRow),
    /// A row of B has none.
    OnlyInB(OutputRow),
}

impl Finding {
    /// For people: one line, and where texts differ two excerpts and a caret.
    pub fn text(&self, style: Style) -> String {
        match self {
            Finding::OnlyInA(row) => {
                style.removed(&format!("{}: only in A", place(row, None))) + "\n"
            }
            Finding::OnlyInB(row) => {
                style.added(&format!("{}: only in B", place(row, None))) + "\n"
            }
            Finding::Different(a, b, difference) => {
                let mut text = style.strong(&format!("{}:", place(a, Some(b)))) + " ";
                text += &parts(difference).join("; ");
                text.push('\n');
                if let Some(found) = &difference.text {
                    let excerpts = [&found.texts.0, &found.texts.1].map(|text| {
                        let excerpt = Excerpt::around(text, found.byte);
                        (sanitized(&excerpt.text), excerpt.caret)
                    });
                    let caret = " ".repeat(excerpts[0].1);
                    let [(one, _), (other, _)] = &excerpts;
                    let one = style.removed(&format!("- {one}"));
                    let other = style.added(&format!("+ {other}"));
                    let _ = write!(text, "  {one}\n  {other}\n    {caret}^\n");
                }
                text
            }
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        match self {
            Finding::OnlyInA(row) => {
                json!({"kind": "only_in_a", "line_a": row.line, "line_b": null, "id": row.id})
            }
            Finding::OnlyInB(row) => {
                json!({"kind": "only_in_b", "line_a": null, "line_b": row.line, "id": row.id})
            }
            Finding::Different(a, b, difference) => {
                let Difference { ids, errors, num_outputs, output, token, text, finish_reasons } =
                    difference.as_ref();
                json!({
                    "kind": "different",
                    "line_a": a.line,
                    "line_b": b.line,
                    "id": a.id.as_ref().or(b.id.as_ref()),
                    "ids": pair(ids.as_ref()),
                    "errors": pair(errors.as_ref()),
                    "num_outputs": pair(num_outputs.as_ref()),
                    "output": output,
                    "token": token.as_ref().map(|token| {
                        json!({"index": token.index, "a": token.ids.0, "b": token.ids.1})
                    }),
                    "text": text.as_ref().map(|found| {
                        let excerpt = |text: &str| Excerpt::around(text, found.byte).text;
                        json!({
                            "character": found.character,
                            "byte": found.byte,
                            "a": excerpt(&found.texts.0),
                            "b": excerpt(&found.texts.1),
                        })
                    }),
                    "finish_reasons": pair(finish_reasons.as_ref()),
                })
            }
        }
    }
}

fn pair<T: serde::Serialize>(pair: Option<&(T, T)>) -> Value {
    pair.map_or(Value::Null, |(a, b)| json!({"a": a, "b": b}))
}

/// `line 3, id 7`, or `lines 3 and 4`.
fn place(a: &OutputRow, b: Option<&OutputRow>) -> String {
    let mut place = match b {
        Some(b) if a.line != b.line => format!("lines {} and {}", a.line, b.line),
        _ => format!("line {}", a.line),
    };
    let id = a.id.as_ref().or(b.and_then(|b| b.id.as_ref()));
    if let Some(id) = id {
        let _ = write!(place, ", id {}", short(id));
    }
    place
}

fn parts(difference: &Difference) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some((a, b)) = &difference.ids {
        parts.push(format!("ids {} and {}: not the same row", short(a), short(b)));
    }
    if let Some((a, b)) = &difference.errors {
        let name = |error: &Option<String>| match error {
            Some(error) => format!("error `{}`", short(error)),
            None => "an answer".to_owned(),
        };
        parts.push(format!("{} and {}", name(a), name(b)));
    }
    let output = match difference.output {
        0 => String::new(),
        index => format!("output {index}, "),
    };
    if let Some(token) = &difference.token {
        let name = |id: Option<i64>| id.map_or("the end".to_owned(), |id| id.to_string());
        let (a, b) = (name(token.ids.0), name(token.ids.1));
        parts.push(format!("{output}token {}: {a} and {b}", token.index));
    }
    if let Some(text) = &difference.text {
        parts.push(format!("{output}character {} (byte {})", text.character, text.byte));
    }
    if let Some((a, b)) = &difference.finish_reasons {
        parts.push(format!("{output}finish_reason {} and {}", short(a), short(b)));
    }
    if let Some((a, b)) = &difference.num_outputs {
        parts.push(format!("{a} and {b} outputs"));
    }
    parts
}

/// Text of a file, in one line and without anything a terminal would obey.
fn short(text: &str) -> String {
    match text.char_indices().nth(SHOWN_OF_TEXT) {
        Some((end, _)) => format!("{}...", sanitized(&text[..end])),
        None => sanitized(text),
    }
}
