//! From the tokenizer of a GGUF file to what `tokenizer.json` and `tokenizer_config.json` would
//! say: byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`, and with merges `gemma4`).
//!
//! Source: llama.cpp's `src/llama-vocab.cpp`, and transformers 5.23's
//! `integrations/gguf/gguf_tokenizer_mapping.py`.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokenizers::utils::byte_level::{BYTES_CHAR_LOOKUP, char_to_byte};

use super::tokenizer_files::TokenizerConfig;
use super::tokenizer_gguf_pre::PreTokenizer;
use super::tokenizer_limits::MAX_VOCAB_SIZE;
use super::tokenizer_sources::{merges_of, replace};
use vllm_batch_base::files::quoted;

/// Tokenizer in the words of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizer<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: how texts are cut before tokens are looked for.
    pub pre: Option<&'a str>,
    /// Of a Gemma: its scores do not say the order of merges, and spaces stand for themselves.
    pub is_gemma: bool,
    /// Tokens in the order of their ids.
    pub tokens: Vec<&'a str>,
    /// Their scores; none for byte-level BPE.
    pub scores: Vec<f32>,
    /// Their kinds (`token_type`); empty: all are normal ones.
    pub kinds: Vec<u64>,
    /// Two tokens and a space, the first merge first.
    pub merges: Vec<&'a str>,
    /// `bos_token` and other names, with ids.
    pub special: Vec<(&'static str, u64)>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
}

/// Kinds of tokens that are found in a text before it is cut.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// A tokenizer.json of BPE. Its vocabulary and merges are never values of JSON: these take ten
/// times as much memory as the text.
#[derive(Serialize)]
struct BpeFile<'a> {
    version: &'static str,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: BpeModel<'a>,
}

#[derive(Serialize)]
struct BpeModel<'a> {
    r#type: &'static str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: &'a HashMap<String, usize>,
    merges: Vec<(&'a str, &'a str)>,
}

impl BpeFile<'_> {
    fn text(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|error| error.to_string())
    }
}

