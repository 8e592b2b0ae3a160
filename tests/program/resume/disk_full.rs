//! Disks that take no more. A limit on the size of files stands for a full one: the write that
//! crosses it fails in the middle, as on a disk. A disk that is full is `/dev/full`, which keeps
//! nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use vllm_batch::cli::ledger::fingerprint::Fingerprint;
use vllm_batch::cli::ledger::record::Header;
use vllm_batch::cli::ledger::storage::Disk;
use vllm_batch::cli::ledger::{Finished, LedgerError, LedgerOptions, LockedOutput, RowHash};

use crate::resume::journal;
use crate::resume::program::{Ended, finish, names, num_reused, run};
use crate::resume::rows::{long_rows, rows, with_bad_rows};
use crate::resume::work::Work;

/// The same command in a shell that lets no file become longer than so many blocks of 512 or 1024
/// bytes, as the shell counts.
fn limited(command: &Command, num_blocks: usize) -> Ended {
    let mut shell = Command::new("sh");
    let script = format!("ulimit -f {num_blocks}; exec \"$@\"");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(&mut shell)
}

#[test]
fn a_full_disk_ends_the_run_and_with_more_room_the_same_command_continues() {
    let work = Work::sampled(long_rows(51, 120, 300));
    let expected = work.undisturbed();
    let folder = work.folder();
    let folder = folder.path();
    let command = work.command(folder);
    let (mut num_kept, mut num_stops) = (0, 0);
    for num_blocks in (8..).step_by(16) {
        let ended = limited(&command, num_blocks);
        let left = match ended.status.code() {
            Some(5) => expected.assert_left(&work, folder),
            _ => {
                expected.assert_complete(&work, folder, &ended);
                break;
            }
        };
        num_stops += 1;
        assert!(left.journaled >= num_kept, "rows are lost");
        num_kept = left.journaled;
        ended.assert_says("error[output]: cannot write out.jsonl");
        ended.assert_says(": File too large (os error 27)\nhelp: ");
        ended.assert_says("finished rows are kept in out.jsonl.journal, as far as it took them; ");
        ended.assert_says("the same command continues\n");
    }
    assert!(num_stops >= 3 && num_kept > 0, "{num_stops} stops, {num_kept} rows kept");
    // A row that was finished was not computed again, however often the disk was full.
    assert!(num_reused(folder) as usize >= num_kept);
}

#[test]
fn a_full_device_ends_the_run_and_the_journal_keeps_its_rows() {
    let work = Work::sampled(rows(52, 60, true));
    let expected = work.undisturbed();
    let folder = work.folder();
    let folder = folder.path();
    let flags = ["-i", "in.jsonl", "--journal", "j.jsonl", "--stats", "stats.json"];
    let ended = finish(run(folder, work.flags).args(flags).args(["-o", "/dev/full"]));
    ended.assert_exit(5);
    ended.assert_says("error[disk_full]: cannot write the output: No space left on device");
    ended.assert_says("rows are kept in j.jsonl, as far as it took them; the same command cont");
    assert!(Path::new("/dev/full").exists(), "a device stays");
    let num_kept = journal::num_rows(&folder.join("j.jsonl"));
    assert!(num_kept > 0, "{}", ended.stderr);
    let ended = finish(run(folder, work.flags).args(flags));
    ended.assert_exit(0);
    assert!(ended.stdout == expected.files["out.jsonl"]);
    assert_eq!(num_reused(folder) as usize, num_kept);
}

#[test]
fn rows_that_finish_with_the_run_are_kept_when_the_output_fails_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("j.jsonl");
    let (out, name) = (Some("/dev/full".into()), Some(journal.clone()));
    let options = LedgerOptions { out, journal: name, ..LedgerOptions::default() };
    let locked = LockedOutput::open(Arc::new(Disk), options).unwrap();
    let fingerprint = Fingerprint::new([("model".to_owned(), "m".to_owned())].into());
    let header = Header { started: 1, replaces: false, keeps: false, fingerprint };
    let (mut ledger, _) = locked.begin(header).unwrap();
    for position in 0..5 {
        let (hash, row) = (RowHash([position as u8; 16]), b"{\"response\":\"a\"}\n".to_vec());
        let (input_tokens, output_tokens) = (1, 1);
        let code = None;
        let media = Vec::new();
        let row = Finished { position, hash, code, input_tokens, output_tokens, row, media };
        ledger.push(row).unwrap();
    }
    let error = ledger.finish(|_| String::new()).unwrap_err();
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    assert_eq!(journal::num_rows(&journal), 5);
}

#[test]
fn a_journal_in_a_device_is_refused_and_errors_go_to_one() {
    // A pipe with a name stands for /dev/null, which a mistake here would remove.
    let work = Work::sampled(with_bad_rows(rows(53, 8, true)));
    let folder = work.folder();
    let folder = folder.path();
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for more in [&["-o", "out.jsonl"][..], &["-o", "out.jsonl", "--overwrite"], &[]] {
        let command = &mut run(folder, work.flags);
        let ended = finish(command.args(["-i", "in.jsonl", "--journal", "pipe"]).args(more));
        ended.assert_exit(2);
        ended.assert_says("error[output]: pipe is a device or a pipe");
        assert!(fs::symlink_metadata(&pipe).is_ok_and(|found| !found.is_file()), "it stays");
        assert_eq!(names(folder), ["in.jsonl", "pipe"]);
    }
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let command = &mut run(folder, work.flags);
    let ended = finish(command.args(["-i", "in.jsonl", "--errors", "pipe", "-o", "out.jsonl"]));
    ended.assert_exit(3);
    let errors = reader.join().unwrap();
    assert!(errors.lines().count() > 0 && errors.lines().all(|row| row.contains("\"error\"")));
    assert!(fs::symlink_metadata(&pipe).is_ok_and(|found| !found.is_file()), "it stays");
    assert_eq!(names(folder), ["in.jsonl", "out.jsonl", "out.jsonl.meta.json", "pipe"]);
}
