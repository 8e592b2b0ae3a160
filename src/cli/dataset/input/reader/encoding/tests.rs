//! Encodings against the codecs of Python 3.12, which made the bytes.

use std::io::{self, Cursor, Read};

use super::*;
use crate::input::reader::{Content, InputFormat, Layout, Record, Records};

/// Gives one byte at a time, interrupted in between.
struct Trickle(Cursor<Vec<u8>>, bool);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        match self.1 {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => self.0.read(&mut buffer[..1]),
        }
    }
}

fn layout(format: InputFormat, encoding: &str) -> Layout {
    let encoding = TextEncoding::parse(encoding).expect("a known name");
    Layout { encoding, ..format.into() }
}

fn open(bytes: &[u8], layout: Layout) -> Result<Records, InputError> {
    Records::open(Box::new(Cursor::new(bytes.to_vec())), layout, 1000)
}

fn read(bytes: &[u8], layout: Layout) -> Vec<Record> {
    let records = open(bytes, layout).expect("text").collect::<io::Result<Vec<_>>>();
    let slow = Box::new(Trickle(Cursor::new(bytes.to_vec()), false));
    let slow = Records::open(slow, layout, 1000).expect("text").collect::<io::Result<Vec<_>>>();
    let records = records.expect("in memory");
    assert_eq!(records, slow.expect("in memory"), "a slow pipe gives the same rows");
    records
}

fn text(record: &Record) -> &str {
    let Content::Line(line) = &record.content else { panic!("a line has no cells") };
    line
}

/// UTF-16 of a text.
fn utf_16(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(order).collect()
}

#[test]
fn encodings_are_those_of_python() {
    let cases: [(&str, &[u8], &str); 15] = [
        (
            "cp1252",
            b"Fa\xe7ade \x96 na\xefve \x93\x9cuvre\x94 30 \x80",
            "Façade – naïve “œuvre” 30 €",
        ),
        ("iso8859_2", b"Za\xbf\xf3\xb3\xe6 g\xea\xb6l\xb1", "Zażółć gęślą"),
        ("cp1251", b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0", "Привет, мир"),
        ("koi8_r", b"\xf0\xd2\xc9\xd7\xc5\xd4", "Привет"),
        ("cp932", b"\x93\xfa\x96{\x8c\xea\x83\\\x95\\\xb1\x87@", "日本語ソ表ｱ①"),
        ("euc_jp", b"\xc6\xfc\xcb\xdc\xb8\xec", "日本語"),
        ("gbk", b"\xd6\xd0\xce\xc4\xa3\xac\xb1\xe0\xc2\xeb", "中文，编码"),
        ("gb18030", b"\xd6\xd0\xce\xc4\x954\xb25\xa2\xe3", "中文𠮷€"),
        ("big5", b"\xa4\xa4\xa4\xe5\xb4\xfa\xb8\xd5", "中文測試"),
        ("euc_kr", b"\xc7\xd1\xb1\xb9\xbe\xee", "한국어"),
        ("cp949", b"\x8cc\xb9\xe6\xb0\xa2\xc7\xcf", "똠방각하"),
        ("utf_16_le", b"\xe9\x00-N=\xd8\x00\xde", "é中😀"),
        ("utf_16_be", b"\x00\xe9N-\xd8=\xde\x00", "é中😀"),
        ("mac_roman", b"Caf\x8e \xb0", "Café ∞"),
        ("iso2022_jp", b"\x1b$BF|K\\8l\x1b(B", "日本語"),
    ];
    for (name, bytes, expected) in cases {
        let [record] = &read(bytes, layout(InputFormat::Txt, name))[..] else { panic!("{name}") };
        assert_eq!((text(record), &record.error), (expected, &None), "{name}");
    }
}

#[test]
fn names_are_those_that_people_write() {
    for (name, expected) in [
        ("Latin-1", "windows-1252"),
        ("ISO-8859-1", "windows-1252"),
        ("cp1252", "windows-1252"),
        ("windows_1252", "windows-1252"),
        ("ANSI", "windows-1252"),
        ("utf8", "UTF-8"),
        ("UTF-8-SIG", "UTF-8"),
        ("utf-16", "UTF-16"),
        ("UTF_16_LE", "UTF-16LE"),
        ("Shift_JIS", "Shift_JIS"),
        ("sjis", "Shift_JIS"),
        ("gb2312", "GBK"),
        ("gb18030", "gb18030"),
        ("auto", "auto"),
    ] {
        let found = TextEncoding::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.to_string(), expected, "{name}");
    }
    for name in ["", "utf-7", "utf-32", "cp437", "x-user-defined", "hz-gb-2312", "klingon"] {
        assert!(TextEncoding::parse(name).is_err(), "{name}");
    }
}

