//! Requests to the hub, and where its redirects lead.
//!
//! The token goes to the endpoint's own origin (scheme, host and port) and nowhere else. Files are
//! answered with redirects to content networks, which have no business with it. So ureq follows no
//! redirect: each step is a request of its own here, with the token or without.

use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body};

use super::HubEnvironment;
use super::environment::Token;
use super::failure::Failure;
use vllm_batch_dataset::network::{agent, percent_encoded, percent_encoded_path};

/// Most redirects of one request, as browsers and huggingface_hub have it.
const MAX_REDIRECTS: usize = 10;

/// A hub at an endpoint, and the right to read there.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    bearer: Option<String>,
}

impl Client {
    pub fn new(environment: &HubEnvironment) -> Result<Self, Failure> {
        let agent = agent(environment.limits.stall, true);
        let endpoint = environment.endpoint.clone();
        let origin = Origin::of(&parse(&endpoint)?)?;
        let bearer = environment.token.as_ref().map(Token::secret);
        let bearer = bearer.map(|secret| format!("Bearer {secret}"));
        Ok(Self { agent, endpoint, origin, bearer })
    }

    /// The list of a repository's files. `repo`: with its kind before it.
    pub fn list(&self, repo: &str, revision: &str) -> Result<Response<Body>, Failure> {
        let revision = percent_encoded(revision);
        let url = format!("{}/api/{repo}/revision/{revision}?blobs=true", self.endpoint);
        self.get(url, None)
    }

    /// What the hub says of a file of a commit, in headers. A redirect away from the hub is not
    /// followed: it says all that is needed.
    pub fn probe(&self, repo: &str, commit: &str, file: &str) -> Result<HeaderMap, Failure> {
        let mut url = self.file(repo, commit, file);
        for _ in 0..=MAX_REDIRECTS {
            let uri = parse(&url)?;
            let mut request = self.agent.head(&url);
            if let Some(bearer) = self.bearer_for(&uri) {
                request = request.header(AUTHORIZATION, bearer);
            }
            let response = request.call()?;
            let location = location(&response)?;
            match location {
                Some(location) if !is_absolute(location) => url = target(&uri, location)?,
                Some(_) => return Ok(response.into_parts().0.headers),
                None if response.status().is_success() => {
                    return Ok(response.into_parts().0.headers);
                }
                None => return Err(status(&response)),
            }
        }
        Err(Failure::from(ureq::Error::TooManyRedirects))
    }

    /// A file of a commit, from a byte on, wherever it is.
    pub fn fetch(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        first: u64,
    ) -> Result<Response<Body>, Failure> {
        // Not every mirror knows ranges, so none is asked for where there is nothing to continue.
        let range = (first > 0).then(|| format!("bytes={first}-"));
        self.get(self.file(repo, commit, file), range)
    }

    fn file(&self, repo: &str, commit: &str, file: &str) -> String {
        format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, percent_encoded_path(file))
    }

    /// The answer at the end of all redirects.
    fn get(&self, mut url: String, range: Option<String>) -> Result<Response<Body>, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let uri = parse(&url)?;
            let mut request = self.agent.get(&url);
            if let Some(bearer) = self.bearer_for(&uri) {
                request = request.header(AUTHORIZATION, bearer);
            }
            if let Some(range) = &range {
                request = request.header(RANGE, range);
            }
            let response = request.call()?;
            match location(&response)? {
                Some(location) => url = target(&uri, location)?,
                None => return Ok(response),
            }
        }
        Err(Failure::from(ureq::Error::TooManyRedirects))
    }

    fn bearer_for(&self, uri: &Uri) -> Option<&str> {
        let is_hub = Origin::of(uri).is_ok_and(|origin| origin == self.origin);
        self.bearer.as_deref().filter(|_| is_hub)
    }
}

