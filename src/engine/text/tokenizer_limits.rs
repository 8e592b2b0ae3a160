//! Checks of a `tokenizer.json` before the tokenizers crate sees it: values that it would
//! believe, and then allocate, index or multiply by.

use serde_json::Value;

/// Token ids are below this: sixteen times what the largest published vocabularies have. A table of
/// all ids up to the largest is allocated, so a single id could ask for gigabytes.
pub(super) const MAX_VOCAB_SIZE: u64 = 1 << 22;

/// Longest word that a WordPiece model may ask to look at, in characters; published ones ask for
/// 100. As much is allocated.
pub(super) const MAX_WORD_CHARS: u64 = 1 << 16;

/// Largest text that normalizers may make of one text, in bytes.
const MAX_NORMALIZED: f64 = (1u64 << 30) as f64;

/// Most that decoders may lengthen a text by.
const MAX_DECODED_GROWTH: f64 = 256.0;

/// Factor by which normalizers can lengthen a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth(f64);

impl Growth {
    /// Whether a text may be normalized.
    pub(crate) fn allows(self, text: &str) -> bool {
        text.len() as f64 * self.0 <= MAX_NORMALIZED
    }
}

/// Checks a canonical tokenizer, and says how it lengthens texts.
///
/// # Errors
/// It has a value that no tokenizer has.
pub(super) fn check(tokenizer: &Value) -> Result<Growth, String> {
    check_ids(tokenizer)?;
    check_word_chars(&tokenizer["model"])?;
    check_subword_prefix(&tokenizer["model"])?;
    let mut growth = 1.0;
    normalizer(&tokenizer["normalizer"], &mut growth)?;
    let mut decoded = 1.0;
    decoder(&tokenizer["decoder"], &mut decoded);
    match decoded <= MAX_DECODED_GROWTH {
        true => Ok(Growth(growth)),
        false => Err(format!("its decoder makes a text {decoded:.0} times as long")),
    }
}

/// The largest token id of a tokenizer; None if it has no tokens.
pub(super) fn largest_id(tokenizer: &Value) -> Option<u64> {
    let model = match &tokenizer["model"]["vocab"] {
        Value::Object(vocab) => vocab.values().filter_map(Value::as_u64).max(),
        Value::Array(pieces) => (pieces.len() as u64).checked_sub(1),
        _ => None,
    };
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    model.max(added.filter_map(|token| token["id"].as_u64()).max())
}

fn check_ids(tokenizer: &Value) -> Result<(), String> {
    match largest_id(tokenizer).filter(|id| *id >= MAX_VOCAB_SIZE) {
        Some(id) => Err(format!("token id {id} is too large, the limit is {}", MAX_VOCAB_SIZE - 1)),
        None => Ok(()),
    }
}

fn check_word_chars(model: &Value) -> Result<(), String> {
    let chars = model["max_input_chars_per_word"].as_u64().unwrap_or(0);
    match chars > MAX_WORD_CHARS {
        true => Err(format!(
            "`max_input_chars_per_word` {chars} is too large, the limit is {MAX_WORD_CHARS}"
        )),
        false => Ok(()),
    }
}

/// The crate takes the prefix off the second part of a merge without looking.
fn check_subword_prefix(model: &Value) -> Result<(), String> {
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let second = |merge: &Value| {
        let second = match merge.as_str() {
            Some(text) => text.split_once(' ').map(|(_, second)| second.to_owned()),
            None => merge[1].as_str().map(str::to_owned),
        };
        second.unwrap_or_default()
    };
    let mut merges = model["merges"].as_array().into_iter().flatten();
    match !prefix.is_empty() && merges.any(|merge| !second(merge).starts_with(prefix)) {
        true => Err("a merge has a second part without the continuing_subword_prefix".to_owned()),
        false => Ok(()),
    }
}

