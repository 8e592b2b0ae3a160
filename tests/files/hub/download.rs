//! Downloads that go well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::tempdir;
use vllm_batch::cli::model::hub::progress::PlainProgress;
use vllm_batch::cli::model::hub::{HubEnvironment, ModelRequest, Need, resolve_model};

use crate::hub::server::{DEV, Fault, MAIN, REPO, Request, Server, etag};
use crate::hub::{SECRET, SHARDS, environment, repository, resolve, shown};

fn online(server: &Server, cache: &Path) -> HubEnvironment {
    HubEnvironment { endpoint: server.endpoint.clone(), ..environment(cache) }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

/// Files that were asked for, without the probes before them.
fn bodies(log: &[Request]) -> Vec<&str> {
    let is_body = |request: &&Request| {
        let is_redirected = request.path.ends_with(".safetensors");
        request.method == "GET" && !request.path.starts_with("/api/models/") && !is_redirected
    };
    log.iter().filter(is_body).map(|request| request.path.as_str()).collect()
}

/// The hub was shown the token each time, and nobody else was at any time.
fn assert_token_stays_at(server: &Server, log: &[Request]) {
    let bearer = format!("Bearer {SECRET}");
    let hub = server.endpoint.strip_prefix("http://").unwrap();
    for request in log {
        let wanted = (request.host == hub).then_some(bearer.as_str());
        assert_eq!(request.authorization.as_deref(), wanted, "{request:?}");
    }
}

#[test]
fn a_download_has_the_standard_layout_and_then_needs_no_network() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let mut environment = online(&server, cache.path());

    let folder = resolve(REPO, &environment).unwrap();

    let model = cache.path().join("models--tiny-org--Tiny-Llama_1.5");
    assert_eq!(folder, model.join("snapshots").join(MAIN));
    assert_eq!(names(&model.join("refs")), BTreeSet::from(["main".to_string()]));
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), MAIN);
    let unneeded =
        ["consolidated.safetensors", "pytorch_model.bin", "README.md", "onnx/model.onnx"];
    let wanted: BTreeSet<String> =
        repository().into_keys().filter(|name| !unneeded.contains(&name.as_str())).collect();
    assert_eq!(names(&folder), wanted);
    for name in &wanted {
        let blob = format!("../../blobs/{}", etag(&repository()[name]));
        assert_eq!(fs::read_link(folder.join(name)).unwrap(), Path::new(&blob), "{name}");
        assert_eq!(fs::read(folder.join(name)).unwrap(), repository()[name], "{name}");
    }

    let log = server.take_log();
    assert!(log.len() > wanted.len());
    assert_token_stays_at(&server, &log);
    assert!(!format!("{environment:?}").contains(SECRET));

    assert_eq!(resolve(REPO, &environment).unwrap(), folder);
    environment.offline = Some("HF_HUB_OFFLINE".into());
    assert_eq!(resolve(REPO, &environment).unwrap(), folder);
    assert!(server.take_log().is_empty(), "a complete snapshot needs no request");
}

#[test]
fn no_host_but_the_hub_sees_the_token() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    server.set_fault(Fault::AllElsewhere);
    resolve(REPO, &online(&server, cache.path())).unwrap();
    let log = server.take_log();
    let elsewhere = log.iter().filter(|request| request.host == server.elsewhere);
    let is_whole = |request: &Request| request.method == "GET" && request.range.is_none();
    assert!(elsewhere.clone().all(is_whole), "a redirect away is followed for the file alone");
    assert!(elsewhere.count() >= 8);
    assert_token_stays_at(&server, &log);
}

#[test]
fn a_mirror_without_ranges_and_lengths_serves() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    server.set_fault(Fault::NoRanges);
    let folder = resolve(REPO, &online(&server, cache.path())).unwrap();
    for name in ["config.json", SHARDS[0], SHARDS[1]] {
        assert!(fs::read(folder.join(name)).unwrap() == repository()[name], "{name}");
    }
}

