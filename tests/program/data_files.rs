//! Tables as people have them: from a pipe, in any encoding, with any separator, with and without a
//! header. Their rows are those of the plain CSV.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use vllm_batch::cli::input::compress::Compression;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");
const CLASSIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_classifiers/bert");
const CROSS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_scores/bert");

/// The mark of UTF-8.
pub const MARK: char = '\u{feff}';

pub const TABLE: &str = "id,text\n1,2+3=\n2,\"4+4=, \"\"x\"\"\"\n3,caf\u{e9} 1+1=\n";

/// What a command printed.
pub struct Ended {
    pub code: Option<i32>,
    pub rows: String,
    pub said: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), rows: text(output.stdout), said: text(output.stderr) }
    }
}

/// A command in a folder, with what is piped in.
fn piped(folder: &Path, words: &[&str], input: &[u8]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses at once does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

const RUN: [&str; 7] = ["run", "-m", DEMO, "--temperature", "1", "--max-tokens", "6"];

/// `run` of the demo model; sampled, so that a row's answer depends on its number.
pub fn run(folder: &Path, flags: &[&str], input: &[u8]) -> Ended {
    piped(folder, &[&RUN[..], &["--progress", "none"], flags].concat(), input)
}

/// The same over a file, which ends well.
#[track_caller]
pub fn rows_of(folder: &Path, name: &str, content: &[u8], flags: &[&str]) -> (String, String) {
    fs::write(folder.join(name), content).unwrap();
    let ended = run(folder, &[&["-i", name], flags].concat(), b"");
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.said);
    (ended.rows, ended.said)
}

#[track_caller]
fn assert_refused(ended: &Ended, wanted: &[&str]) {
    assert_eq!((ended.code, ended.rows.as_str()), (Some(2), ""), "{}", ended.said);
    for wanted in wanted {
        assert!(ended.said.contains(wanted), "{wanted:?} is not in: {}", ended.said);
    }
    assert!(ended.said.contains("help:"), "{}", ended.said);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Compression::Gzip.encode(text, &mut bytes);
    bytes
}

fn utf_16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Every character is one of Latin-1.
fn latin_1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

/// The same table with another separator.
pub fn separated(by: char) -> String {
    let text = TABLE.replace("id,text", &format!("id{by}text"));
    (1..4).fold(text, |text, id| text.replace(&format!("\n{id},"), &format!("\n{id}{by}")))
}

#[test]
fn a_table_from_a_pipe_is_known_by_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (expected, _) = rows_of(path, "a.csv", TABLE.as_bytes(), &[]);
    let tables = [
        TABLE.as_bytes().to_vec(),
        format!("\u{feff}{TABLE}").into_bytes(),
        format!("\n\n{TABLE}").into_bytes(),
        gzip(TABLE.as_bytes()),
        utf_16(TABLE),
        utf_16(&format!("\u{feff}{TABLE}")),
        TABLE.replace('\n', "\r").into_bytes(),
        TABLE.replace("id,text", "\"id\",\"text\"").into_bytes(),
    ];
    for table in tables {
        let ended = run(path, &[], &table);
        let shown = String::from_utf8_lossy(&table);
        let rows = ended.rows.trim_start_matches(MARK);
        assert_eq!((ended.code, rows), (Some(0), &*expected), "{shown} {}", ended.said);
        let said = &ended.said;
        assert_eq!(said.matches("read as a table with `,` between its cells").count(), 1, "{said}");
        assert!(said.contains("--format txt reads lines of text"), "{said}");
    }
    for by in [';', '\t', '|'] {
        let ended = run(path, &[], separated(by).as_bytes());
        let (expected, _) = rows_of(path, "b.csv", separated(by).as_bytes(), &[]);
        assert_eq!((ended.code, &ended.rows), (Some(0), &expected), "{}", ended.said);
        assert!(expected.starts_with(&format!("id{by}text{by}response{by}")), "{expected}");
    }
    // A file whose name says nothing is looked at, too.
    let (rows, said) = rows_of(path, "table", TABLE.as_bytes(), &[]);
    assert!(rows == expected && said.contains("read as a table"), "{said}");
    let text = run(path, &["--format", "txt"], TABLE.as_bytes());
    assert!(text.rows.starts_with("{\"prompt\":\"id,text\""), "{}", text.rows);
    assert!(!text.said.contains("table"), "{}", text.said);
}

