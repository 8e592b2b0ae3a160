//! Objects as a user of the program meets them.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::{TempDir, tempdir};

use super::server::{Fault, Server};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The program in a folder of its own, with the server as the store.
struct User {
    server: Server,
    folder: TempDir,
}

impl User {
    fn new() -> Self {
        Self { server: Server::start(), folder: tempdir().unwrap() }
    }

    fn call(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("AWS_ENDPOINT_URL", &self.server.endpoint)
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "very-s3cret")
            .env("AWS_CONFIG_FILE", "none")
            .env("XDG_CACHE_HOME", self.folder.path().join("cache"))
            .env("NO_PROXY", "127.0.0.1")
            .output()
            .unwrap()
    }

    /// `run` of the demo model; its exit code, its rows, and what it says.
    fn run(&self, flags: &[&str]) -> (Option<i32>, String, String) {
        let model = format!("{ROOT}/testdata/demo");
        let fixed = ["run", "-m", &model, "--max-tokens", "4", "--progress", "none"];
        let output = self.call(&[&fixed[..], flags].concat());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (rows, said) = (text(output.stdout), text(output.stderr));
        assert!(!said.contains("s3cret"), "{said}");
        (output.status.code(), rows, said)
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.folder.path().join(name), bytes).unwrap();
        self.server.put(&format!("bucket/in/{name}"), bytes);
    }
}

fn rows(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("{{\"id\":{n},\"prompt\":\"{n}+{n}=\"}}\n")).collect()
}

