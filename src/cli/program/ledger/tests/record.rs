//! The journal's bytes: what is written is read again, and no bit may change unnoticed.

use super::super::record::{RECORD_LEN, RECORD_MAGIC, Record, RecordHead};
use super::super::scan::{Scanned, Scanner};
use super::*;

fn encoded(record: &Record<'_>, synced: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    RecordHead::encode(record, synced, &mut bytes);
    bytes
}

/// All whole records of these bytes.
fn scanned(bytes: &[u8]) -> Vec<Scanned> {
    let file = Bytes(bytes.to_vec());
    let mut scanner = Scanner::new(&file, 0).unwrap();
    std::iter::from_fn(|| scanner.next_record().unwrap()).collect()
}

/// An error row with different bytes in every field.
fn an_error<'a>(row: &'a [u8]) -> Record<'a> {
    let hash = RowHash(std::array::from_fn(|at| 0xf0 ^ at as u8));
    Record {
        kind: Kind::Error,
        position: 0x0102_0304_0506_0708,
        hash,
        input_tokens: 0x1112_1314,
        output_tokens: 0x2122_2324,
        code: "context_length",
        row,
    }
}

/// Castagnoli's checksum, bit by bit.
fn slow_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[test]
fn the_layout_is_as_documented() {
    assert_eq!(slow_crc32c(b"123456789"), 0xe306_9283, "the check value of RFC 3720");
    let bytes = encoded(&an_error(b"{}\n"), 0x3132_3334_3536_3738);
    let mut expected = b"\xb5VBr".to_vec();
    expected.extend(slow_crc32c(&bytes[8..64]).to_le_bytes());
    expected.extend(slow_crc32c(b"context_length{}\n").to_le_bytes());
    expected.extend(b"\x14\x13\x12\x11\x24\x23\x22\x21\x02\x0e\0\0\x11\0\0\0\0\0\0\0");
    expected.extend(b"\x08\x07\x06\x05\x04\x03\x02\x01\x38\x37\x36\x35\x34\x33\x32\x31");
    expected.extend((0..16).map(|at| 0xf0 ^ at));
    expected.extend(b"context_length{}\n");
    assert_eq!(bytes, expected);
    assert_eq!(bytes.len(), RECORD_LEN + 17);
    let text = r#"{"started":5,"replaces":false,"fingerprint":{"id":"ab","fields":{"a":"b"}}}"#;
    let fields = [("a".to_owned(), "b".to_owned())].into();
    let fingerprint = Fingerprint { id: "ab".to_owned(), fields };
    let bytes = Header { started: 5, replaces: false, keeps: false, fingerprint }.encode();
    let mut expected = b"\xb5VBjrnl\x01".to_vec();
    expected.extend((text.len() as u32).to_le_bytes());
    expected.extend(slow_crc32c(text.as_bytes()).to_le_bytes());
    expected.extend(text.as_bytes());
    assert_eq!(bytes, expected);
}

#[test]
fn what_is_written_is_read_again() {
    let long = vec![b'x'; 700_000];
    let texts: [&[u8]; 4] = [b"", b"\n", b"{\"id\":1}\n", &long];
    let mut random = Random(1);
    for kind in [Kind::Answer, Kind::Error, Kind::Resumed, Kind::End] {
        for code in ["", "bad_json", &"w".repeat(255)] {
            for row in texts {
                let number = |random: &mut Random| random.below(1 << 31) << random.below(33);
                let (position, synced) = (number(&mut random), number(&mut random));
                let tokens = [random.below(1 << 31) as u32, u32::MAX];
                let [input_tokens, output_tokens] = tokens;
                let hash = hash(position);
                let record =
                    Record { kind, position, hash, input_tokens, output_tokens, code, row };
                let bytes = encoded(&record, synced);
                let [found] = scanned(&bytes)[..] else { panic!("{kind:?} {code}") };
                let head = found.head;
                assert_eq!((head.kind, head.position, head.hash), (kind, position, hash));
                assert_eq!([head.input_tokens, head.output_tokens], tokens);
                assert_eq!((head.synced, head.code_len()), (synced, code.len()));
                let start = found.row_offset() as usize;
                assert_eq!(&bytes[RECORD_LEN..start], code.as_bytes());
                assert!(&bytes[start..] == row && found.row_len() == row.len() as u64);
                assert_eq!(found.end(), bytes.len() as u64);
            }
        }
    }
}

