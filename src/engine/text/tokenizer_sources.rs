//! From the files of a model folder without `tokenizer.json` to what that file would say:
//! `tokenizer.model`, or `vocab.json` with `merges.txt`, as transformers 5.23 converts them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::TextError;
use super::tokenizer_files::{MAX_TOKENIZER_BYTES, TokenizerConfig, read_json_of, save_pretrained};
use super::tokenizer_gguf_pre::QWEN_2;
use super::tokenizer_json::content;
use super::tokenizer_sentencepiece::{Piece, PieceKind, SentencePiece};
use vllm_batch_base::files;

pub(super) const SENTENCE_PIECE: &str = "tokenizer.model";
pub(super) const VOCAB: &str = "vocab.json";
pub(super) const MERGES: &str = "merges.txt";

/// Most steps that merges may take to be found in pieces.
const MAX_MERGE_STEPS: usize = 1 << 30;

/// Most merges that pieces may have, far more than those of published models.
const MAX_MERGES: usize = 1 << 22;

/// A tokenizer in another file than `tokenizer.json`.
#[derive(Debug)]
pub(super) enum Source {
    /// SentencePiece's `tokenizer.model`.
    SentencePiece(PathBuf),
    /// `vocab.json` with `merges.txt`.
    VocabAndMerges(PathBuf, PathBuf),
}

/// transformers' classes that say how such files become a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Gpt2,
    Qwen2,
    Llama,
    Gemma,
    /// No class of its own (`TokenizersBackend`).
    Plain,
}

impl Source {
    /// The source in a folder, if it has one.
    pub(crate) fn find(dir: &Path) -> Option<Self> {
        let [model, vocab, merges] = [SENTENCE_PIECE, VOCAB, MERGES].map(|name| dir.join(name));
        if model.is_file() {
            return Some(Self::SentencePiece(model));
        }
        (vocab.is_file() && merges.is_file()).then_some(Self::VocabAndMerges(vocab, merges))
    }

    /// The file that messages name.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::SentencePiece(path) | Self::VocabAndMerges(path, _) => path,
        }
    }

    /// What its `tokenizer.json` would say. Special tokens that its class names are put into
    /// `config`, where that has none.
    ///
    /// # Errors
    /// A file is damaged, or is of a class that is not supported.
    pub(crate) fn convert(
        &self,
        dir: &Path,
        config: &mut TokenizerConfig,
    ) -> Result<Value, TextError> {
        let class = Class::of(dir, self, config)?;
        match self {
            Self::SentencePiece(path) => {
                let error = |error: String| TextError::file(path, format!("{error}. {NOT_READ}"));
                let file = files::read(path, MAX_TOKENIZER_BYTES)
                    .map_err(|error| TextError::io(path, &error))?;
                let model = SentencePiece::parse(&file).map_err(error)?;
                of_sentence_piece(model, class, config)
                    .map_err(|error| TextError::file(path, error))
            }
            Self::VocabAndMerges(vocab, merges) => {
                let vocab = read_json_of(vocab, MAX_TOKENIZER_BYTES)?.unwrap_or_default();
                of_vocab_and_merges(vocab, read_merges(merges)?, class, config)
                    .map_err(|error| TextError::file(self.path(), error))
            }
        }
    }
}

const NOT_READ: &str = "It is read as a SentencePiece model; other kinds are not supported";

impl Class {
    /// As `AutoTokenizer` chooses: by `tokenizer_class`, else by the model's type.
    fn of(dir: &Path, source: &Source, config: &TokenizerConfig) -> Result<Self, TextError> {
        let model = read_json_of(&dir.join("config.json"), files::MAX_CONFIG_BYTES)?;
        let model = model.unwrap_or_default();
        let of_type = match model["model_type"].as_str().unwrap_or_default() {
            "gpt2" | "opt" | "gpt_neo" | "codegen" | "starcoder2" => Some("GPT2Tokenizer"),
            "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => Some("Qwen2Tokenizer"),
            "gemma" | "gemma2" | "gemma3" | "gemma3_text" => Some("GemmaTokenizer"),
            "mistral" | "mixtral" | "phi3" => Some("TokenizersBackend"),
            _ => None,
        };
        let named = [&config.value["tokenizer_class"], &model["tokenizer_class"]];
        let named = named.into_iter().find_map(|name| name.as_str());
        let named = named.map(|name| name.strip_suffix("Fast").unwrap_or(name));
        // Models of these types name classes that do not fit; transformers goes by the type.
        let name = match of_type {
            Some(of_type @ ("TokenizersBackend" | "Qwen2Tokenizer")) => of_type,
            _ => named.or(of_type).unwrap_or_default(),
        };
        let class = match name {
            "GPT2Tokenizer" => Self::Gpt2,
            "Qwen2Tokenizer" => Self::Qwen2,
            "LlamaTokenizer" => Self::Llama,
            "GemmaTokenizer" => Self::Gemma,
            "PreTrainedTokenizer" | "TokenizersBackend" => Self::Plain,
            // What such files are when nothing says more.
            "" => match source {
                Source::SentencePiece(_) => Self::Plain,
                Source::VocabAndMerges(..) => Self::Gpt2,
            },
            _ => return Err(unsupported(dir, source, name)),
        };
        let fits = match source {
            Source::SentencePiece(_) => !matches!(class, Self::Gpt2 | Self::Qwen2),
            Source::VocabAndMerges(..) => matches!(class, Self::Gpt2 | Self::Qwen2),
        };
        match fits {
            true => Ok(class),
            false => Err(unsupported(dir, source, name)),
        }
    }

