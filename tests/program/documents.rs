//! Examples of documents: every command in a block ```` ```console ```` runs, and its standard
//! output is compared with the text below it.
//!
//! `$ ` begins a command of bash, and a line that ends with `\` goes on. A page's commands run one
//! after another, in a folder that has `testdata` and `docs`, on the CPU, without the network.
//! In an expected output `...` stands for any text, and alone on a line for any lines.
//! Times and rates are not compared, and numbers of 6 digits or more after the point to 4 of them.
//! Commands that need a download, a GPU or a store are in blocks ```` ```text ````, and are few.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::thread;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Pages whose examples another test runs, in its own way.
const RUN_ELSEWHERE: [&str; 1] = ["docs/RETRIEVAL.md"];

/// Most blocks of commands that are not run.
const MAX_TEXT_BLOCKS: usize = 14;

/// A fenced block.
struct Block {
    /// Line of its fence, from 1.
    line: usize,
    language: String,
    lines: Vec<String>,
    /// Title of its section.
    section: String,
}

struct Example {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// README.md and the pages of docs, with their texts.
fn pages() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut paths: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    paths.push("README.md".to_owned());
    paths.sort();
    let text = |path: &String| std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    paths.iter().map(|path| (path.clone(), text(path))).collect()
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut open, mut section) = (Vec::new(), None, String::new());
    for (index, line) in page.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                let section = section.clone();
                open = Some(Block { line: index + 1, language, lines: Vec::new(), section });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, None) if line.starts_with("## ") => section = line[3..].to_owned(),
            (None, None) => {}
        }
    }
    found
}

/// Commands of a block, each with the output below it.
fn examples(block: &Block) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut goes_on = false;
    for (index, line) in block.lines.iter().enumerate() {
        if goes_on {
            let example = found.last_mut().expect("a command before");
            example.command.push('\n');
            example.command.push_str(line);
            goes_on = line.ends_with('\\');
        } else if let Some(command) = line.strip_prefix("$ ") {
            let (line, command) = (block.line + index + 1, command.to_owned());
            goes_on = command.ends_with('\\');
            found.push(Example { line, command, output: Vec::new() });
        } else {
            let example = found.last_mut();
            let example = example.unwrap_or_else(|| panic!("no `$ ` before {line:?}"));
            example.output.push(line.clone());
        }
    }
    found
}

/// A line with its times as `#`, whatever their units, and with 4 digits of long fractions.
fn masked(line: &str) -> String {
    let (mut found, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        found.push_str(&rest[..at]);
        rest = &rest[at..];
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let mut end = digits(rest);
        let fraction = rest[end..].strip_prefix('.').map_or(0, digits);
        end += if fraction > 0 { fraction + 1 } else { 0 };
        let unit = rest[end..].trim_start_matches(' ');
        let unit = &unit
            [..unit.find(|c: char| !c.is_ascii_alphabetic() && c != '/').unwrap_or(unit.len())];
        if ["s", "ms", "min", "h"].contains(&unit) {
            // A slow machine takes minutes where another takes seconds, "1 h 20 min" among them.
            end = rest.len() - rest[end..].trim_start_matches(' ').len() + unit.len();
            if !found.ends_with("# ") {
                found.push('#');
            } else {
                found.pop();
            }
        } else if unit.ends_with("/s") {
            found.push('#');
        } else if fraction >= 6 {
            found.push_str(&format!("{:.4}", rest[..end].parse::<f64>().unwrap()));
        } else {
            found.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    found + rest
}

/// Whether a line is as expected, where `...` stands for any text.
fn line_fits(expected: &str, line: &str) -> bool {
    let (expected, line) = (masked(expected), masked(line));
    let mut parts = expected.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether lines are as expected, where a line `...` stands for any lines.
fn lines_fit(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, others)) if first == "..." => {
            (0..=lines.len()).any(|skipped| lines_fit(others, &lines[skipped..]))
        }
        Some((first, others)) => {
            lines.first().is_some_and(|line| line_fits(first, line))
                && lines_fit(others, &lines[1..])
        }
    }
}

