//! `join`: rows of one file as one text.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Exit code and standard error of `join`.
fn join(folder: &Path, flags: &[&str]) -> (i32, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .arg("join")
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

const ROWS: &str = r#"{"file":"docs/a.pdf","page":1,"response":"One."}
{"file":"docs/a.pdf","page":2,"response":"Two.\n"}
{"file":"docs/b.pdf","page":1,"response":""}
{"file":"docs/sub/c.pdf","page":1,"response":"C"}
{"file":"docs/sub/c.pdf","page":2,"response":null,"error":{"code":"media_decode","message":"x"}}
"#;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("out.jsonl"), ROWS).unwrap();
    folder
}

#[test]
fn rows_of_a_file_are_one_text_and_what_failed_is_not_written() {
    let folder = folder();
    let path = folder.path();
    let read = |name: &str| fs::read_to_string(path.join(name)).ok();
    let flags = ["out.jsonl", "--to", "md/{file}.md"];
    let (code, errors) = join(path, &flags);
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("docs/sub/c.pdf: 1 of 2 rows failed; not written"), "{errors}");
    assert!(errors.contains("files: 2 written, 0 there already, 1 not written"), "{errors}");
    assert_eq!(read("md/docs/a.md").as_deref(), Some("One.\n\nTwo.\n"));
    assert_eq!(read("md/docs/b.md").as_deref(), Some(""));
    assert_eq!(read("md/docs/sub/c.md"), None);
    // Once its rows are there, the same command writes what is missing.
    let whole = ROWS.replace(r#"null,"error":{"code":"media_decode","message":"x"}"#, r#""D""#);
    fs::write(path.join("out.jsonl"), whole).unwrap();
    fs::remove_file(path.join("md/docs/b.md")).unwrap();
    fs::write(path.join("md/docs/b.md.part"), "of a run that was killed").unwrap();
    let (code, errors) = join(path, &flags);
    assert!(errors.contains("files: 2 written, 1 there already"), "{errors}");
    assert_eq!((code, read("md/docs/sub/c.md").as_deref()), (0, Some("C\n\nD\n")));
    assert_eq!((read("md/docs/b.md").as_deref(), read("md/docs/b.md.part")), (Some(""), None));
    let (code, errors) = join(path, &[&flags[..], &["--separator", " "]].concat());
    assert!(code == 6 && errors.contains("a.md is there, and has another text"), "{errors}");
    let (code, _) = join(path, &[&flags[..], &["--separator", " ", "--overwrite"]].concat());
    assert_eq!((code, read("md/docs/a.md").as_deref()), (0, Some("One. Two.\n")));
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let folder = folder();
    let path = folder.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("apart.jsonl", &format!("{ROWS}{}", ROWS.lines().next().unwrap()));
    write("alike.jsonl", &ROWS.replace("docs/b.pdf", "docs/a.PDF"));
    write("out.csv", "file,response\na.pdf,One\na.pdf,Two\n");
    write("none.jsonl", "");
    let of = |flags: &[&str]| join(path, flags);
    let refused = [
        (&["out.jsonl", "--to", "all.md"][..], 2, "all files would have one name"),
        (&["out.jsonl", "--to", "{file}", "--by", "name"], 2, "no text in `name`"),
        (&["out.jsonl", "--to", "{file}", "--field", "page"], 2, "no text in `page`"),
        (&["apart.jsonl", "--to", "x/{file}"], 2, "do not follow each other"),
        (&["alike.jsonl", "--to", "y/{file}"], 2, "would both be y/docs/a"),
        (&["missing.jsonl", "--to", "{file}"], 2, "missing.jsonl"),
        (&["none.jsonl", "--to", "{file}"], 4, "has no rows"),
    ];
    for (flags, expected, what) in refused {
        let (code, errors) = of(flags);
        assert!(code == expected && errors.contains(what), "{flags:?}: {code} {errors}");
    }
    let (code, errors) = of(&["out.csv", "--to", "{name}.txt"]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(fs::read_to_string(path.join("a.txt")).unwrap(), "One\n\nTwo\n");
}