    /// The special tokens that its constructor has.
    fn special_tokens(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Gpt2 => &[
                ("unk_token", "<|endoftext|>"),
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
            ],
            Self::Qwen2 => &[
                ("unk_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::Llama => &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
            Self::Gemma => &[
                ("unk_token", "<unk>"),
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::Plain => &[],
        }
    }
}

fn unsupported(dir: &Path, source: &Source, class: &str) -> TextError {
    TextError::file(
        source.path(),
        format!(
            "the tokenizer class {class:?} is not supported without tokenizer.json. {}",
            save_pretrained(dir)
        ),
    )
}

fn read_merges(path: &Path) -> Result<Vec<Value>, TextError> {
    let file = files::read(path, MAX_TOKENIZER_BYTES).map_err(|e| TextError::io(path, &e))?;
    let text = String::from_utf8(file).map_err(|_| TextError::file(path, "it is not UTF-8"))?;
    let mut merges = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            _ if line.starts_with("#version") => {}
            [left, right] => merges.push(json!([left, right])),
            _ => {
                let error = format!("line {}: a merge is two tokens and a space", index + 1);
                return Err(TextError::file(path, error));
            }
        }
    }
    Ok(merges)
}

fn of_vocab_and_merges(
    vocab: Value,
    merges: Vec<Value>,
    class: Class,
    config: &mut TokenizerConfig,
) -> Result<Value, String> {
    config.set_defaults(class.special_tokens());
    let space = config.flag("add_prefix_space");
    let byte_level = |regex: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true,
            "use_regex": regex})
    };
    let (normalizer, pre_tokenizer) = match class {
        Class::Qwen2 => {
            let split = json!({"type": "Split", "pattern": {"Regex": QWEN_2},
                "behavior": "Isolated", "invert": false});
            let members = json!([split, byte_level(false)]);
            (json!({"type": "NFC"}), json!({"type": "Sequence", "pretokenizers": members}))
        }
        _ => (Value::Null, byte_level(true)),
    };
    if vocab.as_object().is_none_or(|vocab| vocab.values().any(|id| !id.is_u64())) {
        return Err("an id in it is not a number".to_owned());
    }
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges});
    Ok(file(model, normalizer, pre_tokenizer, json!({"type": "ByteLevel"}), Vec::new()))
}

/// A tokenizer.json.
pub(super) fn file(
    model: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    added_tokens: Vec<Value>,
) -> Value {
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": decoder, "model": model})
}

fn of_sentence_piece(
    model: SentencePiece,
    class: Class,
    config: &mut TokenizerConfig,
) -> Result<Value, String> {
    config.set_defaults(class.special_tokens());
    if class == Class::Plain {
        for (name, id, piece) in [
            ("bos_token", model.bos_id, &model.bos_piece),
            ("eos_token", model.eos_id, &model.eos_piece),
            ("unk_token", model.unk_id, &model.unk_piece),
        ] {
            if id >= 0 {
                config.set_defaults(&[(name, piece)]);
            }
        }
    }
    let is_bpe = class != Class::Plain || !model.is_unigram;
    let has_bytes = class != Class::Plain || model.byte_fallback;
    let mut decoders = vec![replace("▁", " ")];
    if has_bytes {
        decoders.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    }
    let (normalizer, pre_tokenizer) = match class {
        Class::Llama => {
            let space = config.value["add_prefix_space"].as_bool().unwrap_or(true);
            if space {
                decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            }
            let scheme = match (space, config.flag("legacy")) {
                (true, true) => "always",
                (true, false) => "first",
                (false, _) => "never",
            };
            let space = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                "split": false});
            (Value::Null, space)
        }
        Class::Gemma => {
            let split = json!({"type": "Split", "pattern": {"String": " "},
                "behavior": "MergedWithPrevious", "invert": false});
            (replace(" ", "▁"), split)
        }
        _ => {
            let charsmap = json!({"type": "Precompiled",
                "precompiled_charsmap": base64(&model.charsmap)});
            let mut members = vec![charsmap, replace(" ", "▁")];
            if model.charsmap.is_empty() {
                members.remove(0);
            }
            (json!({"type": "Sequence", "normalizers": members}), Value::Null)
        }
    };
    let added = added_tokens(&model);
    let unk_token = match class {
        Class::Llama => Value::Null,
        Class::Gemma => content(&config.value["unk_token"]).into(),
        _ => model.unk_piece.clone().into(),
    };
    let model = match is_bpe {
        true => bpe(&model, config, class, unk_token, has_bytes)?,
        false => unigram(&model, has_bytes),
    };
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    Ok(file(model, normalizer, pre_tokenizer, decoder, added))
}

