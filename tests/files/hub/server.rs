//! A hub of one repository on 127.0.0.1: the few routes, headers and redirects of a download.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const MAIN: &str = "1111111111111111111111111111111111111111";
pub const DEV: &str = "2222222222222222222222222222222222222222";
pub const REPO: &str = "tiny-org/Tiny-Llama_1.5";

/// How the server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// Every request gets this status and `X-Error-Code`.
    Status(u16, &'static str),
    /// Only file requests do; the list of files is public.
    FileStatus(u16),
    /// The connection is closed without an answer.
    Close,
    /// Accepts and never answers.
    Hang,
    /// Each of the next this many bodies of large files ends early.
    Cut(usize),
    /// Large files are sent whole whatever range was asked for.
    IgnoreRange,
    /// Large files are sent with their last bytes missing, and nothing says so.
    Short,
    /// The blob name is a path.
    HostileEtag,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

struct State {
    /// Commit -> file -> content.
    commits: BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>,
    fault: Fault,
    log: Vec<Request>,
}

pub struct Server {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// Serves `files` at `main` and the same with another README at `dev/next`.
    pub fn start(files: &BTreeMap<String, Vec<u8>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mut dev = files.clone();
        dev.insert("tokenizer_config.json".into(), b"{\"dev\": true}".to_vec());
        let commits = BTreeMap::from([(MAIN, files.clone()), (DEV, dev)]);
        let state = State { commits, fault: Fault::None, log: Vec::new() };
        let server = Server { endpoint, state: Arc::new(Mutex::new(state)) };
        let (state, endpoint) = (server.state.clone(), server.endpoint.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, endpoint) = (state.clone(), endpoint.clone());
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || answer(stream, &state, &endpoint));
            }
        });
        server
    }

    pub fn set_fault(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    /// The requests since the last call.
    pub fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

/// Not a hash that anyone would trust, but one name per content.
pub fn etag(content: &[u8]) -> String {
    let hash = content.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:040x}")
}

fn answer(mut stream: TcpStream, state: &Mutex<State>, endpoint: &str) -> Option<()> {
    let request = read_request(&stream)?;
    let fault = {
        let mut state = state.lock().unwrap();
        state.log.push(request.clone());
        state.fault
    };
    match fault {
        Fault::Close => return None,
        Fault::Hang => {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        Fault::Status(status, code) => {
            return send(&mut stream, status, &[("X-Error-Code", code)], b"{\"error\":\"no\"}");
        }
        _ => {}
    }

    let path = request.path.split('?').next().unwrap();
    if let Some(revision) = path.strip_prefix(&format!("/api/models/{REPO}/revision/")) {
        return list(&mut stream, state, revision);
    }
    if let Some(rest) = path.strip_prefix(&format!("/{REPO}/resolve/")) {
        if let Fault::FileStatus(status) = fault {
            return send(&mut stream, status, &[], b"");
        }
        if rest.ends_with("/tokenizer.json") {
            let location = format!("/api/resolve-cache/{rest}");
            return send(&mut stream, 307, &[("Location", &location)], b"");
        }
        return resolve(&mut stream, state, endpoint, rest, &request, fault);
    }
    // Behind a redirect without a host, as the hub answers for files that are not LFS.
    if let Some(rest) = path.strip_prefix("/api/resolve-cache/") {
        return resolve(&mut stream, state, endpoint, rest, &request, fault);
    }
    if let Some(rest) = path.strip_prefix("/cdn/") {
        let (commit, file) = rest.split_once('/')?;
        let content = state.lock().unwrap().commits.get(commit)?.get(file)?.clone();
        return send_file(&mut stream, state, &[], &content, &request, fault);
    }
    send(&mut stream, 404, &[("X-Error-Code", "RepoNotFound")], b"{\"error\":\"no\"}")
}

fn list(stream: &mut TcpStream, state: &Mutex<State>, revision: &str) -> Option<()> {
    let commit = match revision {
        "main" => MAIN,
        "dev%2Fnext" => DEV,
        commit => commit,
    };
    let files = state.lock().unwrap().commits.get(commit).cloned();
    let Some(files) = files else {
        return send(stream, 404, &[("X-Error-Code", "RevisionNotFound")], b"{}");
    };
    let siblings: Vec<serde_json::Value> = files
        .iter()
        .map(|(name, content)| serde_json::json!({"rfilename": name, "size": content.len()}))
        .collect();
    let text = serde_json::json!({"sha": commit, "id": REPO, "siblings": siblings}).to_string();
    send(stream, 200, &[("Content-Type", "application/json")], text.as_bytes())
}

/// Small files are answered here, large ones by a redirect to the "CDN", as the hub does with LFS.
fn resolve(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    endpoint: &str,
    rest: &str,
    request: &Request,
    fault: Fault,
) -> Option<()> {
    let (commit, file) = rest.split_once('/')?;
    let content =
        state.lock().unwrap().commits.get(commit).and_then(|files| files.get(file)).cloned();
    let Some(content) = content else {
        return send(stream, 404, &[("X-Error-Code", "EntryNotFound")], b"");
    };
    let name = match fault {
        Fault::HostileEtag => "\"../../../escaped\"".to_string(),
        _ => format!("\"{}\"", etag(&content)),
    };
    if !file.ends_with(".safetensors") {
        let headers = [("ETag", name.as_str()), ("X-Repo-Commit", commit)];
        return send_file(stream, state, &headers, &content, request, fault);
    }
    let size = content.len().to_string();
    let location = format!("{endpoint}/cdn/{commit}/{file}?signature=s3cret");
    let headers = [
        ("Location", location.as_str()),
        ("X-Repo-Commit", commit),
        ("X-Linked-ETag", name.as_str()),
        ("X-Linked-Size", size.as_str()),
        ("ETag", "\"of-the-pointer-file\""),
    ];
    send(stream, 302, &headers, b"")
}

fn send_file(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    headers: &[(&str, &str)],
    content: &[u8],
    request: &Request,
    fault: Fault,
) -> Option<()> {
    let (first, last) = request.range.as_deref()?.strip_prefix("bytes=")?.split_once('-')?;
    let mut first: usize = first.parse().ok()?;
    let last = last.parse().unwrap_or(content.len() - 1);
    if first >= content.len() {
        return send(stream, 416, headers, b"");
    }
    let is_probe = last == 0;
    if fault == Fault::IgnoreRange && !is_probe && content.len() > 1000 {
        first = 0;
    }
    let range = format!("bytes {first}-{last}/{}", content.len());
    let mut headers = headers.to_vec();
    headers.push(("Content-Range", &range));
    let mut body = &content[first..=last];
    if fault == Fault::Short && body.len() > 1000 {
        body = &body[..body.len() - 10];
    }
    if let Fault::Cut(left @ 1..) = fault
        && body.len() > 1000
    {
        state.lock().unwrap().fault = Fault::Cut(left - 1);
        write_head(stream, 206, &headers, body.len())?;
        return stream.write_all(&body[..body.len() / 3]).ok();
    }
    send(stream, 206, &headers, body)
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let start = lines.next()?;
    let path = start.strip_prefix("GET ")?.split(' ').next()?.to_string();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_string()),
            "authorization" => request.authorization = Some(value.to_string()),
            _ => {}
        }
    }
    Some(request)
}

fn write_head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    length: usize,
) -> Option<()> {
    let mut head =
        format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()
}

fn send(stream: &mut TcpStream, status: u16, headers: &[(&str, &str)], body: &[u8]) -> Option<()> {
    write_head(stream, status, headers, body.len())?;
    stream.write_all(body).ok()
}