#[test]
fn names_of_columns_may_be_in_capitals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let answers = |rows: &str| -> Vec<String> {
        rows.lines().skip(1).map(|row| row.split(',').nth(2).unwrap().to_owned()).collect()
    };
    let table = |header: &str| format!("{header}\n1,2+3=\n2,1+1=\n");
    let (expected, _) = rows_of(path, "a.csv", table("id,text").as_bytes(), &[]);
    for header in ["ID,Text", "id,TEXT", "Id,Question", "nr,Prompt"] {
        let ended = run(path, &[], table(header).as_bytes());
        assert_eq!(ended.code, Some(0), "{}", ended.said);
        assert!(ended.rows.starts_with(&format!("{header},response,")), "{}", ended.rows);
        assert_eq!(answers(&ended.rows), answers(&expected), "{header}");
        assert_eq!(rows_of(path, "b.csv", table(header).as_bytes(), &[]).0, ended.rows);
        let named = rows_of(path, "b.csv", table(header).as_bytes(), &["-o", "-"]).0;
        assert_eq!(named, ended.rows);
    }
    // A name that the user writes is the name of the column.
    let typo = run(path, &["--prompt-column", "text"], table("ID,Text").as_bytes());
    assert_refused(&typo, &["--prompt-column: there is no column 'text'", "ID, Text"]);
    let told = run(path, &["--template", "{{Text}}"], table("ID,Text").as_bytes());
    assert_eq!(answers(&told.rows), answers(&expected), "{}", told.said);
    let pairs = "Text_1,Text_2\nthe cat,a cat sits\n";
    let scored = piped(path, &["score", "-m", CROSS], pairs.as_bytes());
    assert!(scored.code == Some(0) && scored.rows.contains("\"score\""), "{}", scored.said);
}

#[test]
fn lines_of_text_stay_lines_and_what_is_in_doubt_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let first = |input: &str, flags: &[&str]| {
        let ended = run(folder.path(), flags, input.as_bytes());
        assert_eq!(ended.code, Some(0), "{input}: {}", ended.said);
        let row: serde_json::Value =
            serde_json::from_str(ended.rows.lines().next().unwrap()).unwrap();
        assert_eq!(row["prompt"], input.lines().next().unwrap().trim_matches('"'), "{row}");
        ended.said
    };
    for line in [
        "2+3=\n4+4=\n",
        "Compare the text, and answer.\n",
        "Hello, text\n",
        "\"id,text\"\n",
        "5,text\n",
    ] {
        let said = first(line, &[]);
        assert!(!said.contains("table") && !said.contains("header"), "{said}");
    }
    for (line, flag) in [
        ("id,review\n1,a\n", "--format csv"),
        ("a\tb\n1\t2\n", "--format tsv"),
        ("text\na\n", "csv"),
    ] {
        let said = first(line, &[]);
        assert!(said.contains("may be the header of a table") && said.contains(flag), "{said}");
    }
    // A prompt of the line itself is filled with it, and one of columns is not.
    first("id,review\n", &["--template", "{{text}}"]);
    let told = run(folder.path(), &["--prompt-column", "review"], b"id,review\n1,2+3=\n");
    assert!(told.code == Some(0) && told.rows.starts_with("id,review,response"), "{}", told.said);
    let typo = run(folder.path(), &["--template", "{{reviw}}"], b"id,review\n1,2+3=\n");
    assert_refused(
        &typo,
        &["--template: there is no column 'reviw'", "the columns are id, review"],
    );
    let out = run(folder.path(), &["-o", "out.csv"], b"a\nb\n");
    assert_refused(&out, &["CSV output needs CSV input", "--format csv"]);
}

