//! Pages of PDF files as rows: which pages, files that mean harm, and a process that may die.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
const PDF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/pdf");

struct Said {
    code: i32,
    rows: Vec<Value>,
    errors: String,
}

fn command(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["run", "--model", SEES, "--max-tokens", "3", "--temperature", "0"]);
    command.args(["--longest-side", "100", "-p", "Read it."]).args(flags);
    command.current_dir(folder).stdin(Stdio::null()).env("COLUMNS", "400");
    command
}

fn run(folder: &Path, flags: &[&str]) -> Said {
    let output = command(folder, flags).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap(),
        rows: rows(&text(output.stdout)),
        errors: text(output.stderr),
    }
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(path: PathBuf) -> Vec<Value> {
    rows(&fs::read_to_string(path).unwrap())
}

/// File and page of rows, and the code of what is wrong with each.
fn pages(rows: &[Value]) -> Vec<(String, u64, String)> {
    let page = |row: &Value| {
        let code = row["error"]["code"].as_str().unwrap_or_default().to_owned();
        (row["file"].as_str().unwrap().to_owned(), row["page"].as_u64().unwrap_or(0), code)
    };
    rows.iter().map(page).collect()
}

fn good(file: &str, pages: &[u64]) -> Vec<(String, u64, String)> {
    pages.iter().map(|page| (file.to_owned(), *page, String::new())).collect()
}

/// A folder `docs` with these files of testdata.
fn docs(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    for name in names {
        fs::copy(Path::new(PDF).join(name), folder.path().join("docs").join(name)).unwrap();
    }
    folder
}

