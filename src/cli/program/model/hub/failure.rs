//! What can go wrong on the wire, sorted by what it means for the user.

use std::io;

use super::cache::RepoCache;
use super::{HubEnvironment, HubError, HubErrorKind};
use vllm_batch_dataset::network::{Cause, host};
use vllm_batch_dataset::terminal::remedy;

/// A failed request or file, before it is put into words.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered with an error status, and perhaps the hub's own word for it.
    Status(u16, Option<String>),
    /// No connection; the cause in words.
    Unreachable(String),
    /// A connection that broke; trying again continues it.
    Broken(String),
    /// A file that arrived, but not as announced; what came is removed.
    Damaged(String),
    /// No bytes for too long.
    Stalled,
    /// The answer is not what the hub sends.
    Protocol(String),
    /// The cache cannot be written.
    Storage(String),
    /// Another program downloads the same file.
    Locked,
}

impl Failure {
    /// Whether trying again soon may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Failure::Broken(_) | Failure::Damaged(_) | Failure::Stalled => true,
            Failure::Status(status, _) => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// The same failure where the hub has sent nothing yet: there is no download to continue.
    pub fn before_any_answer(self) -> Self {
        match self {
            Failure::Broken(_) | Failure::Stalled => Failure::Unreachable(self.cause()),
            other => other,
        }
    }

    /// The cause alone, without remedy.
    pub fn cause(&self) -> String {
        match self {
            Failure::Status(status, _) => format!("it answered with HTTP status {status}"),
            Failure::Unreachable(cause)
            | Failure::Broken(cause)
            | Failure::Damaged(cause)
            | Failure::Storage(cause) => cause.clone(),
            Failure::Stalled => Cause::Stalled.text(),
            Failure::Protocol(cause) => Cause::Protocol(cause.clone()).text(),
            Failure::Locked => "another program is downloading the same file".into(),
        }
    }

    /// With repository, revision, host and remedy; never with a URL, which may be signed.
    pub fn into_error(self, cache: &RepoCache, environment: &HubEnvironment) -> HubError {
        let what = cache.what();
        let host = host(&environment.endpoint);
        let cause = self.cause();
        let continues = "run again: the download continues where it stopped";
        match self {
            Failure::Status(status @ (401 | 403), code) => {
                refused(&what, status, code, environment)
            }
            Failure::Status(404, code) => not_found(cache, code, host),
            Failure::Status(..) => HubError::new(
                HubErrorKind::Network,
                format!("cannot download {what} from {host}: {cause}"),
                format!("wait and {continues}"),
            ),
            Failure::Unreachable(_) => HubError::new(
                HubErrorKind::Network,
                format!("cannot reach {host} for {}: {cause}", cache.repo()),
                format!(
                    "there is no folder ./{} either; check the name, the network, HF_ENDPOINT and the \
                     proxy variables",
                    cache.repo()
                ),
            ),
            Failure::Broken(_) | Failure::Stalled => HubError::new(
                HubErrorKind::Network,
                format!("the connection to {host} broke while downloading {what}: {cause}"),
                continues,
            ),
            Failure::Damaged(_) => HubError::new(
                HubErrorKind::Network,
                format!("{what} did not arrive from {host} as it was announced: {cause}"),
                "nothing of the file was kept; run again, and check HF_ENDPOINT and HTTPS_PROXY: a \
                 mirror or a proxy may change files",
            ),
            Failure::Protocol(_) => HubError::new(
                HubErrorKind::Network,
                format!("{host} does not answer as the Hugging Face hub does for {what}: {cause}"),
                "check HF_ENDPOINT and HTTPS_PROXY",
            ),
            Failure::Storage(_) => {
                let message =
                    format!("cannot write {what} to the cache {}: {cause}", cache.root().display());
                let remedy = remedy::of(&message).unwrap_or("free space");
                let help = format!(
                    "{remedy}, or set HF_HUB_CACHE or --download-dir to another folder; then \
                     {continues}"
                );
                HubError::new(HubErrorKind::Storage, message, help)
            }
            Failure::Locked => HubError::new(
                HubErrorKind::Storage,
                format!("cannot download {what}: {cause}"),
                "wait for it to finish, then run again",
            ),
        }
    }
}

fn refused(
    what: &str,
    status: u16,
    code: Option<String>,
    environment: &HubEnvironment,
) -> HubError {
    let host = host(&environment.endpoint);
    let reason = match code.as_deref() {
        Some("GatedRepo") => "it is gated",
        _ => "it does not exist, is private, or is gated",
    };
    let help = match &environment.token {
        None => {
            "check the name and that no folder was meant; for a gated or private one accept its \
                 terms on its page and set HF_TOKEN"
                .to_string()
        }
        Some(token) => format!(
            "the token from {} has no access: accept the terms on its page, or set HF_TOKEN \
             to a token of an account that has",
            token.source()
        ),
    };
    let message = format!("{host} refuses {what} with HTTP status {status}: {reason}");
    HubError::new(HubErrorKind::Access, message, help)
}

fn not_found(cache: &RepoCache, code: Option<String>, host: &str) -> HubError {
    let (message, help) = match code.as_deref() {
        Some("RevisionNotFound") => (
            format!("{} has no revision {} on {host}", cache.repo(), cache.revision().as_str()),
            "check --revision: a branch, a tag or a 40-digit commit",
        ),
        _ => (
            format!(
                "there is no {} on {host} (HTTP status 404), nor a folder of that name",
                cache.what()
            ),
            "check the name and --revision; a folder is given as ./folder",
        ),
    };
    HubError::new(HubErrorKind::NotFound, message, help)
}

impl From<ureq::Error> for Failure {
    fn from(error: ureq::Error) -> Self {
        match Cause::from(error) {
            Cause::Unreachable(text) => Failure::Unreachable(text),
            Cause::Broken(text) => Failure::Broken(text),
            Cause::Stalled => Failure::Stalled,
            Cause::Protocol(text) => Failure::Protocol(text),
        }
    }
}

/// Of files and folders: what the network can give is sorted out before.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Storage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    use super::*;

    #[test]
    fn a_host_without_address_is_not_asked_again() {
        // A label of more than 63 letters is refused before any request.
        let host = format!("{}.invalid", "a".repeat(64));
        let error = (host.as_str(), 80).to_socket_addrs().expect_err("no such host");
        let failure = Failure::from(ureq::Error::Io(error));
        assert!(matches!(failure, Failure::Unreachable(_)), "{failure:?}");
        assert!(!failure.is_transient());
    }

    #[test]
    fn a_connection_that_breaks_before_any_answer_is_none() {
        let broken = || Failure::from(ureq::Error::Io(io::ErrorKind::ConnectionReset.into()));
        assert!(broken().is_transient(), "it is tried again");
        assert!(matches!(broken().before_any_answer(), Failure::Unreachable(_)));
        let refused = Failure::Status(500, None).before_any_answer();
        assert!(matches!(refused, Failure::Status(500, None)));
    }
}
