//! One file per family: from a config to a `DecoderSpec`.

mod arcee;
mod ernie4_5;
mod gemma;
mod gemma2;
mod gemma3;
mod granite;
mod helium;
mod llama;
mod minicpm;
mod mistral;
mod opt;
mod qwen2;
mod qwen3;
mod seed_oss;
mod smollm3;

use super::hf_config::HfConfig;
use super::spec::DecoderSpec;
use crate::engine::EngineError;

/// From a config to a spec.
pub type BuildSpec = fn(&HfConfig) -> Result<DecoderSpec, EngineError>;

/// Hugging Face architectures and what builds their spec. One line per family.
pub const ARCHITECTURES: &[(&str, BuildSpec)] = &[
    ("ArceeForCausalLM", arcee::spec),
    ("Ernie4_5ForCausalLM", ernie4_5::spec),
    ("Gemma2ForCausalLM", gemma2::spec),
    ("Gemma3ForCausalLM", gemma3::spec),
    ("GemmaForCausalLM", gemma::spec),
    ("GraniteForCausalLM", granite::spec),
    ("HeliumForCausalLM", helium::spec),
    ("LlamaForCausalLM", llama::spec),
    ("MiniCPMForCausalLM", minicpm::spec),
    ("MistralForCausalLM", mistral::spec),
    ("OPTForCausalLM", opt::spec),
    ("Qwen2ForCausalLM", qwen2::spec),
    ("Qwen3ForCausalLM", qwen3::spec),
    ("SeedOssForCausalLM", seed_oss::spec),
    ("SmolLM3ForCausalLM", smollm3::spec),
];