#[test]
fn a_file_whose_bytes_are_not_those_of_its_name_is_fetched_once_more() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    server.set_fault(Fault::Flipped(1));
    let folder = resolve(REPO, &online(&server, cache.path())).unwrap();
    for shard in SHARDS {
        assert!(fs::read(folder.join(shard)).unwrap() == repository()[shard], "{shard}");
    }

    let cache = tempdir().unwrap();
    let mut environment = online(&server, cache.path());
    environment.limits.attempts = 9;
    server.set_fault(Fault::Flipped(100));
    server.take_log();
    let error = resolve(REPO, &environment).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("hub_unreachable", 2));
    assert!(shown(&error).contains("came with wrong bytes: their sha256 is "), "{error}");
    assert!(error.to_string().contains(SHARDS[0]), "{error}");
    let log = server.take_log();
    let bodies = bodies(&log).into_iter().filter(|path| path.contains(SHARDS[0]));
    assert_eq!(bodies.count(), 2, "no file is fetched again and again");
    let blobs = cache.path().join("models--tiny-org--Tiny-Llama_1.5/blobs");
    let large = fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(large.into_iter().all(|len| len < 1000), "the cache keeps nothing of it");
}

#[test]
fn pickles_are_fetched_where_there_are_no_safetensors() {
    let mut files = repository();
    files.retain(|name, _| !name.contains("safetensors"));
    let tokenizer = ["vocab.json", "merges.txt", "added_tokens.json"];
    for name in tokenizer {
        files.insert(name.into(), b"{}".to_vec());
    }
    // As repositories from before tokenizer.json have it.
    files.remove("tokenizer.json");
    files.insert("training_args.bin".into(), b"trainer".to_vec());
    let (server, cache) = (Server::start(&files), tempdir().unwrap());
    let found = names(&resolve(REPO, &online(&server, cache.path())).unwrap());
    assert!(found.contains("pytorch_model.bin") && !found.contains("training_args.bin"));
    assert!(tokenizer.iter().all(|name| found.contains(*name)), "{found:?}");

    let index = serde_json::json!({"weight_map": {"a": "pytorch_model-1.bin"}}).to_string();
    files.insert("pytorch_model.bin.index.json".into(), index.into_bytes());
    files.insert("pytorch_model-1.bin".into(), b"shard".to_vec());
    let (server, cache) = (Server::start(&files), tempdir().unwrap());
    let found = names(&resolve(REPO, &online(&server, cache.path())).unwrap());
    assert!(found.contains("pytorch_model-1.bin") && !found.contains("pytorch_model.bin"));
}

#[test]
fn revisions_are_branches_and_commits_and_share_their_blobs() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let environment = online(&server, cache.path());
    let at = |revision| resolve_model(REPO, Some(revision), None, &environment, &mut ());

    let main = at("main").unwrap();
    server.take_log();
    let dev = at("dev/next").unwrap();
    assert!(dev.ends_with(DEV));
    let log = server.take_log();
    let fetched = bodies(&log);
    assert!(fetched.iter().all(|path| path.ends_with("tokenizer_config.json")), "{fetched:?}");
    assert_eq!(fs::read(dev.join(SHARDS[1])).unwrap(), repository()[SHARDS[1]]);
    assert_eq!(fs::read(dev.join("tokenizer_config.json")).unwrap(), b"{\"dev\": true}");
    assert_eq!(fs::read(main.join("tokenizer_config.json")).unwrap(), b"{\"dev\": false}");

    let other = tempdir().unwrap();
    let by_commit =
        resolve_model(REPO, Some(DEV), Some(other.path()), &environment, &mut ()).unwrap();
    assert!(by_commit.starts_with(other.path()) && by_commit.ends_with(DEV));
    server.take_log();
    assert_eq!(at(DEV).unwrap(), dev);
    assert!(server.take_log().is_empty());

    let error = at("no-such-branch").unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("model_not_found", 2));
    assert!(shown(&error).contains("has no revision no-such-branch"), "{error}");
}

#[test]
fn a_broken_connection_is_continued_within_a_run_and_by_the_next() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let mut environment = online(&server, cache.path());
    environment.limits.attempts = 1;
    server.set_fault(Fault::Cut(1));
    let error = resolve(REPO, &environment).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("hub_unreachable", 2));
    assert!(shown(&error).contains("closed early"), "{error}");
    assert!(error.help().contains("continues"), "{}", error.help());

    // Every further attempt brings some bytes, so more of them may fail than `attempts` allows.
    environment.limits.attempts = 2;
    server.set_fault(Fault::Cut(4));
    server.take_log();
    let folder = resolve(REPO, &environment).unwrap();
    let continued = server.take_log().into_iter().filter_map(|request| request.range);
    assert!(continued.filter(|range| range.ends_with('-') && range != "bytes=0-").count() >= 5);
    for shard in SHARDS {
        assert!(fs::read(folder.join(shard)).unwrap() == repository()[shard], "{shard}");
    }
}

