//! `--sample`: a random part of an input, the same everywhere, which grows without computing again.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::cli::{DEMO, TINY, assert_exit, finish, rows, temporary, text, vllm_batch};

const EMBEDDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");

/// Rows without names, which are sampled by their numbers.
fn write_input(folder: &Path, number: usize) {
    let lines: String =
        (0..number).map(|n| format!("{{\"note\":{n},\"prompt\":\"n {n}\"}}\n")).collect();
    fs::write(folder.join("in.jsonl"), lines).unwrap();
    let lines: String = (0..number).map(|n| format!("{n},n {n}\n")).collect();
    fs::write(folder.join("in.csv"), format!("note,prompt\n{lines}")).unwrap();
}

fn run(folder: &Path, flags: &[&str]) -> Output {
    let common =
        ["run", "-m", TINY, "--max-tokens", "3", "--temperature", "1", "--stats", "s.json"];
    finish(vllm_batch(folder, &common).args(flags), "")
}

fn done(folder: &Path, flags: &[&str]) -> String {
    let output = run(folder, flags);
    assert_exit(&output, 0);
    text(&output.stdout).to_owned()
}

fn num_computed(folder: &Path) -> u64 {
    let stats = fs::read_to_string(folder.join("s.json")).unwrap();
    let rows = serde_json::from_str::<Value>(&stats).unwrap()["rows"].clone();
    rows["total"].as_u64().unwrap() - rows["reused"].as_u64().unwrap()
}

fn notes(jsonl: &str) -> Vec<u64> {
    rows(jsonl).iter().map(|row| row["note"].as_u64().unwrap()).collect()
}

#[test]
fn rows_of_a_sample_are_those_of_the_whole_run_in_their_order() {
    let folder = temporary();
    let path = folder.path();
    write_input(path, 40);
    let whole = done(path, &["-i", "in.jsonl"]);
    let small = done(path, &["-i", "in.jsonl", "--sample", "6"]);
    let large = done(path, &["-i", "in.jsonl", "--sample", "15"]);
    let of = |text: &str| text.lines().map(str::to_owned).collect::<HashSet<_>>();
    assert_eq!((of(&small).len(), of(&large).len()), (6, 15));
    assert!(of(&small).is_subset(&of(&large)) && of(&large).is_subset(&of(&whole)));
    assert!(notes(&small).is_sorted() && notes(&large).is_sorted());
    assert_eq!(notes(&small), [1, 4, 18, 25, 27, 38], "the same on every machine");
    let other = done(path, &["-i", "in.jsonl", "--sample", "6", "--sample-seed", "1"]);
    assert_ne!(notes(&other), notes(&small));
    let first = notes(&done(path, &["-i", "in.jsonl", "--sample", "6", "--limit", "10"]));
    assert!(first.len() == 6 && first.iter().all(|note| *note < 10), "{first:?}");
    assert_eq!(done(path, &["-i", "in.jsonl", "--sample", "99"]), whole);
    // Several files are one input.
    let both = notes(&done(path, &["-i", "in.jsonl", "in.jsonl", "--sample", "12"]));
    assert_eq!(both.len(), 12);
}

#[test]
fn a_larger_sample_and_the_whole_input_compute_new_rows_alone() {
    for out in ["out.jsonl", "out.csv", "out.parquet", "out.jsonl.gz"] {
        let folder = temporary();
        let path = folder.path();
        write_input(path, 40);
        let input = if out == "out.csv" { "in.csv" } else { "in.jsonl" };
        let mut before = 0;
        for (sample, total) in [(&["--sample", "6"][..], 6), (&["--sample", "15"], 15), (&[], 40)] {
            done(path, &[&["-i", input, "-o", out], sample].concat());
            assert_eq!(num_computed(path), total - before, "{out} {sample:?}");
            before = total;
            let fresh = format!("{total}.{out}");
            done(path, &[&["-i", input, "-o", &fresh], sample].concat());
            let bytes = |name: &str| fs::read(path.join(name)).unwrap();
            assert!(bytes(out) == bytes(&fresh), "{out} {sample:?}");
            let again = run(path, &[&["-i", input, "-o", out], sample].concat());
            assert_exit(&again, 0);
            assert!(text(&again.stderr).contains("Nothing to do"), "{}", text(&again.stderr));
        }
        let smaller = run(path, &["-i", input, "-o", out, "--sample", "6"]);
        assert_exit(&smaller, 6);
    }
}

