//! Calls of tools in an answer's content: one function for each form in which models write them.
//!
//! A form reads all calls of a text or none: a text with a call that is cut or is not JSON stays
//! as it is. Most drop text after a call, as in vLLM.

mod deepseek;
mod gemma;
mod glm;
mod granite;
mod hermes;
mod invoke;
mod json;
mod kimi;
mod listed;
mod llama;
mod mistral;
mod object;
mod python_literal;
mod pythonic;
mod qwen_xml;
mod schema;
mod xlam;

use super::{Tool, ToolCall};

pub(super) use json::{first_value, is_json, named_calls};

/// A form of calls.
#[derive(Debug)]
pub(super) struct CallFormat {
    /// Names in `--tool-call-parser`, vLLM's. The first goes into the fingerprint.
    pub(super) names: &'static [&'static str],
    /// Models have its tags as special tokens, which a text shows only if asked to (the parsers
    /// for which vLLM sets `skip_special_tokens` to false).
    pub(super) has_special_tokens: bool,
    /// The calls of a text, and its content. None: there are none that can be read.
    pub(super) read: fn(&str, &[Tool]) -> Option<Calls>,
}

/// Content and calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Calls {
    /// The text before the first call, or beside all.
    pub(super) content: String,
    /// The calls, at least one.
    pub(super) calls: Vec<ToolCall>,
}

impl Calls {
    /// Calls of a content; `None` without a call.
    fn new(content: &str, calls: Vec<ToolCall>) -> Option<Self> {
        (!calls.is_empty()).then(|| Self { content: content.to_owned(), calls })
    }
}

/// A form whose tags are special tokens in some model.
const fn special(
    names: &'static [&'static str],
    read: fn(&str, &[Tool]) -> Option<Calls>,
) -> CallFormat {
    CallFormat { names, has_special_tokens: true, read }
}

/// A form of plain text.
const fn plain(
    names: &'static [&'static str],
    read: fn(&str, &[Tool]) -> Option<Calls>,
) -> CallFormat {
    CallFormat { names, has_special_tokens: false, read }
}

/// All forms but Harmony's, whose channels hold the thinking too.
pub(super) const FORMATS: &[CallFormat] = &[
    special(&["hermes", "qwen3_json"], hermes::read),
    plain(&["llama3_json", "llama4_json"], llama::read),
    special(&["mistral"], mistral::read),
    plain(&["pythonic"], pythonic::read),
    plain(&["llama4_pythonic"], pythonic::read_llama4),
    plain(&["olmo3"], pythonic::read_olmo),
    special(&["qwen3_coder", "qwen3_xml", "step3p5", "mimo"], qwen_xml::read_qwen),
    special(&["seed_oss"], qwen_xml::read_seed),
    special(&["granite"], granite::read),
    special(&["granite4"], hermes::read_granite),
    special(&["jamba"], listed::read_jamba),
    special(&["internlm"], listed::read_internlm),
    plain(&["phi4_mini_json"], listed::read_phi4),
    plain(&["xlam"], xlam::read),
    plain(&["deepseek_v3"], deepseek::read_v3),
    plain(&["deepseek_v31"], deepseek::read_v31),
    special(&["kimi_k2"], kimi::read),
    special(&["glm45", "glm47", "ling3"], glm::read),
    special(&["hy_v3"], glm::read_hunyuan),
    special(&["poolside_v1"], glm::read_laguna),
    special(&["deepseek_v32"], invoke::read_v32),
    special(&["deepseek_v4"], invoke::read_v4),
    special(&["deepseek_v41"], invoke::read_v41),
    special(&["minimax_m2"], invoke::read_minimax),
    special(&["dots"], invoke::read_dots),
    special(&["gemma4"], gemma::read),
    special(&["functiongemma"], gemma::read_function),
    special(&["ernie45"], hermes::read_ernie),
    special(&["longcat"], hermes::read_longcat),
    plain(&["hunyuan_a13b"], listed::read_jamba),
    special(&["apertus"], listed::read_apertus),
    special(&["cohere_command3"], listed::read_command),
    plain(&["granite-20b-fc"], listed::read_granite_20b),
    special(&["gigachat3"], listed::read_gigachat),
    special(&["lfm2"], pythonic::read_lfm2),
];
