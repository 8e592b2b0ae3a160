//! Journals after any damage: recovery finds every record that was not touched, hands out none
//! whose checksum is wrong, and a run that continues loses nothing of it.

#[expect(dead_code, reason = "what tests/files/crash needs besides")]
#[path = "../../tests/files/crash/disk.rs"]
mod disk;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use disk::{MemoryDisk, Tree};
use vllm_batch::cli::ledger::fingerprint::Fingerprint;
use vllm_batch::cli::ledger::journal::{LockedJournal, read_row};
use vllm_batch::cli::ledger::record::{Header, Kind, RECORD_LEN, Record, RecordHead};
use vllm_batch::cli::ledger::scan::{Scanned, Scanner};
use vllm_batch::cli::ledger::storage::{Access, Storage};
use vllm_batch::cli::ledger::{LedgerError, Recovered, RowHash};

use super::choices::Choices;

const MAX_INPUT: usize = 16 << 10;
const PATH: &str = "/simulated/out.jsonl.journal";

/// The first byte is `0`: the rest is a journal; `1`: a header is put before it; else choices of
/// records, and of what becomes of their bytes.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let mode = choices.byte();
    let header = header().encode();
    let start = header.len();
    match mode {
        b'0' => recover(choices.rest(), &[]),
        b'1' => recover(&[&header, choices.rest()].concat(), &[]),
        _ => {
            let mut damaged = Damaged::new(header);
            add_records(&mut damaged, &mut choices);
            while !choices.is_empty() {
                damaged.mutate(&mut choices);
            }
            let untouched = damaged.untouched(start);
            recover(&damaged.bytes, &untouched);
        }
    }
}

fn header() -> Header {
    let fields = [("model".to_owned(), "m".to_owned())].into();
    Header { started: 5, replaces: false, keeps: false, fingerprint: Fingerprint::new(fields) }
}

/// A journal's bytes, and where each was before anything was done to it.
struct Damaged {
    bytes: Vec<u8>,
    origins: Vec<Option<usize>>,
    /// Of the records, before.
    records: Vec<Range<usize>>,
}

impl Damaged {
    fn new(header: Vec<u8>) -> Self {
        let origins = (0..header.len()).map(Some).collect();
        Self { bytes: header, origins, records: Vec::new() }
    }

    fn mutate(&mut self, choices: &mut Choices<'_>) {
        let kind = choices.below(8);
        let at = choices.below(1 << 16).min(self.bytes.len());
        let count = (1 + choices.below(256)).min(self.bytes.len() - at);
        let end = at + count;
        match kind {
            0 => {
                let mask = choices.byte();
                self.bytes[at..end].iter_mut().for_each(|byte| *byte ^= mask);
                self.touch(at..end, mask != 0);
            }
            1 => {
                self.bytes[at..end].fill(0);
                self.touch(at..end, true);
            }
            2 => {
                let new = choices.take(count);
                self.bytes[at..at + new.len()].copy_from_slice(new);
                self.touch(at..at + new.len(), true);
            }
            3 => {
                self.bytes.drain(at..end);
                self.origins.drain(at..end);
            }
            4 => {
                let new = choices.take(count).to_vec();
                self.origins.splice(at..at, vec![None; new.len()]);
                self.bytes.splice(at..at, new);
            }
            5 => {
                self.bytes.truncate(at);
                self.origins.truncate(at);
            }
            6 => {
                self.bytes.extend_from_within(at..end);
                self.origins.extend_from_within(at..end);
            }
            _ => {
                let mask = 1 << choices.below(8);
                if let Some(byte) = self.bytes.get_mut(at) {
                    *byte ^= mask;
                    self.touch(at..at + 1, true);
                }
            }
        }
    }

    fn touch(&mut self, range: Range<usize>, is_changed: bool) {
        if is_changed {
            self.origins[range].fill(None);
        }
    }

    /// Where records are now of which no byte was touched, behind a header that is whole.
    fn untouched(&self, start: usize) -> Vec<Range<usize>> {
        let is_at = |at: usize, record: &Range<usize>| {
            let found = self.origins.get(at..at + record.len());
            found.is_some_and(|found| found.iter().copied().eq(record.clone().map(Some)))
        };
        let places = (start..self.bytes.len()).filter_map(|at| {
            let origin = self.origins[at]?;
            let record = self.records.iter().find(|record| record.start == origin)?;
            is_at(at, record).then(|| at..at + record.len())
        });
        if is_at(0, &(0..start)) { places.collect() } else { Vec::new() }
    }
}

