//! Rows that generate nothing: the last logprobs of prompts; likelihoods of choices and texts.

use serde_json::{Value, json};

use crate::cli::{DEMO, PLAIN, over, rows, temporary, text};

/// What rows become; all of them are answered.
fn answered(input: &str, flags: &[&str]) -> Vec<Value> {
    let output = over(temporary().path(), input, DEMO, flags);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    rows(text(&output.stdout))
}

const CHOICES: &str = r#"{"question":"What is 2+3?","choices":["5","6","seven"],"id":7}"#;

#[test]
fn a_row_shows_how_likely_its_choices_are() {
    let row = answered(CHOICES, &["--loglikelihood", "choices"]).remove(0);
    let names: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let ours = ["response", "finish_reason", "usage", "choice_logprobs"];
    assert_eq!(names, [&["question", "choices", "id"], &ours[..]].concat());
    assert_eq!((&row["response"], &row["finish_reason"]), (&json!(""), &json!("length")));
    let choices = row["choice_logprobs"].as_array().unwrap();
    let num_tokens = |choice: &Value| choice["num_tokens"].as_u64().unwrap();
    assert_eq!(row["usage"]["completion_tokens"], 0);
    let prompt_tokens = row["usage"]["prompt_tokens"].as_u64().unwrap();
    // The same, token by token.
    let prompts = ["What is 2+3?", "What is 2+3? 5", "What is 2+3? 6", "What is 2+3? seven"];
    let input: String = prompts.map(|prompt| format!("{}\n", json!({"prompt": prompt}))).concat();
    let flags = ["--prompt-logprobs", "1", "--max-tokens", "0", "--prompt-logprobs-last", "8"];
    let whole = answered(&input, &flags);
    let context = whole[0]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(prompt_tokens, context + choices.iter().map(num_tokens).sum::<u64>());
    for (choice, whole) in choices.iter().zip(&whole[1..]) {
        let positions = whole["prompt_logprobs"].as_array().unwrap();
        assert_eq!(positions.len(), 8);
        let scored = &positions[8 - num_tokens(choice) as usize..];
        let logprob = |position: &Value| f64::from(position["logprob"].as_f64().unwrap() as f32);
        let sum: f64 = scored.iter().map(logprob).sum();
        assert_eq!(choice["logprob"].as_f64(), Some(sum));
        let is_greedy = scored.iter().all(|position| position["rank"] == 1);
        assert_eq!(choice["is_greedy"], is_greedy);
    }
}

#[test]
fn a_row_without_choices_is_an_error_row_and_without_the_flag_they_are_its_own() {
    let input = format!("{CHOICES}\n{{\"question\":\"a\"}}\n");
    let output = over(temporary().path(), &input, DEMO, &["--loglikelihood", "choices"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let found = rows(text(&output.stdout));
    assert!(found[0]["error"].is_null());
    assert_eq!(found[1]["error"]["code"], "invalid_prompt");
    let completed = answered(CHOICES, &["--max-tokens", "3"]).remove(0);
    assert_eq!(
        (&completed["choice_logprobs"], &completed["choices"][1]),
        (&json!(null), &json!("6"))
    );
    assert!(completed["usage"]["completion_tokens"].as_u64() > Some(0));
}

#[test]
fn a_row_shows_how_likely_its_text_is() {
    let words = "one plus one is two. ".repeat(9);
    let input = json!({"text": words, "loglikelihood": "mine"}).to_string();
    let flags = ["--loglikelihood", "text", "--max-model-len", "20"];
    let row = answered(&input, &flags).remove(0);
    assert_eq!(row["input_loglikelihood"], "mine");
    let found = &row["loglikelihood"];
    assert_eq!((&found["num_words"], &found["num_bytes"]), (&json!(46), &json!(189)));
    assert_eq!(found["num_tokens"], row["usage"]["prompt_tokens"]);
    assert!(found["num_tokens"].as_u64().unwrap() > 40, "more than two windows");
    assert!(found["logprob"].as_f64().unwrap() < 0.0);
}

/// The bytes of a row are the same whatever is cached, however it is cut into steps and whoever
/// preempts it; and what rows share is computed once.
#[test]
fn likelihoods_depend_on_no_cache_and_shared_contexts_are_computed_once() {
    let context = "the quick brown fox jumps over the lazy dog and ".repeat(2);
    let row = |id: usize| {
        let choices = json!(["runs away", "runs", format!("sleeps {id} hours"), "5"]);
        json!({"prompt": format!("{context}{}", id % 2), "choices": choices}).to_string() + "\n"
    };
    let input: String = (0..5).map(row).collect();
    let run = |flags: &str| {
        let folder = temporary();
        let stats = folder.path().join("stats.json");
        let flags: Vec<_> = flags.split_whitespace().collect();
        let ours = ["--loglikelihood", "choices", "--stats", stats.to_str().unwrap()];
        let output = over(folder.path(), &input, DEMO, &[&ours[..], &flags].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let stats: Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
        (output.stdout, stats)
    };
    let (expected, cached) = run("");
    let (bytes, uncached) = run("--no-enable-prefix-caching");
    assert!(bytes == expected);
    for flags in [
        "--max-num-batched-tokens 16 --max-num-seqs 3",
        "--block-size 16 --num-gpu-blocks-override 12 --max-num-seqs 8",
    ] {
        assert!(run(flags).0 == expected, "{flags}");
    }
    let computed = |stats: &Value| stats["tokens"]["computed"].as_u64().unwrap();
    assert!(computed(&cached) + 200 < computed(&uncached), "{cached} {uncached}");
    // Choices of one row need no cache to share what they follow.
    let prompt_tokens = uncached["tokens"]["input"].as_u64().unwrap();
    assert!(computed(&uncached) < prompt_tokens, "{uncached}");
}

#[test]
fn what_has_no_room_for_likelihoods_refuses_them() {
    let refused = |input: &str, flags: &[&str], what: &str| {
        let output = over(temporary().path(), input, PLAIN, flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
    };
    let batch = r#"{"custom_id":"a","method":"POST","url":"/v1/completions",
        "body":{"model":"m","prompt":"a"}}"#
        .replace('\n', "");
    refused(&batch, &["--loglikelihood", "choices"], "--loglikelihood: the rows are");
    let openai = ["--loglikelihood", "text", "--output-format", "openai"];
    refused("{\"prompt\":\"a\"}", &openai, "have no such answers");
    let csv = ["--loglikelihood", "choices", "--format", "csv", "-o", "out.csv"];
    refused("prompt,choices\na,b\n", &csv, "not as CSV");
    refused("{\"prompt\":\"a\"}", &["--max-tokens", "0"], "0 goes with prompt_logprobs");
    refused("{\"prompt\":\"a\"}", &["--prompt-logprobs-last", "3"], "--prompt-logprobs");
    let several = ["--max-tokens", "0", "--prompt-logprobs", "0", "-n", "2"];
    refused("{\"prompt\":\"a\"}", &several, "n does not go with max_tokens=0");
}
