//! One file per family: from a config to a `DecoderSpec`.

mod afmoe;
mod apertus;
mod arcee;
mod architecture;
mod aria;
mod axk1;
mod bailing;
mod bailing_hybrid;
mod bamba;
mod biogpt;
mod bloom;
mod codegen;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod cohere_vision;
mod ctrl;
mod cwm;
mod dbrx;
mod decilm;
mod deepseek;
mod deepseek_vl;
mod deepseek_vl2;
mod dots1;
mod dots_ocr;
mod dsa;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod exaone_moe;
pub(super) mod experts;
mod falcon;
mod falcon_h1;
mod flex_olmo;
mod gemma;
mod gemma2;
pub(super) mod gemma3;
mod gemma3_vision;
mod gemma3n;
mod gemma4;
mod gemma4_vision;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4v;
mod glm_asr;
mod got_ocr2;
mod gpt;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_neox_japanese;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod granite_swa;
mod hearing;
mod helium;
mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;
mod hyperclovax;
mod idefics3;
mod internlm2;
mod internlm3;
mod internvl;
mod iquestcoder;
mod jais2;
mod jamba;
mod kda;
mod kimi_linear;
mod kimi_vision;
mod laguna;
pub(super) mod latent;
mod layer_norm;
mod lfm2;
mod lfm2_vl;
mod lfm3;
pub(super) mod llama;
mod llama4;
pub(super) mod llava;
mod longcat_flash;
mod mamba;
mod mamba1;
mod mamba2;
mod mellum;
mod mimo;
mod mimo_v2;
mod minicpm;
mod minicpm3;
mod minimax_m2;
mod minimax_m3;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
pub(crate) mod modernbert_decoder;
mod molmo2;
mod mpt;
mod multimodal;
mod muse_glimmer;
mod muse_glimmer_vision;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod openai_gpt;
mod opt;
mod orion;
mod ovis2;
mod paddleocr_vl;
mod paligemma;
mod pangu_embedded;
mod persimmon;
mod phi;
mod phi3;
mod phi4_multimodal;
mod phimoe;
mod pixtral;
#[cfg(test)]
mod published;
mod qwen2;
mod qwen2_5_vl;
mod qwen2_moe;
mod qwen2_vl;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
pub(super) mod qwen3_next;
mod qwen3_vl;
mod qwen_hearing;
mod qwen_omni;
mod qwen_vision;
#[cfg(test)]
mod refused;
mod registry;
mod seed_oss;
mod selective;
pub(super) mod siglip;
mod smollm3;
mod solar;
mod solar_open;
mod stablelm;
mod starcoder2;
mod step3p5;
#[cfg(test)]
mod tests_of_towers;
mod vault_gemma;
pub(super) mod vision;
mod whisper;
mod xglm;
mod youtu;
mod zamba2;

pub use architecture::{
    Architecture, BuildProcessor, BuildSoundTower, BuildSpec, BuildTower, BuildTowerOfSome, Sight,
};
pub use registry::ARCHITECTURES;

/// Names that early files of a family have, and the name that it has now.
pub const EARLY_NAMES: &[(&str, &str)] = &[
    ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"),
    ("Ernie4_5_ForCausalLM", "Ernie4_5ForCausalLM"),
    ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    ("LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration"),
    ("LLaMAForCausalLM", "LlamaForCausalLM"),
    ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniThinkerForConditionalGeneration"),
    ("Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"),
    ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    ("Telechat3ForCausalLM", "TeleChat3ForCausalLM"),
];

/// The family of a name in `architectures`.
pub fn find(name: &str) -> Option<&'static Architecture> {
    let early = EARLY_NAMES.iter().find(|(early, _)| *early == name);
    let name = early.map_or(name, |(_, now)| *now);
    ARCHITECTURES.iter().find(|known| known.name == name)
}

/// The family of a decoder's class, or of the same class without an output layer: `Qwen3Model` is
/// that of `Qwen3ForCausalLM`.
pub fn find_body(name: &str) -> Option<&'static Architecture> {
    let with_output = |ending| find(&format!("{}{ending}", name.strip_suffix("Model")?));
    find(name).or_else(|| ["ForCausalLM", "LMHeadModel"].into_iter().find_map(with_output))
}
