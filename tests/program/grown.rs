//! The same command over an input that grew, or with a larger `--limit`: finished rows stay, and
//! only new and failed ones are computed, for every form of output.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::resume::program::{Ended, finish, finish_with, kill, run, run_of};

const EMBEDDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");

fn done(folder: &Path, flags: &[&str]) -> Ended {
    finish(&mut command(folder, flags))
}

fn command(folder: &Path, flags: &[&str]) -> std::process::Command {
    let mut command = run(folder, &["--max-tokens", "4", "--stats", "stats.json"]);
    command.args(flags);
    command
}

fn num_computed(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    let stats: Value = serde_json::from_str(&text).unwrap();
    stats["rows"]["total"].as_u64().unwrap() - stats["rows"]["reused"].as_u64().unwrap()
}

fn meta(folder: &Path, out: &str) -> Value {
    let text = fs::read_to_string(folder.join(format!("{out}.meta.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Rows of JSON lines or of a CSV; those at `bad` fail.
fn input(csv: bool, number: usize, bad: &[usize]) -> String {
    let row = |index: usize| match (csv, bad.contains(&index)) {
        (true, is_bad) => format!("{index},\"n\n{index}\",{}\n", if is_bad { "-3" } else { "4" }),
        (false, is_bad) => {
            let limit = if is_bad { -3 } else { 4 };
            format!("{{\"note\":{index},\"prompt\":\"n {index}\",\"max_tokens\":{limit}}}\n")
        }
    };
    let rows: String = (0..number).map(row).collect();
    if csv { format!("note,prompt,max_tokens\n{rows}") } else { rows }
}

const OUTPUTS: [&str; 5] = ["out.jsonl", "out.jsonl.zst", "out.csv", "out.csv.gz", "out.parquet"];

#[test]
fn new_rows_alone_are_computed_and_the_bytes_are_those_of_one_run() {
    for out in OUTPUTS {
        for temperature in ["0", "1"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            let csv = out.contains("csv");
            let name = if csv { "in.csv" } else { "in.jsonl" };
            let flags = ["-i", name, "-o", out, "--temperature", temperature];
            fs::write(path.join(name), input(csv, 12, &[5])).unwrap();
            done(path, &flags).assert_exit(3);
            fs::write(path.join(name), input(csv, 20, &[5])).unwrap();
            let grown = done(path, &flags);
            grown.assert_exit(3);
            // The row that fails is asked again, which costs nothing.
            assert_eq!(num_computed(path), 9, "{out}: {}", grown.stderr);
            grown.assert_says("Going on from 11 rows with an answer: asking 8 new");
            let fresh = format!("fresh.{out}");
            done(path, &["-i", name, "-o", &fresh, "--temperature", temperature]).assert_exit(3);
            let bytes = |name: &str| fs::read(path.join(name)).unwrap();
            assert!(bytes(out) == bytes(&fresh), "{out} {temperature}");
            for key in ["rows", "tokens", "output", "input"] {
                let mut metas = [meta(path, out), meta(path, &fresh)];
                metas.iter_mut().for_each(|meta| meta["output"]["path"] = Value::Null);
                assert_eq!(metas[0][key], metas[1][key], "{out} {key}");
            }
            let again = done(path, &flags);
            again.assert_says("Nothing to do");
        }
    }
}

#[test]
fn failed_rows_that_were_corrected_are_asked_again_in_every_form() {
    for out in OUTPUTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let csv = out.contains("csv");
        let name = if csv { "in.csv" } else { "in.jsonl" };
        let flags = ["-i", name, "-o", out, "--temperature", "0", "--retry-failed"];
        fs::write(path.join(name), input(csv, 12, &[0, 5])).unwrap();
        done(path, &flags).assert_exit(3);
        // Corrected, and two more rows.
        fs::write(path.join(name), input(csv, 14, &[])).unwrap();
        let ended = done(path, &flags);
        ended.assert_exit(0);
        assert_eq!(num_computed(path), 4, "{out}: {}", ended.stderr);
        let fresh = format!("fresh.{out}");
        done(path, &["-i", name, "-o", &fresh, "--temperature", "0"]).assert_exit(0);
        let bytes = |name: &str| fs::read(path.join(name)).unwrap();
        assert!(bytes(out) == bytes(&fresh), "{out}");
    }
}

#[test]
fn a_larger_limit_goes_on_and_a_smaller_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.csv"), input(true, 20, &[])).unwrap();
    let with = |limit: &[&str]| done(path, &[&["-i", "in.csv", "-o", "out.csv"], limit].concat());
    with(&["--limit", "5"]).assert_exit(0);
    with(&["--limit", "9"]).assert_exit(0);
    assert_eq!(num_computed(path), 4);
    with(&[]).assert_exit(0);
    assert_eq!(num_computed(path), 11);
    let before = fs::read(path.join("out.csv")).unwrap();
    with(&["--limit", "9"]).assert_exit(6);
    assert_eq!(fs::read(path.join("out.csv")).unwrap(), before);
    assert_eq!(meta(path, "out.csv")["limit"], Value::Null);
}

#[test]
fn shards_grow_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let flags = ["-i", "in.jsonl", "-o", "s1.jsonl", "--shard", "1/3"];
    fs::write(path.join("in.jsonl"), input(false, 10, &[])).unwrap();
    done(path, &flags).assert_exit(0);
    fs::write(path.join("in.jsonl"), input(false, 20, &[])).unwrap();
    done(path, &flags).assert_exit(0);
    assert_eq!(num_computed(path), 4);
    done(path, &["-i", "in.jsonl", "-o", "f1.jsonl", "--shard", "1/3"]).assert_exit(0);
    let bytes = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(bytes("s1.jsonl") == bytes("f1.jsonl"));
    let other = done(path, &["-i", "in.jsonl", "-o", "s1.jsonl", "--shard", "2/3"]);
    other.assert_exit(6);
    other.assert_says("shard: 1/3 then, 2/3 now");
}

#[test]
fn a_matrix_grows_by_its_new_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let embed = |out: &str| {
        let command = run_of(EMBEDDER, path, &["-i", "in.jsonl", "-o", out]);
        let args: Vec<_> = command.get_args().skip(1).map(ToOwned::to_owned).collect();
        let mut embed = std::process::Command::new(command.get_program());
        embed.current_dir(path).arg("embed").args(args).args(["--stats", "stats.json"]);
        embed.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        finish(&mut embed)
    };
    let rows = |number: usize| -> String {
        let row = |index: usize| match index {
            2 => "{\"text\":7}\n".to_owned(),
            _ => format!("{{\"text\":\"a {index}\"}}\n"),
        };
        (0..number).map(row).collect()
    };
    fs::write(path.join("in.jsonl"), rows(5)).unwrap();
    embed("out.npy").assert_exit(3);
    fs::write(path.join("in.jsonl"), rows(9)).unwrap();
    let ended = embed("out.npy");
    ended.assert_exit(3);
    assert_eq!(num_computed(path), 5, "{}", ended.stderr);
    embed("fresh.npy").assert_exit(3);
    let bytes = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(bytes("out.npy") == bytes("fresh.npy"));
    assert!(bytes("out.npy.errors.jsonl") == bytes("fresh.npy.errors.jsonl"));
    assert_eq!(meta(path, "out.npy")["tokens"], meta(path, "fresh.npy")["tokens"]);
}

