//! One GGUF file of a repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;

use tempfile::tempdir;
use vllm_batch::cli::model::hub::HubEnvironment;

use crate::hub::server::{MAIN, REPO, Server, etag};
use crate::hub::{environment, resolve, shown};

const PARTS: [&str; 2] = ["F16/m-F16-00001-of-00002.gguf", "F16/m-F16-00002-of-00002.gguf"];

/// As repositories of GGUF files are.
fn repository() -> BTreeMap<String, Vec<u8>> {
    let names = ["README.md", "config.json", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf"];
    let names = names.into_iter().chain(PARTS);
    names.map(|name| (name.to_owned(), name.repeat(9).into_bytes())).collect()
}

/// Paths of the files that were asked for.
fn fetched(server: &Server) -> BTreeSet<String> {
    let log = server.take_log().into_iter().filter(|request| request.method == "GET");
    let paths = log.filter_map(|request| {
        let (_, file) = request.path.split_once(&format!("/resolve/{MAIN}/"))?;
        Some(file.to_owned())
    });
    paths.collect()
}

#[test]
fn one_file_is_fetched_by_its_name_or_its_type_and_then_needs_no_network() {
    for (name, wanted) in [
        ("m-Q8_0.gguf", &["m-Q8_0.gguf"][..]),
        ("Q8_0", &["m-Q8_0.gguf"]),
        ("q4_k_m", &["m-Q4_K_M.gguf"]),
        (PARTS[1], &[PARTS[1], PARTS[0]]),
        ("F16", &PARTS),
    ] {
        let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
        let endpoint = server.endpoint.clone();
        let mut environment = HubEnvironment { endpoint, ..environment(cache.path()) };
        let colon = format!("{REPO}:{name}");
        let file = resolve(&colon, &environment).unwrap();
        let snapshot = cache.path().join("models--tiny-org--Tiny-Llama_1.5/snapshots").join(MAIN);
        assert_eq!(file, snapshot.join(wanted[0]), "{name}");
        let all: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(fetched(&server), all, "{name}");
        for part in wanted {
            assert_eq!(fs::read(snapshot.join(part)).unwrap(), repository()[*part], "{part}");
        }
        environment.offline = Some("HF_HUB_OFFLINE".into());
        assert_eq!(resolve(&colon, &environment).unwrap(), file);
        if name.contains('.') {
            assert_eq!(resolve(&format!("{REPO}/{name}"), &environment).unwrap(), file);
        }
        assert!(fetched(&server).is_empty(), "{name}");
        let error = resolve(REPO, &environment).unwrap_err();
        assert_eq!(error.code(), "hub_offline", "the folder is not there: {error}");
    }
}

#[test]
fn what_is_not_one_whole_file_is_refused() {
    let cache = tempdir().unwrap();
    let mut files = repository();
    files.remove(PARTS[1]);
    let server = Server::start(&files);
    let mut environment =
        HubEnvironment { endpoint: server.endpoint.clone(), ..environment(cache.path()) };
    for (name, code, wanted) in [
        ("none.gguf", "model_not_found", "has no file `none.gguf`"),
        ("Q2_K", "model_not_found", "has no GGUF file of `Q2_K`"),
        ("m", "bad_model_name", "several such GGUF files: `F16/m-F16-00001"),
        ("F16", "model_incomplete", "`F16/m-F16-00002-of-00002.gguf`, a part of"),
        ("../x.gguf", "bad_model_name", "`../x.gguf` is not the name of a file"),
        ("a b", "bad_model_name", "neither a folder nor a Hugging Face model id"),
    ] {
        let error = resolve(&format!("{REPO}:{name}"), &environment).unwrap_err();
        assert_eq!(error.code(), code, "{name}: {error}");
        assert!(shown(&error).contains(wanted), "{name}: {error}");
    }
    assert!(fetched(&server).is_empty(), "nothing is fetched");
    environment.offline = Some("HF_HUB_OFFLINE".into());
    let error = resolve(&format!("{REPO}:Q8_0"), &environment).unwrap_err();
    assert_eq!(error.code(), "hub_offline");
}

#[test]
fn a_file_in_a_folder_of_the_cache_does_not_lead_out_of_it() {
    let (cache, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let model = cache.path().join("models--tiny-org--Tiny-Llama_1.5");
    let snapshot = model.join("snapshots").join(MAIN);
    fs::create_dir_all(snapshot.join("F16")).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), MAIN).unwrap();
    let secret = outside.path().join(etag(b"secret"));
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, snapshot.join("F16/a.gguf")).unwrap();
    let environment =
        HubEnvironment { offline: Some("HF_HUB_OFFLINE".into()), ..environment(cache.path()) };
    for name in ["F16/a.gguf", "F16"] {
        let error = resolve(&format!("{REPO}:{name}"), &environment).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("model_unsafe", 7), "{name}: {error}");
    }
}
