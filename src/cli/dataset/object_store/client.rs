//! `Store`: signed requests to an object store, tried again where that may help.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderMap, Request, Response};

use super::credentials::Keys;
use super::environment::StoreEnvironment;
use super::error::{ErrorKind, StoreError};
use super::name::ObjectName;
use super::signature::{Scope, Signable, query, sha256};
use super::xml;
use crate::network::{Cause, NetworkLimits, agent, host, percent_encoded_path};
use crate::terminal::clock::now;
use vllm_batch_base::run_date::RunDate;

/// The longest wait between two tries.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Amazon's stores, by region.
const AMAZON: &str = "amazonaws.com";

/// No answer is longer: pieces of objects and lists of a thousand names.
const MAX_BODY: u64 = 64 << 20;

/// A store, and the right to ask it.
pub struct Store {
    agent: Agent,
    endpoint: Option<String>,
    path_style: bool,
    /// Known better after a bucket says that it is elsewhere.
    region: Mutex<String>,
    keys: Keys,
    limits: NetworkLimits,
    pub(super) part: u64,
}

/// A request, before it has an address.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// `GET`, `PUT`, ...
    pub method: &'a str,
    /// The object; its key may be empty, for the bucket.
    pub name: &'a ObjectName,
    /// Not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// Names in small letters.
    pub headers: &'a [(&'a str, &'a str)],
    /// What is sent.
    pub body: &'a [u8],
}

impl<'a> Call<'a> {
    /// A request without parameters.
    pub(super) fn new(method: &'a str, name: &'a ObjectName) -> Self {
        Self { method, name, query: &[], headers: &[], body: b"" }
    }
}

/// What came back: a success, or a status that the caller knows what to do with.
pub(super) struct Answer {
    /// HTTP's.
    pub status: u16,
    /// All of them.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
    /// It is the answer to a request that was sent again: the first may have been heard.
    pub is_repeated: bool,
}

impl Answer {
    /// A header that is a text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as a text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The word of an error, which is all that is shown of one: its text may name keys.
    fn word(&self) -> Option<String> {
        let word = xml::text_of(&self.text(), "Code")?;
        (word.len() < 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(word)
    }
}

impl Store {
    /// The store of the process environment.
    ///
    /// # Errors
    /// As `StoreEnvironment::from_env`.
    pub fn from_env() -> Result<Self, StoreError> {
        StoreEnvironment::from_env().map(Self::new)
    }

    /// A store. Nothing is asked before the first request.
    pub fn new(environment: StoreEnvironment) -> Self {
        let StoreEnvironment { endpoint, region, path_style, limits, part, source } = environment;
        Self {
            agent: agent(limits.stall, true),
            endpoint,
            path_style,
            region: Mutex::new(region),
            keys: Keys::new(source),
            limits,
            part,
        }
    }

    /// Asks until there is an answer that counts: a success, or one of the statuses in `known`.
    ///
    /// # Errors
    /// There is none, or it is another one.
    pub(super) fn ask(&self, call: &Call<'_>, known: &[u16]) -> Result<Answer, StoreError> {
        let (mut tries, mut moved, mut renewed) = (0, false, false);
        loop {
            tries += 1;
            let cause = match self.once(call) {
                Ok(mut answer) if answer.status < 300 || known.contains(&answer.status) => {
                    answer.is_repeated = tries > 1;
                    return Ok(answer);
                }
                Ok(answer) if !moved && self.moves_to(&answer) => {
                    moved = true;
                    continue;
                }
                Ok(answer) if !renewed && is_expired(&answer) && self.keys.forget() => {
                    renewed = true;
                    continue;
                }
                Ok(answer) if !may_pass(&answer) => return Err(self.refused(call, &answer)),
                Ok(answer) => {
                    let word = answer.word().map(|word| format!(" ({word})")).unwrap_or_default();
                    format!("it answered with HTTP status {}{word}", answer.status)
                }
                Err(Failed::Before(error)) => return Err(error),
                Err(Failed::Cause(cause @ Cause::Protocol(_))) => {
                    return Err(self.unreachable(call, &cause.text()));
                }
                Err(Failed::Cause(cause)) => cause.text(),
            };
            if tries >= self.limits.attempts {
                return Err(self.unreachable(call, &cause));
            }
            let wait = self.limits.wait.saturating_mul(1 << (tries - 1).min(16));
            std::thread::sleep(wait.min(MAX_WAIT));
        }
    }

