//! Rows of archives that are written here, and of damaged ones.

use std::io::Cursor;

use super::*;

/// A header with its checksum.
fn header(name: &str, size: usize, kind: u8) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn member(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = [header(name, bytes.len(), kind), bytes.to_vec()].concat();
    all.resize(all.len().next_multiple_of(BLOCK), 0);
    all
}

fn file(name: &str, bytes: &[u8]) -> Vec<u8> {
    member(name, b'0', bytes)
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 2 * BLOCK]].concat()
}

/// The rows, each as its text and the code of its error, and what ended them.
fn read(bytes: Vec<u8>) -> (Vec<(String, &'static str)>, Option<String>) {
    let mut rows = TarRows::new(Box::new(Cursor::new(bytes)));
    let mut found = Vec::new();
    loop {
        match rows.next_row() {
            Ok(None) => return (found, None),
            Ok(Some(record)) => {
                let Content::Sample(sample) = record.content else { panic!("no sample") };
                let code = record.error.as_ref().map_or("ok", |error| error.code);
                found.push((sample.text, code));
            }
            Err(error) => return (found, Some(error.to_string())),
        }
    }
}

#[test]
fn members_of_one_name_are_a_row() {
    let bytes = archive(&[
        member("a/", b'5', b""),
        file("a/1.jpg", b"J"),
        file("a/1.txt", "caf\u{e9}".as_bytes()),
        file("a/1.cls", b" 7\n"),
        file("README", b"x"),
        file("a/.hidden.txt", b"x"),
        file("./b.left.PNG", b"P"),
        file("b.json", b"{\n\"q\": [1,\r\n2]}\n"),
        file("b.npy", b"?"),
        // Not beside the others of its name.
        file("a/1.txt", b"again"),
    ]);
    assert!(begins_tar(&bytes));
    let (rows, error) = read(bytes);
    let texts: Vec<&str> = rows.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(
        texts,
        [
            r#"{"__key__":"a/1","jpg":"a/1.jpg","txt":"café","cls":7}"#,
            r#"{"__key__":"b","left.png":"./b.left.PNG","json":{ "q": [1,  2]},"npy":"b.npy"}"#,
            r#"{"__key__":"a/1","txt":"again"}"#,
        ]
    );
    assert_eq!((rows.iter().all(|(_, code)| *code == "ok"), error), (true, None));
}

#[test]
fn long_names_and_sizes_are_those_of_gnu_and_pax() {
    let long = format!("{}.txt", "n".repeat(200));
    let line = format!(" path={long}\n");
    let line = format!("{}{line}", line.len() + 3);
    let bytes = archive(&[
        member("././@LongLink", b'L', long.as_bytes()),
        file("cut.txt", b"gnu"),
        member("x", b'x', line.as_bytes()),
        file("cut.txt", b"pax"),
        member("g", b'g', b"19 comment=nothing\n"),
        file("z.txt", b"z"),
    ]);
    let (rows, error) = read(bytes);
    let key = "n".repeat(200);
    assert_eq!(rows[0].0, format!(r#"{{"__key__":"{key}","txt":"gnu"}}"#));
    assert_eq!((rows[0].1, rows[1].0.contains("\"z\""), error), ("bad_value", true, None));
}

#[test]
fn faults_of_a_member_are_those_of_its_row() {
    let (rows, error) = read(archive(&[
        file("a.json", b"{"),
        file("a.txt", b"not looked at"),
        file("b.cls", b"many"),
        file("c.txt", b"\xff"),
        member("d.jpg", b'2', b""),
        member("e.jpg", b'1', b""),
        file("f.txt", b"good"),
    ]));
    let codes: Vec<_> = rows.iter().map(|(_, code)| *code).collect();
    let expected = ["bad_json", "bad_value", "bad_utf8", "bad_value", "bad_value", "ok"];
    assert_eq!((codes.as_slice(), error), (&expected[..], None));
    let huge = header("h.png", 1 << 32, b'0');
    let (rows, error) = read(huge);
    assert_eq!(rows[0].1, "media_too_large");
    assert!(error.unwrap().contains("cut off, in or behind the member `h.png`"));
}

#[test]
fn an_archive_that_is_cut_or_damaged_anywhere_is_named_as_one() {
    let bytes = archive(&[file("a.txt", b"one"), file("b.txt", b"two")]);
    let whole = read(bytes.clone()).0;
    for length in 0..bytes.len() {
        let (rows, error) = read(bytes[..length].to_vec());
        // The two blocks of zeros at the end may be missing.
        let is_whole = length >= 4 * BLOCK || length % (2 * BLOCK) == 0;
        assert_eq!(error.is_none(), is_whole, "{length}");
        assert!(whole.starts_with(&rows), "{length}");
    }
    for place in 2 * BLOCK..3 * BLOCK {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        let (rows, error) = read(damaged);
        assert_eq!(rows, whole[..1], "{place}");
        assert!(error.unwrap().contains("damaged header, in or behind the member `a.txt`"));
    }
    let joined = [bytes.clone(), bytes].concat();
    let (rows, error) = read(joined);
    assert!(rows == whole && error.unwrap().contains("bytes behind its end"));
}
