//! Ids are from tokenizers 0.23.3.

use serde_json::{Map, Value, json};
use tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;

use crate::Tokenizer;

const TEXTS: [&str; 9] = ["a b", "ab xx ab", "axxb 11", "a  b", "a.b 1x", "é日 本", "", "  ", " a"];

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

fn split(pattern: &str, behavior: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false})
}

fn sequence(members: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": members})
}

/// Tokens by their places.
fn vocabulary(tokens: impl Iterator<Item = String>) -> Map<String, Value> {
    tokens.enumerate().map(|(id, token)| (token, id.into())).collect()
}

fn file(pre_tokenizer: Value, added: &Value) -> Value {
    let chars = "▁abx1.é日本".chars().map(String::from);
    let words = ["▁a", "▁b", "ab", "▁ab", "11", "x1", "xx"].map(str::to_owned);
    let vocab = vocabulary(["<unk>".to_owned()].into_iter().chain(chars).chain(words));
    let merges = json!([
        ["▁", "a"],
        ["▁", "b"],
        ["▁a", "b"],
        ["a", "b"],
        ["1", "1"],
        ["x", "1"],
        ["x", "x"]
    ]);
    json!({"version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
        "pre_tokenizer": pre_tokenizer, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": merges}})
}

fn load(file: &Value) -> Result<Tokenizer, String> {
    Tokenizer::from_bytes(file.to_string().as_bytes(), None).map_err(|error| error.to_string())
}

fn ids(file: &Value, texts: &[&str]) -> Vec<Vec<u32>> {
    let tokenizer = load(file).unwrap_or_else(|error| panic!("{error}"));
    texts.iter().map(|text| tokenizer.encode(text, false).unwrap()).collect()
}

/// A pre-tokenizer by a word for it.
fn member(name: &str) -> Value {
    let bytes = |prefix: bool, regex: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true,
            "use_regex": regex})
    };
    match name {
        "always" | "first" | "never" => metaspace(name, true),
        "uncut" => metaspace("always", false),
        "x" => split("x+", "Isolated"),
        "one" => split("1", "MergedWithNext"),
        "no dot" => split(r"\.", "Removed"),
        "hundreds" => split("[0-9][0-9][0-9]", "Isolated"),
        "spaced a" => split("Ġ?a", "Isolated"),
        "digits" => json!({"type": "Digits", "individual_digits": true}),
        "numbers" => json!({"type": "Digits", "individual_digits": false}),
        "punctuation" => json!({"type": "Punctuation", "behavior": "Isolated"}),
        "marks" => json!({"type": "Punctuation", "behavior": "Contiguous"}),
        "spaces" => json!({"type": "WhitespaceSplit"}),
        "words" => json!({"type": "Whitespace"}),
        "bytes" => bytes(false, false),
        "cut bytes" => bytes(false, true),
        "spaced bytes" => bytes(true, true),
        other => panic!("{other}"),
    }
}

fn members(names: &str) -> Value {
    sequence(&names.split(", ").map(member).collect::<Vec<_>>())
}

/// Of each sequence the ids of `TEXTS`.
const METASPACES: [(&str, &str); 11] = [
    (
        "x, always",
        "[[10,11],[13,1,1,16,13],[10,1,16,11,1,14],[10,1,11],[10,6,3,1,5,1,4],[1,7,8,1,9],[],\
          [1,1],[10]]",
    ),
    (
        "x, first",
        "[[10,11],[13,1,16,13],[10,16,3,1,14],[10,1,11],[10,6,3,1,5,4],[1,7,8,1,9],[],[1,1],[10]]",
    ),
    (
        "x, never",
        "[[2,11],[12,1,16,13],[2,16,3,1,14],[2,1,11],[2,6,3,1,5,4],[7,8,1,9],[],[1,1],[10]]",
    ),
    (
        "x, uncut",
        "[[10,11],[13,1,1,16,13],[10,1,16,11,1,14],[10,1,11],[10,6,3,1,5,1,4],[1,7,8,1,9],[],\
          [1,1],[10]]",
    ),
    (
        "always, digits",
        "[[10,11],[13,1,16,13],[10,16,3,1,5,5],[10,1,11],[10,6,3,1,5,4],[1,7,8,1,9],[],[1,1],[10]]",
    ),
    (
        "punctuation, first",
        "[[10,11],[13,1,16,13],[10,16,3,1,14],[10,1,11],[10,6,3,1,5,4],[1,7,8,1,9],[],[1,1],[10]]",
    ),
    ("spaces, first", "[[10,3],[13,16,12],[10,16,3,14],[10,3],[10,6,3,5,4],[1,7,8,9],[],[],[2]]"),
    ("spaces, never", "[[2,3],[12,16,12],[2,16,3,14],[2,3],[2,6,3,5,4],[7,8,9],[],[],[2]]"),
    (
        "words, always",
        "[[10,11],[13,1,16,13],[10,16,3,1,14],[10,11],[10,1,6,11,1,5,4],[1,7,8,1,9],[],[],[10]]",
    ),
    (
        "first, one",
        "[[10,11],[13,1,16,13],[10,16,3,1,5,5],[10,1,11],[10,6,3,1,5,4],[1,7,8,1,9],[],[1,1],[10]]",
    ),
    (
        "no dot, always",
        "[[10,11],[13,1,16,13],[10,16,3,1,14],[10,1,11],[10,11,1,5,4],[1,7,8,1,9],[],[1,1],[10]]",
    ),
];