#[test]
fn every_command_that_reads_rows_finds_a_table_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let sides = "id,text_1,text_2\n1,the cat,a cat sits\n2,a man,a dog\n";
    let ranking = "id,query,documents\n1,the cat,\"[\"\"a man\"\", \"\"a cat\"\"]\"\n";
    let eval = "id,prompt,answer\n1,2+3=,5\n2,4+4=,8\n";
    for (words, table) in [
        (&["embed", "-m", ENCODER][..], TABLE),
        (&["classify", "-m", CLASSIFIER, "--tokenizer", ENCODER], TABLE),
        (&["score", "-m", ENCODER], sides),
        (&["rerank", "-m", CROSS], ranking),
        (&["eval", "-m", DEMO, "--scorer", "exact", "-o", "judged.jsonl", "--overwrite"], eval),
        (&["plan", "-m", DEMO, "--sample-seconds", "0"], TABLE),
    ] {
        fs::write(path.join("in.csv"), table).unwrap();
        let expected = piped(path, &[words, &["-i", "in.csv"]].concat(), b"");
        assert_eq!(expected.code, Some(0), "{words:?}: {}", expected.said);
        let judged = fs::read(path.join("judged.jsonl")).ok();
        let found = piped(path, words, table.as_bytes());
        assert_eq!(found.code, Some(0), "{words:?}: {}", found.said);
        assert!(found.said.contains("read as a table"), "{words:?}: {}", found.said);
        assert_eq!(fs::read(path.join("judged.jsonl")).ok(), judged);
        if words[0] != "plan" {
            assert_eq!(found.rows, expected.rows, "{words:?}: {}", found.said);
        }
    }
    let checked = piped(path, &["check", "-"], TABLE.as_bytes());
    assert!(checked.code == Some(0) && checked.said.contains("3 rows, 0 bad"), "{}", checked.said);
    let rows = run(path, &[], separated(';').as_bytes()).rows;
    fs::write(path.join("a.csv"), &rows).unwrap();
    for words in [["diff", "a.csv", "-"], ["diff", "-", "a.csv"]] {
        let same = piped(path, &words, rows.as_bytes());
        assert_eq!(same.code, Some(0), "{}", same.said);
        assert!(same.rows.contains("3 equal"), "{}", same.rows);
    }
}

