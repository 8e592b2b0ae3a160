//! `run --prompt`: one prompt that is typed, and its answer alone on standard output.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::cli::{DEMO, PLAIN, TINY, assert_exit, finish, over, rows, temporary, text, vllm_batch};

fn asked(folder: &Path, model: &str, prompt: &str, flags: &[&str]) -> Output {
    let mut command = vllm_batch(folder, &["run", "-m", model, "--temperature", "0"]);
    command.args(["-p", prompt]).args(flags);
    command.stdin(Stdio::null()).output().unwrap()
}

/// What a run over one row answers.
fn response(folder: &Path, row: &str, model: &str, flags: &[&str]) -> String {
    let output = over(folder, row, model, &[&["--temperature", "0"], flags].concat());
    assert_exit(&output, 0);
    rows(text(&output.stdout))[0]["response"].as_str().unwrap().to_owned()
}

#[test]
fn the_answer_is_that_of_a_row_and_stands_alone() {
    let folder = temporary();
    let path = folder.path();
    let flags = ["--max-tokens", "4"];
    let chat = r#"{"messages":[{"role":"user","content":"hi \"you\"\n"}]}"#;
    let prompt = r#"{"prompt":"hi \"you\"\n"}"#;
    for (model, row, more) in [
        (TINY, chat, &[][..]),
        (TINY, prompt, &["--no-chat"]),
        (PLAIN, prompt, &[]),
        (DEMO, r#"{"prompt":"2+3="}"#, &["--no-chat"]),
    ] {
        let flags = [&flags[..], more].concat();
        let typed = if model == DEMO { "2+3=" } else { "hi \"you\"\n" };
        let output = asked(path, model, typed, &flags);
        assert_exit(&output, 0);
        let answer = response(path, row, model, &flags);
        assert_eq!(text(&output.stdout), format!("{}\n", answer.trim_end_matches('\n')), "{row}");
        let said = text(&output.stderr);
        let cut = "warning: the answer is cut after 4 tokens; raise --max-tokens\n";
        assert!(said.is_empty() || said == cut, "{said}");
        assert_eq!(said.is_empty(), model == DEMO, "the demo model stops by itself: {said}");
    }
    let chat = asked(path, PLAIN, "a", &["--chat"]);
    assert_exit(&chat, 2);
    assert!(text(&chat.stderr).contains("no_chat_template"), "{}", text(&chat.stderr));
}

/// Every write is a message of its own, and no more than a few fit: the program waits for whoever
/// reads them.
#[test]
fn an_answer_is_printed_piece_by_piece() {
    let folder = temporary();
    let path = folder.path();
    let flags = ["--max-tokens", "60", "--ignore-eos", "--no-chat", "--stop", "zq!"];
    let row = r#"{"prompt":"two words"}"#;
    let whole = response(path, row, TINY, &flags);
    let (reader, writer) = UnixDatagram::pair().unwrap();
    let mut command = vllm_batch(path, &["run", "-m", TINY, "--temperature", "0"]);
    command.args(["-p", "two words"]).args(flags);
    command.stdin(Stdio::null()).stdout(OwnedFd::from(writer)).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (mut printed, mut num_pieces, mut piece) = (String::new(), 0, [0; 1 << 16]);
    while printed.len() <= whole.len() {
        let len = reader.recv(&mut piece).unwrap();
        assert!(num_pieces > 0 || len < whole.len(), "the first piece is the whole answer");
        printed.push_str(text(&piece[..len]));
        num_pieces += usize::from(len > 0);
    }
    assert_eq!(printed, format!("{whole}\n"));
    assert!(num_pieces > 20, "{num_pieces} pieces");
    assert_exit(&child.wait_with_output().unwrap(), 0);
}

/// The cache is too small for the answer, which is found out when it is full.
#[test]
fn what_was_said_before_a_failure_is_out() {
    let folder = temporary();
    let path = folder.path();
    let flags = ["--max-tokens", "200", "--ignore-eos", "--no-chat"];
    let whole = response(path, r#"{"prompt":"a"}"#, TINY, &flags);
    let cache = ["--kv-cache-memory-bytes", "60KiB"];
    let output = asked(path, TINY, "a", &[&flags[..], &cache].concat());
    assert_exit(&output, 3);
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("error[kv_cache_too_small]: "), "{said}");
    let beginning = printed.strip_suffix('\n').expect("a line");
    assert!(beginning.len() > 20 && whole.starts_with(beginning), "{printed:?}");
    assert!(beginning.len() < whole.len(), "{printed:?}");
}

/// An answer that no pipe holds, of which somebody wants the beginning.
#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let folder = temporary();
    let context = r#"{"max_position_embeddings": 60000}"#;
    let flags = ["--hf-overrides", context, "--max-tokens", "50000", "--ignore-eos", "--no-chat"];
    let mut command = vllm_batch(folder.path(), &["run", "-m", TINY, "-p", "a"]);
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 8];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_exit(&output, 141);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn thinking_and_forms_are_printed_as_before() {
    let folder = temporary();
    let path = folder.path();
    let row = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let more: [&[&str]; 4] = [
        &["--reasoning-parser", "qwen3"],
        &["--reasoning-parser", "olmo3"],
        &["--structured-outputs.regex", "[a-z]{3,9}"],
        &["--stop", "e", "--include-stop-str-in-output"],
    ];
    for more in more {
        let flags = [&["--max-tokens", "40"], more].concat();
        let output = asked(path, TINY, "hi", &flags);
        assert_exit(&output, 0);
        let answer = rows(text(
            &over(path, row, TINY, &[&["--temperature", "0"], &flags[..]].concat()).stdout,
        ));
        let answer = answer[0]["response"].as_str().unwrap_or_default().to_owned();
        let end = if answer.ends_with('\n') { "" } else { "\n" };
        assert_eq!(text(&output.stdout), format!("{answer}{end}"), "{more:?}");
    }
}

