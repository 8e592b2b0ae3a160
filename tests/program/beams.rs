//! Beam search through the program: what rows and flags ask for, and what rows show.

use serde_json::Value;

use crate::cli::{DEMO, PLAIN, over, text};

fn rows(stdout: &[u8]) -> Vec<Value> {
    text(stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const PROMPT: &str = r#""prompt":"What is 2+3?","max_tokens":8"#;

#[test]
fn a_row_shows_its_completions_best_first() {
    let folder = tempfile::tempdir().unwrap();
    let input = format!(
        "{{{PROMPT},\"use_beam_search\":true,\"n\":3,\"temperature\":0}}\n\
         {{{PROMPT},\"beam_width\":3,\"length_penalty\":0}}\n{{{PROMPT},\"temperature\":0}}\n"
    );
    let output = over(folder.path(), &input, DEMO, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows = rows(&output.stdout);
    for (row, penalty) in rows.iter().zip([1.0, 0.0]) {
        let outputs = row["outputs"].as_array().unwrap();
        assert_eq!((outputs.len(), &row["response"]), (3, &outputs[0]["text"]));
        let prompt = row["usage"]["prompt_tokens"].as_f64().unwrap();
        let score = |beam: &Value| {
            let num_tokens = beam["token_ids"].as_array().unwrap().len() as f64;
            let eos = f64::from(u8::from(beam["finish_reason"] == "stop"));
            let length: f64 = prompt + num_tokens - eos;
            beam["cumulative_logprob"].as_f64().unwrap() / length.powf(penalty)
        };
        assert!(outputs.is_sorted_by(|a, b| score(a) >= score(b)), "{row}");
        for beam in outputs {
            assert_eq!(beam["finish_reason"] == "stop", beam["stop_reason"].is_u64(), "{beam}");
            assert!(!beam["text"].as_str().unwrap().contains("2+3"), "{beam}");
        }
    }
    assert!(rows[2]["outputs"].is_null());
}

#[test]
fn flags_search_every_row_and_rows_may_leave_it() {
    let folder = tempfile::tempdir().unwrap();
    let input = format!(
        "{{{PROMPT}}}\n{{{PROMPT},\"beam_width\":4}}\n{{{PROMPT},\"use_beam_search\":false}}\n\
         {{{PROMPT},\"n\":3}}\n{{{PROMPT},\"stop\":\"a\"}}\n"
    );
    let flags = ["--beam-width", "2", "--length-penalty", "-0.5", "--max-num-seqs", "3", "-v"];
    let output = over(folder.path(), &input, DEMO, &flags);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("beam_width 2 (flag), length_penalty -0.5 (flag)"), "{said}");
    let found = rows(&output.stdout);
    let num = |row: usize| found[row]["outputs"].as_array().map_or(1, Vec::len);
    assert_eq!([num(0), num(1), num(2)], [2, 4, 1]);
    let message = |row: usize| found[row]["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message(3), "n must be the beam width, got n=3 and beam_width=2.");
    assert_eq!(message(4), "stop does not go with beam search; leave it out");
    // The same without the flag, and with every row by itself.
    let own = r#""use_beam_search":true,"n":2,"length_penalty":-0.5"#;
    let output =
        over(folder.path(), &format!("{{{PROMPT},{own}}}\n"), DEMO, &["--max-num-seqs", "1"]);
    assert_eq!(rows(&output.stdout)[0]["outputs"], found[0]["outputs"]);
}

#[test]
fn what_has_no_room_for_beams_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |flags: &[&str]| {
        let output = over(folder.path(), "{\"prompt\":\"a\"}\n", PLAIN, flags);
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr).to_owned()
    };
    assert!(refused(&["--beam-width", "2", "-n", "2"]).contains("cannot be used with"));
    assert!(refused(&["--length-penalty", "2"]).contains("--beam-width"));
    assert!(
        refused(&["--beam-width", "2", "--stop", "a"]).contains("does not go with beam search")
    );
    let anthropic = r#"{"custom_id":"a","params":{"max_tokens":4,"use_beam_search":true,
        "messages":[{"role":"user","content":"a"}]}}"#;
    let output = over(folder.path(), &anthropic.replace('\n', ""), DEMO, &[]);
    let shown = text(&output.stdout);
    assert!(shown.contains("use_beam_search: not supported"), "{shown}");
}
