//! `Fetcher`: the bytes of an image at a URL. A row names the URL, so it is not trusted: hosts are
//! checked at each redirect, and addresses when they are connected to.

use std::io::{ErrorKind, Read};
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::http::Uri;

use super::Fault;
use crate::input::row_error::code;
use crate::network::Cause;
use crate::network::public::{NotPublic, public_agent};
use vllm_batch_base::files::quoted;
use vllm_batch_media::MediaError;

/// The limit of a request with its answer.
const WHOLE: Duration = Duration::from_secs(60);

/// Requests for one URL: the first, and those after a timeout, a broken connection or a status that
/// may pass.
const TRIES: u32 = 3;

/// Wait before the second; it doubles for the third.
const WAIT: Duration = Duration::from_millis(500);

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 5;

/// Which URLs of rows are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlOptions {
    /// `--allowed-media-domains`: names of hosts and addresses; none: every host.
    pub domains: Vec<String>,
}

/// Asks for images.
#[derive(Debug)]
pub(super) struct Fetcher {
    agent: Agent,
    domains: Vec<String>,
    wait: Duration,
}

/// Why there are no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It will be so again.
    Fault(Fault),
    /// There are more than were wanted.
    More(u64),
}

/// What may be tried again.
enum Again {
    No(Failure),
    Perhaps(Fault),
}

impl From<Fault> for Again {
    fn from(fault: Fault) -> Self {
        Again::No(Failure::Fault(fault))
    }
}

impl Fetcher {
    pub(super) fn new(options: &UrlOptions) -> Self {
        let domains: Vec<String> =
            options.domains.iter().map(|domain| domain.to_ascii_lowercase()).collect();
        let addresses = domains.iter().filter_map(|domain| domain.parse::<IpAddr>().ok());
        Self { agent: public_agent(addresses.collect(), WHOLE), domains, wait: WAIT }
    }

    #[cfg(test)]
    pub(super) fn impatient(self, whole: Duration) -> Self {
        let addresses = self.domains.iter().filter_map(|domain| domain.parse::<IpAddr>().ok());
        let agent = public_agent(addresses.collect(), whole);
        Self { agent, wait: Duration::from_millis(1), ..self }
    }

    /// The bytes at a URL, if they are no more than `most`.
    pub(super) fn fetch(&self, url: &str, most: u64) -> Result<Vec<u8>, Failure> {
        let mut tries = 1;
        loop {
            match self.once(url, most) {
                Ok(bytes) => return Ok(bytes),
                Err(Again::No(failure)) => return Err(failure),
                Err(Again::Perhaps(fault)) if tries == TRIES => return Err(Failure::Fault(fault)),
                Err(Again::Perhaps(_)) => thread::sleep(self.wait * tries),
            }
            tries += 1;
        }
    }

