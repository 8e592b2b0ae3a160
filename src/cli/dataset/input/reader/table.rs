//! Tables: what separates the cells of a header, and whether the first line of text is a header.

use std::collections::{HashMap, HashSet};

use super::InputFormat;
use super::csv::split_cells;
use super::layout::{HeaderNames, Layout};

/// Separators of cells that are detected.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Longest name of a column, in words and bytes, in text that may as well be lines.
const MAX_NAME: (usize, usize) = (4, 64);

/// Names that a message shows.
const MAX_SHOWN: usize = 8;

/// Kind of an input by its first line of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is the header of a table.
    Table { delimiter: u8 },
    /// Each line is a row. `doubt`: what a user may want to know.
    Lines { doubt: Option<String> },
}

/// Kind of an input without a given format, by its first line. Only a line that names the columns
/// of a prompt is a header: others are rows.
pub(super) fn kind(line: &str, names: &HeaderNames) -> Kind {
    if let Some(delimiter) = separator_line(line) {
        return Kind::Table { delimiter };
    }
    let is_closed = line.bytes().filter(|byte| *byte == b'"').count() % 2 == 0;
    let tables = DELIMITERS.into_iter().map(|delimiter| (delimiter, split_cells(line, delimiter)));
    let tables = tables.filter(|(_, cells)| is_closed && cells.len() > 1 && may_be_header(cells));
    let tables: Vec<(u8, Vec<String>)> = tables.collect();
    if let Some((delimiter, _)) = tables.iter().find(|(_, cells)| names.are_in(cells)) {
        return Kind::Table { delimiter: *delimiter };
    }
    let plain = tables.iter().find(|(_, cells)| cells.iter().all(|cell| is_identifier(cell)));
    let is_only_name = names.are_in(&[line.to_owned()]);
    match plain {
        Some((delimiter, _)) if names.need_columns() => Kind::Table { delimiter: *delimiter },
        None if is_only_name && names.need_columns() => Kind::Table { delimiter: b',' },
        Some((delimiter, _)) => Kind::Lines {
            doubt: Some(format!(
                "the first line may be the header of a table: {line}; --format {} reads a table",
                format_of(*delimiter)
            )),
        },
        None if is_only_name => Kind::Lines {
            doubt: Some(format!(
                "the first line may be the header of a table of one column, `{line}`; --format \
                 csv reads a table"
            )),
        },
        None => Kind::Lines { doubt: None },
    }
}

fn format_of(delimiter: u8) -> &'static str {
    if delimiter == b'\t' { "tsv" } else { "csv" }
}

/// Whether cells look like names of columns: short, without a sentence's end, each once. A column
/// may have no name.
fn may_be_header(cells: &[String]) -> bool {
    let (max_words, max_bytes) = MAX_NAME;
    let is_name = |cell: &String| {
        cell.is_empty()
            || cell.trim() == cell
                && cell.len() <= max_bytes
                && cell.split_whitespace().count() <= max_words
                && !cell.ends_with(['.', '?', '!', ':'])
                && !cell.contains(char::is_control)
                && cell.parse::<f64>().is_err()
    };
    let named = || cells.iter().filter(|cell| !cell.is_empty());
    cells.iter().all(is_name) && named().collect::<HashSet<_>>().len() == named().count()
}

/// Whether a cell is a word as programs name columns.
fn is_identifier(cell: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    cell.starts_with(|c: char| c.is_alphabetic() || c == '_') && cell.chars().all(is_part)
}

/// Separator of the cells of a table: a given one, that of its format, or one of its first line.
/// `names`: those of a header that is looked for.
pub(super) fn delimiter(line: &str, layout: &Layout, names: Option<&HeaderNames>) -> u8 {
    let usual = if layout.format == InputFormat::Tsv { b'\t' } else { b',' };
    if let Some(delimiter) = layout.delimiter.or_else(|| separator_line(line)) {
        return delimiter;
    }
    let others = DELIMITERS.into_iter().filter(|delimiter| *delimiter != usual);
    let cells = |delimiter: u8| split_cells(line, delimiter);
    let names_prompt = |delimiter: &u8| {
        !layout.no_header && names.is_some_and(|names| names.are_in(&cells(*delimiter)))
    };
    if let Some(delimiter) = [usual].into_iter().chain(others.clone()).find(names_prompt) {
        return delimiter;
    }
    // Of equal numbers the first.
    let most = others.rev().max_by_key(|other| num_outside_of_quotes(line, *other));
    let number = |delimiter: u8| num_outside_of_quotes(line, delimiter);
    most.filter(|other| number(usual) == 0 && number(*other) > 0).unwrap_or(usual)
}

fn num_outside_of_quotes(line: &str, delimiter: u8) -> usize {
    let outside = line.split('"').step_by(2);
    outside.map(|part| part.bytes().filter(|byte| *byte == delimiter).count()).sum()
}

/// The separator that a first line names, which is no header: spreadsheets write `sep=;`.
pub(super) fn separator_line(line: &str) -> Option<u8> {
    match line.as_bytes() {
        [b's' | b'S', b'e' | b'E', b'p' | b'P', b'=', byte] if is_delimiter(*byte) => Some(*byte),
        _ => None,
    }
}

