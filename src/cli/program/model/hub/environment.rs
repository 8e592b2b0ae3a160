//! The variables that huggingface_hub honours, read once into a plain struct.

use std::fmt;
use std::path::{Path, PathBuf};

use hf_hub::Cache;
use vllm_batch_base::files::read as read_file;
pub use vllm_batch_dataset::network::NetworkLimits;

/// More than any token has.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where models are cached and how the hub is reached. Tests build it without an environment.
#[derive(Clone, Debug)]
pub struct HubEnvironment {
    /// The folder that holds `models--org--name`.
    pub cache_dir: PathBuf,
    /// Sent to the hub, when there is one.
    pub token: Option<Token>,
    /// Base of every request, without a trailing slash.
    pub endpoint: String,
    /// The name of the variable that forbids requests, when one does.
    pub offline: Option<String>,
    /// Patience with the network.
    pub limits: NetworkLimits,
}

/// A secret and where it came from. `Debug` shows the second only.
#[derive(Clone)]
pub struct Token {
    secret: String,
    source: String,
}

impl Token {
    /// None when nothing is left after removing white space and line ends, as huggingface_hub
    /// cleans it.
    pub fn new(secret: &str, source: impl Into<String>) -> Option<Self> {
        let secret = secret.replace(['\r', '\n'], "").trim().to_string();
        (!secret.is_empty()).then(|| Self { secret, source: source.into() })
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.source)
    }
}

impl HubEnvironment {
    /// From the process environment.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the hub's variables")]
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok(), std::env::home_dir())
    }

    /// From any source of variables, with huggingface_hub's precedence. An empty variable is an
    /// unset one.
    pub fn from_lookup(
        variable: impl Fn(&str) -> Option<String>,
        home_dir: Option<PathBuf>,
    ) -> Self {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = home_dir.unwrap_or_else(|| PathBuf::from("."));
        let path = |name: &str| get(name).map(|value| expand_user(&value, &home));

        let hf_home = path("HF_HOME").unwrap_or_else(|| {
            path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache")).join("huggingface")
        });
        // The token stays there where another folder is the cache.
        let at_home = Cache::new(hf_home.join("hub"));
        let cache_dir = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| at_home.path().clone());
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| at_home.token_path());
        let implicit_token = !get("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|v| is_true(&v));

        Self {
            cache_dir,
            token: implicit_token.then(|| find_token(&get, &token_file)).flatten(),
            endpoint: get("HF_ENDPOINT")
                .unwrap_or_else(|| DEFAULT_ENDPOINT.to_string())
                .trim_end_matches('/')
                .to_string(),
            // The first that is set decides: HF_HUB_OFFLINE=0 outweighs TRANSFORMERS_OFFLINE=1.
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .iter()
                .find_map(|name| get(name).map(|value| (name, value)))
                .filter(|(_, value)| is_true(value))
                .map(|(name, _)| name.to_string()),
            limits: NetworkLimits::default(),
        }
    }
}

fn find_token(get: &impl Fn(&str) -> Option<String>, file: &Path) -> Option<Token> {
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
        .iter()
        .find_map(|name| Token::new(&get(name)?, *name))
        .or_else(|| {
            let text = String::from_utf8(read_file(file, MAX_TOKEN_BYTES).ok()?).ok()?;
            Token::new(&text, file.display().to_string())
        })
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

fn expand_user(value: &str, home: &Path) -> PathBuf {
    match value.strip_prefix('~') {
        Some("") => home.to_path_buf(),
        Some(rest) if rest.starts_with('/') => home.join(&rest[1..]),
        _ => PathBuf::from(value),
    }
}