#[test]
fn a_sample_of_an_input_that_changed_is_another() {
    let folder = temporary();
    let path = folder.path();
    write_input(path, 40);
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--sample", "6"];
    done(path, &flags);
    let other = run(path, &[&flags[..], &["--sample-seed", "3"]].concat());
    assert_exit(&other, 6);
    // Rows that are alike are told apart by their numbers: no answer is taken for another's.
    let input = |rows: usize, first: &str| {
        let others = "{\"prompt\":\"n\"}\n".repeat(rows - 2);
        let lines = format!("{{\"prompt\":\"n\"}}\n{first}\n{others}");
        fs::write(path.join("in.jsonl"), lines).unwrap();
    };
    let alike = ["-i", "in.jsonl", "-o", "alike.jsonl", "--sample", "6", "--retry-failed"];
    input(40, "{\"prompt\":\"n\",\"max_tokens\":-3}");
    assert_exit(&run(path, &alike), 3);
    input(60, "{\"prompt\":\"n\"}");
    assert_exit(&run(path, &alike), 0);
    let fresh = done(path, &["-i", "in.jsonl", "--sample", "6"]);
    assert_eq!(fs::read_to_string(path.join("alike.jsonl")).unwrap(), fresh);
}

#[test]
fn shards_share_out_a_sample_and_merge() {
    let folder = temporary();
    let path = folder.path();
    write_input(path, 40);
    let whole = done(path, &["-i", "in.jsonl", "--sample", "7"]);
    for (shard, out, total) in [("0/2", "0.jsonl", 4), ("1/2", "1.jsonl", 3)] {
        let flags = ["-i", "in.jsonl", "-o", out, "--shard", shard];
        done(path, &[&flags[..], &["--sample", "7"]].concat());
        assert_eq!(num_computed(path), total);
    }
    let merge = ["merge", "--verify", "0.jsonl", "1.jsonl", "-o", "all.jsonl"];
    assert_exit(&finish(&mut vllm_batch(path, &merge), ""), 0);
    assert_eq!(fs::read_to_string(path.join("all.jsonl")).unwrap(), whole);
    let flags = ["-i", "in.jsonl", "-o", "2.jsonl", "--shard", "1/2", "--sample", "7"];
    done(path, &[&flags[..], &["--sample-seed", "2"]].concat());
    let merge = ["merge", "0.jsonl", "2.jsonl", "-o", "bad.jsonl"];
    let merged = finish(&mut vllm_batch(path, &merge), "");
    assert_exit(&merged, 6);
    assert!(text(&merged.stderr).contains("--sample: "), "{}", text(&merged.stderr));
}

#[test]
fn every_command_over_rows_takes_a_sample() {
    let folder = temporary();
    let path = folder.path();
    write_input(path, 40);
    let of = |words: &str, input: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        finish(&mut vllm_batch(path, &words), input)
    };
    let checked = of("check --sample 6 in.jsonl in.csv", "");
    assert_exit(&checked, 0);
    for name in ["in.jsonl", "in.csv"] {
        let wanted = format!("{name}: 6 rows, 0 bad");
        assert!(text(&checked.stderr).contains(&wanted), "{}", text(&checked.stderr));
    }
    let words = format!("plan -m {DEMO} -i in.jsonl --sample 6 --sample-seconds 0");
    let plan = of(&words, "");
    assert_exit(&plan, 0);
    assert!(
        text(&plan.stdout).starts_with("Rows: 6 in in.jsonl; 6 to run"),
        "{}",
        text(&plan.stdout)
    );
    let words = format!("embed -m {EMBEDDER} -i in.jsonl --prompt-column prompt --sample 6");
    let embedded = of(&words, "");
    assert_exit(&embedded, 0);
    assert_eq!(notes(text(&embedded.stdout)), [1, 4, 18, 25, 27, 38]);
    for words in [
        format!("run -m {TINY} --sample 6"),
        format!("run -m {TINY} --sample 6 -i in.jsonl -"),
        "check --sample 6 -".to_owned(),
    ] {
        let refused = of(&words, "{\"prompt\":\"a\"}\n");
        assert_exit(&refused, 2);
        let said = text(&refused.stderr);
        assert!(said.contains("--sample: <stdin> is a stream"), "{said}");
    }
    let missing = of(&format!("run -m {TINY} --sample 6 -i none.jsonl"), "");
    assert_exit(&missing, 2);
    assert!(text(&missing.stderr).contains("No such file"), "{}", text(&missing.stderr));
    assert_exit(&of(&format!("run -m {TINY} --sample-seed 6 -i in.jsonl"), ""), 2);
}
