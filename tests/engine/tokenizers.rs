//! Our tokenizer against tokenizers 0.23, which transformers encodes with, over texts at random.

use std::fs;
use std::path::Path;

use ::tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;
use serde_json::{Map, Value, json};
use tokenizers_0_23::Tokenizer as Reference;
use vllm_batch::engine::text::Tokenizer;

use crate::simulation::workload::Rng;

/// What texts are made of: letters and digits with merges, white space, and every kind of
/// character, those of bytes that may be missing among them.
const PARTS: &[&str] = &[
    "a",
    "b",
    "the",
    "th",
    "e",
    " ",
    "  ",
    "\n",
    "\t",
    "1",
    "23",
    "!",
    "!!",
    "'s",
    "é",
    "日",
    "😀",
    "🏴\u{E0067}\u{E007F}",
    "\u{0}",
    "\u{4}",
    "\u{1d}",
    "\u{7f}",
    "\u{85}",
    "\u{300}",
    "\u{40000}",
    "\u{10FFFF}",
    "<end>",
    "<pad>",
    "½²",
];

fn text(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.up_to(24) {
        match rng.once_in(4) {
            true => text.extend(char::from_u32(rng.up_to(0x2FF) as u32)),
            false => text.push_str(PARTS[rng.up_to(PARTS.len() - 1)]),
        }
    }
    text
}

/// A byte-level BPE vocabulary without some bytes, with merges at random over texts' parts.
fn byte_level_model(rng: &mut Rng, is_missing: impl Fn(u8) -> bool) -> Value {
    let mut vocab = Map::new();
    let mut tokens = Vec::new();
    for byte in (0..=255u8).filter(|byte| !is_missing(*byte)) {
        let token = BYTES_CHAR_LOOKUP[usize::from(byte)].to_string();
        vocab.insert(token.clone(), vocab.len().into());
        // Mostly those that texts have.
        let times = if PARTS.concat().into_bytes().contains(&byte) { 8 } else { 1 };
        tokens.extend(vec![token; times]);
    }
    let mut merges = Vec::new();
    while merges.len() < 800 {
        let mut one = || tokens[rng.up_to(tokens.len() - 1)].clone();
        let (left, right) = (one(), one());
        let product = format!("{left}{right}");
        if product.chars().count() <= 6 && !vocab.contains_key(&product) {
            vocab.insert(product.clone(), vocab.len().into());
            tokens.extend(vec![product; 4]);
            merges.push(json!([left, right]));
        }
    }
    // Found by `ignore_merges` alone.
    vocab.insert("the".into(), vocab.len().into());
    vocab.insert("<unk>".into(), vocab.len().into());
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false, "vocab": vocab, "merges": merges})
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

fn byte_level_file(rng: &mut Rng, is_missing: impl Fn(u8) -> bool) -> Value {
    let model = byte_level_model(rng, is_missing);
    let end = model["vocab"].as_object().unwrap().len();
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(end, "<end>", true), added(end + 1, "<pad>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": null, "model": model,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true}})
}

