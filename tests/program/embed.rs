//! `embed` through the program: rows and batch lines in, vectors out; steps, threads, shards and
//! kills change no byte. The model is a tiny BERT of `testdata/golden_embeddings`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::piped::{
    assert_refused, change_no_byte, continues, errors, fed, golden, is_close, lines, numbers, texts,
};

const MODEL: &str = "testdata/golden_embeddings/bert";

fn command(flags: &[&str]) -> Command {
    super::piped::command("embed", MODEL, flags)
}

fn embed(input: &str, flags: &[&str]) -> Output {
    fed(command(flags), input)
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

#[test]
fn rows_get_vectors_in_their_order() {
    let golden = golden(MODEL);
    let of = |index: usize, name: &str| numbers(&golden["texts"][index][name]);
    let text = |index: usize| golden["texts"][index]["text"].clone();
    let input = format!(
        "{}\n{}\n{}\n",
        json!({"id": 7, "text": text(2), "dimensions": "10 x 20"}),
        json!({"id": 8, "text": [1]}),
        json!({"id": 9, "text": text(3)}),
    );
    let output = embed(&input, &["--pooling-type", "MEAN", "--no-normalize"]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let rows = lines(&output);
    assert!(is_close(&numbers(&rows[0]["embedding"]), &of(2, "mean")));
    assert_eq!((&rows[0]["id"], &rows[0]["dimensions"]), (&json!(7), &json!("10 x 20")));
    let num_tokens = golden["texts"][2]["token_ids"].as_array().unwrap().len();
    assert_eq!(rows[0]["usage"], json!({"prompt_tokens": num_tokens, "total_tokens": num_tokens}));
    assert_eq!((&rows[1]["embedding"], &rows[1]["finish_reason"]), (&Value::Null, &json!("error")));
    assert!(is_close(&numbers(&rows[2]["embedding"]), &of(3, "mean")));
    // The first token's state, normalized, where the files say nothing.
    let output = embed(&input, &["--out-field", "vector"]);
    let vector = numbers(&lines(&output)[0]["vector"]);
    assert!(is_close(&vector, &normalized(&of(2, "cls"))));
}

#[test]
fn a_decoder_gives_the_state_of_the_last_token() {
    let model = "testdata/golden_embeddings/qwen3";
    let golden = golden(model);
    let texts = golden["texts"].as_array().unwrap();
    let input: String =
        texts.iter().map(|row| json!({"text": row["text"]}).to_string() + "\n").collect();
    let output = embed(&input, &["--model", model, "--allow-empty-prompts"]);
    let rows = lines(&output);
    assert_eq!(rows.len(), texts.len(), "{}", errors(&output));
    for (row, text) in rows.iter().zip(texts) {
        let expected = normalized(&numbers(&text["last"]));
        assert!(is_close(&numbers(&row["embedding"]), &expected), "{}", text["text"]);
    }
}

#[test]
fn batch_lines_are_answered_in_openais_form() {
    let line = |id: &str, body: Value| {
        let row = json!({"custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": body});
        row.to_string() + "\n"
    };
    let golden = golden(MODEL);
    let (text, ids) = (&golden["texts"][2]["text"], &golden["texts"][2]["token_ids"]);
    let input = line("two", json!({"input": [text, ids]}))
        + &line("bytes", json!({"input": text, "encoding_format": "base64"}))
        + &line("size", json!({"input": text, "dimensions": 8}))
        + &line("cut", json!({"input": golden["texts"][5]["text"], "truncate_prompt_tokens": 9}))
        + &line("long", json!({"input": "cat ".repeat(400)}));
    let output = embed(&input, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let lines = lines(&output);
    let body = |index: usize| &lines[index]["response"]["body"];
    let data = &body(0)["data"];
    assert_eq!((&data[0]["index"], &data[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(data[0]["embedding"], data[1]["embedding"]);
    assert_eq!((&body(0)["object"], &body(0)["model"]), (&json!("list"), &json!("bert")));
    // 32 values of 4 bytes.
    let bytes = body(1)["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(bytes.len(), 4 * 128usize.div_ceil(3));
    assert_eq!(body(2)["error"]["param"], "dimensions");
    assert_eq!(body(3)["usage"]["prompt_tokens"], 9);
    assert_eq!(lines[4]["response"]["status_code"], 400);
    assert!(body(4)["error"]["message"].as_str().unwrap().contains("the limit is 160"));
}

#[test]
fn steps_threads_and_shards_change_no_byte() {
    change_no_byte(&command, &texts(60));
}

#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    continues(&command, &texts(50), 20);
}

/// Rows and columns of a matrix of NumPy's, and its values.
fn matrix(path: &Path) -> (usize, usize, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let header = std::str::from_utf8(&bytes[10..128]).unwrap();
    let shape = header.split(['(', ')']).nth(1).unwrap();
    let (rows, columns) = shape.split_once(", ").unwrap();
    let values = bytes[128..].chunks_exact(4);
    let values = values.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
    (rows.parse().unwrap(), columns.parse().unwrap(), values)
}

/// Rows with bad ones among them.
fn rows_with_bad_ones() -> String {
    let long = json!({"id": "long", "text": "cat ".repeat(400)}).to_string();
    let all = texts(20);
    let mut lines: Vec<&str> = all.lines().collect();
    lines.insert(13, &long);
    lines.insert(4, "{");
    lines.join("\n") + "\n"
}

#[test]
fn a_matrix_has_a_row_for_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let out = at("v.npy");
    let output = embed(&rows_with_bad_ones(), &["--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let (num_rows, width, values) = matrix(&out);
    assert_eq!((num_rows, width, values.len()), (22, 32, 22 * 32));
    let lines = lines(&embed(&rows_with_bad_ones(), &[]));
    for (vector, line) in values.chunks_exact(width).zip(&lines) {
        match line["embedding"].is_null() {
            true => assert!(vector.iter().all(|value| value.is_nan())),
            false => assert_eq!(vector, numbers(&line["embedding"])),
        }
    }
    // Error rows are in a file beside it, in their order.
    let failed = fs::read_to_string(at("v.npy.errors.jsonl")).unwrap();
    let failed: Vec<Value> =
        failed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(failed, [lines[4].clone(), lines[14].clone()]);
    let meta: Value = serde_json::from_slice(&fs::read(at("v.npy.meta.json")).unwrap()).unwrap();
    assert_eq!((&meta["format"], &meta["output"]["rows"]), (&json!("npy"), &json!(22)));
    assert_eq!(meta["errors"]["rows"], 2);
    // It is complete, and its bytes are what the side file says.
    let again = embed(&rows_with_bad_ones(), &["--out", out.to_str().unwrap()]);
    let said = errors(&again);
    assert!(said.contains("Nothing to do"), "{said}");
}

#[test]
fn vectors_may_be_sparse_or_those_of_tokens() {
    let row = json!({"id": 1, "text": "The cat sits outside."}).to_string() + "\n";
    let sparse = ["--model", "testdata/golden_sparse/bert", "--tokenizer", MODEL, "--sparse"];
    let output = embed(&row, &sparse);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let vector = &lines(&output)[0]["embedding"];
    let indices = numbers(&vector["indices"]);
    assert_eq!(indices.len(), numbers(&vector["values"]).len());
    assert!(indices.len() > 10 && indices.is_sorted());
    for (flags, what) in [
        (["--normalize", "--threads", "1"], "not of sparse vectors"),
        (["--encoding-format", "base64", "--normalize"], "not of sparse vectors"),
        (["--pooling-type", "MEAN", "--normalize"], "made of all tokens"),
        (["--out", "vectors.npy", "--overwrite"], "no rows of a matrix"),
    ] {
        let refused = embed(&row, &[&sparse[..], &flags].concat());
        let said = errors(&refused);
        assert!(refused.status.code() == Some(2) && said.contains(what), "{flags:?}: {said}");
    }
    let tokens = &lines(&embed(&row, &["--pooling-type", "ALL"]))[0];
    let vectors = tokens["embedding"].as_array().unwrap();
    assert_eq!(json!(vectors.len()), tokens["usage"]["prompt_tokens"]);
    // Normalized, as a vector of the first token is.
    let first = &lines(&embed(&row, &["--pooling-type", "CLS"]))[0];
    assert_eq!(vectors[0], first["embedding"]);
}

#[test]
fn a_matrix_has_one_vector_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let line = |body: Value| {
        let url = "/v1/embeddings";
        let row =
            json!({"custom_id": body.to_string(), "method": "POST", "url": url, "body": body});
        row.to_string() + "\n"
    };
    let input = line(json!({"input": ["one"]}))
        + &line(json!({"input": ["one", "two"]}))
        + &line(json!({"input": "one", "encoding_format": "base64"}));
    let out = folder.path().join("v.npy");
    let bad = folder.path().join("bad.jsonl");
    let flags = ["--out", out.to_str().unwrap(), "--errors", bad.to_str().unwrap()];
    let output = embed(&input, &flags);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let (num_rows, width, values) = matrix(&out);
    assert_eq!((num_rows, values[0].is_nan(), values[width].is_nan()), (3, false, true));
    let failed = fs::read_to_string(bad).unwrap();
    assert!(failed.contains("2 texts") && failed.contains("encoding_format"), "{failed}");
}

#[test]
fn shards_of_a_matrix_are_merged_to_what_one_run_writes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (input, read) = (at("rows.jsonl"), |name: &str| fs::read(at(name)).unwrap());
    fs::write(&input, rows_with_bad_ones()).unwrap();
    let run = |out: &str, shard: &[&str]| {
        let output = embed("", &[&["-i", &input, "--out", &at(out)], shard].concat());
        let said = errors(&output);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{said}");
    };
    run("one.npy", &[]);
    let shards = ["0.npy", "1.npy", "2.npy"];
    for (index, out) in shards.iter().enumerate() {
        run(out, &["--shard", &format!("{index}/3")]);
    }
    let merge = |out: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
        command.args(["merge", "--verify", "--out", &at(out)]).args(shards.map(at));
        let output = command.output().unwrap();
        (output.status.code(), errors(&output))
    };
    let (code, said) = merge("all.npy");
    assert_eq!(code, Some(0), "{said}");
    assert!(read("all.npy") == read("one.npy"));
    assert!(read("all.npy.errors.jsonl") == read("one.npy.errors.jsonl"));
    let meta = |name: &str| -> Value { serde_json::from_slice(&read(name)).unwrap() };
    let (one, all) = (meta("one.npy.meta.json"), meta("all.npy.meta.json"));
    assert_eq!((&one["output"], &one["rows"]), (&all["output"], &all["rows"]));
    assert_eq!(one["errors"]["blake3"], all["errors"]["blake3"]);
    assert_eq!(merge("all.jsonl").0, Some(2));
    let mut bytes = read("1.npy");
    bytes[20] ^= 1;
    fs::write(at("1.npy"), bytes).unwrap();
    let (code, said) = merge("again.npy");
    assert!(code == Some(6) && said.contains("the header of its matrix"), "{said}");
}

#[test]
fn a_killed_run_continues_to_the_same_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (out, part) = (at("v.npy"), at("v.npy.part"));
    let flags = ["--out", out.to_str().unwrap()];
    let mut child = command(&flags).spawn().unwrap();
    // The input stays open: the run waits for more when it is killed.
    let mut stdin = child.stdin.take().unwrap();
    let input = rows_with_bad_ones();
    let first: String = input.split_inclusive('\n').take(9).collect();
    stdin.write_all(first.as_bytes()).unwrap();
    let written = || fs::metadata(&part).map_or(0, |found| found.len());
    while written() < 128 + 9 * 32 * 4 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(fs::read(&part).unwrap()[..128].iter().all(|byte| *byte == 0), "it is no matrix yet");
    let continued = embed(&input, &flags);
    let said = errors(&continued);
    assert!(said.contains("Continuing a run with 9 finished rows"), "{said}");
    let other = at("other.npy");
    embed(&input, &["--out", other.to_str().unwrap()]);
    assert!(fs::read(out).unwrap() == fs::read(other).unwrap());
    let errors = ["v.npy.errors.jsonl", "other.npy.errors.jsonl"].map(|name| fs::read(at(name)));
    let [one, other] = errors.map(Result::unwrap);
    assert!(one == other && !one.is_empty());
}

#[test]
fn what_a_model_cannot_do_is_refused_by_name() {
    for (flags, what) in [
        (&["--dimensions", "8"][..], "matryoshka_dimensions"),
        (&["--kv-cache-memory-bytes", "1GiB"], "without a KV cache"),
        (&["--prompt-name", "query"], "no such prompt"),
        (&["--device", "cuda:7"], "the GPU cannot be used"),
        (&["--out", "vectors.csv"], "not as CSV"),
        (&["--out", "vectors.npy", "--encoding-format", "base64"], "asks for base64"),
        (&["--out", "vectors.npy", "--output-format", "openai"], "asks for lines"),
        (&["--out", "vectors.npy", "--out-field", "v"], "no --out-field"),
        (&["--out", "vectors.npy.gz"], "a NumPy array"),
        (&["--output-format", "full"], "--output-format full"),
        (&["--truncate-prompt-tokens", "0"], "at least 1"),
        (&["--model", "testdata/golden/opt350"], "another width than the model's"),
    ] {
        assert_refused(&embed("{\"text\":\"a\"}\n", flags), flags, what);
    }
}

/// Vectors of sentence-transformers, of which it would keep the first so many.
#[test]
fn vectors_are_cut_as_the_files_of_the_model_say() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules = root.join("testdata/golden_modules/weightedmean");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(root.join(MODEL).join(name), at(name)).unwrap();
    }
    for name in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::copy(modules.join(name), at(name)).unwrap();
    }
    let golden = super::piped::golden("testdata/golden_modules/weightedmean");
    let (text, vector) = (&golden["texts"][2]["text"], numbers(&golden["texts"][2]["vector"]));
    let input = json!({"text": text}).to_string() + "\n";
    let model = folder.path().to_str().unwrap();
    let cut = |flags: &[&str]| {
        let output = embed(&input, &[&["--model", model], flags].concat());
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        numbers(&lines(&output)[0]["embedding"])
    };
    for (size, wanted) in [("8", &vector[..8]), ("null", &vector), ("1000", &vector)] {
        let config = format!(r#"{{"truncate_dim": {size}}}"#);
        fs::write(at("config_sentence_transformers.json"), config).unwrap();
        assert!(is_close(&cut(&[]), wanted), "{size}");
    }
    fs::write(at("config_sentence_transformers.json"), r#"{"truncate_dim": 8}"#).unwrap();
    assert!(is_close(&cut(&["--normalize"]), &normalized(&vector[..8])));
    let out = at("v.npy");
    embed(&input, &["--model", model, "--out", out.to_str().unwrap()]);
    assert_eq!(matrix(&out).1, 8);
    fs::write(at("config_sentence_transformers.json"), r#"{"max_active_dims": 8}"#).unwrap();
    let output = embed(&input, &["--model", model]);
    assert_refused(&output, &["max_active_dims"], "`max_active_dims` is not supported");
}

/// Models of `testdata/golden_sparse` have none of their own.
fn tokenizer_of(model: &str) -> &'static [&'static str] {
    if model.contains("golden_sparse") { &["--tokenizer", MODEL] } else { &[] }
}

#[test]
fn a_language_model_is_told_apart_from_one_that_was_trained_for_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The same chat model with the files of sentence-transformers.
    let modules = root.join("testdata/golden_modules/weightedmean");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(root.join("testdata/demo").join(name), folder.path().join(name)).unwrap();
    }
    for name in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(modules.join(name), path).unwrap();
    }
    let trained = folder.path().to_str().unwrap();
    let text = json!({"text": "a"}).to_string() + "\n";
    let pair = json!({"text_1": "a", "text_2": "b"}).to_string() + "\n";
    let ranking = json!({"query": "a", "documents": ["b"]}).to_string() + "\n";
    for (name, model, input, class) in [
        ("embed", "testdata/demo", &text, Some("LlamaForCausalLM")),
        ("score", "testdata/demo", &pair, Some("LlamaForCausalLM")),
        ("rerank", "testdata/demo", &ranking, Some("LlamaForCausalLM")),
        ("embed", "testdata/gguf/llama.gguf", &text, Some("LlamaForCausalLM")),
        ("embed", "testdata/golden_sparse/bert", &text, Some("BertForMaskedLM")),
        ("embed", trained, &text, None),
        ("embed", MODEL, &text, None),
        ("embed", "testdata/golden_embeddings/qwen3", &text, None),
        ("embed", "testdata/golden_embeddings/qwen2_bidirectional", &text, None),
        ("score", "testdata/golden_scores/bert", &pair, None),
    ] {
        let output = fed(super::piped::command(name, model, tokenizer_of(model)), input);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(0), "{name} {model}: {said}");
        let warning = "none of its files says that it was trained for vectors";
        assert_eq!(said.matches(warning).count(), usize::from(class.is_some()), "{model}: {said}");
        assert!(class.is_none_or(|class| said.contains(&format!("({class})"))), "{said}");
    }
    let model = "testdata/golden_sparse/bert";
    let flags = [tokenizer_of(model), &["--sparse"]].concat();
    let sparse = fed(super::piped::command("embed", model, &flags), &text);
    assert!(!errors(&sparse).contains("trained for vectors"), "{}", errors(&sparse));
}
