//! The file of finished rows: whose it is, what it held, and when it goes.

use super::super::record::RECORD_LEN;
use super::*;

/// Leaves an unfinished run of rows 0, 1, 2 and 4.
fn unfinished(folder: &Folder) {
    let mut ledger = folder.ledger();
    for position in [0, 4, 2, 1] {
        ledger.push(answer(position, &format!("{position}\n"))).expect("a folder");
    }
    ledger.stop().expect("a folder");
    assert_eq!(folder.names(), ["out.journal", "out.part"]);
    assert_eq!(folder.text("out.part"), "0\n1\n2\n");
}

fn found(folder: &Folder) -> Found {
    folder.locked().expect("a journal").found().expect("with rows").clone()
}

#[test]
fn a_journal_says_what_it_holds() {
    let folder = Folder::new();
    unfinished(&folder);
    let length = folder.read("out.journal").len() as u64;
    let start = header().encode().len() as u64;
    assert_eq!(length, start + 4 * (RECORD_LEN as u64 + 2));
    let Found { header: of, end, num_rows, num_resumes, damaged_at, start: at, length: found } =
        found(&folder);
    assert_eq!((of, end, num_rows, num_resumes), (header(), None, 4, 0));
    assert_eq!((damaged_at, at, found), (None, start, length));
}

#[test]
fn resumes_are_counted_and_the_time_of_the_first_run_is_kept() {
    let folder = Folder::new();
    unfinished(&folder);
    for resume in 1..4 {
        let later = Header { started: 5 + resume, ..header() };
        let locked = folder.locked().expect("a journal");
        assert_eq!(locked.found().map(|found| found.header.started), Some(5));
        let (mut ledger, _) = locked.begin(later).expect("the same run");
        ledger.push(answer(4 + resume as u64, "x\n")).expect("a folder");
        ledger.stop().expect("a folder");
        let found = found(&folder);
        assert_eq!((found.header, found.num_resumes), (header(), resume as u64));
        assert_eq!(found.num_rows, 4 + resume as u64);
    }
}

#[test]
fn a_run_that_would_write_other_bytes_does_not_continue() {
    let folder = Folder::new();
    unfinished(&folder);
    let before = folder.read("out.journal");
    let other = header_of(5, &[("model", "demo"), ("dtype", "bfloat16"), ("new", "1")]);
    let locked = folder.locked().expect("a journal");
    let error = locked.begin(other).err().expect("another run");
    let LedgerError::Differs { path, differences } = &error else { panic!("{error}") };
    assert_eq!(*path, folder.path("out.journal"));
    assert_eq!(*differences, ["dtype: float32 then, bfloat16 now"]);
    let text = error.to_string();
    assert!(
        text.ends_with("out.journal belongs to another run:\n  dtype: float32 then, bfloat16 now")
    );
    assert!(folder.read("out.journal") == before && folder.text("out.part") == "0\n1\n2\n");
}

#[test]
fn another_file_is_no_journal_and_stays() {
    let texts: [&[u8]; 3] = [b"{\"id\":1}\n", b"x", b"\xb5VBrjrnl"];
    for text in texts {
        let folder = Folder::new();
        folder.write("out.journal", text);
        let path = folder.path("out.journal");
        for locked in [folder.locked(), folder.overwriting()] {
            let error = locked.err().expect("it is refused");
            assert!(matches!(error, LedgerError::Foreign(named) if named == path), "{text:?}");
            assert_eq!(folder.read("out.journal"), text);
            assert_eq!(folder.names(), ["out.journal"]);
        }
    }
}

