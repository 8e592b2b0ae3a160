//! Inputs made to break a reader: broken, deep, long, swollen. Every row that is not blank is one
//! row or one error row, in bounded memory, and nothing panics.
//!
//! Sizes are small enough for every run. `VLLM_BATCH_TEST_SOAK=1` makes them whole: 4 GiB lines and
//! bombs of 10 GB.

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use vllm_batch::cli::input::compress::Compression;
use vllm_batch::cli::input::reader::{InputError, InputFormat, MAX_LINE, Records};
use vllm_batch::cli::input::row::{BadRow, Row, RowOptions, RowParser};
use vllm_batch::engine::api::request::SamplingParams;

/// Most resident memory of a process that checks any input, in KiB.
const MAX_RESIDENT: u64 = 256 << 10;

/// A row that every input here may have.
const GOOD: &str = r#"{"prompt":"a"}"#;

#[expect(clippy::disallowed_methods, reason = "tests may be steered by the environment")]
fn soak() -> bool {
    std::env::var("VLLM_BATCH_TEST_SOAK").is_ok_and(|value| value == "1")
}

/// What an input gives: its rows, or what ended it.
type Parsed = (Vec<Result<Row, BadRow>>, Option<InputError>);

fn parse_with(
    input: impl Read + Send + 'static,
    format: InputFormat,
    options: &RowOptions,
) -> Result<Parsed, InputError> {
    let mut records = Records::open(Box::new(input), format, MAX_LINE)?;
    let mut parser = RowParser::new(&mut records, options)?;
    let mut rows = Vec::new();
    loop {
        let parsed = match records.next() {
            None => return Ok((rows, None)),
            Some(record) => record.map_err(InputError::from).and_then(|r| parser.parse(r)),
        };
        match parsed {
            Ok(row) => rows.push(row),
            Err(error) => return Ok((rows, Some(error))),
        }
    }
}

fn parse(input: &[u8], format: InputFormat) -> Result<Parsed, InputError> {
    parse_with(Cursor::new(input.to_vec()), format, &RowOptions::default())
}

/// The code of each row, `ok` of a good one. Rows are numbered without a gap.
fn codes(input: &[u8], format: InputFormat) -> Vec<&'static str> {
    let (rows, error) = parse(input, format).unwrap_or_else(|error| panic!("{error}"));
    assert!(error.is_none(), "{error:?}");
    let indices = rows.iter().map(|row| row.as_ref().map_or_else(|bad| bad.index, |row| row.index));
    assert!(indices.eq(0..rows.len() as u64));
    rows.iter().map(|row| row.as_ref().map_or_else(|bad| bad.error.code, |_| "ok")).collect()
}

fn jsonl(lines: &[&[u8]]) -> Vec<&'static str> {
    codes(&lines.join(&b'\n'), InputFormat::Jsonl)
}

