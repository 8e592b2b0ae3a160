//! tokenizer.json files that would crash, hang or fill memory, or cut texts otherwise in silence.

use serde_json::{Value, json};

use super::{Folder, prompt};

const FILE: &str = "tokenizer.json";

fn changed(tokenizer: &Value, pointer: &str, value: Value) -> Value {
    let mut tokenizer = tokenizer.clone();
    match tokenizer.pointer_mut(pointer) {
        Some(place) => *place = value,
        None => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            tokenizer.pointer_mut(parent).expect(pointer)[key] = value;
        }
    }
    tokenizer
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

#[test]
fn tokenizers_that_no_model_has_are_refused() {
    let folder = Folder::new();
    let good = folder.json(FILE);
    let added = |token: Value| {
        let mut tokens = good["added_tokens"].as_array().unwrap().clone();
        tokens.push(token);
        Value::Array(tokens)
    };
    let charsmap = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(64)});
    let bomb = json!({"type": "Sequence", "decoders": vec![replace; 8]});
    let unigram = |vocab: Value| json!({"type": "Unigram", "unk_id": 9, "vocab": vocab});
    for (what, pointer, value) in [
        ("id 2^32-1", "/model/vocab/zzzz", json!(u32::MAX)),
        ("id 2^63", "/model/vocab/zzzz", json!(1u64 << 63)),
        ("id 2^64-1", "/model/vocab/zzzz", json!(u64::MAX)),
        ("id -1", "/model/vocab/zzzz", json!(-1)),
        ("added 2^32-1", "/added_tokens", added(json!({"id": u32::MAX, "content": "<x>"}))),
        ("added 2^63", "/added_tokens", added(json!({"id": 1u64 << 63, "content": "<x>"}))),
        ("added without id", "/added_tokens", added(json!({"content": "<x>"}))),
        ("added number", "/added_tokens", added(json!(7))),
        ("added twice", "/added_tokens", added(json!({"id": 9, "content": "<s>"}))),
        ("no vocab", "/model/vocab", json!({})),
        ("vocab list", "/model/vocab", json!([1, 2])),
        ("merge", "/model/merges/0", json!(["zz", "yy"])),
        ("merge of three", "/model/merges/0", json!("a b c")),
        ("merge of nothing", "/model/merges/0", json!([])),
        ("model", "/model", Value::Null),
        ("model type", "/model/type", json!("x\u{1b}[2J")),
        ("dropout", "/model/dropout", json!(0.5)),
        ("prefix", "/model/continuing_subword_prefix", json!("x".repeat(100))),
        ("suffix", "/model/end_of_word_suffix", json!("x".repeat(100))),
        ("unigram", "/model", unigram(json!([]))),
        ("unigram unknown", "/model", unigram(json!([["a", 0.0]]))),
        ("unigram scores", "/model", unigram(json!([["a", "b"], [1, 2]]))),
        ("charsmap size", "/normalizer", charsmap("/////wAAAAAAAAAAAAA=")),
        ("charsmap cut", "/normalizer", charsmap("CAAAAP//")),
        ("charsmap text", "/normalizer", charsmap("&&&&&&&&")),
        ("normalizer", "/normalizer", json!({"type": "Nope"})),
        ("decoder", "/decoder", json!({"type": "Nope"})),
        ("decoder bomb", "/decoder", bomb),
        ("regex", "/pre_tokenizer", split("(")),
        (
            "regex depth",
            "/pre_tokenizer",
            split(&format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000))),
        ),
        ("regex size", "/pre_tokenizer", split(r"(\p{L}{1000}){1000}")),
        (
            "regex of normalizer",
            "/normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        ),
        ("length", "/pre_tokenizer", json!({"type": "FixedLength", "length": 1u64 << 63})),
        (
            "template",
            "/post_processor/single",
            json!([{"SpecialToken": {"id": "nope", "type_id": 0}}]),
        ),
        (
            "sequences",
            "/post_processor/single",
            json!(vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 99]),
        ),
    ] {
        folder.write(FILE, changed(&good, pointer, value).to_string());
        folder.run(&[prompt("hello")], &[]).assert_refused(what, FILE);
    }
}

#[test]
fn rows_that_a_tokenizer_cannot_take_are_error_rows() {
    let folder = Folder::new();
    let good = folder.json(FILE);
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let bomb = vec![replace(json!({"String": "a"}), &"a".repeat(64)); 8];
    let explode = "a".repeat(60) + "!";
    let rows = [prompt("hello"), prompt(&explode), prompt(&(explode.clone() + " ").repeat(300))];
    for (pointer, value) in [
        ("/pre_tokenizer", split("(?:(?=a)a|a)*(?=b)")),
        ("/pre_tokenizer", split("(a*)*\\1$")),
        ("/normalizer", replace(json!({"Regex": "(?:(?=a)a|a)*(?=b)"}), "x")),
    ] {
        folder.write(FILE, changed(&good, pointer, value.clone()).to_string());
        let run = folder.run(&rows, &[]);
        assert_eq!(run.code, Some(3), "{value}: {} {}", run.stdout, run.stderr);
        assert_eq!(run.codes(), ["", "tokenize", "tokenize"], "{value}");
    }
    let bomb = json!({"type": "Sequence", "normalizers": bomb});
    folder.write(FILE, changed(&good, "/normalizer", bomb).to_string());
    folder.run(&rows, &[]).assert_refused("a normalizer that multiplies", "larger than 1 GiB");
}

