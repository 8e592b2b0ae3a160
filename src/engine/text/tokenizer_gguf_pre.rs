//! Words of a GGUF file's byte-level texts: the names in `tokenizer.ggml.pre`, and
//! what the original tokenizers of these names do.
//!
//! Source: llama.cpp's `src/llama-vocab.cpp`, whose comments have the original regexes where its
//! own differ.

use serde_json::{Value, json};

use super::tokenizer_words::GPT_2;
use vllm_batch_base::files::quoted;

/// Pre-tokenizer behind a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    cut: Cut,
    is_nfc: bool,
    /// A word that is a token is that token, whatever merges say.
    pub ignores_merges: bool,
    /// Texts begin with BOS where the file does not say.
    pub adds_bos: bool,
}

/// Rule that cuts texts.
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

/// Pattern of Qwen 2's words.
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

/// Letters of scripts with two cases, as DeepSeek's first models list them.
const CASED: &str = concat!(
    r"\s?[",
    r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}",
    r"\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}",
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}",
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}",
    r"]+"
);

const DEEPSEEK_LLM: [&str; 6] = [
    "[\r\n]",
    CASED,
    "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
    r"\s+$",
    "[一-龥\u{800}-一가-\u{d7ff}]+",
    r"\p{N}+",
];

const SPARK: [&str; 4] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
    ),
    r"\p{N}",
];

const YOUTU: [&str; 2] = [
    concat!(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿\u{fe30}-\u{fe4f}]+|[ㄅ-ㄯ]+",
        "|[一-龥\u{3040}-ゟ゠-ヿ]+"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

const FALCON: [&str; 3] = [r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"];

const CHAMELEON: [&str; 6] = [
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT_2,
];

const JAIS_2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)",
    r"|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
);

/// Digits in groups of three from the right.
const TINY_AYA: [&str; 2] = [r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O];

const SUPERBPE: [&str; 2] = [r"\p{N}+", r"(?=(\d{3})+(?!\d))"];

const BAILING_MOE: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
);

const KIMI_K2: &str = concat!(
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 2's without contractions, so that Turkish suffixes stay at their words.
const UFAKZEKA: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s+(?!\S)|\s+"
);

/// Digits in groups of three from the right; words of scripts without spaces; the rest.
const AFMOE: [&str; 4] = [
    r"\p{N}+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*$)",
    concat!(
        r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}",
        r"\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}",
        r"\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}",
        r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
    ),
    DEEPSEEK_3[2],
];

const LAGUNA: [&str; 2] = [r"[^\n]+|[\n]+", QWEN_2];

const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);

const MINICPM_5: [&str; 2] = [
    r"\p{N}{1,3}",
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

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
    (&["a.x-4.0", "jina-de", "jina-es", "jina-v2-de", "jina-v2-es", "mellum"], PLAIN),
    // GPT-NeoX's tokenizer.
    (&["mpt", "olmo", "modern-bert"], NFC),
    (&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"], digits(PLAIN)),
    (&["mellum2"], digits(PLAIN)),
    (&["command-r"], digits(NFC)),
    (&["falcon"], regexes(&FALCON, PLAIN)),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "falcon-h1", "midm-2.0", "lfm2"],
        regexes(&[LLAMA_3], WHOLE_WORDS_AND_BOS),
    ),
    (&["jina-v5-nano"], regexes(&[LLAMA_3], WHOLE_WORDS_AND_BOS)),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], regexes(&[LLAMA_3], PLAIN)),
    (&["glm4"], regexes(&[LLAMA_3], WHOLE_WORDS)),
    (&["jais-2"], regexes(&[JAIS_2], PLAIN)),
    (&["minicpm5"], regexes(&MINICPM_5, WHOLE_WORDS)),
    (&["qwen2", "kormo", "f2llmv2"], regexes(&[QWEN_2], NFC)),
    (&["qwen35"], regexes(&[QWEN_3_5], NFC)),
    (&["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"], regexes(&[QWEN_2], PLAIN)),
    (&["grok-2", "solar-open"], regexes(&[QWEN_2], PLAIN)),
    (&["laguna"], regexes(&LAGUNA, PLAIN)),
    (&["ufakzeka"], regexes(&[UFAKZEKA], PLAIN)),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], regexes(&[BAILING_MOE], PLAIN)),
    (&["exaone-moe"], regexes(&[EXAONE_MOE], PLAIN)),
    (&["seed-coder"], regexes(&[SEED_CODER], PLAIN)),
    (&["tekken"], regexes(&[TEKKEN], WHOLE_WORDS_AND_BOS)),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], regexes(&[GPT_4O], PLAIN)),
    (&["granite-embed-multi-97m"], regexes(&[GPT_4O], WHOLE_WORDS)),
    (&["tiny_aya", "cohere2moe"], regexes(&TINY_AYA, PLAIN)),
    (&["kimi-k2"], regexes(&[KIMI_K2], PLAIN)),
    (&["youtu"], regexes(&YOUTU, WHOLE_WORDS)),
    (&["superbpe"], regexes(&SUPERBPE, PLAIN)),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], regexes(&DEEPSEEK_3, PLAIN)),
    (&["spark2_5"], regexes(&SPARK, PLAIN)),
    (&["afmoe"], regexes(&AFMOE, PLAIN)),
    (&["deepseek-coder"], regexes(&DEEPSEEK_CODER, PLAIN)),
    (&["deepseek-llm"], regexes(&DEEPSEEK_LLM, PLAIN)),
    (&["chameleon"], regexes(&CHAMELEON, PreTokenizer { adds_bos: true, ..PLAIN })),
    (&["bloom", "gpt3-finnish", "poro-chat"], regexes(&[BLOOM], PLAIN)),
    (&["viking"], regexes(&[BLOOM, r"\p{N}"], PLAIN)),
];