fn normalizer(json: &Value, growth: &mut f64) -> Result<(), String> {
    match json["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let members = json["normalizers"].as_array().into_iter().flatten();
            return members.into_iter().try_for_each(|member| normalizer(member, growth));
        }
        "Precompiled" => check_charsmap(json["precompiled_charsmap"].as_str().unwrap_or_default())?,
        _ => {}
    }
    *growth *= growth_of(json);
    Ok(())
}

fn decoder(json: &Value, growth: &mut f64) {
    match json["decoders"].as_array() {
        Some(members) => members.iter().for_each(|member| decoder(member, growth)),
        None => *growth *= growth_of(json),
    }
}

/// The most that one step makes of one byte.
fn growth_of(json: &Value) -> f64 {
    let len = |value: &Value| value.as_str().map_or(0, str::len) as f64;
    match json["type"].as_str().unwrap_or_default() {
        // A regex may match nothing, before every byte.
        "Replace" => match json["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => {
                (len(&json["content"]) / pattern.len() as f64).max(1.0)
            }
            _ => 1.0 + len(&json["content"]),
        },
        // Once for every text between added tokens.
        "Prepend" => 1.0 + len(&json["prepend"]),
        // U+FDFA of 3 bytes becomes 33.
        "NFKC" | "NFKD" | "Precompiled" => 11.0,
        "NFD" | "NFC" | "BertNormalizer" | "ByteLevel" | "Metaspace" => 3.0,
        _ => 1.0,
    }
}

/// The size of the trie that a charsmap begins with is believed: it must be within the charsmap.
fn check_charsmap(base64: &str) -> Result<(), String> {
    let digits: Vec<u32> = base64.bytes().take(6).filter_map(base64_digit).collect();
    let num_bytes = base64.trim_end_matches('=').len() * 3 / 4;
    if base64.is_empty() {
        return Ok(());
    }
    let [a, b, c, d, e, f] = digits[..] else {
        return Err("its precompiled_charsmap is damaged".to_owned());
    };
    let (first, second) = ((a << 18) | (b << 12) | (c << 6) | d, (e << 2) | (f >> 4));
    let size =
        u32::from_be_bytes([(first >> 16) as u8, (first >> 8) as u8, first as u8, second as u8]);
    let size = size.swap_bytes() as usize;
    match size.is_multiple_of(4) && size >= 4 && size.saturating_add(4) <= num_bytes {
        true => Ok(()),
        false => Err(format!(
            "its precompiled_charsmap is damaged: a trie of {size} bytes in {num_bytes} bytes"
        )),
    }
}

fn base64_digit(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn normalizers_that_multiply_are_measured() {
        let replace =
            |to: &str| json!({"type": "Replace", "pattern": {"String": "a"}, "content": to});
        let bomb: Vec<Value> = (0..8).map(|_| replace(&"a".repeat(64))).collect();
        let tokenizer = json!({"normalizer": {"type": "Sequence", "normalizers": bomb}});
        let growth = check(&tokenizer).unwrap();
        assert!(!growth.allows("a") && growth.allows(""));
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}});
        assert_eq!(check(&llama), Ok(Growth(12.0)));
        let decoder = json!({"type": "Sequence", "decoders": bomb});
        assert!(check(&json!({"decoder": decoder})).unwrap_err().contains("decoder"));
    }

    #[test]
    fn ids_prefixes_and_charsmaps_are_checked() {
        for bad in [
            json!({"model": {"vocab": {"a": 4_294_967_295u32}}}),
            json!({"model": {"vocab": {"a": u64::MAX}}}),
            json!({"added_tokens": [{"id": 4_294_967_295u32}]}),
            json!({"model": {"continuing_subword_prefix": "##", "merges": [["a", "b"]]}}),
            json!({"model": {"continuing_subword_prefix": "##", "merges": ["a b"]}}),
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}}),
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "x"}}),
        ] {
            assert!(check(&bad).is_err(), "{bad}");
        }
        // A trie of 4 bytes, and 4 bytes of it.
        let good =
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAEAAAA="}});
        assert_eq!(check(&good), Ok(Growth(11.0)));
    }
}
