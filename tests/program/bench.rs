//! `bench` as users meet it: exact token counts, JSON that agrees with itself, refusals. Times are
//! whatever they are.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

/// `bench` of the demo model.
fn bench(folder: &Path, flags: &str) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(["bench", "-qq", "--kv-cache-memory-bytes", "16MiB"]);
    let model = if flags.contains("--model") { vec![] } else { vec!["--model", DEMO] };
    command.args(model).args(flags.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Standard output and the JSON of a benchmark that succeeds and says nothing else.
fn result(folder: &Path, flags: &str) -> (String, Value) {
    let output = bench(folder, &format!("{flags} --output-json result.json"));
    assert_eq!(output.status.code(), Some(0), "{flags}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{flags}");
    let json = fs::read_to_string(folder.join("result.json")).unwrap();
    (text(&output.stdout).to_owned(), serde_json::from_str(&json).unwrap())
}

#[track_caller]
fn assert_refused(folder: &Path, flags: &str, code: i32, wanted: &str) {
    let output = bench(folder, flags);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{flags}: {error}");
    assert!(error.contains(wanted), "{flags}: {error}");
    assert!(output.stdout.is_empty(), "{flags}");
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[track_caller]
fn assert_near(left: f64, right: f64) {
    assert!((left - right).abs() <= 1e-9 * right.abs(), "{left} is not {right}");
}

/// Numbers of the one object that follow from others.
fn assert_consistent(json: &Value) {
    let get = |key: &str| number(&json[key]);
    assert_eq!(get("num_prompt_tokens") + get("num_output_tokens"), get("total_num_tokens"));
    for (rate, amount) in [
        ("requests_per_second", "num_requests"),
        ("tokens_per_second", "total_num_tokens"),
        ("output_tokens_per_second", "num_output_tokens"),
    ] {
        assert_near(get(rate) * get("elapsed_time"), get(amount));
    }
    let steps = &json["steps"];
    for key in ["count", "seconds"] {
        let parts = number(&steps["decode"][key]) + number(&steps["other"][key]);
        assert_near(parts, number(&steps["all"][key]));
    }
    assert_eq!(steps["all"]["count"], json["num_steps"]);
    assert!(number(&steps["all"]["seconds"]) + get("input_time") <= get("elapsed_time"));
    let percentiles =
        ["p50_ms", "p90_ms", "p99_ms", "max_ms"].map(|key| number(&steps["all"][key]));
    assert!(percentiles.is_sorted() && percentiles[0] > 0.0, "{percentiles:?}");
    assert!(get("load_time") > 0.0 && get("model_tflops") > 0.0);
}

#[test]
fn throughput_has_vllms_line_and_keys_and_exact_counts() {
    let folder = temporary();
    let (stdout, json) =
        result(folder.path(), "--num-prompts 12 --input-len 40 --output-len 5 --num-warmups 12");
    assert_consistent(&json);
    for (key, value) in [
        ("model_id", json!(DEMO)),
        ("mode", json!("throughput")),
        ("num_requests", json!(12)),
        ("num_prompt_tokens", json!(480)),
        ("num_output_tokens", json!(60)),
        // A warm-up row that came again would be cached, or be counted.
        ("num_cached_tokens", json!(0)),
        ("num_computed_tokens", json!(480 + 60 - 12)),
        ("num_preemptions", json!(0)),
        ("num_draft_tokens", json!(0)),
        ("prefill", Value::Null),
        ("decode", Value::Null),
        ("peak_tflops_share", Value::Null),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["workload"]["num_warmups"], 12);
    let get = |key: &str| number(&json[key]);
    let line = format!(
        "Throughput: {:.2} requests/s, {:.2} total tokens/s, {:.2} output tokens/s\n\
         Total num prompt tokens:  480\nTotal num output tokens:  60\n",
        get("requests_per_second"),
        get("tokens_per_second"),
        get("output_tokens_per_second")
    );
    assert!(stdout.starts_with(&line), "{stdout}");
    let table = stdout.lines().position(|line| line.starts_with("Op ")).unwrap();
    assert!(table < 10, "{stdout}");
    assert_ops(&stdout, &json);
}

/// What is said of ops agrees with itself, with the table, and with the time of the steps.
fn assert_ops(stdout: &str, json: &Value) {
    let ops = json["ops"].as_array().unwrap();
    let step_seconds = number(&json["steps"]["all"]["seconds"]);
    let mut sum = 0.0;
    for op in ops {
        let get = |key: &str| number(&op[key]);
        assert!(get("calls") > 0.0 && get("bytes") > 0.0 && get("floor_seconds") > 0.0, "{op}");
        assert_near(get("share_of_time") * step_seconds, get("seconds"));
        assert_near(get("share_of_floor") * get("seconds"), get("floor_seconds"));
        let name = op["name"].as_str().unwrap();
        assert!(stdout.lines().any(|line| line.starts_with(name)), "{name}: {stdout}");
        sum += get("seconds");
    }
    let seconds: Vec<f64> = ops.iter().map(|op| -number(&op["seconds"])).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    assert!(sum > 0.0 && sum < step_seconds, "{sum} of {step_seconds}");
    let steps = &json["steps"]["all"];
    let of_step = number(&steps["execute_ms"]) + number(&steps["sample_ms"]);
    assert!(sum <= 1e-3 * of_step * number(&steps["count"]), "{sum} of {of_step} ms a step");
}

/// The op of this name.
fn op<'a>(json: &'a Value, name: &str) -> &'a Value {
    let ops = json["ops"].as_array().unwrap();
    ops.iter().find(|op| op["name"] == name).unwrap_or_else(|| panic!("no {name} in {ops:#?}"))
}