#[test]
fn a_slow_pipe_is_answered_row_by_row() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(RUN)
        .args(["-qq"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut rows = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"id,text\n").unwrap();
    for row in 0..3 {
        writeln!(stdin, "{row},1+{row}=").unwrap();
        if row == 0 {
            assert!(rows.next().unwrap().unwrap().starts_with("id,text,response"));
        }
        assert!(rows.next().unwrap().unwrap().starts_with(&format!("{row},1+{row}=,")));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn text_of_any_encoding_gives_the_rows_of_utf_8() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let lines = "caf\u{e9}\n\u{fc}ber 1+1=\n";
    let json = "{\"prompt\":\"caf\u{e9}\"}\n{\"prompt\":\"\u{fc}ber\"}\n";
    let tsv = separated('\t');
    for (name, text) in
        [("a.csv", TABLE), ("a.tsv", &tsv), ("a.txt", lines), ("a.jsonl", json), ("a", json)]
    {
        let (mut expected, _) = rows_of(path, name, text.as_bytes(), &[]);
        if name.ends_with("sv") {
            expected.insert(0, MARK);
        }
        for bytes in [utf_16(text), utf_16(&format!("{MARK}{text}"))] {
            let (rows, said) = rows_of(path, name, &bytes, &[]);
            assert!(rows == expected && said.contains("the text is UTF-16LE"), "{name}: {said}");
        }
        let flags = ["--encoding", "latin-1"];
        for bytes in [latin_1(text), gzip(&latin_1(text))] {
            assert_eq!(rows_of(path, name, &bytes, &flags).0, expected, "{name}");
        }
        fs::write(path.join(name), latin_1(text)).unwrap();
        // Before the model is loaded.
        let wanted = ["the input is not UTF-8: byte 0xe9", "--encoding windows-1252"];
        let words = ["run", "-m", "./none", "-i", name];
        assert_refused(&piped(path, &words, b""), &wanted);
        assert_refused(&run(path, &[], &latin_1(text)), &wanted);
        assert_refused(&piped(path, &["check", name], b""), &wanted);
        let checked = piped(path, &["check", "--encoding", "cp1252", name], b"");
        assert_eq!(checked.code, Some(0), "{}", checked.said);
    }
    let damaged = b"{\"prompt\":\"a\"}\n{\"prompt\":\"caf\xe9\"}\n{\"prompt\":\"b\"}\n";
    fs::write(path.join("a.jsonl"), damaged).unwrap();
    let ended = run(path, &["-i", "a.jsonl"], b"");
    assert_eq!(ended.code, Some(3), "{}", ended.said);
    let row = ended.rows.lines().nth(1).unwrap();
    assert!(row.contains("bad_utf8") && row.contains("see --encoding"), "{row}");
    let refused = run(path, &["--encoding", "klingon"], b"");
    assert_eq!(refused.code, Some(2));
    assert!(refused.said.contains("windows-1252"), "{}", refused.said);
}

#[test]
fn files_of_different_encodings_are_one_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let part = |id: u32| format!("id,text\n{id},caf\u{e9} {id}+1=\n");
    let whole = format!("id,text\n{}", [1, 2, 3].map(|id| part(id)[8..].to_owned()).concat());
    let (mut expected, _) = rows_of(path, "whole.csv", whole.as_bytes(), &[]);
    expected.insert(0, MARK);
    fs::write(path.join("a.csv"), latin_1(&part(1))).unwrap();
    fs::write(path.join("b.csv"), format!("\u{feff}{}", part(2))).unwrap();
    fs::write(path.join("c.csv"), utf_16(&format!("\u{feff}{}", part(3)))).unwrap();
    let inputs = ["-i", "a.csv", "b.csv", "c.csv"];
    // A mark counts more than the flag.
    let flags = [&inputs[..], &["--encoding", "windows-1252"]].concat();
    let ended = run(path, &flags, b"");
    assert_eq!((ended.code, &ended.rows), (Some(0), &expected), "{}", ended.said);
    assert!(ended.said.contains("b.csv: the text begins with the mark of UTF-8"), "{}", ended.said);
    for inputs in [["-i", "b.csv", "c.csv", "a.csv"], ["-i", "a.csv", "b.csv", "c.csv"]] {
        let words = [&["run", "-m", "./none"], &inputs[..]].concat();
        assert_refused(&piped(path, &words, b""), &["a.csv: the input is not UTF-8"]);
    }
    // Output goes on, is sharded, limited and shown as any other.
    let out = [&flags[..], &["-o", "out.csv"]].concat();
    assert_eq!(run(path, &[&out[..], &["--limit", "1"]].concat(), b"").code, Some(0));
    let grown = run(path, &out, b"");
    assert!(grown.code == Some(0) && grown.said.contains("Going on from 1 row"), "{}", grown.said);
    assert_eq!(fs::read_to_string(path.join("out.csv")).unwrap(), expected);
    let shown = piped(path, &["show", "out.csv"], b"");
    assert_eq!((shown.code, &shown.rows), (Some(0), &expected), "{}", shown.said);
    let again = run(path, &out, b"");
    assert!(again.code == Some(0) && again.said.contains("Nothing to do"), "{}", again.said);
    let other =
        run(path, &[&inputs[..], &["--encoding", "iso-8859-2", "-o", "out.csv"]].concat(), b"");
    assert_eq!(other.code, Some(6), "{}", other.said);
    assert!(other.said.contains("encoding"), "{}", other.said);
}

