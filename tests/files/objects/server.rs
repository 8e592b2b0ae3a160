//! An object store on 127.0.0.1, in memory: as much of S3's requests as a run makes, answered well
//! or badly. Signatures are not checked: the reference's own are, beside the code.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// How the server misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Each of the next this many requests gets this status and word.
    Status(u16, &'static str, usize),
    /// The connection of each of the next this many is closed without an answer.
    Close(usize),
    /// Each of the next this many bodies ends early.
    Cut(usize),
    /// Nothing is ever answered.
    Hang,
    /// Each of the next this many requests is heard, and its answer lost.
    LostAnswer(usize),
    /// All of the object comes, whatever was asked for.
    IgnoreRange,
    /// Other bytes come, as their header says.
    OtherRange,
    /// Conditions are passed over.
    NoConditions,
    /// After this many requests no other is heard.
    DeadAfter(usize),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// `bucket/key`
    pub name: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

#[derive(Clone)]
struct Stored {
    bytes: Vec<u8>,
    etag: String,
    blake3: Option<String>,
}

/// An upload in parts.
#[derive(Clone, Default)]
struct Upload {
    parts: BTreeMap<u32, Vec<u8>>,
    blake3: Option<String>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Upload>,
    fault: Fault,
    log: Vec<Request>,
    count: usize,
    held: Held,
}

/// A request that is under way while others are answered.
#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    /// The next PUT of this name is held.
    Next(String),
    /// It is.
    Now,
}

pub struct Server {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        Server { endpoint, state }
    }

    pub fn set_fault(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    /// Puts an object there, as another client would.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        self.state.lock().unwrap().put(name, bytes.to_vec(), None);
    }

    /// Holds the next PUT of an object until `release`.
    pub fn hold(&self, name: &str) {
        self.state.lock().unwrap().held = Held::Next(name.to_owned());
    }

    /// Whether it is held.
    pub fn is_holding(&self) -> bool {
        matches!(self.state.lock().unwrap().held, Held::Now)
    }

    /// Lets it go on.
    pub fn release(&self) {
        self.state.lock().unwrap().held = Held::Nothing;
    }

    pub fn remove(&self, name: &str) {
        self.state.lock().unwrap().objects.remove(name);
    }

    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(name).map(|stored| stored.bytes.clone())
    }

    pub fn names(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Uploads in parts that were begun and neither completed nor aborted.
    pub fn num_uploads(&self) -> usize {
        self.state.lock().unwrap().uploads.len()
    }

    /// The requests since the last call.
    pub fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

impl State {
    fn put(&mut self, name: &str, bytes: Vec<u8>, blake3: Option<String>) -> String {
        self.count += 1;
        let etag = format!("\"{:032x}\"", self.count);
        self.objects.insert(name.to_owned(), Stored { bytes, etag: etag.clone(), blake3 });
        etag
    }

    /// What becomes of a request, and whether the answer arrives.
    fn next_fault(&mut self) -> Fault {
        let fault = self.fault;
        let less = |left: usize, then: fn(usize) -> Fault| match left {
            0 => Fault::None,
            _ => then(left),
        };
        self.fault = match fault {
            Fault::Status(status, word, left) if left > 1 => Fault::Status(status, word, left - 1),
            Fault::Status(..) => Fault::None,
            Fault::Close(left) => less(left - 1, Fault::Close),
            Fault::Cut(left) => less(left - 1, Fault::Cut),
            Fault::LostAnswer(left) => less(left - 1, Fault::LostAnswer),
            Fault::DeadAfter(left) => Fault::DeadAfter(left.saturating_sub(1)),
            other => other,
        };
        fault
    }
}

/// An answer before it is written.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn blake3_of(request: &Request) -> Option<String> {
    request.headers.get("x-amz-meta-vllm-batch-blake3").cloned()
}

fn plain(status: u16, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, headers: Vec::new(), body: body.into() }
}

fn error(status: u16, word: &str) -> Answer {
    plain(status, format!("<Error><Code>{word}</Code><Message>key s3cret</Message></Error>"))
}

