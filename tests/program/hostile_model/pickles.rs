//! pytorch_model.bin: read where there is nothing else, to the same answers, and never run.

use std::fs;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;
use vllm_batch::engine::checkpoint::weights::header;
use vllm_batch::engine::checkpoint::weights::header::TensorEntry;
use vllm_batch::engine::checkpoint::weights::pickle;

use super::{Folder, prompt};
use crate::torch_file::{self, Tensor, archive};

/// A file that torch wrote (`testdata/generate_pickles.py`).
fn made_by_torch(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pickle");
    fs::read(folder.join(name)).unwrap()
}

fn refusal(file: &[u8]) -> String {
    pickle::parse(file).expect_err("it is refused")
}

/// The same tensors as a safetensors file has, each name changed.
fn converted(bytes: &[u8], rename: impl Fn(&str) -> String) -> Vec<u8> {
    let entries = header::parse(bytes).unwrap();
    let names: Vec<String> = entries.iter().map(|entry| rename(&entry.name)).collect();
    let storage = |dtype: Dtype| match dtype {
        Dtype::F32 => "FloatStorage",
        Dtype::BF16 => "BFloat16Storage",
        Dtype::F16 => "HalfStorage",
        dtype => panic!("{dtype:?}"),
    };
    let tensors: Vec<Tensor<'_>> = entries
        .iter()
        .zip(&names)
        .map(|(entry, name)| Tensor {
            name,
            storage: storage(entry.dtype),
            shape: &entry.shape,
            bytes: &bytes[entry.range.clone()],
        })
        .collect();
    torch_file::file(&tensors)
}

