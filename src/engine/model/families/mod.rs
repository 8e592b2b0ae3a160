//! One file per family: from a config to a `DecoderSpec`.

mod gemma2;
mod gemma3;
mod llama;
mod mistral;
mod opt;
mod qwen2;
mod qwen3;

use super::hf_config::HfConfig;
use super::spec::DecoderSpec;
use crate::engine::EngineError;

/// From a config to a spec.
pub type BuildSpec = fn(&HfConfig) -> Result<DecoderSpec, EngineError>;

/// Hugging Face architectures and what builds their spec. One line per family.
pub const ARCHITECTURES: &[(&str, BuildSpec)] = &[
    ("Gemma2ForCausalLM", gemma2::spec),
    ("Gemma3ForCausalLM", gemma3::spec),
    ("LlamaForCausalLM", llama::spec),
    ("MistralForCausalLM", mistral::spec),
    ("OPTForCausalLM", opt::spec),
    ("Qwen2ForCausalLM", qwen2::spec),
    ("Qwen3ForCausalLM", qwen3::spec),
];