/// Ids with and without the tokens around a text, and the text of the ids.
fn assert_same(name: &str, file: &Value, num_texts: usize, rng: &mut Rng) {
    let bytes = file.to_string().into_bytes();
    let ours = Tokenizer::from_bytes(&bytes, None).unwrap_or_else(|e| panic!("{name}: {e}"));
    let reference = Reference::from_bytes(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    for _ in 0..num_texts {
        let text = text(rng);
        for around in [false, true] {
            let expected = reference.encode(text.as_str(), around).unwrap();
            let ids = ours.encode(&text, around).unwrap();
            assert_eq!(ids, expected.get_ids(), "{name}: {text:?}");
            let expected = reference.decode(&ids, false).unwrap();
            assert_eq!(ours.decode(&ids, false).unwrap(), expected, "{name}: {text:?}");
        }
    }
}

/// SmolLM2 has no token for eight bytes, and other vocabularies none for most of them.
#[test]
fn bytes_without_a_token_are_encoded_as_tokenizers_0_23_does() {
    let rng = &mut Rng(17);
    let smollm2 = |byte| matches!(byte, 4 | 6 | 0x13 | 0x14 | 0x16 | 0x1D | 0xF1 | 0xF2);
    let not_ascii = |byte: u8| !byte.is_ascii_graphic() && byte != b' ';
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true}]});
    let around = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<end>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {}});
    for round in 0..4 {
        let mut file = match round % 2 {
            0 => byte_level_file(rng, smollm2),
            _ => byte_level_file(rng, not_ascii),
        };
        assert_same("plain", &file, 400, rng);
        file["model"]["ignore_merges"] = true.into();
        assert_same("ignore_merges", &file, 200, rng);
        file["model"]["ignore_merges"] = false.into();
        file["pre_tokenizer"]["use_regex"] = false.into();
        assert_same("no regex", &file, 400, rng);
        file["model"]["unk_token"] = "<unk>".into();
        assert_same("unk_token", &file, 200, rng);
        file["model"]["fuse_unk"] = true.into();
        assert_same("fuse_unk", &file, 200, rng);
        file["normalizer"] = json!({"type": "NFKC"});
        file["pre_tokenizer"] = digits.clone();
        assert_same("digits", &file, 200, rng);
        file["model"]["unk_token"] = Value::Null;
        file["post_processor"] = around.clone();
        let end = file["added_tokens"][0]["id"].clone();
        file["post_processor"]["special_tokens"]["<end>"] =
            json!({"id": "<end>", "ids": [end], "tokens": ["<end>"]});
        assert_same("tokens around", &file, 400, rng);
    }
}

/// The ids that stand for missing bytes while a text is encoded are no tokens.
#[test]
fn ids_of_missing_bytes_are_not_seen() {
    let file = byte_level_file(&mut Rng(3), |byte| byte == 4);
    let tokenizer = Tokenizer::from_bytes(&file.to_string().into_bytes(), None).unwrap();
    let past = file["added_tokens"][1]["id"].as_u64().unwrap() as u32 + 1;
    assert_eq!(tokenizer.vocab_size(), past as usize);
    assert_eq!(tokenizer.decode(&[past], false).unwrap(), "");
    assert!(tokenizer.encode("\u{4}", true).unwrap().is_empty());
}

#[test]
fn a_missing_unk_token_fails_the_row_that_needs_it() {
    let mut file = byte_level_file(&mut Rng(3), |byte| byte == 4);
    file["model"]["unk_token"] = "nowhere".into();
    let tokenizer = Tokenizer::from_bytes(&file.to_string().into_bytes(), None).unwrap();
    tokenizer.encode("a", true).unwrap();
    let error = tokenizer.encode("a\u{4}", true).unwrap_err().to_string();
    assert!(error.contains("unk_token \"nowhere\""), "{error}");
}

/// The true vocabulary of a published model that lacks eight bytes.
#[test]
#[expect(clippy::disallowed_methods, reason = "the environment says where real models are")]
fn smollm2s_own_tokenizer_encodes_as_tokenizers_0_23_does() {
    let folder = std::env::var_os("VLLM_BATCH_TEST_REAL_DIR").unwrap_or_default();
    let Ok(file) = fs::read(Path::new(&folder).join("smollm2-fp32/tokenizer.json")) else {
        println!("SKIP: VLLM_BATCH_TEST_REAL_DIR names no folder with smollm2-fp32/tokenizer.json");
        return;
    };
    let file = serde_json::from_slice(&file).unwrap();
    assert_same("SmolLM2", &file, 5000, &mut Rng(29));
}

