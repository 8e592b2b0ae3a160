//! Servers and repositories that are broken, closed or hostile: each gives its own clear error.

use std::fs;
use std::time::Duration;

use tempfile::tempdir;
use vllm_batch::cli::model::hub::{HubEnvironment, HubError};

use crate::hub::server::{Fault, REPO, Server};
use crate::hub::{SHARDS, environment, repository, resolve, shown};

fn failure_of(fault: Fault) -> HubError {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let mut environment =
        HubEnvironment { endpoint: server.endpoint.clone(), ..environment(cache.path()) };
    if matches!(fault, Fault::Hang) {
        environment.limits.stall = Duration::from_millis(500);
    }
    server.set_fault(fault);
    resolve(REPO, &environment).unwrap_err()
}

fn failure_with(change: impl FnOnce(&mut std::collections::BTreeMap<String, Vec<u8>>)) -> HubError {
    let mut files = repository();
    change(&mut files);
    let (server, cache) = (Server::start(&files), tempdir().unwrap());
    let environment =
        HubEnvironment { endpoint: server.endpoint.clone(), ..environment(cache.path()) };
    let error = resolve(REPO, &environment).unwrap_err();
    let shards = SHARDS.iter().filter(|shard| files.contains_key(**shard));
    let asked = server.take_log();
    for shard in shards {
        assert!(!asked.iter().any(|request| request.path.contains(*shard)), "{shard} was fetched");
    }
    error
}

#[test]
fn statuses_and_connections() {
    let cases = [
        (
            Fault::Status(401, "RepoNotFound"),
            "model_access",
            "it does not exist, is private, or is gated",
        ),
        (Fault::Status(403, "GatedRepo"), "model_access", "it is gated"),
        (Fault::FileStatus(403), "model_access", "status 403"),
        (Fault::Status(404, "RepoNotFound"), "model_not_found", "nor a folder of that name"),
        (Fault::FileStatus(404), "model_not_found", "there is no tiny-org/Tiny-Llama_1.5"),
        (Fault::Status(500, ""), "hub_unreachable", "HTTP status 500"),
        (Fault::FileStatus(503), "hub_unreachable", "HTTP status 503"),
        (Fault::Status(429, ""), "hub_unreachable", "HTTP status 429"),
        (Fault::Close, "hub_unreachable", "connection closed early"),
        (Fault::Short, "hub_unreachable", "came with a wrong length"),
        (Fault::FileStatus(304), "hub_unreachable", "does not answer as the Hugging Face hub does"),
        (Fault::HostileEtag, "hub_unreachable", "does not answer as the Hugging Face hub does"),
    ];
    for (fault, code, text) in cases {
        let error = failure_of(fault);
        let shown = shown(&error);
        assert_eq!((error.code(), error.exit_code()), (code, 2), "{fault:?}: {shown}");
        assert!(shown.contains(text), "{fault:?}: {shown}");
        assert!(error.to_string().contains("tiny-org/Tiny-Llama_1.5"), "{error}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }
}

#[test]
fn a_missing_token_is_asked_for_and_a_weak_one_named() {
    let error = failure_of(Fault::Status(401, "GatedRepo"));
    assert!(error.help().contains("the token from HF_TOKEN has no access"), "{}", error.help());
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    server.set_fault(Fault::Status(401, "GatedRepo"));
    let environment = HubEnvironment {
        endpoint: server.endpoint.clone(),
        token: None,
        ..environment(cache.path())
    };
    let error = resolve(REPO, &environment).unwrap_err();
    assert!(error.help().contains("set HF_TOKEN"), "{}", error.help());
    assert!(server.take_log().iter().all(|request| request.authorization.is_none()));
}

#[test]
fn a_server_that_is_gone_or_silent() {
    let cache = tempdir().unwrap();
    let error = resolve(REPO, &environment(cache.path())).unwrap_err();
    assert_eq!(error.code(), "hub_unreachable");
    assert!(shown(&error).contains("cannot reach 127.0.0.1:9"), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.help().starts_with("there is no folder ./tiny-org/Tiny-Llama_1.5 either; "));

    // This server waits for whoever asks to go away.
    let error = failure_of(Fault::Hang);
    assert_eq!(error.code(), "hub_unreachable", "{}", shown(&error));

    let mut environment = environment(cache.path());
    environment.endpoint = "http://user:pa%ss@exa mple".into();
    let error = resolve(REPO, &environment).unwrap_err();
    assert!(!shown(&error).contains("pa%ss"), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    let environment =
        HubEnvironment { endpoint: server.endpoint.clone(), ..environment(&file.join("hub")) };
    let error = resolve(REPO, &environment).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("model_cache", 5));
    assert!(shown(&error).contains("cannot write tiny-org/Tiny-Llama_1.5"), "{error}");
}

#[test]
fn repositories_that_cannot_be_run_are_refused_before_their_weights_are_fetched() {
    let error = failure_with(|files| {
        files.retain(|name, _| !name.contains("safetensors") && name != "pytorch_model.bin");
        files.insert("consolidated.00.pth".into(), b"pickle".to_vec());
    });
    assert_eq!((error.code(), error.exit_code()), ("model_unsupported", 7));
    assert!(error.to_string().contains("consolidated.00.pth"), "{error}");
    assert!(error.help().contains("safe_serialization=True"), "{}", error.help());

    let error = failure_with(|files| {
        files.remove("tokenizer.json");
    });
    assert_eq!((error.code(), error.exit_code()), ("model_incomplete", 7));
    assert!(error.to_string().contains("has no tokenizer.json"), "{error}");

    let error = failure_with(|files| {
        files.remove("config.json");
    });
    assert!(error.to_string().contains("has no config.json"), "{error}");

    let error = failure_with(|files| {
        files.remove(SHARDS[1]);
    });
    assert_eq!(error.exit_code(), 7);
    assert!(error.to_string().contains(&format!("has no {}", SHARDS[1])), "{error}");
}

#[test]
fn indexes_that_lead_out_of_the_folder_are_refused() {
    for name in ["../../etc/passwd", "/etc/passwd", "a\\b.safetensors", "a\0.safetensors", "..", ""]
    {
        let error = failure_with(|files| {
            let index = serde_json::json!({"weight_map": {"a": SHARDS[0], "b": name}});
            files.insert("model.safetensors.index.json".into(), index.to_string().into_bytes());
        });
        assert_eq!((error.code(), error.exit_code()), ("model_unsafe", 7), "{name:?}");
        assert!(!error.to_string().contains('\0'), "{error}");
    }
    let error = failure_with(|files| {
        let index = serde_json::json!({"weight_map": {"a": "pytorch_model.bin"}});
        files.insert("model.safetensors.index.json".into(), index.to_string().into_bytes());
    });
    assert!(error.to_string().contains("not a .safetensors file"), "{error}");
}