/// The failure that an error status stands for, with the hub's own word for it: GatedRepo,
/// RepoNotFound, RevisionNotFound.
pub(super) fn status(response: &Response<Body>) -> Failure {
    if response.status().as_u16() < 400 {
        return Failure::Protocol(format!("HTTP status {}", response.status().as_u16()));
    }
    let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
    Failure::Status(response.status().as_u16(), code.map(str::to_string))
}

/// Scheme, host and port.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Result<Self, Failure> {
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(unusable()),
        };
        let host = uri.host().ok_or_else(unusable)?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { is_https, host, port })
    }
}

fn unusable() -> Failure {
    Failure::Protocol("not a usable URL".into())
}

fn parse(url: &str) -> Result<Uri, Failure> {
    url.parse().map_err(|_| unusable())
}

/// Where a redirect leads; None for any other answer.
fn location(response: &Response<Body>) -> Result<Option<&str>, Failure> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    location.map(Some).ok_or_else(|| Failure::Protocol("a redirect to nowhere".into()))
}

/// Whether a location names a host.
fn is_absolute(location: &str) -> bool {
    location.starts_with("//") || scheme(location).is_some()
}

/// What comes before the first colon, where that colon is not part of a path.
fn scheme(location: &str) -> Option<&str> {
    let (scheme, _) = location.split_once(':')?;
    (!scheme.contains(['/', '?', '#'])).then_some(scheme)
}

/// The URL that a location means at the place where it was said.
fn target(base: &Uri, location: &str) -> Result<String, Failure> {
    let location = location.split('#').next().unwrap_or(location);
    let from = base.scheme_str().ok_or_else(unusable)?;
    let authority = base.authority().ok_or_else(unusable)?;
    if let Some(to) = scheme(location) {
        return match to.to_ascii_lowercase().as_str() {
            "https" => Ok(location.to_string()),
            "http" if from == "http" => Ok(location.to_string()),
            "http" => Err(Failure::Protocol("it leads from https to http".into())),
            _ => Err(Failure::Protocol("a redirect to something else than HTTP".into())),
        };
    }
    if location.starts_with("//") {
        return Ok(format!("{from}:{location}"));
    }
    if location.starts_with('/') {
        return Ok(format!("{from}://{authority}{location}"));
    }
    let path = base.path();
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    Ok(match location.starts_with('?') {
        true => format!("{from}://{authority}{path}{location}"),
        false => format!("{from}://{authority}{folder}/{location}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::environment::NetworkLimits;
    use super::*;

    fn client(endpoint: &str) -> Client {
        let environment = HubEnvironment {
            cache_dir: PathBuf::new(),
            token: Token::new("secret", "HF_TOKEN"),
            endpoint: endpoint.into(),
            offline: None,
            limits: NetworkLimits::default(),
        };
        Client::new(&environment).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    #[test]
    fn the_token_is_for_one_origin() {
        let client = client("https://hub.example/mirror");
        let shown = |url: &str| client.bearer_for(&parse(url).unwrap()).is_some();
        for url in ["https://hub.example/x", "https://HUB.example:443/", "https://hub.example"] {
            assert!(shown(url), "{url}");
        }
        for url in [
            "http://hub.example/x",
            "https://hub.example:8443/x",
            "https://cdn.hub.example/x",
            "https://hub.example.org/x",
            "https://hub.example@evil.example/x",
            "https://evil.example/https://hub.example/",
        ] {
            assert!(!shown(url), "{url}");
        }
    }

    #[test]
    fn locations_are_read_as_browsers_do() {
        let base = parse("https://hub.example/a/b?c").unwrap();
        for (location, wanted) in [
            ("/x?y", "https://hub.example/x?y"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("x", "https://hub.example/a/x"),
            ("x:y/z", ""),
            ("?y", "https://hub.example/a/b?y"),
            ("https://cdn.example/x#y", "https://cdn.example/x"),
            ("http://hub.example/x", ""),
            ("file:///etc/passwd", ""),
        ] {
            assert_eq!(target(&base, location).unwrap_or_default(), wanted, "{location}");
        }
    }
}
