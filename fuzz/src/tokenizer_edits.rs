//! Tokenizer files that are nearly right: whole ones with a few values changed, which come further
//! than bytes that are mutated blindly.

use serde_json::{Value, json};

use super::choices::Choices;

/// Changes at most.
const MAX_EDITS: usize = 6;

/// A small tokenizer of each kind, changed by the choices.
pub fn edited(choices: &mut Choices<'_>) -> Value {
    let mut file = whole(choices.below(4));
    for _ in 0..choices.below(MAX_EDITS) {
        let mut num_values = 0;
        visit(&mut file, &mut |_| num_values += 1);
        let (chosen, new) = (choices.below(num_values), replacement(choices));
        let mut at = 0;
        visit(&mut file, &mut |value| {
            if at == chosen {
                change(value, &new);
            }
            at += 1;
        });
    }
    file
}

/// Visits every value of the file as it was before: what a visit puts in is not visited.
fn visit(value: &mut Value, see: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, see)),
        Value::Object(fields) => fields.values_mut().for_each(|field| visit(field, see)),
        _ => {}
    }
    see(value);
}

enum New {
    Value(Value),
    /// The value is lost, with its place if it is in a list of this one.
    FirstRemoved,
    /// The list is twice as long.
    Doubled,
}

fn change(value: &mut Value, new: &New) {
    match (new, value) {
        (New::Value(new), value) => *value = new.clone(),
        (New::FirstRemoved, Value::Array(items)) => drop(items.drain(..items.len().min(1))),
        (New::FirstRemoved, Value::Object(fields)) => {
            let first = fields.keys().next().cloned();
            first.map(|name| fields.shift_remove(&name));
        }
        (New::Doubled, Value::Array(items)) => items.extend_from_within(..),
        (New::Doubled, Value::String(text)) => *text = text.repeat(2),
        (_, value) => *value = Value::Null,
    }
}

fn replacement(choices: &mut Choices<'_>) -> New {
    let text = |choices: &mut Choices<'_>| {
        let count = choices.below(12);
        String::from_utf8_lossy(choices.take(count)).into_owned()
    };
    New::Value(match choices.below(9) {
        0 => return New::FirstRemoved,
        1 => return New::Doubled,
        2 => json!(choices.below(16)),
        3 => [json!(-1), json!(u32::MAX), json!(u64::MAX), json!(1u64 << 40)][choices.below(4)]
            .clone(),
        4 => json!(text(choices)),
        5 => json!([true, false][choices.below(2)]),
        6 => json!({"Regex": text(choices)}),
        7 => part(choices.below(PARTS.len())),
        _ => json!([-0.5, 1e30, f64::MIN_POSITIVE][choices.below(3)]),
    })
}

/// Parts of other tokenizers.
const PARTS: [&str; 20] = [
    r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#,
    r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}"#,
    r#"{"type":"Whitespace"}"#,
    r#"{"type":"Digits","individual_digits":true}"#,
    r#"{"type":"Punctuation","behavior":"Removed"}"#,
    r#"{"type":"BertPreTokenizer"}"#,
    r#"{"type":"UnicodeScripts"}"#,
    r#"{"type":"Split","pattern":{"Regex":"a|(?=b)"},"behavior":"MergedWithNext","invert":true}"#,
    r#"{"type":"Split","pattern":{"String":""},"behavior":"Isolated","invert":false}"#,
    r#"{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"ByteLevel"}]}"#,
    r#"{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]}"#,
    r#"{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"lowercase":true}"#,
    r#"{"type":"Replace","pattern":{"Regex":"\\s*"},"content":"▁"}"#,
    r#"{"type":"Prepend","prepend":""}"#,
    r#"{"type":"Precompiled","precompiled_charsmap":"AAAA"}"#,
    r#"{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[],
        "special_tokens":{}}"#,
    r#"{"type":"RobertaProcessing","sep":["b",9],"cls":["a",0]}"#,
    r#"{"type":"CTC","pad_token":"a","word_delimiter_token":"b","cleanup":true}"#,
    r#"{"type":"Strip","content":"a","start":9,"stop":9}"#,
    r#"{"direction":"Right","max_length":0,"strategy":"LongestFirst","stride":9}"#,
];

fn part(index: usize) -> Value {
    serde_json::from_str(PARTS[index]).expect("checked with every run")
}

/// A whole file.
fn whole(kind: usize) -> Value {
    let words = ["<unk>", "a", "b", "▁", "ab", "▁a", "##b", "Ġ", "Ġa", "<0x61>", "é", "<s>"];
    let vocab: Value =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let space = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let (model, pre_tokenizer, decoder) = match kind {
        0 => (
            json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": false,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "byte_fallback": true, "vocab": vocab, "ignore_merges": false,
                "merges": [["a", "b"], ["▁", "a"], ["Ġ", "a"]]}),
            byte_level.clone(),
            byte_level,
        ),
        1 => {
            let pieces: Vec<Value> =
                words.iter().zip(0..).map(|(word, id)| json!([word, -f64::from(id)])).collect();
            (
                json!({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": false}),
                space.clone(),
                space,
            )
        }
        2 => (
            json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
        _ => (
            json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}),
            json!({"type": "Split", "pattern": {"Regex": "[ab]+| "}, "behavior": "Isolated",
                "invert": false}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]}),
        ),
    };
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 11, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "NFC"}, "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [11], "tokens": ["<s>"]}}},
        "decoder": decoder, "model": model})
}