#[test]
fn what_cannot_go_on_is_refused_before_the_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.csv"), input(true, 6, &[])).unwrap();
    let flags = ["-i", "in.csv", "-o", "out.csv"];
    done(path, &flags).assert_exit(0);
    let before = fs::read(path.join("out.csv")).unwrap();
    let refused = |flags: &[&str], text: &str| {
        let ended = done(path, flags);
        ended.assert_exit(6);
        ended.assert_says(text);
        ended.assert_says("help: ");
        assert!(!ended.stderr.contains("loaded"), "{}", ended.stderr);
        assert_eq!(fs::read(path.join("out.csv")).unwrap(), before);
    };
    // Other rows, with more behind them.
    let edited = input(true, 9, &[]).replace("n\n2", "m\n2");
    fs::write(path.join("in.csv"), edited).unwrap();
    refused(&flags, "not the same");
    fs::write(path.join("in.csv"), input(true, 9, &[])).unwrap();
    refused(&[&flags[..], &["--temperature", "0.5"]].concat(), "temperature: ");
    fs::write(path.join("in.csv"), input(true, 9, &[]).replace("note,", "name,")).unwrap();
    refused(&flags, "columns: note,prompt");
    // A stream is read once.
    let mut piped = command(path, &["--format", "csv", "-o", "out.csv"]);
    let ended = finish_with(&mut piped, input(true, 9, &[]).as_bytes());
    ended.assert_exit(6);
    ended.assert_says("name the input as a file");
    assert_eq!(fs::read(path.join("out.csv")).unwrap(), before);
}