/// What transformers makes of folders without `tokenizer.json` (`testdata/generate_tokenizers.py`).
#[test]
fn tokenizers_without_tokenizer_json_are_converted_as_transformers_does() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers");
    let expected = fs::read(dir.join("expected.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_slice(&expected).unwrap();
    assert!(expected.len() >= 12);
    for (name, expected) in expected {
        let ours = Tokenizer::from_dir(&dir.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ours.bos_token(), expected["bos_token"].as_str(), "{name}");
        assert_eq!(ours.eos_token(), expected["eos_token"].as_str(), "{name}");
        assert_eq!(ours.vocab_size() as u64, expected["num_tokens"], "{name}");
        for case in expected["texts"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            for (around, place) in [(true, 1), (false, 2)] {
                let ids = ours.encode(text, around).unwrap();
                assert_eq!(json!(ids), case[place], "{name}: {text:?}, {around}");
                let expected = case[if around { 4 } else { 3 }].as_str().unwrap();
                assert_eq!(ours.decode(&ids, around).unwrap(), expected, "{name}: {text:?}");
            }
        }
    }
}

/// Ways to write a file that tokenizers 0.23 reads. rc.3 reads fewer by itself.
#[test]
fn files_that_tokenizers_0_23_reads_are_read() {
    let rng = &mut Rng(5);
    let good = byte_level_file(rng, |_| false);
    let chars = char_level_file();
    let byte_level = good["pre_tokenizer"].clone();
    let mut with_prefix = byte_level.clone();
    with_prefix["add_prefix_space"] = true.into();
    let digits = json!({"type": "Digits", "individual_digits": true});
    let sequence = |members: Value| json!({"type": "Sequence", "pretokenizers": members});
    let end = good["added_tokens"][0]["id"].clone();
    let roberta = json!({"type": "RobertaProcessing", "sep": ["<end>", end], "cls": ["<end>", end],
        "trim_offsets": true, "add_prefix_space": false});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false});
    let processors = json!({"type": "Sequence", "processors": [bytes, roberta]});
    let (nested, one) = (sequence(json!([digits, byte_level])), sequence(json!([with_prefix])));
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true});
    let mut spaced = chars.clone();
    spaced["pre_tokenizer"] = metaspace.clone();
    for (name, file, pointer, value) in [
        ("no type", &good, "/model/type", None),
        ("no dropout", &good, "/model/dropout", None),
        ("no fuse_unk", &good, "/model/fuse_unk", None),
        ("no byte_fallback", &good, "/model/byte_fallback", None),
        ("no ignore_merges", &good, "/model/ignore_merges", None),
        ("dropout 0", &good, "/model/dropout", Some(json!(0.0))),
        ("no prefix", &good, "/model/continuing_subword_prefix", Some("".into())),
        ("byte_fallback beside byte level", &good, "/model/byte_fallback", Some(true.into())),
        ("unk_token beside byte level", &good, "/model/unk_token", Some("nope".into())),
        ("nested", &good, "/pre_tokenizer", Some(sequence(json!([nested])))),
        ("prefix space in a sequence", &good, "/pre_tokenizer", Some(one)),
        ("roberta", &good, "/post_processor", Some(roberta.clone())),
        ("sequence of processors", &good, "/post_processor", Some(processors)),
        ("no post_processor", &good, "/post_processor", None),
        ("no normalizer", &good, "/normalizer", None),
        ("no truncation", &good, "/truncation", None),
        ("chars", &chars, "/version", Some("1.0".into())),
        ("chars without type", &chars, "/model/type", None),
        ("chars without unk_token", &chars, "/model/unk_token", Some(Value::Null)),
        ("byte_fallback without bytes", &chars, "/model/byte_fallback", Some(true.into())),
        ("metaspace of old", &chars, "/pre_tokenizer", Some(metaspace.clone())),
        ("a token that is normalized", &spaced, "/added_tokens/0/normalized", Some(true.into())),
    ] {
        let mut file = file.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = file.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Some(value) => parent.insert(key.to_owned(), value),
            None => parent.remove(key),
        };
        assert_same(name, &file, 100, rng);
    }
}

/// BPE over characters.
fn char_level_file() -> Value {
    let tokens = ["<unk>", "a", "b", "e", "t", "h", "th", "the", "▁", " ", "1", "2", "é", "日"];
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), id.into())).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(0, "<unk>", true)], "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "dropout": null,
        "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": true, "byte_fallback": false, "ignore_merges": false, "vocab": vocab,
        "merges": ["t h", "th e"]}})
}
