//! CSV and TSV: records have as many cells as the header, and what is written of them reads back as
//! the same cells.

use std::io::Cursor;

use vllm_batch::cli::fields::Passthrough;
use vllm_batch::cli::output::{CsvFormat, RowFormat};
use vllm_batch::cli::reader::{Content, InputFormat, Records};
use vllm_batch::cli::row::RowOptions;

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
    let format = if is_tsv { InputFormat::Tsv } else { InputFormat::Csv };
    let Ok(records) = Records::open(Box::new(Cursor::new(input.to_vec())), format, rows::MAX_LINE)
    else {
        return;
    };
    let names = records.headers().expect("a CSV has a header");
    let crlf = records.crlf();
    let mut all = vec![];
    for record in records {
        let record = record.expect("memory can be read");
        let Content::Cells(cells) = record.content else { panic!("a line in a CSV") };
        assert_eq!(cells.len(), names.len(), "line {}", record.line);
        all.push(cells);
    }
    if !names.is_empty() {
        let delimiter = format.delimiter().expect("it is no other format");
        let written = CsvFormat { delimiter, crlf, out_field: "response".to_owned() };
        assert_reads_back(input, format, written, &names, &all);
    }
}

/// Runs the input, and reads the output as the input of another run.
fn assert_reads_back(
    input: &[u8],
    format: InputFormat,
    written: CsvFormat,
    names: &[String],
    all: &[Vec<String>],
) {
    let mut text = Vec::new();
    written.format_header(names, &mut text);
    let options = RowOptions::default();
    let mut index = 0;
    let found = rows::run(input, format, &options, RowFormat::Csv(written), &mut |row, line| {
        let Passthrough::Cells { cells, .. } = row else { panic!("cells became fields") };
        assert_eq!(cells, &all[index]);
        index += 1;
        text.extend_from_slice(line);
    });
    // Columns that name no prompt are refused.
    let Ok(found) = found else { return };
    assert_eq!(found.rows, all.len() as u64);
    let shown = String::from_utf8_lossy(&text).into_owned();
    let again = Records::open(Box::new(Cursor::new(text)), format, usize::MAX / 2);
    let mut again = again.unwrap_or_else(|error| panic!("{error}: {shown}"));
    let header = again.headers().expect("a CSV has a header");
    assert_eq!(header.len(), names.len() + OWN_COLUMNS, "{shown}");
    for (index, cells) in all.iter().enumerate() {
        let record = again.next().unwrap_or_else(|| panic!("row {index} is gone: {shown}"));
        let record = record.expect("memory can be read");
        assert_eq!(record.error, None, "row {index}: {shown}");
        let Content::Cells(found) = record.content else { panic!("a line in a CSV") };
        assert_eq!(&found[..cells.len()], cells, "row {index}: {shown}");
    }
    assert!(again.next().is_none(), "more rows than were written: {shown}");
}