#[test]
fn objects_are_inputs_like_files() {
    let user = User::new();
    user.file("a.jsonl", rows(0..5).as_bytes());
    user.file("b.jsonl", rows(5..9).as_bytes());
    let table = std::fs::read(Path::new(ROOT).join("testdata/parquet/chat.parquet")).unwrap();
    user.file("c.parquet", &table);
    user.file("d.csv", b"prompt,x\n1+1=,PAR1\n");
    user.file("e.csv", b"prompt,x\n2+2=,b\n");
    user.file("f.txt", b"PAR1 is a text");
    for (files, objects) in [
        (&["a.jsonl", "b.jsonl"][..], &["s3://bucket/in/*.jsonl"][..]),
        (&["a.jsonl", "c.parquet"], &["a.jsonl", "s3://bucket/in/c.parquet"]),
        (&["d.csv", "e.csv"], &["s3://bucket/in/?.csv"]),
        (&["f.txt"], &["s3://bucket/in/f.txt"]),
    ] {
        let (code, wanted, said) = user.run(&[&["-i"][..], files].concat());
        assert_eq!((code, wanted.is_empty()), (Some(0), false), "{files:?}: {said}");
        let (code, found, said) = user.run(&[&["-i"][..], objects].concat());
        assert_eq!((code, &found), (Some(0), &wanted), "{objects:?}: {said}");
    }
    // Columns of all of them are known before any is read.
    user.file("g.parquet", &table);
    for (tables, out) in
        [("?.parquet", "of_files.parquet"), ("s3://bucket/in/?.parquet", "of_objects.parquet")]
    {
        let (code, _, said) = user.run(&["-i", tables, "-o", out]);
        assert_eq!(code, Some(0), "{tables}: {said}");
    }
    let made = |name: &str| std::fs::read(user.folder.path().join(name)).unwrap();
    assert!(made("of_files.parquet") == made("of_objects.parquet"));
    let checked = user.call(&["check", "s3://bucket/in/*.jsonl", "s3://bucket/in/c.parquet"]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let (code, _, said) = user.run(&["-i", "s3://bucket/in/none.jsonl"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("error[object_not_found]"), "{said}");
    let (code, _, said) = user.run(&["-i", "gs://bucket/in/a.jsonl"]);
    assert!(code == Some(2) && said.contains("storage.googleapis.com"), "{said}");
    user.server.set_fault(Fault::Status(403, "AccessDenied", usize::MAX));
    let (code, _, said) = user.run(&["-i", "s3://bucket/in/a.jsonl"]);
    assert!(code == Some(2) && said.contains("error[object_access]"), "{said}");
}

#[test]
fn an_output_is_an_object_that_appears_whole() {
    let user = User::new();
    user.file("a.jsonl", rows(0..40).as_bytes());
    let (_, wanted, _) = user.run(&["-i", "a.jsonl"]);
    let made = ["bucket/in/a.jsonl", "bucket/out.jsonl", "bucket/out.jsonl.meta.json"];
    let to = ["-i", "s3://bucket/in/a.jsonl", "-o", "s3://bucket/out.jsonl"];
    let (code, _, said) = user.run(&[&to[..], &["--journal-interval", "0"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Uploaded s3://bucket/out.jsonl"), "{said}");
    assert_eq!(user.server.names(), made);
    assert_eq!(user.server.get("bucket/out.jsonl").unwrap(), wanted.as_bytes());
    let meta = user.server.get("bucket/out.jsonl.meta.json").unwrap();
    assert!(!String::from_utf8(meta).unwrap().contains("s3cret"));

    // The same again, from nothing: it is fetched and compared.
    let (code, _, said) = user.run(&to);
    assert!(code == Some(0) && said.contains("Nothing to do"), "{said}");
    let (code, _, said) = user.run(&[&to[..], &["--temperature", "1"]].concat());
    assert!(code == Some(6) && said.contains("error[output_complete]"), "{said}");
    let (code, _, said) = user.run(&[&to[..], &["--temperature", "1", "--overwrite"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(user.server.get("bucket/out.jsonl").unwrap() != wanted.as_bytes());

    user.server.put("bucket/out.jsonl", b"of someone else");
    let (code, _, said) = user.run(&to);
    assert!(code == Some(6) && said.contains("no run of this program"), "{said}");
    assert_eq!(user.server.get("bucket/out.jsonl").unwrap(), b"of someone else");
}

#[test]
fn a_matrix_has_its_errors_beside_it() {
    let user = User::new();
    user.file("a.jsonl", b"{\"text\":\"one\"}\n{\"text\":5}\n");
    let model = format!("{ROOT}/testdata/golden_embeddings/bert");
    let arguments = ["embed", "-m", &model, "-i", "a.jsonl", "-o", "s3://bucket/v.npy"];
    let output = user.call(&arguments);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let made = [".errors.jsonl", ".meta.json"].map(|end| format!("bucket/v.npy{end}"));
    let names = user.server.names();
    assert!(names.contains(&"bucket/v.npy".to_owned()) && made.iter().all(|n| names.contains(n)));
    assert_eq!(user.call(&arguments).status.code(), Some(3), "nothing to do");
}

#[test]
fn what_does_not_go_with_objects_is_refused_by_name() {
    let user = User::new();
    user.file("a.jsonl", rows(0..1).as_bytes());
    let out = "s3://bucket/out.jsonl";
    for (flags, word) in [
        (&["-o", out, "--journal", "j"][..], "--journal"),
        (&["-o", out, "--errors", "e.jsonl"], "--errors"),
        (&["-o", "out.jsonl", "--take-over"], "--take-over"),
        (&["-o", "out.jsonl", "--work-dir", "w"], "--work-dir"),
        (&["-o", "out.jsonl", "--errors", out], "is an object"),
        (&["-o", "gs://bucket/out.jsonl"], "AWS_ENDPOINT_URL"),
        (&["-o", "s3://bucket"], "names no object"),
        (
            &["-o", "s3://bucket/in/a.jsonl", "--overwrite", "-i", "s3://bucket/in/a.jsonl"],
            "is the input",
        ),
    ] {
        let (code, _, said) = user.run(&[&["-i", "a.jsonl"][..], flags].concat());
        assert!(code == Some(2) && said.contains(word), "{flags:?}: {code:?} {said}");
    }
    let model = format!("{ROOT}/testdata/demo");
    let eval = ["eval", "-m", &model, "-i", "a.jsonl", "--scorer", "number", "-o", out];
    let said = String::from_utf8(user.call(&eval).stderr).unwrap();
    assert!(said.contains("reads its rows again"), "{said}");
    user.server.set_fault(Fault::NoConditions);
    let (code, _, said) = user.run(&["-i", "a.jsonl", "-o", out]);
    assert!(code == Some(2) && said.contains("If-None-Match"), "{said}");
    assert_eq!(user.server.names(), ["bucket/in/a.jsonl"], "nothing stays");
}
