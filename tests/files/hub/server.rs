//! A hub of one repository on 127.0.0.1 and its content network, at another port: the few
//! routes, headers and redirects of a download.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

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
    /// Small files are elsewhere too.
    AllElsewhere,
    /// A mirror that knows neither ranges nor how long a file is.
    NoRanges,
    /// Each of the next this many large files has a wrong byte. Blobs are named by sha256.
    Flipped(usize),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub host: String,
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
    /// Host and port of the content network.
    pub elsewhere: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// Serves `files` at `main` and the same with another README at `dev/next`.
    pub fn start(files: &BTreeMap<String, Vec<u8>>) -> Server {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, elsewhere) = (listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let mut dev = files.clone();
        dev.insert("tokenizer_config.json".into(), b"{\"dev\": true}".to_vec());
        let commits = BTreeMap::from([(MAIN, files.clone()), (DEV, dev)]);
        let state = State { commits, fault: Fault::None, log: Vec::new() };
        let server = Server {
            endpoint: format!("http://{}", address(&hub)),
            elsewhere: address(&elsewhere),
            state: Arc::new(Mutex::new(state)),
        };
        for listener in [hub, elsewhere] {
            let (state, elsewhere) = (server.state.clone(), server.elsewhere.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, elsewhere) = (state.clone(), elsewhere.clone());
                    // A client that goes away in the middle is part of the tests.
                    std::thread::spawn(move || answer(stream, &state, &elsewhere));
                }
            });
        }
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

