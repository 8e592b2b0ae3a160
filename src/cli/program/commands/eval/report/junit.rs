//! The report as JUnit XML, which GitLab, Jenkins and GitHub's actions read: a test case for each
//! row, of the class that its group is. Written row by row.

use std::io::{self, Write};
use vllm_batch_dataset::PROGRAM;

use super::super::gates::Outcome;
use super::super::rows::JudgedRow;
use super::super::totals::{Failure, Group};

/// Characters of a text.
const MAX_TEXT: usize = 4000;

/// The class of rows without a group.
const CLASS: &str = "eval";

/// The class of gates.
const GATES: &str = "gates";

/// Writes the beginning: the numbers of all rows and gates, and a case for each gate.
///
/// # Errors
/// As the writer.
pub fn begin(all: &Group, gates: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    let Group { num_rows, num_failed, num_errors, .. } = all;
    let num_tests = num_rows + gates.len() as u64;
    let num_failed = num_failed + gates.iter().filter(|gate| !gate.holds()).count() as u64;
    let counts = format!("tests=\"{num_tests}\" failures=\"{num_failed}\" errors=\"{num_errors}\"");
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites name=\"{PROGRAM}\" {counts}>")?;
    writeln!(out, "<testsuite name=\"{CLASS}\" {counts}>")?;
    for gate in gates {
        let (name, value) = (escaped(gate.gate()), gate.value());
        write!(out, "<testcase classname=\"{GATES}\" name=\"{name}\"")?;
        match gate.holds() {
            true => writeln!(out, "/>")?,
            false => writeln!(
                out,
                "><failure message=\"{name}: it is {value}\" type=\"gate\"/></testcase>"
            )?,
        }
    }
    Ok(())
}

/// Writes the end.
///
/// # Errors
/// As the writer.
pub fn end(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "</testsuite>\n</testsuites>")
}

/// Writes a row.
///
/// # Errors
/// As the writer.
pub fn case(row: JudgedRow, out: &mut dyn Write) -> io::Result<()> {
    let class = escaped(row.group.as_deref().unwrap_or(CLASS));
    let failure = Failure { row };
    let name = escaped(&failure.name());
    write!(out, "<testcase classname=\"{class}\" name=\"{name}\"")?;
    let row = &failure.row;
    if row.error.is_none() && row.passed != Some(false) {
        return writeln!(out, "/>");
    }
    let said = escaped(&failure.said());
    if row.error.is_some() {
        return writeln!(out, "><error message=\"{said}\"/></testcase>");
    }
    let (expected, answer) = (&row.expected, &row.answer);
    let text = format!("question: {}\nexpected: {expected}\nanswer: {answer}", row.question);
    let text = escaped(&text);
    writeln!(out, "><failure message=\"{said}\" type=\"failed\">{text}</failure></testcase>")
}

/// Text for an attribute or an element. XML has no way to write most control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars().take(MAX_TEXT) {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // As they are, readers make spaces of them in attributes.
            '\n' | '\r' | '\t' => escaped.push_str(&format!("&#{};", c as u32)),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_element() {
        let text = "a\"b<c>&d'\n\u{1}\u{b}\u{ffff}é😀";
        let expected = "a&quot;b&lt;c&gt;&amp;d'&#10;\u{fffd}\u{fffd}\u{fffd}é😀";
        assert_eq!(escaped(text), expected);
        assert_eq!(escaped(&"x".repeat(MAX_TEXT + 1)).len(), MAX_TEXT);
    }
}