impl GgufTokenizer<'_> {
    /// Content of `tokenizer.json`, as text, and `tokenizer_config.json`.
    ///
    /// # Errors
    /// The tokenizer is damaged, or of a kind that is not supported: the text says what to do.
    pub(super) fn convert(&self) -> Result<(String, TokenizerConfig), String> {
        self.check()?;
        let (tokenizer, adds_bos) = match self.model {
            "gpt2" => self.byte_level()?,
            "llama" | "gemma4" => (self.sentence_piece()?, true),
            other => return Err(format!("its model {} is not supported", quoted(other))),
        };
        let mut config = Map::new();
        for (name, id) in &self.special {
            let token = usize::try_from(*id).ok().and_then(|id| self.tokens.get(id));
            let token = token.ok_or_else(|| format!("its {name} has the id {id}, of no token"))?;
            config.insert((*name).to_owned(), (*token).into());
        }
        config.insert("add_bos_token".to_owned(), self.add_bos.unwrap_or(adds_bos).into());
        config.insert("add_eos_token".to_owned(), self.add_eos.unwrap_or(false).into());
        Ok((tokenizer, TokenizerConfig::of(Value::Object(config))))
    }

    fn check(&self) -> Result<(), String> {
        let num_tokens = self.tokens.len();
        let fits = |len: usize| len == 0 || len == num_tokens;
        if num_tokens == 0 || num_tokens as u64 > MAX_VOCAB_SIZE {
            return Err(format!("{num_tokens} tokens; expected 1 to {MAX_VOCAB_SIZE}"));
        }
        match fits(self.scores.len()) && fits(self.kinds.len()) {
            true => Ok(()),
            false => Err("it has not one score and one kind for each token".to_owned()),
        }
    }

    fn kind(&self, id: usize) -> u64 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    fn is_added(&self, id: usize) -> bool {
        matches!(self.kind(id), CONTROL | USER_DEFINED)
    }

    /// Control tokens are special ones; what a user defined is only never cut.
    fn added_tokens(&self, is_kept: impl Fn(&str) -> bool) -> Vec<Value> {
        let tokens = self.tokens.iter().enumerate();
        let added = tokens.filter(|(id, text)| self.is_added(*id) && is_kept(text));
        let token = |(id, text): (usize, &&str)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": self.kind(id) == CONTROL})
        };
        added.map(token).collect()
    }

    /// The tokenizer, and whether texts begin with BOS where the file does not say.
    fn byte_level(&self) -> Result<(String, bool), String> {
        let pre = PreTokenizer::of(self.pre)?;
        let spelled = |(id, token): (usize, &&str)| {
            // Control tokens are no bytes of a text.
            let is_spelled =
                self.is_added(id) || token.chars().all(|char| char_to_byte(char).is_some());
            let bytes = || token.bytes().map(|byte| BYTES_CHAR_LOOKUP[usize::from(byte)]);
            (if is_spelled { (*token).to_owned() } else { bytes().collect() }, id)
        };
        let vocab: HashMap<String, usize> = self.tokens.iter().enumerate().map(spelled).collect();
        let file = BpeFile {
            version: "1.0",
            added_tokens: self.added_tokens(|_| true),
            normalizer: pre.normalizer(),
            pre_tokenizer: pre.json(),
            decoder: json!({"type": "ByteLevel"}),
            model: BpeModel {
                r#type: "BPE",
                unk_token: None,
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: pre.ignores_merges,
                vocab: &vocab,
                merges: self.listed_merges()?,
            },
        };
        Ok((file.text()?, pre.adds_bos))
    }

    fn listed_merges(&self) -> Result<Vec<(&str, &str)>, String> {
        let mut merges = Vec::with_capacity(self.merges.len());
        for merge in &self.merges {
            let parts = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
            merges.push(
                parts.ok_or_else(|| format!("the merge {} is not two tokens", quoted(merge)))?,
            );
        }
        Ok(merges)
    }

    fn sentence_piece(&self) -> Result<String, String> {
        // Gemma 4's has merges, which are as its scores are not.
        let has_merges = self.model == "gemma4";
        let has_prefix = self.add_space_prefix.unwrap_or(!has_merges);
        // Gemma's files have real spaces in tokens of nothing else.
        let is_blank = |token: &str| self.is_gemma && token.bytes().all(|byte| byte == b' ');
        let spelled = |token: &str| match is_blank(token) {
            true => "▁".repeat(token.len()),
            false => token.to_owned(),
        };
        let order: Vec<String> = self.tokens.iter().map(|token| spelled(token)).collect();
        let vocab: HashMap<String, usize> =
            order.iter().enumerate().map(|(id, token)| (token.clone(), id)).collect();
        let scores: Vec<f32> = match self.is_gemma {
            // Below the limit of ids each is a float of its own.
            true => (0..order.len()).map(|id| -(id as f32)).collect(),
            false => self.scores.clone(),
        };
        if scores.len() != order.len() || scores.iter().any(|score| !score.is_finite()) {
            return Err("it has not a finite score for each token".to_owned());
        }
        let merges = match has_merges {
            true => self.listed_merges()?,
            false => merges_of(&order, &vocab, Some(&scores))?,
        };
        let unk = self.special.iter().find(|(name, _)| *name == "unk_token");
        let unk = unk.and_then(|(_, id)| order.get(usize::try_from(*id).ok()?));
        let mut decoders =
            vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let mut normalizers = vec![replace(" ", "▁")];
        if has_prefix {
            // Before every piece of text between control tokens, as llama.cpp does it.
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let file = BpeFile {
            version: "1.0",
            added_tokens: self.added_tokens(|token| !is_blank(token)),
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: BpeModel {
                r#type: "BPE",
                unk_token: unk.map(String::as_str),
                fuse_unk: true,
                byte_fallback: true,
                ignore_merges: false,
                vocab: &vocab,
                merges,
            },
        };
        file.text()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Tokenizer;

    const TOKENS: [&str; 7] = ["<s>", "a", "b", "Ġ", "ab", "Ġab", "< x >"];

    fn byte_level() -> GgufTokenizer<'static> {
        GgufTokenizer {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: TOKENS.into(),
            kinds: vec![3, 1, 1, 1, 1, 1, 4],
            merges: vec!["a b", "Ġ ab"],
            special: vec![("bos_token", 0)],
            ..GgufTokenizer::default()
        }
    }

    fn sentence_piece() -> GgufTokenizer<'static> {
        GgufTokenizer {
            model: "llama",
            tokens: vec!["<s>", "▁", "a", "b", "ab", "▁a", "▁ab"],
            scores: vec![0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0],
            kinds: vec![3, 1, 1, 1, 1, 1, 1],
            special: vec![("bos_token", 0)],
            ..GgufTokenizer::default()
        }
    }

    fn ids(gguf: &GgufTokenizer<'_>, text: &str) -> Vec<u32> {
        let tokenizer = Tokenizer::from_gguf(gguf, Path::new("m.gguf"));
        tokenizer.unwrap_or_else(|error| panic!("{error}")).encode(text, true).unwrap()
    }

    #[test]
    fn bytes_are_merged_and_added_tokens_are_found_whole() {
        assert_eq!(ids(&byte_level(), "ab ab<s>< x >a"), [4, 5, 0, 6, 1]);
        let with_bos = GgufTokenizer { add_bos: Some(true), ..byte_level() };
        assert_eq!(ids(&with_bos, "a"), [0, 1]);
    }

    #[test]
    fn pieces_are_merged_by_their_scores() {
        // "▁a" and "b" before "▁" and "ab": the score of "▁a" is higher.
        assert_eq!(ids(&sentence_piece(), "ab"), [0, 6]);
        let scores = vec![0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -30.0];
        let other = GgufTokenizer {
            tokens: vec!["<s>", "▁", "a", "b", "ab", "▁a", "x"],
            scores,
            ..sentence_piece()
        };
        assert_eq!(ids(&other, "ab"), [0, 1, 4]);
        let bare = GgufTokenizer { add_space_prefix: Some(false), ..sentence_piece() };
        assert_eq!(ids(&bare, "ab"), [0, 4]);
        // Of a Gemma the order of tokens counts.
        let gemma = GgufTokenizer { is_gemma: true, ..bare };
        assert_eq!(ids(&gemma, "ab"), [0, 4]);
        // Of Gemma 4 the list of merges.
        let merges = vec!["▁ a", "▁a b", "a b"];
        let gemma_4 = GgufTokenizer { model: "gemma4", merges, add_space_prefix: None, ..gemma };
        assert_eq!(ids(&gemma_4, " ab"), [0, 6]);
        assert_eq!(ids(&gemma_4, "ab"), [0, 4]);
    }

    #[test]
    fn what_is_not_known_is_refused_with_a_way_out() {
        let base = byte_level;
        let (pieces, bad) = (sentence_piece(), vec![0.0; 3]);
        for (gguf, wanted) in [
            (GgufTokenizer { pre: Some("strange"), ..base() }, "`pre strange`, is not known"),
            (GgufTokenizer { pre: None, ..base() }, "`pre default`, is not supported"),
            (GgufTokenizer { pre: Some("roberta-bpe"), ..base() }, "is not supported; these are"),
            (GgufTokenizer { pre: Some("strange"), ..base() }, ", viking;"),
            (GgufTokenizer { model: "bert", ..base() }, "its model `bert` is not supported"),
            (GgufTokenizer { merges: vec!["a"], ..base() }, "the merge `a` is not two tokens"),
            (GgufTokenizer { tokens: Vec::new(), ..base() }, "0 tokens"),
            (GgufTokenizer { kinds: vec![1], ..base() }, "one score and one kind"),
            (GgufTokenizer { special: vec![("eos_token", 7)], ..base() }, "eos_token has the id 7"),
            (GgufTokenizer { scores: bad, ..pieces.clone() }, "one score and one kind"),
            (GgufTokenizer { scores: Vec::new(), ..pieces.clone() }, "a finite score"),
            (GgufTokenizer { scores: vec![f32::NAN; 7], ..pieces }, "a finite score"),
        ] {
            let error = Tokenizer::from_gguf(&gguf, Path::new("m.gguf")).err().unwrap();
            let error = error.to_string();
            assert!(error.starts_with("m.gguf: its tokenizer: "), "{error}");
            assert!(error.contains(wanted) && error.contains("`settings.tokenizer`"), "{error}");
        }
    }

    #[test]
    fn every_name_of_how_texts_are_cut_loads() {
        for pre in PreTokenizer::names() {
            let gguf = GgufTokenizer { pre: Some(pre), add_bos: Some(false), ..byte_level() };

            assert_eq!(ids(&gguf, "ab ab"), [4, 5], "{pre}");
        }
    }
}