#[test]
fn ops_are_counted_by_hand_and_held_against_the_limits_that_are_given() {
    let folder = temporary();
    let flags = "--num-prompts 3 --input-len 20 --output-len 5 --num-warmups 3 --peak-tflops 0.05";
    let (stdout, json) = result(folder.path(), &format!("{flags} --memory-bandwidth 5"));
    assert_ops(&stdout, &json);
    let wanted = "(given), 5.0 GB/s memory (given)";
    assert!(stdout.lines().last().unwrap().ends_with(wanted), "{stdout}");
    assert_eq!(json["limits"]["memory"], json!({"gb_per_second": 5.0, "is_given": true}));
    // One step of three prompts and four of three tokens, in 5 layers; warm-ups are not counted.
    let (num_tokens, num_steps) = (3.0 * 24.0, 5.0);
    let down = op(&json, "linear 128 x 384");
    assert_eq!(number(&down["calls"]), 5.0 * num_steps);
    assert_near(number(&down["flops"]), 5.0 * num_tokens * 2.0 * 128.0 * 384.0);
    let weight_bytes = 2.0 * 128.0 * 384.0;
    // Where products are of bf16, inputs are stored so.
    let input_bytes = if down["arithmetic"] == "bfloat16" { 2.0 } else { 4.0 };
    let row_bytes = 4.0 * 128.0 + input_bytes * 384.0;
    let bytes = 5.0 * (num_steps * weight_bytes + num_tokens * row_bytes);
    assert_near(number(&down["bytes"]), bytes);
    let attention = op(&json, "paged_attention");
    // Scores and values of 128 columns for the causal half of 24 positions.
    let num_scores = 3.0 * f64::from((1..=24).sum::<i32>());
    assert_near(number(&attention["flops"]), 5.0 * 4.0 * 128.0 * num_scores);
    // All rows are greedy: the output layer finds their tokens, and no logits are read.
    let output = op(&json, "linear_largest 448 x 128");
    assert_eq!(output["calls"], 5);
    assert_near(number(&output["flops"]), 15.0 * 2.0 * 448.0 * 128.0);
    assert_near(number(&output["bytes"]), 5.0 * 2.0 * 448.0 * 128.0 + 15.0 * 4.0 * 128.0);

    let flags = "--quantization int8 --num-prompts 2 --input-len 8 --output-len 3";
    let (stdout, json) = result(folder.path(), flags);
    assert_ops(&stdout, &json);
    assert_eq!(op(&json, "linear 128 x 384")["arithmetic"], "int8");
    assert!(stdout.contains(" TFLOP/s int8 (measured)"), "{stdout}");
}