#[test]
fn ids_past_the_models_vocabulary_are_error_rows() {
    let folder = Folder::new();
    let mut tokenizer = folder.json(FILE);
    for id in tokenizer["model"]["vocab"].as_object_mut().unwrap().values_mut() {
        *id = (id.as_u64().unwrap() + 1000).into();
    }
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        token["id"] = (token["id"].as_u64().unwrap() + 1000).into();
    }
    folder.write(FILE, tokenizer.to_string());
    let run = folder.run(&[prompt("hello"), prompt("a b")], &[]);
    match run.code {
        Some(7) => run.assert_refused("shifted ids", FILE),
        _ => run.assert_error_rows("shifted ids", "invalid_prompt"),
    }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tokenizers");

/// A folder whose tokenizer is in the files of a golden one.
fn converted(name: &str, files: &[&str]) -> Folder {
    let folder = Folder::new();
    std::fs::remove_file(folder.model(FILE)).unwrap();
    for file in files {
        folder.write(file, std::fs::read(format!("{GOLDEN}/{name}/{file}")).unwrap());
    }
    folder
}

#[test]
fn damaged_sentencepiece_models_are_refused() {
    let model = "tokenizer.model";
    let folder = converted("llama", &[model, "tokenizer_config.json"]);
    let good = folder.read(model);
    let run = folder.run(&[prompt("the water")], &[]);
    assert_eq!(run.codes(), [""], "{}", run.stderr);
    let long = |size: u32| {
        // One piece of `size` bytes.
        let mut file = vec![0x0A];
        for mut number in [size + 5, size] {
            if number == size {
                file.push(0x0A);
            }
            while number >= 0x80 {
                file.push(number as u8 | 0x80);
                number >>= 7;
            }
            file.push(number as u8);
        }
        file.extend(vec![b'a'; size as usize]);
        file
    };
    for (what, file) in [
        ("empty", Vec::new()),
        ("cut", good[..good.len() / 2].to_vec()),
        ("text", b"IQ== 0\nIg== 1\n".to_vec()),
        ("zeros", vec![0; 4096]),
        ("a length of 2^63", [&[0x0A][..], &[0xFF; 8], &[0x7F]].concat()),
        ("a long piece", long(1 << 20)),
        ("one piece", long(200)),
        ("a score that is no number", b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f".to_vec()),
    ] {
        folder.write(model, file);
        folder.run(&[prompt("hello")], &[]).assert_refused(what, model);
    }
    folder.write("tokenizer_config.json", "{\"tokenizer_class\": \"T5Tokenizer\"}");
    folder.write(model, good);
    folder.run(&[prompt("hello")], &[]).assert_refused("another class", "T5Tokenizer");
}

#[test]
fn damaged_vocabularies_and_merges_are_refused() {
    let files = ["vocab.json", "merges.txt", "tokenizer_config.json"];
    for (file, text, wanted) in [
        ("vocab.json", "{", "vocab.json"),
        ("vocab.json", "[]", "vocab.json"),
        ("vocab.json", "{}", "vocab.json"),
        ("vocab.json", "{\"a\": -1}", "vocab.json"),
        ("vocab.json", "{\"a\": \"b\"}", "vocab.json"),
        ("vocab.json", "{\"a\": 4294967295}", "too large"),
        ("merges.txt", "#version: 0.2\nh e\nh\n", "line 3"),
        ("merges.txt", "h e l", "line 1"),
        ("merges.txt", "zzz yyy", "vocab.json"),
        ("merges.txt", "h e\n\nh e", "line 2"),
        ("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}", "LlamaTokenizer"),
        ("tokenizer_config.json", "{\"tokenizer_class\": \"CTRL\\u001b[2J\"}", "CTRL"),
        ("added_tokens.json", "{\"<x>\": 4294967294}", "too large"),
        ("added_tokens.json", "[1]", "added_tokens.json"),
    ] {
        let folder = converted("opt", &files);
        folder.write(file, text);
        let what = format!("{file}: {text}");
        folder.run(&[prompt("hello")], &[]).assert_refused(&what, wanted);
    }
    let folder = converted("opt", &files);
    let run = folder.run(&[prompt("the water")], &[]);
    assert_eq!(run.codes(), [""], "{}", run.stderr);
    std::fs::remove_file(folder.model("merges.txt")).unwrap();
    folder.run(&[prompt("hello")], &[]).assert_refused("no merges", FILE);
}