    fn once(&self, call: &Call<'_>) -> Result<Answer, Failed> {
        let request = self.signed(call).map_err(Failed::Before)?;
        let response = self.agent.run(request).map_err(|error| Failed::Cause(error.into()))?;
        let status = response.status().as_u16();
        let (headers, body) = body_of(call, response).map_err(Failed::Cause)?;
        Ok(Answer { status, headers, body, is_repeated: false })
    }

    fn signed<'a>(&self, call: &Call<'a>) -> Result<Request<&'a [u8]>, StoreError> {
        let credentials = self.keys.get()?;
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (base, path) = self.address(call.name, &region);
        let query = query(call.query);
        let time = RunDate::from_unix(now()).strftime("%Y%m%dT%H%M%SZ");
        let body_sha256 = sha256(call.body);
        let mut headers: Vec<(String, String)> = vec![
            ("host".to_owned(), host(&base).to_owned()),
            ("x-amz-content-sha256".to_owned(), body_sha256.clone()),
            ("x-amz-date".to_owned(), time.clone()),
        ];
        if let Some(token) = credentials.token() {
            headers.push(("x-amz-security-token".to_owned(), token.to_owned()));
        }
        let own = call.headers.iter();
        headers.extend(own.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        headers.sort();
        let signable = Signable {
            method: call.method,
            path: &path,
            query: &query,
            headers: &headers,
            body_sha256: &body_sha256,
        };
        let authorization =
            signable.authorization(&credentials, &Scope { time: &time, region: &region });
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request =
            Request::builder().method(call.method).uri(format!("{base}{path}{mark}{query}"));
        // The agent says which host it is, in the same words.
        for (name, value) in headers.iter().filter(|(name, _)| name != "host") {
            request = request.header(name, value);
        }
        let request = request.header("authorization", authorization).body(call.body);
        request.map_err(|_| {
            let message =
                format!("{} cannot be asked for: its name is no part of a URL", call.name);
            StoreError::new(ErrorKind::BadName, message)
        })
    }

    /// Scheme and host, and the path in it.
    fn address(&self, name: &ObjectName, region: &str) -> (String, String) {
        let base = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://s3.{region}.{AMAZON}"),
        };
        let key = percent_encoded_path(&name.key);
        let (scheme, rest) = base.split_once("://").unwrap_or(("https", &base));
        let (host, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
        // The certificate of `*.host` does not hold for a bucket with dots.
        match self.path_style || name.bucket.contains('.') {
            true => (format!("{scheme}://{host}"), format!("{folder}/{}/{key}", name.bucket)),
            false => (format!("{scheme}://{}.{host}", name.bucket), format!("{folder}/{key}")),
        }
    }

    /// Whether the bucket is in another region, which is noted.
    fn moves_to(&self, answer: &Answer) -> bool {
        let named = answer.header("x-amz-bucket-region");
        let Some(named) = named.filter(|_| matches!(answer.status, 301 | 307 | 400)) else {
            return false;
        };
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = *region != named;
        // It becomes a part of a host's name.
        if is_other && named.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            named.clone_into(&mut region);
            return true;
        }
        false
    }

    fn host_name(&self) -> &str {
        self.endpoint.as_deref().map_or("Amazon S3", host)
    }

    fn unreachable(&self, call: &Call<'_>, cause: &str) -> StoreError {
        let message = format!("{} cannot be had from {}: {cause}", call.name, self.host_name());
        StoreError::new(ErrorKind::Network, message)
            .help("check the network, AWS_ENDPOINT_URL and the proxy variables, and run again")
    }

    fn refused(&self, call: &Call<'_>, answer: &Answer) -> StoreError {
        let (name, host) = (call.name, self.host_name());
        let word = answer.word();
        let word = word.as_deref().unwrap_or("");
        match (answer.status, word) {
            (404, "NoSuchBucket") => StoreError::new(
                ErrorKind::NotFound,
                format!("there is no bucket {} at {host}", name.bucket),
            )
            .help("check the name, AWS_REGION and AWS_ENDPOINT_URL"),
            (404, _) => {
                StoreError::new(ErrorKind::NotFound, format!("there is no {name} at {host}"))
                    .help("check the name; a pattern is 's3://bucket/folder/*.jsonl'")
            }
            (412, _) => changed(name),
            (401 | 403, _) => {
                let word = if word.is_empty() { "AccessDenied" } else { word };
                let message =
                    format!("{host} refuses {name} with HTTP status {}: {word}", answer.status);
                let help = match word {
                    "RequestTimeTooSkewed" => "set the clock of this machine",
                    _ => "check the credentials and what they may read and write",
                };
                StoreError::new(ErrorKind::Access, message).help(help)
            }
            (status, word) => {
                let message = format!("{host} refuses {name} with HTTP status {status} {word}");
                StoreError::new(ErrorKind::Network, message.trim_end())
                    .help("check AWS_ENDPOINT_URL and AWS_REGION")
            }
        }
    }
}

