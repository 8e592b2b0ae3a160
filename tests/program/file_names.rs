//! Whatever flag names whatever file: nothing that a command reads is written, nothing is replaced
//! that is not the command's own, and of two commands that share a file one is kept out. The flags
//! come from the flag table: a new one is walked over too.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vllm_batch::cli::args::{DocumentKind, Role, command, role};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What no command needs to be refused.
const SOON: Duration = Duration::from_secs(60);

/// A command line, and the files that it reads.
struct Job {
    command: &'static str,
    line: &'static str,
    reads: &'static [&'static str],
}

const JOBS: [Job; 8] = [
    Job {
        command: "run",
        line: "-m m -i in.jsonl --structured-outputs.json schema.json --chat-template t.jinja \
               --config batch.toml --generation-config g --lora-modules a=ad --speculative-config \
               {\"method\":\"draft_model\",\"model\":\"dm\",\"num_speculative_tokens\":2}",
        reads: &[
            "in.jsonl",
            "m/config.json",
            "m/tokenizer.json",
            "m/model-00001-of-00003.safetensors",
            "schema.json",
            "t.jinja",
            "batch.toml",
            "g/generation_config.json",
            "ad/adapter_config.json",
            "dm/config.json",
            "dm/tokenizer.json",
        ],
    },
    Job {
        command: "eval",
        line: "-m m -i in.jsonl --scorer command --scorer-command sh@judge.sh",
        reads: &["in.jsonl", "m/config.json", "judge.sh"],
    },
    Job {
        command: "eval",
        line: "-m m -i in.jsonl --scorer exact --baseline then.jsonl \
               --structured-outputs.grammar schema.json",
        reads: &["in.jsonl", "then.jsonl", "then.jsonl.meta.json", "schema.json"],
    },
    Job {
        command: "eval",
        line: "--rescore then.jsonl --scorer exact --config batch.toml",
        reads: &["then.jsonl", "then.jsonl.meta.json", "batch.toml"],
    },
    Job {
        command: "embed",
        line: "-m em -i in.jsonl",
        reads: &["in.jsonl", "em/config.json", "em/tokenizer.json"],
    },
    Job {
        command: "bench",
        line: "-m m --dataset in.jsonl --config batch.toml --tokenizer dm",
        reads: &["in.jsonl", "m/config.json", "dm/tokenizer.json", "batch.toml"],
    },
    Job {
        command: "plan",
        line: "-m m -i in.jsonl --chat-template t.jinja --sample-seconds 0",
        reads: &["in.jsonl", "m/config.json", "t.jinja"],
    },
    Job {
        command: "merge",
        line: "s0.jsonl s1.jsonl",
        reads: &["s0.jsonl", "s1.jsonl", "s0.jsonl.meta.json"],
    },
];

impl Job {
    /// Flags that write a file, and what it is.
    fn written(&self) -> Vec<(String, Role)> {
        let table = command(true);
        let table = table.find_subcommand(self.command).unwrap();
        let mut flags = Vec::new();
        for arg in table.get_arguments() {
            let name = arg.get_long().unwrap_or(arg.get_id().as_str());
            let is_planned = self.command == "plan" && name != "output-json";
            let is_of_rescore = self.line.contains("--rescore");
            let is_refused = self.command == "eval" && name == "errors"
                || is_of_rescore && ["journal", "stats"].contains(&name);
            match role(self.command, name, OsStr::new("x.json")) {
                Some(found @ (Role::Rows | Role::Document(_))) if !is_planned && !is_refused => {
                    flags.push((format!("--{name}"), found));
                }
                _ => {}
            }
        }
        assert!(!flags.is_empty());
        flags
    }

    /// Its arguments, with a file for a flag.
    fn with(&self, flag: &str, file: &str, more: &[&str]) -> Vec<String> {
        let words = self.line.split_whitespace().map(|word| word.replace('@', " "));
        let mut args: Vec<String> = [self.command.to_owned()].into_iter().chain(words).collect();
        if flag != "--out" && !["bench", "plan"].contains(&self.command) {
            args.extend(["--out".to_owned(), "out.jsonl".to_owned()]);
        }
        args.extend([flag.to_owned(), file.to_owned()]);
        args.extend(more.iter().map(|word| (*word).to_owned()));
        args
    }
}

