//! Answers of a model that sees, and what is counted and loaded for them.

use std::fs;

use serde_json::Value;

use super::{SEES, answers, folder, picture, program, rows, seen_rows};

#[test]
fn answers_are_of_the_pictures_and_of_nothing_beside_them() {
    let folder = folder(&seen_rows());
    let data = folder.path().join("data");
    fs::write(data.join("c.png"), picture(37, 9)).unwrap();
    let expected = answers(folder.path(), &[]);
    assert!(expected.iter().all(|row| row["response"].is_string()), "{expected:?}");
    for flags in [
        &["--max-num-seqs", "1", "--threads", "1", "--no-enable-prefix-caching"][..],
        &["--mm-processor-cache-gb", "0", "--max-num-batched-tokens", "9"],
        &["--num-gpu-blocks-override", "9", "--mm-processor-cache-gb", "0"],
    ] {
        assert_eq!(answers(folder.path(), flags), expected, "{flags:?}");
    }
    fs::write(data.join("c.png"), picture(37, 10)).unwrap();
    let changed = answers(folder.path(), &[]);
    for (id, (changed, expected)) in changed.iter().zip(&expected).enumerate() {
        assert_eq!(changed != expected, id % 4 == 3, "row {id}");
    }
}

#[test]
fn images_are_counted_in_summaries_and_plans() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let run = ["run", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2", "-o", "out"];
    let run = [&run[..], &["--no-enable-prefix-caching", "--stats", "stats.json"]].concat();
    let said = program(folder.path(), &run);
    let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
    let images = &serde_json::from_str::<Value>(&stats).unwrap()["images"];
    let num = |key: &str| images[key].as_u64().unwrap();
    // Of three kinds: four rows have one, four have two, four another.
    assert_eq!((num("num_images"), num("num_encoded")), (16, 3), "{images}");
    let seconds = images["encode_time"].as_f64().unwrap();
    let expected = format!("Media: 16, {} tokens; 3 encoded in {seconds:.1} s", num("num_tokens"));
    assert!(said.errors.contains(&expected), "{}", said.errors);
    let plan = ["plan", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2"];
    let said = program(folder.path(), &plan);
    let expected = format!("Tokens of 16 images: {}; mean", num("num_tokens"));
    assert!(said.out.contains(&expected), "{}{}", said.out, said.errors);
}

#[test]
fn a_benchmark_takes_rows_with_images() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let bench = |flags: &[&str]| {
        let fixed = ["bench", "-qq", "--model", SEES, "--output-len", "2"];
        let said = program(folder.path(), &[&fixed[..], flags].concat());
        (said.code, said.out, said.errors)
    };
    let flags =
        ["-i", "data/in.jsonl", "--output-json", "bench.json", "--no-enable-prefix-caching"];
    let (code, out, errors) = bench(&flags);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("\nMedia: 16, ") && out.contains(" tokens; 3 encoded in "), "{out}");
    let text = fs::read_to_string(folder.path().join("bench.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&result["num_requests"], &result["images"]["num_images"]),
        (&16.into(), &16.into())
    );
    let (code, _, errors) = bench(&["-i", "data/a.png", "data/b.png", "--template", "What is it?"]);
    assert_eq!(code, 0, "{errors}");
    // A row that may not be read ends it, unless a flag allows it.
    let line = serde_json::json!({"prompt": "?", "image": "../secret.png"});
    super::write_rows(folder.path(), &[line]);
    let (code, _, errors) = bench(&["-i", "data/in.jsonl"]);
    assert!(code == 2 && errors.contains("media_forbidden"), "{errors}");
    let (code, _, errors) = bench(&["-i", "data/in.jsonl", "--allowed-local-media-path", "."]);
    assert_eq!(code, 0, "{errors}");
    let (code, _, errors) = bench(&["--num-prompts", "1", "--image-column", "photo"]);
    assert!(code == 2 && errors.contains("--image-column: random rows have no images"), "{errors}");
}

#[test]
fn a_model_without_its_tower_reads_texts_alone() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let fixed = ["run", "-q", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "6"];
    let said = program(folder.path(), &[&fixed[..], &["--language-model-only"]].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let codes = rows(&said.out);
    let codes: Vec<_> = codes.iter().map(|row| row["error"]["code"].as_str()).collect();
    assert_eq!(
        codes[..4],
        [Some("no_image_input"), Some("no_image_input"), None, Some("no_image_input")]
    );
    assert!(said.out.contains("without --language-model-only"), "{}", said.out);
}

#[test]
fn no_tower_is_loaded_where_rows_may_have_no_image() {
    let folder = folder(&seen_rows());
    fs::write(folder.path().join("data/c.png"), picture(37, 9)).unwrap();
    let plan = |more: &[&str]| {
        let fixed = ["plan", "--model", SEES, "-i", "data/in.jsonl", "--max-tokens", "2"];
        let said = program(folder.path(), &[&fixed[..], more].concat());
        let weights = said.out.lines().find(|line| line.contains("Weights"));
        weights.unwrap_or_else(|| panic!("{}{}", said.out, said.errors)).to_owned()
    };
    let alone = plan(&["--language-model-only"]);
    assert_eq!(plan(&["--limit-mm-per-prompt", r#"{"image": 0}"#]), alone);
    assert_ne!(plan(&["--limit-mm-per-prompt", r#"{"image": 1}"#]), alone);
}