/// Runs a page's examples in a folder of their own. Returns what differs.
fn differences(path: &str, examples: &[Example]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let link = |target: &Path, name: &Path| std::os::unix::fs::symlink(target, name).unwrap();
    for name in ["testdata", "docs"] {
        link(&Path::new(ROOT).join(name), &folder.path().join(name));
    }
    let program = Path::new(env!("CARGO_BIN_EXE_vllm-batch"));
    link(program, &programs.path().join("vllm-batch"));
    let search = format!("PATH='{}':$PATH", programs.path().display());
    let mut found = Vec::new();
    for example in examples {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{search}\n{}", example.command)]).current_dir(folder.path());
        command.env("CUDA_VISIBLE_DEVICES", "").env("HF_HUB_OFFLINE", "1");
        command.env_remove("GITHUB_ACTIONS").env_remove("FORCE_COLOR");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().collect();
        if !lines_fit(&example.output, &lines) {
            let errors = String::from_utf8_lossy(&output.stderr);
            found.push(format!("{path}:{}: $ {}\n{text}{errors}", example.line, example.command));
        }
    }
    found
}

fn console_examples(page: &str) -> Vec<Example> {
    let blocks = blocks(page).into_iter().filter(|block| block.language == "console");
    blocks.flat_map(|block| examples(&block)).collect()
}

#[test]
fn examples_print_what_pages_say() {
    let pages: Vec<_> =
        pages().into_iter().map(|(path, text)| (path, console_examples(&text))).collect();
    let count: usize = pages.iter().map(|(_, examples)| examples.len()).sum();
    println!("{count} examples");
    assert!(count >= 60, "{count} examples");
    let found: Vec<String> = thread::scope(|scope| {
        let run = |(path, examples)| scope.spawn(move || differences(path, examples));
        let runs: Vec<_> = pages.iter().map(|(path, examples)| run((path, examples))).collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    assert!(found.is_empty(), "{} of {count} examples:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_task_has_an_example() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/TASKS.md")).unwrap();
    let blocks = blocks(&page);
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert!(sections.len() >= 7);
    for section in sections {
        let is_here = |block: &&Block| block.section == section && block.language == "console";
        assert!(blocks.iter().any(|block| is_here(&block)), "{section} has no example");
    }
}

#[test]
fn commands_are_run_or_marked() {
    let mut num_text = 0;
    let mut found = Vec::new();
    for (path, text) in pages() {
        for block in blocks(&text) {
            let is_command = |line: &String| {
                line.trim_start_matches("$ ").starts_with("vllm-batch ") || line.starts_with("$ ")
            };
            let is_run = RUN_ELSEWHERE.contains(&path.as_str()) && block.language == "sh";
            match block.lines.iter().any(is_command) && !is_run {
                true if block.language == "text" => num_text += 1,
                true if block.language != "console" => {
                    found.push(format!("{path}:{}: `console`, or `text`", block.line));
                }
                _ => {}
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(num_text <= MAX_TEXT_BLOCKS, "{num_text} blocks are not run");
}

/// Names of flags in a help text: `--name` at the beginning of a line or after `-x, `.
fn flags(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines
        .filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")))
        .map(|flag| flag.split(['=', '[', '<']).next().unwrap_or(flag).trim_end_matches('.'))
        .collect()
}

#[test]
fn every_flag_is_on_a_page() {
    let all: String = pages().into_iter().map(|(_, text)| text).collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let on_pages: BTreeSet<&str> = all.split(|c| !is_name(c)).collect();
    let help = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
        String::from_utf8(command.args(arguments).output().unwrap().stdout).unwrap()
    };
    let commands = [
        "run", "eval", "embed", "classify", "reward", "score", "rerank", "check", "plan", "bench",
        "merge", "join", "diff", "show",
    ];
    for command in commands {
        let help = help(&[command, "--help", "-v"]);
        let flags = flags(&help);
        assert!(flags.len() > 3, "{command}");
        for flag in flags {
            assert!(on_pages.contains(flag), "{flag} of {command} is on no page");
        }
    }
}

#[test]
fn expected_lines_leave_out_what_they_say() {
    let fits = |expected: &[&str], lines: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        lines_fit(&expected, lines)
    };
    assert!(fits(&["a", "...", "c 0.1 s (2.5 rows/s)"], &["a", "b", "b", "c 7 s (1 rows/s)"]));
    assert!(fits(&["{\"id\":...,\"x\":0.12345678}"], &["{\"id\":\"7\",\"x\":0.12345681}"]));
    assert!(!fits(&["x 0.123456"], &["x 0.124456"]));
    assert!(
        !fits(&["a"], &["a", "b"]) && !fits(&["a..."], &["ba"]) && !fits(&["7 rows"], &["8 rows"])
    );
    assert!(!fits(&["...b"], &["abc"]) && fits(&["a", "..."], &["a"]));
}
