//! How a GGUF file's byte-level texts are cut into words: the names in `tokenizer.ggml.pre`, and
//! what the original tokenizers of these names do.
//!
//! Source: llama.cpp's `src/llama-vocab.cpp`, whose comments have the original regexes where its
//! own differ.

use serde_json::{Value, json};

use crate::engine::files::quoted;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    cut: Cut,
    is_nfc: bool,
    /// A word that is a token is that token, whatever merges say.
    pub ignores_merges: bool,
    /// Texts begin with BOS where the file does not say.
    pub adds_bos: bool,
}

/// What texts are cut by.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// GPT-2's regex.
    Gpt2,
    /// Single digits, then GPT-2's regex.
    Digits,
    /// Regexes, one after the other.
    Regexes(&'static [&'static str]),
}

const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// What Qwen 2's texts are cut into.
pub(super) const QWEN_2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The same with marks in words (Qwen 3.5).
const QWEN_3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}",
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const GPT_4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const DEEPSEEK_3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        "|[^\r\n",
        r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
        "[\r\n]*",
        r"|\s*",
        "[\r\n]+",
        r"|\s+(?!\S)|\s+"
    ),
];

const DEEPSEEK_CODER: [&str; 5] =
    ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u{800}-一가-\u{d7ff}]+", r"\p{N}"];

const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

const PLAIN: PreTokenizer =
    PreTokenizer { cut: Cut::Gpt2, is_nfc: false, ignores_merges: false, adds_bos: false };

const NFC: PreTokenizer = PreTokenizer { is_nfc: true, ..PLAIN };

const fn digits(of: PreTokenizer) -> PreTokenizer {
    PreTokenizer { cut: Cut::Digits, ..of }
}

const fn regexes(patterns: &'static [&'static str], of: PreTokenizer) -> PreTokenizer {
    PreTokenizer { cut: Cut::Regexes(patterns), ..of }
}

const WHOLE_WORDS: PreTokenizer = PreTokenizer { ignores_merges: true, ..PLAIN };

const WHOLE_WORDS_AND_BOS: PreTokenizer = PreTokenizer { adds_bos: true, ..WHOLE_WORDS };

/// By name.
const KNOWN: &[(&[&str], PreTokenizer)] = &[
    (&["gpt-2", "phi-2", "exaone4", "jais", "gigachat", "trillion", "granite-docling"], PLAIN),
    // GPT-NeoX's tokenizer.
    (&["mpt", "olmo"], NFC),
    (&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"], digits(PLAIN)),
    (&["command-r"], digits(NFC)),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        regexes(&[LLAMA_3], WHOLE_WORDS_AND_BOS),
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], regexes(&[LLAMA_3], PLAIN)),
    (&["glm4"], regexes(&[LLAMA_3], WHOLE_WORDS)),
    (&["qwen2"], regexes(&[QWEN_2], NFC)),
    (&["qwen35"], regexes(&[QWEN_3_5], NFC)),
    (&["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"], regexes(&[QWEN_2], PLAIN)),
    (&["seed-coder"], regexes(&[SEED_CODER], PLAIN)),
    (&["tekken"], regexes(&[TEKKEN], WHOLE_WORDS_AND_BOS)),
    (&["gpt-4o", "llama4", "kanana2"], regexes(&[GPT_4O], PLAIN)),
    (&["deepseek-v3", "hunyuan-dense"], regexes(&DEEPSEEK_3, PLAIN)),
    (&["deepseek-coder"], regexes(&DEEPSEEK_CODER, PLAIN)),
    (&["bloom", "gpt3-finnish", "poro-chat"], regexes(&[BLOOM], PLAIN)),
];

impl PreTokenizer {
    /// The one of a name.
    ///
    /// # Errors
    /// It has no name, or none that is known.
    pub fn of(name: Option<&str>) -> Result<Self, String> {
        let name = name.unwrap_or("default");
        let known = KNOWN.iter().find(|(names, _)| names.contains(&name));
        known.map(|(_, pre)| *pre).ok_or_else(|| {
            format!("how it cuts texts, {}, is not known", quoted(&format!("pre {name}")))
        })
    }

    /// All names.
    #[cfg(test)]
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().flat_map(|(names, _)| names.iter().copied())
    }

    /// The `normalizer` of a tokenizer.json.
    pub fn normalizer(&self) -> Value {
        if self.is_nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// Its `pre_tokenizer`.
    pub fn json(&self) -> Value {
        let byte_level = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": use_regex})
        };
        let split = |pattern: &&str| {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": false})
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        let members = match self.cut {
            Cut::Gpt2 => return byte_level(true),
            Cut::Digits => vec![digits, byte_level(true)],
            Cut::Regexes(patterns) => {
                patterns.iter().map(split).chain([byte_level(false)]).collect()
            }
        };
        json!({"type": "Sequence", "pretokenizers": members})
    }
}