#[test]
fn each_page_is_a_row_however_the_files_are_named() {
    let folder = docs(&["three.pdf", "turned.pdf"]);
    let path = folder.path();
    fs::write(path.join("docs/notes.txt"), "a").unwrap();
    let expected = [good("docs/three.pdf", &[1, 2, 3]), good("docs/turned.pdf", &[1])].concat();
    let mut answers = Vec::new();
    for flags in [
        &["-i", "docs"][..],
        &["-i", "docs/*.pdf"],
        &["-i", "docs/three.pdf", "docs/turned.pdf"],
        &["-i", "docs/*.pdf", "--threads", "1"],
    ] {
        let said = run(path, flags);
        assert_eq!((said.code, pages(&said.rows)), (0, expected.clone()), "{}", said.errors);
        answers.push(said.rows);
    }
    assert!(answers.iter().all(|rows| *rows == answers[0]));
    // The pages differ, so do their tokens.
    let usage = |row: &Value| row["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_ne!(usage(&answers[0][0]), usage(&answers[0][2]), "a page that stands");
    assert_eq!(
        answers[0][0].as_object().unwrap().keys().take(3).collect::<Vec<_>>(),
        ["file", "page", "response"]
    );
    let said = run(path, &["-i", "docs"]);
    assert!(said.errors.contains("docs/notes.txt is no PDF, and passed over"), "{}", said.errors);
    let template = ["--template", "Page {{page}} of {{file}}."];
    let output = command(path, &[]).args(["-i", "docs/three.pdf"]).args(template).output();
    assert_eq!(output.unwrap().status.code(), Some(2), "--prompt and --template");
}

#[test]
fn flags_say_which_pages_and_how_large() {
    let folder = docs(&["many.pdf", "three.pdf", "huge.pdf", "no_size.pdf"]);
    let path = folder.path();
    let chosen = run(path, &["-i", "docs/many.pdf", "docs/three.pdf", "--pages", "2-3,7,11-"]);
    let expected = [good("docs/many.pdf", &[2, 3, 7, 11, 12]), good("docs/three.pdf", &[2, 3])];
    assert_eq!((chosen.code, pages(&chosen.rows)), (0, expected.concat()), "{}", chosen.errors);
    let first = run(path, &["-i", "docs/many.pdf", "--limit", "7"]);
    assert_eq!(first.rows[6], chosen.rows[2], "a page is the same beside others");
    let sample = run(path, &["-i", "docs/many.pdf", "--sample", "3"]);
    assert_eq!((sample.code, sample.rows.len()), (0, 3), "{}", sample.errors);
    assert!(sample.rows.iter().all(|row| row["error"].is_null()));
    // 200 by 100 units: at 36 dots it is what it is with a longest side of 100.
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(["run", "-q", "--model", SEES, "--max-tokens", "3", "--temperature", "0"])
        .args(["-p", "Read it.", "--dpi", "36", "-i", "docs/three.pdf", "docs/huge.pdf"])
        .current_dir(path)
        .output()
        .unwrap();
    let by_dpi = rows(&String::from_utf8(output.stdout).unwrap());
    let by_side = run(path, &["-i", "docs/three.pdf", "docs/huge.pdf", "docs/no_size.pdf"]);
    assert_eq!(by_dpi[..3], by_side.rows[..3]);
    assert_eq!(pages(&by_dpi[3..]), [("docs/huge.pdf".into(), 1, "media_too_large".into())]);
    let expected = [good("docs/huge.pdf", &[1]), good("docs/no_size.pdf", &[1])].concat();
    assert_eq!(pages(&by_side.rows[3..]), expected, "they are scaled");
    for wrong in [["--pages", "0"], ["--pages", "3-1"], ["--dpi", "0"], ["--longest-side", "x"]] {
        assert_eq!(run(path, &[&["-i", "docs/three.pdf"][..], &wrong].concat()).code, 2);
    }
}

#[test]
fn files_that_mean_harm_are_error_rows_and_the_run_goes_on() {
    let bad = [
        ("broken.pdf", "media_decode"),
        ("deep.pdf", "media_decode"),
        ("empty.pdf", "media_decode"),
        ("encrypted.pdf", "media_unsupported"),
        ("no_pages.pdf", "media_decode"),
    ];
    let names: Vec<&str> = bad.iter().map(|(name, _)| *name).collect();
    let folder =
        docs(&[&names[..], &["bomb.pdf", "laughs.pdf", "round.pdf", "unpacked.pdf"]].concat());
    let path = folder.path();
    let said = run(path, &["-i", "docs", "--page-timeout", "2"]);
    let of = |name: &str, page, code: &str| (format!("docs/{name}"), page, code.to_owned());
    let mut expected: Vec<_> = bad.iter().map(|(name, code)| of(name, 0, code)).collect();
    expected.insert(4, of("laughs.pdf", 1, "media_timeout"));
    expected.push(of("round.pdf", 1, ""));
    // It has not the memory for its picture.
    expected.insert(0, of("bomb.pdf", 1, "media_decode"));
    let (last, others) = said.rows.split_last().unwrap();
    assert_eq!((said.code, pages(others)), (3, expected), "{}", said.errors);
    // Its memory or its time is over first.
    let code = last["error"]["code"].as_str().unwrap();
    assert!(["media_timeout", "media_decode"].contains(&code), "{last}");
    let check = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(["check", "--template", "Read it.", "docs/encrypted.pdf"])
        .current_dir(path)
        .output()
        .unwrap();
    let said = String::from_utf8(check.stderr).unwrap();
    assert!(said.contains("media_unsupported") && said.contains("a password"), "{said}");
}

#[test]
fn a_run_goes_on_by_page_and_a_changed_file_is_computed_again() {
    let folder = docs(&["many.pdf", "three.pdf"]);
    let path = folder.path();
    let flags = ["-i", "docs/many.pdf", "docs/three.pdf"];
    let whole = run(path, &flags);
    assert_eq!((whole.code, whole.rows.len()), (0, 15), "{}", whole.errors);
    let mut shards = Vec::new();
    for shard in ["0/2", "1/2"] {
        shards.push(run(path, &[&flags[..], &["--shard", shard]].concat()).rows);
    }
    assert_eq!(shards[0].len() + shards[1].len(), 15);
    assert_eq!((&shards[0][1], &shards[1][1]), (&whole.rows[2], &whole.rows[3]));
    // A run of the first rows is not whole: the rows of the first pages are taken over.
    let first = [&flags[..], &["-o", "out.jsonl", "--limit", "5"]].concat();
    assert_eq!(run(path, &first).code, 0);
    let all = [&flags[..], &["-o", "out.jsonl"]].concat();
    let grown = run(path, &all);
    assert_eq!(read(path.join("out.jsonl")), whole.rows, "{}", grown.errors);
    // Another file of the same name has other pages.
    fs::copy(Path::new(PDF).join("turned.pdf"), path.join("docs/three.pdf")).unwrap();
    let changed = run(path, &all);
    assert_eq!(changed.code, 6, "{}", changed.errors);
}

/// Processes of the program that draw pages for one, from /proc.
fn drawing_for(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let of_parent =
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let words = read("cmdline");
        if of_parent == Some(parent) && words.ends_with(b"\0--draw-pages\0") {
            found.push(pid);
        }
    }
    found
}

fn wait_for<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A run whose only page takes for ever, and the process that draws it.
fn endless(path: &Path) -> (Child, u32) {
    let run = command(path, &["-i", "docs/laughs.pdf", "-q"]).stdout(Stdio::piped()).spawn();
    let run = run.unwrap();
    let busy = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ticks = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(11)?.parse().ok());
        ticks.is_some_and(|ticks: u64| ticks > 20)
    };
    let id = run.id();
    let drawing = wait_for("a page is drawn", || drawing_for(id).into_iter().find(busy));
    (run, drawing)
}

#[test]
fn a_process_that_draws_may_die_and_dies_with_its_run() {
    if !Path::new("/proc/self/stat").exists() {
        return println!("SKIP: /proc says which processes there are, and it is not here");
    }
    let folder = docs(&["laughs.pdf"]);
    let (run, drawing) = endless(folder.path());
    let kill = |pid: u32| Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    kill(drawing);
    let output = run.wait_with_output().unwrap();
    let rows = rows(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(
        (output.status.code(), &rows[0]["error"]["code"]),
        (Some(3), &json!("media_decode"))
    );
    let (mut run, drawing) = endless(folder.path());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for("the process ends with its run", || {
        let stat = fs::read_to_string(format!("/proc/{drawing}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default().to_owned();
        (state.is_empty() || state.starts_with('Z')).then_some(())
    });
}