/// Waits while a request is held.
fn hold_back(request: &Request, state: &Mutex<State>) {
    {
        let mut state = state.lock().unwrap();
        match &state.held {
            Held::Next(name) if request.method == "PUT" && *name == request.name => {
                state.held = Held::Now;
            }
            _ => return,
        }
    }
    while matches!(state.lock().unwrap().held, Held::Now) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let request = read_request(&stream)?;
    hold_back(&request, state);
    let mut state = state.lock().unwrap();
    let fault = state.next_fault();
    if fault == Fault::DeadAfter(0) {
        return None;
    }
    state.log.push(request.clone());
    let answer = match fault {
        Fault::Close(_) => return None,
        Fault::Hang => {
            drop(state);
            let _ = stream.read(&mut [0]);
            return None;
        }
        Fault::Status(status, word, _) => error(status, word),
        _ => state.answer(&request, fault),
    };
    drop(state);
    if let Fault::LostAnswer(_) = fault {
        return None;
    }
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", answer.status);
    if answer.headers.iter().all(|(name, _)| *name != "Content-Length") {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    let length = match fault {
        _ if request.method == "HEAD" => 0,
        Fault::Cut(_) => answer.body.len() / 2,
        _ => answer.body.len(),
    };
    stream.write_all(&answer.body[..length]).ok()
}

impl State {
    fn answer(&mut self, request: &Request, fault: Fault) -> Answer {
        let upload = request.query.get("uploadId").cloned();
        match (request.method.as_str(), upload) {
            ("GET" | "HEAD", _) if request.name.ends_with('/') => self.list(request),
            ("GET" | "HEAD", _) => self.read(request, fault),
            ("PUT", Some(id)) => {
                let Some(upload) = self.uploads.get_mut(&id) else {
                    return error(404, "NoSuchUpload");
                };
                let number = request.query["partNumber"].parse().unwrap();
                upload.parts.insert(number, request.body.clone());
                let headers = vec![("ETag", format!("\"part-{number}\""))];
                Answer { headers, ..plain(200, "") }
            }
            ("PUT", None) => self.write(request, request.body.clone(), blake3_of(request), fault),
            ("POST", None) if request.query.contains_key("uploads") => {
                self.count += 1;
                let id = format!("id-{}", self.count);
                let upload = Upload { blake3: blake3_of(request), ..Upload::default() };
                self.uploads.insert(id.clone(), upload);
                plain(200, format!("<R><UploadId>{id}</UploadId></R>"))
            }
            ("POST", Some(id)) => {
                let Some(upload) = self.uploads.get(&id).cloned() else {
                    return error(404, "NoSuchUpload");
                };
                let bytes = upload.parts.into_values().flatten().collect();
                let answer = self.write(request, bytes, upload.blake3, fault);
                if answer.status == 200 {
                    self.uploads.remove(&id);
                }
                answer
            }
            ("DELETE", Some(id)) => {
                self.uploads.remove(&id);
                plain(204, "")
            }
            ("DELETE", None) => {
                self.objects.remove(&request.name);
                plain(204, "")
            }
            _ => error(405, "MethodNotAllowed"),
        }
    }

    fn write(
        &mut self,
        request: &Request,
        bytes: Vec<u8>,
        blake3: Option<String>,
        fault: Fault,
    ) -> Answer {
        let must_be_new = request.headers.get("if-none-match").is_some_and(|value| value == "*");
        if must_be_new && fault != Fault::NoConditions && self.objects.contains_key(&request.name) {
            return error(412, "PreconditionFailed");
        }
        if let Some(wanted) = request.headers.get("if-match")
            && fault != Fault::NoConditions
        {
            match self.objects.get(&request.name) {
                None => return error(404, "NoSuchKey"),
                Some(stored) if stored.etag != *wanted => return error(412, "PreconditionFailed"),
                Some(_) => {}
            }
        }
        let etag = self.put(&request.name, bytes, blake3);
        Answer { headers: vec![("ETag", etag)], ..plain(200, "<R></R>") }
    }

    fn read(&mut self, request: &Request, fault: Fault) -> Answer {
        let Some(stored) = self.objects.get(&request.name).cloned() else {
            return error(404, "NoSuchKey");
        };
        let wanted = request.headers.get("if-match");
        if wanted.is_some_and(|etag| *etag != stored.etag) && fault != Fault::NoConditions {
            return error(412, "PreconditionFailed");
        }
        let mut headers = vec![("ETag", stored.etag)];
        headers.extend(stored.blake3.map(|value| ("x-amz-meta-vllm-batch-blake3", value)));
        let size = stored.bytes.len();
        if request.method == "HEAD" {
            headers.push(("Content-Length", size.to_string()));
            return Answer { headers, ..plain(200, "") };
        }
        let range = request.headers.get("range").filter(|_| fault != Fault::IgnoreRange);
        let Some(range) = range else {
            return Answer { headers, ..plain(200, stored.bytes) };
        };
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (mut first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        if first >= size {
            return error(416, "InvalidRange");
        }
        if fault == Fault::OtherRange {
            first += 1;
        }
        let last = last.min(size - 1);
        headers.push(("Content-Range", format!("bytes {first}-{last}/{size}")));
        Answer { headers, ..plain(206, &stored.bytes[first..=last]) }
    }

    /// Two names at a time, so that lists have several pages.
    fn list(&self, request: &Request) -> Answer {
        let bucket = &request.name;
        let begun = format!("{bucket}{}", request.query["prefix"]);
        let after = request.query.get("continuation-token");
        let names = self.objects.iter().filter(|(name, _)| name.starts_with(&begun));
        let mut names =
            names.filter(|(name, _)| after.is_none_or(|after| *name > after)).peekable();
        let (mut text, mut last) = (String::new(), String::new());
        for (name, stored) in names.by_ref().take(2) {
            let key = name[bucket.len()..].replace('%', "%25").replace(' ', "+");
            let size = stored.bytes.len();
            text.push_str(&format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>"));
            last.clone_from(name);
        }
        let more = names.peek().is_some();
        let next = if more {
            format!("<NextContinuationToken>{last}</NextContinuationToken>")
        } else {
            String::new()
        };
        plain(
            200,
            format!(
                "<R><IsTruncated>{more}</IsTruncated><EncodingType>url</EncodingType>{text}{next}</R>"
            ),
        )
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut start = String::new();
    reader.read_line(&mut start).ok()?;
    let (method, rest) = start.split_once(' ')?;
    let (path, query) =
        rest.split(' ').next().map(|url| url.split_once('?').unwrap_or((url, "")))?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    Some(Request {
        method: method.to_owned(),
        name: decoded(path.trim_start_matches('/')),
        query: query.map(|(name, value)| (decoded(name), decoded(value))).collect(),
        headers,
        body,
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = |rest: &mut std::str::Bytes<'_>| [rest.next().unwrap(), rest.next().unwrap()];
        bytes.push(match byte {
            b'%' => {
                let digits = digits(&mut rest);
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
