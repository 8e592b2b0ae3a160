//! `merge` as users meet it, over shards whose outputs and side files are made here.

mod compressed;
mod interrupted;
mod refusals;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// A folder with the shards of one run, and what one run would have written.
struct Run {
    folder: TempDir,
    format: &'static str,
    shards: Vec<String>,
    header: String,
    records: Vec<String>,
    whole: Vec<u8>,
}

impl Run {
    /// Shards `s0`, `s1`, ... of records, by striding.
    fn new(format: &'static str, header: &str, records: &[String], count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let joined = |records: &mut dyn Iterator<Item = &String>| {
            let body: String = records.map(String::as_str).collect();
            // A CSV without rows is empty.
            if body.is_empty() { body } else { format!("{header}{body}") }
        };
        let whole = joined(&mut records.iter()).into_bytes();
        let shards = (0..count).map(|index| format!("s{index}.{format}")).collect();
        let (header, records) = (header.to_owned(), records.to_vec());
        let run = Self { folder, format, shards, header, records, whole };
        for (index, name) in run.shards.iter().enumerate() {
            let own = || run.records.iter().skip(index).step_by(count);
            run.write(name, joined(&mut own()).as_bytes());
            let rows = (own().count(), run.records.len());
            run.write_meta(name, &run.meta(name, (index, count), rows));
        }
        run
    }

    fn jsonl(rows: usize, count: usize) -> Self {
        let record =
            |row: usize| format!("{{\"id\":{row},\"response\":\"{}\"}}\n", "é\\n".repeat(row));
        Self::new("jsonl", "", &(0..rows).map(record).collect::<Vec<_>>(), count)
    }

    fn meta(&self, name: &str, shard: (usize, usize), rows: (usize, usize)) -> Value {
        let bytes = self.read(name);
        let failed = usize::from(rows.0 > 1);
        let mut by_code = serde_json::Map::new();
        if failed > 0 {
            by_code.insert("bad_json".to_owned(), json!(failed));
        }
        json!({
            "schema": 1, "tool": "vllm-batch", "version": "0.1.0",
            "started": format!("2026-11-20T10:00:{:02}Z", shard.0),
            "finished": format!("2026-11-20T11:00:{:02}Z", shard.0),
            "resumes": 1,
            "rows": {"total": rows.0, "ok": rows.0 - failed, "failed": failed, "by_code": by_code},
            "tokens": {"input": 10 * rows.0, "output": 7 * rows.0},
            "input": {"path": "prompts.jsonl", "rows": rows.1, "digest": "0123456789abcdef"},
            "output": {"rows": rows.0, "bytes": bytes.len(), "blake3": hash(&bytes)},
            "format": self.format, "compression": "none",
            "fingerprint": {"id": "ab".repeat(32), "fields": {"model": "demo", "dtype": "float32"}},
            "shard": {"index": shard.0, "count": shard.1}, "limit": null,
            "a_later_field": [1],
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn write_meta(&self, name: &str, meta: &Value) {
        self.write(&format!("{name}.meta.json"), meta.to_string().as_bytes());
    }

    fn read_meta(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(&format!("{name}.meta.json"))).unwrap()
    }

    /// Changes the side file of a shard.
    fn change_meta(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut meta = self.read_meta(name);
        change(&mut meta);
        self.write_meta(name, &meta);
    }

    /// Rewrites a shard, and says so in its side file as its run would have.
    fn change_rows(&self, name: &str, bytes: &[u8]) {
        self.write(name, bytes);
        self.change_meta(name, |meta| {
            meta["output"]["bytes"] = json!(bytes.len());
            meta["output"]["blake3"] = json!(hash(bytes));
        });
    }

    fn vllm_batch(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).args(flags).output().unwrap()
    }

    /// `merge` of these shards.
    fn merge_of(&self, shards: &[&str], flags: &[&str]) -> Output {
        self.vllm_batch(&[&["merge"][..], shards, flags].concat())
    }

    /// `merge` of all shards.
    fn merge(&self, flags: &[&str]) -> Output {
        let shards: Vec<&str> = self.shards.iter().map(String::as_str).collect();
        self.merge_of(&shards, &[&["--out", "out"], flags].concat())
    }

    #[track_caller]
    fn assert_whole(&self, output: &Output) {
        assert_exit(output, 0);
        assert_eq!(self.read("out"), self.whole);
        assert!(output.stdout.is_empty());
    }

    /// A refusal leaves what was there.
    #[track_caller]
    fn assert_refused(&self, output: &Output, exit: i32, wanted: &[&str]) {
        assert_exit(output, exit);
        let errors = text(&output.stderr);
        for wanted in wanted {
            assert!(errors.contains(wanted), "{wanted}: {errors}");
        }
        assert!(errors.contains("\nhelp: "), "{errors}");
        let names = names(self.folder.path());
        assert!(!names.iter().any(|name| name.starts_with("out")), "{names:?}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit) as usize
    }
}

#[test]
fn any_number_of_rows_and_shards_gives_the_bytes_of_one_run() {
    let mut random = Random(7);
    for rows in 0..=50 {
        for count in [1, 2, 3, 5, 7] {
            let mut run = match random.below(2) {
                0 => Run::jsonl(rows, count),
                _ => csv(rows, count, &mut random),
            };
            for left in (1..run.shards.len()).rev() {
                let other = random.below(left as u64 + 1);
                run.shards.swap(left, other);
            }
            let flags: &[&str] = if random.below(2) == 0 { &["--verify"] } else { &[] };
            run.assert_whole(&run.merge(flags));
            let meta = run.read_meta("out");
            assert_eq!(meta["rows"]["total"], rows, "{rows} rows, {count} shards");
            assert_eq!(meta["output"]["blake3"], hash(&run.whole));
        }
    }
}

/// Cells with quotes, separators and line ends, ended by LF or CRLF.
fn csv(rows: usize, count: usize, random: &mut Random) -> Run {
    let pieces = ["a", "\"\"", ",", "\t", "\n", "\r\n", "é", "=1"];
    let end = if random.below(2) == 0 { "\n" } else { "\r\n" };
    let (format, separator) = if random.below(2) == 0 { ("csv", ",") } else { ("tsv", "\t") };
    let mut record = |row| {
        let cell: String = (0..random.below(9)).map(|_| pieces[random.below(8)]).collect();
        format!("{row}{separator}\"{cell}\"{separator}plain{end}")
    };
    let records: Vec<_> = (0..rows).map(&mut record).collect();
    let header = format!("id{separator}\"the\nquestion\"{separator}response{end}");
    Run::new(format, &header, &records, count)
}

#[test]
fn the_merged_side_file_is_that_of_one_run() {
    let run = Run::jsonl(8, 3);
    let output = run.merge(&["--verify"]);
    run.assert_whole(&output);
    let said = format!(
        "Verified: out is what one run writes (8 rows of 3 shards, blake3 {})\n",
        hash(&run.whole)
    );
    assert_eq!(text(&output.stderr), said);
    let mut expected = run.read_meta("s0.jsonl");
    expected.as_object_mut().unwrap().remove("a_later_field");
    expected["finished"] = json!("2026-11-20T11:00:02Z");
    expected["resumes"] = json!(3);
    expected["rows"] = json!({"total": 8, "ok": 5, "failed": 3, "by_code": {"bad_json": 3}});
    expected["tokens"] = json!({"input": 80, "output": 56});
    let (bytes, blake3) = (run.whole.len(), hash(&run.whole));
    expected["output"] = json!({"rows": 8, "bytes": bytes, "blake3": blake3});
    expected["shard"] = json!({"index": 0, "count": 1});
    let mut made = run.read_meta("out");
    made.as_object_mut().unwrap().remove("checksum").expect("of its own text");
    assert_eq!(made, expected);
    // It is the side file of a run of one shard.
    assert_exit(&run.merge_of(&["out"], &["--out", "again", "--verify"]), 0);
    assert_eq!(run.read("again"), run.whole);
    let mut left: Vec<_> = names(run.folder.path());
    left.retain(|name| name.ends_with(".part"));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_verify_it_says_so_and_quiet_says_nothing() {
    let run = Run::jsonl(4, 2);
    let output = run.merge(&[]);
    run.assert_whole(&output);
    let said = "Merged: out (4 rows of 2 shards, checksums not compared)\n";
    assert_eq!(text(&output.stderr), said);
    let output = run.merge(&["--verify", "--overwrite", "-q"]);
    run.assert_whole(&output);
    assert!(output.stderr.is_empty());
}

#[test]
fn a_corrupted_byte_is_found_by_verify_alone() {
    for format in ["jsonl", "csv"] {
        let run = match format {
            "csv" => csv(9, 3, &mut Random(1)),
            _ => Run::jsonl(9, 3),
        };
        let name = &run.shards[1];
        let mut bytes = run.read(name);
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        run.write(name, &bytes);
        let output = run.merge(&["--verify"]);
        run.assert_refused(&output, 6, &["error[shard_changed]: ", " has the checksum ", "1/3"]);
        assert_exit(&run.merge(&[]), 0);
        let merged = run.read("out");
        assert_eq!(merged.len(), run.whole.len());
        assert_ne!(merged, run.whole);
    }
}

#[test]
fn every_flipped_bit_of_a_shard_is_found() {
    let run = Run::jsonl(5, 2);
    let bytes = run.read("s1.jsonl");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        run.write("s1.jsonl", &damaged);
        run.assert_refused(&run.merge(&["--verify"]), 6, &["error[shard_changed]: s1.jsonl"]);
    }
}

#[test]
fn a_cut_or_edited_shard_is_found_without_verify() {
    let run = Run::jsonl(9, 3);
    let bytes = run.read("s2.jsonl");
    for length in [0, 1, bytes.len() - 1] {
        run.write("s2.jsonl", &bytes[..length]);
        let wanted = format!("s2.jsonl has {length} bytes, its run left {}", bytes.len());
        run.assert_refused(&run.merge(&[]), 6, &["error[shard_changed]", &wanted]);
    }
    // Side files that were made to fit: rows still have to be whole, and as many as striding gives.
    let rows: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    run.change_rows("s2.jsonl", &bytes[..bytes.len() - 1]);
    run.assert_refused(&run.merge(&[]), 6, &["s2.jsonl does not end with a line end"]);
    run.change_rows("s2.jsonl", &rows[..2].concat());
    run.assert_refused(&run.merge(&[]), 6, &["s2.jsonl has 2 rows, its run left 3"]);
    run.change_rows("s2.jsonl", &[&bytes[..], b"{}\n"].concat());
    run.assert_refused(&run.merge(&[]), 6, &["s2.jsonl has more than the 3 rows of its run"]);
    run.change_meta("s2.jsonl", |meta| {
        meta["output"]["rows"] = json!(4);
        meta["rows"] = json!({"total": 4, "ok": 4, "failed": 0, "by_code": {}});
    });
    let wanted = ["error[shard_rows]", "s2.jsonl has 4 rows, shard 2/3 of 9 rows has 3"];
    run.assert_refused(&run.merge(&[]), 6, &wanted);
    run.write("s2.jsonl", &[&bytes[..], b"{}\n"].concat());
}

#[test]
fn a_csv_shard_with_an_open_quote_is_cut() {
    let run = csv(4, 2, &mut Random(3));
    let name = run.shards.iter().find(|name| name.starts_with("s1")).unwrap();
    let bytes = run.read(name);
    let quote = bytes.iter().rposition(|byte| *byte == b'"').unwrap();
    run.change_rows(name, &[&bytes[..quote], b"x", &bytes[quote + 1..]].concat());
    run.assert_refused(&run.merge(&[]), 6, &["does not end with a line end"]);
    let quote = bytes.iter().position(|byte| *byte == b'"').unwrap();
    run.change_rows(name, &bytes[..=quote]);
    run.assert_refused(&run.merge(&[]), 6, &["ends in its CSV header"]);
}

#[test]
fn shards_whose_names_were_swapped_are_found() {
    let run = Run::jsonl(8, 2);
    let (zero, one) = (run.read("s0.jsonl"), run.read("s1.jsonl"));
    run.write("s0.jsonl", &one);
    run.write("s1.jsonl", &zero);
    run.assert_refused(&run.merge(&["--verify"]), 6, &["error[shard_changed]: s0.jsonl"]);
    // With their side files they may have any name.
    let (zero, one) = (run.read_meta("s0.jsonl"), run.read_meta("s1.jsonl"));
    run.write_meta("s0.jsonl", &one);
    run.write_meta("s1.jsonl", &zero);
    run.assert_whole(&run.merge(&["--verify"]));
}

#[test]
fn a_full_disk_exits_5() {
    let run = Run::jsonl(8, 2);
    let merge = |out: &str| run.merge_of(&["s0.jsonl", "s1.jsonl"], &["--verify", "--out", out]);
    let output = merge("/dev/full");
    run.assert_refused(&output, 5, &["error[disk_full]"]);
    // A device has no side file: this only verifies.
    assert_exit(&merge("/dev/null"), 0);
    assert!(!Path::new("/dev/null.meta.json").exists());
}

#[test]
fn the_side_file_of_an_older_output_never_stays() {
    let run = Run::jsonl(8, 2);
    run.write("out.meta.json", &run.read("s0.jsonl.meta.json"));
    run.assert_whole(&run.merge(&[]));
    assert_eq!(run.read_meta("out")["rows"]["total"], 8);
}

#[test]
fn rows_longer_than_any_buffer_pass_in_pieces() {
    let record = |row: usize| format!("{row},\"{}\"\r\n", "x,\n\"\"".repeat(100_000 * row));
    let records: Vec<_> = (0..5).map(record).collect();
    let run = Run::new("csv", "id,response\r\n", &records, 3);
    let bytes = run.read("s2.csv");
    let last = bytes.iter().rposition(|byte| *byte == b'x').unwrap();
    run.write("s2.csv", &[&bytes[..last], b"y", &bytes[last + 1..]].concat());
    // The part has rows by now; they go with the refusal.
    run.assert_refused(&run.merge(&["--verify"]), 6, &["s2.csv has the checksum "]);
    run.write("s2.csv", &bytes);
    run.assert_whole(&run.merge(&["--verify"]));
}

#[test]
fn links_are_followed_and_stay() {
    let run = Run::jsonl(8, 2);
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(run.path(from), run.path(to));
    link("s0.jsonl", "link").unwrap();
    run.write("out", b"old\n");
    link("out", "out-link").unwrap();
    let flags = ["--verify", "--overwrite", "--out", "out-link"];
    run.assert_whole(&run.merge_of(&["link", "s1.jsonl"], &flags));
    assert!(run.path("out-link").is_symlink());
    assert_eq!(run.read_meta("out")["rows"]["total"], 8);
    assert!(!run.path("out-link.meta.json").exists());
}
