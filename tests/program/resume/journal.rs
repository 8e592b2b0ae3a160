//! What a journal holds, by the program's own scanner.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use vllm_batch::cli::ledger::record::{Header, Kind};
use vllm_batch::cli::ledger::scan::Scanner;

/// A whole record of a row.
#[derive(Clone, Debug)]
pub struct Journaled {
    /// In the output of the run that wrote it.
    pub position: u64,
    /// Where the record begins, and ends.
    pub start: usize,
    pub end: usize,
    /// The bytes of the output.
    pub row: Vec<u8>,
    pub is_error: bool,
}

/// All records of rows; none where there is no journal, or no header yet.
pub fn rows(path: &Path) -> Vec<Journaled> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    // A process may be writing it: what the scanner sees as a tail comes next time.
    let Ok(bytes) = fs::read(path) else { return Vec::new() };
    let Some(start) = header_len(&bytes) else { return Vec::new() };
    let mut scanner = Scanner::between(&file, start as u64, bytes.len() as u64);
    let mut rows = Vec::new();
    while let Some(scanned) = scanner.next_record().unwrap() {
        if matches!(scanned.head.kind, Kind::Answer | Kind::Error) {
            let (from, end) = (scanned.row_offset() as usize, scanned.end() as usize);
            rows.push(Journaled {
                position: scanned.head.position,
                start: scanned.offset as usize,
                end,
                row: bytes[from..end].to_vec(),
                is_error: scanned.head.kind == Kind::Error,
            });
        }
    }
    rows
}

/// Rows in a journal, each counted once.
pub fn num_rows(path: &Path) -> usize {
    positions(&rows(path)).len()
}

pub fn positions(rows: &[Journaled]) -> BTreeSet<u64> {
    rows.iter().map(|row| row.position).collect()
}

/// Bytes before the first record; None: there is no whole header.
pub fn header_len(bytes: &[u8]) -> Option<usize> {
    Header::decode(bytes)?;
    Header::encoded_len(bytes)
}
