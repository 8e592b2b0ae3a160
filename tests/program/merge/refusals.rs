//! Shards that cannot be merged, and what may not be replaced.

use std::fs;

use serde_json::{Value, json};

use super::{Run, assert_exit, hash, text};

#[test]
fn each_shard_is_given_once() {
    let run = Run::jsonl(20, 15);
    let all: Vec<&str> = run.shards.iter().map(String::as_str).collect();
    let merge = |shards: &[&str]| run.merge_of(shards, &["--out", "out", "--verify"]);
    let missing = merge(&[&all[..3], &all[4..]].concat());
    run.assert_refused(&missing, 2, &["error[shard_missing]: missing: shard 3/15\n"]);
    let wanted = "missing: shard 1/15, 2/15, 3/15, 4/15, 5/15, 6/15, 7/15, 8/15, 9/15, 10/15, \
                  4 more\n";
    run.assert_refused(&merge(&all[..1]), 2, &[wanted]);
    fs::copy(run.path("s3.jsonl"), run.path("copy")).unwrap();
    fs::copy(run.path("s3.jsonl.meta.json"), run.path("copy.meta.json")).unwrap();
    let twice = "error[shard_twice]: s3.jsonl and copy are both shard 3/15";
    run.assert_refused(&merge(&[&all[..], &["copy"]].concat()), 2, &[twice]);
    let mut instead = all.clone();
    instead[4] = "copy";
    run.assert_refused(&merge(&instead), 2, &[twice]);
    run.assert_refused(&merge(&[&all[..], &["none"]].concat()), 2, &["cannot read none: No such"]);
    run.assert_refused(
        &merge(&["."]),
        2,
        &["cannot read .: it is a folder", "help: name a file in that folder"],
    );
    let output = run.merge_of(&[], &["--out", "out"]);
    assert_exit(&output, 2);
}

#[test]
fn shards_of_another_run_are_refused_and_the_difference_is_named() {
    let refused = |change: &dyn Fn(&mut Value), wanted: &[&str]| {
        let run = Run::jsonl(8, 2);
        run.change_meta("s1.jsonl", change);
        for flags in [&[][..], &["--verify"]] {
            run.assert_refused(&run.merge(flags), 6, &["error[other_run]: s0.jsonl"]);
            run.assert_refused(&run.merge(flags), 6, wanted);
        }
    };
    let fields = |meta: &mut Value| {
        meta["fingerprint"]["id"] = json!("cd");
        meta["fingerprint"]["fields"]["dtype"] = json!("bfloat16");
        meta["fingerprint"]["fields"]["seed"] = json!("7");
    };
    let wanted = "s1.jsonl are not of one run:\n  dtype: float32 and bfloat16\n  \
                  seed: nothing and 7\n";
    refused(&fields, &[wanted]);
    refused(&|meta| meta["fingerprint"]["id"] = json!("cd"), &["\n  fingerprint: abab"]);
    let field = |meta: &mut Value| meta["fingerprint"]["fields"]["model"] = json!("x\u{1b}[2J");
    refused(&field, &["\n  model: demo and x\u{241b}[2J"]);
    let wanted = "content of the input: 0123456789abcdef (prompts.jsonl) and ff (prompts.jsonl)";
    refused(&|meta| meta["input"]["digest"] = json!("ff"), &[wanted]);
    refused(&|meta| meta["input"]["rows"] = json!(9), &["rows of the input: 8 and 9"]);
    refused(&|meta| meta["limit"] = json!(8), &["--limit: none and 8"]);
    refused(&|meta| meta["format"] = json!("csv"), &["format: jsonl and csv"]);
    let count = |meta: &mut Value| meta["shard"] = json!({"index": 1, "count": 3});
    refused(&count, &["s0.jsonl is shard 0/2, s1.jsonl is shard 1/3"]);
}

#[test]
fn a_limit_is_part_of_the_run() {
    let run = Run::jsonl(8, 3);
    // Whether the input's rows are counted up to the limit or to the end.
    for rows in [8, 100] {
        for name in &run.shards {
            run.change_meta(name, |meta| {
                meta["limit"] = json!(8);
                meta["input"]["rows"] = json!(rows);
            });
        }
        run.assert_whole(&run.merge(&["--verify", "--overwrite"]));
        assert_eq!(run.read_meta("out")["limit"], 8);
    }
}

