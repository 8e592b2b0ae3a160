//! Fields inside fields: `{{a.b[0].c}}`, `--prompt-column a.b`, `--expected-column a.b`.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::cli::{DEMO, TINY, assert_exit, finish, over, rows, temporary, text, vllm_batch};

const SHORT: [&str; 4] = ["--temperature", "0", "--max-tokens", "3"];

fn answers(folder: &Path, row: &str, flags: &[&str]) -> Vec<String> {
    let output = over(folder, row, TINY, &[&SHORT[..], flags].concat());
    assert_exit(&output, 0);
    let rows = rows(text(&output.stdout));
    rows.iter().map(|row| row["response"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn paths_give_the_prompts_that_their_values_give() {
    let folder = temporary();
    let path = folder.path();
    let dpo =
        r#"{"input":{"messages":[{"role":"user","content":"hi"},{"role":"user","content":"x"}]}}"#;
    let chat = r#"{"messages":[{"role":"user","content":"hi"},{"role":"user","content":"x"}]}"#;
    let prompt = |text: &str| answers(path, &format!("{{\"prompt\":\"{text}\"}}"), &[]);
    let column = |column: &str| answers(path, dpo, &["--prompt-column", column]);
    let template = |template: &str| answers(path, dpo, &["--template", template]);
    assert_eq!(column("input.messages"), answers(path, chat, &[]));
    assert_eq!(column("input.messages[-1].content"), prompt("x"));
    assert_eq!(
        template("{{input.messages[0].content}}, {{ input.messages[1].role }}"),
        prompt("hi, user")
    );
    let both = r#"{"a.b":"literal","a":{"b":"inner"}}"#;
    assert_eq!(answers(path, both, &["--prompt-column", "a.b"]), prompt("literal"));
    assert_eq!(answers(path, both, &["--template", "{{a.b}}"]), prompt("literal"));
    // The nested columns of Parquet files are such values.
    let flags = [&SHORT[..], &["-o", "out.parquet"]].concat();
    assert_exit(&over(path, "{\"prompt\":\"hi\"}", TINY, &flags), 0);
    let flags =
        ["run", "-m", TINY, "-i", "out.parquet", "--template", "{{usage.completion_tokens}}"];
    let output = finish(vllm_batch(path, &flags).args(SHORT), "");
    assert_exit(&output, 0);
    assert_eq!(rows(text(&output.stdout))[0]["response"], prompt("3")[0]);
}

#[test]
fn the_part_that_a_row_lacks_is_named_in_its_error() {
    let folder = temporary();
    let rows_in =
        "{\"a\":{\"b\":[{\"c\":\"x\"}]}}\n{\"a\":{\"b\":[]}}\n{\"a\":{\"d\":1}}\n{\"a\":7}\n";
    let of = |flags: &[&str], code: &str| {
        let output = over(folder.path(), rows_in, TINY, &[&SHORT[..], flags].concat());
        assert_exit(&output, 3);
        let rows = rows(text(&output.stdout));
        assert!(rows[0]["error"].is_null());
        let message = |row: &serde_json::Value| {
            assert_eq!(row["error"]["code"], code);
            row["error"]["message"].as_str().unwrap().to_owned()
        };
        rows[1..].iter().map(message).collect::<Vec<_>>()
    };
    let parts = [
        "`a.b` has 0 items, and no [0]",
        "`a` has no field `b`",
        "`a` is a number, which has no fields",
    ];
    for (flag, code) in
        [("--template={{a.b[0].c}}", "template"), ("--prompt-column=a.b[0].c", "row_shape")]
    {
        for (message, part) in of(&[flag], code).iter().zip(parts) {
            assert!(message.ends_with(part), "{message}");
        }
    }
}

#[test]
fn what_no_row_can_have_is_refused_before_the_model_is_loaded() {
    let folder = temporary();
    let path = folder.path();
    fs::write(path.join("in.csv"), "meta,text\n\"{\"\"a\"\":1}\",x\n").unwrap();
    fs::write(path.join("in.jsonl"), "{\"text\":\"x\",\"a\":{\"b\":1}}\n").unwrap();
    let refused = |input: &str, flags: &[&str]| -> Output {
        let output = finish(vllm_batch(path, &["run", "-m", TINY, "-i", input]).args(flags), "");
        assert_exit(&output, 2);
        assert!(!text(&output.stderr).contains("Loaded"));
        output
    };
    for (input, flag, wanted) in [
        ("in.csv", "--prompt-column=meta.a", "cells of a table are text, so 'meta' has no parts"),
        ("in.csv", "--template={{meta.a}}", "cells of a table are text, so 'meta' has no parts"),
        (
            "in.csv",
            "--template={{text|upper}}",
            "templates have no filters: '{{text|upper}}'\nhelp: write {{text}}",
        ),
        (
            "in.jsonl",
            "--template={{ text | trim }}",
            "templates have no filters: '{{text | trim}}'\nhelp: write {{text}}",
        ),
        (
            "in.jsonl",
            "--template={{text.upper()}}",
            "no functions or operators: '{{text.upper()}}'\nhelp: write {{text}}",
        ),
        (
            "in.jsonl",
            "--template={{text + a}}",
            "no functions or operators: '{{text + a}}'\nhelp: write {{text}}",
        ),
        ("in.jsonl", "--template={{a.c}}", "has no field 'a.c'\nhelp: `a` has no field `c`"),
        ("in.jsonl", "--prompt-column=a.c", "has no field 'a.c'\nhelp: `a` has no field `c`"),
        ("in.jsonl", "--prompt-column=b.c", "has no field 'b.c'\nhelp: it has the fields text, a"),
    ] {
        let output = refused(input, &[flag]);
        let said = text(&output.stderr);
        assert!(said.contains(wanted), "{flag}: {said}");
    }
    // A column of that name is one.
    fs::write(path.join("in.csv"), "a|b,c.d\nx,y\n").unwrap();
    let flags =
        ["run", "-m", TINY, "-i", "in.csv", "--template", "{{a|b}} {{c.d}}", "--max-tokens", "1"];
    assert_exit(&finish(&mut vllm_batch(path, &flags), ""), 0);
}

#[test]
fn what_is_expected_and_what_is_compared_may_be_inside_fields() {
    let folder = temporary();
    let path = folder.path();
    let lines: String = [
        "{\"prompt\":\"2+3=\",\"gold\":{\"answers\":[\"5\"]}}\n",
        "{\"prompt\":\"2+2=\",\"gold\":{}}\n",
    ]
    .concat();
    fs::write(path.join("in.jsonl"), lines).unwrap();
    let flags = ["eval", "-m", DEMO, "-i", "in.jsonl", "-o", "out.jsonl", "--temperature", "0"];
    let expected = ["--scorer", "exact", "--expected-column", "gold.answers[0]"];
    let output = finish(vllm_batch(path, &flags).args(expected), "");
    assert_exit(&output, 3);
    let judged = rows(&fs::read_to_string(path.join("out.jsonl")).unwrap());
    assert_eq!(judged[0]["passed"], true);
    let message = judged[1]["error"]["message"].as_str().unwrap();
    assert!(message.contains("`gold` has no field `answers`"), "{message}");
    fs::write(path.join("a.jsonl"), "{\"id\":1,\"r\":{\"text\":\"x\"}}\n").unwrap();
    fs::write(path.join("b.jsonl"), "{\"id\":1,\"r\":{\"text\":\"y\"}}\n").unwrap();
    let diff = |other: &str| {
        finish(&mut vllm_batch(path, &["diff", "a.jsonl", other, "--field", "r.text"]), "")
    };
    assert_exit(&diff("a.jsonl"), 0);
    assert_exit(&diff("b.jsonl"), 100);
}
