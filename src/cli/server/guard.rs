//! `Guard`: who may ask. A key where the server has one; and on the loopback address the name of
//! the host that was asked, so that no page in a browser asks by a name of its own.

use axum::http::{HeaderMap, StatusCode, Uri, header};

use crate::errors::HttpError;

/// Longest `X-Request-Id` that is taken over.
const MAX_REQUEST_ID: usize = 128;

/// Who may ask.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Hashes of the keys; none: everybody may.
    keys: Vec<blake3::Hash>,
    /// Names of hosts; None: all.
    hosts: Option<Vec<String>>,
}

impl Guard {
    /// `hosts`: names beside those of this machine. None: the server is there for other machines.
    pub(crate) fn new(keys: &[String], hosts: Option<&[String]>) -> Self {
        let keys = keys.iter().map(|key| blake3::hash(key.as_bytes())).collect();
        let local = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let hosts = hosts.map(|more| {
            let more = more.iter().map(|name| name.to_ascii_lowercase());
            local.into_iter().chain(more).collect()
        });
        Self { keys, hosts }
    }

    /// Refuses who may not ask.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), HttpError> {
        self.check_host(uri, headers)?;
        self.check_origin(headers)?;
        match matches!(uri.path(), "/health" | "/ping") {
            true => Ok(()),
            false => self.check_key(headers),
        }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), HttpError> {
        let named = uri.authority().map(|authority| authority.as_str());
        let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        match self.is_known(named.or(header).unwrap_or_default()) {
            true => Ok(()),
            false => {
                let message = "the Host header names another host; --allowed-hosts NAME of the \
                               server allows it";
                Err(HttpError::new(StatusCode::FORBIDDEN, "forbidden_host", message))
            }
        }
    }

    /// Browsers say whose page asks, and let it ask this address in some ways without leave.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), HttpError> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        match self.is_known(origin.split_once("://").map_or(origin, |(_, host)| host)) {
            true => Ok(()),
            false => {
                let message = "the Origin header names a page of another host; --allowed-hosts \
                               NAME of the server allows it";
                Err(HttpError::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
            }
        }
    }

    /// Whether a host, which may have a port, is one of the names.
    fn is_known(&self, host: &str) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let host = host.to_ascii_lowercase();
        let end = host.rfind(':').filter(|at| !host[*at..].contains(']'));
        hosts.iter().any(|known| *known == host[..end.unwrap_or(host.len())])
    }

    /// Hashes are compared in constant time.
    fn check_key(&self, headers: &HeaderMap) -> Result<(), HttpError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let given = bearer.or_else(|| text("x-api-key")).map(|key| blake3::hash(key.as_bytes()));
        match given
            .is_some_and(|given| self.keys.iter().fold(false, |is, key| is | (*key == given)))
        {
            true => Ok(()),
            false => {
                let message = "no valid key: give it as `Authorization: Bearer KEY`, or as \
                               `x-api-key`";
                Err(HttpError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
            }
        }
    }
}

/// Whether a path is of Anthropic's API.
pub(crate) fn is_anthropics(path: &str) -> bool {
    path.starts_with("/v1/messages")
}

/// The name of a request: the asker's, or one of our own.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let given =
        given.filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.chars().all(is_plain));
    given.map_or_else(|| format!("{:016x}{:016x}", random(), random()), str::to_owned)
}

/// A number that differs from call to call.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Its keys are the system's random numbers.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(0);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn uri(path: &str) -> Uri {
        path.parse().unwrap()
    }

    #[test]
    fn a_key_is_asked_for_on_every_path_but_health() {
        let guard = Guard::new(&["one".to_owned(), "two".to_owned()], None);
        let ask = |path: &str, pairs: &[_]| guard.check(&uri(path), &headers(pairs)).is_ok();
        for path in ["/v1/models", "/metrics", "/tokenize", "/v1/messages", "/nowhere"] {
            assert!(!ask(path, &[]), "{path}");
            assert!(!ask(path, &[("authorization", "Bearer three")]), "{path}");
            assert!(!ask(path, &[("authorization", "one")]), "{path}");
            assert!(ask(path, &[("authorization", "bearer two")]), "{path}");
            assert!(ask(path, &[("x-api-key", "one")]), "{path}");
        }
        assert!(ask("/health", &[]));
    }

    #[test]
    fn on_the_loopback_address_only_its_names_are_hosts() {
        let more = ["Proxy.example".to_owned()];
        let guard = Guard::new(&[], Some(&more));
        let ask = |host: &str| guard.check(&uri("/health"), &headers(&[("host", host)])).is_ok();
        for host in ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "proxy.example"] {
            assert!(ask(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil", "[::2]:80"] {
            assert!(!ask(host), "{host}");
        }
        assert!(Guard::new(&[], None).check(&uri("/health"), &headers(&[("host", "x")])).is_ok());
    }

    #[test]
    fn on_the_loopback_address_pages_of_other_hosts_do_not_ask() {
        let more = ["abcdef".to_owned()];
        let guard = Guard::new(&[], Some(&more));
        let ask = |guard: &Guard, origin: &str| {
            let headers = headers(&[("host", "localhost"), ("origin", origin)]);
            guard.check(&uri("/v1/completions"), &headers).is_ok()
        };
        for origin in ["http://localhost:3000", "https://127.0.0.1", "extension://ABCDEF"] {
            assert!(ask(&guard, origin), "{origin}");
        }
        for origin in ["null", "", "https://evil.example", "http://localhost.evil.example:80"] {
            assert!(!ask(&guard, origin), "{origin}");
        }
        assert!(ask(&Guard::new(&[], None), "https://evil.example"));
    }

    #[test]
    fn names_of_requests_are_taken_over_where_they_are_plain() {
        assert_eq!(request_id(&headers(&[("x-request-id", "a.B-9_")])), "a.B-9_");
        let long = "a".repeat(129);
        for bad in ["", "a b", "a/b", &long] {
            let id = request_id(&headers(&[("x-request-id", bad)]));
            assert!(id.len() == 32 && id != bad, "{id}");
        }
        assert_ne!(random(), random());
    }
}