#[test]
fn the_old_output_stays_until_the_new_one_is_complete_whenever_it_is_killed() {
    for out in ["out.csv", "out.parquet"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("in.csv"), input(true, 40, &[7])).unwrap();
        let flags = ["-i", "in.csv", "-o", out, "--temperature", "1", "--max-num-seqs", "4"];
        done(path, &flags).assert_exit(3);
        let before = fs::read(path.join(out)).unwrap();
        fs::write(path.join("in.csv"), input(true, 400, &[7])).unwrap();
        let mut killed = 0;
        for milliseconds in (0..12).map(|step| 20 + 40 * step) {
            let mut child = command(path, &flags).spawn().unwrap();
            sleep(Duration::from_millis(milliseconds));
            if child.try_wait().unwrap().is_none() && kill(child).is_ok() {
                killed += 1;
                let now = fs::read(path.join(out)).unwrap();
                let has_end = !path.join(format!("{out}.journal")).exists();
                assert!(now == before || has_end || now.len() > before.len(), "{milliseconds}");
            }
        }
        let ended = done(path, &flags);
        ended.assert_exit(3);
        let mut fresh = flags;
        let name = format!("fresh.{out}");
        fresh[3] = &name;
        done(path, &fresh).assert_exit(3);
        let bytes = |name: &str| fs::read(path.join(name)).unwrap();
        assert!(bytes(out) == bytes(&name), "{out}, {killed} kills: {}", ended.stderr);
        assert_eq!(meta(path, out)["tokens"], meta(path, &name)["tokens"]);
    }
}

#[test]
fn edited_rows_alone_are_computed() {
    for out in OUTPUTS {
        for temperature in ["0", "1"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            let csv = out.contains("csv");
            let name = if csv { "in.csv" } else { "in.jsonl" };
            let flags = ["-i", name, "-o", out, "--temperature", temperature];
            let rows = input(csv, 200, &[5]);
            fs::write(path.join(name), &rows).unwrap();
            done(path, &flags).assert_exit(3);
            // Rows that had an answer, in front, in a burst and at the end; and one that failed.
            let edited = |text: String, number: usize| {
                let (then, now) = match csv {
                    true => (format!("\"n\n{number}\""), format!("\"m\n{number}\"")),
                    false => (format!("\"n {number}\""), format!("\"m {number}\"")),
                };
                text.replace(&then, &now)
            };
            let mut now = rows.replace("-3", "4");
            for number in [0].into_iter().chain(20..120).chain([199]) {
                now = edited(now, number);
            }
            fs::write(path.join(name), &now).unwrap();
            let refused = done(path, &flags);
            refused.assert_exit(6);
            refused.assert_says("--retry-failed computes rows that were edited");
            let retried = done(path, &[&flags[..], &["--retry-failed"]].concat());
            retried.assert_exit(0);
            assert_eq!(num_computed(path), 103, "{out}: {}", retried.stderr);
            let fresh = format!("fresh.{out}");
            done(path, &["-i", name, "-o", &fresh, "--temperature", temperature]).assert_exit(0);
            let bytes = |name: &str| fs::read(path.join(name)).unwrap();
            assert!(bytes(out) == bytes(&fresh), "{out} {temperature}");
        }
    }
    // Rows that are gone, and rows between others.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--temperature", "0"];
    let rows = input(false, 100, &[]);
    fs::write(path.join("in.jsonl"), &rows).unwrap();
    done(path, &flags).assert_exit(0);
    let kept = rows.lines().enumerate().filter(|(at, _)| ![3, 50, 51].contains(at));
    let between = "{\"prompt\":\"new\"}\n";
    let now = kept.map(|(at, row)| {
        let before = if at % 40 == 0 { between } else { "" };
        format!("{before}{row}\n")
    });
    fs::write(path.join("in.jsonl"), now.collect::<String>()).unwrap();
    done(path, &[&flags[..], &["--retry-failed"]].concat()).assert_exit(0);
    assert_eq!(num_computed(path), 3);
    let again = done(path, &[&flags[..], &["--retry-failed"]].concat());
    again.assert_says("Nothing to do");
}