#[test]
fn a_metaspace_is_one_of_a_sequence() {
    for (names, wanted) in METASPACES {
        let got = ids(&file(members(names), &json!([])), &TEXTS);
        assert_eq!(json!(got), serde_json::from_str::<Value>(wanted).unwrap(), "{names}");
    }
}

/// Of each sequence the ids of `BYTE_TEXTS`; the second is Falcon's.
const BYTES: [(&str, &str); 4] = [
    (
        "numbers, spaced bytes",
        "[[256,220,65],[258,220,220,259],[256,220,259,220,65],[220,127,102,127,102,220,127,110],\
          [220,162,245,98,162,250,105,256,13,64],[220,256],[220,259,259]]",
    ),
    (
        "marks, cut bytes, numbers, hundreds",
        "[[64,220,65],[257,220,259],[64,259,65],[127,102,127,102,220,127,110],\
          [162,245,98,162,250,105,256,13,64],[220,256],[259,16,16]]",
    ),
    (
        "spaced bytes, digits",
        "[[256,220,65],[258,220,16,16],[256,16,16,65],[220,127,102,127,102,220,127,110],\
          [220,162,245,98,162,250,105,256,13,64],[220,256],[220,16,16,16,16]]",
    ),
    (
        "bytes, spaced a",
        "[[64,220,65],[64,65,220,259],[64,259,65],[127,102,127,102,220,127,110],\
          [162,245,98,162,250,105,256,13,64],[220,256],[259,259]]",
    ),
];
const BYTE_TEXTS: [&str; 7] = ["a b", "ab 11", "a11b", "éé ò", "日本 a.a", "  a", "1111"];

#[test]
fn bytes_are_one_of_a_sequence_wherever_it_is() {
    let mut alphabet: Vec<String> = BYTES_CHAR_LOOKUP.iter().map(char::to_string).collect();
    alphabet.sort();
    let words = ["Ġa", "ab", "Ġab", "11"].map(str::to_owned);
    let vocab = vocabulary(alphabet.into_iter().chain(words));
    for (names, wanted) in BYTES {
        let merges = json!([["Ġ", "a"], ["a", "b"], ["Ġa", "b"], ["1", "1"]]);
        let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": members(names), "post_processor": null,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "unk_token": null, "vocab": vocab, "merges": merges}});
        let got = ids(&file, &BYTE_TEXTS);
        assert_eq!(json!(got), serde_json::from_str::<Value>(wanted).unwrap(), "{names}");
        let tokenizer = load(&file).unwrap();
        let ids = tokenizer.encode("日本 ab", false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap().trim_start(), "日本 ab");
    }
}

#[test]
fn a_word_of_one_character_has_the_suffix_of_words() {
    let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "end_of_word_suffix": "</w>",
            "vocab": {"<unk>": 0, "a": 1, "b": 2, "a</w>": 3, "b</w>": 4, "ab</w>": 5, "é</w>": 6,
                "é": 7},
            "merges": [["a", "b</w>"]]}});
    let wanted = json!([[3], [4], [5], [3, 4], [6], [1, 6], [7, 3]]);
    assert_eq!(json!(ids(&file, &["a", "b", "ab", "a b", "é", "aé", "éa"])), wanted);
}

#[test]
fn a_single_word_of_long_characters_is_found_alone() {
    let token = |content: &str, id: u32, more: &[&str]| {
        let flag = |name: &str| more.contains(&name);
        json!({"id": id, "content": content, "single_word": flag("single_word"),
            "lstrip": flag("lstrip"), "rstrip": flag("rstrip"), "normalized": false,
            "special": false})
    };
    let added =
        json!([token("日本", 17, &["single_word"]), token("<s>", 18, &["lstrip", "rstrip"]),]);
    let texts = [
        "日本",
        "a日本",
        "日本a",
        "a 日本 b",
        "日本日本",
        "é日本 日本é 日本",
        "a <s> b",
        "<s>日本",
    ];
    let wanted = json!([
        [17],
        [2, 8, 9],
        [8, 9, 2],
        [2, 0, 17, 0, 3],
        [8, 9, 8, 9],
        [7, 8, 9, 0, 8, 9, 7, 0, 17],
        [2, 18, 3],
        [18, 17]
    ]);
    assert_eq!(json!(ids(&file(Value::Null, &added), &texts)), wanted);
}

#[test]
fn what_is_not_supported_is_named_without_advice_for_another_program() {
    for (pre_tokenizer, wanted) in [
        (json!({"type": "Strange"}), "the `Strange` pre-tokenizer is not supported"),
        (
            sequence(&[split("x", "Isolated"), json!({"type": "Strange"})]),
            "the `Strange` pre-tokenizer is not supported",
        ),
        (
            sequence(&[json!({"type": "Strange"}), metaspace("always", true)]),
            "the `Strange` pre-tokenizer is not supported",
        ),
        (
            sequence(&[split("x", "Isolated"), metaspace("sometimes", true)]),
            "the prepend_scheme `sometimes` of a Metaspace is not supported",
        ),
    ] {
        let error = load(&file(pre_tokenizer, &json!([]))).err().unwrap();
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains("Convert") && !error.contains("feature"), "{error}");
    }
    let mut strange = file(Value::Null, &json!([]));
    strange["model"]["type"] = "Strange".into();
    let error = load(&strange).err().unwrap();
    assert!(error.contains("the `Strange` model is not supported"), "{error}");
}
