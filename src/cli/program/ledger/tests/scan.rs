//! Whole records are found whatever stands between them.

use super::super::record::{RECORD_LEN, RECORD_MAGIC, Record, RecordHead};
use super::super::scan::{Scanned, Scanner};
use super::*;

/// A record with a row of so many bytes.
fn record(position: u64, length: usize) -> Vec<u8> {
    let row = vec![b'a' + (position % 26) as u8; length];
    let (hash, tokens) = (hash(position), 1);
    let record = Record {
        kind: Kind::Answer,
        position,
        hash,
        input_tokens: tokens,
        output_tokens: tokens,
        code: "",
        row: &row,
    };
    let mut bytes = Vec::new();
    RecordHead::encode(&record, 0, &mut bytes);
    bytes
}

/// Positions of the rows that are found, and where damage begins.
fn scan(bytes: &[u8], start: u64, end: u64) -> (Vec<u64>, Vec<u64>) {
    let file = Bytes(bytes.to_vec());
    let mut scanner = Scanner::between(&file, start, end);
    let mut found = Vec::new();
    while let Some(scanned) = scanner.next_record().unwrap() {
        found.push(scanned.head.position);
    }
    assert!(scanner.next_record().unwrap().is_none(), "the end stays the end");
    (found, scanner.damaged().to_vec())
}

fn scan_all(bytes: &[u8]) -> (Vec<u64>, Vec<u64>) {
    scan(bytes, 0, bytes.len() as u64)
}

#[test]
fn rows_of_every_length_are_found_wherever_buffers_end() {
    // Some are longer than any buffer, and their heads lie on all its borders.
    let lengths = [0, 1, 63, 64, 65, 262_016, 262_080, 262_143, 262_144, 262_145, 600_000, 3];
    for shift in [0, 1, 31, 63] {
        let mut bytes = vec![0; shift];
        let mut expected = Vec::new();
        for (position, length) in lengths.iter().chain(&lengths).enumerate() {
            bytes.extend(record(position as u64, *length));
            expected.push(position as u64);
        }
        let damaged = if shift == 0 { vec![] } else { vec![0] };
        assert_eq!(scan_all(&bytes), (expected, damaged), "{shift}");
    }
}

#[test]
fn what_follows_damage_is_found() {
    let (one, two) = (record(1, 50), record(2, 70));
    let around = |between: &[u8]| [&one[..], between, &two].concat();
    let at = one.len() as u64;
    assert_eq!(scan_all(&around(b"")), (vec![1, 2], vec![]));
    let mut damaged = two.clone();
    damaged[RECORD_LEN] ^= 1;
    for (what, between) in [
        ("one byte", vec![7]),
        ("zeros", vec![0; 4096]),
        ("many zeros", vec![0; 300_000]),
        ("text", b"{\"id\":1}\n".to_vec()),
        ("the first byte of a record", RECORD_MAGIC[..1].to_vec()),
        ("three of them", RECORD_MAGIC[..3].to_vec()),
        ("the magic", RECORD_MAGIC.to_vec()),
        ("many of them", RECORD_MAGIC.repeat(70_000)),
        ("half a record", two[..80].to_vec()),
        ("a record but its last byte", two[..two.len() - 1].to_vec()),
        ("a record of a changed row", damaged),
        ("the end of a record", two[1..].to_vec()),
    ] {
        assert_eq!(scan_all(&around(&between)), (vec![1, 2], vec![at]), "{what}");
        // At the end of what a crash left.
        let tail = [&one[..], &between].concat();
        assert_eq!(scan_all(&tail), (vec![1], vec![at]), "{what} at the end");
    }
}

#[test]
fn a_row_that_looks_like_a_record_is_none() {
    let inner = record(9, 20);
    let mut bytes = record(1, 10);
    let mut outer = Vec::new();
    let of_row = Record { kind: Kind::Answer, position: 2, ..Record::mark(Kind::End, &inner) };
    RecordHead::encode(&of_row, 0, &mut outer);
    bytes.extend(&outer);
    bytes.extend(record(3, 10));
    assert_eq!(scan_all(&bytes), (vec![1, 2, 3], vec![]));
}

#[test]
fn nothing_outside_of_a_stretch_is_found() {
    let bytes: Vec<u8> = (0..4).flat_map(|position| record(position, 10)).collect();
    let length = record(0, 10).len() as u64;
    assert_eq!(scan(&bytes, length, 3 * length), (vec![1, 2], vec![]));
    assert_eq!(scan(&bytes, length, 3 * length - 1), (vec![1], vec![2 * length]));
    assert_eq!(scan(&bytes, length, length), (vec![], vec![]));
    // A file that became shorter under our hands.
    assert_eq!(scan(&bytes, 0, 5 * length), ((0..4).collect(), vec![4 * length]));
}

/// The same by trying every byte.
fn slow_scan(bytes: &[u8]) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + RECORD_LEN <= bytes.len() {
        let head = RecordHead::decode(bytes[at..at + RECORD_LEN].try_into().unwrap());
        let whole = head.map(|head| Scanned { offset: at as u64, head }).filter(|scanned| {
            let payload = bytes.get(at + RECORD_LEN..scanned.end() as usize);
            payload.is_some_and(|bytes| crc32c::crc32c(bytes) == scanned.head.payload_crc())
        });
        match whole {
            Some(scanned) => {
                found.push(scanned.head.position);
                at = scanned.end() as usize;
            }
            None => at += 1,
        }
    }
    found
}

#[test]
fn whatever_happened_to_a_journal_a_slow_search_finds_no_more() {
    let mut random = Random(11);
    let (mut num_found, mut num_lost) = (0, 0);
    for case in 0..400 {
        let mut bytes: Vec<u8> =
            (0..12).flat_map(|position| record(position, random.below(90) as usize)).collect();
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            let count = (random.below(100) as usize).min(bytes.len() - at);
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at..at + count].fill(0),
                2 => drop(bytes.drain(at..at + count)),
                3 => drop(bytes.splice(at..at, RECORD_MAGIC.repeat(3))),
                _ => {
                    let piece = bytes[at..at + count].to_vec();
                    let to = random.below(bytes.len() as u64) as usize;
                    drop(bytes.splice(to..to, piece));
                }
            }
        }
        let (found, _) = scan_all(&bytes);
        assert_eq!(found, slow_scan(&bytes), "case {case}");
        num_found += found.len();
        num_lost += 12 - found.len().min(12);
    }
    assert!(num_found > 2_000 && num_lost > 500, "{num_found} found, {num_lost} lost");
}
