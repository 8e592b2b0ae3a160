//! The protocol of `docs/PROTOCOL.md`: rows through pipes, as they finish, matched by their ids;
//! and the line that says that the model is loaded.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::cli::{DEMO, assert_exit, demo, finish, names, rows, temporary, text, vllm_batch};

/// A row that takes hundreds of steps, then many that take one.
fn long_then_short() -> String {
    let mut input =
        String::from("{\"id\":\"long\",\"prompt\":\"a\",\"max_tokens\":400,\"ignore_eos\":true}\n");
    for index in 0..40 {
        input += &format!("{{\"prompt\":\"{index}+1=\",\"id\":{index}.50,\"max_tokens\":1}}\n");
    }
    input
}

#[test]
fn unordered_rows_have_the_bytes_of_ordered_ones_and_do_not_wait() {
    let folder = temporary();
    let input = long_then_short();
    let ordered = finish(&mut demo(folder.path(), &[]), &input);
    let unordered = finish(&mut demo(folder.path(), &["--unordered"]), &input);
    assert_exit(&ordered, 0);
    assert_exit(&unordered, 0);
    let lines = |bytes| text(bytes).lines().collect::<Vec<_>>();
    let (ordered, unordered) = (lines(&ordered.stdout), lines(&unordered.stdout));
    assert!(ordered[0].starts_with("{\"id\":\"long\""));
    assert!(!unordered[0].starts_with("{\"id\":\"long\""), "it has taken 400 steps: {unordered:?}");
    assert!(unordered.iter().any(|line| line.contains("\"id\":7.50,")), "as it was written");
    let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(set(&unordered), set(&ordered));
    assert_eq!(unordered.len(), 41);
}

#[test]
fn an_unordered_row_needs_an_id() {
    let folder = temporary();
    let input = "{\"id\":7,\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n{\"id\":null,\"prompt\":\"c\"}\n\
                 {\"id\":8,\"prompt\":\n{\"custom_id\":\"x\",\"prompt\":\"d\"}\n{\"id\":9}\n";
    let output = finish(&mut demo(folder.path(), &["--unordered"]), input);
    assert_exit(&output, 3);
    let rows = rows(text(&output.stdout));
    let code = |row: &Value| row["error"]["code"].as_str().unwrap_or("none").to_owned();
    let mut found: Vec<(String, String)> = rows
        .iter()
        .map(|row| (format!("{}{}{}", row["id"], row["custom_id"], row["line"]), code(row)))
        .collect();
    found.sort();
    let expected = [
        ("7nullnull", "none"),
        ("9nullnull", "row_shape"),
        ("null\"x\"null", "none"),
        ("nullnull4", "bad_json"),
        ("nullnullnull", "missing_id"),
        ("nullnullnull", "missing_id"),
    ];
    let expected = expected.map(|(name, code)| (name.to_owned(), code.to_owned()));
    assert_eq!(found, expected);
    let missing = rows.iter().find(|row| row["prompt"] == "b").unwrap();
    let message = "the row of line 2 has no `id`, and --unordered needs one";
    assert_eq!(missing["error"]["message"], message);
}

#[test]
fn unordered_batch_requests_are_matched_by_custom_id() {
    let folder = temporary();
    let request = |id: &str, max_tokens| {
        format!(
            "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":\
             {{\"model\":\"m\",\"prompt\":\"1+1=\",\"max_tokens\":{max_tokens},\"ignore_eos\":true}}}}\n"
        )
    };
    let input = request("a", 300) + &request("b", 1);
    let output = finish(&mut demo(folder.path(), &["--unordered"]), &input);
    assert_exit(&output, 0);
    let ids: BTreeSet<String> =
        rows(text(&output.stdout)).iter().map(|row| row["custom_id"].to_string()).collect();
    assert_eq!(ids, BTreeSet::from(["\"a\"".to_owned(), "\"b\"".to_owned()]));
}

#[test]
fn unordered_rows_never_go_to_a_file() {
    let folder = temporary();
    for flags in [&["-o", "out.jsonl"][..], &["--journal", "j"], &["--errors", "e.jsonl"]] {
        let output = finish(demo(folder.path(), &["--unordered"]).args(flags), "");
        assert_exit(&output, 2);
        assert!(text(&output.stderr).starts_with("error[unordered]: --unordered writes"));
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_ready_line_comes_before_the_first_row_is_sent() {
    let folder = temporary();
    for command in [&["run", "--temperature", "0"][..], &["embed"]] {
        let model = match command[0] {
            "embed" => concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert"),
            _ => DEMO,
        };
        let mut child = vllm_batch(folder.path(), command)
            .args(["--model", model, "--ready-fd", "2", "-qq", "--unordered"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect(&line);
        assert_eq!((&ready["ready"], &ready["protocol"]), (&Value::Bool(true), &Value::from(1)));
        assert_eq!(ready["version"], env!("CARGO_PKG_VERSION"));
        assert!(ready["max_model_len"].as_u64().unwrap() > 1, "{line}");
        let mut rows = child.stdin.take().unwrap();
        rows.write_all(b"{\"id\":\"a\",\"text\":\"red bird\"}\n").unwrap();
        drop(rows);
        let output = child.wait_with_output().unwrap();
        let mut rest = String::new();
        errors.read_to_string(&mut rest).unwrap();
        assert_eq!((output.status.code(), rest.as_str()), (Some(0), ""), "said once, and no more");
        assert!(text(&output.stdout).starts_with("{\"id\":\"a\""));
    }
}

/// The first row is not waited for, which comes behind the line.
#[test]
fn a_model_that_cannot_be_loaded_ends_the_run_before_the_first_row() {
    let folder = temporary();
    let classifier = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_classifiers/bert");
    for (model, flags, code) in [
        (DEMO, &["--kv-cache-memory-bytes", "1"][..], 2),
        (DEMO, &["--device", "cuda:77"], 2),
        (classifier, &[], 7),
    ] {
        let mut child = vllm_batch(folder.path(), &["run", "--model", model, "--ready-fd", "2"])
            .args(["--unordered", "--format", "jsonl"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Open until the program has ended.
        let rows = child.stdin.take().unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{flags:?} {errors}");
        assert!(errors.contains("error[") && !errors.contains("\"ready\""), "{errors}");
        drop(rows);
    }
}

#[test]
fn nothing_is_ready_where_loading_fails_and_a_wrong_descriptor_is_refused() {
    let folder = temporary();
    let flags = ["run", "--model", "./none", "--ready-fd", "2"];
    let output = finish(&mut vllm_batch(folder.path(), &flags), "{\"prompt\":\"a\"}\n");
    assert_exit(&output, 2);
    assert!(!text(&output.stderr).contains("\"ready\""), "{}", text(&output.stderr));
    for (fd, said) in [("0", "carry rows"), ("1", "carry rows"), ("99", "cannot open")] {
        let output = finish(&mut demo(folder.path(), &["--ready-fd", fd]), "");
        assert_exit(&output, 2);
        let stderr = text(&output.stderr);
        let place = format!("error[ready_fd]: --ready-fd {fd}: ");
        assert!(stderr.starts_with(&place) && stderr.contains(said), "{stderr}");
    }
}