fn start(folder: &Path, args: &[String]) -> Child {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(args).env_remove("GITHUB_STEP_SUMMARY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs to the end, which comes soon.
fn run(folder: &Path, args: &[String]) -> (Option<i32>, String) {
    let mut child = start(folder, args);
    drop(child.stdin.take());
    ended(child, args)
}

fn ended(mut child: Child, args: &[String]) -> (Option<i32>, String) {
    let deadline = Instant::now() + SOON;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn copy_folder(from: &str, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(Path::new(ROOT).join(from)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// Everything that the jobs read.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for model in ["m", "dm"] {
        copy_folder("testdata/golden/llama2", &path.join(model));
    }
    copy_folder("testdata/golden_embeddings/bert", &path.join("em"));
    let rows = "{\"id\":1,\"prompt\":\"a\",\"expected\":\"a\"}\n{\"id\":2,\"prompt\":\"b\"}\n";
    for (name, text) in [
        ("in.jsonl", rows),
        ("schema.json", "{\"type\": \"string\"}"),
        ("t.jinja", "{{ messages[0].content }}"),
        ("batch.toml", "[run]\nmax-tokens = 2\n"),
        ("judge.sh", "cat\n"),
    ] {
        fs::write(path.join(name), text).unwrap();
    }
    for (name, text) in [("g/generation_config.json", "{}"), ("ad/adapter_config.json", "{}")] {
        fs::create_dir(path.join(name).parent().unwrap()).unwrap();
        fs::write(path.join(name), text).unwrap();
    }
    for shard in ["0", "1"] {
        let line = format!("run -m m -i in.jsonl --max-tokens 2 --shard {shard}/2 -qq");
        let args = words(&format!("{line} -o s{shard}.jsonl"));
        let (code, said) = run(path, &args);
        assert_eq!(code, Some(0), "{said}");
    }
    let line = "eval -m m -i in.jsonl --max-tokens 2 --scorer exact -qq -o then.jsonl";
    let (code, said) = run(path, &words(line));
    assert_eq!(code, Some(3), "{said}");
    folder
}

/// Names and contents of a folder's files.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let bytes = match entry.path().is_file() {
            true => fs::read(entry.path()).unwrap(),
            false => Vec::new(),
        };
        found.push((name, bytes));
    }
    found.sort();
    found
}

#[test]
fn no_flag_destroys_what_its_command_reads() {
    let folder = folder();
    let path = folder.path();
    let mut num_cases = 0;
    for job in &JOBS {
        for (flag, _) in job.written() {
            for (at, name) in job.reads.iter().enumerate() {
                let before = fs::read(path.join(name)).unwrap();
                let link = path.join("link.json");
                match at % 2 {
                    0 => symlink(name, &link).unwrap(),
                    _ => fs::hard_link(path.join(name), &link).unwrap(),
                }
                let overwrite: &[&str] = match job.command {
                    "bench" | "plan" => &[],
                    _ => &["--overwrite"],
                };
                let args = job.with(&flag, "link.json", overwrite);
                let names = contents(path);
                let (code, said) = run(path, &args);
                assert_eq!(code, Some(2), "{args:?} over {name}: {said}");
                assert!(said.contains("would replace it"), "{args:?} over {name}: {said}");
                assert!(fs::read(path.join(name)).unwrap() == before, "{args:?} over {name}");
                assert!(contents(path) == names, "{args:?}");
                fs::remove_file(link).unwrap();
                num_cases += 1;
            }
        }
    }
    assert!(num_cases > 80, "{num_cases}");
}