#[test]
fn utf_16_is_found_by_its_mark_and_by_its_zero_bytes() {
    let table = "id,text\r\n1,caf\u{e9} \u{4e2d}\u{1f600}\r\n2,b\r\n";
    let lines = "\u{feff}\u{4e2d}\u{6587}\n";
    let orders: [fn(u16) -> [u8; 2]; 2] = [u16::to_le_bytes, u16::to_be_bytes];
    let auto = |format| layout(format, "auto");
    let expected = read(table.as_bytes(), auto(InputFormat::Csv));
    for order in orders {
        for mark in ["\u{feff}", ""] {
            let bytes = utf_16(&format!("{mark}{table}"), order);
            assert_eq!(read(&bytes, auto(InputFormat::Csv)), expected, "{mark:?}");
            let named = read(&bytes, layout(InputFormat::Csv, "utf-16"));
            assert!(named == expected || mark.is_empty(), "without a mark it is little-endian");
        }
        let found = read(&utf_16(lines, order), auto(InputFormat::Auto));
        assert_eq!(text(&found[0]), "\u{4e2d}\u{6587}");
        let json = utf_16("{\"prompt\":\"\u{4e2d}\u{6587}\"}\n", order);
        assert_eq!(open(&json, auto(InputFormat::Auto)).unwrap().format(), InputFormat::Jsonl);
    }
    let mut records = open(&utf_16(table, u16::to_le_bytes), auto(InputFormat::Csv)).unwrap();
    assert!(records.crlf());
    let notes = records.take_notes();
    assert_eq!(notes, ["the text is UTF-16LE, without a mark; --encoding names another"]);
    assert!(records.take_notes().is_empty(), "once");
    // A mark counts more than a flag.
    for flag in ["windows-1252", "utf-8"] {
        let bytes = utf_16(&format!("\u{feff}{table}"), u16::to_be_bytes);
        assert_eq!(read(&bytes, layout(InputFormat::Csv, flag)), expected);
    }
}

#[test]
fn what_is_no_character_of_the_encoding_costs_its_line() {
    // A first byte of two at the end of a line, and one that no character has.
    let bytes = b"\x93\xfa\n\x93\xfa\x96\n\x93\xfaa\xff\n\x93\xfa\n";
    let records = read(bytes, layout(InputFormat::Txt, "shift_jis"));
    let errors: Vec<_> = records.iter().map(|record| record.error.as_ref()).collect();
    assert!(errors[0].is_none(), "{errors:?}");
    let messages: Vec<_> = errors.into_iter().flatten().map(|e| (e.code, &*e.message)).collect();
    assert_eq!(messages[0], ("bad_utf8", "character 2 is not Shift_JIS; see --encoding"));
    assert_eq!(messages[1].1, "character 3 is not Shift_JIS; see --encoding");
    // Half of a pair, and half of a unit at the end.
    let bytes = [&utf_16("a\u{4e2d}\n", u16::to_le_bytes)[..], b"b\0\x00\xd8c\0\n\0d\0e"].concat();
    let records = read(&bytes, layout(InputFormat::Txt, "utf-16le"));
    let has_error: Vec<_> = records.iter().map(|record| record.error.is_some()).collect();
    assert_eq!(has_error, [false, true, true]);
}

#[test]
fn text_of_another_encoding_is_refused_where_it_is_plain() {
    let refusal = |bytes: &[u8], format: InputFormat| match open(bytes, format.into()) {
        Err(InputError::Refused { message, help }) => Some((message, help)),
        Err(InputError::Io(error)) => panic!("{error}"),
        Ok(_) => None,
    };
    let csv: [&[u8]; 6] = [
        b"id,text\n1,plain\n2,caf\xe9\n",
        b"id,text\n1,\xc9t\xe9\n2,\xdcber\n",
        b"id,text\n1,30 \x80\n",
        b"id;pr\xe9nom;text\n1;a;b\n",
        b"id,text\n1,\x93\xfa\x96{\x8c\xea\n",
        b"id,text\n1,\xd6\xd0\xce\xc4\xa3\xac\xb1\xe0\xc2\xeb\n",
    ];
    for bytes in csv {
        let (message, help) = refusal(bytes, InputFormat::Csv).expect("refused");
        assert!(message.starts_with("the input is not UTF-8: byte 0x"), "{message}");
        assert!(help.contains("--encoding windows-1252"), "{help}");
    }
    let (message, _) = refusal(csv[0], InputFormat::Csv).unwrap();
    assert_eq!(message, "the input is not UTF-8: byte 0xe9 at offset 6 of line 3");
    let json = b"{\"prompt\":\"caf\xe9\"}\n{\"prompt\":\"na\xefve\"}\n";
    assert!(refusal(json, InputFormat::Auto).is_some());
    // One line of JSON may be damaged. A byte alone is no word, nor is one among good ones.
    let rows: [(&[u8], InputFormat); 6] = [
        (&json[..18], InputFormat::Jsonl),
        (b"{\"prompt\":\"\xff\"}\n{\"prompt\":\"\xfe\"}\n", InputFormat::Jsonl),
        (b"id,text\n1,\xff\n2,\xff\xff\xff\xff\xff\n", InputFormat::Csv),
        ("id,text\n1,café naïve\n2,b\n".as_bytes(), InputFormat::Csv),
        (b"id,text\n1,caf\xc3\xa9 na\xc3\xafve\n2,caf\xe9\n", InputFormat::Csv),
        (b"id,text\n1,caf\xc3", InputFormat::Csv),
    ];
    for (bytes, format) in rows {
        assert_eq!(refusal(bytes, format), None, "{}", String::from_utf8_lossy(bytes));
    }
    // Whoever says that it is UTF-8 gets error rows.
    let rows = read(csv[0], layout(InputFormat::Csv, "utf-8"));
    assert_eq!(rows[1].error.as_ref().map(|error| error.code), Some("bad_utf8"));
}