/// llama.cpp's other names: of texts that are no bytes, or that end with a separator.
const REFUSED: &[&str] = &[
    "default",
    "gemma4",
    "granite-embed-multi-311m",
    "jina-v1-en",
    "jina-v2-code",
    "roberta-bpe",
    "sarvam-moe",
    "whitespace",
];

impl PreTokenizer {
    /// The one of a name.
    ///
    /// # Errors
    /// It has no name, or none that is known.
    pub(crate) fn of(name: Option<&str>) -> Result<Self, String> {
        let name = name.unwrap_or("default");
        let known = KNOWN.iter().find(|(names, _)| names.contains(&name));
        known.map(|(_, pre)| *pre).ok_or_else(|| {
            let pre = quoted(&format!("pre {name}"));
            let is = if REFUSED.contains(&name) { "not supported" } else { "not known" };
            let names = Self::names().collect::<Vec<_>>().join(", ");
            format!("how it cuts texts, {pre}, is {is}; these are supported: {names}")
        })
    }

    /// All names that are supported.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().flat_map(|(names, _)| names.iter().copied())
    }

    /// The `normalizer` of a tokenizer.json.
    pub(crate) fn normalizer(&self) -> Value {
        if self.is_nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// Content of `pre_tokenizer`.
    pub(crate) fn json(&self) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of llama.cpp's `src/llama-vocab.cpp` at 00ad355e, in its order.
    const LLAMA_CPPS: &str = "\
        default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 \
        jina-v5-nano deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt \
        starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum \
        modern-bert jais-2 gemma4 granite-embed-multi-311m sarvam-moe jina-v1-en \
        jina-v2-code roberta-bpe whitespace refact command-r qwen2 deepseek-r1-qwen kormo \
        f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe poro-chat glm4 chatglm-bpe viking jais \
        tekken smollm codeshell bloom gpt3-finnish exaone exaone4 exaone-moe chameleon \
        minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya \
        cohere2moe superbpe trillion granite-docling bailingmoe bailingmoe2 llada-moe \
        seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka grok-2 afmoe \
        laguna minimax-m2 solar-open mellum2";

    #[test]
    fn every_name_of_llama_cpp_is_supported_or_refused_with_the_list() {
        for name in LLAMA_CPPS.split_whitespace() {
            match PreTokenizer::of(Some(name)) {
                Ok(_) => assert!(!REFUSED.contains(&name), "{name}"),
                Err(error) => {
                    assert!(REFUSED.contains(&name), "{error}");
                    assert!(error.contains("is not supported; these are supported: gpt-2, "));
                }
            }
        }
        let count = LLAMA_CPPS.split_whitespace().count();
        assert_eq!(count, PreTokenizer::names().count() + REFUSED.len(), "one place for each name");
        assert!(PreTokenizer::of(Some("of-tomorrow")).unwrap_err().contains("is not known"));
    }
}
