//! huggingface_hub's variables and their precedence.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;
use vllm_batch::cli::model::hub::HubEnvironment;

use crate::hub::SECRET;

fn with(variables: &[(&str, &str)]) -> HubEnvironment {
    let lookup = |name: &str| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    };
    HubEnvironment::from_lookup(lookup, Some(PathBuf::from("/users/me")))
}

#[test]
fn the_cache_folder() {
    let mut variables = vec![];
    let steps = [
        ("HOME", "unused", "/users/me/.cache/huggingface/hub"),
        ("XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"),
        ("HF_HOME", "~/hf", "/users/me/hf/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
        ("HF_HUB_CACHE", "/new", "/new"),
    ];
    for (name, value, expected) in steps {
        variables.push((name, value));
        assert_eq!(with(&variables).cache_dir, Path::new(expected), "{name}");
    }
    assert_eq!(with(&[("HF_HUB_CACHE", ""), ("HF_HOME", "/a")]).cache_dir, Path::new("/a/hub"));
}

#[test]
fn the_endpoint_and_offline() {
    assert_eq!(with(&[]).endpoint, "https://huggingface.co");
    assert_eq!(with(&[("HF_ENDPOINT", "http://mirror:8080/")]).endpoint, "http://mirror:8080");

    assert_eq!(with(&[]).offline, None);
    for yes in ["1", "ON", "yes", "True"] {
        let offline = with(&[("HF_HUB_OFFLINE", yes)]).offline;
        assert_eq!(offline.as_deref(), Some("HF_HUB_OFFLINE"), "{yes}");
    }
    let offline = with(&[("TRANSFORMERS_OFFLINE", "1")]).offline;
    assert_eq!(offline.as_deref(), Some("TRANSFORMERS_OFFLINE"));
    assert_eq!(with(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")]).offline, None);
}

#[test]
fn the_token() {
    let home = tempdir().unwrap();
    let (in_home, elsewhere) = (home.path().join("token"), home.path().join("elsewhere"));
    fs::write(&in_home, "in-home\n").unwrap();
    fs::write(&elsewhere, "elsewhere").unwrap();
    let hf_home = ("HF_HOME", home.path().to_str().unwrap());
    let token_path = ("HF_TOKEN_PATH", elsewhere.to_str().unwrap());
    let source = |variables: &[(&str, &str)]| with(variables).token.map(|t| format!("{t:?}"));

    assert_eq!(source(&[]), None);
    let from = |path: &Path| Some(format!("Token(from {})", path.display()));
    assert_eq!(source(&[hf_home]), from(&in_home));
    assert_eq!(source(&[hf_home, token_path]), from(&elsewhere));
    let variable = ("HF_TOKEN", SECRET);
    assert_eq!(source(&[hf_home, token_path, variable]), from(Path::new("HF_TOKEN")));
    assert_eq!(source(&[hf_home, ("HF_TOKEN", " \n")]), from(&in_home));
    assert_eq!(source(&[hf_home, variable, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
}