#[test]
fn parts_that_are_complete_or_too_long_do_not_block() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let blobs = cache.path().join("models--tiny-org--Tiny-Llama_1.5/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = |shard: &str| blobs.join(etag(&repository()[shard])).with_extension("part");
    fs::write(part(SHARDS[0]), &repository()[SHARDS[0]]).unwrap();
    fs::write(part(SHARDS[1]), vec![0; 200_000]).unwrap();
    let folder = resolve(REPO, &online(&server, cache.path())).unwrap();
    for shard in SHARDS {
        assert!(fs::read(folder.join(shard)).unwrap() == repository()[shard], "{shard}");
    }
}

#[test]
fn a_server_that_ignores_ranges_does_not_damage_a_continued_file() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let blobs = cache.path().join("models--tiny-org--Tiny-Llama_1.5/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let content = &repository()[SHARDS[0]];
    let part = blobs.join(etag(content)).with_extension("part");
    fs::write(part, &content[..70_000]).unwrap();
    server.set_fault(Fault::IgnoreRange);
    let folder = resolve(REPO, &online(&server, cache.path())).unwrap();
    assert!(fs::read(folder.join(SHARDS[0])).unwrap() == *content);
}

#[test]
fn processes_that_start_together_fetch_every_file_once() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let environment = online(&server, cache.path());
    std::thread::scope(|scope| {
        let run = || resolve(REPO, &environment).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        let folders: BTreeSet<_> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(folders.len(), 1);
    });
    let log = server.take_log();
    let fetched = bodies(&log);
    let distinct: BTreeSet<_> = fetched.iter().collect();
    assert_eq!(fetched.len(), distinct.len(), "{fetched:?}");
}

#[test]
fn a_tokenizer_is_fetched_without_weights_and_completed_later() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let environment = online(&server, cache.path());
    let need = Need::TOKENIZER;
    let request = ModelRequest { name: REPO, revision: None, download_dir: None, need };
    let folder = vllm_batch::cli::model::hub::resolve(&request, &environment, &mut ()).unwrap();
    assert!(folder.join("tokenizer.json").exists() && !folder.join(SHARDS[0]).exists());
    assert_eq!(resolve(REPO, &environment).unwrap(), folder);
    assert!(folder.join(SHARDS[0]).exists());
}

/// A repository of sentence-transformers.
fn repository_with_modules() -> BTreeMap<String, Vec<u8>> {
    let module = |path: &str, kind: &str| serde_json::json!({"path": path, "type": format!("sentence_transformers.models.{kind}")});
    let list = serde_json::json!([
        module("", "Transformer"),
        module("1_Pooling", "Pooling"),
        module("2_Dense", "Dense"),
        module("3_Normalize", "Normalize"),
    ]);
    let mut files = repository();
    files.insert("modules.json".into(), list.to_string().into_bytes());
    for name in [
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "sparse_linear.pt",
        "colbert_linear.pt",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
    ] {
        files.insert(name.into(), name.as_bytes().to_vec());
    }
    files
}

