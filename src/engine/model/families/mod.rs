//! One file per family: from a config to a `DecoderSpec`.

mod apertus;
mod arcee;
mod cwm;
mod decilm;
mod ernie4_5;
mod gemma;
mod exaone4;
mod gemma2;
mod gemma3;
mod granite;
mod helium;
mod hunyuan_dense;
mod internlm2;
mod internlm3;
mod bloom;
mod codegen;
mod falcon;
mod gemma2;
mod gemma3;
mod gpt;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gptj;
mod cohere;
mod cohere2;
mod exaone4;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod layer_norm;
mod llama;
mod minicpm;
mod ministral3;
mod mistral;
mod mpt;
mod olmo;
mod olmo2;
mod olmo3;
mod opt;
mod phi3;
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
    ("ApertusForCausalLM", apertus::spec),
    ("AquilaForCausalLM", llama::spec),
    ("ArceeForCausalLM", arcee::spec),
    ("CwmForCausalLM", cwm::spec),
    ("DeciLMForCausalLM", decilm::spec),
    ("Ernie4_5ForCausalLM", ernie4_5::spec),
    ("BloomForCausalLM", bloom::spec),
    ("CodeGenForCausalLM", codegen::spec),
    ("FalconForCausalLM", falcon::spec),
    ("GPT2LMHeadModel", gpt2::spec),
    ("GPTBigCodeForCausalLM", gpt_bigcode::spec),
    ("GPTJForCausalLM", gptj::spec),
    ("GPTNeoXForCausalLM", gpt_neox::spec),
    ("Exaone4ForCausalLM", exaone4::spec),
    ("Gemma2ForCausalLM", gemma2::spec),
    ("Gemma3ForCausalLM", gemma3::spec),
    ("GemmaForCausalLM", gemma::spec),
    ("GraniteForCausalLM", granite::spec),
    ("HeliumForCausalLM", helium::spec),
    ("HunYuanDenseV1ForCausalLM", hunyuan_dense::spec),
    ("IQuestCoderForCausalLM", llama::spec),
    ("InternLM2ForCausalLM", internlm2::spec),
    ("InternLM3ForCausalLM", internlm3::spec),
    ("Cohere2ForCausalLM", cohere2::spec),
    ("CohereForCausalLM", cohere::spec),
    ("Exaone4ForCausalLM", exaone4::spec),
    ("Gemma2ForCausalLM", gemma2::spec),
    ("Gemma3ForCausalLM", gemma3::spec),
    ("Glm4ForCausalLM", glm4::spec),
    ("GlmForCausalLM", glm::spec),
    ("LlamaForCausalLM", llama::spec),
    ("MiniCPMForCausalLM", minicpm::spec),
    ("Ministral3ForCausalLM", ministral3::spec),
    ("MistralForCausalLM", mistral::spec),
    ("MptForCausalLM", mpt::spec),
    ("Olmo2ForCausalLM", olmo2::spec),
    ("Olmo3ForCausalLM", olmo3::spec),
    ("OlmoForCausalLM", olmo::spec),
    ("OPTForCausalLM", opt::spec),
    ("Phi3ForCausalLM", phi3::spec),
    ("Qwen2ForCausalLM", qwen2::spec),
    ("Qwen3ForCausalLM", qwen3::spec),
    ("SeedOssForCausalLM", seed_oss::spec),
    ("SmolLM3ForCausalLM", smollm3::spec),
    ("TeleChat3ForCausalLM", llama::spec),
];