#[test]
fn a_journal_of_another_layout_is_refused_and_may_be_replaced() {
    let folder = Folder::new();
    let text = b"\xb5VBjrnl\x02";
    folder.write("out.journal", text);
    let path = folder.path("out.journal");
    let error = folder.locked().err().expect("it is refused");
    assert!(matches!(error, LedgerError::NoJournal(named) if named == path));
    drop(folder.overwriting().expect("overwrite was asked for").begin(header()));
    assert_eq!(folder.read("out.journal"), text, "no row came");
    let locked = folder.overwriting().expect("overwrite was asked for");
    let mut ledger = locked.begin(header()).expect("a new run").0;
    ledger.push(answer(0, "row\n")).expect("a folder");
    finish(ledger).expect("a folder");
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
}

#[test]
fn a_journal_of_which_nothing_became_durable_is_as_good_as_none() {
    let header = header().encode();
    let torn: [&[u8]; 6] =
        [b"", &header[..1], &header[..8], &header[..20], &header[..header.len() - 1], &[0; 500]];
    for bytes in torn {
        let folder = Folder::new();
        folder.write("out.journal", bytes);
        let locked = folder.locked().expect("a new run");
        assert!(locked.found().is_none());
        drop(locked);
        assert!(folder.names().is_empty(), "{} bytes that nobody misses", bytes.len());
    }
}

#[test]
fn a_damaged_header_before_rows_is_refused() {
    let folder = Folder::new();
    unfinished(&folder);
    let whole = folder.read("out.journal");
    for at in [0, 7, 8, 12, 16, 40] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        folder.write("out.journal", &damaged);
        let error = folder.locked().err().expect("whose rows these are is not known");
        assert!(matches!(error, LedgerError::NoJournal(_)), "byte {at}: {error}");
        assert!(folder.read("out.journal") == damaged, "byte {at}");
    }
    let mut zeroed = whole.clone();
    zeroed[..header().encode().len()].fill(0);
    folder.write("out.journal", &zeroed);
    assert!(matches!(folder.locked().err(), Some(LedgerError::NoJournal(_))));
}

#[test]
fn damage_is_reported_where_a_sync_had_promised_otherwise() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    for position in 0..3 {
        ledger.push(answer(position, "row\n")).expect("a folder");
        ledger.sync().expect("a folder");
        assert!(!ledger.is_unsynced());
    }
    ledger.push(answer(3, "row\n")).expect("a folder");
    assert!(ledger.is_unsynced());
    ledger.stop().expect("a folder");
    let whole = folder.read("out.journal");
    let start = header().encode().len();
    let record = RECORD_LEN + 4;
    let damaged_at = |row: usize| {
        let mut bytes = whole.clone();
        bytes[start + row * record + 66] ^= 1;
        folder.write("out.journal", &bytes);
        let found = found(&folder);
        assert_eq!(found.num_rows, 3, "row {row}");
        found.damaged_at
    };
    // Row 3 was written after rows 0 to 2 were durable; of it nothing later tells.
    let places = [0, 1, 2].map(|row| Some((start + row * record) as u64));
    assert_eq!([0, 1, 2].map(damaged_at), places);
    assert_eq!(damaged_at(3), None);
}

#[test]
fn a_torn_tail_is_cut_before_anything_is_appended() {
    let folder = Folder::new();
    unfinished(&folder);
    let whole = folder.read("out.journal");
    let tail = &whole[whole.len() - 40..];
    folder
        .write("out.journal", [&whole[..], &whole[whole.len() - RECORD_LEN - 2..][..50]].concat());
    assert_eq!(found(&folder).length, whole.len() as u64);
    let (mut ledger, _) = folder.locked().unwrap().begin(header()).expect("the same run");
    ledger.push(answer(3, "3\n")).expect("a folder");
    ledger.stop().expect("a folder");
    let bytes = folder.read("out.journal");
    assert!(bytes.starts_with(&whole) && whole.ends_with(tail));
    assert_eq!(bytes.len(), whole.len() + RECORD_LEN + RECORD_LEN + 2, "a mark and a row");
    let found = found(&folder);
    assert_eq!((found.num_rows, found.num_resumes, found.damaged_at), (5, 1, None));
}