#[test]
fn no_flag_replaces_what_its_command_did_not_write() {
    let folder = folder();
    let path = folder.path();
    let stats = "{\"elapsed_time\":1.0,\"schema\":1}";
    let other_run = fs::read(path.join("s0.jsonl")).unwrap();
    let side_file = fs::read(path.join("s0.jsonl.meta.json")).unwrap();
    let foreign: [&[u8]; 4] = [b"a week of work\n", stats.as_bytes(), &other_run, &side_file];
    for job in &JOBS {
        for (flag, role) in job.written() {
            for (at, bytes) in foreign.iter().enumerate() {
                for name in ["x.json", "x.json.part"] {
                    if role == Role::Rows && name == "x.json.part" && flag != "--out" {
                        continue;
                    }
                    fs::write(path.join(name), bytes).unwrap();
                    let args = job.with(&flag, "x.json", &[]);
                    let before = contents(path);
                    let (code, said) = run(path, &args);
                    assert_eq!(code, Some(6), "{args:?} over {name}, foreign {at}: {said}");
                    assert!(contents(path) == before, "{args:?} over {name}");
                    fs::remove_file(path.join(name)).unwrap();
                }
            }
            fs::create_dir(path.join("x.json")).unwrap();
            let args = job.with(&flag, "x.json", &[]);
            let (code, said) = run(path, &args);
            assert_eq!(code, Some(2), "{args:?} over a folder: {said}");
            fs::remove_dir(path.join("x.json")).unwrap();
            if role != Role::Rows {
                let made = Command::new("mkfifo").arg(path.join("x.json")).status().unwrap();
                assert!(made.success());
                let (code, said) = run(path, &args);
                assert_eq!(code, Some(2), "{args:?} over a pipe: {said}");
                fs::remove_file(path.join("x.json")).unwrap();
            }
        }
    }
}

#[test]
fn the_side_file_replaces_no_other_file() {
    let folder = folder();
    let path = folder.path();
    for job in JOBS.iter().filter(|job| !["bench", "plan"].contains(&job.command)) {
        for name in ["x.jsonl.meta.json", "x.jsonl.meta.json.part"] {
            fs::write(path.join(name), "precious\n").unwrap();
            let args = job.with("--out", "x.jsonl", &[]);
            let before = contents(path);
            let (code, said) = run(path, &args);
            assert_eq!(code, Some(6), "{args:?}: {said}");
            assert!(said.contains(&format!("{name} exists")), "{said}");
            assert!(contents(path) == before, "{args:?}");
            fs::remove_file(path.join(name)).unwrap();
        }
    }
}

#[test]
fn two_flags_of_a_command_are_two_files() {
    let folder = folder();
    let path = folder.path();
    for job in &JOBS {
        let written = job.written();
        for (at, (one, _)) in written.iter().enumerate() {
            for (other, _) in &written[..at] {
                let args = job.with(one, "x.json", &[other, "./x.json"]);
                let (code, said) = run(path, &args);
                assert_eq!(code, Some(2), "{args:?}: {said}");
                assert!(!path.join("x.json").exists());
            }
        }
    }
}

