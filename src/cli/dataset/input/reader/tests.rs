//! Files as users have them, good and broken, to records with their lines.

use std::io::{self, Cursor};

use super::*;

fn open(input: &[u8], format: InputFormat) -> Result<Records, InputError> {
    Records::open(Box::new(Cursor::new(input.to_vec())), format, 1000)
}

fn read(input: &[u8], format: InputFormat) -> Vec<Record> {
    let records = open(input, format).expect("text");
    records.collect::<io::Result<_>>().expect("in memory")
}

fn refusal(input: &[u8], format: InputFormat) -> (String, String) {
    match open(input, format) {
        Err(InputError::Refused { message, help }) => (message, help),
        Err(InputError::Io(error)) => panic!("{error}"),
        Ok(_) => panic!("not refused: {}", String::from_utf8_lossy(input)),
    }
}

fn text(line: u64, text: &str) -> Record {
    Record { line, content: Content::Line(text.to_owned()), error: None }
}

fn cells(line: u64, cells: &[&str]) -> Record {
    let cells = cells.iter().map(|&cell| cell.to_owned()).collect();
    Record { line, content: Content::Cells(cells), error: None }
}

#[test]
fn the_name_decides_the_format_and_else_the_first_byte() {
    let cases = [
        ("a.jsonl", InputFormat::Jsonl),
        ("a.NDJSON", InputFormat::Jsonl),
        ("a.csv", InputFormat::Csv),
        ("a.tsv", InputFormat::Tsv),
        ("a.txt", InputFormat::Txt),
        ("a.jsonl.gz", InputFormat::Jsonl),
        ("a.csv.ZST", InputFormat::Csv),
        ("a.txt.gz.gz", InputFormat::Auto),
        ("a.gz", InputFormat::Auto),
        ("a", InputFormat::Auto),
    ];
    for (name, format) in cases {
        assert_eq!(InputFormat::from_path(Path::new(name)), format, "{name}");
    }
    let cases: [(&[u8], InputFormat); 6] = [
        (b"{}", InputFormat::Jsonl),
        (b"\n  \"x\"", InputFormat::Jsonl),
        (b"[1]", InputFormat::Jsonl),
        (b"\xef\xbb\xbf\n{}", InputFormat::Jsonl),
        (b"hello", InputFormat::Txt),
        (b"", InputFormat::Txt),
    ];
    for (input, format) in cases {
        assert_eq!(open(input, InputFormat::Auto).expect("text").format(), format);
    }
}

#[test]
fn lines_are_split_on_newline_only_and_numbered_physically() {
    let input = "one\r\n\n \t\r\ntwo\u{2028}\u{85}\x0b\x0c\x1c\x01 \rthree \nfour";
    let expected =
        [text(1, "one"), text(4, "two\u{2028}\u{85}\x0b\x0c\x1c\x01 \rthree "), text(5, "four")];
    assert_eq!(read(input.as_bytes(), InputFormat::Txt), expected);
    let mut records = open(input.as_bytes(), InputFormat::Txt).expect("text");
    assert_eq!(records.by_ref().count(), 3);
    assert_eq!(records.blank_lines(), 2);
}

/// A pipe that gives one byte at a time, interrupted in between.
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

#[test]
fn a_slow_pipe_gives_the_same_rows() {
    let input = format!("\u{feff}a,b\r\n\r\n1,\"x\r\ny\"\r\n{},2\r\n3,4", "z".repeat(1200));
    let slow = Box::new(Trickle(Cursor::new(input.clone().into_bytes()), false));
    let slow = Records::open(slow, InputFormat::Csv, 1000).expect("text");
    let slow: Vec<Record> = slow.collect::<io::Result<_>>().expect("in memory");
    assert_eq!(slow, read(input.as_bytes(), InputFormat::Csv));
    assert_eq!(slow.iter().map(|r| r.line).collect::<Vec<_>>(), [3, 5, 6]);
}

#[test]
fn what_is_not_text_is_refused_with_a_remedy() {
    let cases: [(&[u8], &str, &str); 6] = [
        (b"\xfd7zXZ\0", "compressed with xz", "`xzcat FILE | vllm-batch run ...`"),
        (b"BZh91AY&SY", "compressed with bzip2", "`bzcat FILE |"),
        (b"PK\x03\x04", "compressed with zip", "`unzip -p FILE |"),
        (b"PAR1\x15\x04", "Parquet", "-i FILE.parquet"),
        (b"\xff\xfe\0\0{\0\0\0", "UTF-32", "convert it with iconv"),
        (b"\0\0\xfe\xff\0\0\0{", "UTF-32", "convert it with iconv"),
    ];
    for (input, what, remedy) in cases {
        // Whatever the name says.
        for format in [InputFormat::Auto, InputFormat::Jsonl, InputFormat::Csv] {
            let (message, help) = refusal(input, format);
            assert!(message.contains(what) && help.contains(remedy), "{message}; {help}");
        }
    }
}

#[test]
fn a_column_may_be_called_par1() {
    let records = open(b"PAR1,prompt\n1,a\n", InputFormat::Csv).expect("text");
    assert_eq!(records.headers().expect("a CSV has a header")[..], ["PAR1", "prompt"]);
}

