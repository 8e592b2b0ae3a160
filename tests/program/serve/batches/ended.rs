//! Batches that are killed, cancelled, stopped, late, and those for which there is no room.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{DEMO, Home, Server, has_ended, ids, long_lines, program};
use crate::signal;

const PATH: &str = "/v1/completions";

fn num_done(batch: &Value) -> u64 {
    batch["request_counts"]["completed"].as_u64().unwrap()
}

#[test]
fn a_server_that_is_killed_goes_on_to_the_same_bytes() {
    let home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let lines = long_lines(60, 120);
    let mut server = home.serve();
    let first = server.begin(PATH, &lines);
    let second = server.begin(PATH, &long_lines(20, 10));
    for part in 1..4 {
        server.batch_when(&first, |batch| num_done(batch) > 10 * part || has_ended(batch));
        assert!(signal::send("KILL", server.id()));
        let _ = server.ended();
        server = home.serve();
    }
    let batch = server.ended_batch(&first);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(server.results(&batch), home.run(&lines));
    let batch = server.ended_batch(&second);
    assert_eq!(server.results(&batch), home.run(&long_lines(20, 10)));
}

/// Every line is in one of the files, once; answers are those of `run`.
fn check_parts(home: &Home, server: &Server, batch: &Value, lines: &str, code: &str) {
    let [whole, whole_errors] = home.run(lines);
    let [output, errors] = server.results(batch);
    let known: BTreeSet<&str> = whole.lines().chain(whole_errors.lines()).collect();
    let (mut answered, mut given_up) = (0, 0);
    for line in output.lines().chain(errors.lines()) {
        match known.contains(line) {
            true => answered += 1,
            false => {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(
                    (&line["error"]["code"], &line["response"]),
                    (&json!(code), &json!(null))
                );
                given_up += 1;
            }
        }
    }
    let mut all = [ids(&output), ids(&errors)].concat();
    all.sort();
    let mut expected = ids(lines);
    expected.sort();
    assert_eq!(all, expected);
    assert!(given_up > 0, "something was left");
    let counts = &batch["request_counts"];
    let counted = counts["completed"].as_u64().unwrap() + counts["failed"].as_u64().unwrap();
    assert_eq!((counted, counts["total"].as_u64().unwrap()), (answered, answered + given_up));
}

#[test]
fn a_cancel_keeps_what_is_done_and_gives_up_the_rest() {
    let home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let server = home.serve();
    let lines = long_lines(400, 200);
    let id = server.begin(PATH, &lines);
    let waiting = server.begin(PATH, &lines);
    // One that has not begun has nothing.
    let cancelled = server.cancel(&waiting).json();
    assert_eq!(
        (&cancelled["status"], &cancelled["output_file_id"]),
        (&json!("cancelled"), &json!(null))
    );
    server.batch_when(&id, |batch| num_done(batch) > 5);
    for _ in 0..2 {
        let reply = server.cancel(&id);
        assert!(
            matches!(reply.json()["status"].as_str(), Some("cancelling" | "cancelled")),
            "{reply:?}"
        );
        if reply.json()["status"] == "cancelled" {
            break;
        }
    }
    let batch = server.ended_batch(&id);
    assert_eq!(batch["status"], "cancelled", "{batch}");
    check_parts(&home, &server, &batch, &lines, "batch_cancelled");
    let again = server.cancel(&id);
    assert_eq!(again.status, 409);
    let message = again.json()["error"]["message"].clone();
    assert_eq!(message, "Cannot cancel a batch with status 'cancelled'.");
    // Nothing of it is computed any more.
    server.wait_for("vllm:num_requests_running", |number| number == 0.0);
    server.wait_for("vllm:num_requests_waiting", |number| number == 0.0);
}

#[test]
fn a_cancel_outlives_a_kill() {
    let home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let server = home.serve();
    let lines = long_lines(400, 200);
    let id = server.begin(PATH, &lines);
    server.batch_when(&id, |batch| num_done(batch) > 5);
    assert!(signal::send("KILL", server.id()));
    let _ = server.ended();
    // As if it had been killed right after the cancel.
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(home.record(&id)).unwrap()).unwrap();
    assert_eq!(record["status"], "in_progress");
    (record["status"], record["cancelling_at"]) = (json!("cancelling"), json!(1));
    std::fs::write(home.record(&id), record.to_string()).unwrap();
    let server = home.serve();
    let batch = server.ended_batch(&id);
    assert_eq!(batch["status"], "cancelled", "{batch}");
    assert!(num_done(&batch) > 5);
    check_parts(&home, &server, &batch, &lines, "batch_cancelled");
}