/// Stops a run of an input at its first bad row, mends the row, and continues.
fn continues(
    folder: &Path,
    name: &str,
    bytes: &dyn Fn(&str) -> Vec<u8>,
    text: &str,
    flags: &[&str],
) {
    let good = bytes(text);
    let (expected, _) = rows_of(folder, name, &good, flags);
    let bad = text.replacen("3", "3 \"bad", 1);
    let bad = if bad.contains("prompt") { bad } else { format!("{text}4\n") };
    fs::write(folder.join(name), bytes(&bad)).unwrap();
    let words = [&["-i", name, "-o", "out.csv", "--max-errors", "0"], flags].concat();
    let stopped = run(folder, &words, b"");
    assert_eq!(stopped.code, Some(5), "{}", stopped.said);
    fs::write(folder.join(name), &good).unwrap();
    let continued = run(folder, &words, b"");
    assert_eq!(continued.code, Some(0), "{}", continued.said);
    assert!(continued.said.contains("Continuing a run"), "{}", continued.said);
    let out = fs::read_to_string(folder.join("out.csv")).unwrap();
    assert_eq!(out, expected, "{name} {flags:?}");
    let shard = |index: usize| {
        let shard = format!("{index}/2");
        let out = format!("s{index}.csv");
        let shard = ["-i", name, "--shard", &shard, "-o", &out, "--overwrite"];
        assert_eq!(run(folder, &[&shard[..], flags].concat(), b"").code, Some(0));
    };
    (0..2).for_each(shard);
    let words = ["merge", "--verify", "s0.csv", "s1.csv", "-o", "merged.csv", "--overwrite"];
    let merged = piped(folder, &words, b"");
    assert_eq!(merged.code, Some(0), "{}", merged.said);
    assert_eq!(fs::read_to_string(folder.join("merged.csv")).unwrap(), expected);
    let limited = run(folder, &[&["-i", name, "--limit", "2"], flags].concat(), b"");
    assert!(expected.starts_with(&limited.rows) && limited.rows != expected, "{}", limited.rows);
    fs::remove_file(folder.join("out.csv")).unwrap();
}

#[test]
fn tables_of_every_kind_are_continued_and_sharded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let plain = |text: &str| text.as_bytes().to_vec();
    continues(path, "a.csv", &latin_1, TABLE, &["--encoding", "latin-1"]);
    continues(path, "b.csv", &utf_16, TABLE, &[]);
    continues(path, "c.csv", &plain, &separated(';'), &[]);
    continues(path, "d.csv", &plain, &separated(':'), &["--delimiter", ":"]);
    continues(path, "e.csv", &plain, &format!("sep=;\r\n{}", separated(';')), &[]);
    let old_mac = |text: &str| text.replace('\n', "\r").into_bytes();
    continues(path, "f.csv", &old_mac, TABLE, &[]);
    let no_header = ["--no-header", "--prompt-column", "column_2"];
    continues(path, "g.csv", &plain, &TABLE["id,text\n".len()..], &no_header);
    continues(path, "h.csv", &plain, &TABLE.replace("id,text", ",text"), &[]);
}

