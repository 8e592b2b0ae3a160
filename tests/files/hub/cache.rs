//! Local folders, caches as Python's huggingface_hub leaves them, and names that are not names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::tempdir;
use vllm_batch::cli::model::hub::{HubEnvironment, resolve_model};

use crate::hub::server::{MAIN, REPO, etag};
use crate::hub::{SHARDS, environment, repository, resolve, shown};

fn offline(cache: &Path) -> HubEnvironment {
    HubEnvironment { offline: Some("HF_HUB_OFFLINE".into()), ..environment(cache) }
}

/// By hand, as huggingface_hub lays it out; returns the snapshot.
fn python_cache(cache: &Path) -> PathBuf {
    let model = cache.join("models--tiny-org--Tiny-Llama_1.5");
    let snapshot = model.join("snapshots").join(MAIN);
    for folder in [&model.join("refs/refs/pr"), &model.join("blobs"), &snapshot] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(model.join("refs/main"), MAIN).unwrap();
    fs::write(model.join("refs/refs/pr/1"), MAIN).unwrap();
    for (name, content) in repository().iter().filter(|(name, _)| !name.contains('/')) {
        fs::write(model.join("blobs").join(etag(content)), content).unwrap();
        symlink(Path::new("../../blobs").join(etag(content)), snapshot.join(name)).unwrap();
    }
    snapshot
}

#[test]
fn a_python_cache_is_used_offline() {
    let cache = tempdir().unwrap();
    let snapshot = python_cache(cache.path());
    let environment = offline(cache.path());
    for revision in [None, Some("main"), Some("refs/pr/1"), Some(MAIN)] {
        let found = resolve_model(REPO, revision, None, &environment, &mut ()).unwrap();
        assert_eq!(found, snapshot, "{revision:?}");
    }
    let nowhere = offline(Path::new("/nonexistent"));
    let found = resolve_model(REPO, None, Some(cache.path()), &nowhere, &mut ());
    assert_eq!(found.unwrap(), snapshot);

    let error = resolve_model(REPO, Some("v2"), None, &environment, &mut ()).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("hub_offline", 2));
    assert!(shown(&error).contains("this revision is not there (there are: main"), "{error}");
}

#[test]
fn offline_errors_name_what_is_missing_and_what_forbids() {
    let cache = tempdir().unwrap();
    let environment = offline(cache.path());
    let error = resolve(REPO, &environment).unwrap_err();
    assert!(error.to_string().contains("it was never downloaded there"), "{error}");
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");

    let snapshot = python_cache(cache.path());
    // A link whose blob is gone, and a file that was never there.
    fs::remove_file(fs::canonicalize(snapshot.join(SHARDS[1])).unwrap()).unwrap();
    fs::remove_file(snapshot.join("tokenizer.json")).unwrap();
    let error = resolve(REPO, &environment).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("hub_offline", 2));
    let expected = format!("it lacks {}, tokenizer.json;", SHARDS[1]);
    assert!(shown(&error).contains(&expected), "{error}");
}

#[test]
fn links_out_of_the_cache_are_refused() {
    let (cache, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let snapshot = python_cache(cache.path());
    let secret = outside.path().join("secret");
    fs::write(&secret, "{}").unwrap();
    for name in ["tokenizer_config.json", SHARDS[0]] {
        let link = snapshot.join(name);
        let honest = fs::read_link(&link).unwrap();
        fs::remove_file(&link).unwrap();
        symlink(&secret, &link).unwrap();
        let error = resolve(REPO, &offline(cache.path())).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("model_unsafe", 7));
        assert!(error.to_string().contains(name), "{error}");
        fs::remove_file(&link).unwrap();
        symlink(honest, &link).unwrap();
    }
    // The whole cache may lie behind a link, as on shared machines.
    let link = outside.path().join("cache");
    symlink(cache.path(), &link).unwrap();
    assert!(resolve(REPO, &offline(&link)).unwrap().starts_with(&link));
}