#[test]
fn every_bit_of_a_record_counts() {
    let row = "{\"id\":1,\"response\":\"µVBr\"}\n".as_bytes();
    let (first, second) = (encoded(&an_error(row), 0), encoded(&an_error(b"next\n"), 9));
    let whole = [&first[..], &second].concat();
    let next = scanned(&whole)[1];
    assert_eq!(next.offset, first.len() as u64);
    for bit in 0..8 * first.len() {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(scanned(&damaged), [next], "bit {} of byte {}", bit % 8, bit / 8);
    }
}

#[test]
fn a_record_that_is_cut_anywhere_is_none() {
    let bytes = encoded(&an_error(b"{\"id\":1}\n"), 0);
    for length in 0..bytes.len() {
        assert!(scanned(&bytes[..length]).is_empty(), "{length} bytes");
        // Zeros where the system grew the file first and the power went before the content came.
        let mut zeroed = bytes[..length].to_vec();
        zeroed.resize(bytes.len() + 100, 0);
        assert!(scanned(&zeroed).is_empty(), "{length} bytes and zeros");
    }
    assert_eq!(scanned(&bytes).len(), 1);
}

#[test]
fn lengths_and_kinds_that_cannot_be_are_no_record() {
    let sealed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = encoded(&an_error(b"{}\n"), 0);
        change(&mut bytes);
        let crc = slow_crc32c(&bytes[8..64]).to_le_bytes();
        bytes[4..8].copy_from_slice(&crc);
        scanned(&bytes).len()
    };
    assert_eq!(sealed(&|_| {}), 1);
    assert_eq!(sealed(&|bytes| bytes[20] = 0), 0, "no such kind");
    assert_eq!(sealed(&|bytes| bytes[20] = 7), 0, "no such kind");
    assert_eq!(sealed(&|bytes| bytes[21] = 18), 0, "a word longer than the payload");
    assert_eq!(sealed(&|bytes| bytes[24] = 16), 0, "a payload that is shorter");
    assert_eq!(sealed(&|bytes| bytes[24] = 18), 0, "a payload that is longer than the file");
    assert_eq!(sealed(&|bytes| bytes[24..32].fill(0xff)), 0, "a payload without end");
}

#[test]
fn a_header_is_read_again_and_every_bit_of_it_counts() {
    let header = header_of(-7, &[("model", "é\"\n"), ("dtype", "float32")]);
    let bytes = header.encode();
    let behind = [&bytes[..], &encoded(&an_error(b"{}\n"), 0)].concat();
    assert_eq!(Header::decode(&bytes).as_ref(), Some(&header));
    assert_eq!(Header::decode(&behind).as_ref(), Some(&header));
    assert_eq!(Header::encoded_len(&behind), Some(bytes.len()));
    for bit in 0..8 * bytes.len() {
        let mut damaged = behind.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Header::decode(&damaged), None, "bit {} of byte {}", bit % 8, bit / 8);
    }
    for length in 0..bytes.len() {
        assert_eq!(Header::decode(&bytes[..length]), None, "{length} bytes");
        assert!(Header::may_be_torn(&bytes[..length]), "{length} bytes");
    }
    assert!(Header::may_be_torn(&[0; 100]));
    assert!(!Header::may_be_torn(b"{\"id\":1}\n"));
    assert!(!Header::may_be_torn(&RECORD_MAGIC));
}