#[test]
fn of_two_commands_that_share_a_file_one_is_kept_out() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("one.jsonl"), "{\"id\":1,\"prompt\":\"a\",\"expected\":\"a\"}\n").unwrap();
    let other = "run -m m -i one.jsonl --max-tokens 2 -qq";
    for (first, second) in [
        ("eval -o a.jsonl --report x.json", "-o x.json"),
        ("eval -o a.jsonl --report x.json", "-o b.jsonl --stats x.json"),
        ("eval -o a.jsonl --report x.json", "-o b.jsonl --journal x.json"),
        ("eval -o a.jsonl --report x.md", "-o x.md --overwrite"),
        ("run -o x.json", "-o b.jsonl --stats x.json"),
        ("run -o a.jsonl", "-o a.jsonl.meta.json"),
        ("run -o a.jsonl", "-o b.jsonl --errors a.jsonl.meta.json --overwrite"),
        ("embed -o a.jsonl", "-o a.jsonl.meta.json --overwrite"),
    ] {
        let model = if first.starts_with("embed") { "em" } else { "m" };
        let line = format!("{first} -m {model} --format jsonl -qq");
        let mut child = start(path, &words(&line));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"{\"id\":1,\"prompt\":\"a\",\"expected\":\"a\"}\n").unwrap();
        let part = path.join("a.jsonl.part");
        let locked = if first.contains("-o x") { path.join("x.json.part") } else { part };
        while !locked.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // All of its names are taken by then, or are about to be.
        std::thread::sleep(Duration::from_millis(300));
        let args = words(&format!("{other} {second}"));
        let (code, said) = run(path, &args);
        assert_eq!(code, Some(6), "{second} beside {first}: {said}");
        assert!(said.contains("error[output_locked]"), "{said}");
        drop(stdin);
        let (code, said) = ended(child, &words(&line));
        assert!(matches!(code, Some(0 | 3)), "{first}: {code:?} {said}");
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if ["a.", "b.", "x."].iter().any(|begin| name.starts_with(begin)) {
                assert!(!name.ends_with(".part") && !name.starts_with("b."), "{name} is left");
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

/// A document goes to a pipe that someone reads. One that is read by nobody is not waited for.
#[test]
fn pipes_take_documents_and_hang_nothing() {
    let folder = folder();
    let path = folder.path();
    assert!(Command::new("mkfifo").arg(path.join("x.json")).status().unwrap().success());
    let read = fs::OpenOptions::new().read(true).write(true).open(path.join("x.json"));
    let mut reader = read.unwrap();
    for line in [
        "run -m m -i in.jsonl --max-tokens 2 -qq -o a.jsonl --stats x.json",
        "eval -m m -i in.jsonl --max-tokens 2 -qq -o b.jsonl --report x.json",
        "plan -m m -i in.jsonl --sample-seconds 0 -qq --output-json x.json",
    ] {
        let (code, said) = run(path, &words(line));
        assert!(matches!(code, Some(0 | 3)), "{line}: {said}");
        let mut bytes = vec![0; 1 << 16];
        let count = std::io::Read::read(&mut reader, &mut bytes).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&bytes[..count]).unwrap();
        assert!(document.is_object());
    }
    // It is full, and nobody reads it: the rows are kept.
    let fill = Command::new("sh")
        .args(["-c", "timeout 1 sh -c 'yes x > x.json' || true"])
        .current_dir(path)
        .status();
    assert!(fill.unwrap().success());
    let line = "run -m m -i in.jsonl --max-tokens 2 -qq -o c.jsonl --stats x.json";
    let (code, said) = run(path, &words(line));
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("nobody reads the pipe") && path.join("c.jsonl").exists(), "{said}");
}

