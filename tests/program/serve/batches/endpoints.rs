//! What the endpoints of files and batches take and refuse.

use std::io::Write;

use serde_json::{Value, json};

use super::{DEMO, FORM, Home, Server, form, line, long_lines};
use crate::serve::client::request;

const PATH: &str = "/v1/completions";

#[test]
fn files_are_kept_listed_read_in_parts_and_deleted() {
    let home = Home::new(DEMO, &[]);
    let server = home.serve();
    let content = "line one\nline zwei é\n";
    let named = [
        ("purpose", "user_data"),
        ("expires_after[anchor]", "created_at"),
        ("expires_after[seconds]", "3600"),
    ];
    let file = server.send_form(&form(&named, "../../etc/passwd", content)).json();
    let id = file["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&file["bytes"], &file["filename"]),
        (&json!(content.len()), &json!("../../etc/passwd"))
    );
    assert_eq!(file["expires_at"].as_i64().unwrap() - file["created_at"].as_i64().unwrap(), 3600);
    assert_eq!(server.get(&format!("/v1/files/{id}")).json(), file);
    let path = format!("/v1/files/{id}/content");
    let whole = server.get(&path);
    assert_eq!((whole.body.as_str(), whole.header("accept-ranges")), (content, Some("bytes")));
    let tag = whole.header("etag").unwrap().to_owned();
    let part = |range: &str, tag: &str| {
        let headers = [("Range", range), ("If-Range", tag)];
        let reply = server.ask(&format!("GET {path}"), &headers, "");
        let range = reply.header("content-range").unwrap_or_default().to_owned();
        (reply.status, reply.body, range)
    };
    let length = content.len();
    assert_eq!(part("bytes=5-7", &tag), (206, "one".to_owned(), format!("bytes 5-7/{length}")));
    assert_eq!(part("bytes=9-", &tag).1, &content[9..]);
    assert_eq!(part("bytes=5-7", "\"other\""), (200, content.to_owned(), String::new()));
    assert_eq!(part("bytes=900-", &tag), (416, String::new(), format!("bytes */{length}")));
    let second = server.upload(content);
    let listed = |query: &str| {
        let list = server.get(&format!("/v1/files{query}")).json();
        let ids = list["data"].as_array().unwrap().iter().map(|file| file["id"].clone());
        (ids.collect::<Vec<_>>(), list["has_more"].as_bool().unwrap())
    };
    assert_eq!(listed(""), (vec![json!(second), json!(id)], false));
    assert_eq!(listed("?order=asc&limit=1"), (vec![json!(id)], true));
    assert_eq!(listed(&format!("?order=asc&limit=1&after={id}")), (vec![json!(second)], false));
    assert_eq!(listed("?purpose=batch").0, [json!(second)]);
    let deleted = server.ask(&format!("DELETE /v1/files/{id}"), &[], "").json();
    assert_eq!(deleted, json!({"id": id, "object": "file", "deleted": true}));
    for path in [&path, "/v1/files/..%2F..%2Flock", "/v1/files/..%2Flock/content", "/v1/files/x"] {
        let reply = server.get(path);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (404, &json!("not_found")),
            "{path}"
        );
    }
}

