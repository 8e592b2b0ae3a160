//! `score` and `rerank` of images through the program: by the vectors of a model that sees, by two
//! towers, and by a language model that reads pairs as a template writes them.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::piped::{change_no_byte, command, continues, errors, fed, kill_after, lines, rows};

/// Its vectors are of chats with images.
const SEES: &str = "testdata/golden/qwen3_vl";
/// Its vectors are of a text or of an image.
const TOWERS: &str = "testdata/golden_vision/clip";

fn run(model: &str, task: &str, input: &str, flags: &[&str]) -> Output {
    let flags = [&["--allowed-local-media-path", "testdata/media"], flags].concat();
    let output = fed(command(task, model, &flags), input);
    assert!(output.status.code().is_some_and(|code| code <= 3), "{}", errors(&output));
    output
}

/// A path that any folder reaches.
fn picture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/media").join(name);
    path.to_str().unwrap().to_owned()
}

fn cosine(a: &Value, b: &Value) -> f64 {
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}

/// The cosines of the first row's vector with the others'.
fn cosines(vectors: &[Value]) -> Vec<f64> {
    let embedding = |row: &Value| row["embedding"].clone();
    let first = embedding(&vectors[0]);
    vectors[1..].iter().map(|row| cosine(&first, &embedding(row))).collect()
}

fn assert_near(scores: &Value, expected: &[f64]) {
    let scores = scores.as_array().unwrap();
    assert_eq!(scores.len(), expected.len());
    for (score, expected) in scores.iter().zip(expected) {
        assert!((score.as_f64().unwrap() - expected).abs() < 1e-5, "{score} {expected}");
    }
}

fn image_url(name: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": picture(name)}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn scores_of_contents_are_the_cosines_of_their_chats() {
    let (first, second) = ("lossy0.webp", "rgb.png");
    let input = rows(&[json!({
        "text_1": {"content": [text("cat")]},
        "text_2": [
            {"content": [image_url(first), text("a")]},
            {"text": "a", "image": picture(second)},
            {"image": [picture(first), picture(second)]},
            "a",
        ],
    })]);
    let scores = lines(&run(SEES, "score", &input, &[]))[0]["scores"].clone();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let chats = rows(&[
        user(json!([text("cat")])),
        user(json!([image_url(first), text("a")])),
        user(json!([image_url(second), text("a")])),
        user(json!([image_url(first), image_url(second)])),
        json!({"text": "a"}),
    ]);
    // Rows of one shape: the text is by itself.
    let vectors = lines(&run(SEES, "embed", &chats, &[]));
    assert_near(&scores, &cosines(&vectors));
    // A batch line, whose answer shows the documents as they came.
    let document = json!([image_url(first), text("a")]);
    let body =
        json!({"query": {"content": [text("cat")]}, "documents": ["a", {"content": document}]});
    let line =
        rows(&[json!({"custom_id": "1", "method": "POST", "url": "/v1/rerank", "body": body})]);
    let answer = &lines(&run(SEES, "run", &line, &[]))[0]["response"]["body"];
    assert_eq!(answer["results"][0]["document"], json!({"multi_modal": document}));
    assert_eq!(answer["results"][0]["relevance_score"], scores[0]);
    assert_eq!(answer["results"][1]["document"], json!({"text": "a"}));
}

#[test]
fn two_towers_compare_a_text_with_images() {
    let input = rows(&[json!({
        "text_1": "a photo of a cat",
        "text_2": ["a dog", {"image": picture("rgb.png")}, {"content": [image_url("lossy0.webp")]}],
    })]);
    let scores = lines(&run(TOWERS, "score", &input, &[]))[0]["scores"].clone();
    let rows_of_each = rows(&[
        json!({"text": "a photo of a cat"}),
        json!({"text": "a dog"}),
        json!({"image": picture("rgb.png")}),
        json!({"image": picture("lossy0.webp")}),
    ]);
    let vectors = lines(&run(TOWERS, "embed", &rows_of_each, &[]));
    assert_near(&scores, &cosines(&vectors));
    // A text among parts is a text, and both at once are no vector.
    let input = rows(&[
        json!({"text_1": {"content": [text("a dog")]}, "text_2": {"image": picture("rgb.png")}}),
        json!({"text_1": "a dog", "text_2": {"image": picture("rgb.png"), "text": "b"}}),
    ]);
    let answers = lines(&run(TOWERS, "score", &input, &[]));
    assert!((answers[0]["score"].as_f64().unwrap() - cosines(&vectors[1..])[0]).abs() < 1e-5);
    assert_eq!(answers[1]["error"]["code"], "unsupported_field");
}

