//! A server that a test has started, and a client that sends what it is told, byte for byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server; killed when it is dropped.
pub struct Server {
    child: Child,
    pub address: String,
    /// Reads its standard error.
    said: Option<JoinHandle<String>>,
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Names are in small letters.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Events of a stream, without the last one.
    pub fn events(&self) -> Vec<Value> {
        let events: Vec<&str> = self.body.split_terminator("\n\n").collect();
        let (last, events) = events.split_last().expect("a stream has an end");
        assert_eq!(*last, "data: [DONE]", "{}", self.body);
        let data = |event: &&str| event.strip_prefix("data: ").expect("an event").to_owned();
        events.iter().map(|event| serde_json::from_str(&data(event)).expect("JSON")).collect()
    }
}

impl Server {
    /// Starts a server on a free port.
    pub fn start(model: &str, flags: &[&str]) -> Self {
        Self::of(Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch")), model, flags)
    }

    /// The same, of a server that may open so many files.
    pub fn start_with_files(count: usize, model: &str, flags: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {count}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited]).arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        Self::of(command, model, flags)
    }

    /// The same, by a command that ends with the program's name.
    pub fn of(mut command: Command, model: &str, flags: &[&str]) -> Self {
        command.args(["serve", "--model", model, "--port", "0"]).args(flags);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("COLUMNS", "400");
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it has ended: {said}")).unwrap();
            said.push_str(&line);
            said.push('\n');
            if let Some((_, address)) = line.split_once(" at http://") {
                break address.to_owned();
            }
        };
        let said = std::thread::spawn(move || {
            lines.map_while(Result::ok).fold(said, |said, line| said + &line + "\n")
        });
        Self { child, address, said: Some(said) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended: its exit code, and what it said.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.said.take().unwrap().join().unwrap())
    }

    /// Waits until it accepts no connection.
    pub fn wait_for_no_connections(&self) {
        let started = Instant::now();
        while TcpStream::connect(&self.address).is_ok() {
            assert!(started.elapsed() < PATIENCE, "connections are still accepted");
        }
    }

    /// A connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request, and waits for all of the response.
    pub fn ask(&self, head: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request(head, headers, body).as_bytes()).unwrap();
        read_reply(stream)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path}"), &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(&format!("POST {path}"), &[], &body.to_string())
    }

    /// A value of `/metrics`.
    pub fn metric(&self, begin: &str) -> f64 {
        self.metric_with("", begin)
    }

    /// The same of a server with a key.
    pub fn metric_with(&self, key: &str, begin: &str) -> f64 {
        let text = self.ask("GET /metrics", &[("x-api-key", key)], "").body;
        let line = text.lines().find(|line| line.starts_with(begin));
        let line = line.unwrap_or_else(|| panic!("no {begin} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a value of `/metrics` is as it is to be.
    pub fn wait_for(&self, begin: &str, is_it: impl Fn(f64) -> bool) {
        let started = Instant::now();
        while !is_it(self.metric(begin)) {
            assert!(started.elapsed() < PATIENCE, "{begin} stays {}", self.metric(begin));
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes of a request whose connection is closed after it.
pub fn request(head: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{head} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str("Host: localhost\r\n");
    }
    if head.starts_with("POST") {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n" + body
}

/// All of a response.
pub fn read_reply(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    let headers: Vec<_> = headers.collect();
    let is_chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
    let body = if is_chunked { unchunked(rest) } else { rest.to_owned() };
    Reply { status, headers, body }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    body
}
