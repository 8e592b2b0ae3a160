//! Our tokenizer against tokenizers 0.23, which transformers encodes with, over texts at random.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers_0_23::Tokenizer as Reference;
use vllm_batch::engine::text::Tokenizer;

use crate::byte_level::{PARTS, added, byte_level_file};
use crate::random::Rng;

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
    let words = json!({"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated",
        "invert": false});
    let pieces = sequence(json!([words, metaspace]));
    let single_digits = sequence(json!([metaspace, digits]));
    let cut_bytes = sequence(json!([byte_level, digits]));
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
        ("words by a regex", &chars, "/pre_tokenizer", Some(words)),
        ("metaspace behind a split", &chars, "/pre_tokenizer", Some(pieces)),
        ("metaspace before digits", &chars, "/pre_tokenizer", Some(single_digits)),
        ("bytes before digits", &good, "/pre_tokenizer", Some(cut_bytes)),
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