#[test]
fn csv_headers_have_to_be_equal() {
    let records: Vec<_> = (0..5).map(|row| format!("{row},a\n")).collect();
    let run = Run::new("csv", "id,response\n", &records, 2);
    let rows = run.read("s1.csv");
    let other = text(&rows).replace("id,", "no,");
    run.change_rows("s1.csv", other.as_bytes());
    let wanted = ["error[other_run]", "s0.csv and s1.csv have different CSV headers"];
    run.assert_refused(&run.merge(&["--verify"]), 6, &wanted);
    // A shard without rows may have a header or none.
    let run = Run::new("csv", "id,response\n", &records[..1], 2);
    run.assert_whole(&run.merge(&["--verify"]));
    run.change_rows("s1.csv", b"id,response\n");
    run.assert_whole(&run.merge(&["--verify", "--overwrite"]));
}

#[test]
fn side_files_are_needed_and_read_with_care() {
    let refused = |change: &dyn Fn(&Run), wanted: &[&str]| {
        let run = Run::jsonl(8, 2);
        change(&run);
        run.assert_refused(&run.merge(&["--verify"]), 2, wanted);
    };
    let meta = "s1.jsonl.meta.json";
    let wanted = ["error[no_meta]: s1.jsonl has no s1.jsonl.meta.json\n"];
    refused(&|run| fs::remove_file(run.path(meta)).unwrap(), &wanted);
    refused(&|run| run.write(meta, b"{\"schema\":1"), &["error[bad_meta]: s1.jsonl.meta.json: "]);
    let schema = |run: &Run| run.change_meta("s1.jsonl", |meta| meta["schema"] = json!(2));
    refused(&schema, &["schema 2, this program knows 1\nhelp: use the version of vllm-batch"]);
    let rows = |run: &Run| run.change_meta("s1.jsonl", |meta| meta["output"]["rows"] = json!(3));
    refused(&rows, &["error[bad_meta]: s1.jsonl: 4 rows were done and 3 written"]);
    let compressed = |run: &Run| {
        run.change_meta("s1.jsonl", |meta| meta["compression"] = json!("brotli"));
    };
    let wanted = "error[shard_compressed]: s1.jsonl: this program does not know brotli\nhelp: use";
    refused(&compressed, &[wanted]);
    let errors = |run: &Run| {
        run.change_meta("s1.jsonl", |meta| {
            meta["errors"] = json!({"path": "e.jsonl", "rows": 2, "bytes": 9, "blake3": "ab"});
        });
    };
    let wanted = "error[shard_errors]: s1.jsonl was made with --errors: its 2 error rows are in \
                  e.jsonl, not in their places\nhelp: run the shards without --errors";
    refused(&errors, &[wanted]);
}

#[test]
fn what_is_there_stays_unless_told_otherwise() {
    let run = Run::jsonl(8, 2);
    run.write("out", b"precious\n");
    let output = run.merge(&["--verify"]);
    assert_exit(&output, 6);
    assert!(text(&output.stderr).contains("error[output_exists]: out exists\nhelp: "));
    assert_eq!(run.read("out"), b"precious\n");
    run.assert_whole(&run.merge(&["--verify", "--overwrite"]));
    // A shard that turns out to be damaged in the end changes nothing.
    let mut bytes = run.read("s1.jsonl");
    bytes[2] ^= 1;
    run.write("s1.jsonl", &bytes);
    assert_exit(&run.merge(&["--verify", "--overwrite"]), 6);
    assert_eq!(run.read("out"), run.whole);
    assert_eq!(run.read_meta("out")["output"]["blake3"], hash(&run.whole));
    // Nor does one do so to the rows of an unfinished run before there is a row in their place.
    run.write("out.part", b"unfinished\n");
    fs::remove_file(run.path("out")).unwrap();
    let output = run.merge(&[]);
    assert_exit(&output, 6);
    assert!(text(&output.stderr).contains("error[output_unfinished]: out.part holds rows"));
    assert_exit(&run.merge(&["--verify", "--overwrite"]), 6);
    assert_eq!(run.read("out.part"), b"unfinished\n");
}

#[test]
fn a_shard_is_never_the_output() {
    let run = Run::jsonl(8, 2);
    let before = run.read("s1.jsonl");
    fs::hard_link(run.path("s1.jsonl"), run.path("link")).unwrap();
    fs::hard_link(run.path("s1.jsonl"), run.path("other.part")).unwrap();
    for out in ["s1.jsonl", "link", "other"] {
        let shards = ["s0.jsonl", "s1.jsonl"];
        let output = run.merge_of(&shards, &["--overwrite", "--out", out]);
        run.assert_refused(&output, 2, &["s1.jsonl is a shard: ", " would replace it"]);
        assert_eq!(run.read("s1.jsonl"), before);
    }
    let output = run.merge_of(&["s0.jsonl", "s1.jsonl"], &["--out", "-"]);
    run.assert_refused(&output, 2, &["merge writes a file"]);
    let output = run.merge_of(&["s0.jsonl", "s1.jsonl"], &["--out", "none/out"]);
    assert_exit(&output, 2);
}