/// An object that is another one than before.
pub(super) fn changed(name: &ObjectName) -> StoreError {
    let message = format!("{name} was changed while it was read");
    StoreError::new(ErrorKind::Changed, message).help("run again when nobody writes it")
}

/// Why one request brought nothing.
enum Failed {
    /// It was not sent.
    Before(StoreError),
    /// On its way.
    Cause(Cause),
}

fn body_of(call: &Call<'_>, response: Response<ureq::Body>) -> Result<(HeaderMap, Vec<u8>), Cause> {
    let (head, mut body) = response.into_parts();
    let length = head.headers.get("content-length").and_then(|value| value.to_str().ok());
    let length: Option<u64> = length.and_then(|value| value.trim().parse().ok());
    if call.method == "HEAD" {
        return Ok((head.headers, Vec::new()));
    }
    let bytes = body.with_config().limit(MAX_BODY).read_to_vec()?;
    match length.is_none_or(|length| length == bytes.len() as u64) {
        true => Ok((head.headers, bytes)),
        false => Err(Cause::Broken("the answer is cut off".into())),
    }
}

/// Whether an answer may be another one soon.
fn may_pass(answer: &Answer) -> bool {
    match answer.status {
        429 | 500.. => true,
        // Two conditional requests at once; a body that came too slowly.
        409 | 400 => matches!(
            answer.word().as_deref(),
            Some("ConditionalRequestConflict" | "OperationAborted" | "RequestTimeout")
        ),
        _ => false,
    }
}

fn is_expired(answer: &Answer) -> bool {
    let words = ["ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"];
    // The answer to HEAD has no word.
    let word = answer.word();
    matches!(answer.status, 400 | 401 | 403) && word.is_none_or(|word| words.contains(&&*word))
}

#[cfg(test)]
mod tests {
    use super::super::credentials::{Credentials, Source};
    use super::*;

    #[test]
    fn buckets_stand_in_the_host_or_in_the_path() {
        let store = |endpoint: Option<&str>, path_style| {
            Store::new(StoreEnvironment {
                endpoint: endpoint.map(str::to_owned),
                path_style,
                source: Source::Known(Credentials::new("a", "b", None)),
                ..StoreEnvironment::local("")
            })
        };
        let name = |bucket: &str| ObjectName { bucket: bucket.into(), key: "a/b c+.txt".into() };
        for (endpoint, path_style, bucket, wanted) in [
            (None, false, "my", "https://my.s3.r-1.amazonaws.com/a/b%20c%2B.txt"),
            (None, false, "my.b", "https://s3.r-1.amazonaws.com/my.b/a/b%20c%2B.txt"),
            (Some("http://h:9000"), true, "my", "http://h:9000/my/a/b%20c%2B.txt"),
            (Some("https://h/s3"), false, "my", "https://my.h/s3/a/b%20c%2B.txt"),
        ] {
            let (base, path) = store(endpoint, path_style).address(&name(bucket), "r-1");
            assert_eq!(base + &path, wanted);
        }
    }
}