#[test]
fn a_batch_whose_time_is_over_has_what_is_done() {
    let mut home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let lines = long_lines(400, 200);
    let server = home.serve();
    let id = server.begin(PATH, &lines);
    server.batch_when(&id, |batch| num_done(batch) > 5);
    assert!(signal::send("TERM", server.id()));
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "a batch holds no end up: {said}");
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(home.record(&id)).unwrap()).unwrap();
    assert_eq!(record["status"], "in_progress");
    record["expires_at"] = json!(1);
    std::fs::write(home.record(&id), record.to_string()).unwrap();
    home.flags.push("--enforce-completion-window".to_owned());
    let server = home.serve();
    let batch = server.ended_batch(&id);
    assert_eq!(batch["status"], "expired", "{batch}");
    assert!(num_done(&batch) > 5);
    home.flags.pop();
    check_parts(&home, &server, &batch, &lines, "batch_expired");
}

#[test]
fn a_batch_of_other_flags_is_not_gone_on_with() {
    let mut home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let server = home.serve();
    let id = server.begin(PATH, &long_lines(400, 200));
    server.batch_when(&id, |batch| num_done(batch) > 5);
    assert!(signal::send("KILL", server.id()));
    let _ = server.ended();
    home.flags.extend(["--seed".to_owned(), "5".to_owned()]);
    let server = home.serve();
    let batch = server.ended_batch(&id);
    assert_eq!(batch["status"], "failed", "{batch}");
    let message = batch["errors"]["data"][0]["message"].as_str().unwrap();
    assert!(message.contains("seed"), "{message}");
    let kept = home.batches().join("batches").join(&id);
    assert!(std::fs::read_dir(kept).unwrap().count() > 0, "lines that were answered are kept");
}

#[test]
fn requests_are_answered_while_a_batch_runs() {
    let home = Home::new(DEMO, &["--max-num-seqs", "4"]);
    let server = home.serve();
    let id = server.begin(PATH, &long_lines(400, 200));
    server.batch_when(&id, |batch| num_done(batch) > 0);
    let asked = json!({"prompt": "1 and 1", "max_tokens": 10, "temperature": 1, "seed": 3});
    let beside = server.post(PATH, &asked).json();
    assert!(!has_ended(&server.batch(&id)), "it is answered before the batch");
    // Where rows of the batch have all seats, one of them gives way. Mostly they have.
    while server.metric("vllm:num_batch_preemptions_total") == 0.0 {
        assert!(!has_ended(&server.batch(&id)), "no row of the batch gave way");
        server.post(PATH, &asked);
    }
    let alone = Server::start(DEMO, &[]).post(PATH, &asked).json();
    assert_eq!(beside["choices"], alone["choices"]);
    let _ = server.cancel(&id);
    server.ended_batch(&id);
}

#[test]
fn a_batch_waits_for_room_on_the_disk() {
    let home = Home::new(DEMO, &[]);
    let lines = long_lines(60, 40);
    // A file of more than 24 KiB is one too many, as on a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 24; exec \"$0\" \"$@\""]).arg(program());
    let server = home.serve_by(limited);
    let refused =
        server.send_form(&super::form(&[("purpose", "batch")], "a", &"x".repeat(100_000)));
    assert_eq!(refused.status, 507, "{refused:?}");
    let left = std::fs::read_dir(home.batches().join("files")).unwrap().count();
    assert_eq!(left, 0, "what came of it is gone");
    let id = server.begin(PATH, &lines);
    server.wait_for("vllm:generation_tokens_total", |number| number > 0.0);
    server.wait_for("vllm:num_requests_running", |number| number == 0.0);
    assert!(!has_ended(&server.batch(&id)));
    assert!(signal::send("TERM", server.id()));
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "{said}");
    let server = home.serve();
    let batch = server.ended_batch(&id);
    assert_eq!(server.results(&batch), home.run(&lines));
}
