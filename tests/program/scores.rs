//! `score` and `rerank` through the program, by a bi-encoder and by a cross-encoder: rows and batch
//! lines in, scores out; steps, threads, shards and kills change no byte.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::piped::{
    assert_refused, change_no_byte, command, continues, errors, fed, golden, lines, rows,
};

/// Its vectors are compared.
const BI: &str = "testdata/golden_embeddings/bert";
/// It reads both texts at once.
const CROSS: &str = "testdata/golden_scores/bert";
/// It reads both texts too, and its last token counts.
const CAUSAL: &str = "testdata/golden_classifiers/qwen3";
/// It says which word comes next.
const WORDS: &str = "testdata/golden_classifiers/qwen3_words";

fn run(name: &str, model: &str, input: &str, flags: &[&str]) -> Output {
    fed(command(name, model, flags), input)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The cosine of two vectors as `embed` gives them.
fn cosine(a: &Value, b: &Value) -> f64 {
    let numbers = |value: &Value| value.as_array().unwrap().iter().map(number).collect::<Vec<_>>();
    let (a, b) = (numbers(a), numbers(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

const TEXTS: [&str; 3] = ["The cat sits outside.", "A man is playing guitar", "late rows"];

/// Rows of lists of many lengths, whose texts come again and again.
fn many(num_rows: usize) -> String {
    let row = |index: usize| {
        let documents: Vec<String> =
            (0..1 + index % 4).map(|d| format!("document {} of many", (index + d) % 7)).collect();
        json!({"id": index, "text_1": TEXTS[index % 3], "text_2": documents})
    };
    rows(&(0..num_rows).map(row).collect::<Vec<_>>())
}

#[test]
fn scores_are_the_cosines_of_vectors() {
    let [a, b, c] = TEXTS;
    let texts = rows(&TEXTS.map(|text| json!({"text": text})));
    let vectors = lines(&run("embed", BI, &texts, &[]));
    let expected = |i: usize, j: usize| cosine(&vectors[i]["embedding"], &vectors[j]["embedding"]);
    let input = rows(&[
        json!({"id": 1, "text_1": a, "text_2": b, "scores": "mine"}),
        json!({"id": 2, "text_1": a, "text_2": [b, c, a]}),
        json!({"id": 3, "data_1": [a, b], "data_2": [b, c]}),
        json!({"id": 4, "text_1": [a, b], "text_2": [c]}),
    ]);
    let output = run("score", BI, &input, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let rows = lines(&output);
    let close = |value: &Value, expected: f64| assert!((number(value) - expected).abs() < 1e-6);
    close(&rows[0]["score"], expected(0, 1));
    assert_eq!((&rows[0]["id"], &rows[0]["input_scores"]), (&json!(1), &json!("mine")));
    assert!(rows[0]["usage"]["prompt_tokens"].as_u64().unwrap() > 4);
    close(&rows[1]["scores"][0], expected(0, 1));
    close(&rows[1]["scores"][1], expected(0, 2));
    close(&rows[1]["scores"][2], 1.0);
    assert_eq!(rows[1]["scores"].as_array().unwrap().len(), 3);
    close(&rows[2]["scores"][1], expected(1, 2));
    assert_eq!(rows[3]["error"]["code"], "invalid_prompt");
    assert!(rows[3]["error"]["message"].as_str().unwrap().contains("1:1, 1:N or N:N"));
}

#[test]
fn documents_come_in_the_order_of_their_scores() {
    let [a, b, c] = TEXTS;
    let input = rows(&[
        json!({"id": 1, "query": a, "documents": [b, a, c, a]}),
        json!({"id": 2, "query": a, "documents": [b, a, c], "top_n": 1}),
        json!({"id": 3, "query": a, "documents": [b, a, c], "top_n": 0}),
    ]);
    let output = run("rerank", BI, &input, &["--top-n", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let rows = lines(&output);
    let results = rows[0]["results"].as_array().unwrap();
    // Equal documents stay in their order.
    assert_eq!((&results[0]["index"], &results[1]["index"]), (&json!(1), &json!(3)));
    assert_eq!(results[0]["relevance_score"], results[1]["relevance_score"]);
    let scores: Vec<f64> = results.iter().map(|r| number(&r["relevance_score"])).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let lengths = rows.iter().map(|row| row["results"].as_array().unwrap().len());
    assert_eq!(lengths.collect::<Vec<_>>(), [3, 1, 3]);
}

#[test]
fn a_cross_encoder_reads_both_texts() {
    let golden = golden(CROSS);
    let pairs = golden["pairs"].as_array().unwrap();
    let input: Vec<Value> = pairs
        .iter()
        .map(|pair| json!({"text_1": pair["texts"][0], "text_2": pair["texts"][1]}))
        .collect();
    let whole = ["--truncate-prompt-tokens", "-1", "--allow-empty-prompts"];
    let output = run("score", CROSS, &rows(&input), &whole);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    for (row, pair) in lines(&output).iter().zip(pairs) {
        let off = (number(&row["score"]) - number(&pair["score"])).abs();
        assert!(off < 1e-6, "{}: off by {off}", pair["texts"]);
        assert_eq!(row["usage"]["prompt_tokens"], pair["token_ids"].as_array().unwrap().len());
    }
    let flags = ["--truncate-prompt-tokens", "-1", "--no-activation"];
    let logits = lines(&run("score", CROSS, &rows(&input), &flags));
    assert!((number(&logits[0]["score"]) - number(&pairs[0]["logit"])).abs() < 1e-5);
}

#[test]
fn a_template_writes_both_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.jinja");
    let template = "{{ instruction }} {{ messages[0].content }} [SEP] {{ messages[1].content }}\
                    {% if add_generation_prompt %}late{% endif %}";
    fs::write(&path, template).unwrap();
    let flags = ["--chat-template", path.to_str().unwrap()];
    let kwargs = ["--chat-template-kwargs", r#"{"instruction": "guitar"}"#];
    let flags = [&flags[..], &kwargs].concat();
    let [a, b, _] = TEXTS;
    let input = rows(&[
        json!({"text_1": a, "text_2": b}),
        json!({"text_1": a, "text_2": b, "instruction": "cat"}),
        json!({"text_1": a, "text_2": "rows [SEP] rows"}),
    ]);
    let output = run("score", CROSS, &input, &flags);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let scores = lines(&output);
    let texts =
        rows(&["guitar", "cat"].map(|word| json!({"text": format!("{word} {a} [SEP] {b}")})));
    let classes = lines(&run("classify", CROSS, &texts, &[]));
    for (score, class) in scores.iter().zip(&classes) {
        assert_eq!((&score["score"], &score["usage"]), (&class["probs"][0], &class["usage"]));
    }
    // A decoder with a classifier reads its last token.
    let tokenizer = ["--tokenizer", BI];
    let by_template = lines(&run("score", CAUSAL, &input, &[&flags[..], &tokenizer].concat()));
    let of_texts = lines(&run("reward", CAUSAL, &texts, &tokenizer));
    for (score, reward) in by_template.iter().zip(&of_texts) {
        assert_eq!((&score["score"], &score["usage"]), (&reward["score"], &reward["usage"]));
    }
    assert_eq!((by_template.len(), of_texts.len()), (3, 2));
    // What users write is no control token.
    assert!(scores[2]["usage"]["prompt_tokens"].as_u64() > Some(12));
    let line = |body: Value| json!({"custom_id": "a", "url": "/v1/score", "body": body});
    let body = json!({"text_1": a, "text_2": b, "instruction": "cat"});
    let output = run("score", CROSS, &rows(&[line(body.clone())]), &flags);
    assert_eq!(lines(&output)[0]["response"]["body"]["data"][0]["score"], scores[1]["score"]);
    let refused = run("score", CROSS, &rows(&[line(body)]), &[]);
    assert_eq!(lines(&refused)[0]["response"]["body"]["error"]["code"], "unsupported_field");
    let cut = [&flags[..], &["--max-tokens-per-doc", "3"]].concat();
    assert!(errors(&run("score", CROSS, &input, &cut)).contains("--max-tokens-per-doc: the texts"));
    assert!(errors(&run("score", BI, &input, &flags)).contains("--chat-template: the model has"));
}

#[test]
fn a_language_model_ranks_by_what_it_would_say() {
    let [a, b, c] = TEXTS;
    let flags = ["--tokenizer", BI, "--classifier-from-token", "no,nice"];
    let with = |more: &[&'static str]| [&flags[..], more].concat();
    let input = rows(&[json!({"query": a, "documents": [b, c]})]);
    let output = run("rerank", WORDS, &input, &flags);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(errors(&output).contains("--chat-template FILE"), "{}", errors(&output));
    let row = &lines(&output)[0];
    let texts = rows(&[b, c].map(|text| json!({"text": format!("{a}{text}")})));
    let rewards = lines(&run("reward", WORDS, &texts, &flags));
    for result in row["results"].as_array().unwrap() {
        let reward = &rewards[result["index"].as_u64().unwrap() as usize];
        assert_eq!(result["relevance_score"], reward["score"]);
    }
    let of_both = rewards.iter().map(|row| row["usage"]["prompt_tokens"].as_u64().unwrap()).sum();
    assert_eq!(row["usage"]["prompt_tokens"].as_u64(), Some(of_both));
    // The same numbers as classes of a text.
    for (class, reward) in lines(&run("classify", WORDS, &texts, &flags)).iter().zip(&rewards) {
        let [no, nice] = [0, 1].map(|index| number(&class["probs"][index]));
        assert!((no + nice - 1.0).abs() < 1e-6 && (nice - number(&reward["score"])).abs() < 1e-6);
        assert_eq!(class["label"], if nice > no { "nice" } else { "no" });
    }
    let template = "docs/templates/bge_reranker_v2_gemma.jinja";
    let flags = with(&["--chat-template", template, "--no-activation"]);
    let pair = rows(&[json!({"text_1": a, "text_2": b, "instruction": "so?"})]);
    let score = run("score", WORDS, &pair, &flags);
    assert!(!errors(&score).contains("--chat-template FILE"), "{}", errors(&score));
    let text = rows(&[json!({"text": format!("A: {a}\nB: {b}\nso?")})]);
    let reward = run("reward", WORDS, &text, &with(&["--no-activation"]));
    assert_eq!(lines(&score)[0]["score"], lines(&reward)[0]["score"]);
}

#[test]
fn a_reranker_of_sentence_transformers_says_all_of_it_itself() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = |from: &str, file: &str| {
        fs::copy(root.join(from).join(file), folder.path().join(file)).unwrap();
    };
    copy(WORDS, "config.json");
    copy(WORDS, "model.safetensors");
    copy(BI, "tokenizer.json");
    let vocabulary: Value =
        serde_json::from_str(&fs::read_to_string(root.join(BI).join("tokenizer.json")).unwrap())
            .unwrap();
    let id = |token: &str| &vocabulary["model"]["vocab"][token];
    let write = |file: &str, text: String| fs::write(folder.path().join(file), text).unwrap();
    let list = json!([
        {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore"},
    ]);
    write("modules.json", list.to_string());
    fs::create_dir(folder.path().join("1_LogitScore")).unwrap();
    let ids = json!({"true_token_id": id("nice"), "false_token_id": id("no")});
    write("1_LogitScore/config.json", ids.to_string());
    let template = fs::read_to_string(root.join("docs/templates/bge_reranker_v2_gemma.jinja"));
    write("chat_template.jinja", template.unwrap());
    let identity = json!({"activation_fn": "torch.nn.modules.linear.Identity"});
    write("config_sentence_transformers.json", identity.to_string());
    let model = folder.path().to_str().unwrap();
    let [a, b, c] = TEXTS;
    let input = rows(&[json!({"text_1": a, "text_2": [b, c]})]);
    let output = run("score", model, &input, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let template = "docs/templates/bge_reranker_v2_gemma.jinja";
    let flags = ["--tokenizer", BI, "--classifier-from-token", "no,nice", "--no-activation"];
    let flags = [&flags[..], &["--chat-template", template]].concat();
    assert_eq!(
        lines(&output)[0]["scores"],
        lines(&run("score", WORDS, &input, &flags))[0]["scores"]
    );
    // A template for chats alone.
    write("chat_template.jinja", "{{ messages[-1].content }}".to_owned());
    let output = run("score", model, &input, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("`document`"), "{}", errors(&output));
}

#[test]
fn a_prompt_stands_before_the_first_text_of_a_pair() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(CROSS)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let prompts = r#"{"prompts": {"late": "late ", "cat": "cat "}, "default_prompt_name": "late"}"#;
    fs::write(folder.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let model = folder.path().to_str().unwrap();
    let [a, b, _] = TEXTS;
    let pair = |first: String| rows(&[json!({"text_1": first, "text_2": b})]);
    let score = |model, prompt: &str, flags: &[&str]| {
        let output = run("score", model, &pair(format!("{prompt}{a}")), flags);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        lines(&output)[0]["score"].clone()
    };
    assert_eq!(score(model, "", &[]), score(CROSS, "late ", &[]));
    assert_eq!(score(model, "", &["--prompt-name", "cat"]), score(CROSS, "cat ", &[]));
    assert_eq!(score(model, "", &["--prompt-name", ""]), score(CROSS, "", &[]));
    assert_ne!(score(CROSS, "late ", &[]), score(CROSS, "", &[]));
    // A template gets it as a turn.
    let template = ["--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}"];
    assert_eq!(score(model, "", &template), score(CROSS, "late ", &template));
    let class = lines(&run("classify", model, &pair(a.to_owned()), &[]));
    assert_eq!(class[0]["probs"][0], score(model, "", &[]));
}

#[test]
fn a_pair_has_one_class() {
    let [a, b, _] = TEXTS;
    let pair = json!({"text_1": a, "text_2": b});
    let score = lines(&run("score", CROSS, &rows(std::slice::from_ref(&pair)), &[]));
    let input = rows(&[pair, json!({"text_1": a, "text_2": [b]}), json!({"text": a})]);
    let output = run("classify", CROSS, &input, &[]);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let rows = lines(&output);
    assert_eq!(rows[0]["probs"][0], score[0]["score"]);
    assert_eq!((&rows[0]["label"], &rows[0]["usage"]), (&json!("LABEL_0"), &score[0]["usage"]));
    assert_eq!(rows[1]["error"]["code"], "invalid_prompt");
    assert_eq!(rows[2]["error"]["code"], "row_shape");
}

#[test]
fn batch_lines_are_answered_in_vllms_form() {
    let [a, b, c] = TEXTS;
    let line = |id: &str, url: &str, body: Value| {
        let (method, url) = ("POST", url.to_owned());
        json!({"custom_id": id, "method": method, "url": url, "body": body})
    };
    let input = rows(&[
        line("pair", "/v1/score", json!({"model": "m", "text_1": a, "text_2": [b, c]})),
        line("rank", "/v1/rerank", json!({"query": a, "documents": [b, a, c], "top_n": 2})),
        line("items", "/score", json!({"queries": a, "items": [a]})),
        line("again", "/v2/rerank", json!({"query": a, "documents": [b]})),
        line("other", "/v1/embeddings", json!({"input": a})),
        line("none", "/v1/score", json!({"text_1": a})),
    ]);
    for name in ["score", "rerank"] {
        let output = run(name, BI, &input, &[]);
        assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
        let lines = lines(&output);
        let body = |index: usize| &lines[index]["response"]["body"];
        assert_eq!((&body(0)["object"], &body(0)["model"]), (&json!("list"), &json!("bert")));
        let data = body(0)["data"].as_array().unwrap();
        assert_eq!((data.len(), &data[1]["index"]), (2, &json!(1)));
        assert_eq!(data[0]["object"], "score");
        let results = body(1)["results"].as_array().unwrap();
        assert_eq!((results.len(), &results[0]["index"]), (2, &json!(1)));
        assert_eq!(results[0]["document"], json!({"text": a}));
        assert!((number(&body(2)["data"][0]["score"]) - 1.0).abs() < 1e-6);
        assert!(body(3)["usage"]["total_tokens"].as_u64().unwrap() > 4);
        assert_eq!(lines[4]["response"]["status_code"], 404);
        assert_eq!(body(5)["error"]["code"], "invalid_prompt");
    }
}

#[test]
fn steps_threads_and_shards_change_no_byte() {
    for model in [BI, CROSS, CAUSAL] {
        change_no_byte(&|flags| of_folder(model, flags), &many(40));
    }
}

#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    for model in [BI, CAUSAL] {
        continues(&|flags| of_folder(model, flags), &many(50), 20);
    }
}

/// `score` by a golden model, which has a tokenizer or takes that of another.
fn of_folder(model: &str, flags: &[&str]) -> Command {
    command(
        "score",
        model,
        &[&["--tokenizer", if model == CAUSAL { BI } else { model }], flags].concat(),
    )
}

#[test]
fn documents_share_what_stands_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    let template = "{% for m in messages %}the cat sits outside and a man is playing guitar: \
                    {{ m.content }} {% endfor %}";
    let flags = ["--tokenizer", BI, "--chat-template", template, "--block-size", "16"];
    let documents: Vec<String> = (0..20).map(|index| format!("row {index}")).collect();
    let query = "rows of one file are compared with rows of another";
    let rerank = |documents: &[String], more: &[&str]| {
        let input = rows(&[json!({"query": query, "documents": documents})]);
        let flags = [&flags[..], more, &["--stats", stats.to_str().unwrap()]].concat();
        let output = run("rerank", CAUSAL, &input, &flags);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        let stats: Value = serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
        let tokens =
            ["input", "computed", "cached"].map(|of| stats["tokens"][of].as_u64().unwrap());
        (output.stdout, tokens, stats["engine"]["kv_cache_tokens"].as_u64().unwrap())
    };
    let (answer, [input, computed, cached], cache) = rerank(&documents, &[]);
    assert!(cache > 0 && computed + cached == input, "{computed} and {cached} of {input}");
    let (_, [one, ..], _) = rerank(&documents[..1], &[]);
    // The blocks that all begin with: all but the document's own words are the same.
    let shared = (one - 3) / 16 * 16;
    assert!(shared >= 32 && cached == 19 * shared, "{cached} cached of {input}, {one} of one");
    let off = ["--no-enable-prefix-caching"];
    let (without, [_, computed, cached], _) = rerank(&documents, &off);
    assert!(without == answer && (computed, cached) == (input, 0));
    // Room for one pair.
    let (tight, _, cache) = rerank(&documents, &["--num-gpu-blocks-override", "6"]);
    assert!(tight == answer && cache == 96, "{cache}");
}

#[test]
fn what_cannot_be_scored_is_refused_by_name() {
    let pair = "{\"text_1\":\"a\",\"text_2\":\"b\"}\n";
    for (model, flags, what) in [
        (BI, &["--out", "scores.csv"][..], "not as CSV"),
        (BI, &["--template", "{{a}}"], "--template"),
        (BI, &["--prompt-column", "a"], "--prompt-column"),
        (BI, &["--chat"], "--chat"),
        (BI, &["--system-prompt", "a"], "--system-prompt"),
        (BI, &["--encoding-format", "base64"], "--encoding-format"),
        (BI, &["--no-activation"], "--no-activation"),
        (BI, &["--document-prompt-name", "passage"], "no such prompt"),
        (CROSS, &["--normalize"], "--normalize"),
        (CROSS, &["--no-enable-prefix-caching"], "without a KV cache"),
        (CROSS, &["--prompt-name", "query"], "--prompt-name"),
        (WORDS, &["--classifier-from-token", "no,nice", "--max-tokens-per-doc", "3"], "as one"),
        (WORDS, &["--classifier-from-token", "no,nice,cat"], "`classify` runs it"),
        (WORDS, &["--classifier-from-token", "no,no"], "named twice"),
        (WORDS, &["--classifier-from-token", "no,\u{9e7f}"], "there is none"),
        (BI, &["--classifier-from-token", "no,nice"], "no language model"),
        ("testdata/golden_classifiers/bert", &[], "`classify` runs it"),
    ] {
        let flags = [&["--tokenizer", BI], flags].concat();
        assert_refused(&run("score", model, pair, &flags), &flags, what);
    }
    let output = run("rerank", BI, pair, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("no `query` and `documents`"), "{}", errors(&output));
}
