//! Rows come in any order and leave in that of the input, in whole lines.

use std::io::ErrorKind;

use super::*;

/// All orders of five rows, by their Lehmer codes.
fn permutations_of_five() -> impl Iterator<Item = Vec<u64>> {
    (0..120u64).map(|code| {
        let (mut rest, mut left) = ((0..5u64).collect::<Vec<_>>(), code);
        let next = |count| {
            let index = rest.remove((left % count) as usize);
            left /= count;
            index
        };
        (1..=5).rev().map(next).collect()
    })
}

const IN_ORDER: &str = "0\n1\n2\n3\n4\n";

#[test]
fn every_order_of_arrival_gives_input_order() {
    for order in permutations_of_five() {
        let probe = Probe::new();
        let mut ledger = probe.ledger();
        for index in &order {
            ledger.push(answer(*index, &format!("{index}\n"))).expect("in memory");
        }
        assert_eq!((ledger.emitted(), ledger.num_waiting(), ledger.held_bytes), (5, 0, 0));
        finish(ledger).expect("in memory");
        assert_eq!(probe.text(), IN_ORDER, "{order:?}");
    }
}

#[test]
fn every_order_gives_input_order_when_memory_is_full() {
    for order in permutations_of_five() {
        let probe = Probe::new();
        let mut ledger = probe.ledger();
        // So that none that waits is kept.
        ledger.held_bytes = MAX_HELD;
        for index in &order {
            ledger.push(answer(*index, &format!("{index}\n"))).expect("a temporary file");
        }
        assert_eq!(ledger.held_bytes, MAX_HELD);
        finish(ledger).expect("in memory");
        assert_eq!(probe.text(), IN_ORDER, "{order:?}");
    }
}

#[test]
fn every_order_gives_input_order_through_a_journal() {
    let folder = Folder::new();
    for (number, order) in permutations_of_five().enumerate() {
        let locked = folder.overwriting().expect("overwrite was asked for");
        let mut ledger = locked.begin(header()).expect("a new journal").0;
        ledger.held_bytes = if number % 2 == 0 { MAX_HELD } else { 0 };
        for index in &order {
            ledger.push(answer(*index, &format!("{index}\n"))).expect("a new journal");
        }
        finish(ledger).expect("a folder");
        assert_eq!(folder.text("out"), IN_ORDER, "{order:?}");
    }
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
}

#[test]
fn rows_that_wait_are_held_in_memory_up_to_a_limit() {
    let row = "x".repeat(MAX_HELD / 4 - 1) + "\n";
    let probe = Probe::new();
    let mut ledger = probe.ledger();
    for position in 1..8 {
        ledger.push(answer(position, &row)).expect("a temporary file");
        assert!(ledger.held_bytes <= MAX_HELD, "{}", ledger.held_bytes);
    }
    assert_eq!((ledger.held_bytes, ledger.num_waiting()), (MAX_HELD, 7));
    ledger.push(answer(0, "first\n")).expect("in memory");
    assert_eq!((ledger.held_bytes, ledger.num_waiting(), ledger.emitted()), (0, 0, 8));
    finish(ledger).expect("in memory");
    assert!(probe.text() == format!("first\n{}", row.repeat(7)));
}

#[test]
fn a_spill_uses_its_file_again_when_it_is_empty() {
    let mut spill = Spill::default();
    let mut longest = 0;
    for round in 0..50 {
        let rows: Vec<String> = (0..5).map(|row| format!("{round} {row}\n")).collect();
        let places: Vec<Location> =
            rows.iter().map(|row| spill.append(row.as_bytes()).expect("a file")).collect();
        for index in [3, 0, 4, 1, 2] {
            assert_eq!(spill.read(places[index]).expect("a file"), rows[index].as_bytes());
        }
        longest =
            longest.max(places.iter().map(|place| place.offset + place.length).max().unwrap());
    }
    assert!(longest <= 30, "50 rounds of five rows took {longest} bytes");
}

#[test]
fn rows_wait_and_are_counted() {
    let probe = Probe::new();
    let mut ledger = probe.ledger();
    ledger.write_header(b"head\n");
    ledger.flush().expect("in memory");
    assert_eq!(probe.writes(), ["head\n"], "a reader of the stream sees the header at once");
    ledger.push(answer(2, "two\n")).expect("in memory");
    ledger.push(answer(1, "one\n")).expect("in memory");
    assert_eq!((ledger.num_waiting(), ledger.held_bytes, ledger.emitted()), (2, 8, 0));
    ledger.flush().expect("in memory");
    assert_eq!(probe.writes().len(), 1, "no row's turn has come");
    ledger.push(answer(0, "zero\n")).expect("in memory");
    assert_eq!((ledger.num_waiting(), ledger.held_bytes, ledger.emitted()), (0, 0, 3));
    assert!(!ledger.is_unsynced(), "without a journal nothing ever is durable");
    finish(ledger).expect("in memory");
    assert_eq!(probe.text(), "head\nzero\none\ntwo\n");
}

