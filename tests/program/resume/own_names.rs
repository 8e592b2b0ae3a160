//! The files of one process: none is another one of them, is read, or is reached through what
//! someone else put in its place. All of that is found before a row is computed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::resume::program::{Ended, TINY, finish, json, names, run, run_of};
use crate::resume::rows::{rows, with_bad_rows};
use crate::resume::work::Work;

fn work() -> Work {
    let flags = &["--temperature", "1", "--ignore-eos", "--max-tokens", "4", "-q"];
    Work { flags, ..Work::sampled(with_bad_rows(rows(71, 12, true))) }
}

/// The job of `work`, with more flags.
fn run_with(folder: &Path, more: &[&str]) -> Ended {
    finish(run(folder, work().flags).args(["-i", "in.jsonl"]).args(more))
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn two_flags_may_not_name_one_file_however_it_is_spelled() {
    let folder = work().folder();
    let folder = folder.path();
    fs::create_dir(folder.join("sub")).unwrap();
    symlink(".", folder.join("here")).unwrap();
    let own = folder.join("o.jsonl");
    let before = names(folder);
    for (flags, one, other) in [
        (["--journal", "./o.jsonl.part"], "the part of --out", "--journal"),
        (["--journal", "here/o.jsonl.meta.json"], "--journal", "the side file of --out"),
        (["--journal", "sub/../o.jsonl"], "--out", "--journal"),
        (["--errors", "./o.jsonl"], "--out", "--errors"),
        (["--errors", own.to_str().unwrap()], "--out", "--errors"),
        (["--errors", "here/o.jsonl.journal"], "--errors", "the journal of --out"),
        (["--stats", "here/o.jsonl"], "--out", "--stats"),
        (["--stats", "./o.jsonl.part"], "the part of --out", "--stats"),
        (["--stats", "o.jsonl.journal"], "--stats", "the journal of --out"),
        (["--stats", "o.jsonl.meta.json"], "--stats", "the side file of --out"),
    ] {
        for overwrite in [&[][..], &["--overwrite"]] {
            let ended = run_with(folder, &[&["-o", "o.jsonl"], &flags[..], overwrite].concat());
            ended.assert_exit(2);
            ended.assert_says(&format!("error[output]: {one} and {other} are one file: "));
            ended.assert_says("\nhelp: choose another name\n");
            assert_eq!(names(folder), before, "{flags:?}");
        }
    }
    let ended = run_with(folder, &["-o", "o", "--errors", "e", "--stats", "here/e"]);
    ended.assert_says("error[output]: --errors and --stats are one file: here/e\n");
    // One inode of two names.
    fs::write(folder.join("o.jsonl"), "old\n").unwrap();
    fs::hard_link(folder.join("o.jsonl"), folder.join("linked")).unwrap();
    let ended = run_with(folder, &["-o", "o.jsonl", "--errors", "linked", "--overwrite"]);
    ended.assert_exit(2);
    ended.assert_says("--out and --errors are one file: linked");
}

#[test]
fn the_document_replaces_no_other_file() {
    let folder = work().folder();
    let folder = folder.path();
    let input = fs::read(folder.join("in.jsonl")).unwrap();
    let overwrite: [&[&str]; 2] = [&[], &["--overwrite"]];
    for more in overwrite {
        for name in ["in.jsonl", "./in.jsonl"] {
            let ended = run_with(folder, &[&["-o", "out", "--stats", name], more].concat());
            ended.assert_exit(2);
            ended.assert_says("error[output]: in.jsonl is the input: --stats would replace it\n");
        }
    }
    assert_eq!(fs::read(folder.join("in.jsonl")).unwrap(), input);
    fs::write(folder.join("notes"), "{\"elapsed_time\":1}\n").unwrap();
    let ended = run_with(folder, &["-o", "out", "--stats", "notes"]);
    ended.assert_exit(6);
    ended.assert_says("error[output_exists]: notes exists, and is no summary of a run: --stats ");
    assert_eq!(names(folder), ["in.jsonl", "notes"]);
    run_with(folder, &["-o", "out", "--stats", "notes", "--overwrite"]).assert_exit(3);
    assert_eq!(json(&folder.join("notes"))["exit_code"], 3);
    fs::write(folder.join("empty"), "").unwrap();
    run_with(folder, &["-o", "another", "--stats", "empty"]).assert_exit(3);
    // An older document is what the flag is about.
    fs::remove_file(folder.join("out")).unwrap();
    run_with(folder, &["-o", "out", "--stats", "notes"]).assert_exit(3);
    let ended = run_with(folder, &["-o", "other", "--stats", "none/s.json"]);
    ended.assert_exit(2);
    ended.assert_says("error[output]: no such folder: none\nhelp: make it with mkdir -p");
}

#[test]
fn no_output_replaces_a_file_of_the_model() {
    let folder = work().folder();
    let folder = folder.path();
    fs::create_dir(folder.join("model")).unwrap();
    for file in fs::read_dir(TINY).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(file.path(), folder.join("model").join(file.file_name())).unwrap();
    }
    let config = fs::read(folder.join("model/config.json")).unwrap();
    for flags in [["--stats", "-o"], ["-o", "--errors"], ["--errors", "-o"]] {
        let flags = [flags[0], "./model/config.json", flags[1], "other", "--overwrite"];
        let mut command = run_of("model", folder, work().flags);
        let ended = finish(command.args(["-i", "in.jsonl"]).args(flags));
        ended.assert_exit(2);
        ended.assert_says("model/config.json is a file of the model: --");
        assert_eq!(fs::read(folder.join("model/config.json")).unwrap(), config);
        assert_eq!(names(folder), ["in.jsonl", "model"]);
    }
    // An output may be in its folder, and be replaced there.
    for _ in 0..2 {
        let flags = ["-o", "model/o.jsonl", "--stats", "model/stats.json", "--overwrite"];
        let mut command = run_of("model", folder, work().flags);
        finish(command.args(["-i", "in.jsonl"]).args(flags)).assert_exit(3);
    }
}

