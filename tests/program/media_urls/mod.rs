//! Images at URLs, from a server of this machine: what is fetched, what may not be, and that
//! fetching ahead changes no row.

mod resumed;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
const MEDIA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/media");

/// A server of pictures.
struct Server {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// How often each path was asked for.
    asked: Mutex<HashMap<String, u32>>,
    /// Pictures of paths that are no files.
    drawn: Mutex<HashMap<String, Vec<u8>>>,
    /// It answers nobody.
    is_gone: AtomicBool,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let of_server = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&of_server);
                std::thread::spawn(move || drop(answer(&stream.unwrap(), &state)));
            }
        });
        Self { port, state }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn num_asked(&self, path: &str) -> u32 {
        self.state.asked.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    /// Requests since the last call, by their paths.
    fn take_asked(&self) -> HashMap<String, u32> {
        std::mem::take(&mut *self.state.asked.lock().unwrap())
    }

    /// Gives a path a picture.
    fn draw(&self, path: &str, picture: Vec<u8>) {
        self.state.drawn.lock().unwrap().insert(path.to_owned(), picture);
    }

    fn set_gone(&self, is_gone: bool) {
        self.state.is_gone.store(is_gone, Ordering::SeqCst);
    }
}

/// Answers the requests of a connection.
fn answer(stream: &TcpStream, state: &State) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
        while line.trim() != "" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        let nth = {
            let mut counts = state.asked.lock().unwrap();
            let count = counts.entry(path.clone()).or_default();
            *count += 1;
            *count
        };
        if state.is_gone.load(Ordering::SeqCst) {
            return Ok(());
        }
        let drawn = state.drawn.lock().unwrap().get(&path).cloned();
        let (status, location, body) =
            drawn.map_or_else(|| page(&path, nth), |picture| (200, None, picture));
        let mut stream = stream;
        write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n", body.len())?;
        if let Some(location) = location {
            write!(stream, "Location: {location}\r\n")?;
        }
        write!(stream, "\r\n")?;
        stream.write_all(&body)?;
    }
}

/// Status, target and bytes of a path, asked for the nth time.
fn page(path: &str, nth: u32) -> (u16, Option<String>, Vec<u8>) {
    let to = |target: &str| (302, Some(target.to_owned()), Vec::new());
    let (name, _) = path.trim_start_matches('/').split_once('?').unwrap_or((&path[1..], ""));
    match name {
        "moved/deep" => to("../rgb.png"),
        "moved" => to("/moved/deep"),
        "around" => to("/around"),
        "metadata" => to("http://169.254.169.254/latest/meta-data"),
        "inside" => to("http://localhost/rgb.png"),
        "file" => to("file:///etc/passwd"),
        "busy" => (503, None, Vec::new()),
        "flaky" if nth == 1 => (500, None, Vec::new()),
        "flaky" => (200, None, fs::read(Path::new(MEDIA).join("rgb.png")).unwrap()),
        "private" => (403, None, Vec::new()),
        "never" => {
            std::thread::sleep(Duration::from_secs(600));
            (503, None, Vec::new())
        }
        name => match fs::read(Path::new(MEDIA).join(name)) {
            Ok(bytes) => (200, None, bytes),
            Err(_) => (404, None, b"<html>no</html>".to_vec()),
        },
    }
}

struct Said {
    code: i32,
    out: String,
    errors: String,
}

fn program(folder: &Path, flags: &[&str]) -> Said {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        errors: text(output.stderr),
    }
}

fn run(folder: &Path, flags: &[&str]) -> Said {
    let always = ["run", "--model", SEES, "--max-tokens", "4", "--temperature", "0"];
    let input = ["-i", "in.jsonl", "--template", "Describe the image."];
    program(folder, &[&always[..], &input, flags].concat())
}

/// Allows the server's address.
const ALLOWED: [&str; 3] = ["--allow-media-urls", "--allowed-media-domains", "127.0.0.1"];