#[test]
fn the_separator_is_found_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (_, said) = rows_of(path, "a.csv", TABLE.as_bytes(), &[]);
    assert!(!said.contains("between"), "{said}");
    for (by, shown) in [(';', "`;`"), ('\t', "tab"), ('|', "`|`")] {
        let (_, said) = rows_of(path, "a.csv", separated(by).as_bytes(), &[]);
        assert_eq!(said.matches(&format!("{shown} is between its cells")).count(), 1, "{said}");
        assert!(said.contains("--delimiter says another"), "{said}");
        // As CSV the output has the separator of the input, as TSV tabs.
        for (out, expected) in [("out.csv", by), ("out.tsv", '\t')] {
            rows_of(path, "a.csv", separated(by).as_bytes(), &["-o", out, "--overwrite"]);
            let text = fs::read_to_string(path.join(out)).unwrap();
            assert!(text.starts_with(&format!("id{expected}text{expected}response")), "{text}");
            let shown = piped(path, &["show", "--failed", out], b"");
            assert_eq!((shown.code, shown.rows.lines().count()), (Some(4), 1), "{}", shown.rows);
        }
    }
    // In JSON lines the rows are the same.
    let json = |name: &str, table: &str, flags: &[&str]| {
        rows_of(path, name, table.as_bytes(), &[&["-o", "o.jsonl", "--overwrite"], flags].concat());
        fs::read_to_string(path.join("o.jsonl")).unwrap()
    };
    let expected = json("a.csv", TABLE, &[]);
    for (name, by, flags) in [
        ("a.csv", ';', &[][..]),
        ("a.csv", '\t', &[]),
        ("a.tsv", ',', &[]),
        ("a.csv", '^', &["--delimiter", "^"]),
        ("a.csv", '\t', &["--delimiter", "\\t"]),
        ("a.txt", '\t', &["--delimiter", "tab"]),
        ("a", ':', &["--delimiter", ":"]),
    ] {
        assert_eq!(json(name, &separated(by), flags), expected, "{name} {by:?}");
    }
    // A corrected row of such a table is asked alone.
    let failed = separated(';') + "4\n";
    fs::write(path.join("a.csv"), &failed).unwrap();
    let words = ["-i", "a.csv", "-o", "retried.csv"];
    assert_eq!(run(path, &words, b"").code, Some(3));
    fs::write(path.join("a.csv"), failed.replace("\n4\n", "\n4;1+1=\n")).unwrap();
    let other = run(path, &[&words[..], &["--delimiter", ";"]].concat(), b"");
    assert!(other.code == Some(6) && other.said.contains("delimiter: auto"), "{}", other.said);
    let retried = run(path, &[&words[..], &["--retry-failed"]].concat(), b"");
    assert_eq!(retried.code, Some(0), "{}", retried.said);
    assert!(retried.said.contains("Going on from 3 rows"), "{}", retried.said);
    for (flag, value) in [("--delimiter", "ab"), ("--delimiter", "x"), ("--delimiter", "\"")] {
        let refused = run(path, &[flag, value], b"");
        assert_eq!(refused.code, Some(2));
        assert!(refused.said.contains("expected one character"), "{}", refused.said);
    }
}

#[test]
fn flags_of_tables_and_text_are_refused_where_nothing_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("a.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    fs::write(path.join("a.csv"), TABLE).unwrap();
    for flags in [
        &["-i", "a.jsonl", "--delimiter", ";"][..],
        &["-i", "a.jsonl", "--no-header"],
        &["-i", "a.csv", "--format", "jsonl", "--no-header"],
        &["-i", "a.csv", "--format", "parquet", "--encoding", "utf-8"],
    ] {
        let refused = run(path, flags, b"");
        assert_refused(&refused, &["has no use for it", "leave the flag out"]);
    }
    let checked = piped(path, &["check", "--delimiter", ";", "a.jsonl"], b"");
    assert_refused(&checked, &["--delimiter"]);
    // Of several files one may use it.
    let flags = ["-i", "a.csv", "a.jsonl", "-o", "out.jsonl", "--delimiter", ","];
    let mixed = run(path, &flags, b"");
    assert_eq!(mixed.code, Some(0), "{}", mixed.said);
    assert!(mixed.said.contains("a.jsonl: --delimiter: it is no table"), "{}", mixed.said);
}

#[test]
fn tables_without_header_have_columns_by_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let body = &TABLE["id,text\n".len()..];
    let named = TABLE.replace("id,text", "column_1,column_2");
    let column = ["--prompt-column", "column_2"];
    let (expected, _) = rows_of(path, "a.csv", named.as_bytes(), &column);
    for flags in [
        &["--prompt-column", "column_2", "--no-header"][..],
        &["--no-header", "--template", "{{column_2}}"],
    ] {
        assert_eq!(rows_of(path, "a.csv", body.as_bytes(), flags).0, expected);
        let ended = run(path, flags, body.as_bytes());
        assert_eq!((ended.code, &ended.rows), (Some(0), &expected), "{}", ended.said);
    }
    let checked =
        piped(path, &["check", "--no-header", "--prompt-column", "column_2", "a.csv"], b"");
    assert!(checked.said.contains("3 rows, 0 bad"), "{}", checked.said);
    let (rows, _) = rows_of(path, "one.csv", b"2+3=\n4+4=\n", &["--no-header"]);
    assert!(rows.starts_with("column_1,response,") && rows.lines().count() == 3, "{rows}");
    fs::write(path.join("a.csv"), body).unwrap();
    let refused = run(path, &["-i", "a.csv"], b"");
    assert_refused(&refused, &["no column holds the prompt: 1, 2+3=", "a row", "--no-header"]);
    let unnamed = run(path, &["-i", "a.csv", "--no-header"], b"");
    assert_refused(&unnamed, &["column_1, column_2", "--prompt-column column_2"]);
}

