//! Parquet files: whatever the bytes are, a file is refused, or its rows are JSON objects of one
//! line each, the same when they are read again.

use std::io::Write;

use vllm_batch::cli::input::parquet::{ParquetFile, ParquetRows};
use vllm_batch::cli::input::reader::Content;

const MAX_INPUT: usize = 64 << 10;

/// Rows that are looked at: a small file may say that it has any number of them.
const MAX_ROWS: usize = 2048;

/// The bytes are the file.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    assert_eq!(read(data), read(data));
}

fn read(data: &[u8]) -> Result<Vec<String>, String> {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(data).expect("room for it");
    let file = ParquetFile::open(file).map_err(|error| error.to_string())?;
    let num_rows = file.num_rows();
    let mut rows = ParquetRows::new(file);
    let mut lines = Vec::new();
    while lines.len() < MAX_ROWS {
        let Some(record) = rows.next_row().map_err(|error| error.to_string())? else {
            assert_eq!(lines.len() as u64, num_rows);
            break;
        };
        assert_eq!(record.line, lines.len() as u64 + 1);
        let Content::Line(line) = record.content else { panic!("rows are lines") };
        if record.error.is_none() {
            let value: serde_json::Value = match serde_json::from_str(&line) {
                Ok(value) => value,
                // A column of JSON may nest deeper, or have numbers that are too large.
                Err(error) if error.classify() == serde_json::error::Category::Syntax => continue,
                Err(error) => panic!("{error}: {line}"),
            };
            assert!(value.is_object() && !line.contains(['\n', '\r']), "{line}");
        }
        lines.push(line);
    }
    Ok(lines)
}