/// Whether a byte may stand between cells.
pub fn is_delimiter(byte: u8) -> bool {
    byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\r\n\0".contains(&byte)
}

/// A separator as messages show it.
pub(super) fn shown(delimiter: u8) -> String {
    match delimiter {
        b'\t' => "tab".to_owned(),
        byte => format!("`{}`", char::from(byte)),
    }
}

/// Names columns without a name by their place. Names that are there twice are refused by
/// whoever reads the header.
pub(super) fn name_unnamed(names: &mut [String]) -> Option<String> {
    let taken: HashSet<String> = names.iter().cloned().collect();
    let mut made = Vec::new();
    for (at, name) in names.iter_mut().enumerate().filter(|(_, name)| name.is_empty()) {
        *name = format!("column_{}", at + 1);
        while taken.contains(name) {
            name.push('_');
        }
        made.push(format!("`{name}`"));
    }
    let more = if made.len() > MAX_SHOWN { ", ..." } else { "" };
    let shown = made.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    (!made.is_empty()).then(|| format!("columns without a name get one by place: {shown}{more}"))
}

/// A name that two columns have, and their places from 1.
pub(super) fn doubled(names: &[String]) -> Option<(&str, usize, usize)> {
    let mut places = HashMap::new();
    names.iter().enumerate().find_map(|(at, name)| {
        let before = places.insert(name.as_str(), at + 1)?;
        Some((name.as_str(), before, at + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HeaderNames {
        HeaderNames::any_of(["prompt", "text", "question"].map(|name| vec![name.to_owned()]))
    }

    #[test]
    fn only_a_header_that_names_a_prompt_is_a_table() {
        for (line, delimiter) in [
            ("id,text", b','),
            ("ID,Text", b','),
            ("Nr;TEXT;Preis", b';'),
            ("text,id,score", b','),
            ("\"id\",\"text\"", b','),
            (",id,text", b','),
            ("id;text;price (EUR, net)", b';'),
            ("Numéro;text", b';'),
            ("id\tproduct name\tquestion", b'\t'),
            ("id|prompt", b'|'),
            ("sep=;", b';'),
        ] {
            assert_eq!(kind(line, &names()), Kind::Table { delimiter }, "{line}");
        }
        for line in [
            "",
            "What is the capital of France?",
            "Compare prompt, text and question.",
            "Rewrite the text, then answer the question",
            "one, text",
            "prompt,Rewrite this long sentence so that it is short",
            "Who wrote this,text?",
            "5,text",
            "text,text",
            "\"id,text",
            "Hello, world",
            "| id | text |",
            "a sentence",
        ] {
            assert_eq!(kind(line, &names()), Kind::Lines { doubt: None }, "{line}");
        }
        for (line, wanted) in [
            ("id,review", "--format csv"),
            ("id\treview", "--format tsv"),
            ("text", "of one column, `text`"),
        ] {
            let Kind::Lines { doubt: Some(doubt) } = kind(line, &names()) else { panic!("{line}") };
            assert!(doubt.contains(wanted), "{doubt}");
        }
        let told = names().needing_columns();
        assert_eq!(kind("id,review", &told), Kind::Table { delimiter: b',' });
        assert_eq!(kind("text", &told), Kind::Table { delimiter: b',' });
        assert_eq!(kind("a text", &told), Kind::Lines { doubt: None });
    }

    #[test]
    fn the_separator_is_the_one_of_the_header() {
        let of = |line: &str, format: InputFormat| {
            char::from(delimiter(line, &format.into(), Some(&names())))
        };
        for (line, expected) in [
            ("id,text", ','),
            ("text", ','),
            ("id;text", ';'),
            ("id;review", ';'),
            ("id;review,translated", ','),
            ("id;text;a,b", ';'),
            ("\"id\";\"review, long\"", ';'),
            ("id\treview", '\t'),
            ("id|review|x;y", '|'),
            ("sep=|", '|'),
        ] {
            assert_eq!(of(line, InputFormat::Csv), expected, "{line}");
        }
        assert_eq!(of("id\ttext", InputFormat::Tsv), '\t');
        assert_eq!(of("id,text", InputFormat::Tsv), ',');
        assert_eq!(of("id\treview,x", InputFormat::Tsv), '\t');
        let layout = Layout { delimiter: Some(b':'), ..InputFormat::Csv.into() };
        assert_eq!(delimiter("id,text", &layout, Some(&names())), b':');
    }

    #[test]
    fn columns_without_a_name_get_their_place() {
        let mut header = ["", "id", "column_4", ""].map(str::to_owned);
        let note = name_unnamed(&mut header).expect("two have none");
        assert_eq!(header, ["column_1", "id", "column_4", "column_4_"]);
        assert_eq!(note, "columns without a name get one by place: `column_1`, `column_4_`");
        assert_eq!(doubled(&header), None);
        assert_eq!(doubled(&["a", "b", "a"].map(str::to_owned)), Some(("a", 1, 3)));
    }
}
