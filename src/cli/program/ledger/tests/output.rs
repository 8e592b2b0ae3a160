//! An output's bytes: plain or compressed, they depend on its rows alone.

use super::super::output::{part_of, with_suffix};
use super::*;
use vllm_batch_dataset::input::compress::Compression;

/// As large as what is compressed together.
const MEMBER: usize = 1 << 20;

const NAMES: [(&str, Compression); 3] =
    [("out", Compression::None), ("out.gz", Compression::Gzip), ("out.zst", Compression::Zstd)];

/// Rows of different lengths, about 40 bytes each.
fn rows(count: u64) -> Vec<String> {
    let row = |i: u64| format!("{{\"id\":{i},\"response\":\"{}\"}}\n", i * i * 7919 % 100_003);
    (0..count).map(row).collect()
}

/// The file that rows make, flushed when `flushes` says so; and what is said of it.
fn written(name: &str, rows: &[String], flushes: &mut dyn FnMut() -> bool) -> (Vec<u8>, Facts) {
    let folder = Folder::new();
    let mut output = folder.output(name);
    for row in rows {
        output.emit(row.as_bytes()).expect("a folder");
        if flushes() {
            output.flush().expect("a folder");
        }
    }
    let facts = output.complete().expect("a folder");
    assert_eq!(facts.num_rows, rows.len() as u64);
    assert!(!folder.path(name).exists(), "{name} has its name before it is published");
    output.publish().expect("a folder");
    assert_eq!(folder.names(), [name]);
    (folder.read(name), facts)
}

/// What an output with this compression holds.
fn decoded(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match compression {
        Compression::None => out.extend_from_slice(bytes),
        Compression::Gzip => {
            let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
            std::io::Read::read_to_end(&mut decoder, &mut out).map(drop).unwrap();
        }
        Compression::Zstd => zstd::stream::copy_decode(bytes, &mut out).unwrap(),
    }
    out
}

#[test]
fn bytes_do_not_depend_on_when_rows_are_flushed() {
    let rows = rows(90_000);
    let plain = rows.concat();
    assert!(plain.len() > 2 * MEMBER + MEMBER / 8, "{} bytes", plain.len());
    for (name, compression) in NAMES {
        let mut random = Random(3);
        let (expected, facts) = written(name, &rows, &mut || false);
        assert!(decoded(compression, &expected) == plain.as_bytes(), "{name} holds other rows");
        let blake3 = blake3::hash(&expected).to_hex().to_string();
        let bytes = expected.len() as u64;
        assert_eq!(facts, Facts { num_rows: 90_000, bytes, blake3 });
        for often in [1, 100, 20_000] {
            let (bytes, same) = written(name, &rows, &mut || random.below(often) == 0);
            assert!(bytes == expected && same == facts, "{name}, flushed every {often} rows");
        }
    }
}

#[test]
fn rows_that_came_in_pieces_are_the_same_bytes() {
    let rows = rows(30_000);
    for (name, _) in NAMES {
        let folder = Folder::new();
        let mut output = folder.output(name);
        for row in &rows {
            let (head, tail) = row.as_bytes().split_at(row.len() / 3);
            output.add_piece(head);
            output.add_piece(tail);
            output.end_row().expect("a folder");
        }
        let facts = output.complete().expect("a folder");
        assert_eq!(facts, written(name, &rows, &mut || false).1);
    }
}

#[test]
fn a_row_that_was_begun_is_out_at_once_and_no_byte_of_it_twice() {
    let probe = Probe::new();
    let mut output = Output::to_stream(Box::new(probe.clone()));
    for piece in ["One", " two"] {
        output.begin_row(piece.as_bytes()).expect("a stream");
    }
    assert_eq!(probe.writes(), ["One", " two"]);
    output.emit(b"One two three\n").expect("a stream");
    output.emit(b"four\n").expect("a stream");
    let facts = output.complete().expect("a stream");
    assert_eq!(probe.text(), "One two three\nfour\n");
    let blake3 = blake3::hash(b"One two three\nfour\n").to_hex().to_string();
    assert_eq!(facts, Facts { num_rows: 2, bytes: 19, blake3 });
}