#[test]
fn lengths_vary_when_asked_to_and_by_the_seed_alone() {
    let folder = temporary();
    let counts = |seed: u64| {
        let flags = "--num-prompts 9 --input-len 20 --output-len 4 --random-range-ratio 0.5";
        let (_, json) = result(folder.path(), &format!("{flags} --seed {seed}"));
        assert_consistent(&json);
        (number(&json["num_prompt_tokens"]), number(&json["num_output_tokens"]))
    };
    let (prompt, output) = counts(3);
    assert!((90.0..=270.0).contains(&prompt) && (18.0..=54.0).contains(&output));
    assert_eq!(counts(3), (prompt, output));
    assert_ne!(counts(4), (prompt, output));
}

#[test]
fn a_queue_has_a_prefix_long_rows_and_ends_that_nobody_foresees() {
    let folder = temporary();
    let plain = "--num-prompts 24 --input-len 20 --output-len 6 --random-range-ratio 0.5 \
                 --max-num-seqs 4 --block-size 16";
    let queue = format!("{plain} --prefix-len 48 --num-long-prompts 2 --long-input-len 200");
    let (_, plain) = result(folder.path(), plain);
    let (_, foreseen) = result(folder.path(), &queue);
    let (_, json) = result(folder.path(), &format!("{queue} --end-of-text"));
    assert_consistent(&json);
    let outputs = |json: &Value| number(&json["num_output_tokens"]);
    assert_eq!((outputs(&json), outputs(&foreseen)), (outputs(&plain), outputs(&plain)));
    let more = number(&json["num_prompt_tokens"]) - number(&plain["num_prompt_tokens"]);
    let (of_prefix, of_long) = (24.0 * 48.0, 2.0 * 200.0);
    assert!((of_prefix + of_long - 60.0..of_prefix + of_long).contains(&more), "{more}");
    // All but the first rows, which come together, find the prefix.
    assert!(number(&json["num_cached_tokens"]) >= 20.0 * 48.0, "{json:#}");
    assert_eq!(plain["num_cached_tokens"], 0);
    let workload = &json["workload"];
    assert_eq!(workload["prefix_len"], 48);
    assert_eq!(
        (&workload["end_of_text"], &plain["workload"]["end_of_text"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn a_floor_is_shown_where_the_limits_are_given() {
    let folder = temporary();
    let limits = "--peak-tflops 0.5 --memory-bandwidth 10";
    for mode in ["throughput", "prefill", "decode"] {
        let flags = format!("--mode {mode} --num-prompts 6 --input-len 40");
        let (stdout, json) = result(folder.path(), &format!("{flags} {limits}"));
        let floor = |key: &str| number(&json["floor"][key]);
        let sum = floor("products_seconds") + floor("attention_seconds");
        assert_near(floor("share") * floor("measured_seconds"), sum);
        assert!(floor("products_seconds") > floor("attention_seconds"), "{json:#}");
        assert!(stdout.lines().any(|line| line.starts_with("Floor: ")), "{stdout}");
        // Attention takes half of that time, if not bound by memory.
        let (_, faster) = result(folder.path(), &format!("{flags} {limits} --attention-tflops 1"));
        let of = |json: &Value| number(&json["floor"]["attention_seconds"]);
        match mode {
            "prefill" => assert_near(of(&faster) * 2.0, of(&json)),
            // Steps of another run may be others, by the rows that run in them.
            _ => assert!(of(&faster) <= of(&json), "{mode}"),
        }
    }
    let (stdout, json) = result(folder.path(), "--num-prompts 2 --input-len 4 --output-len 2");
    assert!(json["floor"].is_null() && !stdout.contains("Floor"), "{stdout}");
}

#[test]
fn prefill_computes_every_prompt_token_once() {
    let folder = temporary();
    let same = "{\"prompt_token_ids\":[7,8,9,10,11,12,13,14,15,16],\"max_tokens\":9}\n".repeat(20);
    fs::write(folder.path().join("same.jsonl"), same).unwrap();
    for (flags, num_rows, num_prompt, num_steps) in [
        ("--num-prompts 6 --input-len 50 --max-num-batched-tokens 100", 6, 300, 3),
        ("--dataset same.jsonl --block-size 16", 20, 200, 1),
    ] {
        let (stdout, json) =
            result(folder.path(), &format!("--mode prefill {flags} --peak-tflops 2"));
        assert_consistent(&json);
        assert_eq!(json["num_output_tokens"], num_rows);
        assert_eq!(json["num_prompt_tokens"], num_prompt);
        assert_eq!(json["num_computed_tokens"], num_prompt);
        assert_eq!(json["engine"]["enable_prefix_caching"], false);
        let prefill = &json["prefill"];
        assert_eq!(prefill["num_steps"], num_steps);
        let seconds = number(&prefill["seconds_per_step"]) * f64::from(num_steps);
        assert_near(number(&prefill["prompt_tokens_per_second"]) * seconds, f64::from(num_prompt));
        assert_near(number(&json["peak_tflops_share"]) * 2.0, number(&json["model_tflops"]));
        assert!(stdout.contains("prompt tokens/s") && stdout.contains("of 2 TFLOP/s"), "{stdout}");
    }
}

/// The demo's matrices: 5 layers of q and out (128 x 128), k and v (64 x 128), three of 384 x 128;
/// the table of 448 x 128, once. bfloat16.
const WEIGHT_BYTES: f64 = 2.0 * (5.0 * 128.0 * (256.0 + 128.0 + 1152.0) + 448.0 * 128.0);
/// K and V of 64 in 5 layers. bfloat16.
const KV_BYTES: f64 = 2.0 * 5.0 * 2.0 * 64.0;

#[test]
fn decode_times_the_steps_in_which_all_rows_run() {
    let folder = temporary();
    let (stdout, json) = result(
        folder.path(),
        "--mode decode --num-prompts 8 --input-len 30 --output-len 11 --memory-bandwidth 50",
    );
    assert_consistent(&json);
    assert_eq!(json["num_output_tokens"], 88);
    let decode = &json["decode"];
    // The first token comes with the prompts.
    assert_eq!((&decode["num_steps"], &decode["batch_size"]), (&json!(10), &json!(8)));
    let seconds = 1e-3 * number(&decode["step_ms_mean"]);
    assert_near(number(&decode["tokens_per_second"]) * seconds, 8.0);
    assert_near(number(&decode["weight_bytes_per_step"]), WEIGHT_BYTES);
    // Contexts of 31 to 40 tokens.
    let kv_bytes = 8.0 * 35.5 * KV_BYTES;
    assert_near(number(&decode["kv_bytes_per_step"]), kv_bytes);
    let rate = number(&decode["gb_per_second"]);
    assert_near(1e9 * rate * seconds, WEIGHT_BYTES + kv_bytes);
    assert_near(number(&decode["memory_bandwidth_share"]) * 50.0, rate);
    assert!(stdout.contains("GB/s, ") && stdout.contains("% of 50 GB/s"), "{stdout}");
}

#[test]
fn weights_that_stay_codes_are_counted_as_those() {
    let folder = temporary();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/ct_int4");
    let bytes = |more: &str| {
        let sizes = "--num-prompts 4 --input-len 8 --output-len 9 --dtype bfloat16";
        let flags = format!("--mode decode --model {model} {sizes} {more}");
        number(&result(folder.path(), &flags).1["decode"]["weight_bytes_per_step"])
    };
    // Two layers of q and out (64 x 32), k and v (32 x 32), three of 64 x 32; the table, once.
    let (layers, head) = (2.0 * 32.0 * (128.0 + 64.0 + 192.0), 288.0 * 32.0);
    // Codes of 4 bits with scales and padding; the table is no code.
    let of_file = bytes("");
    let of_codes = of_file - 2.0 * head;
    assert_near(bytes("--load-format dummy"), of_file);
    assert!(of_codes > 0.5 * layers && of_codes < 1.2 * layers, "{of_codes} of {layers} weights");
}

#[test]
fn decode_leaves_out_steps_in_which_some_row_has_no_token() {
    let folder = temporary();
    // Steps of 32 tokens: the first row decodes while the others' prompts are computed.
    let flags = "--mode decode --num-prompts 4 --input-len 30 --output-len 12 \
                 --max-num-batched-tokens 32 --max-num-seqs 4";
    let (_, json) = result(folder.path(), flags);
    assert_consistent(&json);
    let num_full = number(&json["decode"]["num_steps"]);
    let num_decode = number(&json["steps"]["decode"]["count"]);
    assert!(num_full > 0.0 && num_full < 11.0 && num_full < num_decode, "{json:#}");
    assert_eq!(json["engine"]["max_num_seqs"], 4);
    let many = "--mode decode --num-prompts 300 --input-len 2 --output-len 3";
    let (_, json) = result(folder.path(), many);
    assert_eq!(json["engine"]["max_num_seqs"], 300);
    let short = flags.replace("--output-len 12", "--output-len 2");
    assert_refused(folder.path(), &short, 2, "raise --output-len");
}

#[test]
fn a_dataset_gives_rows_with_their_own_lengths() {
    let folder = temporary();
    let ids: Vec<u32> = (10..74).collect();
    let rows: String = (1..=4)
        .map(|n| format!("{}\n", json!({"id": n, "prompt_token_ids": ids, "max_tokens": n})))
        .collect();
    fs::write(folder.path().join("ids.jsonl"), rows).unwrap();
    let (_, json) = result(folder.path(), "--dataset ids.jsonl --num-warmups 5");
    assert_consistent(&json);
    assert_eq!((&json["num_prompt_tokens"], &json["num_output_tokens"]), (&json!(256), &json!(10)));
    assert_eq!(json["workload"]["dataset"], "ids.jsonl");
    assert_eq!(json["workload"]["input_len"], Value::Null);
    // Three rows find the first one's whole block.
    assert_eq!(json["num_cached_tokens"], 3 * 32);
    let (_, json) = result(folder.path(), "--dataset ids.jsonl --no-enable-prefix-caching");
    assert_eq!(json["num_cached_tokens"], 0);

    let rows = "{\"prompt\":\"2+3=\",\"temperature\":2,\"stop\":\"5\"}\n{\"prompt\":\"4+4=\"}\n";
    fs::write(folder.path().join("text.jsonl"), rows).unwrap();
    let (_, json) = result(folder.path(), "--dataset text.jsonl --output-len 7");
    assert_eq!((&json["num_requests"], &json["num_output_tokens"]), (&json!(2), &json!(14)));
    let (_, json) = result(folder.path(), "--dataset text.jsonl --output-len 7 --num-prompts 1");
    assert_eq!(json["num_output_tokens"], 7);

    for (rows, code, wanted) in [
        ("{\"prompt\":\"a\"}\n{\"prompt\" 1}\n", 2, "error[bad_json]: bad.jsonl:2:"),
        ("{\"prompt\":\"a\",\"max_tokens\":0}\n", 2, "row 1: max_tokens must be at least 1"),
        ("{\"prompt_token_ids\":[1]}\n{\"prompt_token_ids\":[448]}\n", 2, "row 2: Token id 448"),
        ("\n", 4, "bad.jsonl has no rows"),
    ] {
        fs::write(folder.path().join("bad.jsonl"), rows).unwrap();
        assert_refused(folder.path(), "--dataset bad.jsonl", code, wanted);
    }
    assert_refused(folder.path(), "--dataset none.jsonl", 2, "check its name");
}

#[test]
fn a_config_suffices_with_dummy_weights_and_a_tokenizer() {
    let folder = temporary();
    let config = fs::read_to_string(Path::new(DEMO).join("config.json")).unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    let flags = "--model . --load-format dummy --num-prompts 3 --input-len 4 --output-len 2";
    assert_refused(folder.path(), flags, 7, "tokenizer.json");
    let (_, json) = result(folder.path(), &format!("{flags} --tokenizer {DEMO} --dtype float32"));
    assert_consistent(&json);
    assert_eq!(json["engine"]["dtype"], "float32");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = temporary();
    for (flags, wanted) in [
        ("--mode fast", "throughput"),
        ("--input-length 5", "--input-len"),
        ("--random-range-ratio 1", "must be a number in [0, 1)"),
        ("--memory-bandwidth 0", "must be a number greater than zero"),
        ("--num-prompts 0", "must be at least 1"),
        ("--dataset rows.jsonl --input-len 5", "cannot be used with"),
        ("--dataset rows.jsonl --random-range-ratio 0.1", "cannot be used with"),
        ("--dataset rows.jsonl --end-of-text", "cannot be used with"),
        ("--num-long-prompts 3", "--long-input-len"),
        ("--attention-tflops 3", "--peak-tflops"),
        ("--mode prefill --output-len 2", "one output token per row"),
        ("--mode prefill --enable-prefix-caching", "leave out --enable-prefix-caching"),
        ("--mode decode --num-prompts 5 --max-num-seqs 4", "give --max-num-seqs 5"),
        ("--mode decode --num-prompts 64 --input-len 380", "raise --kv-cache-memory-bytes"),
        ("--output-json /nowhere/result.json", "no such folder"),
        ("--input-len 500 --output-len 13", "exceed the context of 512"),
        ("--input-len 512 --output-len 1", "row 1: the prompt does not fit the context"),
        ("--num-gpu-blocks-override 1 --input-len 40", "KV cache"),
    ] {
        assert_refused(folder.path(), flags, 2, wanted);
    }
}

#[test]
fn help_teaches() {
    let help = |flags: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        let output = command.arg("bench").args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        text(&output.stdout).to_owned()
    };
    let (short, long) = (help(&["--help"]), help(&["--help", "-v"]));
    for wanted in ["Examples:", "--mode decode", "--dataset", "What is measured:", "above 100%"] {
        assert!(short.contains(wanted), "{wanted}");
    }
    assert!(!short.contains("--block-size") && long.contains("--block-size"));
}

#[test]
fn a_signal_gives_what_was_measured_until_then() {
    let folder = temporary();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder.path()).args(["bench", "--model", DEMO, "--progress", "json"]);
    command.args(["--num-prompts", "20000", "--input-len", "4", "--output-len", "64"]);
    command.args(["-q", "--kv-cache-memory-bytes", "16MiB", "--output-json", "result.json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let is_begun = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["event"] == "progress" && event["rows_done"].as_u64() > Some(0)
    };
    assert!(errors.any(|line| is_begun(&line.unwrap())), "no row is done");
    assert!(crate::signal::send("INT", child.id()));
    let rest: Vec<String> = errors.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest:?}");
    let said = text(&output.stdout);
    assert!(said.starts_with("Partial result: ") && said.contains(" of 20000 rows in "), "{said}");
    assert!(said.contains("Throughput so far: "), "{said}");
    let result = fs::read_to_string(folder.path().join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!((&result["partial"], &result["exit_code"]), (&true.into(), &130.into()));
    assert_eq!(result["num_requests_asked"], 20000);
    // A whole result may take the place of a partial one.
    let again = ["--num-prompts", "2", "--input-len", "4", "--output-len", "2", "-q"];
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder.path()).args(["bench", "--model", DEMO]).args(again);
    let again = command.args(["--output-json", "result.json"]).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(result["num_requests"].as_u64().is_some_and(|rows| rows > 0), "{result}");
    let event = rest.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let event = event.into_iter().find(|event| event["event"] == "result").expect("a result");
    assert_eq!(
        (&event["partial"], &event["num_requests"]),
        (&true.into(), &result["num_requests"])
    );
}