#[test]
fn forms_that_are_none_are_refused_by_name() {
    let home = Home::new(DEMO, &["--max-file-bytes", "1000"]);
    let server = home.serve();
    let batch = [("purpose", "batch")];
    let sent = |form: &str| {
        let reply = server.send_form(form);
        (reply.status, reply.json()["error"]["param"].clone())
    };
    assert_eq!(sent(&form(&[], "a", "b")), (400, json!("purpose")));
    assert_eq!(sent(&form(&[("purpose", "fun")], "a", "b")), (400, json!("purpose")));
    for expiry in [
        [("expires_after[seconds]", "1")],
        [("expires_after[anchor]", "now")],
        [("expires_after[anchor]", "created_at")],
    ] {
        let fields = [&batch[..], &expiry].concat();
        assert_eq!(sent(&form(&fields, "a", "b")), (400, json!("expires_after")));
    }
    assert_eq!(sent(&form(&batch, "a", &"x".repeat(1001))).0, 413);
    assert_eq!(sent(&form(&batch, "a", &"x".repeat(1000))).0, 200);
    let without = form(&batch, "a", "b").replace("name=\"file\"", "name=\"data\"");
    assert_eq!(sent(&without), (400, json!("file")));
    assert_eq!(sent("--edge\r\n").0, 400);
    assert_eq!(server.ask("POST /v1/files", &[], "{}").status, 415);
    // Whoever goes away in the middle leaves nothing.
    let cut = form(&batch, "a", &"x".repeat(900));
    let text = request("POST /v1/files", &[FORM], &cut);
    server.connect().write_all(&text.as_bytes()[..text.len() - 300]).unwrap();
    let files = home.batches().join("files");
    let is_left = || {
        let mut names = std::fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().ends_with(".unfinished"))
    };
    while is_left() {
        std::thread::yield_now();
    }
    assert_eq!(server.get("/v1/files").json()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn a_key_is_asked_for() {
    let home = Home::new(DEMO, &["--api-key", "right"]);
    let server = home.serve();
    for head in ["GET /v1/files", "POST /v1/files", "GET /v1/batches/x", "GET /v1/messages/batches"]
    {
        assert_eq!(server.ask(head, &[], "").status, 401, "{head}");
    }
    let known = server.ask("GET /v1/files", &[("Authorization", "Bearer right")], "");
    assert_eq!(known.status, 200);
}

fn created(server: &Server, changed: &[(&str, Value)], input: &str) -> (u16, Value) {
    let mut asked = json!({"input_file_id": input, "endpoint": PATH, "completion_window": "24h"});
    for (name, value) in changed {
        asked[*name] = value.clone();
    }
    let reply = server.post("/v1/batches", &asked);
    (reply.status, reply.json()["error"]["param"].clone())
}

#[test]
fn batches_that_cannot_be_are_refused_when_they_are_asked_for() {
    let home = Home::new(DEMO, &[]);
    let server = home.serve();
    let input = server.upload(&long_lines(2, 2));
    for (name, value, status) in [
        ("input_file_id", json!("file-x"), 404),
        ("input_file_id", json!(null), 400),
        ("endpoint", json!("/v1/embeddings"), 400),
        ("endpoint", json!("/v1/completions/"), 400),
        ("completion_window", json!("soon"), 400),
        ("completion_window", json!(24), 400),
        ("metadata", json!({"a": 1}), 400),
        ("output_expires_after", json!({"anchor": "created_at", "seconds": 5}), 400),
    ] {
        let (found, param) = created(&server, &[(name, value.clone())], &input);
        let expected = if status == 404 { "id" } else { name };
        assert_eq!((found, param), (status, json!(expected)), "{name} {value}");
    }
    let data = server.send_form(&form(&[("purpose", "evals")], "a", "b")).json();
    let id = data["id"].as_str().unwrap();
    assert_eq!(created(&server, &[], id), (400, json!("input_file_id")));
    for body in ["", "[]", "{", "7"] {
        assert_eq!(server.ask("POST /v1/batches", &[], body).status, 400, "{body}");
    }
    assert!(server.get("/v1/batches").json()["data"].as_array().unwrap().is_empty());
    for path in ["/v1/batches/x", "/v1/batches/..%2Flock"] {
        assert_eq!(server.get(path).status, 404);
    }
    assert_eq!(server.cancel("x").status, 404);
}

#[test]
fn a_wrong_line_fails_the_batch_and_is_named() {
    let home = Home::new(DEMO, &[]);
    let server = home.serve();
    let mut other = line(9, 2);
    other["body"]["model"] = json!("another");
    let lines = [line(0, 2).to_string(), "{".to_owned(), line(0, 2).to_string(), other.to_string()];
    let batch = server.ended_batch(&server.begin(PATH, &lines.join("\n")));
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &json!(null)));
    let errors = batch["errors"]["data"].as_array().unwrap();
    let named: Vec<_> = errors.iter().map(|error| (&error["code"], &error["line"])).collect();
    let expected = [
        (json!("invalid_json_line"), json!(2)),
        (json!("duplicate_custom_id"), json!(3)),
        (json!("model_mismatch"), json!(4)),
    ];
    assert_eq!(named, expected.iter().map(|(code, line)| (code, line)).collect::<Vec<_>>());
    let counts = json!({"total": 0, "completed": 0, "failed": 0});
    assert_eq!(batch["request_counts"], counts);
    let empty = server.ended_batch(&server.begin(PATH, "\n"));
    assert_eq!(empty["errors"]["data"][0]["code"], "empty_file");
    // The next one is answered. All of its lines are wrong, each by itself.
    let batch = server.ended_batch(&server.begin(PATH, &(line(3, 2).to_string() + "\n")));
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("completed"), &json!(null)));
    assert_eq!(batch["request_counts"], json!({"total": 1, "completed": 0, "failed": 1}));
    // They are listed, the newest first.
    let first = server.get("/v1/batches?limit=2").json();
    assert_eq!((&first["first_id"], &first["has_more"]), (&batch["id"], &json!(true)));
    let after = first["last_id"].as_str().unwrap();
    let rest = server.get(&format!("/v1/batches?after={after}")).json();
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (1, &json!(false)));
}

#[test]
fn without_a_folder_there_are_none_and_two_servers_have_none_in_common() {
    let server = Server::start(DEMO, &[]);
    for path in ["/v1/files", "/v1/batches", "/v1/messages/batches"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404);
        assert!(reply.body.contains("--batch-dir"), "{}", reply.body);
    }
    let home = Home::new(DEMO, &[]);
    let _server = home.serve();
    let refused = |model: &str, dir: &std::path::Path| {
        let mut command = std::process::Command::new(super::program());
        command.args(["serve", "--model", model, "--port", "0", "--batch-dir"]).arg(dir);
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let said = refused(DEMO, &home.batches());
    assert!(said.contains("error[batch_dir]") && said.contains("another server has it"), "{said}");
    let said = refused("testdata/golden_classifiers/bert", home.dir.path());
    assert!(said.contains("--batch-dir: lines of batches do not ask for classes"), "{said}");
    // What is said of batches is of no use without them.
    for flags in [&["--max-file-bytes", "1KiB"][..], &["--enforce-completion-window"]] {
        let mut command = std::process::Command::new(super::program());
        command.args(["serve", "--model", DEMO, "--port", "0"]).args(flags);
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--batch-dir"), "{said}");
    }
}