#[test]
fn a_member_ends_with_the_row_that_fills_it() {
    let filled = |length: usize| "x".repeat(length - 1) + "\n";
    let short = filled(10);
    for (name, compression) in &NAMES[1..] {
        for (rows, members) in [
            (vec![], vec!["".to_owned()]),
            (vec![&short], vec![short.clone()]),
            (vec![&filled(MEMBER)], vec![filled(MEMBER)]),
            (vec![&filled(MEMBER - 1), &short], vec![filled(MEMBER - 1) + &short]),
            (vec![&filled(MEMBER), &short], vec![filled(MEMBER), short.clone()]),
            (vec![&short, &filled(3 * MEMBER)], vec![short.clone() + &filled(3 * MEMBER)]),
        ] {
            let rows: Vec<String> = rows.into_iter().cloned().collect();
            let mut expected = Vec::new();
            for member in &members {
                compression.encode(member.as_bytes(), &mut expected);
            }
            let (bytes, _) = written(name, &rows, &mut || true);
            assert!(bytes == expected, "{name}: {} members", members.len());
        }
    }
}

#[test]
fn an_output_without_rows_is_empty_and_still_what_its_name_says() {
    for (name, compression) in NAMES {
        for header in ["", "id,response\n"] {
            let folder = Folder::new();
            let mut output = folder.output(name);
            output.write_header(header.as_bytes());
            output.flush().expect("a folder");
            let part = folder.read(&format!("{name}.part"));
            assert!(part.is_empty(), "a header waits for a row");
            let facts = output.complete().expect("a folder");
            output.publish().expect("a folder");
            let bytes = folder.read(name);
            let mut expected = Vec::new();
            compression.encode(header.as_bytes(), &mut expected);
            assert_eq!(bytes, expected, "{name}");
            assert_eq!(decoded(compression, &bytes), header.as_bytes());
            assert_eq!((facts.num_rows, facts.bytes), (0, bytes.len() as u64));
        }
    }
}

#[test]
fn a_run_compresses_each_of_its_files_by_its_own_name() {
    let folder = Folder::new();
    let errors = Some(folder.path("errors.zst"));
    let out = Some(folder.path("out.jsonl.gz"));
    let locked = open(LedgerOptions { out, errors, ..LedgerOptions::default() }).expect("new");
    let mut ledger = locked.begin(header()).expect("new").0;
    ledger.push(failure(1, "bad\n")).expect("a folder");
    ledger.push(answer(0, "good\n")).expect("a folder");
    ledger.flush().expect("a folder");
    finish(ledger).expect("a folder");
    assert_eq!(folder.names(), ["errors.zst", "out.jsonl.gz", "out.jsonl.gz.meta.json"]);
    assert_eq!(decoded(Compression::Gzip, &folder.read("out.jsonl.gz")), b"good\n");
    assert_eq!(decoded(Compression::Zstd, &folder.read("errors.zst")), b"bad\n");
}

#[test]
fn what_an_earlier_run_left_in_the_part_is_gone_with_the_first_write() {
    let folder = Folder::new();
    folder.write("out.part", "rows of an earlier run, longer than those of this one\n");
    let mut output = folder.output("out");
    output.emit(b"row\n").expect("buffered");
    assert!(folder.text("out.part").starts_with("rows of an earlier run"));
    assert!(!output.has_begun());
    output.flush().expect("a folder");
    assert!(output.has_begun());
    assert_eq!(folder.text("out.part"), "row\n");
    output.emit(b"next\n").expect("buffered");
    output.flush().expect("a folder");
    assert_eq!(folder.text("out.part"), "row\nnext\n");
}

#[test]
fn names_beside_a_file_are_those_of_its_whole_name() {
    assert_eq!(part_of(Path::new("a/out.jsonl.gz")), Path::new("a/out.jsonl.gz.part"));
    assert_eq!(with_suffix(Path::new("out"), ".journal"), Path::new("out.journal"));
}
