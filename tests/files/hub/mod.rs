//! Finding and fetching models, against a hub and caches made here. No network.
//!
//! A proxy is taken from the environment: where one is set, run with `NO_PROXY=127.0.0.1`.

mod cache;
mod datasets;
mod download;
mod environment;
mod faults;
mod gguf;
mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vllm_batch::cli::model::hub::environment::{NetworkLimits, Token};
use vllm_batch::cli::model::hub::{HubEnvironment, HubError, resolve_model};

const SECRET: &str = "hf_VerySecretToken";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A repository with sharded weights, and with files that nobody needs.
fn repository() -> BTreeMap<String, Vec<u8>> {
    let index = serde_json::json!({
        "metadata": {"total_size": 300_007},
        "weight_map": {"a.weight": SHARDS[0], "b.weight": SHARDS[1], "c.weight": SHARDS[0]},
    });
    let weights =
        |length: usize, step: usize| (0..length).map(|i| (i * step % 251) as u8).collect();
    let text = |text: &str| text.as_bytes().to_vec();
    BTreeMap::from([
        ("config.json".into(), text("{\"model_type\": \"llama\"}")),
        ("generation_config.json".into(), text("{}")),
        ("tokenizer.json".into(), text("{\"version\": \"1.0\"}")),
        ("tokenizer_config.json".into(), text("{\"dev\": false}")),
        ("chat_template.jinja".into(), text("{{ messages }}")),
        ("model.safetensors.index.json".into(), index.to_string().into_bytes()),
        (SHARDS[0].into(), weights(200_000, 7)),
        (SHARDS[1].into(), weights(100_007, 3)),
        ("consolidated.safetensors".into(), weights(5000, 5)),
        ("pytorch_model.bin".into(), text("pickle")),
        ("README.md".into(), text("# Tiny")),
        ("onnx/model.onnx".into(), text("onnx")),
    ])
}

/// An environment for a cache folder: an endpoint that nobody listens on, little patience.
fn environment(cache_dir: &Path) -> HubEnvironment {
    let limits = NetworkLimits {
        // A busy machine's server is slow.
        stall: Duration::from_secs(30),
        attempts: 2,
        wait: Duration::from_millis(1),
    };
    HubEnvironment {
        cache_dir: cache_dir.to_path_buf(),
        token: Token::new(SECRET, "HF_TOKEN"),
        endpoint: "http://127.0.0.1:9".into(),
        offline: None,
        limits,
    }
}

fn resolve(name: &str, environment: &HubEnvironment) -> Result<PathBuf, HubError> {
    resolve_model(name, None, None, environment, &mut ())
}

/// All that a user could see of an error.
fn shown(error: &HubError) -> String {
    let text = format!("{error} | {} | {error:?}", error.help());
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("http://") && !text.contains("signature"), "{text}");
    text
}
