//! Byte-level vocabularies that have no token for some bytes, as SmolLM2's: what transformers does
//! with a text that has such a byte.
//!
//! tokenizers 1.0.0-rc.3 refuses such a vocabulary. 0.23 takes it: after a text is cut into words,
//! it leaves the byte out of its word, or puts `unk_token` in its place, and its neighbours merge.
//! Here the missing bytes get ids past the vocabulary, so that rc.3 loads it. These ids show which
//! words have such a byte. Those words are merged again, here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::models::bpe::PipelineBPE;
use tokenizers::pipeline::{PipelineModel, PipelineTokenizer, PreTokenizer, PreTokenizerScratch};
use tokenizers::utils::byte_level::{BYTES_CHAR_LOOKUP, char_to_byte};

use super::tokenizer_json::TokenizerJson;

/// The bytes that a vocabulary has no token for.
pub(super) struct ByteGaps {
    bytes: Vec<u8>,
    /// The id that stands for the first of them. The others follow.
    first_id: u32,
    unk_token: Option<String>,
    fuse_unk: bool,
    /// Made for the first text that has such a byte.
    merges: OnceLock<Result<Merges, String>>,
}

impl ByteGaps {
    /// Gives ids to the bytes that a canonical tokenizer has no token for; None if it has all of
    /// them, or is of a kind that the crate is left to refuse.
    ///
    /// # Errors
    /// Its words cannot be found again in its ids.
    pub(crate) fn fill(
        tokenizer: &mut TokenizerJson<'_>,
        vocab_size: usize,
    ) -> Result<Option<Self>, String> {
        let model = &tokenizer.value["model"];
        let has = |name: &str| model[name].as_str().is_some_and(|text| !text.is_empty());
        if model["byte_level"] != true
            || model["byte_fallback"] == true
            || has("continuing_subword_prefix")
            || has("end_of_word_suffix")
        {
            return Ok(None);
        }
        let mut is_there = [false; 256];
        tokenizer.each_model_token(|token, _| {
            let mut chars = token.chars();
            if let (Some(char), None) = (chars.next(), chars.next())
                && let Some(byte) = char_to_byte(char)
            {
                is_there[usize::from(byte)] = true;
            }
        });
        // The others are in no text.
        let utf8 = (0..=0xBF).chain(0xC2..=0xF4);
        let bytes: Vec<u8> = utf8.filter(|byte: &u8| !is_there[usize::from(*byte)]).collect();
        if bytes.is_empty() {
            return Ok(None);
        }
        if leaves_text_out(&tokenizer.value["pre_tokenizer"]) {
            return Err(format!(
                "its vocabulary has no token for {} of the bytes of UTF-8, and its pre_tokenizer \
                 leaves text out; that is not supported",
                bytes.len()
            ));
        }
        let unk_token = model["unk_token"].as_str().map(str::to_owned);
        let fuse_unk = model["fuse_unk"] == true;
        let first_id = u32::try_from(vocab_size).map_err(|error| error.to_string())?;
        let tokens = bytes.iter().map(|&byte| BYTES_CHAR_LOOKUP[usize::from(byte)].to_string());
        let mut tokens: Vec<(String, u32)> = tokens.zip(first_id..).collect();
        // Else the crate numbers these from the end of a vocabulary that is longer now.
        let added = tokenizer.value["added_tokens"].as_array().into_iter().flatten();
        tokens.extend(added.filter_map(|token| {
            Some((
                token["content"].as_str()?.to_owned(),
                u32::try_from(token["id"].as_u64()?).ok()?,
            ))
        }));
        tokenizer.add_to_vocabulary(tokens)?;
        Ok(Some(Self { bytes, first_id, unk_token, fuse_unk, merges: OnceLock::new() }))
    }

    /// Whether an id stands for a missing byte.
    pub(crate) fn contain(&self, id: u32) -> bool {
        self.byte(id).is_some()
    }

    fn byte(&self, id: u32) -> Option<u8> {
        self.bytes.get(id.checked_sub(self.first_id)? as usize).copied()
    }

    /// The ids of a text, from those that the crate gave it without tokens around it.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text.
    pub(crate) fn close(
        &self,
        ids: &[u32],
        tokenizer: &PipelineTokenizer,
        is_added: impl Fn(u32) -> bool,
    ) -> Result<Vec<u32>, String> {
        let PipelineModel::BPE(model) = tokenizer.get_model() else {
            return Err("only BPE models lack bytes".to_owned());
        };
        let merges = self.merges.get_or_init(|| Merges::of(model)).as_ref()?;
        let mut closed = Vec::with_capacity(ids.len());
        for section in ids.chunk_by(|a, b| !is_added(*a) && !is_added(*b)) {
            match section {
                [id] if is_added(*id) => closed.push(*id),
                _ => self.close_section(section, tokenizer, merges, &mut closed)?,
            }
        }
        Ok(closed)
    }