#[test]
fn a_model_for_vectors_comes_with_its_modules() {
    let (files, cache) = (repository_with_modules(), tempdir().unwrap());
    let server = Server::start(&files);
    let mut environment = online(&server, cache.path());
    let need = Need { modules: true, ..Need::MODEL };
    let request = ModelRequest { name: REPO, revision: None, download_dir: None, need };
    let find = |environment: &HubEnvironment| {
        vllm_batch::cli::model::hub::resolve(&request, environment, &mut ())
    };
    // What is fetched to complete texts does not say how vectors are made.
    let folder = resolve(REPO, &environment).unwrap();
    assert!(!folder.join("modules.json").exists());
    environment.offline = Some("HF_HUB_OFFLINE".into());
    let error = find(&environment).unwrap_err();
    assert!(shown(&error).contains("it lacks modules.json;"), "{error}");
    environment.offline = None;
    assert_eq!(find(&environment).unwrap(), folder);
    for name in files.keys().filter(|name| name.contains("_") && !name.contains("pytorch_model")) {
        assert_eq!(fs::read(folder.join(name)).unwrap(), files[name], "{name}");
    }
    assert!(!folder.join("2_Dense/pytorch_model.bin").exists() && !folder.join("onnx").exists());
    environment.offline = Some("HF_HUB_OFFLINE".into());
    assert_eq!(find(&environment).unwrap(), folder);
    for (name, lacks) in [
        ("2_Dense/model.safetensors", "2_Dense/model.safetensors"),
        ("1_Pooling/config.json", "1_Pooling/config.json, 2_Dense/model.safetensors"),
        ("config_sentence_transformers.json", "config_sentence_transformers.json, 1_Pooling"),
    ] {
        fs::remove_file(folder.join(name)).unwrap();
        let error = find(&environment).unwrap_err();
        assert!(shown(&error).contains(&format!("it lacks {lacks}")), "{error}");
    }
}

#[test]
fn a_repository_without_modules_is_known_to_have_none() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let mut environment = online(&server, cache.path());
    let need = Need { modules: true, ..Need::MODEL };
    let request = ModelRequest { name: REPO, revision: None, download_dir: None, need };
    let find = |environment: &HubEnvironment| {
        vllm_batch::cli::model::hub::resolve(&request, environment, &mut ())
    };
    let folder = find(&environment).unwrap();
    environment.offline = Some("HF_HUB_OFFLINE".into());
    assert_eq!(find(&environment).unwrap(), folder);
    // Noted where huggingface_hub notes it.
    let notes = cache.path().join("models--tiny-org--Tiny-Llama_1.5/.no_exist").join(MAIN);
    let noted = ["config_sentence_transformers.json", "modules.json"].map(String::from);
    assert_eq!(names(&notes), BTreeSet::from(noted));
    fs::remove_dir_all(notes).unwrap();
    assert!(shown(&find(&environment).unwrap_err()).contains("it lacks modules.json"));
}

#[test]
fn plain_progress_names_each_file_with_its_size() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let mut text = Vec::new();
    let mut progress = PlainProgress::new(&mut text, Duration::ZERO);
    resolve_model(REPO, None, None, &online(&server, cache.path()), &mut progress).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(&format!("downloading {} (195.31 KiB)\n", SHARDS[0])), "{text}");
    assert!(text.contains(&format!("downloading {}: 100% ", SHARDS[1])), "{text}");
    assert!(!text.contains("pytorch_model.bin"), "{text}");
}

#[test]
fn of_an_adapter_two_files_are_fetched() {
    let wanted = ["adapter_config.json", "adapter_model.safetensors"];
    let all = wanted.into_iter().chain(["tokenizer.json", "README.md", "optimizer.pt"]);
    let files = all.map(|name| (name.to_owned(), name.as_bytes().to_vec())).collect();
    let (server, cache) = (Server::start(&files), tempdir().unwrap());
    let mut environment = online(&server, cache.path());
    let find = |name: &str, environment: &HubEnvironment| {
        let need = Need::ADAPTER;
        let request = ModelRequest { name, revision: None, download_dir: None, need };
        vllm_batch::cli::model::hub::resolve(&request, environment, &mut ())
    };
    let folder = find(REPO, &environment).unwrap();
    assert_eq!(names(&folder), BTreeSet::from(wanted.map(String::from)));
    environment.offline = Some("HF_HUB_OFFLINE".into());
    assert_eq!(find(REPO, &environment).unwrap(), folder);
    fs::remove_file(folder.join(wanted[1])).unwrap();
    let error = find(REPO, &environment).unwrap_err();
    assert!(shown(&error).contains("it lacks adapter_model.safetensors"), "{error}");
    // A folder is the user's own: whoever reads it says what it lacks.
    let own = folder.to_str().unwrap();
    assert_eq!(find(own, &environment).unwrap(), folder);
    for (name, what) in [("none.gguf", "none.gguf is no folder"), ("./none", "no such folder")] {
        let error = find(name, &environment).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}
