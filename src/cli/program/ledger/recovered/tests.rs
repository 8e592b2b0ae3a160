//! Rows of long journals in little memory.

use super::*;
use crate::ledger::record::{Record, RecordHead};
use crate::ledger::tests::{Bytes, hash, shuffled_within};

const REACH: u64 = 16;

/// A journal's records of these rows, each in the place of its number: (hash, error, text).
fn records(rows: &[(u64, &str, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, code, text) in rows {
        let kind = if code.is_empty() { Kind::Answer } else { Kind::Error };
        let (position, hash, row) = (*number, hash(*number), text.as_bytes());
        let record = Record { kind, position, hash, input_tokens: 3, output_tokens: 4, code, row };
        RecordHead::encode(&record, 0, &mut bytes);
    }
    bytes
}

fn recovered(bytes: &[u8], without_errors: bool) -> Recovered {
    let file = Box::new(Bytes(bytes.to_vec()));
    let mut recovered = Recovered::new(file, 0, bytes.len() as u64, without_errors);
    recovered.reach = REACH;
    recovered
}

fn text(bytes: &[u8], reused: &Reused) -> String {
    let Location { offset, length } = reused.location;
    String::from_utf8(bytes[offset as usize..(offset + length) as usize].to_vec()).unwrap()
}

/// Fails unless memory holds as little as is promised.
#[track_caller]
fn assert_bounded(recovered: &Recovered) {
    let most = (3 * REACH + 1) as usize;
    assert!(recovered.order.len() <= most && recovered.known.len() <= most);
}

#[test]
fn an_unchanged_input_finds_every_row_however_long_it_is() {
    for seed in 0..20 {
        let numbers = shuffled_within(REACH, 5_000, seed);
        let rows: Vec<_> = numbers.iter().map(|n| (*n, "", format!("row {n}\n"))).collect();
        let bytes = records(&rows);
        let mut recovered = recovered(&bytes, false);
        for number in 0..5_000 {
            let found = recovered.find(number, &hash(number)).unwrap();
            let found = found.unwrap_or_else(|| panic!("seed {seed}: row {number} is lost"));
            assert_eq!(text(&bytes, &found), format!("row {number}\n"));
            assert_eq!((found.code, found.input_tokens, found.output_tokens), (None, 3, 4));
            assert_bounded(&recovered);
        }
        assert!(recovered.find(4_999, &hash(5_000)).unwrap().is_none(), "it was never asked");
    }
}

/// A journal whose rows have an image each, and the bytes of the last one's image.
fn records_with_images(numbers: &[u64]) -> (Vec<u8>, Vec<u8>) {
    let (mut bytes, mut media) = (Vec::new(), Vec::new());
    for number in numbers {
        media =
            [&text_of(*number).as_bytes()[..], &[9; 16], &[*number as u8; 32], &[0; 9]].concat();
        let record =
            Record { position: *number, hash: hash(*number), ..Record::mark(Kind::Media, &media) };
        RecordHead::encode(&record, 0, &mut bytes);
        bytes.extend(records(&[(*number, "", String::new())]));
    }
    (bytes, media)
}

fn text_of(number: u64) -> ContentHash {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    ContentHash::from_bytes(bytes)
}

#[test]
fn images_are_those_of_rows_that_are_finished() {
    let (mut bytes, media) = records_with_images(&[0, 1]);
    // A row whose own record is lost, and one whose record is another's.
    let lost = Record { hash: hash(2), ..Record::mark(Kind::Media, &media) };
    RecordHead::encode(&lost, 0, &mut bytes);
    bytes.extend(records(&[(3, "", String::new())]));
    let mut without = recovered(&bytes, false);
    assert_eq!(without.images_of(&text_of(1)).unwrap(), [], "nobody asked for them");
    let mut recovered = recovered(&bytes, false).with_images();
    let found = recovered.images_of(&text_of(1)).unwrap();
    let [image] = &found[..] else { panic!("{found:?}") };
    let mut encoded = text_of(1).as_bytes().to_vec();
    image.encode(&mut encoded);
    assert_eq!(encoded, media);
    assert_eq!(recovered.images_of(&text_of(0)).unwrap().len(), 1);
    assert_eq!(recovered.images_of(&text_of(2)).unwrap(), []);
    assert!(recovered.find(3, &hash(3)).unwrap().is_some());
}

#[test]
fn images_of_a_long_input_are_found_in_little_memory() {
    let numbers = shuffled_within(REACH, 2_000, 3);
    let (bytes, _) = records_with_images(&numbers);
    let mut recovered = recovered(&bytes, false).with_images();
    for number in 0..2_000 {
        // Some rows are read ahead of the one that is looked for.
        assert_eq!(recovered.images_of(&text_of(number)).unwrap().len(), 1, "row {number}");
        assert!(recovered.find(number, &hash(number)).unwrap().is_some(), "row {number}");
        assert_bounded(&recovered);
        let known = recovered.images.as_ref().unwrap().len();
        assert!(known <= (3 * REACH + 1) as usize, "{known}");
    }
}

#[test]
fn a_slow_row_is_found_as_far_behind_its_place_as_rows_may_be_ahead() {
    for slow in [0, 1, 700] {
        let mut numbers: Vec<u64> = (0..2_000).filter(|number| *number != slow).collect();
        numbers.insert((slow + REACH) as usize, slow);
        let rows: Vec<_> = numbers.iter().map(|n| (*n, "", String::new())).collect();
        let mut recovered = recovered(&records(&rows), false);
        for number in 0..2_000 {
            assert!(recovered.find(number, &hash(number)).unwrap().is_some(), "{slow}: {number}");
        }
    }
}

#[test]
fn rows_that_are_alike_are_found_as_long_as_one_of_them_is_near() {
    // Row 0's hash comes again every 40 records: the last one before the reader stays.
    let number = |at: u64| if at.is_multiple_of(40) { 0 } else { at };
    let rows: Vec<_> = (0..4_000).map(|at| (number(at), "", format!("{at}\n"))).collect();
    let bytes = records(&rows);
    let mut recovered = recovered(&bytes, false);
    for at in 0..4_000 {
        let found = recovered.find(at, &hash(number(at))).unwrap();
        let found = found.unwrap_or_else(|| panic!("row {at} is lost"));
        if number(at) == 0 {
            let shown: u64 = text(&bytes, &found).trim_end().parse().unwrap();
            assert!(shown >= at && shown.is_multiple_of(40), "{shown} at {at}");
        }
        assert_bounded(&recovered);
    }
}

#[test]
fn one_hash_without_end_takes_the_memory_of_few() {
    let rows: Vec<_> = (0..4_000).map(|at| (7, "", format!("{at}\n"))).collect();
    let bytes = records(&rows);
    let mut recovered = recovered(&bytes, false);
    for at in 0..4_000 {
        assert!(recovered.find(at, &hash(7)).unwrap().is_some());
        assert_bounded(&recovered);
    }
    let last = recovered.find(4_000, &hash(7)).unwrap().expect("the last one");
    assert_eq!(text(&bytes, &last), "3999\n");
}

#[test]
fn error_rows_come_with_their_word_or_are_asked_again() {
    let row = |code: &'static str, text: &str| (1, code, text.to_owned());
    let bytes = records(&[row("bad_json", "failed\n")]);
    let found = recovered(&bytes, false).find(0, &hash(1)).unwrap().expect("as it was");
    assert_eq!(
        (found.code.as_deref(), text(&bytes, &found)),
        (Some("bad_json"), "failed\n".into())
    );
    assert!(recovered(&bytes, true).find(0, &hash(1)).unwrap().is_none());
    // The later one counts.
    let bytes = records(&[row("", "old\n"), row("timeout", "failed\n"), row("", "new\n")]);
    for without_errors in [false, true] {
        let found = recovered(&bytes, without_errors).find(0, &hash(1)).unwrap();
        assert_eq!(text(&bytes, &found.expect("answered")), "new\n");
    }
    let bytes = records(&[row("", "answered\n"), row("timeout", "failed\n")]);
    let found = recovered(&bytes, true).find(0, &hash(1)).unwrap().expect("answered before");
    assert_eq!(text(&bytes, &found), "answered\n");
}

#[test]
fn what_this_run_appends_is_not_found() {
    let mut bytes = records(&[(0, "", "then\n".to_owned())]);
    let end = bytes.len() as u64;
    bytes.extend(records(&[(1, "", "now\n".to_owned()), (0, "", "now\n".to_owned())]));
    let mut recovered = Recovered::new(Box::new(Bytes(bytes.clone())), 0, end, false);
    assert!(recovered.find(0, &hash(1)).unwrap().is_none());
    let found = recovered.find(0, &hash(0)).unwrap().expect("of the earlier run");
    assert_eq!(text(&bytes, &found), "then\n");
}

#[test]
fn marks_are_no_rows_and_damage_costs_only_what_it_hits() {
    let rows = |numbers: std::ops::Range<u64>| {
        records(&numbers.map(|n| (n, "", format!("row {n}\n"))).collect::<Vec<_>>())
    };
    let mut bytes = rows(0..50);
    RecordHead::encode(&Record::mark(Kind::Resumed, b""), 0, &mut bytes);
    let damaged = bytes.len() + RECORD_HEAD_AND_SOME;
    bytes.extend(rows(50..100));
    bytes[damaged] ^= 4;
    RecordHead::encode(&Record::mark(Kind::End, b"{}"), 0, &mut bytes);
    let mut recovered = recovered(&bytes, false);
    assert!(recovered.find(0, &RowHash::default()).unwrap().is_none());
    let is_lost = |number: &u64| recovered.find(*number, &hash(*number)).unwrap().is_none();
    assert_eq!((0..100).filter(is_lost).collect::<Vec<_>>(), [50]);
}

/// Into the row of a record.
const RECORD_HEAD_AND_SOME: usize = crate::ledger::record::RECORD_LEN + 2;