    /// A section is what is between two added tokens. Its ids spell its whole text.
    fn close_section(
        &self,
        ids: &[u32],
        tokenizer: &PipelineTokenizer,
        merges: &Merges,
        out: &mut Vec<u32>,
    ) -> Result<(), String> {
        if !ids.iter().any(|&id| self.contain(id)) {
            out.extend(ids);
            return Ok(());
        }
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(ids.len());
        for &id in ids {
            match self.byte(id) {
                Some(byte) => text.push(byte),
                None => text.extend(bytes_of(&tokenizer.get_model().id_to_token(id))),
            }
            ends.push(text.len());
        }
        let text = String::from_utf8(text).map_err(|_| "its tokens do not spell it".to_owned())?;
        let mut words = Vec::new();
        let scratch = &mut PreTokenizerScratch::default();
        tokenizer
            .get_pre_tokenizer()
            .pre_tokenize(&text, scratch, &mut words)
            .map_err(|error| error.to_string())?;
        let mut at = 0;
        for word in words {
            let range = word.range();
            let num = ends[at..].partition_point(|&end| end <= range.end);
            let of_word = &ids[at..at + num];
            at += num;
            match of_word.iter().any(|&id| self.contain(id)) {
                false => out.extend(of_word),
                true => out.extend(merges.apply(self.symbols(&text.as_bytes()[range], merges)?)),
            }
        }
        Ok(())
    }

    /// The ids of a word's bytes, before merges: as `BPE::merge_word` of tokenizers 0.23.
    fn symbols(&self, word: &[u8], merges: &Merges) -> Result<Vec<u32>, String> {
        let mut symbols = Vec::with_capacity(word.len());
        let mut follows_unk = false;
        for &byte in word {
            let is_missing = self.bytes.contains(&byte);
            match (is_missing, &self.unk_token) {
                (false, _) => symbols.push(merges.of_bytes[usize::from(byte)]),
                (true, None) => {}
                (true, Some(_)) if follows_unk && self.fuse_unk => {}
                (true, Some(unk)) => symbols.push(
                    *merges
                        .vocabulary
                        .get(unk)
                        .ok_or_else(|| format!("the unk_token {unk:?} is not in the vocabulary"))?,
                ),
            }
            follows_unk = is_missing;
        }
        Ok(symbols)
    }
}

/// What a pre-tokenizer takes out of a text cannot be found in its ids.
fn leaves_text_out(pre_tokenizer: &Value) -> bool {
    let mut members = pre_tokenizer["pretokenizers"].as_array().into_iter().flatten();
    match pre_tokenizer["type"].as_str().unwrap_or_default() {
        "Sequence" => members.any(leaves_text_out),
        "WhitespaceSplit" | "Whitespace" | "BertPreTokenizer" | "CharDelimiterSplit" => true,
        _ => pre_tokenizer["behavior"] == "Removed",
    }
}

/// The bytes that a token of the byte-level alphabet spells.
fn bytes_of(token: &Option<String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for char in token.iter().flat_map(|token| token.chars()) {
        match char_to_byte(char) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(char.to_string().bytes()),
        }
    }
    bytes
}

/// The merges of a byte-level BPE model, by ids.
pub(super) struct Merges {
    /// Of two neighbours: the rank of their merge, and what it gives.
    ranks: HashMap<(u32, u32), (usize, u32)>,
    of_bytes: [u32; 256],
    vocabulary: HashMap<String, u32>,
}

impl Merges {
    pub(crate) fn of(model: &PipelineBPE) -> Result<Self, String> {
        let config = model.to_config().map_err(|error| error.to_string())?;
        let vocabulary: HashMap<String, u32> = config.vocab.into_iter().collect();
        let id = |token: &str| vocabulary.get(token).copied();
        let mut ranks = HashMap::with_capacity(config.merges.len());
        for (rank, (left, right)) in config.merges.into_iter().enumerate() {
            let product = format!("{left}{right}");
            let (Some(left), Some(right), Some(product)) = (id(&left), id(&right), id(&product))
            else {
                return Err(format!("the merge into {product:?} is not in the vocabulary"));
            };
            ranks.insert((left, right), (rank, product));
        }
        let of_byte = |byte: usize| id(&BYTES_CHAR_LOOKUP[byte].to_string()).unwrap_or(u32::MAX);
        Ok(Self { ranks, of_bytes: std::array::from_fn(of_byte), vocabulary })
    }

    /// The ids of a word whose bytes all have a token.
    pub(crate) fn of_word(&self, word: &[u8]) -> Vec<u32> {
        self.apply(word.iter().map(|byte| self.of_bytes[usize::from(*byte)]).collect())
    }

    /// Merges neighbours, the lowest rank first and the leftmost of equals, until none can be.
    fn apply(&self, mut symbols: Vec<u32>) -> Vec<u32> {
        let end = symbols.len();
        // The neighbours of each symbol. One that was merged into its left neighbour is gone.
        let mut next: Vec<usize> = (1..=end).collect();
        let mut previous: Vec<Option<usize>> = (0..end).map(|at| at.checked_sub(1)).collect();
        let mut is_gone = vec![false; end];
        let mut queue = BinaryHeap::new();
        let merge = |symbols: &[u32], next: &[usize], at: usize| {
            let pair = (symbols[at], *symbols.get(next[at])?);
            self.ranks.get(&pair).map(|&(rank, product)| Reverse((rank, at, product)))
        };
        queue.extend((0..end).filter_map(|at| merge(&symbols, &next, at)));
        while let Some(Reverse(best)) = queue.pop() {
            let (_, at, product) = best;
            if is_gone[at] || merge(&symbols, &next, at) != Some(Reverse(best)) {
                continue;
            }
            let right = next[at];
            symbols[at] = product;
            is_gone[right] = true;
            next[at] = next[right];
            if let Some(after) = previous.get_mut(next[at]) {
                *after = Some(at);
            }
            queue.extend(merge(&symbols, &next, at));
            queue.extend(previous[at].and_then(|before| merge(&symbols, &next, before)));
        }
        let kept = symbols.into_iter().zip(is_gone);
        kept.filter(|(_, is_gone)| !is_gone).map(|(symbol, _)| symbol).collect()
    }
}