#[test]
fn standard_output_takes_one_of_rows_errors_and_document() {
    let folder = work().folder();
    let folder = folder.path();
    for flags in [&["--stats", "-"][..], &["-o", "-", "--errors", "-"], &["--stats", "/dev/stdout"]]
    {
        let ended = run_with(folder, flags);
        ended.assert_exit(2);
        ended.assert_says(&format!("--out and {} are one file: ", flags[flags.len() - 2]));
        assert!(ended.stdout.is_empty());
    }
    let ended = run_with(folder, &["-o", "out", "--stats", "-"]);
    ended.assert_exit(3);
    let document: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("the document");
    assert_eq!(document["rows"]["total"], 12);
    let ended = run_with(folder, &["-o", "other", "--errors", "-"]);
    ended.assert_exit(3);
    assert_eq!(ended.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    assert_eq!(names(folder), ["in.jsonl", "other", "other.meta.json", "out", "out.meta.json"]);
}

#[test]
fn what_someone_put_in_the_place_of_a_file_is_refused_at_once() {
    let suffixes = ["part", "journal", "meta.json", "meta.json.part"];
    for suffix in suffixes {
        for (kind, words) in [
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("folder", "a folder"),
            ("pipe", "a device or a pipe"),
        ] {
            let folder = work().folder();
            let folder = folder.path();
            fs::write(folder.join("precious"), "").unwrap();
            let name = folder.join(format!("o.jsonl.{suffix}"));
            match kind {
                "link" => symlink("precious", &name).unwrap(),
                "dangling" => symlink("nothing", &name).unwrap(),
                "folder" => fs::create_dir(&name).unwrap(),
                _ => make_pipe(&name),
            }
            let before = names(folder);
            for more in [&[][..], &["--overwrite"]] {
                let ended = run_with(folder, &[&["-o", "o.jsonl"], more].concat());
                ended.assert_exit(2);
                ended.assert_says(&format!("error[output]: o.jsonl.{suffix} is {words}\nhelp: "));
                assert_eq!(names(folder), before, "{suffix} {kind}");
                assert_eq!(fs::read(folder.join("precious")).unwrap(), b"");
            }
        }
    }
}

#[test]
fn a_file_that_is_no_journal_is_kept_whatever_is_asked() {
    let folder = work().folder();
    let folder = folder.path();
    fs::write(folder.join("notes"), "a week of work\n").unwrap();
    for more in [&[][..], &["--overwrite"]] {
        let ended = run_with(folder, &[&["-o", "o", "--journal", "notes"], more].concat());
        ended.assert_exit(6);
        ended.assert_says("error[journal]: notes is no journal\nhelp: move it away, or choose");
        assert_eq!(names(folder), ["in.jsonl", "notes"]);
        assert_eq!(fs::read_to_string(folder.join("notes")).unwrap(), "a week of work\n");
    }
}

#[test]
fn a_complete_output_that_was_changed_is_not_complete() {
    let folder = work().folder();
    let folder = folder.path();
    let flags = ["-o", "o.jsonl", "--errors", "e.jsonl"];
    run_with(folder, &flags).assert_exit(3);
    let whole = ["o.jsonl", "e.jsonl"].map(|name| fs::read(folder.join(name)).unwrap());
    let mut flipped = whole[0].clone();
    flipped[7] ^= 1;
    let cut = whole[0][..100].to_vec();
    let assert_refused = |more: &[&str], difference: &str| {
        let ended = run_with(folder, &[&flags, more].concat());
        ended.assert_exit(6);
        ended.assert_says("error[output_changed]: ");
        ended.assert_says(" is not what its run wrote: ");
        ended.assert_says(&format!(
            "{difference}\nhelp: put back what the run wrote, or start over"
        ));
    };
    for (bytes, difference) in [(cut, "bytes then, 100 now"), (flipped, "with other bytes")] {
        fs::write(folder.join("o.jsonl"), &bytes).unwrap();
        assert_refused(&[], difference);
        assert_refused(&["--retry-failed"], difference);
        assert_eq!(fs::read(folder.join("o.jsonl")).unwrap(), bytes);
    }
    fs::write(folder.join("o.jsonl"), &whole[0]).unwrap();
    run_with(folder, &flags).assert_exit(3);
    fs::remove_file(folder.join("e.jsonl")).unwrap();
    assert_refused(&[], "e.jsonl is not what its run wrote: it is gone");
    run_with(folder, &[&flags[..], &["--overwrite"]].concat()).assert_exit(3);
    let now = ["o.jsonl", "e.jsonl"].map(|name| fs::read(folder.join(name)).unwrap());
    assert!(now == whole);
}
