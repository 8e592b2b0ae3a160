//! Files of a dataset: fetched by a pattern, at a revision, and then had without network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::tempdir;
use vllm_batch::cli::model::hub::{HubEnvironment, HubError, Split, resolve_dataset};

use crate::hub::server::{DEV, MAIN, REPO, Server};
use crate::hub::{environment, shown};

const TRAIN: [&str; 2] = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"];

fn repository() -> BTreeMap<String, Vec<u8>> {
    let names = ["README.md", "data/test.jsonl", "data/more/x.parquet"].into_iter().chain(TRAIN);
    names.map(|name| (name.to_owned(), name.repeat(9).into_bytes())).collect()
}

fn find(files: &str, environment: &HubEnvironment) -> Result<Vec<PathBuf>, HubError> {
    resolve_dataset(&format!("hf://datasets/{REPO}{files}"), None, environment, &mut ())
}

/// Paths of the files that were asked for.
fn fetched(server: &Server) -> BTreeSet<String> {
    let log = server.take_log().into_iter().filter(|request| request.method == "GET");
    let paths = log.filter_map(|request| {
        let (_, file) = request.path.split_once("/resolve/")?;
        Some(file.split_once('/')?.1.to_owned())
    });
    paths.collect()
}

#[test]
fn files_of_a_pattern_are_fetched_in_order_and_then_need_no_network() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let endpoint = server.endpoint.clone();
    let mut environment = HubEnvironment { endpoint, ..environment(cache.path()) };
    let files = find("/data/train-*.parquet", &environment).unwrap();
    let folder = cache.path().join("datasets--tiny-org--Tiny-Llama_1.5");
    assert_eq!(files, TRAIN.map(|name| folder.join("snapshots").join(MAIN).join(name)));
    assert_eq!(fetched(&server), TRAIN.iter().map(|name| (*name).to_owned()).collect());
    for (file, name) in files.iter().zip(TRAIN) {
        assert_eq!(fs::read(file).unwrap(), repository()[name]);
    }
    // Another file of the same commit: what is there is not fetched again.
    assert_eq!(find("/data/*.*", &environment).unwrap().len(), 3);
    assert_eq!(fetched(&server), ["data/test.jsonl".to_owned()].into());
    assert!(find("@dev/next/data/test.jsonl", &environment).is_err(), "one name has no slash");
    let dev = find("@dev%2Fnext/data/test.jsonl", &environment).unwrap();
    assert!(dev[0].to_str().unwrap().contains(DEV));
    server.take_log();
    environment.offline = Some("HF_HUB_OFFLINE".into());
    assert_eq!(find("/data/train-*.parquet", &environment).unwrap(), files);
    let error = find("/README.md", &environment).unwrap_err();
    assert!(shown(&error).contains("it lacks README.md"), "{error}");
    let error = find("/data/*.csv", &environment).unwrap_err();
    assert!(shown(&error).contains("it has no file `data/*.csv`"), "{error}");
    assert!(server.take_log().is_empty());
}

#[test]
fn what_other_programs_fetched_is_had_by_its_name() {
    let cache = tempdir().unwrap();
    let mut environment = environment(cache.path());
    environment.offline = Some("HF_HUB_OFFLINE".into());
    let folder = cache.path().join("datasets--tiny-org--Tiny-Llama_1.5");
    let snapshot = folder.join("snapshots").join(MAIN);
    fs::create_dir_all(snapshot.join("data")).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), MAIN).unwrap();
    fs::write(snapshot.join("data/test.jsonl"), "{}").unwrap();
    assert_eq!(find("/data/test.jsonl", &environment).unwrap(), [snapshot.join("data/test.jsonl")]);
    assert!(find("/data/*.jsonl", &environment).is_err(), "there may be more of them");
    // A link out of the cache is not read.
    let secret = cache.path().join("secret");
    fs::write(&secret, "x").unwrap();
    symlink(&secret, snapshot.join("data/link.jsonl")).unwrap();
    let error = find("/data/link.jsonl", &environment).unwrap_err();
    assert!(shown(&error).contains("leads out of the cache"), "{error}");
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let (server, cache) = (Server::start(&repository()), tempdir().unwrap());
    let endpoint = server.endpoint.clone();
    let environment = HubEnvironment { endpoint, ..environment(cache.path()) };
    let error = find("/train/*.parquet", &environment).unwrap_err();
    let text = shown(&error);
    assert!(
        text.contains("has no file `train/*.parquet`") && text.contains("`README.md`"),
        "{text}"
    );
    let error = find("@other/README.md", &environment).unwrap_err();
    assert!(shown(&error).contains("has no revision other"), "{error}");
    let other =
        resolve_dataset("hf://datasets/no/such/x", None, &environment, &mut ()).unwrap_err();
    assert!(shown(&other).contains("there is no datasets/no/such"), "{other}");
}

#[test]
fn a_split_is_what_the_card_says_or_what_files_are_called() {
    let mut files = repository();
    let card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: small\n    path: \
                data/more/*\n---\n";
    let split = |name: &str| Split { name: name.to_owned(), subset: None };
    for (readme, name, wanted) in [
        (None, "train", &TRAIN[..]),
        (None, "test", &["data/test.jsonl"]),
        (Some(card), "small", &["data/more/x.parquet"]),
    ] {
        files.remove("README.md");
        files.extend(readme.map(|text| ("README.md".to_owned(), text.as_bytes().to_vec())));
        let (server, cache) = (Server::start(&files), tempdir().unwrap());
        let endpoint = server.endpoint.clone();
        let mut environment = HubEnvironment { endpoint, ..environment(cache.path()) };
        let find = |input: &str, name: &str, environment: &HubEnvironment| {
            resolve_dataset(input, Some(&split(name)), environment, &mut ())
        };
        let found = find(REPO, name, &environment).unwrap();
        assert_eq!(found.len(), wanted.len(), "{name}");
        assert!(found.iter().zip(wanted).all(|(path, name)| path.ends_with(name)), "{found:?}");
        let fetched = fetched(&server).into_iter().filter(|name| name != "README.md");
        assert!(fetched.eq(wanted.iter().map(|name| (*name).to_owned())), "nothing else");
        let error = find(REPO, "none", &environment).unwrap_err();
        assert!(shown(&error).contains("has no split `none`"), "{error}");
        environment.offline = Some("HF_HUB_OFFLINE".into());
        server.take_log();
        assert_eq!(find(&format!("hf://datasets/{REPO}"), name, &environment).unwrap(), found);
        assert!(find(&format!("{REPO}/data/x.csv"), name, &environment).is_err(), "a file");
        assert!(server.take_log().is_empty());
    }
}
