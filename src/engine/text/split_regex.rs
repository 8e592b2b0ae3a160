//! Loads a tokenizer whose pre-tokenizer splits on a regex that tokenizers 1.0.0-rc.3 has no
//! hand-written splitter for (BLOOM, Falcon, DeepSeek-Coder, Qwen 3.5 ...).
//!
//! rc.3 can run such a `Split` on fancy-regex, but its JSON reader never compiles the pattern, and
//! the tokenizer then refuses every text. So the pre-tokenizer is compiled here and the tokenizer
//! put together again from its parts. GPT-2, Llama 3, Qwen 2/3, o200k, Tekken and DeepSeek 3 do not
//! need it.

use serde_json::{Value, json};
use tokenizers::models::bpe::PipelineBPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{
    Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Prepend, Replace, Strip, StripAccents,
};
use tokenizers::pipeline::{
    PipelineModel, PipelineNormalizer, PipelinePostProcessor, PipelinePreTokenizer,
    PipelineTokenizer,
};
use tokenizers::pre_tokenizers::sequence::PipelineSequence;
use tokenizers::pre_tokenizers::split::{Search, Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use vllm_batch_base::files::quoted;

use super::regex_guard::RegexGuard;
use super::tokenizer_json::TokenizerJson;

/// A tokenizer from a canonical `tokenizer.json`.
pub(super) fn load(json: &TokenizerJson<'_>) -> Result<PipelineTokenizer, String> {
    let text = serde_json::to_string(json).map_err(|error| error.to_string())?;
    let tokenizer = tokenizers::from_json(&text).map_err(|error| {
        let message = named(&error.to_string());
        // The crate calls every model that it does not know `unknown`.
        match json.value["model"]["type"].as_str() {
            Some(ty) => {
                message.replace("the `unknown` model", &format!("the {} model", quoted(ty)))
            }
            None => message,
        }
    })?;
    match compile(tokenizer.get_pre_tokenizer())? {
        None => Ok(tokenizer),
        Some(pre_tokenizer) => rebuild(&tokenizer, pre_tokenizer, &json.value["normalizer"]),
    }
}

/// A pre-tokenizer that only cuts, from its part of a `tokenizer.json`.
///
/// # Errors
/// It is damaged, or of a kind that is not supported.
pub(super) fn cutter(part: &Value) -> Result<PipelinePreTokenizer, String> {
    let model = json!({"type": "BPE", "vocab": {"a": 0}, "merges": [], "byte_level": false});
    let file = json!({"version": "2.0", "added_tokens": [], "pre_tokenizer": part, "model": model});
    let tokenizer = tokenizers::from_json(&file.to_string());
    let tokenizer = tokenizer.map_err(|error| named(&error.to_string()))?;
    let found = tokenizer.get_pre_tokenizer();
    Ok(compile(found)?.unwrap_or_else(|| found.clone()))
}

/// What the crate says of a part that it does not read, without its advice to programmers.
fn named(message: &str) -> String {
    let part = |prefix: &str, end: &str| {
        let rest = message.strip_prefix(prefix)?;
        Some(rest.split_once(end)?.0)
    };
    let part = part("the slim JSON reader does not support ", ". Convert")
        .or_else(|| part("the slim JSON reader cannot read ", ":"))
        .or_else(|| part("reading ", " needs the `"));
    part.map_or_else(|| message.to_owned(), |part| format!("{part} is not supported"))
}

/// A guard for the regexes that the tokenizer runs by fancy-regex, with further pre-tokenizers.
pub(super) fn guard<'a>(
    tokenizer: &'a PipelineTokenizer,
    further: impl Iterator<Item = &'a PipelinePreTokenizer>,
    json: &Value,
) -> Result<RegexGuard, String> {
    let mut guard = RegexGuard::default();
    let mut normalizers = Vec::new();
    // Of others than these the guard sees the text as it was: none of them makes long runs.
    let is_known = read_normalizer(&json["normalizer"], &mut normalizers).is_ok();
    let patterns = regexes_of_normalizers(&json["normalizer"]);
    for normalizer in normalizers.into_iter().filter(|_| is_known) {
        if let PipelineNormalizer::Replace(replace) = &normalizer
            && let ReplacePattern::Regex(pattern) = replace.pattern()
        {
            guard.push_regex(pattern)?;
        }
        guard.push_normalizer(normalizer);
    }
    if !is_known {
        patterns.iter().try_for_each(|pattern| guard.push_regex(pattern))?;
    }
    for cutter in further.chain([tokenizer.get_pre_tokenizer()]) {
        push_splits(cutter, &mut guard)?;
    }
    Ok(guard)
}

fn regexes_of_normalizers(json: &Value) -> Vec<&str> {
    let members = json["normalizers"].as_array().into_iter().flatten();
    let own = json["pattern"]["Regex"].as_str();
    own.into_iter().chain(members.flat_map(regexes_of_normalizers)).collect()
}

