//! CSV and TSV: records are those of a reader that looks at one byte after the other, with as many
//! cells as the header, and what is written of them reads back as the same cells.

use std::io::Cursor;

use vllm_batch::cli::input::fields::Passthrough;
use vllm_batch::cli::input::reader::{Content, InputFormat, Layout, Records, TextEncoding};
use vllm_batch::cli::input::row::RowOptions;
use vllm_batch::cli::output::{CsvFormat, RowFormat};
use vllm_batch::engine::text::AnswerParser;

use super::rows::{self, MAX_INPUT};

/// Columns of ours behind the input's.
const OWN_COLUMNS: usize = 5;

/// The first byte chooses the separator (`0`: comma), the rest is the input.
pub fn check(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    if input.len() > MAX_INPUT || rows::is_compressed(input) {
        return;
    }
    let is_tsv = (choice ^ b'0') % 2 == 1;
    let (format, delimiter) = match is_tsv {
        true => (InputFormat::Tsv, b'\t'),
        false => (InputFormat::Csv, b','),
    };
    // What is found out of the bytes is not read in the plainest way.
    let layout = Layout {
        encoding: TextEncoding::UTF_8,
        delimiter: Some(delimiter),
        ..Layout::from(format)
    };
    let is_found_out = input.starts_with(b"\xff\xfe") || input.starts_with(b"\xfe\xff");
    let is_of_cr = !input.contains(&b'\n') && input.contains(&b'\r');
    let names_separator = input.windows(4).any(|bytes| bytes.eq_ignore_ascii_case(b"sep="));
    if is_found_out || is_of_cr || names_separator {
        return;
    }
    let Ok(records) = Records::open(Box::new(Cursor::new(input.to_vec())), layout, rows::MAX_LINE)
    else {
        return;
    };
    let names = records.headers().expect("a CSV has a header");
    let (crlf, is_marked) = (records.crlf(), records.is_marked());
    let mut all = vec![];
    let expected = plainly_read(input, delimiter);
    let mut expected = expected.into_iter().skip(1);
    for record in records {
        let record = record.expect("memory can be read");
        let expected = expected.next().expect("as many records");
        let Content::Cells(cells) = record.content else { panic!("a line in a CSV") };
        assert_eq!(cells.len(), names.len(), "line {}", record.line);
        if record.error.is_none() {
            assert_eq!(cells, expected, "line {}", record.line);
        }
        all.push(cells);
    }
    assert_eq!(expected.next(), None, "a record is lost");
    if !names.is_empty() {
        let written = CsvFormat {
            delimiter,
            crlf,
            is_marked,
            out_field: "response".to_owned(),
            is_simple: false,
            parser: AnswerParser::default(),
            pooled: None,
        };
        assert_reads_back(input, layout, written, &names, &all);
    }
}

/// Runs the input, and reads the output as the input of another run.
fn assert_reads_back(
    input: &[u8],
    layout: Layout,
    written: CsvFormat,
    names: &[String],
    all: &[Vec<String>],
) {
    let mut text = Vec::new();
    written.format_marked_header(names, &mut text);
    let options = RowOptions::default();
    let mut index = 0;
    let found = rows::run(input, layout, &options, RowFormat::Csv(written), &mut |row, line| {
        let Passthrough::Cells { cells, .. } = row else { panic!("cells became fields") };
        assert_eq!(cells, &all[index]);
        index += 1;
        text.extend_from_slice(line);
    });
    // Columns that name no prompt are refused.
    let Ok(found) = found else { return };
    assert_eq!(found.rows, all.len() as u64);
    let shown = String::from_utf8_lossy(&text).into_owned();
    let again = Records::open(Box::new(Cursor::new(text)), layout, usize::MAX / 2);
    let mut again = again.unwrap_or_else(|error| panic!("{error}: {shown}"));
    let header = again.headers().expect("a CSV has a header");
    assert_eq!(header.len(), names.len() + OWN_COLUMNS, "{shown}");
    for (kept, name) in header.iter().zip(names) {
        assert!(kept == name || kept.ends_with(&format!("input_{name}")), "{name}: {shown}");
    }
    for (index, cells) in all.iter().enumerate() {
        let record = again.next().unwrap_or_else(|| panic!("row {index} is gone: {shown}"));
        let record = record.expect("memory can be read");
        assert_eq!(record.error, None, "row {index}: {shown}");
        let Content::Cells(found) = record.content else { panic!("a line in a CSV") };
        assert_eq!(&found[..cells.len()], cells, "row {index}: {shown}");
    }
    assert!(again.next().is_none(), "more rows than were written: {shown}");
}

/// The cells of every record, the header's included, read in the plainest way. What is no UTF-8 is
/// read lossily, since records of it have errors.
fn plainly_read(input: &[u8], delimiter: u8) -> Vec<Vec<String>> {
    let mut rest = input.strip_prefix(b"\xef\xbb\xbf").unwrap_or(input);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let line_len = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        if rest[..line_len].iter().all(|byte| b" \r\n".contains(byte)) {
            rest = &rest[line_len..];
            continue;
        }
        let (mut cells, mut cell) = (Vec::new(), Vec::new());
        let (mut at, mut is_quoted, mut is_start) = (0, false, true);
        while let Some(&byte) = rest.get(at) {
            at += 1;
            let next = rest.get(at).copied();
            match byte {
                b'"' if is_quoted && next == Some(b'"') => {
                    cell.push(b'"');
                    at += 1;
                }
                b'"' if is_quoted || is_start => is_quoted = !is_quoted,
                _ if is_quoted => cell.push(byte),
                b'\n' => break,
                b'\r' if matches!(next, None | Some(b'\n')) => {}
                _ if byte == delimiter => cells.push(std::mem::take(&mut cell)),
                _ => cell.push(byte),
            }
            is_start = byte == delimiter && !is_quoted;
        }
        cells.push(cell);
        records.push(cells.iter().map(|cell| String::from_utf8_lossy(cell).into()).collect());
        rest = &rest[at..];
    }
    records
}
