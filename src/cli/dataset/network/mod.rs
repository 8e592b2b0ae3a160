//! Shared by all requests over the network, to the hub and to object stores: an agent that follows
//! nothing and waits for nothing too long, and what went wrong in words that show no URL.

pub mod name_pattern;
pub mod public;

use std::io;
use std::time::Duration;

use ureq::Agent;

/// How std begins the text of a host name that is not known, or cannot be asked for.
const NAME_RESOLUTION: &str = "failed to lookup address information";

/// Why there is no answer, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No connection; the reason in words.
    Unreachable(String),
    /// A connection that broke.
    Broken(String),
    /// No bytes for too long.
    Stalled,
    /// It is not HTTP, or no usable URL.
    Protocol(String),
}

impl Cause {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Cause::Unreachable(text) | Cause::Broken(text) => text.clone(),
            Cause::Stalled => "it sent nothing for too long".into(),
            Cause::Protocol(text) => format!("unexpected answer: {text}"),
        }
    }
}

/// Patience with the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkLimits {
    /// A transfer that brings nothing for this long is given up.
    pub stall: Duration,
    /// Tries per file or request when the connection breaks or the server answers 5xx or 429.
    pub attempts: u32,
    /// Wait before the second try; it doubles for each later one.
    pub wait: Duration,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self { stall: Duration::from_secs(60), attempts: 5, wait: Duration::from_secs(1) }
    }
}

/// An agent that gives statuses as they are and follows no redirect. `patience`: without a byte.
/// Proxies are those of the environment, or none.
pub fn agent(patience: Duration, uses_proxy: bool) -> Agent {
    let patience = Some(patience);
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("vllm-batch/", env!("CARGO_PKG_VERSION")))
        // What a body weighs in bytes must be what Content-Length says.
        .accept_encoding("identity")
        .timeout_resolve(patience)
        .timeout_connect(patience)
        .timeout_recv_response(patience)
        .timeout_per_read(patience);
    if !uses_proxy {
        config = config.proxy(None);
    }
    config.build().new_agent()
}

/// A text as one part of a URL, by RFC 3986: letters, digits and `-_.~` stay.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// A path as a part of a URL: `/` stays too.
pub fn percent_encoded_path(path: &str) -> String {
    path.split('/').map(percent_encoded).collect::<Vec<_>>().join("/")
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The host of an endpoint: without scheme, path, and any user and password.
pub fn host(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}

impl From<ureq::Error> for Cause {
    fn from(error: ureq::Error) -> Self {
        use ureq::Error as E;
        match error {
            E::StatusCode(status) => Cause::Protocol(format!("HTTP status {status}")),
            E::Io(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::AddrNotAvailable => Cause::Unreachable(error.kind().to_string()),
                io::ErrorKind::UnexpectedEof => Cause::Broken("connection closed early".into()),
                // Its kind has no name in std.
                _ if error.to_string().starts_with(NAME_RESOLUTION) => {
                    Cause::Unreachable("the name of the host cannot be resolved".into())
                }
                kind => Cause::Broken(kind.to_string()),
            },
            E::Timeout(_) => Cause::Stalled,
            E::HostNotFound => Cause::Unreachable("host not found".into()),
            E::ConnectionFailed => Cause::Unreachable("connection failed".into()),
            E::InvalidProxyUrl => Cause::Unreachable("the proxy variable is not a URL".into()),
            E::ConnectProxyFailed(_) => Cause::Unreachable("the proxy refuses".into()),
            E::Tls(cause) => Cause::Unreachable(format!("TLS: {cause}")),
            E::Rustls(cause) => Cause::Unreachable(format!("TLS: {cause}")),
            // Their own text would show the URL or the headers.
            E::BadUri(_) | E::RequireHttpsOnly(_) => Cause::Protocol("not a usable URL".into()),
            E::Http(_) => Cause::Protocol("not a usable URL or token".into()),
            E::TooManyRedirects => Cause::Protocol("too many redirects".into()),
            _ => Cause::Protocol("not readable as HTTP".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_urls_are_encoded() {
        assert_eq!(percent_encoded("dev/next v1+.txt"), "dev%2Fnext%20v1%2B.txt");
        assert_eq!(percent_encoded_path("a b/c.txt"), "a%20b/c.txt");
        assert_eq!(hex(&[0, 0xab]), "00ab");
        assert_eq!(host("https://user:word@hub.example:8/x"), "hub.example:8");
    }
}