/// Lines of JSON Lines that are no blank ones, by a rule written anew.
fn num_rows(input: &[u8]) -> usize {
    let text = input.strip_prefix(b"\xef\xbb\xbf").unwrap_or(input);
    let is_blank = |line: &&[u8]| line.iter().all(|byte| b" \t\n\x0c\r".contains(byte));
    // CR ends lines where no LF does.
    let end = if text.contains(&b'\n') { b'\n' } else { b'\r' };
    text.split(|byte| *byte == end).filter(|line| !is_blank(line)).count()
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

#[test]
fn each_broken_line_is_one_error_row() {
    let good = GOOD.as_bytes();
    let lines: &[(&str, &str)] = &[
        ("{", "bad_json"),
        ("}", "bad_json"),
        ("{]", "bad_json"),
        (r#"{"prompt""#, "bad_json"),
        (r#"{"prompt":}"#, "bad_json"),
        (r#"{"prompt":"a",,"b":1}"#, "bad_json"),
        (r#"{prompt:"a"}"#, "bad_json"),
        (r#"{"prompt":'a'}"#, "bad_json"),
        (r#"{"prompt":"a" /* why */}"#, "bad_json"),
        (r#"{"prompt":"\u12"}"#, "bad_json"),
        (r#"{"prompt":"\"#, "bad_json"),
        (r#"{"prompt":undefined}"#, "bad_json"),
        (r#"{"prompt":+1}"#, "bad_json"),
        (r#"{"prompt":.5}"#, "bad_json"),
        (r#"{"prompt":0x10}"#, "bad_json"),
        (r#"{"prompt":-}"#, "bad_json"),
        (r#"{"prompt":1e}"#, "bad_json"),
        (r#"{"prompt":Infinity}"#, "bad_json"),
        ("\u{feff}{\"prompt\":\"a\"}", "bad_json"),
        ("{\"prompt\":\"a\"}\u{a0}", "bad_json"),
        ("{\"prompt\":\"a\r\"}", "bad_json"),
        ("{\"prompt\":\"\u{1}\"}", "bad_json"),
        (r#"["#, "bad_json"),
        (r#""a"#, "bad_json"),
        ("5", "row_shape"),
        ("null", "row_shape"),
        (r#"{}"#, "row_shape"),
        (r#"[]"#, "row_shape"),
        (r#"{"prompt":null}"#, "row_shape"),
        (r#"{"prompt":["a"]}"#, "row_shape"),
        (r#"{"prompt":"\ud800"}"#, "invalid_prompt"),
        (r#"{"prompt":"\udc00\ud800"}"#, "invalid_prompt"),
    ];
    for (line, code) in lines {
        assert_eq!(jsonl(&[good, line.as_bytes(), good]), ["ok", *code, "ok"], "{line}");
    }
    let bytes: &[&[u8]] = &[
        b"{\"prompt\":\"\xc3\"}",
        b"{\"prompt\":\"\xc0\x80\"}",
        b"{\"prompt\":\"\xed\xa0\x80\"}",
        b"{\"prompt\":\"\xf4\x90\x80\x80\"}",
        b"\xff",
        b"{\0\"\0p\0r\0o\0m\0p\0t\0\"\0:\0\x80",
    ];
    for line in bytes {
        assert_eq!(jsonl(&[good, line, good]), ["ok", "bad_utf8", "ok"], "{line:?}");
    }
}

#[test]
fn what_looks_odd_and_is_right_is_a_row() {
    for line in [
        "{\"prompt\":\"\u{2028}\u{2029}a\u{85}\u{b}\"}".replace('\u{b}', "\\u000b"),
        "\r{\"prompt\":\"a\"}\r".to_owned(),
        "\t {\"prompt\" :\t\"a\"} \r".to_owned(),
        r#"{"prompt":"a","x":1e400,"y":-1e-400,"z":1E+9999999999}"#.to_owned(),
        format!(r#"{{"prompt":"a","x":{}}}"#, "9".repeat(10_000)),
        r#"{"prompt":"a","x":"\ud800","\udfff":1}"#.to_owned(),
        r#"{"prompt":1,"prompt":{},"prompt":"a"}"#.to_owned(),
        format!(r#"{{"prompt":"a"{}}}"#, r#","k":0"#.repeat(20_000)),
        r#"{"prompt":"\u0000\u001b[2J\\"}"#.to_owned(),
        "{\"prompt\":\"\u{feff}\u{200b}\u{202e}\u{10ffff}\"}".to_owned(),
    ] {
        let shown: String = line.chars().take(80).collect();
        for end in ["", "\n", "\r\n", "\n\n \t\r\n"] {
            let input = format!("{GOOD}\n{line}{end}");
            assert_eq!(codes(input.as_bytes(), InputFormat::Jsonl), ["ok", "ok"], "{shown}");
            assert_eq!(num_rows(input.as_bytes()), 2);
        }
    }
}

#[test]
fn a_million_levels_are_one_error_row() {
    const DEPTH: usize = 1_000_000;
    let (object, mixed) = (r#"{"a":"#, r#"[{"a":"#);
    for line in [
        "[".repeat(DEPTH),
        object.repeat(DEPTH),
        mixed.repeat(DEPTH / 2),
        format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH)),
        format!("{}1{}", object.repeat(DEPTH), "}".repeat(DEPTH)),
        format!("{}1{}", mixed.repeat(DEPTH / 2), "}]".repeat(DEPTH / 2)),
        format!(r#"{{"prompt":"a","x":{}"#, mixed.repeat(DEPTH / 2)),
        format!(r#"{{"prompt":{}"#, "[".repeat(DEPTH)),
    ] {
        // As the first row too, where the shape is looked for.
        let input = [line.as_bytes(), GOOD.as_bytes(), line.as_bytes()].join(&b'\n');
        assert_eq!(codes(&input, InputFormat::Jsonl), ["bad_json", "ok", "bad_json"]);
        let cells = format!("messages\n\"{}\"\n", line.replace('"', "\"\""));
        assert_eq!(codes(cells.as_bytes(), InputFormat::Csv).len(), 1);
    }
}

#[test]
fn utf_16_is_read_with_a_mark_and_without() {
    let utf16 = |bom: &[u8], order: fn(u16) -> [u8; 2]| {
        let units = GOOD.encode_utf16().chain([10]).flat_map(order);
        bom.iter().copied().chain(units).collect::<Vec<u8>>()
    };
    for input in [
        utf16(b"\xff\xfe", u16::to_le_bytes),
        utf16(b"\xfe\xff", u16::to_be_bytes),
        utf16(b"", u16::to_le_bytes),
        utf16(b"", u16::to_be_bytes),
    ] {
        for format in [InputFormat::Auto, InputFormat::Jsonl] {
            assert_eq!(codes(&input, format), ["ok"]);
        }
    }
    let marked = format!("\u{feff}{GOOD}\n");
    assert_eq!(codes(marked.as_bytes(), InputFormat::Jsonl), ["ok"]);
    let twice = format!("\u{feff}{marked}{GOOD}\n");
    assert_eq!(codes(twice.as_bytes(), InputFormat::Jsonl), ["bad_json", "ok"]);
}

#[test]
fn tables_made_to_break_a_reader() {
    let csv = |text: &str| codes(text.as_bytes(), InputFormat::Csv);
    assert_eq!(csv("prompt\na\n\"b\nc\n"), ["ok", "bad_csv"], "an open quote takes the rest");
    assert_eq!(
        csv("prompt,x\na,1\nb\nc,1,2\n,,\nd,2\n"),
        ["ok", "bad_csv", "bad_csv", "bad_csv", "ok"]
    );
    assert_eq!(csv("pro\0mpt,prompt\0,prompt\n1,2,a\n"), ["ok"], "a NUL in a name is a name");
    assert_eq!(csv("prompt\n\0\n\"\0\n\"\n"), ["ok", "ok"]);
    assert_eq!(csv("prompt,x\n\"a\"b\"\"c\",\"\n\"\n"), ["ok"]);
    let names: Vec<String> = (0..65_000).map(|column| format!("c{column}")).collect();
    let wide =
        format!("{},prompt\n{}a\n{}\nb\n", names.join(","), ",".repeat(65_000), ",".repeat(65_001));
    assert_eq!(csv(&wide), ["ok", "bad_csv", "bad_csv"]);
    let commas = format!("prompt\n{}\na\n", ",".repeat(1 << 20));
    let (rows, _) = parse(commas.as_bytes(), InputFormat::Csv).expect("not refused");
    let bad = rows[0].as_ref().expect_err("a million cells");
    assert!(bad.error.message.len() < 1000, "the surplus is shown in part");
    assert!(rows.len() == 2 && rows[1].is_ok());
    assert_eq!(csv("prompt\r\ra\r"), ["ok"], "lines may end with CR, if all do");
    // No prompt column: a name of NULs, and a lone CR, which is no line end beside an LF. And one
    // name for two columns.
    for header in ["\0\0\n1,2\n", "prompt\r\ra\n", "prompt,prompt\na,b\n"] {
        let Err(error) = parse(header.as_bytes(), InputFormat::Csv) else { panic!("not refused") };
        assert!(matches!(error, InputError::Refused { .. }), "{error}");
    }
    assert_eq!(codes("prompt\n\"a\tb\"\n\"\n".as_bytes(), InputFormat::Tsv), ["ok", "bad_csv"]);
}

/// Changes a few bytes of an input: one value, one bit, one more, one less, a piece elsewhere.
fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    const ODD: &[u8] =
        b"\0\n\r\t \"'\\,:{}[]0eE+-.\x1f\x7f\x80\xbf\xc0\xed\xef\xf4\xff\x8b\xfd\xb5";
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(6) {
            0 => input[at] = ODD[random.below(ODD.len())],
            1 => input[at] ^= 1 << random.below(8),
            2 => input.insert(at, ODD[random.below(ODD.len())]),
            3 if input.len() > 1 => drop(input.remove(at)),
            4 => input.truncate(at + 1),
            _ => {
                let end = (at + 1 + random.below(40)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, piece);
            }
        }
    }
}

#[test]
fn mutated_rows_never_panic_and_none_is_lost() {
    let objects = concat!(
        r#"{"id":7,"prompt":"caf\u00e9 \ud83d\ude00","temperature":0.5,"stop":["a","b"],"seed":1}"#,
        "\n",
        r#"{"prompt":"b","logit_bias":{"5":-1.5},"n":2,"max_tokens":null,"x":[{"y":[]}]}"#,
        "\r\n\n",
        r#"{"id":"z","prompt":"ü \"q\" \\","logprobs":true,"min_tokens":3,"top_k":-1}"#,
    );
    let messages = concat!(
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}],"n":1}"#,
        "\n",
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"t"}]}],"system":"x"}"#,
    );
    let bare = "\"text\"\n\"\\n\"\n[1,2,3]\n";
    let table = "id,prompt,temperature\r\n1,\"a \"\"b\"\"\",0.5\r\n2,\"c\nd\",\r\n3,e,hot\r\n";
    let text = "one\ntwo \u{2028}\n\n three\r\n";
    let base = SamplingParams::default();
    let mut random = Random(2026);
    for case in 0..20_000 {
        let (seed, format) = [
            (objects, InputFormat::Jsonl),
            (messages, InputFormat::Jsonl),
            (bare, InputFormat::Auto),
            (table, InputFormat::Csv),
            (text, InputFormat::Txt),
        ][case % 5];
        let mut input = seed.as_bytes().to_vec();
        // Some are damaged as they lie on a disk.
        let compressed = [Compression::None, Compression::Gzip, Compression::Zstd][case / 5 % 3];
        let before = random.below(3);
        mutate(&mut input, &mut random);
        let plain = input.clone();
        if case % 4 == 0 {
            input.clear();
            compressed.encode(&plain, &mut input);
            (0..before).for_each(|_| mutate(&mut input, &mut random));
        }
        let Ok((rows, error)) = parse(&input, format) else { continue };
        for row in rows.iter().flatten() {
            let params = row.overrides.apply(&base);
            let _ = params.and_then(|params| params.verify(u32::MAX as usize, u32::MAX));
        }
        let whole = error.is_none() && (case % 4 != 0 || before == 0);
        if whole && format != InputFormat::Csv {
            assert_eq!(rows.len(), num_rows(&plain), "case {case}: {plain:?}");
        }
    }
}

/// `check` of what is written to its standard input.
fn check(flags: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["check", "--color", "never"]).args(flags).arg("-");
    let mut child =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    (child, stderr)
}

/// What `check` says of an input, the last line of which is a bad row and says so; and the most
/// memory that it had, in KiB. It is asked when that line is reported, while the input is open.
fn checked(format: &str, write: impl FnOnce(&mut dyn Write) + Send) -> (String, u64) {
    let (mut child, mut stderr) = check(&["--format", format]);
    let mut stdin = child.stdin.take().expect("piped");
    let id = child.id();
    let mut said = String::new();
    let resident = std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            write(&mut stdin);
            stdin.flush().expect("the child reads");
            stdin
        });
        let mut more = || stderr.read_line(&mut said).expect("text") > 0 && !said.contains(MARK);
        while more() {}
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it is running");
        drop(writing.join().expect("the child reads to the end"));
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).expect("a number")
    });
    println!("{resident} KiB at most");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(2), "{said}");
    (said, resident)
}

/// What the last line of these inputs says.
const MARK: &str = "the last line";

/// That line in JSON, `"` missing; and a good one, which says what the rows are.
const LAST: &str = "\n{\"prompt\":\"the last line}\n{\"prompt\":\"a\"}\n";

#[test]
fn a_line_without_end_is_one_error_row_in_bounded_memory() {
    let length: u64 = if soak() { 4 << 30 } else { 1 << 30 };
    let (said, resident) = checked("jsonl", |input| {
        let piece = [b'x'; 1 << 16];
        input.write_all(b"{\"prompt\":\"").unwrap();
        (0..length / piece.len() as u64).for_each(|_| input.write_all(&piece).unwrap());
        write!(input, "\"}}{LAST}").unwrap();
    });
    let wanted = format!("error[line_too_long]: <stdin>:1: the line has {} bytes", length + 13);
    assert!(said.contains(&wanted) && said.contains("<stdin>: 3 rows, 2 bad"), "{said}");
    assert!(resident <= MAX_RESIDENT, "{resident} KiB");
}

#[test]
fn the_longest_lines_are_read_in_bounded_memory() {
    // As long as a line may be: a good one, and one in which every byte is wrong.
    for (byte, wanted) in [(b'x', "3 rows, 1 bad"), (0xff, "3 rows, 2 bad (bad_utf8 1")] {
        let (said, resident) = checked("jsonl", |input| {
            let prompt = vec![byte; MAX_LINE - 13];
            input.write_all(b"{\"prompt\":\"").unwrap();
            input.write_all(&prompt).unwrap();
            write!(input, "\"}}{LAST}").unwrap();
        });
        assert!(said.contains(wanted), "{said}");
        assert!(resident <= MAX_RESIDENT, "{resident} KiB");
    }
}

/// Zeros in gzip: members of 16 MiB that are all the same.
fn gzip_of_zeros(length: u64, end: &[u8]) -> Vec<u8> {
    const MEMBER: usize = 16 << 20;
    let (mut member, mut last) = (Vec::new(), Vec::new());
    Compression::Gzip.encode(&vec![0; MEMBER], &mut member);
    Compression::Gzip.encode(end, &mut last);
    [member.repeat(length.div_ceil(MEMBER as u64) as usize), last].concat()
}

/// Zeros in one zstd frame, as large a window as is allowed, four bytes for each 128 KiB.
fn zstd_of_zeros(length: u64, end: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let header = |size: usize, kind: u32, last: u32| {
        let bytes = ((size as u32) << 3 | kind << 1 | last).to_le_bytes();
        [bytes[0], bytes[1], bytes[2]]
    };
    let zeros = [&header(BLOCK, 1, 0)[..], &[0]].concat();
    let window = (27 - 10) << 3;
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0, window];
    let zeros = zeros.repeat(length.div_ceil(BLOCK as u64) as usize);
    [&head[..], &zeros, &header(end.len(), 0, 1), end].concat()
}

#[test]
fn a_bomb_in_one_line_is_one_error_row_in_bounded_memory() {
    let length: u64 = if soak() { 10_000_000_000 } else { 1 << 30 };
    for bomb in [gzip_of_zeros, zstd_of_zeros] {
        let compressed = bomb(length, LAST.as_bytes());
        assert!(compressed.len() as u64 * 900 < length, "{} bytes", compressed.len());
        let (said, resident) = checked("jsonl", |input| input.write_all(&compressed).unwrap());
        assert!(said.contains("error[line_too_long]: <stdin>:1: "), "{said}");
        assert!(said.contains("<stdin>: 3 rows, 2 bad"), "{said}");
        assert!(resident <= MAX_RESIDENT, "{resident} KiB");
    }
}

#[test]
fn a_bomb_of_many_lines_is_many_rows_in_bounded_memory() {
    let length: usize = if soak() { 10_000_000_000 } else { 256 << 20 };
    let line = [&[b'0'; 8191][..], b"\n"].concat();
    let lines = line.repeat((4 << 20) / line.len());
    let count = length.div_ceil(lines.len());
    for compression in [Compression::Gzip, Compression::Zstd] {
        let (mut member, mut last) = (Vec::new(), Vec::new());
        compression.encode(&lines, &mut member);
        // Every other line is a good row of text.
        compression.encode(b"the last line \xff\n", &mut last);
        let (said, resident) = checked("txt", |input| {
            (0..count).for_each(|_| input.write_all(&member).unwrap());
            input.write_all(&last).unwrap();
        });
        let wanted = format!("<stdin>: {} rows, 1 bad", count * (lines.len() / line.len()) + 1);
        assert!(said.contains(&wanted), "{said}");
        assert!(resident <= MAX_RESIDENT, "{resident} KiB");
    }
}

#[test]
fn check_refuses_what_run_would_and_reads_files_in_any_wrapping() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).expect("written");
        said_of(folder.path(), &[name])
    };
    let encoded = |compression: Compression, bytes: &[u8]| {
        let mut out = Vec::new();
        compression.encode(bytes, &mut out);
        out
    };
    let gzip = |bytes: &[u8]| encoded(Compression::Gzip, bytes);
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0, (28 - 10) << 3, 1, 0, 0];
    for (name, bytes, wanted) in [
        ("twice.jsonl.gz", gzip(&gzip(GOOD.as_bytes())), "compressed twice, with gzip"),
        ("window.zst", window.to_vec(), "a window of more than 128 MiB"),
        ("a.zip", b"PK\x03\x04".to_vec(), "compressed with zip, which is not supported yet"),
        ("cut.gz", gzip(GOOD.as_bytes())[..20].to_vec(), "the gzip data is cut off"),
    ] {
        let (code, said) = check(name, &bytes);
        assert!(code == Some(2) && said.contains(wanted), "{said}");
    }
    let table = encoded(Compression::Zstd, b"id,prompt\n1,\"a,b\"\n");
    let (code, said) = check("a.csv.zst", &table);
    assert_eq!(
        (code, said.lines().last()),
        (Some(0), Some("a.csv.zst: 1 row, 0 bad, 0 blank lines"))
    );
    // The extension says something else than the bytes.
    let (code, said) = check("plain.jsonl.gz", GOOD.as_bytes());
    assert_eq!(code, Some(0), "{said}");
}

fn said_of(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(["check", "--color", "never"]).args(arguments);
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}