#[test]
fn a_ref_names_a_commit_and_no_path() {
    let (cache, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let snapshot = python_cache(cache.path());
    // Whole models, which are not this repository's.
    let other = cache.path().join("models--other").join(MAIN);
    let elsewhere = outside.path().join(MAIN);
    for folder in [&other, &elsewhere] {
        fs::create_dir_all(folder).unwrap();
        for (name, content) in repository().iter().filter(|(name, _)| !name.contains('/')) {
            fs::write(folder.join(name), content).unwrap();
        }
    }
    let at_other = format!("../../models--other/{MAIN}");
    let roundabout = format!("../snapshots/{MAIN}");
    for text in [elsewhere.to_str().unwrap(), &at_other, &roundabout, "main", ".", ""] {
        fs::write(cache.path().join("models--tiny-org--Tiny-Llama_1.5/refs/main"), text).unwrap();
        let error = resolve(REPO, &offline(cache.path())).unwrap_err();
        assert!(error.to_string().contains("this revision is not there"), "{text}: {error}");
    }
    let found = resolve_model(REPO, Some(MAIN), None, &offline(cache.path()), &mut ());
    assert_eq!(found.unwrap(), snapshot);
}

#[test]
fn an_index_in_the_cache_or_in_a_folder_is_not_trusted() {
    let cache = tempdir().unwrap();
    let snapshot = python_cache(cache.path());
    let index = snapshot.join("model.safetensors.index.json");
    fs::remove_file(&index).unwrap();
    fs::write(&index, "{\"weight_map\": {\"a\": \"../../etc/passwd\"}}").unwrap();
    for name in [REPO, snapshot.to_str().unwrap()] {
        let error = resolve(name, &offline(cache.path())).unwrap_err();
        assert_eq!(error.code(), "model_unsafe");
        assert!(error.to_string().contains("`../../etc/passwd`"), "{error}");
    }
    fs::write(&index, "{\"weight_map\": ").unwrap();
    let error = resolve(REPO, &offline(cache.path())).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("model_incomplete", 7));
}

#[test]
fn folders_are_themselves() {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("model");
    fs::create_dir(&folder).unwrap();
    let name = folder.to_str().unwrap();
    let environment = environment(&parent.path().join("cache"));
    let error = resolve(name, &environment).unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("model_incomplete", 7));
    assert!(error.to_string().contains("has no config.json"), "{error}");

    fs::write(folder.join("config.json"), "{}").unwrap();
    assert_eq!(resolve(name, &environment).unwrap(), folder);
    let file = folder.join("config.json");
    let error = resolve(file.to_str().unwrap(), &environment).unwrap_err();
    assert!(error.to_string().contains("is a file"), "{error}");
}

#[test]
fn gguf_files_are_themselves_and_one_in_a_folder_is_meant() {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("model");
    fs::create_dir(&folder).unwrap();
    let environment = environment(&parent.path().join("cache"));
    let find = |path: &Path| resolve(path.to_str().unwrap(), &environment);
    let parts = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"].map(|name| folder.join(name));
    parts.iter().for_each(|path| fs::write(path, "").unwrap());
    assert_eq!(find(&parts[1]).unwrap(), parts[1]);
    assert_eq!(find(&folder).unwrap(), parts[0]);
    // What makes a model see is none.
    let projector = folder.join("mmproj-F16.gguf");
    fs::write(&projector, "").unwrap();
    assert_eq!(find(&folder).unwrap(), parts[0]);
    fs::remove_file(&projector).unwrap();
    fs::write(folder.join("b.gguf"), "").unwrap();
    let error = find(&folder).unwrap_err().to_string();
    assert!(error.contains("several GGUF files: a-00001-of-00002.gguf, b.gguf"), "{error}");
    fs::write(folder.join("config.json"), "{}").unwrap();
    assert_eq!(find(&folder).unwrap(), folder);
}

#[test]
fn hostile_and_mistyped_names_never_reach_disk_or_network() {
    let cache = tempdir().unwrap();
    let environment = environment(cache.path());
    let paths = [
        "../xyzzy",
        "./xyzzy",
        "/no/such/folder",
        "~/x",
        "a/b/c",
        "a\\b",
        "../..x",
        "models/",
        "..\\x",
    ];
    for name in paths {
        let error = resolve(name, &environment).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("model_not_found", 2), "{name}");
        assert!(error.to_string().contains("no such folder"), "{error}");
    }
    let long = "x".repeat(97);
    let names = [
        "",
        " ",
        "a b",
        "org/",
        "org/..",
        "a..b/c",
        "org/na--me",
        "-x/y",
        "org/-x",
        "org/x-",
        "x.git",
        "org/x\0",
        "org/x\n",
        "org/x?a",
        "org/x#a",
        "org/x%2e",
        "org/é",
        "http:x",
        "a@b/c",
        &long,
    ];
    for name in names {
        let error = resolve(name, &environment).unwrap_err();
        let bad = ["bad_model_name", "model_not_found"].contains(&error.code());
        assert!(bad && error.exit_code() == 2, "{name:?}: {error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
    for revision in ["", "..", "a/../b", "/x", "x/", "-x", "a b", "a%2fb", "x?y", "x\n", "a//b"] {
        let error = resolve_model(REPO, Some(revision), None, &environment, &mut ()).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("bad_model_name", 2), "{revision:?}");
    }
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}
