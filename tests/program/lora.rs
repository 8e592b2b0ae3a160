//! Adapters through the program: how flags and rows name them, what becomes of names that nobody
//! has, and what belongs to a run.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::cli::{TINY, assert_exit, finish, rows, temporary, text, vllm_batch};
use crate::resume::program::{Held, num_reused, run};

/// Layers of the tiny model, its width, and the rank of adapters.
const LAYERS: usize = 3;
const WIDTH: usize = 48;
const RANK: usize = 4;

const UNKNOWN: &str = "The model `nobody` does not exist.";

/// Writes an adapter of the tiny model's `q_proj` and `v_proj`, as PEFT saves it, of numbers that
/// `seed` decides. 0: B is zero, and so is what it adds.
fn write_adapter(folder: &Path, seed: u32) {
    write_adapter_of(&["q_proj", "v_proj"], (LAYERS, WIDTH), (folder, seed));
}

/// The same of other modules of attention, of a model of so many layers and such a width.
fn write_adapter_of(modules: &[&str], sizes: (usize, usize), (folder, seed): (&Path, u32)) {
    let (layers, width) = sizes;
    fs::create_dir_all(folder).unwrap();
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny",
        "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "bias": "none",
        "target_modules": modules,
    });
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    };
    for layer in 0..layers {
        for module in modules {
            for (part, shape) in [("lora_A", [RANK, width]), ("lora_B", [width, RANK])] {
                let name = format!(
                    "base_model.model.model.layers.{layer}.self_attn.{module}.{part}.weight"
                );
                let begin = data.len();
                for _ in 0..RANK * width {
                    let value = if part == "lora_B" && seed == 0 { 0.0 } else { number() };
                    data.extend(f32::to_le_bytes(value));
                }
                let offsets = [begin, data.len()];
                let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
                header.insert(name, tensor);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
}

/// A folder with the adapters `a` and `b`.
fn folder() -> tempfile::TempDir {
    let folder = temporary();
    write_adapter(&folder.path().join("a"), 1);
    write_adapter(&folder.path().join("b"), 2);
    folder
}

const MODULES: [&str; 3] = ["--lora-modules", "a=./a", "b=./b"];

/// A command over rows that lie in `in.jsonl`.
fn over(command: &str, folder: &Path, input: &[Value], flags: &[&str]) -> Output {
    let lines: String = input.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join("in.jsonl"), lines).unwrap();
    let mut command = vllm_batch(folder, &[command, "--model", TINY, "-i", "in.jsonl"]);
    finish(command.args(flags).env("SOURCE_DATE_EPOCH", "1711652795"), "")
}

const SHORT: [&str; 4] = ["--temperature", "0", "--max-tokens", "3"];

fn completed(folder: &Path, input: &[Value], flags: &[&str]) -> Output {
    over("run", folder, input, &[&SHORT, flags].concat())
}

/// The code and message of an error row, or None of an answer.
fn error(row: &Value) -> Option<(&str, &str)> {
    let error = row.get("error")?;
    Some((error["code"].as_str()?, error["message"].as_str()?))
}

#[test]
fn rows_name_adapters_and_a_name_that_nobody_has_is_an_error_row() {
    let folder = folder();
    let input = [
        json!({"prompt": "x", "lora": "a"}),
        json!({"prompt": "x", "lora": "nobody"}),
        json!({"prompt": "x", "lora": null}),
        json!({"prompt": "x", "lora": "llama2"}),
        json!({"prompt": "x", "lora": 7}),
        json!({"prompt": "x", "lora": "b", "model": "nobody"}),
        json!({"prompt": "x", "lora_request": {"lora_name": "a"}}),
    ];
    let output = completed(folder.path(), &input, &MODULES);
    assert_exit(&output, 3);
    let out = rows(text(&output.stdout));
    let errors: Vec<_> = out.iter().map(error).collect();
    let number = "lora: expected a name, found a number";
    let request = "lora_request: not supported: the answer would not be what it asks for";
    let expected = [
        None,
        Some(("model_not_found", UNKNOWN)),
        None,
        None,
        Some(("invalid_parameter", number)),
        None,
        Some(("unsupported_field", request)),
    ];
    assert_eq!(errors, expected);
    // The field passes through as any other.
    assert_eq!((&out[0]["lora"], &out[5]["lora"]), (&json!("a"), &json!("b")));
    // Without adapters a row that names one is not completed by the model either.
    let output = completed(folder.path(), &input[..4], &[]);
    assert_exit(&output, 3);
    let out = rows(text(&output.stdout));
    let codes: Vec<_> = out.iter().map(|row| error(row).map(|(code, _)| code)).collect();
    assert_eq!(codes, [Some("model_not_found"), Some("model_not_found"), None, None]);
}

#[test]
fn tables_have_a_column_of_names() {
    let folder = folder();
    fs::write(folder.path().join("in.csv"), "prompt,lora\nx,a\nx,\nx,nobody\nx,null\n").unwrap();
    let flags = ["run", "--model", TINY, "-i", "in.csv", "-o", "out.jsonl"];
    let mut command = vllm_batch(folder.path(), &flags);
    let output = finish(command.args(SHORT).args(MODULES), "");
    assert_exit(&output, 3);
    let out = rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    let codes: Vec<_> = out.iter().map(|row| error(row).map(|(code, _)| code)).collect();
    assert_eq!(codes, [None, None, Some("model_not_found"), Some("model_not_found")]);
}

#[test]
fn a_requests_model_is_an_adapter_or_the_model() {
    let folder = folder();
    let row = |id: usize, model: Value| {
        json!({"custom_id": id.to_string(), "url": "/v1/completions",
               "body": {"model": model, "prompt": "x"}})
    };
    let names = [json!("a"), json!("llama2"), json!(TINY), json!(""), Value::Null, json!("nobody")];
    let mut input: Vec<_> = names.into_iter().enumerate().map(|(id, name)| row(id, name)).collect();
    input.push(json!({"custom_id": "6", "url": "/v1/completions",
                      "body": {"prompt": "x", "lora": "a"}}));
    let output = completed(folder.path(), &input, &MODULES);
    assert_exit(&output, 3);
    let out = rows(text(&output.stdout));
    let shown: Vec<_> = out.iter().map(|row| &row["response"]["body"]["model"]).collect();
    let base = json!("llama2");
    assert_eq!(shown[..5], [&json!("a"), &base, &base, &base, &base]);
    let unknown = &out[5]["response"];
    assert_eq!(unknown["status_code"], 404);
    let error = json!({"message": UNKNOWN, "type": "invalid_request_error", "param": "model",
                       "code": "model_not_found"});
    assert_eq!(unknown["body"]["error"], error);
    let in_body = &out[6]["response"]["body"]["error"];
    assert_eq!(
        (&in_body["code"], &in_body["param"]),
        (&json!("unsupported_field"), &json!("lora"))
    );
    // Files that were made for another server name its model.
    let output = completed(folder.path(), &input[..6], &[]);
    assert_exit(&output, 0);
    let out = rows(text(&output.stdout));
    assert!(out.iter().all(|row| row["response"]["body"]["model"] == "llama2"));
    // Rows of datasets in the form of a batch API show who answers, too.
    let own = [json!({"prompt": "x", "lora": "a"}), json!({"prompt": "x"})];
    let output =
        completed(folder.path(), &own, &[&MODULES[..], &["--output-format", "openai"]].concat());
    assert_exit(&output, 0);
    let out = rows(text(&output.stdout));
    let shown: Vec<_> = out.iter().map(|row| &row["response"]["body"]["model"]).collect();
    assert_eq!(shown, [&json!("a"), &base]);
}

#[test]
fn anthropics_requests_name_adapters_too() {
    let folder = folder();
    let row = |id: &str, model: &str| {
        json!({"custom_id": id, "params": {"model": model, "max_tokens": 3,
               "messages": [{"role": "user", "content": "x"}]}})
    };
    let input = [row("0", "a"), row("1", "nobody"), row("2", "llama2")];
    let template = "{{ messages[0].content }}";
    let flags = [&MODULES[..], &["--chat-template", template]].concat();
    let output = completed(folder.path(), &input, &flags);
    assert_exit(&output, 3);
    let out = rows(text(&output.stdout));
    assert_eq!(out[0]["result"]["message"]["model"], "a");
    let error = &out[1]["result"]["error"]["error"];
    assert_eq!(*error, json!({"type": "not_found_error", "message": UNKNOWN}));
    assert_eq!(out[2]["result"]["message"]["model"], "llama2");
}

#[test]
fn flags_of_adapters_are_refused_by_name() {
    let folder = folder();
    let input = [json!({"prompt": "x"})];
    for (flags, what) in [
        (
            &["--lora-modules", "a=./a", "a=./b"][..],
            "--lora-modules a: two adapters have this name",
        ),
        (&["--lora-modules", "llama2=./a"], "--lora-modules llama2: it is the name of the model"),
        (&["--lora-modules", "a=./a", "b=./b", "--lora-merge", "a"], "there are other adapters"),
        (&["--lora-merge", "a"], "--lora-merge a: --lora-modules has no such name"),
        (&["--lora-modules", "a"], "expected NAME=DIR"),
        (&["--lora-modules", r#"{"name":"a"}"#], "missing field `path`"),
        (&["--lora-modules", "a=./a", "--max-lora-rank", "513"], "must be 1 to 512, got 513."),
        (&["--lora-modules", "a=./a", "--max-loras", "0"], "must be at least 1, got 0."),
        (&["--lora-modules", "a=./none"], "--lora-modules a: no such folder: ./none"),
        (&["--lora-modules", "a=./in.jsonl"], "--lora-modules a: ./in.jsonl is no folder"),
    ] {
        let output = completed(folder.path(), &input, flags);
        assert_exit(&output, 2);
        assert!(text(&output.stderr).contains(what), "{flags:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn modules_are_given_in_all_ways_of_flags() {
    let folder = folder();
    let input = [json!({"prompt": "x", "lora": "a"}), json!({"prompt": "x", "lora": "b"})];
    let objects =
        [r#"{"name":"a","path":"./a","base_model_name":"x"}"#, r#"{"name":"b","path":"b"}"#];
    for flags in [
        &["--lora-modules", "a=./a", "--lora-modules", "b=./b"][..],
        &["--enable-lora", "--lora-modules", objects[0], objects[1], "--max-loras", "1"],
        &["--config", "batch.toml"],
    ] {
        let file = "[run]\nlora-modules = [\"a=a\", \"b=b\"]\nmax-lora-rank = 32\n";
        fs::write(folder.path().join("batch.toml"), file).unwrap();
        let output = completed(folder.path(), &input, flags);
        assert_exit(&output, 0);
    }
    fs::write(folder.path().join("in.jsonl"), input[0].to_string()).unwrap();
    let mut command = vllm_batch(folder.path(), &["run", "--model", TINY, "-i", "in.jsonl"]);
    let output = finish(command.args(SHORT).env("VLLM_BATCH_LORA_MODULES", "a=./a"), "");
    assert_exit(&output, 0);
}

#[test]
fn an_output_is_of_its_adapters() {
    let folder = folder();
    let input = [json!({"prompt": "x", "lora": "a"}), json!({"prompt": "x"})];
    let run =
        |flags: &[&str]| completed(folder.path(), &input, &[&["-o", "out.jsonl"], flags].concat());
    assert_exit(&run(&MODULES), 0);
    let out = fs::read(folder.path().join("out.jsonl")).unwrap();
    // Another order of flags, and other numbers of adapters at a time, are the same run.
    let other = ["--lora-modules", "b=b", "a=a", "--max-loras", "1", "--max-lora-rank", "64"];
    let again = run(&other);
    assert_exit(&again, 0);
    assert!(text(&again.stderr).contains("Nothing to do"), "{}", text(&again.stderr));
    let refused = |flags: &[&str]| {
        let output = run(flags);
        assert_exit(&output, 6);
        assert!(text(&output.stderr).contains("lora_modules: "), "{}", text(&output.stderr));
    };
    refused(&[]);
    refused(&["--lora-modules", "a=a"]);
    refused(&["--lora-modules", "a=b", "b=a"]);
    write_adapter(&folder.path().join("b"), 3);
    refused(&MODULES);
    write_adapter(&folder.path().join("b"), 2);
    assert_exit(&run(&MODULES), 0);
    assert_eq!(fs::read(folder.path().join("out.jsonl")).unwrap(), out);
}

/// Rows of the model, of both adapters, and of nobody.
fn mixed(num_rows: usize) -> Vec<String> {
    let names = [json!("a"), Value::Null, json!("b"), json!("nobody"), json!("llama2")];
    let row = |index: usize| json!({"id": index, "prompt": "x y z", "lora": names[index % 5]});
    (0..num_rows).map(|index| format!("{}\n", row(index))).collect()
}

#[test]
fn a_killed_run_continues_with_the_same_adapters_only() {
    let folder = folder();
    let rows = mixed(20);
    let flags =
        [&["--format", "jsonl", "--max-tokens", "6", "-qq", "--stats", "stats.json"], &MODULES[..]]
            .concat();
    let command = |out: &str| {
        let mut command = run(folder.path(), &flags);
        command.args(["-o", out]);
        command
    };
    let whole = finish(&mut command("whole.jsonl"), &rows.concat());
    assert_exit(&whole, 3);
    let journal = folder.path().join("out.jsonl.journal");
    let mut held = Held::start(&mut command("out.jsonl"), journal);
    held.feed(rows[..12].concat().as_bytes(), 12);
    held.kill();

    let adapter = folder.path().join("b");
    write_adapter(&adapter, 3);
    let other = finish(&mut command("out.jsonl"), &rows.concat());
    assert_exit(&other, 6);
    let said = text(&other.stderr);
    assert!(said.contains("lora_modules: ") && said.matches(" then, ").count() == 1, "{said}");

    write_adapter(&adapter, 2);
    assert_exit(&finish(&mut command("out.jsonl"), &rows.concat()), 3);
    assert_eq!(num_reused(folder.path()), 12);
    let bytes = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(bytes("out.jsonl"), bytes("whole.jsonl"));
}

#[test]
fn plan_and_check_name_the_rows_that_name_nobody() {
    let folder = folder();
    let rows = [
        json!({"prompt": "x", "lora": "a"}),
        json!({"prompt": "x", "lora": "nobody"}),
        json!({"prompt": "x", "lora": "llama2"}),
    ];
    let planned =
        over("plan", folder.path(), &rows, &[&MODULES[..], &["--sample-seconds", "0"]].concat());
    assert_exit(&planned, 3);
    let said = text(&planned.stdout);
    assert!(said.contains("2 to run, 1 that would be error rows"), "{said}");
    assert!(said.contains(&format!("in.jsonl:2: {UNKNOWN}")), "{said}");

    let checked = |flags: &[&str]| {
        let flags = [&["check", "-q", "in.jsonl"], flags].concat();
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let unknown = |line: usize, name: &str, help: &str| {
        format!(
            "error[model_not_found]: in.jsonl:{line}: The model `{name}` does not exist.\n\
             help: {help}\n"
        )
    };
    let help = "the adapters are `a`, `b`; the model is `llama2`";
    let (code, said) = checked(&["--model", TINY, "--lora-modules", "a=none", "b=none"]);
    assert!(said.starts_with(&unknown(2, "nobody", help)), "{said}");
    assert_eq!((code, said.matches("error[").count()), (Some(2), 1), "{said}");
    // Nobody has said how the model is called.
    let (_, said) = checked(&["--lora-modules", "a=none", "b=none"]);
    assert!(said.contains(&unknown(3, "llama2", "the adapters are `a`, `b`")), "{said}");
    let (_, said) = checked(&[]);
    assert_eq!(said.matches("there are no adapters; --lora-modules NAME=DIR").count(), 3, "{said}");

    let request = json!({"custom_id": "0", "url": "/v1/completions",
                         "body": {"model": "nobody", "prompt": "x"}});
    fs::write(folder.path().join("in.jsonl"), request.to_string()).unwrap();
    assert_eq!(checked(&[]).0, Some(0), "nobody has said that there are adapters");
    let flags = ["--served-model-name", "served", "--lora-modules", "a=none"];
    let help = "the adapters are `a`; the model is `served`";
    assert!(checked(&flags).1.starts_with(&unknown(1, "nobody", help)));
}

#[test]
fn texts_and_benchmarks_have_adapters_too() {
    let folder = folder();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");
    let input = "{\"text\":\"x\"}\n{\"text\":\"x\",\"lora\":\"nobody\"}\n";
    let mut embed = vllm_batch(folder.path(), &["embed", "-q", "--model", model]);
    let output = finish(&mut embed, input);
    assert_exit(&output, 3);
    let out = rows(text(&output.stdout));
    assert!(out[0]["embedding"].is_array());
    assert_eq!(error(&out[1]), Some(("model_not_found", UNKNOWN)));
    // A file of the batch API decides its task, and its names, by itself.
    let request = |model: &str| json!({"custom_id": model, "url": "/v1/embeddings", "body": {"model": model, "input": "x"}});
    let requests = format!("{}\n{}\n", request("bert"), request("nobody"));
    let mut run = vllm_batch(folder.path(), &["run", "-q", "--model", model]);
    let output = finish(run.args(["--lora-modules", "a=./none"]), &requests);
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains("--lora-modules a: no such folder: ./none"));

    let flags = ["bench", "-qq", "--model", TINY, "--num-prompts", "5", "--num-warmups", "2"];
    let lengths = ["--input-len", "8", "--output-len", "4", "--kv-cache-memory-bytes", "16MiB"];
    let mut bench = vllm_batch(folder.path(), &flags);
    assert_exit(&finish(bench.args(lengths).args(MODULES), ""), 0);
    let dataset = json!({"prompt": "x", "lora": "nobody", "max_tokens": 2}).to_string();
    fs::write(folder.path().join("rows.jsonl"), dataset).unwrap();
    let mut bench = vllm_batch(folder.path(), &flags[..4]);
    let output = finish(bench.args(["--dataset", "rows.jsonl"]).args(MODULES), "");
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains(UNKNOWN), "{}", text(&output.stderr));
}

/// What rows of an output answer.
fn answers(output: &Output) -> Vec<Value> {
    assert_exit(output, 0);
    rows(text(&output.stdout)).iter().map(|row| row["outputs"].clone()).collect()
}

/// Prompts that begin alike, computed with adapters in turn and by the model alone.
fn prompts(of: impl Fn(usize) -> Option<&'static str>) -> Vec<Value> {
    let prompt = |index: usize| format!("the same words before number {}", index / 4);
    let row = |index: usize| match of(index) {
        Some(name) => json!({"id": index, "prompt": prompt(index), "lora": name}),
        None => json!({"id": index, "prompt": prompt(index)}),
    };
    (0..24).map(row).collect()
}

#[test]
fn rows_of_many_adapters_have_the_answers_of_runs_of_each() {
    let folder = folder();
    write_adapter(&folder.path().join("zero"), 0);
    let all = ["--lora-modules", "a=./a", "b=./b", "zero=./zero"];
    let asked = ["--logprobs", "1", "--temperature", "1", "--max-tokens", "8", "--ignore-eos"];
    let run = |input: &[Value], flags: &[&str]| {
        answers(&over("run", folder.path(), input, &[&asked[..], flags].concat()))
    };
    let names = [Some("a"), None, Some("b"), Some("zero")];
    let mixed = run(&prompts(|index| names[index % 4]), &all);
    let alone = run(&prompts(|_| None), &[]);
    let of_each = |name: &'static str| {
        let module = format!("{name}=./{name}");
        run(&prompts(|_| Some(name)), &["--lora-modules", &module])
    };
    let [of_a, of_b, of_zero] = ["a", "b", "zero"].map(of_each);
    for (index, answer) in mixed.iter().enumerate() {
        let expected = [&of_a, &alone, &of_b, &alone][index % 4];
        assert_eq!(*answer, expected[index], "row {index}");
    }
    assert_eq!(of_zero, alone, "what adds nothing changes nothing");
    assert!(of_a != alone && of_b != alone && of_a != of_b);
    for flags in [
        &["--max-loras", "1"][..],
        &["--max-loras", "2", "--max-num-seqs", "3", "--threads", "1"],
        &["--max-num-batched-tokens", "16", "--no-enable-prefix-caching"],
        &["--max-num-seqs", "1", "--max-lora-rank", "64"],
        &["--num-gpu-blocks-override", "9"],
    ] {
        let again = run(&prompts(|index| names[index % 4]), &[&all[..], flags].concat());
        assert_eq!(again, mixed, "{flags:?}");
    }
}

#[test]
fn a_merged_adapter_answers_as_one_beside_the_weights_and_is_another_run() {
    let folder = folder();
    let run = |flags: &[&str]| {
        let flags = [&["--dtype", "float32", "--output-format", "full"], flags].concat();
        completed(folder.path(), &prompts(|_| Some("a")), &flags)
    };
    let module = ["--lora-modules", "a=./a"];
    let merged = [&module[..], &["--lora-merge", "a"]].concat();
    let token_ids = |output: &Output| -> Vec<Value> {
        answers(output).iter().map(|outputs| outputs[0]["token_ids"].clone()).collect()
    };
    // Their last digits differ, and no likeliest token.
    assert_eq!(token_ids(&run(&merged)), token_ids(&run(&module)));
    let out = ["-o", "out.jsonl"];
    assert_exit(&run(&[&merged[..], &out].concat()), 0);
    let other = run(&[&module[..], &out].concat());
    assert_exit(&other, 6);
    assert!(text(&other.stderr).contains("lora_modules: "), "{}", text(&other.stderr));
}

#[test]
fn a_run_says_which_adapters_it_has() {
    let folder = folder();
    let input = prompts(|index| [Some("a"), Some("b")][index % 2]);
    let flags = [&MODULES[..], &["-v", "--stats", "stats.json", "--max-loras", "1"]].concat();
    let output = completed(folder.path(), &input, &flags);
    assert_exit(&output, 0);
    let said = text(&output.stderr);
    assert!(said.contains("\nAdapters: a (rank 4), b (rank 4), 1 in a step\n"), "{said}");
    let stats: Value =
        serde_json::from_slice(&fs::read(folder.path().join("stats.json")).unwrap()).unwrap();
    let lora = &stats["lora"];
    let modules = json!([{"name": "a", "rank": 4}, {"name": "b", "rank": 4}]);
    assert_eq!((&lora["modules"], &lora["max_loras"]), (&modules, &json!(1)));
    let loads = lora["loads"].as_u64().unwrap();
    assert!(loads >= 2, "{lora}");
    let line = format!("\nAdapters: a (rank 4), b (rank 4); loads: {loads}\n");
    assert!(said.contains(&line), "{said}");
    fs::remove_file(folder.path().join("stats.json")).unwrap();
    assert_exit(
        &completed(folder.path(), &[json!({"prompt": "x"})], &["--stats", "stats.json"]),
        0,
    );
    let stats: Value =
        serde_json::from_slice(&fs::read(folder.path().join("stats.json")).unwrap()).unwrap();
    assert_eq!(stats["lora"], Value::Null);
}

#[test]
fn an_adapter_that_is_not_read_refuses_the_run() {
    let folder = folder();
    let input = [json!({"prompt": "x"})];
    let low = [&MODULES[..], &["--max-lora-rank", "3"]].concat();
    let output = completed(folder.path(), &input, &low);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("give --max-lora-rank 4"), "{}", text(&output.stderr));
    fs::remove_file(folder.path().join("b/adapter_model.safetensors")).unwrap();
    let output = completed(folder.path(), &input, &MODULES);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("no adapter_model.safetensors"));
}

/// Phi-4-multimodal in the layout of its own code: answers to images are those of an adapter.
#[test]
fn rows_with_images_that_name_no_adapter_have_that_of_images() {
    let folder = temporary();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    write_adapter_of(&["o_proj"], (2, 32), (&folder.path().join("a"), 1));
    write_adapter_of(&["o_proj"], (2, 32), (&folder.path().join("b"), 2));
    fs::copy(root.join("testdata/media/wide2.png"), folder.path().join("c.png")).unwrap();
    let model = root.join("testdata/golden/phi4mm");
    let answers = |asked: &[Value], flags: &[&str]| {
        let lines: String = asked.iter().map(|row| format!("{row}\n")).collect();
        fs::write(folder.path().join("in.jsonl"), lines).unwrap();
        let model = model.to_str().unwrap();
        let fixed = ["run", "-qq", "--model", model, "-i", "in.jsonl", "--chat"];
        let mut command = vllm_batch(folder.path(), &fixed);
        let command = command.args(["--allowed-local-media-path", "."]).args(SHORT);
        let output = finish(command.args(flags), "");
        let answered = rows(text(&output.stdout));
        answered.iter().map(|row| (row["response"].clone(), error_code(row))).collect::<Vec<_>>()
    };
    let image = json!({"image": "c.png", "prompt": "What is this?"});
    let alone = json!({"prompt": "What is this?"});
    let bare = answers(&[image.clone(), alone.clone()], &[]);
    assert_eq!((&bare[0].1[..], &bare[1].1[..]), ("no_image_input", ""));
    let named = |name: &str| {
        let mut row = image.clone();
        row["lora"] = json!(name);
        row
    };
    let modules = ["--lora-modules", "a=./a", "b=./b"];
    let of_each = answers(&[named("a"), named("b")], &modules);
    assert!(of_each[0] != of_each[1] && of_each.iter().all(|(_, code)| code.is_empty()));
    let default = ["--default-mm-loras", r#"{"image": "./b"}"#, "--lora-modules", "a=./a"];
    let asked = [image.clone(), named("a"), alone, named("image")];
    let found = answers(&asked, &default);
    assert_eq!(found[..2], [of_each[1].clone(), of_each[0].clone()]);
    assert_eq!(found[2..], [bare[1].clone(), of_each[1].clone()]);
    let merged = answers(&[image], &["--lora-modules", "b=./b", "--lora-merge", "b"]);
    assert_eq!(merged[0].1, "");
    let none = answers(&asked[..1], &["--default-mm-loras", r#"{"image": "./none"}"#]);
    assert!(none.is_empty());
}

fn error_code(row: &Value) -> String {
    row["error"]["code"].as_str().unwrap_or_default().to_owned()
}
