//! From the metadata of a GGUF file to its tokenizer and its chat template.

use std::path::Path;

use vllm_batch_checkpoint::gguf::GgufModel;
use vllm_batch_checkpoint::weights::gguf::{Metadata, Texts};
use vllm_batch_text::{ChatTemplate, GgufTokenizer, TextError, Tokenizer};

/// Names that transformers has for tokens, and llama.cpp's.
const SPECIAL: [(&str, &str); 7] = [
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("sep_token", "seperator"),
    ("pad_token", "padding"),
    ("cls_token", "cls"),
    ("mask_token", "mask"),
];

/// The tokenizer of a file.
///
/// # Errors
/// The file has none, or one that is not supported.
pub(crate) fn tokenizer(file: &GgufModel) -> Result<Tokenizer, TextError> {
    let path = file.path();
    let gguf = of_metadata(&file.described().metadata).map_err(|text| bad(path, &text))?;
    Tokenizer::from_gguf(&gguf, path)
}

/// The chat template of a file, if it has one.
///
/// # Errors
/// It does not compile.
pub(crate) fn chat_template(
    file: &GgufModel,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, TextError> {
    let (path, metadata) = (file.path(), &file.described().metadata);
    let text = |key: &str| metadata.text(key).map_err(|text| bad(path, &text));
    let Some(default) = text("tokenizer.chat_template")? else { return Ok(None) };
    let tool_use = text("tokenizer.chat_template.tool_use")?;
    ChatTemplate::from_gguf(default, tool_use, tokenizer, path).map(Some)
}

/// Whether a file has a chat template, be it one that does not compile.
pub(super) fn has_chat_template(file: &GgufModel) -> bool {
    file.described().metadata.text("tokenizer.chat_template") != Ok(None)
}

fn bad(path: &Path, text: &str) -> TextError {
    TextError::Model(format!("{}: {text}", path.display()))
}

fn of_metadata(metadata: &Metadata) -> Result<GgufTokenizer<'_>, String> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let model =
        metadata.text(&key("model"))?.ok_or("it has no tokenizer; give `settings.tokenizer`")?;
    let texts = |name: &str| {
        let texts = metadata.texts(&key(name))?;
        Ok::<_, String>(texts.map_or(Vec::new(), |texts: &Texts| texts.iter().collect()))
    };
    let scores = metadata.numbers(&key("scores"))?;
    let scores = scores.map(|scores| scores.iter().map(|score| score.as_float()));
    let scores: Option<Vec<f64>> = scores.into_iter().flatten().collect();
    let kinds = metadata.numbers(&key("token_type"))?;
    let kinds = kinds.map(|kinds| kinds.iter().map(|kind| kind.as_unsigned()));
    let kinds: Option<Vec<u64>> = kinds.into_iter().flatten().collect();
    let mut special = Vec::new();
    for (name, ggml_name) in SPECIAL {
        let id = metadata.unsigned(&key(&format!("{ggml_name}_token_id")))?;
        special.extend(id.map(|id| (name, id)));
    }
    let arch = metadata.text("general.architecture")?.unwrap_or_default();
    Ok(GgufTokenizer {
        model,
        pre: metadata.text(&key("pre"))?,
        is_gemma: arch.starts_with("gemma"),
        tokens: texts("tokens")?,
        scores: scores.ok_or("its scores are no floats")?.iter().map(|s| *s as f32).collect(),
        kinds: kinds.ok_or("its kinds of tokens are no integers")?,
        merges: texts("merges")?,
        special,
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_eos: metadata.bool(&key("add_eos_token"))?,
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
    })
}
