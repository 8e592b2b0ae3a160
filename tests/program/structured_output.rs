//! Rows with constraints: how they end, and that nobody else notices them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");

/// Ways to run the same rows; the last one preempts.
const VARIANTS: &[&str] = &[
    "--max-num-seqs 1 --threads 1",
    "--max-num-batched-tokens 16 --threads 2 --no-enable-prefix-caching",
    "--block-size 16 --num-gpu-blocks-override 11",
    "--max-num-seqs 5 --speculative-config \
     {\"method\":\"ngram\",\"num_speculative_tokens\":6,\"prompt_lookup_min\":1,\"prompt_lookup_max\":3}",
];

/// Answers by name, and the statistics.
fn run(rows: &[Value], flags: &str) -> (BTreeMap<String, Value>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.path().join("in.jsonl"), text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-qq", "--device", "cpu", "--model", TINY, "-i", "in.jsonl"])
        .args(["-o", "out.jsonl", "--stats", "stats.json", "--generation-config", "vllm"])
        .args(flags.split_whitespace())
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{flags}: {said}");
    let read = |name: &str| fs::read_to_string(Path::new(folder.path()).join(name)).unwrap();
    let rows = read("out.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<Value> = rows;
    let name = |row: &Value| row["id"].as_str().unwrap().to_owned();
    let rows = rows.into_iter().map(|row| (name(&row), row)).collect();
    (rows, serde_json::from_str(&read("stats.json")).unwrap())
}

fn answer(row: &Value) -> Value {
    run(std::slice::from_ref(row), "").0.into_values().next().unwrap()
}

/// What answers must match, and how they are sampled.
fn constraints() -> Vec<Value> {
    let schema = json!({"type": "object", "additionalProperties": false,
        "required": ["a", "b"], "properties": {
            "a": {"type": "string", "maxLength": 6},
            "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}});
    vec![
        json!({"structured_outputs": {"json": schema}, "temperature": 2}),
        json!({"structured_outputs": {"regex": "([a-z]{2,9}, ){3,6}[0-9]{4}"}, "n": 3}),
        json!({"structured_outputs": {"choice": ["red", "green", "blue"]}, "logprobs": 2}),
        json!({"response_format": {"type": "json_object"}, "temperature": 0}),
        json!({"structured_outputs": {"regex": "[a-z ]{30,60}"}, "temperature": 0,
            "prompt_logprobs": 1}),
        json!({"structured_outputs": {"grammar": "root ::= \"(\" [a-c]+ \")\" | \"<\" root \">\""},
            "top_k": 20, "seed": 3}),
        json!({"structured_outputs": {"regex": "[ab ]{20,40}"}, "repetition_penalty": 1.2,
            "ignore_eos": true}),
    ]
}

/// Grammars that end in an error: at once, or when they have cost too much.
fn poisons() -> Vec<Value> {
    let ambiguous = json!({"grammar": "start: s\ns: s s s s | s s s | s s | \"a\""});
    vec![
        json!({"structured_outputs": ambiguous, "min_tokens": 120, "max_tokens": 120}),
        json!({"structured_outputs": {"json": {"not": {}}, "strict": true}}),
        json!({"structured_outputs": {"choice": ["no"]}, "min_tokens": 30}),
    ]
}

fn row(id: String, index: usize, more: &Value) -> Value {
    let prompt = ["the sum of", "a quick red bird", "12 + 30"].iter().cycle().skip(index);
    let prompt: Vec<&str> = prompt.take(1 + index % 5).copied().collect();
    let mut row = json!({"id": id, "prompt": prompt.join(" "), "max_tokens": 30 + index % 7});
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    row
}

#[test]
fn rows_with_constraints_are_the_same_among_others_and_change_none() {
    let constraints = constraints();
    let of = |kind: &str, index: usize, more: &Value| row(format!("{kind}-{index}"), index, more);
    let plain: Vec<Value> = (0..8).map(|index| of("plain", index, &json!({}))).collect();
    let bound: Vec<Value> =
        (0..12).map(|index| of("bound", index, &constraints[index % constraints.len()])).collect();
    let bad: Vec<Value> =
        poisons().iter().enumerate().map(|(index, more)| of("bad", index, more)).collect();
    let mut all = Vec::new();
    for index in 0..bound.len() {
        all.extend([&plain, &bound, &bad].into_iter().filter_map(|rows| rows.get(index)).cloned());
    }
    let (together, _) = run(&all, "");
    for (name, row) in &together {
        assert_eq!(row["error"].is_object(), name.starts_with("bad"), "{row}");
    }
    let mut num_preemptions = 0;
    for flags in VARIANTS {
        let (other, stats) = run(&all, flags);
        num_preemptions += stats["num_preemptions"].as_u64().unwrap();
        assert_eq!(other, together, "{flags}");
    }
    assert!(num_preemptions > 0, "the small pool preempted nothing");
    for rows in [&plain, &bound, &bad] {
        for (name, row) in run(rows, "").0 {
            assert_eq!(row, together[&name], "without the others");
        }
    }
    assert_eq!(answer(&bound[1]), together["bound-1"], "alone");
}

#[test]
fn a_constraint_and_other_parameters() {
    let ask = |more: Value| answer(&row("a".to_owned(), 2, &more));
    let hex = json!({"regex": "[0-9a-f]{12}"});
    let free = ask(json!({ "structured_outputs": hex }));
    let text = free["response"].as_str().unwrap().to_owned();
    assert_eq!((text.len(), &free["finish_reason"]), (12, &json!("stop")), "{free}");

    // A seed of the row's own decides its answer, whatever the row is called.
    let seeded = |id: &str| {
        let more = json!({"structured_outputs": hex, "seed": 5});
        answer(&row(id.to_owned(), 2, &more))["response"].clone()
    };
    assert_eq!(seeded("a"), seeded("b"));

    // Cut by a stop string: the text is not what was asked for, and says so.
    let cut = ask(json!({"structured_outputs": hex, "stop": [&text[3..4]]}));
    assert_eq!(cut["finish_reason"], "incomplete", "{cut}");
    let cut = cut["response"].as_str().unwrap();
    assert!(text.starts_with(cut) && cut.len() < 4, "{cut} of {text}");
    let long = ask(json!({"structured_outputs": hex, "max_tokens": 2}));
    assert_eq!(long["finish_reason"], "length");

    // After the end that `ignore_eos` passes over, everything may come.
    let past = ask(json!({"structured_outputs": hex, "ignore_eos": true}));
    assert_eq!(past["usage"]["completion_tokens"], 32);
    assert!(past["response"].as_str().unwrap().starts_with(&text), "{past}");

    // Only the end may come, and the end may not.
    let more = ask(json!({"structured_outputs": hex, "min_tokens": 30}));
    assert_eq!(more["error"]["code"], "no_token_allowed");
    let message = more["error"]["message"].as_str().unwrap();
    assert!(message.contains("structured_outputs"), "{message}");
}

/// A greedy row looks at its likeliest token, and at the whole mask only if that one may not come.
/// Log-probabilities need the whole mask.
#[test]
fn greedy_rows_say_the_same_with_and_without_logprobs() {
    let asked: Vec<Value> = constraints();
    let ask = |more: &Value| {
        let rows = asked.iter().enumerate().map(|(index, constraint)| {
            let mut row = row(index.to_string(), index, constraint);
            let fields = row.as_object_mut().unwrap();
            fields.retain(|name, _| {
                !["n", "top_k", "repetition_penalty", "logprobs"].contains(&name.as_str())
            });
            fields.extend(more.as_object().unwrap().clone());
            row
        });
        let (rows, _) = run(&rows.collect::<Vec<Value>>(), "");
        rows.into_values().map(|row| row["response"].clone()).collect::<Vec<Value>>()
    };
    let texts = ask(&json!({"temperature": 0}));
    assert!(texts.iter().all(|text| text.as_str().is_some_and(|text| !text.is_empty())));
    assert_eq!(texts, ask(&json!({"temperature": 0, "logprobs": 0})));
}

#[test]
fn a_flag_that_does_not_compile_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.txt"), "a\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--device", "cpu", "--model", TINY, "-i", "in.txt", "-o", "out.jsonl"])
        .args(["--structured-outputs.regex", "(a"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--structured-outputs.regex: "), "{said}");
}

/// Logprobs are of what the grammar leaves, as in vLLM.
#[test]
fn logprobs_of_allowed_tokens_sum_to_one() {
    let more = json!({"structured_outputs": {"regex": "[ab]"}, "logprobs": 6});
    let answer = answer(&row("a".to_owned(), 0, &more));
    let first = &answer["outputs"][0]["logprobs"][0]["top_logprobs"];
    // A letter has a token of its own, and one of its byte. The others have no logprob.
    let logprobs: Vec<f64> =
        first.as_array().unwrap().iter().filter_map(|top| top["logprob"].as_f64()).collect();
    assert_eq!(logprobs.len(), 4, "{answer}");
    let sum: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{answer}");
}

/// What masks do not keep to is found at the end: the row is an error with the answer in it, alone
/// and among others, and whatever the threads.
#[test]
fn answers_that_miss_their_schema_are_error_rows() {
    let schema = json!({"enum": ["a", "b"], "not": {"const": "b"}});
    let more = json!({"structured_outputs": {"json": schema}, "temperature": 2});
    let rows: Vec<Value> = (0..24).map(|at| row(format!("r{at}"), at, &more)).collect();
    let (answers, _) = run(&rows, "");
    let is_miss = |answer: &Value| answer["error"]["code"] == "schema_mismatch";
    let misses: Vec<&Value> = answers.values().filter(|answer| is_miss(answer)).collect();
    assert!(!misses.is_empty() && misses.len() < rows.len(), "{} misses", misses.len());
    for answer in answers.values() {
        match is_miss(answer) {
            true => {
                let message = answer["error"]["message"].as_str().unwrap();
                assert!(
                    message.contains("the answer: ") && message.ends_with("\"b\""),
                    "{message}"
                );
            }
            false => assert_eq!(answer["response"], "\"a\"", "{answer}"),
        }
    }
    for flags in VARIANTS {
        assert_eq!(run(&rows, flags).0, answers, "{flags}");
    }
    let strict = json!({"response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "strict": true, "schema": schema}}});
    let strict = answer(&row("r".to_owned(), 0, &strict));
    assert_eq!(strict["error"]["code"], "structured_outputs");
    assert!(strict["error"]["message"].as_str().unwrap().contains("not"), "{strict}");
}

/// One row with a chain of rules or an endless list costs that row only.
#[test]
fn hostile_constraints_cost_their_own_rows() {
    let rules: String = (0..30_000).map(|at| format!("r{at}: r{}\n", at + 1)).collect();
    let definitions: serde_json::Map<String, Value> = (0..30_000)
        .map(|at| (format!("d{at}"), json!({"items": {"$ref": format!("#/$defs/d{}", at + 1)}})))
        .collect();
    let choices: Vec<String> = (0..300_000).map(|at| format!("c{at}")).collect();
    let hostile = [
        json!({"grammar": format!("start: r0\n{rules}r30000: \"a\"\n")}),
        json!({"json": {"$ref": "#/$defs/d0", "$defs": definitions}}),
        json!({"choice": choices}),
    ];
    let good = row("good".to_owned(), 0, &json!({"structured_outputs": {"choice": ["a"]}}));
    let mut rows = vec![good.clone()];
    for (at, outputs) in hostile.into_iter().enumerate() {
        rows.push(row(format!("bad{at}"), at, &json!({ "structured_outputs": outputs })));
    }
    let (answers, _) = run(&rows, "");
    for (name, found) in &answers {
        match name.as_str() {
            "good" => assert_eq!(found, &answer(&good)),
            _ => assert_eq!(found["error"]["code"], "structured_outputs", "{name}"),
        }
    }
}