#[test]
fn files_that_are_read_whole_are_small_regular_files() {
    let folder = folder();
    let path = folder.path();
    assert!(Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
    for odd in ["/dev/zero", "pipe", "m"] {
        for line in [
            "run -m m -i in.jsonl --config ODD",
            "run -m m -i in.jsonl --chat-template ODD",
            "run -m m -i in.jsonl --structured-outputs.json ODD",
            "run -m m -i in.jsonl --structured-outputs.grammar ODD",
            "run -m m -i in.jsonl --structured-outputs.structural-tag ODD",
            "eval -m m -i in.jsonl -o o --baseline ODD",
            "eval --rescore ODD --scorer exact -o o",
            "merge ODD -o o",
        ] {
            let args = words(&line.replace("ODD", odd));
            let (code, said) = run(path, &args);
            assert_eq!(code, Some(2), "{args:?}: {said}");
        }
    }
    fs::remove_file(path.join("s0.jsonl.meta.json")).unwrap();
    fs::rename(path.join("pipe"), path.join("s0.jsonl.meta.json")).unwrap();
    assert_eq!(run(path, &words("merge s0.jsonl s1.jsonl -o o")).0, Some(2));
    // Files of keys that a variable names.
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(path).args(["check", "s3://bucket/a.jsonl"]);
    command.env("AWS_CONFIG_FILE", "/dev/zero").env("AWS_PROFILE", "none");
    command.env("AWS_SHARED_CREDENTIALS_FILE", "s0.jsonl.meta.json").stderr(Stdio::piped());
    let (code, said) = ended(command.spawn().unwrap(), &words("check"));
    assert!(code == Some(2) && said.contains("no such profile"), "{code:?} {said}");
}

#[test]
fn a_flipped_byte_of_a_side_file_is_noticed() {
    let folder = folder();
    let path = folder.path();
    let eval = "eval -m m -i in.jsonl --max-tokens 2 --scorer exact -qq -o e.jsonl";
    let run_line = "run -m m -i in.jsonl --max-tokens 2 -qq -o o.jsonl";
    let embed = "embed -m em -i in.jsonl -qq -o v.npy";
    let jobs = [
        (run_line, "o.jsonl", run_line),
        (eval, "e.jsonl", eval),
        (eval, "e.jsonl", "eval --rescore e.jsonl --scorer exact -qq -o again.jsonl"),
        (embed, "v.npy", embed),
        ("check in.jsonl", "s0.jsonl", "merge s0.jsonl s1.jsonl -q -o merged.jsonl"),
    ];
    for (made_by, out, read_by) in jobs {
        let (code, said) = run(path, &words(made_by));
        assert!(matches!(code, Some(0 | 3)), "{made_by}: {said}");
        let name = path.join(format!("{out}.meta.json"));
        let whole = fs::read(&name).unwrap();
        for at in [whole.len() / 3, whole.len() / 2, whole.len() - 20, whole.len() - 75] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(&name, &flipped).unwrap();
            let (code, said) = run(path, &words(read_by));
            let expected = if read_by.starts_with("merge") { 2 } else { 6 };
            assert_eq!(code, Some(expected), "{read_by}, byte {at}: {said}");
            assert!(said.contains("checksum"), "{read_by}, byte {at}: {said}");
            assert!(fs::read(&name).unwrap() == flipped, "{read_by}");
        }
        fs::write(&name, &whole).unwrap();
        let (code, said) = run(path, &words(read_by));
        assert!(matches!(code, Some(0 | 3)), "{read_by}: {said}");
    }
}

#[test]
fn a_link_beside_a_matrix_is_refused() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("precious"), "a week of work\n").unwrap();
    symlink("precious", path.join("v.npy.errors.jsonl")).unwrap();
    for more in ["", " --overwrite"] {
        let args = words(&format!("embed -m em -i in.jsonl -qq -o v.npy{more}"));
        let (code, said) = run(path, &args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains("v.npy.errors.jsonl is a symbolic link"), "{said}");
        assert_eq!(fs::read(path.join("precious")).unwrap(), b"a week of work\n");
    }
}

/// Immutable files are made by root alone, and not on every file system.
#[test]
fn what_cannot_be_replaced_is_found_before_the_first_row() {
    let folder = folder();
    let path = folder.path();
    let chattr = |flag: &str, name: &str| {
        let command = Command::new("chattr").arg(flag).arg(path.join(name)).output();
        command.is_ok_and(|output| output.status.success())
    };
    for (line, name) in [
        ("eval -m m -i in.jsonl -o o.jsonl --report r.json", "r.json"),
        ("run -m m -i in.jsonl -o o.jsonl --stats s.json", "s.json"),
        ("run -m m -i in.jsonl --overwrite -o o.jsonl", "o.jsonl"),
    ] {
        for flag in ["i", "a"] {
            fs::write(path.join(name), "").unwrap();
            if !chattr(&format!("+{flag}"), name) {
                eprintln!("files cannot be made immutable here");
                return;
            }
            let (code, said) = run(path, &words(line));
            assert!(chattr(&format!("-{flag}"), name));
            assert_eq!(code, Some(2), "{line}: {said}");
            assert!(
                said.contains("is immutable")
                    && said.contains("help:")
                    && !path.join("o.jsonl.part").exists()
            );
            fs::remove_file(path.join(name)).unwrap();
        }
    }
}

/// Every kind is walked over by some job.
#[test]
fn every_kind_of_document_is_written_by_a_job() {
    let roles: Vec<Role> = JOBS.iter().flat_map(Job::written).map(|(_, role)| role).collect();
    for kind in [DocumentKind::Stats, DocumentKind::Bench, DocumentKind::Plan] {
        assert!(roles.contains(&Role::Document(kind)), "{kind:?}");
    }
}