fn push_splits(pre_tokenizer: &PipelinePreTokenizer, guard: &mut RegexGuard) -> Result<(), String> {
    match pre_tokenizer {
        PipelinePreTokenizer::Split(split) => match (&split.search, &split.pattern) {
            (Search::Regex(_), SplitPattern::Regex(pattern)) if !is_native(split) => {
                guard.push_regex(pattern)
            }
            _ => Ok(()),
        },
        PipelinePreTokenizer::Sequence(sequence) if !sequence.is_deepseek() => {
            let mut members = sequence.pre_tokenizers().iter();
            members.try_for_each(|member| push_splits(member, guard))
        }
        _ => Ok(()),
    }
}

/// The pre-tokenizer with its regexes compiled; None if it needs none.
fn compile(pre_tokenizer: &PipelinePreTokenizer) -> Result<Option<PipelinePreTokenizer>, String> {
    match pre_tokenizer {
        PipelinePreTokenizer::Split(split) if needs_regex(split) => {
            Split::new(split.pattern.clone(), split.behavior, split.invert)
                .map(|split| Some(PipelinePreTokenizer::Split(split)))
                .map_err(|error| format!("pattern {:?}: {error}", split.pattern))
        }
        PipelinePreTokenizer::Sequence(sequence) if !sequence.is_deepseek() => {
            let mut compiled = false;
            let mut members = Vec::new();
            for member in sequence.pre_tokenizers() {
                // Cloning a Split compiles its pattern, and panics where that fails: ask first.
                let new = compile(member)?;
                compiled |= new.is_some();
                members.push(new.unwrap_or_else(|| member.clone()));
            }
            Ok(compiled.then(|| PipelinePreTokenizer::Sequence(PipelineSequence::new(members))))
        }
        _ => Ok(None),
    }
}

fn needs_regex(split: &Split) -> bool {
    matches!(split.search, Search::Unavailable) && !is_native(split)
}

/// Whether a hand-written splitter runs in place of the regex.
fn is_native(split: &Split) -> bool {
    let isolates = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
    split.grammar().is_some() && isolates
}

fn rebuild(
    tokenizer: &PipelineTokenizer,
    pre_tokenizer: PipelinePreTokenizer,
    normalizer: &Value,
) -> Result<PipelineTokenizer, String> {
    let model = match tokenizer.get_model() {
        PipelineModel::BPE(bpe) => bpe
            .to_config()
            .and_then(PipelineBPE::from_config)
            .map(PipelineModel::BPE)
            .map_err(|error| error.to_string())?,
        PipelineModel::Unigram(unigram) => PipelineModel::Unigram(unigram.clone()),
        PipelineModel::WordLevel(words) => PipelineModel::WordLevel(words.clone()),
        PipelineModel::WordPiece(_) => {
            return Err("a WordPiece model behind a regex Split is not supported".to_string());
        }
    };
    let mut normalizers = Vec::new();
    read_normalizer(normalizer, &mut normalizers)?;
    let post_processor = tokenizer.get_post_processor();
    Ok(PipelineTokenizer::from_parts(
        tokenizer.get_added_vocabulary().clone(),
        normalizers,
        pre_tokenizer,
        model,
        PipelinePostProcessor {
            single: post_processor.single.clone(),
            pair: post_processor.pair.clone(),
        },
        tokenizer.get_decoder().cloned(),
        tokenizer.get_role_to_token().clone(),
        None,
        None,
    ))
}

/// The normalizers that come with byte-level BPE. rc.3 has them, but gives nobody its own.
fn read_normalizer(json: &Value, out: &mut Vec<PipelineNormalizer>) -> Result<(), String> {
    if json.is_null() {
        return Ok(());
    }
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_string();
    let flag = |name: &str| json[name].as_bool().unwrap_or(false);
    out.push(match json["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let members = json["normalizers"].as_array().into_iter().flatten();
            return members.into_iter().try_for_each(|member| read_normalizer(member, out));
        }
        "NFC" => PipelineNormalizer::NFC(NFC),
        "NFD" => PipelineNormalizer::NFD(NFD),
        "NFKC" => PipelineNormalizer::NFKC(NFKC),
        "NFKD" => PipelineNormalizer::NFKD(NFKD),
        "Nmt" => PipelineNormalizer::Nmt(Nmt),
        "Lowercase" => PipelineNormalizer::Lowercase(Lowercase),
        "StripAccents" => PipelineNormalizer::StripAccents(StripAccents::new()),
        "Prepend" => PipelineNormalizer::Prepend(Prepend::new(text("prepend"))),
        "Strip" => PipelineNormalizer::Strip(Strip::new(flag("strip_left"), flag("strip_right"))),
        "Replace" => {
            let pattern = match (json["pattern"]["String"].as_str(), &json["pattern"]["Regex"]) {
                (Some(text), _) => ReplacePattern::String(text.to_string()),
                (None, regex) => ReplacePattern::Regex(
                    regex.as_str().ok_or("a Replace normalizer has no pattern")?.to_string(),
                ),
            };
            let replace = Replace::new(pattern, text("content"));
            PipelineNormalizer::Replace(replace.map_err(|error| error.to_string())?)
        }
        other => return Err(format!("normalizer {other:?} before a regex Split is not supported")),
    });
    Ok(())
}