#[test]
fn what_torch_wrote_is_read() {
    for name in ["plain.bin", "protocol4.bin", "metadata.bin"] {
        let file = made_by_torch(name);
        let entries = pickle::parse(&file).unwrap_or_else(|text| panic!("{name}: {text}"));
        let find = |name: &str| entries.iter().find(|entry| entry.name == name).unwrap();
        let bytes = |entry: &TensorEntry| file[entry.range.clone()].to_vec();
        let floats = |entry: &TensorEntry| -> Vec<f32> {
            let values = bytes(entry);
            values.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        assert_eq!(entries.len(), 9, "{name}");
        assert_eq!(find("f32").shape, [2, 3]);
        assert_eq!(floats(find("f32")), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((find("f16").dtype, bytes(find("f16"))), (Dtype::F16, vec![0, 0x38, 0, 0xC0]));
        assert_eq!(find("bf16").dtype, Dtype::BF16);
        assert_eq!(bytes(find("bf16")), [0x80, 0x3F, 0x40, 0xC0]);
        assert_eq!(floats(find("parameter")), [7.0]);
        assert_eq!(find("tied").range, find("f32").range, "tied tensors share their bytes");
        assert_eq!(floats(find("slice")), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(find("ints").dtype, Dtype::I64);
        assert_eq!((find("scalar").shape.len(), floats(find("scalar"))), (0, vec![3.0]));
        assert_eq!((&find("empty").shape[..], find("empty").range.len()), (&[0, 4][..], 0));
    }
    assert_eq!(pickle::parse(&made_by_torch("module.bin")).unwrap().len(), 2);
}

#[test]
fn what_is_more_than_tensors_is_refused_by_name() {
    for (name, wanted) in [
        ("command.bin", "it names `posix.system`, which is no part of a tensor"),
        ("whole.bin", "it names `torch.nn.modules.linear.Linear`"),
        ("epoch.bin", "`epoch` in it is no tensor"),
        ("nested.bin", "`state_dict` in it is no tensor"),
        ("transposed.bin", "tensor `turned`: it is a view of strides [1, 3]"),
        ("expanded.bin", "tensor `wide`: it is a view of strides [0]"),
        ("legacy.bin", "the format of torch before 1.6"),
    ] {
        let text = refusal(&made_by_torch(name));
        assert!(text.contains(wanted), "{name}: {text}");
    }
    assert!(!Path::new("pwned").exists());
}

#[test]
fn a_file_that_is_cut_or_changed_anywhere_does_no_harm() {
    let file = made_by_torch("plain.bin");
    for len in 0..file.len() {
        assert!(pickle::parse(&file[..len]).is_err(), "{len} bytes");
    }
    let mut damaged = file.clone();
    for at in 0..file.len() {
        for value in [0, 1, 0x7F, 0xFF, file[at] ^ 1, file[at] ^ 0x80] {
            damaged[at] = value;
            for entry in pickle::parse(&damaged).unwrap_or_default() {
                assert!(entry.range.end <= file.len(), "byte {at}");
            }
        }
        damaged[at] = file[at];
    }
}

#[test]
fn programs_that_grow_are_refused_soon() {
    let run = |code: &[u8]| refusal(&archive(code, &[("0".to_owned(), &[0; 8])]));
    let nested = [b"\x80\x02)".to_vec(), vec![0x85; 4 << 20], b".".to_vec()].concat();
    assert!(run(&nested).contains("more than 2097152 values"), "nested");
    let mut doubled = b"\x80\x02)q\x00".to_vec();
    doubled.extend(b"h\x00h\x00\x86q\x00".repeat(100_000));
    doubled.push(b'.');
    assert!(run(&doubled).contains("no dict of tensors"), "doubled");
    assert!(run(&[b"\x80\x02".to_vec(), vec![b'('; 4 << 20]].concat()).contains("values"));
    assert!(run(&vec![b'('; 17 << 20]).contains("larger than 16 MiB"));
    let text = [b"\x80\x02X\xff\xff\xff\xff".to_vec(), vec![b'a'; 100]].concat();
    assert!(run(&text).contains("cut off"));
    for (what, code, wanted) in [
        ("a mark for a value", &b"\x80\x02R."[..], "takes a value where there is none"),
        ("no mark", b"\x80\x02}u.", "a mark where there is none"),
        ("memo", b"\x80\x02h\x07.", "never kept"),
        ("instance", b"\x80\x02(ios\nsystem\n.", "instruction 0x69"),
        ("extension", b"\x80\x02\x82\x01.", "instruction 0x82"),
        ("stacked name", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "`os.system`"),
        ("builtin", b"\x80\x02cbuiltins\neval\n.", "`builtins.eval`"),
        ("nothing", b"", "cut off"),
        ("none", b"\x80\x02N.", "no dict of tensors"),
    ] {
        let text = run(code);
        assert!(text.contains(wanted), "{what}: {text}");
    }
}

#[test]
fn a_model_of_pickles_answers_as_its_safetensors_do() {
    let opt = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/opt");
    for prefix in ["model.decoder.", "decoder."] {
        let folder = Folder::of(&opt);
        let wanted = folder.run(&[prompt("a"), prompt("b c")], &[]);
        assert_eq!(wanted.code, Some(0), "{}", wanted.stderr);
        let rename = |name: &str| name.replacen("model.decoder.", prefix, 1);
        folder.write("pytorch_model.bin", converted(&folder.read("model.safetensors"), rename));
        fs::remove_file(folder.model("model.safetensors")).unwrap();
        let run = folder.run(&[prompt("a"), prompt("b c")], &[]);
        assert_eq!((run.code, run.stdout), (Some(0), wanted.stdout), "{prefix}: {}", run.stderr);
    }
}

#[test]
fn shards_of_pickles_are_found_by_their_index() {
    let folder = Folder::new();
    let wanted = folder.run(&[prompt("a")], &[]).stdout;
    let index = folder.json("model.safetensors.index.json");
    let map = index["weight_map"].as_object().unwrap();
    let to_bin =
        |name: &str| name.replace("model-", "pytorch_model-").replace(".safetensors", ".bin");
    let renamed: serde_json::Map<_, _> = map
        .iter()
        .map(|(name, file)| (name.clone(), to_bin(file.as_str().unwrap()).into()))
        .collect();
    for file in map.values().filter_map(|file| file.as_str()) {
        if folder.model(file).exists() {
            folder.write(&to_bin(file), converted(&folder.read(file), str::to_owned));
            fs::remove_file(folder.model(file)).unwrap();
        }
    }
    fs::remove_file(folder.model("model.safetensors.index.json")).unwrap();
    folder.write("pytorch_model.bin.index.json", json!({"weight_map": renamed}).to_string());
    let run = folder.run(&[prompt("a")], &[]);
    assert_eq!((run.code, run.stdout), (Some(0), wanted), "{}", run.stderr);

    folder.write("pytorch_model-00002-of-00003.bin", made_by_torch("command.bin"));
    folder.run(&[prompt("a")], &[]).assert_refused("command", "`posix.system`");
    for name in ["../pytorch_model-1.bin", "/etc/passwd", "model.safetensors"] {
        let index = json!({"weight_map": {"a": name}});
        folder.write("pytorch_model.bin.index.json", index.to_string());
        folder.run(&[prompt("a")], &[]).assert_refused(name, "pytorch_model.bin.index.json");
    }
}
