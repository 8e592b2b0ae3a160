//! Weight files, their index, and what lies in their place.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::{Folder, prompt};

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00002-of-00003.safetensors";

/// A safetensors file of this header, and so many bytes of data.
fn file(header: &[u8], num_data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.resize(bytes.len() + num_data_bytes, 0);
    bytes
}

/// The header of a shard, and its data.
fn parts(bytes: &[u8]) -> (Value, Vec<u8>) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + len]).unwrap(), bytes[8 + len..].to_vec())
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = Folder::new();
    let bytes = folder.read(SHARD);
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let data = 8 + header_len;
    let mut lengths = vec![0, 1, 7, 8, 9, data / 2, data - 1, data, data + 1, bytes.len() - 1];
    lengths.extend((1..20).map(|part| bytes.len() * part / 20));
    for len in lengths {
        folder.write(SHARD, &bytes[..len]);
        let wanted = if len == 0 { "it is empty" } else { "it is truncated" };
        let run = folder.run(&[prompt("a")], &[]);
        run.assert_refused(&format!("{len} bytes"), wanted);
        assert!(run.stderr.contains(SHARD), "{}", run.stderr);
    }
}

#[test]
fn damaged_headers_are_refused() {
    let folder = Folder::new();
    let (header, data) = parts(&folder.read(SHARD));
    let text = header.to_string();
    let names: Vec<&String> =
        header.as_object().unwrap().keys().filter(|name| *name != "__metadata__").collect();
    let (first, second) = (names[0].as_str(), names[1].as_str());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut header = header.clone();
        change(&mut header);
        file(header.to_string().as_bytes(), data.len())
    };
    let with_length = |length: u64| {
        let mut bytes = file(text.as_bytes(), data.len());
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let tensor = r#""t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let twice = format!("{{{tensor},{tensor}}}");
    let many: Vec<String> =
        (0..300_000).map(|i| tensor.replacen('t', &format!("t{i}"), 1)).collect();
    let many = format!("{{{}}}", many.join(","));
    for (what, bytes, wanted) in [
        ("length 2^64-1", with_length(u64::MAX), "no safetensors file"),
        ("length 2^63", with_length(1 << 63), "no safetensors file"),
        ("length 100 MB", with_length(100_000_000), "it is truncated"),
        ("length 0", with_length(0), "header is damaged"),
        ("not JSON", file(b"pickle", 0), "header is damaged"),
        ("not UTF-8", file(b"{\"\xff\":1}", 0), "header is damaged"),
        ("a list", file(b"[]", 0), "header is damaged"),
        ("deep", file("[".repeat(100_000).as_bytes(), 0), "header is damaged"),
        ("twice", file(twice.as_bytes(), 0), "is there twice"),
        ("many", file(many.as_bytes(), 0), "more than 262144 tensors"),
        ("no tensor", file(b"{}", 0), "is missing"),
        ("overlap", changed(&|h| h[second]["data_offsets"] = h[first]["data_offsets"].clone()), ""),
        ("beyond", changed(&|h| h[first]["data_offsets"][1] = u64::MAX.into()), ""),
        ("negative", changed(&|h| h[first]["data_offsets"][0] = (-1).into()), "header is damaged"),
        ("overflow", changed(&|h| h[first]["shape"] = json!([1u64 << 32, 1u64 << 32])), "of F32"),
        ("huge", changed(&|h| h[first]["shape"] = json!([u64::MAX])), "of F32"),
        ("dtype", changed(&|h| h[first]["dtype"] = "F16".into()), "of F16"),
        ("unknown dtype", changed(&|h| h[first]["dtype"] = "X".into()), "header is damaged"),
        ("lines", changed(&|h| h["a\nb\u{1b}[2J"] = h[first].clone()), ""),
        ("after", file(text.as_bytes(), data.len() + 1), "bytes of no tensor"),
    ] {
        folder.write(SHARD, bytes);
        folder.run(&[prompt("a")], &[]).assert_refused(what, wanted);
    }
}

#[test]
fn a_hole_between_tensors_is_refused() {
    let folder = Folder::new();
    let (mut header, data) = parts(&folder.read(SHARD));
    for tensor in header.as_object_mut().unwrap().values_mut() {
        if tensor["data_offsets"][0].as_u64().is_some_and(|start| start > 0) {
            for side in 0..2 {
                let moved = tensor["data_offsets"][side].as_u64().unwrap() + 4;
                tensor["data_offsets"][side] = moved.into();
            }
        }
    }
    folder.write(SHARD, file(header.to_string().as_bytes(), data.len() + 4));
    folder.run(&[prompt("a")], &[]).assert_refused("hole", "leaves a hole");
}

#[test]
fn integers_are_no_weights() {
    let folder = Folder::new();
    let (header, data) = parts(&folder.read(SHARD));
    for dtype in ["I32", "U32"] {
        let text = header.to_string().replace("\"F32\"", &format!("\"{dtype}\""));
        folder.write(SHARD, file(text.as_bytes(), data.len()));
        let wanted = format!("is of type {dtype}; weights are F32, BF16 or F16");
        folder.run(&[prompt("a")], &[]).assert_refused(dtype, &wanted);
    }
}