/// As the hub names large files.
fn sha256(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(mut stream: TcpStream, state: &Mutex<State>, elsewhere: &str) -> Option<()> {
    let request = read_request(&stream)?;
    let fault = {
        let mut state = state.lock().unwrap();
        state.log.push(request.clone());
        state.fault
    };
    match fault {
        Fault::Close => return None,
        Fault::Hang => {
            let _ = stream.read(&mut [0]);
            return None;
        }
        Fault::Status(status, code) => {
            let headers = [("X-Error-Code", code)];
            return send(&mut stream, status, &headers, b"{\"error\":\"no\"}", &request);
        }
        _ => {}
    }

    let path = request.path.split('?').next().unwrap();
    let listed = ["models", "datasets"].into_iter();
    let mut listed =
        listed.filter_map(|kind| path.strip_prefix(&format!("/api/{kind}/{REPO}/revision/")));
    if let Some(revision) = listed.next() {
        return list(&mut stream, state, revision, &request);
    }
    let file = path.strip_prefix("/datasets").unwrap_or(path);
    if let Some(rest) = file.strip_prefix(&format!("/{REPO}/resolve/")) {
        if let Fault::FileStatus(status) = fault {
            return send(&mut stream, status, &[], b"", &request);
        }
        if rest.ends_with("/tokenizer.json") {
            let location = format!("/api/resolve-cache/{rest}");
            return send(&mut stream, 307, &[("Location", &location)], b"", &request);
        }
        return resolve(&mut stream, state, elsewhere, rest, &request);
    }
    // Behind a redirect without a host, as the hub answers for files that are not LFS.
    if let Some(rest) = path.strip_prefix("/api/resolve-cache/") {
        return resolve(&mut stream, state, elsewhere, rest, &request);
    }
    if let Some(rest) = path.strip_prefix("/cdn/") {
        let (commit, file) = rest.split_once('/')?;
        let content = state.lock().unwrap().commits.get(commit)?.get(file)?.clone();
        return send_file(&mut stream, state, &[], &content, &request);
    }
    let headers = [("X-Error-Code", "RepoNotFound")];
    send(&mut stream, 404, &headers, b"{\"error\":\"no\"}", &request)
}

fn list(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    revision: &str,
    request: &Request,
) -> Option<()> {
    let commit = match revision {
        "main" => MAIN,
        "dev%2Fnext" => DEV,
        commit => commit,
    };
    let files = state.lock().unwrap().commits.get(commit).cloned();
    let Some(files) = files else {
        return send(stream, 404, &[("X-Error-Code", "RevisionNotFound")], b"{}", request);
    };
    let siblings: Vec<serde_json::Value> = files
        .iter()
        .map(|(name, content)| serde_json::json!({"rfilename": name, "size": content.len()}))
        .collect();
    let text = serde_json::json!({"sha": commit, "id": REPO, "siblings": siblings}).to_string();
    send(stream, 200, &[("Content-Type", "application/json")], text.as_bytes(), request)
}

/// Small files are answered here, large ones by a redirect to the content network, as the hub does
/// with LFS.
fn resolve(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    elsewhere: &str,
    rest: &str,
    request: &Request,
) -> Option<()> {
    let (commit, file) = rest.split_once('/')?;
    let (content, fault) = {
        let state = state.lock().unwrap();
        (state.commits.get(commit).and_then(|files| files.get(file)).cloned(), state.fault)
    };
    let Some(content) = content else {
        return send(stream, 404, &[("X-Error-Code", "EntryNotFound")], b"", request);
    };
    let name = match fault {
        Fault::HostileEtag => "\"../../../escaped\"".to_string(),
        Fault::Flipped(_) => format!("\"{}\"", sha256(&content)),
        _ => format!("\"{}\"", etag(&content)),
    };
    if !file.ends_with(".safetensors") && fault != Fault::AllElsewhere {
        let headers = [("ETag", name.as_str()), ("X-Repo-Commit", commit)];
        return send_file(stream, state, &headers, &content, request);
    }
    let size = content.len().to_string();
    let location = format!("http://{elsewhere}/cdn/{commit}/{file}?signature=s3cret");
    let headers = [
        ("Location", location.as_str()),
        ("X-Repo-Commit", commit),
        ("X-Linked-ETag", name.as_str()),
        ("X-Linked-Size", size.as_str()),
        ("ETag", "\"of-the-pointer-file\""),
    ];
    send(stream, 302, &headers, b"", request)
}

fn send_file(
    stream: &mut TcpStream,
    state: &Mutex<State>,
    headers: &[(&str, &str)],
    content: &[u8],
    request: &Request,
) -> Option<()> {
    let is_large = content.len() > 1000;
    let mut state = state.lock().unwrap();
    let fault = state.fault;
    let asked = request.range.as_deref().filter(|_| fault != Fault::NoRanges);
    let mut first: usize = match asked {
        Some(range) => range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()?,
        None => 0,
    };
    if first > 0 && first >= content.len() {
        return send(stream, 416, headers, b"", request);
    }
    if fault == Fault::IgnoreRange && is_large {
        first = 0;
    }
    let range = format!("bytes {first}-{}/{}", content.len() - 1, content.len());
    let mut headers = headers.to_vec();
    if asked.is_some() {
        headers.push(("Content-Range", &range));
    }
    let status = if asked.is_some() { 206 } else { 200 };
    let mut body = content[first..].to_vec();
    match fault {
        Fault::Short if is_large => body.truncate(body.len() - 10),
        Fault::Flipped(left @ 1..) if is_large && request.method == "GET" => {
            state.fault = Fault::Flipped(left - 1);
            *body.last_mut()? ^= 1;
        }
        Fault::Cut(left @ 1..) if is_large && request.method == "GET" => {
            state.fault = Fault::Cut(left - 1);
            drop(state);
            write_head(stream, status, &headers, Some(body.len()))?;
            return stream.write_all(&body[..body.len() / 3]).ok();
        }
        Fault::NoRanges => {
            drop(state);
            write_head(stream, status, &headers, None)?;
            return write_body(stream, &body, request);
        }
        _ => {}
    }
    drop(state);
    send(stream, status, &headers, &body, request)
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let start = lines.next()?;
    let (method, rest) = start.split_once(' ')?;
    let path = rest.split(' ').next()?.to_string();
    let (method, host) = (method.to_string(), String::new());
    let mut request = Request { method, host, path, range: None, authorization: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "host" => request.host = value.to_string(),
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
    length: Option<usize>,
) -> Option<()> {
    let mut head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
    if let Some(length) = length {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()
}

/// HEAD has none.
fn write_body(stream: &mut TcpStream, body: &[u8], request: &Request) -> Option<()> {
    if request.method == "HEAD" { Some(()) } else { stream.write_all(body).ok() }
}

fn send(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    request: &Request,
) -> Option<()> {
    write_head(stream, status, headers, Some(body.len()))?;
    write_body(stream, body, request)
}