    fn once(&self, url: &str, most: u64) -> Result<Vec<u8>, Again> {
        let mut url = self.checked(url)?;
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.agent.get(&url).call().map_err(|error| unreached(&url, error))?;
            let status = answer.status().as_u16();
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                let to = answer.headers().get("location").and_then(|to| to.to_str().ok());
                let to = to.and_then(|to| joined(&url, to)).ok_or_else(|| {
                    (code::MEDIA_UNAVAILABLE, said(&url, "it leads on to no usable URL"))
                })?;
                let is_plain = to.get(..5).is_some_and(|to| to.eq_ignore_ascii_case("http:"));
                if url.scheme_str() == Some("https") && is_plain {
                    let what = said(&url, "it leads on from https to http");
                    return Err((code::MEDIA_FORBIDDEN, what).into());
                }
                url = self.checked(&to)?;
                continue;
            }
            if let Some(again) = refused(&url, status) {
                return Err(again);
            }
            return body(&url, answer.into_body().into_reader(), most);
        }
        let what = said(&url, &format!("it leads on more than {MAX_REDIRECTS} times"));
        Err((code::MEDIA_UNAVAILABLE, what).into())
    }

    /// A URL whose host may be asked.
    fn checked(&self, url: &str) -> Result<Uri, Fault> {
        let fault = |code, what: &str| (code, format!("{}: {what}", quoted(url)));
        let text = url.split('#').next().unwrap_or_default();
        if !super::is_web(text) {
            let what = "the server leads on to something else than http and https";
            return Err(fault(code::MEDIA_FORBIDDEN, what));
        }
        let uri: Uri = match text.parse() {
            Ok(uri) => uri,
            Err(_) => return Err(fault(code::MEDIA_FORMAT, "no valid URL")),
        };
        let Some(authority) = uri.authority().filter(|found| !found.host().is_empty()) else {
            return Err(fault(code::MEDIA_FORMAT, "the URL has no host"));
        };
        if authority.as_str().contains('@') {
            return Err(fault(code::MEDIA_FORBIDDEN, "URLs with a user are not read"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let host = host.to_ascii_lowercase();
        if !self.domains.is_empty() && !self.domains.contains(&host) {
            let what = "the host is not among --allowed-media-domains";
            return Err(fault(code::MEDIA_FORBIDDEN, what));
        }
        Ok(uri)
    }
}

/// What is wrong with a URL, in words. What is behind its path may be secret.
fn said(url: &Uri, what: &str) -> String {
    let host = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let scheme = url.scheme_str().unwrap_or_default();
    format!("{}: {what}", quoted(&format!("{scheme}://{host}{}", url.path())))
}

/// What a status says, if it is no success.
fn refused(url: &Uri, status: u16) -> Option<Again> {
    let what = said(url, &format!("the server answers with HTTP status {status}"));
    match status {
        200 => None,
        404 | 410 => Some((code::MEDIA_NOT_FOUND, what).into()),
        408 | 429 | 500..=599 => Some(Again::Perhaps((code::MEDIA_UNAVAILABLE, what))),
        _ => Some((code::MEDIA_UNAVAILABLE, what).into()),
    }
}

fn unreached(url: &Uri, error: ureq::Error) -> Again {
    if NotPublic::is_reason(&error) {
        let what = format!("{NotPublic}; help: --allowed-media-domains names the address itself");
        return (code::MEDIA_FORBIDDEN, said(url, &what)).into();
    }
    let cause = Cause::from(error);
    let code = match cause {
        Cause::Stalled => code::MEDIA_TIMEOUT,
        _ => code::MEDIA_UNAVAILABLE,
    };
    Again::Perhaps((code, said(url, &cause.text())))
}

fn body(url: &Uri, reader: impl Read, most: u64) -> Result<Vec<u8>, Again> {
    let mut bytes = Vec::new();
    let read = reader.take(most + 1).read_to_end(&mut bytes);
    if let Err(error) = read {
        let is_timeout = error.kind() == ErrorKind::TimedOut;
        return Err(match error.downcast::<ureq::Error>() {
            Ok(error) => unreached(url, error),
            Err(_) if is_timeout => {
                Again::Perhaps((code::MEDIA_TIMEOUT, said(url, &Cause::Stalled.text())))
            }
            Err(error) => {
                let what = said(url, &format!("the answer broke off: {}", error.kind()));
                Again::Perhaps((code::MEDIA_UNAVAILABLE, what))
            }
        });
    }
    match bytes.len() as u64 > most {
        true => Err(Again::No(Failure::More(most))),
        false => Ok(bytes),
    }
}

/// Where a redirect leads.
fn joined(from: &Uri, to: &str) -> Option<String> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?.as_str());
    let to = to.trim();
    Some(match to {
        "" => return None,
        to if to.contains("://") => to.to_owned(),
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        to if to.starts_with('?') => format!("{scheme}://{authority}{}{to}", from.path()),
        to => {
            let folder = from.path().rfind('/').map_or("/", |slash| &from.path()[..=slash]);
            let (path, query) = to.split_once('?').map_or((to, None), |(p, q)| (p, Some(q)));
            let path = without_dots(&format!("{folder}{path}"));
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            format!("{scheme}://{authority}{path}{query}")
        }
    })
}

/// A path without the parts `.` and `..`, as RFC 3986 resolves them.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

impl Failure {
    /// The same as a fault of a row.
    pub(super) fn into_fault(self, url: &str) -> Fault {
        match self {
            Failure::Fault(fault) => fault,
            Failure::More(most) => {
                let what = format!("the image has more than {most} bytes, which are the most");
                let what = format!("{}: {what}", quoted(url));
                (MediaError::TooLarge(String::new()).code(), what)
            }
        }
    }
}