fn folder(images: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let line = |image: &Value| format!("{}\n", json!({"image": image}));
    fs::write(folder.path().join("in.jsonl"), images.iter().map(line).collect::<String>()).unwrap();
    folder
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn codes(text: &str) -> Vec<String> {
    let code = |row: &Value| row["error"]["code"].as_str().unwrap_or("ok").to_owned();
    rows(text).iter().map(code).collect()
}

#[test]
fn images_of_urls_are_those_of_files_and_asked_for_once() {
    let server = Server::start();
    let names = ["rgb.png", "l.png", "24_420_20x16_q95.jpg", "lossy0.webp"];
    let mut images = Vec::new();
    for round in 0..40 {
        images.push(json!(server.url(&format!("/{}?round={}", names[round % 4], round / 8))));
    }
    images.push(json!([server.url("/moved"), server.url("/flaky")]));
    let asked = folder(&images);
    let said = run(asked.path(), &ALLOWED);
    assert_eq!(said.code, 0, "{}", said.errors);
    // Twice in the rows that are read ahead: one request.
    assert_eq!(server.num_asked("/rgb.png?round=0"), 1);
    assert_eq!((server.num_asked("/flaky"), server.num_asked("/rgb.png")), (2, 1));
    let path = |name: &str| json!(format!("{MEDIA}/{name}"));
    let mut files: Vec<Value> = (0..40).map(|round| path(names[round % 4])).collect();
    files.push(json!([path("rgb.png"), path("rgb.png")]));
    let local = folder(&files);
    let same = run(local.path(), &["--allowed-local-media-path", MEDIA]);
    let responses = |said: &Said| -> Vec<Value> {
        rows(&said.out).iter().map(|row| row["response"].clone()).collect()
    };
    assert_eq!(responses(&said), responses(&same));
    assert!(responses(&said).iter().all(Value::is_string), "{}", said.out);
}

#[test]
fn what_may_not_be_asked_for_is_an_error_row() {
    let server = Server::start();
    let url = |path: &str| server.url(path);
    let cases = [
        (url("/rgb.png"), "ok"),
        (url("/none.png"), "media_not_found"),
        (url("/private"), "media_unavailable"),
        (url("/busy"), "media_unavailable"),
        (url("/around"), "media_unavailable"),
        (url("/metadata"), "media_forbidden"),
        (url("/inside"), "media_forbidden"),
        (url("/file"), "media_forbidden"),
        (url("/decoded.jsonl"), "media_decode"),
        (url("/rgb.png").replace("127.0.0.1", "localhost"), "media_forbidden"),
        (url("/rgb.png").replace("127.0.0.1", "user@127.0.0.1"), "media_forbidden"),
        ("http://127.0.0.1:1/a.png".to_owned(), "media_unavailable"),
        ("http:///a.png".to_owned(), "media_format"),
        ("https://example.com/a.png".to_owned(), "media_forbidden"),
        ("ftp://127.0.0.1/a.png".to_owned(), "media_forbidden"),
    ];
    let images: Vec<Value> = cases.iter().map(|(url, _)| json!(url)).collect();
    let folder = folder(&images);
    let said = run(folder.path(), &ALLOWED);
    let found = codes(&said.out);
    for ((url, code), found) in cases.iter().zip(&found) {
        assert_eq!(found, code, "{url}: {}", said.out);
    }
    assert_eq!(server.num_asked("/busy"), 3, "tried again");
    assert_eq!(server.num_asked("/none.png"), 1, "it will be so again");
    // Without the flag nothing is asked for, and without the address no private one.
    let before = server.num_asked("/rgb.png");
    let said = run(folder.path(), &[]);
    assert!(codes(&said.out).iter().all(|code| code != "ok"), "{}", said.out);
    assert!(said.out.contains("--allow-media-urls"), "{}", said.out);
    let check = ["check", "in.jsonl", "--template", "Describe.", "--allow-media-urls", "--limit"];
    let said = program(folder.path(), &[&check[..], &["1"]].concat());
    let what = "the host is at no address of the public internet";
    assert!(said.code == 2 && said.errors.contains(what), "{}", said.errors);
    assert_eq!(server.num_asked("/rgb.png"), before);
    let said = run(folder.path(), &["--allowed-media-domains", "127.0.0.1"]);
    assert!(said.code == 2 && said.errors.contains("--allow-media-urls"), "{}", said.errors);
}