/// The content of a turn, in a template of pairs.
fn of_role(role: &str) -> String {
    format!(r#"messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first"#)
}

#[test]
fn a_pair_with_images_is_read_as_its_template_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let (query, document) = (of_role("query"), of_role("document"));
    let pairs = file("pairs.jinja", &format!("Q:{{{{ {query} }}}} D:{{{{ {document} }}}}"));
    let parts = "{% for p in c %}{% if p.type == 'image' %}<fake_token_around_image><image>\
                 <fake_token_around_image>{% else %}{{ p.text }}{% endif %}{% endfor %}";
    let looped = file(
        "looped.jinja",
        &format!("Q:{{% set c = {query} %}}{parts} D:{{% set c = {document} %}}{parts}"),
    );
    let chat = file("chat.jinja", &format!("Q:a cat D:{{% set c = messages[0].content %}}{parts}"));
    let content = json!([image_url("rgb.png"), text("x")]);
    let input = rows(&[json!({"query": "a cat", "documents": [{"content": content}]})]);
    let scored = |template: &str| {
        let flags = ["--chat-template", template, "--classifier-from-token", "a,b"];
        let answer = lines(&run(SEES, "rerank", &input, &flags)).remove(0);
        (answer["results"][0]["relevance_score"].clone(), answer["usage"]["prompt_tokens"].clone())
    };
    let messages = rows(&[json!({"messages": [{"role": "user", "content": content}]})]);
    let flags = ["--chat-template", &*chat, "--classifier-from-token", "a,b"];
    let class = lines(&run(SEES, "classify", &messages, &flags)).remove(0);
    let expected = (class["probs"][1].clone(), class["usage"]["prompt_tokens"].clone());
    assert_eq!(scored(&looped), expected);
    // An image that is written as a text has nothing behind it.
    let (score, num_tokens) = scored(&pairs);
    assert!(score.is_number());
    let markers = expected.1.as_u64().unwrap() - num_tokens.as_u64().unwrap();
    assert!(markers == 0 || markers == 2, "{markers}");
}

#[test]
fn what_cannot_be_compared_is_an_error_row() {
    let pair = |document: Value| json!({"query": "a", "documents": [document]});
    let image = json!({"image": picture("rgb.png")});
    let input = rows(&[
        pair(json!({"image": picture("none.png")})),
        pair(json!({"video": "a.mp4"})),
        pair(json!({"content": []})),
        pair(json!("a")),
    ]);
    let answers = lines(&run(SEES, "rerank", &input, &[]));
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(
        codes,
        [json!("media_not_found"), json!("invalid_prompt"), json!("empty_prompt"), Value::Null,]
    );
    for (model, flags, code) in [
        ("testdata/golden_scores/bert", &[][..], "no_image_input"),
        ("testdata/golden_embeddings/bert", &[], "no_image_input"),
        (SEES, &["--classifier-from-token", "a,b"], "no_image_input"),
        (SEES, &["--max-tokens-per-doc", "3"], "invalid_parameter"),
        (SEES, &["--limit-mm-per-prompt", r#"{"image": 0}"#], "media_count"),
    ] {
        let answers = lines(&run(model, "rerank", &rows(&[pair(image.clone())]), flags));
        assert_eq!(answers[0]["error"]["code"], code, "{model} {flags:?}: {}", answers[0]);
    }
}

/// Rows of two documents each, which come again and again.
fn many(num_rows: usize) -> String {
    let names = ["rgb.png", "lossy0.webp", "lossy1.webp", "lossy2.webp"];
    let row = |index: usize| {
        let document = json!({"image": picture(names[index % 4]), "text": "x".repeat(index % 3)});
        json!({"id": index, "query": format!("cat {}", index % 2), "documents": [document, "a dog"]})
    };
    rows(&(0..num_rows).map(row).collect::<Vec<_>>())
}

#[test]
fn neighbours_and_kills_change_no_byte_of_scores_of_images() {
    let allowed = ["--allowed-local-media-path", "testdata/media"];
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("pairs.jinja");
    let (query, document) = (of_role("query"), of_role("document"));
    fs::write(&template, format!("Q:{{{{ {query} }}}} D:{{{{ {document} }}}}")).unwrap();
    let template = ["--chat-template", template.to_str().unwrap()];
    let pairs = [&template[..], &["--classifier-from-token", "a,b"]];
    for own in [Vec::new(), pairs.concat()] {
        let command =
            |flags: &[&str]| command("rerank", SEES, &[&allowed[..], &own[..], flags].concat());
        change_no_byte(&command, &many(8));
        continues(&command, &many(8), 4);
    }
}

#[test]
fn a_changed_image_is_compared_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let put = |name: &str, from: &str| fs::copy(picture(from), path(name)).unwrap();
    put("a.png", "rgb.png");
    put("b.png", "rgb.png");
    let row = |name: &str| json!({"query": "cat", "documents": ["a", {"image": path(name)}]});
    let input = rows(&[row("a.png"), row("b.png")]);
    let allowed = path("");
    let journal = path("journal");
    let command = |flags: &[&str]| {
        let allowed = ["--allowed-local-media-path", &allowed];
        command("rerank", SEES, &[&allowed[..], flags].concat())
    };
    kill_after(command(&["--journal", &journal]), &input);
    put("b.png", "rgba.png");
    let continued = fed(command(&["--journal", &journal]), &input);
    let said = errors(&continued);
    assert!(said.contains("Continuing a run"), "{said}");
    assert!(said.contains("Media: 1,"), "{said}");
    let straight = fed(command(&[]), &input);
    assert!(continued.stdout == straight.stdout, "{said}");
    let answers = lines(&straight);
    assert_ne!(answers[0]["results"], answers[1]["results"]);
}