fn add_records(damaged: &mut Damaged, choices: &mut Choices<'_>) {
    let kinds = [Kind::Answer, Kind::Error, Kind::Resumed, Kind::End];
    for position in 0..choices.below(12) as u64 {
        let kind = kinds[choices.below(kinds.len())];
        let count = choices.below(96);
        let row = choices.take(count).repeat(1 + choices.below(9));
        let record = Record {
            kind,
            position,
            hash: RowHash([position as u8; 16]),
            input_tokens: 1,
            output_tokens: 2,
            code: if kind == Kind::Error { "made_up" } else { "" },
            row: &row,
        };
        let start = damaged.bytes.len();
        RecordHead::encode(&record, choices.below(4096) as u64, &mut damaged.bytes);
        let end = damaged.bytes.len();
        damaged.origins.extend((start..end).map(Some));
        damaged.records.push(start..end);
    }
}

/// Reads a journal as the next run does, and lets it continue.
fn recover(bytes: &[u8], untouched: &[Range<usize>]) {
    let disk: Arc<dyn Storage> =
        Arc::new(MemoryDisk::holding(&Tree::from([(PATH.into(), bytes.to_vec())])));
    let mut journal = LockedJournal::open(Arc::clone(&disk), Path::new(PATH)).expect("not locked");
    let found = match journal.read() {
        Ok(Some(found)) => found,
        Ok(None) => return assert!(untouched.is_empty(), "records behind a header were given up"),
        Err(LedgerError::NoJournal(_) | LedgerError::Foreign(_)) => {
            return assert!(untouched.is_empty(), "refused");
        }
        Err(error) => panic!("memory can be read: {error}"),
    };
    let records = scan(&*disk, found.start);
    assert_whole_and_apart(bytes, &records);
    for wanted in untouched {
        // A record that was made up by chance may cover others.
        let covers = |scanned: &Scanned| {
            scanned.offset <= wanted.start as u64 && wanted.end as u64 <= scanned.end()
        };
        assert!(records.iter().any(covers), "the record at {wanted:?} is lost");
    }
    let rows: Vec<Scanned> = records.iter().copied().filter(is_row).collect();
    assert_eq!(found.num_rows, rows.len() as u64);
    assert_eq!(found.length, records.last().map_or(found.start, Scanned::end));
    assert_found(&*disk, &rows, found.start, found.length);
    let new = RowHash([255; 16]);
    let mut continued = journal.resume(&found).expect("memory can be written");
    let record = Record { hash: new, ..Record::mark(Kind::Answer, b"{}\n") };
    continued.append(&record).and_then(|_| continued.sync()).expect("memory can be written");
    drop(continued);
    let after = scan(&*disk, found.start);
    let rows_after: Vec<Scanned> = after.iter().copied().filter(is_row).collect();
    assert_eq!(rows_after[..rows.len()], rows, "a run that continues lost rows");
    assert_eq!(rows_after.len(), rows.len() + 1);
    let end = after.last().map_or(0, Scanned::end);
    assert_found(&*disk, &rows_after, found.start, end);
}

fn is_row(scanned: &Scanned) -> bool {
    matches!(scanned.head.kind, Kind::Answer | Kind::Error)
}

fn scan(disk: &dyn Storage, start: u64) -> Vec<Scanned> {
    let file = disk.open(Path::new(PATH), Access::Read).expect("it is there");
    let mut scanner = Scanner::new(&*file, start).expect("memory can be read");
    let mut next = || scanner.next_record().expect("memory can be read");
    std::iter::from_fn(&mut next).collect()
}

/// Both checksums of every record, from the bytes; and that none begins before the last has ended.
fn assert_whole_and_apart(bytes: &[u8], records: &[Scanned]) {
    let mut last_end = 0;
    for scanned in records {
        let (start, end) = (scanned.offset as usize, scanned.end() as usize);
        assert!(last_end <= start && end <= bytes.len(), "{scanned:?} after {last_end}");
        let (head, payload) = bytes[start..end].split_at(RECORD_LEN);
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(crc32c::crc32c(&head[8..]), number(4), "{scanned:?}");
        assert_eq!(crc32c::crc32c(payload), number(8), "{scanned:?}");
        last_end = end;
    }
}

/// Every row is found by its hash, with its own bytes; of rows with one hash the last.
fn assert_found(disk: &dyn Storage, rows: &[Scanned], start: u64, end: u64) {
    let open = || disk.open(Path::new(PATH), Access::Read).expect("it is there");
    let (file, mut recovered) = (open(), Recovered::new(open(), start, end, false));
    for (index, scanned) in rows.iter().enumerate() {
        let same = |other: &&Scanned| other.head.hash == scanned.head.hash;
        let last = rows[index..].iter().rfind(same).expect("it is itself among them");
        let reused = recovered.find(0, &scanned.head.hash).expect("memory can be read");
        let reused = reused.unwrap_or_else(|| panic!("{scanned:?} is not found"));
        assert_eq!(reused.location.offset, last.row_offset());
        assert_eq!(reused.code.is_some(), last.head.kind == Kind::Error);
        let row = read_row(&*file, reused.location).expect("memory can be read");
        assert_eq!(row.len() as u64, last.row_len());
    }
}