#[test]
fn errors_of_the_source_are_passed_on() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let opened = Records::open(Box::new(Broken), InputFormat::Auto, 1000);
    assert!(matches!(opened, Err(InputError::Io(_))));
    let input = Box::new(Cursor::new("some line\n").chain(Broken));
    let mut records = Records::open(input, InputFormat::Auto, 1000).expect("the start is fine");
    assert_eq!(records.next().expect("a line").expect("readable"), text(1, "some line"));
    let error = records.next().expect("an error").expect_err("the source is broken");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn csv_records_with_quotes_newlines_and_physical_lines() {
    let input = "\u{feff}id,text\n1,plain\n\n  \n2,\"two, \"\"quoted\"\"\nlines\r\n\n\"\n\
                 3,5\" pipe\n4,\"a\"b\"c\n5, \"x\n6,\"\u{2028}\"\n\"\",\"\"\n7,\ra\r\r\n";
    let expected = [
        cells(2, &["1", "plain"]),
        cells(5, &["2", "two, \"quoted\"\nlines\r\n\n"]),
        cells(9, &["3", "5\" pipe"]),
        cells(10, &["4", "ab\"c"]),
        cells(11, &["5", " \"x"]),
        cells(12, &["6", "\u{2028}"]),
        cells(13, &["", ""]),
        cells(14, &["7", "\ra\r"]),
    ];
    assert_eq!(read(input.as_bytes(), InputFormat::Csv), expected);
    let mut records = open(input.as_bytes(), InputFormat::Csv).expect("text");
    assert_eq!(records.headers().expect("a header").as_ref(), ["id", "text"]);
    assert_eq!(records.by_ref().count(), 8);
    assert_eq!((records.blank_lines(), records.crlf()), (2, false));
}

#[test]
fn a_mark_in_the_middle_of_a_csv_is_data() {
    let input = "\u{feff}a,b\n\u{feff}1,2\n\u{feff}\"3,\"4\"\n";
    let expected = [cells(2, &["\u{feff}1", "2"]), cells(3, &["\u{feff}\"3", "4"])];
    assert_eq!(read(input.as_bytes(), InputFormat::Csv), expected);
    let mut records = open(input.as_bytes(), InputFormat::Csv).expect("text");
    assert_eq!(*records.headers().expect("a CSV"), ["a".to_owned(), "b".to_owned()]);
    assert!(records.all(|record| record.is_ok()));
}

#[test]
fn tsv_and_crlf() {
    let input = b"\r\nid\ttext\r\n1\ta,b\r\n\t\r\n2\t\"x\ty\"";
    let expected = [cells(3, &["1", "a,b"]), cells(4, &["", ""]), cells(5, &["2", "x\ty"])];
    assert_eq!(read(input, InputFormat::Tsv), expected);
    let records = open(input, InputFormat::Tsv).expect("text");
    assert_eq!((records.blank_lines(), records.crlf()), (1, true));
}

#[test]
fn csv_errors_are_rows_with_as_many_cells_as_the_header() {
    let error = |input: &[u8]| {
        let record = read(input, InputFormat::Csv).pop().expect("a record");
        let Content::Cells(cells) = record.content else { panic!("a CSV has cells") };
        let error = record.error.expect("an error");
        (record.line, cells, error.code, error.message)
    };
    let strings = |cells: &[&str]| cells.iter().map(|&c| c.to_owned()).collect::<Vec<_>>();
    assert_eq!(
        error(b"a,b\n1,2\n1\n"),
        (3, strings(&["1", ""]), "bad_csv", "the row has 1 cells, the header has 2".to_owned())
    );
    assert_eq!(
        error(b"a,b\n1,2,3,4\n"),
        (
            2,
            strings(&["1", "2"]),
            "bad_csv",
            "the row has 4 cells, the header has 2; surplus: [\"3\", \"4\"]".to_owned()
        )
    );
    assert_eq!(
        error(b"a,b\n1,\"2\n3,4\n"),
        (
            2,
            strings(&["1", "2\n3,4\n"]),
            "bad_csv",
            "a quote opened in this record is never closed".to_owned()
        )
    );
    assert_eq!(
        error(b"a,b\n1,\xff\n"),
        (
            2,
            strings(&["1", "\u{fffd}"]),
            "bad_utf8",
            "byte 0xff at offset 3 is not UTF-8; see --encoding".to_owned()
        )
    );
}

#[test]
fn a_csv_record_over_the_limit_is_read_to_its_end() {
    let long = "y\n".repeat(40_000);
    let input = format!("a,b\n1,\"{long}\"\n2,ok\n");
    let records = read(input.as_bytes(), InputFormat::Csv);
    let error = records[0].error.as_ref().expect("too long");
    assert_eq!(error.message, "the record has 80004 bytes, the limit is 1000");
    assert_eq!(error.help.as_deref(), Some("split the row; a line may have at most 64 MiB"));
    assert_eq!(records[1..], [cells(40_003, &["2", "ok"])]);
    // An open quote swallows the rest, in bounded memory.
    let input = Cursor::new("a,b\n1,\"").chain(io::repeat(b'\n').take(1 << 26));
    let records = Records::open(Box::new(input), InputFormat::Csv, 1000).expect("text");
    let records: Vec<_> = records.collect::<io::Result<_>>().expect("in memory");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].error.as_ref().expect("too long").code, "line_too_long");
}

#[test]
fn a_csv_header_must_be_readable() {
    assert!(refusal(b"a,\"b\n1,2\n", InputFormat::Csv).0.contains("never closed"));
    assert!(refusal(b"a,\xff\n1,2\n", InputFormat::Csv).0.contains("not UTF-8"));
    let long = "x".repeat(2000);
    assert!(refusal(long.as_bytes(), InputFormat::Csv).0.contains("2000 bytes"));
    let records = open(b"", InputFormat::Csv).expect("empty is no error");
    assert_eq!(records.headers().expect("no columns").len(), 0);
    assert_eq!(records.count(), 0);
}