#[test]
fn constraints_and_more_words_are_those_of_a_run() {
    let folder = temporary();
    let path = folder.path();
    let choice = ["--structured-outputs.choice", "yes", "--structured-outputs.choice", "no"];
    let output = asked(path, TINY, "Is it?", &choice);
    assert_exit(&output, 0);
    assert!(["yes\n", "no\n"].contains(&text(&output.stdout)), "{}", text(&output.stdout));
    assert!(output.stderr.is_empty());
    let output = asked(path, TINY, "a", &["-v", "--max-tokens", "2"]);
    let said = text(&output.stderr);
    assert!(said.contains("1 row: 1 ok, 0 failed") && said.contains("Loaded "), "{said}");
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let flags = ["--output-format", "full", "--n", "2", "--temperature", "1", "--max-tokens", "2"];
    let output = asked(path, TINY, "a", &flags);
    assert_exit(&output, 0);
    let row = &rows(text(&output.stdout))[0];
    assert_eq!((&row["prompt"], row["outputs"].as_array().unwrap().len()), (&"a".into(), 2));
}

#[test]
fn an_error_of_the_row_is_on_standard_error_alone() {
    let folder = temporary();
    for flags in [&[][..], &["-v"], &["-qq"]] {
        let output = asked(folder.path(), TINY, &"word ".repeat(900), flags);
        assert_exit(&output, 3);
        let said = text(&output.stderr);
        assert!(output.stdout.is_empty() && said.contains("error[context_length]: "), "{said}");
    }
}

#[test]
fn what_has_no_place_beside_one_prompt_is_refused_by_name() {
    let folder = temporary();
    fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    for (flags, wanted) in [
        (&["-i", "in.jsonl"][..], "--prompt goes with --input only where that is pictures"),
        (&["-o", "out.jsonl"], "cannot be used with '--out"),
        (&["--template", "{{a}}"], "cannot be used with '--template"),
        (&["--limit", "1"], "cannot be used with '--limit"),
        (&["--sample", "1"], "cannot be used with '--sample"),
        (&["--retry-failed"], "cannot be used with '--retry-failed"),
        (&["--n", "2", "--temperature", "1"], "error[output]: --n: --prompt prints one text"),
        (&["--logprobs", "1"], "error[output]: --logprobs: --prompt prints one text"),
    ] {
        let output = asked(folder.path(), TINY, "a", flags);
        assert_exit(&output, 2);
        let said = text(&output.stderr);
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let output = asked(folder.path(), PLAIN, "a", &["--system-prompt", "b"]);
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains("--system-prompt"), "{}", text(&output.stderr));
    let eval =
        vllm_batch(folder.path(), &["eval", "-m", TINY, "-o", "o", "--prompt", "a"]).output();
    assert_exit(&eval.unwrap(), 2);
}

#[test]
fn standard_input_is_the_prompt_where_it_is_asked_for() {
    let folder = temporary();
    let with = |prompt: &str, input: &str| {
        let flags = ["run", "-m", TINY, "--temperature", "0", "--max-tokens", "3", "-p", prompt];
        let output = finish(&mut vllm_batch(folder.path(), &flags), input);
        assert_exit(&output, 0);
        (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (typed, _) = with("two\nlines", "");
    let (read, said) = with("-", "two\nlines\n");
    assert_eq!(read, typed);
    assert!(!said.contains("standard input"), "{said}");
    let (answer, said) = with("two\nlines", "a text");
    assert_eq!(answer, typed);
    let wanted = "warning: standard input was not read; `--prompt -` takes the prompt from it\n";
    assert!(said.contains(wanted), "{said}");
}