#[test]
fn an_index_names_files_of_its_folder_only() {
    let folder = Folder::new();
    fs::write(folder.path().join("secret"), folder.read(SHARD)).unwrap();
    let index = folder.json(INDEX);
    let first = index["weight_map"].as_object().unwrap().keys().next().unwrap().clone();
    for name in [
        "../secret",
        "../model/model-00002-of-00003.safetensors",
        "/etc/passwd",
        "/",
        "",
        ".",
        "..",
        ".hidden.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "..\\secret",
        "a\0.safetensors",
        "a\n.safetensors",
        "file:///etc/passwd",
    ] {
        let mut index = index.clone();
        index["weight_map"][&first] = name.into();
        folder.write(INDEX, index.to_string());
        folder.run(&[prompt("a")], &[]).assert_refused(name, INDEX);
    }
    for (name, wanted) in [
        ("pytorch_model.bin", "not a .safetensors file"),
        ("model-00009-of-00003.safetensors", "model-00009-of-00003.safetensors"),
    ] {
        let mut index = index.clone();
        index["weight_map"][&first] = name.into();
        folder.write(INDEX, index.to_string());
        folder.run(&[prompt("a")], &[]).assert_refused(name, wanted);
    }
    let big = format!("{{\"weight_map\": {{}}, \"x\": \"{}\"}}", "x".repeat(1 << 20));
    for (what, text) in [
        ("empty", ""),
        ("list", "[]"),
        ("no map", "{}"),
        ("empty map", &big),
        ("numbers", r#"{"weight_map": {"t": 1}}"#),
        ("deep", &"[".repeat(100_000)),
    ] {
        folder.write(INDEX, text);
        folder.run(&[prompt("a")], &[]).assert_refused(what, INDEX);
    }
}

#[test]
fn a_tensor_that_no_shard_has_is_named() {
    let folder = Folder::new();
    let mut index = folder.json(INDEX);
    let map = index["weight_map"].as_object_mut().unwrap();
    // The tensors of the second shard are said to be in the first.
    for file in map.values_mut().filter(|file| **file == SHARD) {
        *file = "model-00001-of-00003.safetensors".into();
    }
    folder.write(INDEX, index.to_string());
    folder.run(&[prompt("a")], &[]).assert_refused("elsewhere", "is missing from the weight files");
    fs::remove_file(folder.model(SHARD)).unwrap();
    fs::remove_file(folder.model(INDEX)).unwrap();
    folder.run(&[prompt("a")], &[]).assert_refused("no shard", "are all shards there?");
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let folder = Folder::new();
    let path = folder.model(SHARD);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    folder.run(&[prompt("a")], &[]).assert_refused("folder", "it is not a regular file");
    fs::remove_dir(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    folder.run(&[prompt("a")], &[]).assert_refused("pipe", "it is not a regular file");
    fs::remove_file(&path).unwrap();
    for (target, wanted) in
        [("/dev/zero", "it is not a regular file"), ("/etc/passwd", "no safetensors file")]
    {
        symlink(target, &path).unwrap();
        folder.run(&[prompt("a")], &[]).assert_refused(target, wanted);
        fs::remove_file(&path).unwrap();
    }
    symlink("../nowhere", &path).unwrap();
    folder.run(&[prompt("a")], &[]).assert_refused("dangling", "No such file");
}

#[test]
fn links_are_followed() {
    let folder = Folder::new();
    fs::rename(folder.model(SHARD), folder.model("renamed")).unwrap();
    symlink("renamed", folder.model(SHARD)).unwrap();
    assert_eq!(folder.run(&[prompt("a")], &[]).code, Some(0));
    // Shared file systems have the weights elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::copy(folder.model("renamed"), elsewhere.path().join("shard")).unwrap();
    fs::remove_file(folder.model(SHARD)).unwrap();
    symlink(elsewhere.path().join("shard"), folder.model(SHARD)).unwrap();
    assert_eq!(folder.run(&[prompt("a")], &[]).code, Some(0));
    let repository = folder.path().join("models--a--b");
    fs::create_dir_all(repository.join("blobs")).unwrap();
    fs::create_dir_all(repository.join("snapshots")).unwrap();
    fs::rename(folder.model("renamed"), repository.join("blobs/0123")).unwrap();
    fs::remove_file(folder.model(SHARD)).unwrap();
    symlink("../../blobs/0123", folder.model(SHARD)).unwrap();
    fs::rename(folder.path().join("model"), repository.join("snapshots/4567")).unwrap();
    symlink("models--a--b/snapshots/4567", folder.path().join("model")).unwrap();
    assert_eq!(folder.run(&[prompt("a")], &[]).code, Some(0));
}

#[test]
fn a_file_that_git_lfs_did_not_fetch_is_named_as_one() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n";
    for name in [SHARD, INDEX, "config.json", "tokenizer.json", "generation_config.json"] {
        let folder = Folder::new();
        folder.write(name, pointer);
        let run = folder.run(&[prompt("a")], &[]);
        run.assert_refused(name, "it is a git-lfs pointer");
        assert!(run.stderr.contains(name) && run.stderr.contains("git lfs pull"), "{}", run.stderr);
    }
}

#[test]
fn pickles_are_refused_with_what_to_do() {
    let folder = Folder::new();
    for entry in fs::read_dir(folder.path().join("model")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("safetensors") {
            fs::remove_file(path).unwrap();
        }
    }
    folder.run(&[prompt("a")], &[]).assert_refused("nothing", "no *.safetensors");
    folder.write("pytorch_model.bin", b"\x80\x04cos\nsystem\n");
    folder.run(&[prompt("a")], &[]).assert_refused("no archive", "torch before 1.6");
    fs::remove_file(folder.model("pytorch_model.bin")).unwrap();
    for name in ["training_args.bin", "model.pt", "consolidated.00.pth", "model.ckpt"] {
        folder.write(name, b"\x80\x04cos\nsystem\n");
        let run = folder.run(&[prompt("a")], &[]);
        run.assert_refused(name, "safe_serialization=True");
        assert!(run.stderr.contains("pickle"), "{}", run.stderr);
        fs::remove_file(folder.model(name)).unwrap();
    }
}
