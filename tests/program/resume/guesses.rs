//! A run that is continued with another way to guess tokens, and with none: no byte depends on it.

use crate::resume::program::{finish, json, kill, num_reused, wait_for_rows};
use crate::resume::rows::{rows, with_constraints};
use crate::resume::work::Work;

const NUM_ROWS: usize = 90;

/// One after the other; the last one comes to the end.
const METHODS: [&str; 3] = [
    r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1}"#,
    r#"{"method": "suffix", "suffix_decoding_min_token_prob": 0}"#,
    r#"{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}"#,
];

#[test]
fn a_killed_run_is_continued_with_other_guesses_to_the_same_bytes() {
    let work = Work::sampled(with_constraints(rows(11, NUM_ROWS, true)));
    let expected = work.undisturbed();
    for without in 0..METHODS.len() {
        let folder = work.folder();
        let (folder, journal) = (folder.path(), work.journal(folder.path()));
        let command = |turn: usize| {
            let mut command = work.command(folder);
            if turn != without {
                command.args(["--speculative-config", METHODS[turn]]);
            }
            command
        };
        for (turn, num_rows) in [(0, 9), (1, 30)] {
            let mut child = command(turn).spawn().unwrap();
            wait_for_rows(&mut child, &journal, num_rows);
            kill(child).expect("most rows are missing");
        }
        let ended = finish(&mut command(2));
        expected.assert_complete(&work, folder, &ended);
        assert!(num_reused(folder) >= 30);
        let speculation = &json(&folder.join("stats.json"))["speculation"];
        assert_eq!(speculation["num_draft_tokens"].as_u64() > Some(0), without != 2);
    }
}
