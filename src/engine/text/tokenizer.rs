//! `Tokenizer`: text to ids and ids to text, over the tokenizers crate.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};

use super::control_tokens::{self, RenderedChat};
use super::pair_template::PairTemplate;
use super::regex_guard::RegexGuard;
use super::token_bytes::ByteForm;
use super::tokenizer_byte_gaps::ByteGaps;
use super::tokenizer_files::{self, TokenizerConfig, TokenizerFiles};
use super::tokenizer_gguf::GgufTokenizer;
use super::tokenizer_json::TokenizerJson;
use super::tokenizer_limits::{self, Growth};
use super::tokenizer_sources::Source;
use super::tokenizer_unmade::UnmadeTokens;
use super::tokenizer_words::Words;
use super::{TextError, split_regex, word_class};
use vllm_batch_base::contained;

/// A model's tokenizer. Immutable; share it by `Arc`.
pub struct Tokenizer {
    inner: PipelineTokenizer,
    byte_gaps: Option<ByteGaps>,
    /// Tokens of the vocabulary that merges may not make.
    unmade: Option<UnmadeTokens>,
    /// What cuts texts, where the crate does not.
    words: Option<Words>,
    /// What its normalizers and regexes may make of a text.
    growth: Growth,
    regex_guard: RegexGuard,
    /// Contents of all added tokens, special or not.
    added_tokens: BTreeMap<String, u32>,
    /// The same, as ids.
    added_ids: HashSet<u32>,
    /// Special ones among them: left out by `skip_special_tokens`.
    special_ids: BTreeSet<u32>,
    /// `bos_token` -> `<s>` ...
    special_tokens: BTreeMap<String, String>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    vocab_size: usize,
    /// Ids of `<0x80>`..`<0xBF>`: the inside of a character, where no window may start.
    continuation_byte_ids: BTreeSet<u32>,
    /// How tokens spell bytes.
    byte_form: ByteForm,
    /// Ids of "\n", which shields a piece of text from the space that some put before a text.
    newline_ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and the files that complete them; without
    /// `tokenizer.json` the files that transformers converts to one.
    ///
    /// # Errors
    /// A file is missing, corrupt, or describes a tokenizer that is not supported.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let mut config = TokenizerConfig::read(dir)?;
        if let Some(bytes) = TokenizerFiles::bytes(dir)? {
            return Self::parse(&bytes, &dir.join("tokenizer.json"), &config);
        }
        let source = Source::find(dir).ok_or_else(|| tokenizer_files::missing(dir))?;
        let tokenizer = TokenizerJson::whole(source.convert(dir, &mut config)?);
        TokenizerFiles::complete(tokenizer, &config, true)
            .and_then(Self::build)
            .map_err(|message| TextError::file(source.path(), message))
    }

    /// The tokenizer of a GGUF file; `path` is for messages.
    ///
    /// # Errors
    /// It is damaged, or of a kind that is not supported.
    pub fn from_gguf(gguf: &GgufTokenizer<'_>, path: &Path) -> Result<Self, TextError> {
        let help = "give the folder of the original tokenizer by `settings.tokenizer`";
        // Our own words, of any length: a list of names may be in them.
        let refused = |message| {
            let path = path.display();
            TextError::Model(format!("{path}: its tokenizer: {message}; {help}"))
        };
        let (json, config) = gguf.convert().map_err(refused)?;
        Self::load(json.as_bytes(), &config, true)
            .map_err(|message| TextError::file(path, format!("its tokenizer: {message}; {help}")))
    }

    /// A tokenizer from the bytes of a `tokenizer.json` and a parsed `tokenizer_config.json`.
    ///
    /// # Errors
    /// As `from_dir`.
    pub fn from_bytes(json: &[u8], config: Option<&Value>) -> Result<Self, TextError> {
        let empty = Value::Object(serde_json::Map::new());
        let config = TokenizerConfig::of(config.cloned().unwrap_or(empty));
        Self::parse(json, Path::new("tokenizer.json"), &config)
    }

    /// The tokenizer of a model that reads no texts: one token, which no text has.
    ///
    /// # Errors
    /// As `from_dir`.
    pub fn without_words() -> Result<Self, TextError> {
        let model = json!({"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""});
        Self::from_bytes(json!({"model": model}).to_string().as_bytes(), None)
    }

    fn parse(bytes: &[u8], path: &Path, config: &TokenizerConfig) -> Result<Self, TextError> {
        Self::load(bytes, config, false).map_err(|message| TextError::file(path, message))
    }

    /// From a `tokenizer.json`, which was converted from another file or not.
    fn load(bytes: &[u8], config: &TokenizerConfig, is_converted: bool) -> Result<Self, String> {
        let complete = |json| TokenizerFiles::complete(json, config, is_converted);
        if let Some(outline) = TokenizerJson::outline(bytes)
            && let Ok(tokenizer) = complete(outline).and_then(Self::build)
        {
            return Ok(tokenizer);
        }
        // Again with all of it as values: what is wrong is said, what is old is rewritten.
        let value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        complete(TokenizerJson::whole(value)).and_then(Self::build)
    }

    fn build(files: TokenizerFiles<'_>) -> Result<Self, String> {
        let built = contained::contain(|| Self::build_uncontained(files));
        built.unwrap_or_else(|| Err("the tokenizers library failed on it".to_string()))
    }

    fn build_uncontained(files: TokenizerFiles<'_>) -> Result<Self, String> {
        let TokenizerFiles { mut tokenizer, special_tokens } = files;
        let growth = tokenizer_limits::check(&tokenizer.value)?;
        let id_of = |token: &str| tokenizer.id_of(token);
        let named = |name: &str| special_tokens.get(name).and_then(|token| id_of(token));
        let (bos_token_id, eos_token_id) = (named("bos_token"), named("eos_token"));
        let has_byte_tokens = tokenizer.value["model"]["byte_fallback"] == true;
        let continuation_byte_ids = (0x80..=0xBF)
            .filter(|_| has_byte_tokens)
            .filter_map(|byte: u8| id_of(&format!("<0x{byte:02X}>")))
            .collect();
        let byte_form = ByteForm::of_decoder(&tokenizer.value["decoder"]);
        let vocab_size = tokenizer.largest_id().map_or(0, |id| id as usize + 1);
        let mut added_tokens = BTreeMap::new();
        let mut special_ids = BTreeSet::new();
        for token in tokenizer.value["added_tokens"].as_array_mut().into_iter().flatten() {
            let (Some(text), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) else {
                return Err("an added token has no content or no id".to_string());
            };
            // Within the limits that were checked above.
            let id = id as u32;
            added_tokens.insert(text.to_string(), id);
            if token["special"] == true {
                special_ids.insert(id);
            }
            // `encode_special_tokens` must switch off all of them, to encode what users typed as
            // plain text; `decode` leaves out the special ones by `special_ids`.
            token["special"] = Value::Bool(true);
        }
        word_class::rewrite(&mut tokenizer.value);
        let words = Words::take(&mut tokenizer)?;
        tokenizers::canonicalize_value(&mut tokenizer.value).map_err(|error| error.to_string())?;
        let byte_gaps = ByteGaps::fill(&mut tokenizer, vocab_size)?;
        let mut inner = split_regex::load(&tokenizer)?;
        if misnumbered(&inner, &added_tokens).is_some() && !tokenizer.is_outline() {
            // The crate numbers added tokens that the model does not know by their place.
            if tokenizer.value["model"]["vocab"].is_object() {
                let tokens = added_tokens.iter().map(|(text, id)| (text.clone(), *id));
                tokenizer.add_to_vocabulary(tokens.collect())?;
            }
            inner = split_regex::load(&tokenizer)?;
        }
        if let Some(text) = misnumbered(&inner, &added_tokens) {
            return Err(format!("added token {text:?} cannot have the id the file gives it"));
        }
        let cutters = words.iter().flat_map(Words::cutters);
        let regex_guard = split_regex::guard(&inner, cutters, &tokenizer.value)?;
        let unmade = UnmadeTokens::of(&tokenizer);
        let mut tokenizer = Self {
            inner,
            byte_gaps,
            unmade,
            words,
            growth,
            regex_guard,
            added_ids: added_tokens.values().copied().collect(),
            added_tokens,
            special_ids,
            special_tokens,
            bos_token_id,
            eos_token_id,
            vocab_size,
            continuation_byte_ids,
            byte_form,
            newline_ids: Vec::new(),
        };
        tokenizer.newline_ids = tokenizer.encode("\n", false).map_err(|e| e.to_string())?;
        Ok(tokenizer)
    }

    /// Token ids of a text. With `add_special_tokens` the model's BOS/EOS/CLS are put around it.
    /// Text that spells an added token becomes that token.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        self.encode_with(text, add_special_tokens, false)
    }

    /// Ids of a text in which nothing is an added token.
    pub(super) fn encode_as_text(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_with(text, false, true)
    }

    fn encode_with(&self, text: &str, around: bool, as_text: bool) -> Result<Vec<u32>, TextError> {
        if !self.growth.allows(text) {
            return Err(TextError::tokenize(
                "the tokenizer's normalizers make it larger than 1 GiB",
            ));
        }
        let encode = || {
            self.regex_guard.check(text)?;
            let ids = self.encode_unchecked(text, around, as_text)?;
            match &self.byte_gaps {
                Some(gaps) if ids.iter().any(|&id| gaps.contain(id)) => {
                    self.close_gaps(gaps, text, &ids, as_text)
                }
                _ => Ok(ids),
            }
        };
        let ids = contained::contain(encode).ok_or_else(TextError::tokenizer_failed)?;
        ids.map_err(TextError::tokenize)
    }

    fn encode_unchecked(
        &self,
        text: &str,
        around: bool,
        as_text: bool,
    ) -> Result<Vec<u32>, String> {
        if let Some(words) = &self.words {
            let ids = words.encode(text, &self.inner, as_text)?;
            return Ok(if around { self.with_special_tokens(&ids) } else { ids });
        }
        // Truncation and padding stored in tokenizer.json are switched off, as transformers does.
        let options = EncodeOptions {
            add_special_tokens: around,
            encode_special_tokens: as_text,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let mut tokens: Vec<PipelineToken> = Vec::with_capacity(text.len() / 4 + 2);
        let encoded = self.inner.encode_into(text, &options, &mut tokens);
        encoded.map_err(|error| error.to_string())?;
        let ids = tokens.into_iter().map(PipelineToken::id).collect();
        match &self.unmade {
            None => Ok(ids),
            Some(unmade) => {
                let added = &self.added_ids;
                let is_added = |id| !as_text && added.contains(&id);
                unmade.replace(ids, self.inner.get_model(), is_added)
            }
        }
    }

    /// The ids of a text that has bytes without a token, from `ids` with gaps.
    fn close_gaps(
        &self,
        gaps: &ByteGaps,
        text: &str,
        ids: &[u32],
        as_text: bool,
    ) -> Result<Vec<u32>, String> {
        let plain = self.encode_unchecked(text, false, as_text)?;
        let first_gap = |ids: &[u32]| ids.iter().position(|&id| gaps.contain(id));
        // What the post-processor puts in front and behind is kept.
        let (with, without) = (first_gap(ids), first_gap(&plain));
        let front = with.zip(without).and_then(|(with, without)| with.checked_sub(without));
        let front = front.ok_or("its tokens do not spell it")?;
        let is_added = |id| !as_text && self.added_ids.contains(&id);
        let closed = gaps.close(&plain, &self.inner, is_added)?;
        let behind = ids.get(front + plain.len()..).unwrap_or_default();
        Ok([&ids[..front], &closed, behind].concat())
    }

    /// Ids of a rendered chat: control tokens that the template wrote are control tokens, those
    /// that
    /// users typed are text. No special tokens are added; the template wrote them.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text, or cannot represent a control token as text.
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        control_tokens::encode_chat(self, chat)
    }

    /// Text of ids. Unknown ids are left out; incomplete characters become U+FFFD.
    ///
    /// # Errors
    /// The decoder refuses the tokens.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        let error = |error| TextError::tokenize(format!("decoding: {error}"));
        if !skip_special_tokens || !ids.iter().any(|&id| self.is_special(id)) {
            return self.decode_contained(ids)?.map_err(error);
        }
        let kept: Vec<u32> = ids.iter().copied().filter(|&id| !self.is_special(id)).collect();
        self.decode_contained(&kept)?.map_err(error)
    }

    fn decode_contained(&self, ids: &[u32]) -> Result<tokenizers::Result<String>, TextError> {
        if let Some(gaps) = &self.byte_gaps
            && ids.iter().any(|&id| gaps.contain(id))
        {
            let kept: Vec<u32> = ids.iter().copied().filter(|&id| !gaps.contain(id)).collect();
            return self.decode_contained(&kept);
        }
        let decoded = contained::contain(|| self.inner.decode(ids, false));
        decoded.ok_or_else(TextError::tokenizer_failed)
    }

    /// vLLM's `decoded_token`: the text of one token, its SentencePiece space included.
    pub fn token_text(&self, id: u32) -> String {
        let text = self.decode(&[id], false).unwrap_or_default();
        let model = self.inner.get_model();
        let token = || contained::contain(|| model.id_to_token(id)).flatten();
        let spaced = || token().is_some_and(|token| token.starts_with('▁'));
        if text.starts_with([' ', '▁']) || !spaced() { text } else { format!(" {text}") }
    }

    /// `token_text` of a token after others: bytes that only now make a character give that
    /// character, bytes that do not yet make one give "" (vLLM looks back four tokens).
    pub fn token_text_after(&self, previous: &[u32], id: u32) -> String {
        let text = self.token_text(id);
        if !text.ends_with('\u{FFFD}') {
            return text;
        }
        for back in 1..=previous.len().min(4) {
            let mut ids = previous[previous.len() - back..].to_vec();
            let before = self.decode(&ids, false).unwrap_or_default();
            ids.push(id);
            let after = self.decode(&ids, false).unwrap_or_default();
            if !after.ends_with('\u{FFFD}') {
                let known = before.trim_end_matches('\u{FFFD}');
                return after.strip_prefix(known).unwrap_or(&after).to_string();
            }
        }
        String::new()
    }

    /// The ids of a text with what is put around it.
    pub fn with_special_tokens(&self, ids: &[u32]) -> Vec<u32> {
        let template = &self.inner.get_post_processor().single;
        let around = |run: &[(PipelineToken, u8)]| -> Vec<u32> {
            run.iter().map(|(token, _)| token.id()).collect()
        };
        [&around(&template.prefix), ids, &around(&template.suffix)].concat()
    }

    /// What it puts around two texts.
    pub fn pair_template(&self) -> PairTemplate {
        PairTemplate::new(&self.inner.get_post_processor().pair)
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos_token_id
    }

    /// Id of the end-of-sequence token.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.eos_token_id
    }

    /// Id of the token that texts are filled up with, where its files name one.
    pub fn pad_token_id(&self) -> Option<u32> {
        self.token_id(self.special_tokens.get("pad_token")?)
    }

    /// Text of the beginning-of-sequence token.
    pub fn bos_token(&self) -> Option<&str> {
        self.special_tokens.get("bos_token").map(String::as_str)
    }

    /// Text of the end-of-sequence token.
    pub fn eos_token(&self) -> Option<&str> {
        self.special_tokens.get("eos_token").map(String::as_str)
    }

    /// Largest id + 1, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether `skip_special_tokens` leaves this token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Id of an added token (`<|im_end|>`, `<think>`).
    pub fn added_token_id(&self, token: &str) -> Option<u32> {
        self.added_tokens.get(token).copied()
    }

    /// Id of a token by its name in the vocabulary, or by a text that becomes this one token alone.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let model = self.inner.get_model();
        let name = |id: u32| contained::contain(|| model.id_to_token(id)).flatten();
        let mut ids = 0..self.vocab_size as u32;
        let of_model = || ids.find(|id| name(*id).as_deref() == Some(token));
        let named = self.added_token_id(token).or_else(of_model);
        named.or_else(|| {
            let ids = self.encode_inside(token).ok()?;
            // A token for all that is unknown is none of it.
            let is_it = self.decode(&ids, false).ok()?.trim_start() == token.trim_start();
            (ids.len() == 1 && is_it).then(|| ids[0])
        })
    }

    /// The bytes of every token, by id. Empty: it adds none to a text, as special ones.
    ///
    /// # Errors
    /// What a token adds to a text depends on its neighbours.
    pub fn token_bytes(&self) -> Result<Vec<Vec<u8>>, TextError> {
        if self.byte_form == ByteForm::Neither {
            return Err(TextError::tokenize(
                "its tokens are no bytes of a text (a WordPiece tokenizer, or an unknown decoder)",
            ));
        }
        let model = self.inner.get_model();
        let bytes = |id: u32| {
            let token = contained::contain(|| model.id_to_token(id)).flatten()?;
            self.byte_form.bytes(&token)
        };
        let ids = 0..self.vocab_size as u32;
        let mut all: Vec<_> = ids.map(|id| bytes(id).unwrap_or_default()).collect();
        for (text, &id) in &self.added_tokens {
            all[id as usize] = match self.is_special(id) {
                true => Vec::new(),
                false => text.clone().into_bytes(),
            };
        }
        Ok(all)
    }

    /// Special tokens: text, id.
    pub fn special_token_ids(&self) -> impl Iterator<Item = (&str, u32)> {
        let is_special = |(_, id): &(&String, &u32)| self.is_special(**id);
        self.added_tokens.iter().filter(is_special).map(|(text, &id)| (text.as_str(), id))
    }

    /// Ids of special tokens that stand for no part of a text, as those around it: all but that of
    /// a masked word.
    pub fn ids_around_texts(&self) -> impl Iterator<Item = u32> {
        let mask = self.special_tokens.get("mask_token").map(String::as_str);
        let others = self.special_token_ids().filter(move |(text, _)| Some(*text) != mask);
        others.map(|(_, id)| id)
    }

    /// Ids of a text inside a longer one: nothing is an added token, and nothing is put before it.
    ///
    /// # Errors
    /// As `encode`.
    pub fn encode_inside(&self, text: &str) -> Result<Vec<u32>, TextError> {
        control_tokens::encode_inside(self, text, true)
    }

    /// The same of a text in which added tokens are such, as a chat template writes them.
    ///
    /// # Errors
    /// As `encode`.
    pub fn encode_special(&self, text: &str) -> Result<Vec<u32>, TextError> {
        control_tokens::encode_inside(self, text, false)
    }

    pub(super) fn added_tokens(&self) -> &BTreeMap<String, u32> {
        &self.added_tokens
    }

    pub(super) fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special_tokens
    }

    pub(super) fn is_continuation_byte(&self, id: u32) -> bool {
        self.continuation_byte_ids.contains(&id)
    }

    pub(super) fn newline_ids(&self) -> &[u32] {
        &self.newline_ids
    }
}

/// An added token that got another id than its own.
fn misnumbered<'a>(
    inner: &PipelineTokenizer,
    added_tokens: &'a BTreeMap<String, u32>,
) -> Option<&'a str> {
    let vocabulary = inner.get_added_vocabulary();
    let wrong =
        |(text, id): &(&String, &u32)| vocabulary.token_to_id(text).is_some_and(|g| g != **id);
    added_tokens.iter().find(wrong).map(|(text, _)| text.as_str())
}

#[cfg(test)]
pub(super) mod tests;