#[test]
fn writes_are_whole_lines() {
    let probe = Probe::new();
    let mut ledger = probe.ledger();
    let row = format!("{}\n", "x".repeat(30_000));
    for index in 0..5 {
        ledger.push(answer(index, &row)).expect("no failure");
    }
    finish(ledger).expect("no failure");
    let lines: Vec<_> = probe.writes().iter().map(|w| (w.len(), w.ends_with('\n'))).collect();
    assert_eq!(lines, [(90_003, true), (60_002, true)]);
}

#[test]
fn nothing_is_written_before_it_is_flushed_and_all_after() {
    let probe = Probe::new();
    let mut ledger = probe.ledger();
    ledger.push(answer(0, "a\n")).expect("no failure");
    assert!(probe.writes().is_empty());
    ledger.flush().expect("no failure");
    assert_eq!(probe.writes(), ["a\n"]);
    ledger.push(answer(1, "b\n")).expect("no failure");
    ledger.stop().expect("no failure");
    assert_eq!(probe.writes(), ["a\n", "b\n"], "a run that is stopped flushes");
}

#[test]
fn a_broken_pipe_and_a_full_disk_are_told_apart() {
    let fail = |kind| {
        let mut ledger = Probe::failing(0, kind).ledger();
        ledger.push(answer(0, "a\n")).expect("buffered");
        ledger.flush().expect_err("the probe fails")
    };
    assert!(matches!(fail(ErrorKind::BrokenPipe), LedgerError::BrokenPipe));
    assert!(matches!(fail(ErrorKind::StorageFull), LedgerError::Full { .. }));
    assert!(matches!(fail(ErrorKind::QuotaExceeded), LedgerError::Full { .. }));
    assert!(matches!(fail(ErrorKind::PermissionDenied), LedgerError::Io { .. }));
}

#[test]
fn rows_are_not_written_twice_after_an_error() {
    let probe = Probe::failing(1, ErrorKind::StorageFull);
    let mut ledger = probe.ledger();
    ledger.push(answer(0, "a\n")).expect("buffered");
    ledger.flush().expect("the first write");
    ledger.push(answer(1, "b\n")).expect("buffered");
    ledger.flush().expect_err("the probe fails");
    // Nobody knows how much of it the system took.
    ledger.flush().expect("nothing is left to be written");
    ledger.rescue();
    assert_eq!(probe.writes(), ["a\n"]);
}

#[test]
#[should_panic(expected = "row 3 came twice")]
fn a_row_that_comes_twice_is_a_bug() {
    let mut ledger = Probe::new().ledger();
    ledger.push(answer(3, "a\n")).expect("in memory");
    let _ = ledger.push(answer(3, "a\n"));
}

#[test]
#[should_panic(expected = "row 0 was emitted before")]
fn a_row_that_comes_again_after_its_turn_is_a_bug() {
    let mut ledger = Probe::new().ledger();
    ledger.push(answer(0, "a\n")).expect("in memory");
    let _ = ledger.push(answer(0, "a\n"));
}

#[test]
#[should_panic(expected = "row 0 never came")]
fn a_row_that_never_comes_is_a_bug() {
    let mut ledger = Probe::new().ledger();
    ledger.push(answer(1, "a\n")).expect("in memory");
    let _ = finish(ledger);
}

#[test]
fn rows_in_any_order_go_out_as_they_come() {
    for order in permutations_of_five() {
        let probe = Probe::new();
        let mut ledger = probe.ledger();
        ledger.emit_in_any_order();
        let mut expected = String::new();
        for (count, index) in order.iter().enumerate() {
            let row = match index {
                3 => failure(3, "3\n"),
                _ => answer(*index, &format!("{index}\n")),
            };
            ledger.push(row).expect("in memory");
            ledger.flush().expect("in memory");
            expected += &format!("{index}\n");
            assert_eq!(probe.text(), expected);
            assert_eq!((ledger.emitted(), ledger.num_waiting()), (count as u64 + 1, 0));
        }
        finish(ledger).expect("in memory");
    }
}

#[test]
#[should_panic(expected = "files are in order")]
fn a_file_is_never_in_another_order() {
    Folder::new().ledger().emit_in_any_order();
}
