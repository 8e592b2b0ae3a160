//! Runs on several engines: the bytes of one, and continued with another number of them.

use crate::resume::program::{
    Held, finish, finish_with, json, kill, num_reused, run, wait_for_rows,
};
use crate::resume::rows::{rows, with_constraints};
use crate::resume::work::Work;

const NUM_ROWS: usize = 90;

const TWO: [&str; 4] = ["--data-parallel-size", "2", "--threads", "3"];
const THREE: [&str; 4] = ["--data-parallel-size", "3", "--threads", "3"];
const STAGES: [&str; 4] = ["--pipeline-parallel-size", "2", "--threads", "3"];

#[test]
fn a_killed_run_is_continued_with_another_number_of_engines_to_the_same_bytes() {
    let work = Work::sampled(with_constraints(rows(13, NUM_ROWS, true)));
    let expected = work.undisturbed();
    let folder = work.folder();
    let (folder, journal) = (folder.path(), work.journal(folder.path()));
    let turns: [(&[&str], usize); 4] = [(&TWO, 9), (&[], 25), (&STAGES, 40), (&THREE, 50)];
    for (flags, num_rows) in turns {
        let mut child = work.command(folder).args(flags).spawn().unwrap();
        wait_for_rows(&mut child, &journal, num_rows);
        kill(child).expect("most rows are missing");
    }
    let ended = finish(work.command(folder).args(TWO));
    expected.assert_complete(&work, folder, &ended);
    assert!(num_reused(folder) >= 50);
    let stats = json(&folder.join("stats.json"));
    assert_eq!(stats["engine"]["threads"], 3, "{stats}");
    assert_eq!(stats["engine"]["device"], "2 x cpu");
    ended.assert_says("2 engines, each with its own ");
}

#[test]
fn a_run_in_stages_has_the_bytes_of_one_device_and_says_so() {
    let work = Work::sampled(with_constraints(rows(15, NUM_ROWS, true)));
    let expected = work.undisturbed();
    let folder = work.folder();
    let folder = folder.path();
    let mut child = work.command(folder).args(STAGES).spawn().unwrap();
    wait_for_rows(&mut child, &work.journal(folder), 20);
    kill(child).expect("most rows are missing");
    let ended = finish(work.command(folder).args(STAGES));
    expected.assert_complete(&work, folder, &ended);
    let stats = json(&folder.join("stats.json"));
    assert_eq!(stats["engine"]["threads"], 3, "{stats}");
    assert_eq!(stats["engine"]["device"], "2 x cpu, one model in stages");
    ended.assert_says("2 stages compute one model: layers 0 to ");
    ended.assert_says("3 steps are under way at a time");
}

#[test]
fn a_signal_stops_several_engines_in_order() {
    let work = Work::sampled(rows(14, NUM_ROWS, true));
    let expected = work.undisturbed();
    let folder = work.folder();
    let folder = folder.path();
    let mut command = work.command_over_stdin(folder);
    let mut held = Held::start(command.args(TWO), work.journal(folder));
    held.feed(work.rows.concat().as_bytes(), 1);
    let ended = held.stop("INT");
    ended.assert_exit(130);
    ended.assert_says("error[interrupted]: stopped by SIGINT");
    let mut command = work.command_over_stdin(folder);
    let ended = finish_with(command.args(THREE), work.rows.concat().as_bytes());
    expected.assert_complete(&work, folder, &ended);
}

#[test]
fn a_wrong_number_of_engines_is_refused_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.txt"), "a\n").unwrap();
    let refused = |flags: &[&str], says: &str| {
        let ended = finish(run(folder.path(), &["-i", "in.txt"]).args(flags));
        ended.assert_exit(2);
        ended.assert_says(says);
    };
    let size = "--data-parallel-size";
    refused(&[size, "3", "--threads", "2"], "there are 2 threads to share out");
    refused(&[size, "65", "--threads", "70"], "the most is 64");
    refused(&[size, "0"], "0");
    // The first `--device` is the one of `run`.
    let ended = finish(
        std::process::Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
            .args(["run", "-m", crate::resume::program::TINY, "-i", "in.txt"])
            .args(["--device", "cuda:all", size, "2"])
            .current_dir(folder.path())
            .stderr(std::process::Stdio::piped()),
    );
    ended.assert_exit(2);
    ended.assert_says("--device cuda:all takes all GPUs");
}

#[test]
fn commands_that_measure_one_engine_refuse_several() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.txt"), "a\n").unwrap();
    for command in [&["plan", "-i", "in.txt"][..], &["bench", "--num-prompts", "1"]] {
        let mut program = std::process::Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        program.args(command).args(["-m", crate::resume::program::TINY, "--device", "cpu"]);
        let ended = finish(
            program.args(TWO).current_dir(folder.path()).stderr(std::process::Stdio::piped()),
        );
        ended.assert_exit(2);
        ended.assert_says("`bench` and `plan` measure one engine on one device");
    }
}

#[test]
fn a_model_over_several_gpus_is_refused_where_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.txt"), "a\n").unwrap();
    let size = "--tensor-parallel-size";
    let refused = |flags: &[&str], says: &str| {
        let ended = finish(run(folder.path(), &["-i", "in.txt"]).args(flags));
        ended.assert_exit(2);
        ended.assert_says(says);
    };
    refused(&[size, "2"], "tensor parallelism is not supported on the CPU");
    refused(
        &[size, "2", TWO[0], TWO[1], "--threads", "2"],
        "not supported with data parallelism yet",
    );
    refused(
        &[size, "2", STAGES[0], STAGES[1]],
        "tensor parallelism is not supported with pipeline parallelism",
    );
    let stages = STAGES[0];
    refused(&[stages, "99", "--threads", "99"], "stages at most");
    refused(&[stages, "2", TWO[0], TWO[1]], "pipeline parallelism is not supported with data");
    refused(&[size, "0"], "0");
    let ended = finish(run(folder.path(), &["-i", "in.txt"]).args([size, "1"]));
    ended.assert_exit(0);
}
