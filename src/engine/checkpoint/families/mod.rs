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
mod qwen_vision;
#[cfg(test)]
mod refused;
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
use architecture::{family, hearing, seeing, seeing_tiles};

/// Names that early files of a family have, and the name that it has now.
pub const EARLY_NAMES: &[(&str, &str)] = &[
    ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"),
    ("Ernie4_5_ForCausalLM", "Ernie4_5ForCausalLM"),
    ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    ("LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration"),
    ("LLaMAForCausalLM", "LlamaForCausalLM"),
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

/// Hugging Face architectures, one line each, by name.
pub const ARCHITECTURES: &[Architecture] = &[
    family("AfmoeForCausalLM", afmoe::spec, "Trinity Nano, Mini, Large"),
    family("ApertusForCausalLM", apertus::spec, "Apertus 8B, 70B"),
    family("AquilaForCausalLM", llama::spec, "Aquila, Aquila2"),
    family("ArceeForCausalLM", arcee::spec, "AFM 4.5B"),
    family("AriaForConditionalGeneration", multimodal::aria, "Aria, text part"),
    family("AriaTextForCausalLM", aria::spec, "Aria, text"),
    hearing(
        "AudioFlamingo3ForConditionalGeneration",
        hearing::audio_flamingo3,
        hearing::audio_flamingo3_tower,
        "Audio Flamingo 3",
    ),
    family("AXK1ForCausalLM", axk1::spec, "A.X K1"),
    seeing(
        "AyaVisionForConditionalGeneration",
        cohere_vision::aya,
        cohere_vision::aya_tower,
        "Aya Vision",
    ),
    family("BailingHybridForCausalLM", bailing_hybrid::spec, "Ling 3 Flash"),
    family("BailingMoeForCausalLM", bailing::v1, "Ling and Ring 1: lite, plus, Coder lite"),
    family("BailingMoeV2ForCausalLM", bailing::v2, "Ling 2, Ring 2: mini, flash, 1T"),
    family("BambaForCausalLM", bamba::spec, "Bamba 9B"),
    family("BioGptForCausalLM", biogpt::spec, "BioGPT, BioGPT-Large"),
    family("BloomForCausalLM", bloom::spec, "BLOOM, BLOOMZ"),
    family("CodeGenForCausalLM", codegen::spec, "CodeGen"),
    family("Cohere2ForCausalLM", cohere2::spec, "Command R7B, Command A, Aya"),
    family("Cohere2MoeForCausalLM", cohere2_moe::spec, "Command A+"),
    seeing(
        "Cohere2VisionForConditionalGeneration",
        cohere_vision::command_a,
        cohere_vision::command_a_tower,
        "Command A Vision",
    ),
    family("CohereForCausalLM", cohere::spec, "Command R, Command R+, Aya"),
    family("CTRLLMHeadModel", ctrl::spec, "CTRL"),
    family("CwmForCausalLM", cwm::spec, "Code World Model"),
    family("DbrxForCausalLM", dbrx::spec, "DBRX"),
    family("DeciLMForCausalLM", decilm::spec, "Nemotron Nano, Super and Ultra of Llama 3"),
    family("DeepseekForCausalLM", deepseek::v1, "DeepSeek-MoE 16B"),
    family("DeepseekV2ForCausalLM", deepseek::v2, "DeepSeek V2, V2-Lite"),
    family("DeepseekV32ForCausalLM", dsa::deepseek_v32, "DeepSeek V3.2"),
    family("DeepseekV3ForCausalLM", deepseek::v3, "DeepSeek V3, R1, Kimi K2"),
    seeing(
        "DeepseekVLForConditionalGeneration",
        deepseek_vl::spec,
        deepseek_vl::tower,
        "DeepSeek-VL 1.3B, 7B",
    ),
    Architecture {
        chat_template: Some(deepseek_vl2::CHAT_TEMPLATE),
        ..seeing_tiles(
            "DeepseekVLV2ForCausalLM",
            deepseek_vl2::spec,
            deepseek_vl2::tower,
            deepseek_vl2::processor,
            "DeepSeek-VL2 tiny, small, base",
        )
    },
    family("Dots1ForCausalLM", dots1::spec, "dots.llm1"),
    seeing("DotsOCRForCausalLM", dots_ocr::spec, dots_ocr::tower, "dots.ocr"),
    family("Ernie4_5_MoeForCausalLM", ernie4_5_moe::spec, "ERNIE 4.5 21B-A3B, 300B-A47B"),
    family("Ernie4_5ForCausalLM", ernie4_5::spec, "ERNIE 4.5, dense"),
    seeing(
        "Exaone4_5_ForConditionalGeneration",
        qwen2_5_vl::exaone4_5,
        qwen2_5_vl::exaone4_5_tower,
        "EXAONE 4.5",
    ),
    family("Exaone4ForCausalLM", exaone4::spec, "EXAONE 4.0"),
    family("ExaoneForCausalLM", exaone::spec, "EXAONE 3, 3.5, Deep"),
    family("ExaoneMoeForCausalLM", exaone_moe::spec, "K-EXAONE"),
    family("FalconForCausalLM", falcon::spec, "Falcon 7B, 11B, 40B, 180B, RW"),
    family("FalconH1ForCausalLM", falcon_h1::spec, "Falcon-H1"),
    family("FalconMambaForCausalLM", mamba1::falcon, "Falcon Mamba 7B"),
    family("FlexOlmoForCausalLM", flex_olmo::spec, "FlexOlmo"),
    family("Gemma2ForCausalLM", gemma2::spec, "Gemma 2"),
    family("Gemma3ForCausalLM", gemma3::spec, "Gemma 3, text"),
    seeing(
        "Gemma3ForConditionalGeneration",
        gemma3_vision::spec,
        gemma3_vision::tower,
        "Gemma 3 from 4B on",
    ),
    family("Gemma3nForCausalLM", gemma3n::spec, "Gemma 3n, text"),
    family("Gemma3nForConditionalGeneration", multimodal::gemma3n, "Gemma 3n E2B, E4B, text part"),
    family("Gemma4ForCausalLM", gemma4::spec, "Gemma 4, text"),
    Architecture {
        tower: Sight::Some(gemma4_vision::tower),
        ..family(
            "Gemma4ForConditionalGeneration",
            gemma4_vision::spec,
            "Gemma 4 E2B, E4B, 26B-A4B and 31B",
        )
    },
    family("Gemma4UnifiedForCausalLM", gemma4::unified, "Gemma 4 12B, text"),
    family(
        "Gemma4UnifiedForConditionalGeneration",
        multimodal::gemma4_unified,
        "Gemma 4 12B, text part",
    ),
    family("GemmaForCausalLM", gemma::spec, "Gemma 1, CodeGemma"),
    seeing(
        "Glm46VForConditionalGeneration",
        glm4v::spec_of_either,
        glm4v::tower,
        "GLM-4.6V, GLM-4.6V-Flash, in a class of their own",
    ),
    family("Glm4ForCausalLM", glm4::spec, "GLM-4-0414, Z1"),
    family("Glm4MoeForCausalLM", glm4_moe::spec, "GLM-4.5, GLM-4.6, GLM-4.7"),
    family("Glm4MoeLiteForCausalLM", deepseek::v3, "GLM-4.7-Flash"),
    seeing("Glm4vForConditionalGeneration", glm4v::spec, glm4v::tower, "GLM-4.1V, GLM-4.6V-Flash"),
    seeing(
        "Glm4vMoeForConditionalGeneration",
        glm4v::spec_with_experts,
        glm4v::tower,
        "GLM-4.5V, GLM-4.6V",
    ),
    hearing("GlmAsrForConditionalGeneration", glm_asr::spec, glm_asr::tower, "GLM-ASR Nano"),
    family("GlmForCausalLM", glm::spec, "GLM-4-9B"),
    family("GlmMoeDsaForCausalLM", dsa::glm5, "GLM-5, GLM-5.1"),
    seeing("GlmOcrForConditionalGeneration", glm4v::ocr, glm4v::ocr_tower, "GLM-OCR"),
    Architecture {
        chat_template: Some(got_ocr2::CHAT_TEMPLATE),
        ..seeing("GotOcr2ForConditionalGeneration", got_ocr2::spec, got_ocr2::tower, "GOT-OCR 2")
    },
    family("GPT2LMHeadModel", gpt2::spec, "GPT-2, DistilGPT-2"),
    family("GPTBigCodeForCausalLM", gpt_bigcode::spec, "StarCoder, StarCoderBase"),
    family("GPTJForCausalLM", gptj::spec, "GPT-J"),
    family("GPTNeoForCausalLM", gpt_neo::spec, "GPT-Neo"),
    family("GPTNeoXForCausalLM", gpt_neox::spec, "Pythia, GPT-NeoX, Dolly"),
    family("GPTNeoXJapaneseForCausalLM", gpt_neox_japanese::spec, "GPT-NeoX Japanese 2.7B"),
    family("GptOssForCausalLM", gpt_oss::spec, "gpt-oss 20B, 120B"),
    family("GraniteForCausalLM", granite::spec, "Granite 3 and 4, dense"),
    family("GraniteMoeForCausalLM", granite_moe::spec, "Granite 3 with experts"),
    family("GraniteMoeHybridForCausalLM", granite_hybrid::spec, "Granite 4.0-H, Granite 4.0 Micro"),
    family(
        "GraniteMoeSharedForCausalLM",
        granite_moe::shared,
        "Granite with experts, one of all tokens",
    ),
    family(
        "GraniteMoeSWAForCausalLM",
        granite_swa::spec_with_experts,
        "Granite with windows and experts",
    ),
    family("GraniteSWAForCausalLM", granite_swa::spec, "Granite with windows"),
    family("HeliumForCausalLM", helium::spec, "Helium"),
    family("HunYuanDenseV1ForCausalLM", hunyuan_dense::spec, "Hunyuan, dense"),
    family("HunYuanMoEV1ForCausalLM", hunyuan_moe::spec, "Hunyuan-A13B"),
    family("HyperCLOVAXForCausalLM", hyperclovax::spec, "HyperCLOVA X SEED Think"),
    seeing(
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        qwen2_5_vl::hyperclovax,
        qwen2_5_vl::hyperclovax_tower,
        "HyperCLOVA X SEED Think 32B, as transformers has it",
    ),
    family("HYV3ForCausalLM", hy_v3::spec, "Hy3"),
    seeing(
        "Idefics3ForConditionalGeneration",
        idefics3::spec,
        idefics3::tower,
        "Idefics 3, SmolVLM, SmolDocling, Granite Docling",
    ),
    family("InternLM2ForCausalLM", internlm2::spec, "InternLM 2, 2.5"),
    family("InternLM3ForCausalLM", internlm3::spec, "InternLM 3"),
    seeing_tiles(
        "InternVLChatModel",
        internvl::chat_spec,
        internvl::chat_tower,
        internvl::chat_processor,
        "InternVL 2.5, 3, 3.5",
    ),
    seeing(
        "InternVLForConditionalGeneration",
        internvl::spec,
        internvl::tower,
        "InternVL 2.5, 3, 3.5, as transformers has them",
    ),
    family("IQuestCoderForCausalLM", iquestcoder::spec, "IQuest-Coder"),
    family("Jais2ForCausalLM", jais2::spec, "Jais 2"),
    family("JambaForCausalLM", jamba::spec, "Jamba 1 to 1.7: Mini, Large"),
    seeing(
        "Kimi_K25ForConditionalGeneration",
        kimi_vision::k25,
        kimi_vision::k25_tower,
        "Kimi K2.5, K2.6",
    ),
    family("KimiLinearForCausalLM", kimi_linear::spec, "Kimi Linear 48B-A3B"),
    seeing(
        "KimiVLForConditionalGeneration",
        kimi_vision::vl,
        kimi_vision::vl_tower,
        "Kimi-VL A3B, Instruct and Thinking",
    ),
    family("LagunaForCausalLM", laguna::spec, "Laguna XS.2"),
    family("Lfm2ForCausalLM", lfm2::spec, "LFM2, dense"),
    family("Lfm2MoeForCausalLM", lfm2::spec_with_experts, "LFM2-8B-A1B"),
    seeing("Lfm2VlForConditionalGeneration", lfm2_vl::spec, lfm2_vl::tower, "LFM2-VL"),
    family("Lfm3ForCausalLM", lfm3::spec, "LFM3"),
    seeing(
        "LightOnOcrForConditionalGeneration",
        pixtral::lighton_ocr,
        pixtral::lighton_ocr_tower,
        "LightOnOCR 1, 2",
    ),
    family("Llama4ForCausalLM", llama4::spec, "Llama 4, text"),
    family(
        "Llama4ForConditionalGeneration",
        multimodal::llama4,
        "Llama 4 Scout, Maverick, text part",
    ),
    family(
        "LlamaForCausalLM",
        llama::spec,
        "Llama 2, 3, 3.1, 3.2, 3.3, Yi, SmolLM2, TinyLlama, and others of this class",
    ),
    seeing(
        "LlavaForConditionalGeneration",
        llava::spec,
        llava::tower,
        "LLaVA 1.5 and Interleave, Pixtral",
    ),
    seeing(
        "LlavaNextForConditionalGeneration",
        llava::next_spec,
        llava::next_tower,
        "LLaVA-NeXT (1.6), Granite Vision",
    ),
    seeing(
        "LlavaOnevisionForConditionalGeneration",
        llava::onevision_spec,
        llava::onevision_tower,
        "LLaVA-OneVision",
    ),
    family("LongcatFlashForCausalLM", longcat_flash::spec, "LongCat-Flash: Chat, Thinking"),
    family("Mamba2ForCausalLM", mamba2::spec, "Mamba 2, Codestral Mamba"),
    family("MambaForCausalLM", mamba1::spec, "Mamba 1"),
    family("MellumForCausalLM", mellum::spec, "Mellum 2"),
    family("MiMoForCausalLM", mimo::spec, "MiMo 7B"),
    family("MiMoV2FlashForCausalLM", mimo_v2::spec, "MiMo-V2-Flash"),
    family("MiniCPM3ForCausalLM", minicpm3::spec, "MiniCPM3"),
    family("MiniCPMForCausalLM", minicpm::spec, "MiniCPM 1, 2"),
    family("MiniMaxM2ForCausalLM", minimax_m2::spec, "MiniMax M2, M2.1, M2.5, M2.7"),
    family("MiniMaxM3SparseForCausalLM", minimax_m3::spec, "MiniMax M3, text"),
    family(
        "MiniMaxM3SparseForConditionalGeneration",
        multimodal::minimax_m3,
        "MiniMax M3, text part",
    ),
    family("Ministral3ForCausalLM", ministral3::spec, "Ministral 3"),
    family("MinistralForCausalLM", mistral::ministral, "Ministral, with `layer_types`"),
    seeing(
        "Mistral3ForConditionalGeneration",
        pixtral::mistral3,
        pixtral::mistral3_tower,
        "Mistral Small from 3.1 on, Ministral 3",
    ),
    family("Mistral4ForCausalLM", mistral4::spec, "Mistral Small 4"),
    family("MistralForCausalLM", mistral::spec, "Mistral 7B, Nemo, Small"),
    family("MixtralForCausalLM", mixtral::spec, "Mixtral 8x7B, 8x22B"),
    family("ModernBertDecoderForCausalLM", modernbert_decoder::spec, "Ettin decoders"),
    Architecture {
        begins_chats: true,
        ..seeing(
            "Molmo2ForConditionalGeneration",
            molmo2::spec,
            molmo2::tower,
            "Molmo 2 4B, 8B, O-7B",
        )
    },
    family("MPTForCausalLM", mpt::spec, "MPT"),
    family("MptForCausalLM", mpt::spec, "MPT, as transformers writes it"),
    seeing(
        "MuseGlimmerForConditionalGeneration",
        muse_glimmer_vision::spec,
        muse_glimmer_vision::tower,
        "Muse Glimmer 30B",
    ),
    family("NanoChatForCausalLM", nanochat::spec, "nanochat d20 to d34"),
    family("NemotronForCausalLM", nemotron::spec, "Minitron, Nemotron-4"),
    family("NemotronHForCausalLM", nemotron_h::spec, "Nemotron-H, Nemotron Nano 2, Nemotron 3"),
    family("Olmo2ForCausalLM", olmo2::spec, "OLMo 2"),
    family("Olmo3ForCausalLM", olmo3::spec, "OLMo 3"),
    family("OlmoeForCausalLM", olmoe::spec, "OLMoE"),
    family("OlmoForCausalLM", olmo::spec, "OLMo 1"),
    family("OlmoHybridForCausalLM", olmo_hybrid::spec, "OLMo Hybrid 7B"),
    family("OpenAIGPTLMHeadModel", openai_gpt::spec, "GPT (1)"),
    family("OPTForCausalLM", opt::spec, "OPT"),
    family("OrionForCausalLM", orion::spec, "Orion 14B"),
    seeing("Ovis2ForConditionalGeneration", ovis2::spec, ovis2::tower, "Ovis 2 1B to 34B"),
    seeing(
        "PaddleOCRVLForConditionalGeneration",
        paddleocr_vl::spec,
        paddleocr_vl::tower,
        "PaddleOCR-VL",
    ),
    Architecture {
        chat_template: Some(paligemma::CHAT_TEMPLATE),
        ..seeing(
            "PaliGemmaForConditionalGeneration",
            paligemma::spec,
            paligemma::tower,
            "PaliGemma 1, 2",
        )
    },
    family("PanguEmbeddedForCausalLM", pangu_embedded::spec, "openPangu Embedded 1B, 7B"),
    family("PersimmonForCausalLM", persimmon::spec, "Persimmon"),
    family("Phi3ForCausalLM", phi3::spec, "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"),
    seeing(
        "Phi4MMForCausalLM",
        phi4_multimodal::own_spec,
        phi4_multimodal::own_tower,
        "Phi-4-multimodal",
    ),
    seeing(
        "Phi4MultimodalForCausalLM",
        phi4_multimodal::spec,
        phi4_multimodal::tower,
        "Phi-4-multimodal, as transformers has it",
    ),
    family("PhiForCausalLM", phi::spec, "Phi-1.5, Phi-2"),
    family("PhimoeForCausalLM", phimoe::spec, "Phi-3.5-MoE"),
    seeing(
        "QianfanOCRForConditionalGeneration",
        internvl::qianfan_spec,
        internvl::qianfan_tower,
        "Qianfan-OCR",
    ),
    seeing(
        "Qwen2_5_VLForConditionalGeneration",
        qwen2_5_vl::spec,
        qwen2_5_vl::tower,
        "Qwen2.5-VL, olmOCR, Nanonets-OCR",
    ),
    Architecture {
        chat_template: Some(hearing::QWEN2_AUDIO_TEMPLATE),
        ..hearing(
            "Qwen2AudioForConditionalGeneration",
            hearing::qwen2_audio,
            hearing::qwen2_audio_tower,
            "Qwen2-Audio",
        )
    },
    family("Qwen2ForCausalLM", qwen2::spec, "Qwen2, Qwen2.5, QwQ"),
    family("Qwen2MoeForCausalLM", qwen2_moe::spec, "Qwen1.5-MoE, Qwen2 57B-A14B"),
    seeing("Qwen2VLForConditionalGeneration", qwen2_vl::spec, qwen2_vl::tower, "Qwen2-VL"),
    family("Qwen3_5ForCausalLM", qwen3_5::spec, "Qwen3.5, dense, text"),
    seeing(
        "Qwen3_5ForConditionalGeneration",
        qwen3_5::seeing,
        qwen3_5::tower,
        "Qwen3.5, Qwen3.6, dense",
    ),
    family("Qwen3_5MoeForCausalLM", qwen3_5::spec_with_experts, "Qwen3.5 with experts, text"),
    seeing(
        "Qwen3_5MoeForConditionalGeneration",
        qwen3_5::seeing_with_experts,
        qwen3_5::tower,
        "Qwen3.5, Qwen3.6 with experts",
    ),
    family("Qwen3ForCausalLM", qwen3::spec, "Qwen3, dense"),
    family("Qwen3MoeForCausalLM", qwen3_moe::spec, "Qwen3 30B-A3B, 235B-A22B"),
    family("Qwen3NextForCausalLM", qwen3_next::spec, "Qwen3-Next 80B-A3B"),
    seeing("Qwen3VLForConditionalGeneration", qwen3_vl::spec, qwen3_vl::tower, "Qwen3-VL, dense"),
    seeing(
        "Qwen3VLMoeForConditionalGeneration",
        qwen3_vl::spec_with_experts,
        qwen3_vl::tower,
        "Qwen3-VL with experts",
    ),
    family("RWForCausalLM", falcon::spec, "Falcon of early files"),
    family("SarvamMLAForCausalLM", deepseek::sarvam, "Sarvam 105B"),
    family("SarvamMoEForCausalLM", bailing::sarvam, "Sarvam 30B"),
    family("SeedOssForCausalLM", seed_oss::spec, "Seed-OSS"),
    family("SmolLM3ForCausalLM", smollm3::spec, "SmolLM3"),
    seeing("SmolVLMForConditionalGeneration", idefics3::spec, idefics3::tower, "SmolVLM2"),
    family("SolarForCausalLM", solar::spec, "Solar Pro"),
    family("SolarOpenForCausalLM", solar_open::spec, "Solar Open 100B-A12B"),
    family("StableLmForCausalLM", stablelm::spec, "StableLM 2, StableLM 3B"),
    family("Starcoder2ForCausalLM", starcoder2::spec, "StarCoder2"),
    family("Step3p5ForCausalLM", step3p5::spec, "Step 3.5 Flash"),
    family("Step3p7ForConditionalGeneration", multimodal::step3p7, "Step 3.7 Flash, text part"),
    family("TeleChat3ForCausalLM", llama::spec, "TeleChat 3"),
    family("VaultGemmaForCausalLM", vault_gemma::spec, "VaultGemma 1B"),
    seeing("VipLlavaForConditionalGeneration", llava::vip_spec, llava::vip_tower, "ViP-LLaVA"),
    hearing(
        "VoxtralForConditionalGeneration",
        hearing::voxtral,
        hearing::voxtral_tower,
        "Voxtral Mini 3B, Small 24B",
    ),
    hearing(
        "WhisperForConditionalGeneration",
        whisper::spec,
        whisper::sound_tower,
        "Whisper tiny to large-v3, turbo, Distil-Whisper",
    ),
    family("XGLMForCausalLM", xglm::spec, "XGLM 564M to 7.5B"),
    family("YoutuForCausalLM", youtu::spec, "Youtu-LLM"),
    family("Zamba2ForCausalLM", zamba2::spec, "Zamba 2: 1.2B, 2.7B, 7B"),
];
