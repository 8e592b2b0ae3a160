//! Outputs of every form, interrupted and continued: compressed, CSV, with a file of error rows,
//! and runs that ask again what failed.

use std::fs;

use crate::resume::journal;
use crate::resume::program::{Held, finish, finish_with, names, num_reused, run};
use crate::resume::rows::{long_rows, rows, with_bad_rows};
use crate::resume::work::Work;

fn works() -> Vec<Work> {
    let flags: &[&str] = &["--temperature", "1", "--ignore-eos", "--max-tokens", "6"];
    let json = |rows: Vec<String>| Work { flags, ..Work::sampled(rows) };
    // More than one member: a member ends with the row that fills a mebibyte.
    let long = || with_bad_rows(long_rows(61, 40, 60_000));
    let csv = || {
        let cells = |(index, row): (usize, &String)| {
            let prompt = row.split('"').nth(7).unwrap();
            format!("row-{index},\"a\nb, {prompt}\"\n")
        };
        let rows = rows(62, 24, true);
        let rows = rows.iter().enumerate().map(cells);
        std::iter::once("id,prompt\n".to_owned()).chain(rows).collect::<Vec<_>>()
    };
    vec![
        Work { out: "out.jsonl.gz", ..json(long()) },
        Work { out: "out.jsonl.zst", ..json(long()) },
        Work { errors: Some("errors.jsonl"), ..json(with_bad_rows(rows(63, 24, false))) },
        Work { errors: Some("errors.jsonl.gz"), out: "out.jsonl.gz", ..json(long()) },
        Work { input: "in.csv", out: "out.csv", ..json(csv()) },
        Work { input: "in.csv", out: "out.jsonl", ..json(csv()) },
        Work { input: "in.csv", out: "out.csv.zst", ..json(csv()) },
    ]
}

#[test]
fn outputs_of_every_form_are_continued_to_the_same_bytes() {
    for work in works() {
        let expected = work.undisturbed();
        let has_header = usize::from(work.input.ends_with("csv"));
        let num_rows = work.rows.len() - has_header;
        for number in [1, num_rows / 3, num_rows - 1, num_rows] {
            let folder = work.folder();
            let folder = folder.path();
            let mut held = Held::start(&mut work.command_over_stdin(folder), work.journal(folder));
            held.feed(work.rows[..has_header + number].concat().as_bytes(), number);
            held.kill();
            let left = expected.assert_left(&work, folder);
            assert_eq!(left.journaled, number);
            let mut command = work.command_over_stdin(folder);
            let ended = finish_with(&mut command, work.rows.concat().as_bytes());
            expected.assert_complete(&work, folder, &ended);
            work.assert_taken_over(folder, &ended, &left);
        }
    }
}

#[test]
fn a_run_that_asks_again_what_failed_takes_over_what_did_not() {
    let work = Work::sampled(with_bad_rows(rows(64, 40, true)));
    let expected = work.undisturbed();
    let folder = work.folder();
    let folder = folder.path();
    let mut held = Held::start(&mut work.command_over_stdin(folder), work.journal(folder));
    held.feed(work.rows[..30].concat().as_bytes(), 30);
    held.kill();
    let rows = journal::rows(&work.journal(folder));
    let num_good = rows.iter().filter(|row| !row.is_error).count();
    assert_eq!((rows.len(), num_good), (30, 27));
    let mut command = work.command_over_stdin(folder);
    let ended = finish_with(command.arg("--retry-failed"), work.rows.concat().as_bytes());
    expected.assert_complete(&work, folder, &ended);
    assert_eq!(num_reused(folder) as usize, num_good);
}

#[test]
fn a_stream_has_a_file_of_errors_too() {
    let work =
        Work { errors: Some("errors.jsonl"), ..Work::sampled(with_bad_rows(rows(65, 24, true))) };
    let expected = work.undisturbed();
    for journal in [&[][..], &["--journal", "j.jsonl"]] {
        let folder = work.folder();
        let folder = folder.path();
        let flags = ["-i", "in.jsonl", "--errors", "errors.jsonl"];
        let ended = finish(run(folder, work.flags).args(flags).args(journal));
        ended.assert_exit(3);
        assert!(ended.stdout == expected.files["out.jsonl"]);
        let errors = fs::read(folder.join("errors.jsonl")).unwrap();
        assert!(errors == expected.files["errors.jsonl"]);
        assert_eq!(names(folder), ["errors.jsonl", "in.jsonl"]);
        // They are not replaced unasked.
        let ended = finish(run(folder, work.flags).args(flags).args(journal));
        ended.assert_exit(6);
        ended.assert_says("error[output_exists]: errors.jsonl exists\nhelp: ");
        assert!(fs::read(folder.join("errors.jsonl")).unwrap() == errors);
        let again = finish(run(folder, work.flags).args(flags).args(journal).arg("--overwrite"));
        again.assert_exit(3);
    }
}
