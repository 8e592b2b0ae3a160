//! Tokens of one character that no merge makes, in byte-level vocabularies.
//!
//! tokenizers 1.0.0-rc.3 takes such a token for a word that is its character alone. 0.23 and
//! llama.cpp merge the character's bytes, as everywhere else; and so it is done here, after the
//! crate.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenizers::pipeline::PipelineModel;
use tokenizers::utils::byte_level::char_to_byte;

use super::tokenizer_byte_gaps::Merges;
use super::tokenizer_json::TokenizerJson;

/// Most bytes of a character.
const MAX_BYTES: usize = 4;

/// Tokens that are one character of several bytes.
pub(super) struct UnmadeTokens {
    /// The bytes of each, by its id.
    characters: HashMap<u32, Vec<u8>>,
    /// Flags of their ids, for a quick look.
    is_one: Vec<bool>,
    /// Replacements of those without a merge; found for the first text that has one.
    replaced: OnceLock<Result<HashMap<u32, Vec<u32>>, String>>,
}

impl UnmadeTokens {
    /// Those of a canonical tokenizer; None: it has none, or takes whole words before merges.
    pub(crate) fn of(tokenizer: &TokenizerJson<'_>) -> Option<Self> {
        let model = &tokenizer.value["model"];
        if model["byte_level"] != true || model["ignore_merges"] == true {
            return None;
        }
        let mut characters = HashMap::new();
        tokenizer.each_model_token(|token, id| {
            if let Some(bytes) = bytes_of_one_character(token) {
                characters.insert(id, bytes);
            }
        });
        let largest = *characters.keys().max()?;
        let mut is_one = vec![false; largest as usize + 1];
        characters.keys().for_each(|id| is_one[*id as usize] = true);
        Some(Self { characters, is_one, replaced: OnceLock::new() })
    }

    /// The ids of a text with the merged bytes of characters in place of tokens that no merge
    /// makes.
    ///
    /// `is_added`: ids that stand for added tokens of the text.
    ///
    /// # Errors
    /// A merge is not in the vocabulary.
    pub(crate) fn replace(
        &self,
        ids: Vec<u32>,
        model: &PipelineModel,
        is_added: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, String> {
        let may_be = |id: &u32| self.is_one.get(*id as usize) == Some(&true);
        if !ids.iter().any(may_be) {
            return Ok(ids);
        }
        let replaced = self.replaced.get_or_init(|| self.find(model)).as_ref()?;
        let mut out = Vec::with_capacity(ids.len());
        for id in ids {
            match replaced.get(&id).filter(|_| !is_added(id)) {
                Some(bytes) => out.extend(bytes),
                None => out.push(id),
            }
        }
        Ok(out)
    }

    fn find(&self, model: &PipelineModel) -> Result<HashMap<u32, Vec<u32>>, String> {
        let PipelineModel::BPE(model) = model else { return Ok(HashMap::new()) };
        let merges = Merges::of(model)?;
        let merged = |(id, bytes): (&u32, &Vec<u8>)| (*id, merges.of_word(bytes));
        let all = self.characters.iter().map(merged);
        Ok(all.filter(|(id, merged)| merged.as_slice() != [*id]).collect())
    }
}

/// The bytes that a token spells, if they are one character of several bytes.
fn bytes_of_one_character(token: &str) -> Option<Vec<u8>> {
    // The alphabet has characters of two bytes at most.
    if !(2..=2 * MAX_BYTES).contains(&token.len()) {
        return None;
    }
    let bytes: Vec<u8> = token.chars().map(char_to_byte).collect::<Option<_>>()?;
    let mut chars = std::str::from_utf8(&bytes).ok()?.chars();
    let is_one = chars.next().is_some() && chars.next().is_none();
    (is_one && bytes.len() > 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;

    use crate::Tokenizer;

    fn spelled(text: &str) -> String {
        text.bytes().map(|byte| BYTES_CHAR_LOOKUP[usize::from(byte)]).collect()
    }

    /// Ids of bytes are the bytes; further tokens follow.
    fn tokenizer(tokens: &[&str], merges: &[[&str; 2]], ignores_merges: bool) -> Tokenizer {
        let mut vocab: Map<String, Value> = (0..256)
            .map(|byte: usize| (BYTES_CHAR_LOOKUP[byte].to_string(), byte.into()))
            .collect();
        for (index, token) in tokens.iter().enumerate() {
            vocab.insert((*token).to_owned(), (256 + index).into());
        }
        let json = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges,
                "ignore_merges": ignores_merges}
        });
        Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
    }

    // From tokenizers 0.23.3.
    #[test]
    fn a_character_that_no_merge_makes_is_its_bytes() {
        let tokens = ["🚀", "é", "日", "æĹ"].map(|token| match token {
            "æĹ" => token.to_owned(),
            text => spelled(text),
        });
        let tokens = tokens.each_ref().map(String::as_str);
        let merged = spelled("é");
        let merged: Vec<String> = merged.chars().map(String::from).collect();
        // "é" is made of its bytes; "日" has a merge of its first two bytes and no other.
        let merges = [[merged[0].as_str(), merged[1].as_str()], ["æ", "Ĺ"]];
        let plain = tokenizer(&tokens, &merges, false);
        for (text, ids) in [
            ("🚀", &[240, 159, 154, 128][..]),
            ("a 🚀", &[97, 32, 240, 159, 154, 128]),
            ("é", &[257]),
            ("日", &[259, 165]),
            ("🚀🚀", &[240, 159, 154, 128, 240, 159, 154, 128]),
        ] {
            assert_eq!(plain.encode(text, false).unwrap(), ids, "{text}");
        }
        assert_eq!(plain.decode(&[256, 258], false).unwrap(), "🚀日");
        let whole = tokenizer(&tokens, &merges, true);
        assert_eq!(whole.encode("🚀", false).unwrap(), [256]);
    }
}