#[test]
fn no_column_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("a.csv"), "id,text,text\n1,a,b\n").unwrap();
    let doubled = run(path, &["-i", "a.csv"], b"");
    assert_refused(&doubled, &["a.csv: line 1: columns 2 and 3 are both called 'text'"]);
    // An index of pandas, and the empty columns of a spreadsheet.
    let (rows, said) = rows_of(path, "a.csv", b",text,,\n0,2+3=,x,y\n1,4+4=,,\n", &[]);
    assert!(rows.starts_with("column_1,text,column_3,column_4,response"), "{rows}");
    assert!(rows.contains("\n0,2+3=,x,y,"), "{rows}");
    assert_eq!(said.matches("columns without a name get one by place").count(), 1, "{said}");
    let out = ["-o", "out.jsonl", "--row-params", "none"];
    rows_of(path, "a.csv", b",text\n0,2+3=\n", &out);
    let json = fs::read_to_string(path.join("out.jsonl")).unwrap();
    assert!(json.starts_with("{\"column_1\":\"0\",\"text\":\"2+3=\""), "{json}");
}

/// A table's shape is decided by its columns, so that of an empty or null prompt is an error row.
#[test]
fn a_first_row_without_a_prompt_is_an_error_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(
        path.join("a.csv"),
        "id,messages\n1,\n2,\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"a\"\"}]\"\n",
    )
    .unwrap();
    let ended = run(path, &["-i", "a.csv"], b"");
    assert_eq!((ended.code, ended.rows.lines().count()), (Some(3), 3), "{}", ended.said);
    let lines: Vec<&str> = ended.rows.lines().collect();
    assert!(lines[1].contains("error") && !lines[2].contains("error"), "{lines:?}");
    // Parquet knows null: two files, of which the second is made of the first.
    let rows = "{\"id\":1,\"prompt\":null}\n{\"id\":2,\"prompt\":\"2+3=\"}\n";
    fs::write(path.join("a.jsonl"), rows).unwrap();
    let made = run(path, &["-i", "a.jsonl", "-o", "made.parquet", "--out-field", "x"], b"");
    assert_eq!(made.code, Some(3), "{}", made.said);
    let ended = run(path, &["-i", "made.parquet"], b"");
    assert_eq!((ended.code, ended.rows.lines().count()), (Some(3), 2), "{}", ended.said);
    let rows: Vec<serde_json::Value> =
        ended.rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["error"]["code"], "row_shape", "{}", rows[0]);
    assert_eq!(rows[1]["finish_reason"], "stop", "{}", rows[1]);
}

#[test]
fn documents_and_odd_names_are_refused_or_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let pdf = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n";
    assert_refused(&run(path, &[], pdf), &["a binary file: a PDF document"]);
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    let embed = ["embed", "-m", ENCODER, "-i", "in.jsonl", "-o"];
    let faiss = piped(path, &[&embed[..], &["x.faiss"]].concat(), b"");
    assert_refused(&faiss, &["an index of vectors", "FILE.npy"]);
    fs::write(path.join("in.csv"), TABLE).unwrap();
    let csv = piped(path, &["embed", "-m", ENCODER, "-i", "in.csv", "-o", "x.csv"], b"");
    assert_refused(&csv, &["vectors are written as JSON lines, FILE.npy or FILE.parquet"]);
    for name in ["x.answers", "x.txt"] {
        let noted = run(path, &["-i", "in.jsonl", "-o", name], b"");
        assert_eq!(noted.code, Some(0), "{}", noted.said);
        assert!(noted.said.contains(&format!("{name}: its name says no format")), "{}", noted.said);
    }
    for name in ["x", "x.jsonl", "x.jsonl.gz", "x.json"] {
        let quiet = run(path, &["-i", "in.jsonl", "-o", name], b"");
        assert!(quiet.code == Some(0) && !quiet.said.contains("says no format"), "{}", quiet.said);
    }
}