/// A normalizer or decoder.
pub(super) fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// Control tokens are special ones; what a user defined is only never cut.
fn added_tokens(model: &SentencePiece) -> Vec<Value> {
    let added = model.pieces.iter().enumerate().filter(|(_, piece)| piece.kind != PieceKind::Other);
    let token = |(id, piece): (usize, &Piece)| {
        json!({"id": id, "content": piece.text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": piece.kind == PieceKind::Control})
    };
    added.map(token).collect()
}

fn unigram(model: &SentencePiece, byte_fallback: bool) -> Value {
    let pieces = model.pieces.iter();
    let vocab: Vec<Value> =
        pieces.map(|piece| json!([piece.text, f64::from(piece.score)])).collect();
    json!({"type": "Unigram", "unk_id": model.unk_id, "vocab": vocab,
        "byte_fallback": byte_fallback})
}

fn bpe(
    model: &SentencePiece,
    config: &TokenizerConfig,
    class: Class,
    unk_token: Value,
    byte_fallback: bool,
) -> Result<Value, String> {
    // Of two pieces of one text the last counts.
    let pieces = model.pieces.iter().enumerate();
    let mut vocab: HashMap<String, usize> = HashMap::new();
    let mut order = Vec::new();
    for (id, piece) in pieces {
        if vocab.insert(piece.text.clone(), id).is_none() {
            order.push(piece.text.clone());
        }
    }
    let merges = json!(merges_of(&order, &vocab, None)?);
    let mut ids: Map<String, Value> = order
        .into_iter()
        .map(|p| {
            let id = vocab[&p];
            (p, id.into())
        })
        .collect();
    // Places for tokens that tokenizer_config.json puts there.
    let decoder = config.value["added_tokens_decoder"].as_object().into_iter().flatten();
    for (id, token) in decoder.filter(|_| class == Class::Plain) {
        let piece = id.parse().ok().and_then(|id: usize| model.pieces.get(id));
        if let (Some(piece), Some(token)) = (piece, content(token))
            && !ids.contains_key(&token)
            && let Some(id) = ids.remove(&piece.text)
        {
            ids.insert(token, id);
        }
    }
    Ok(json!({"type": "BPE", "dropout": null, "unk_token": unk_token,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
        "byte_fallback": byte_fallback, "ignore_merges": false, "vocab": ids, "merges": merges}))
}

/// All ways to make a piece of two others, as transformers' `generate_merges`: in the order of the
/// pieces' ids, then of the lengths of the first parts; with scores in the opposite order of both,
/// of scores in place of ids.
pub(super) fn merges_of<'a>(
    order: &'a [String],
    vocab: &HashMap<String, usize>,
    scores: Option<&[f32]>,
) -> Result<Vec<(&'a str, &'a str)>, String> {
    let steps = order.iter().map(|piece| piece.len().saturating_mul(piece.len()));
    if steps.fold(0, usize::saturating_add) > MAX_MERGE_STEPS {
        return Err("its pieces are too long".to_owned());
    }
    let mut merges = Vec::new();
    for piece in order {
        let id = vocab[piece];
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(left_id), Some(right_id)) = (vocab.get(left), vocab.get(right)) {
                let length = left.chars().count();
                merges.push((id, length, (*left_id, *right_id), left, right));
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(format!("its pieces have more than {MAX_MERGES} merges"));
        }
    }
    match scores {
        None => merges.sort(),
        Some(scores) => merges.sort_by(|a, b| {
            let by_score = scores[b.0].total_cmp(&scores[a.0]);
            let length = |right: &str| right.chars().count();
            by_score
                .then(b.1.cmp(&a.1))
                .then_with(|| length(b.4).cmp(&length(a.4)))
                .then((a.0, a.2).cmp(&(b.0, b.2)))
        }),
    }
    Ok(merges.into_iter().map(|(.., left, right)| (left, right)).collect())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            match digit <= three.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize % 64])),
                false => text.push('='),
            }
        }
    }
    text
}
