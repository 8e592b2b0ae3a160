//! Tiny random models of every family against Hugging Face transformers (`testdata/golden`): prompt
//! ids and greedy tokens identical, logprobs within a tolerance. One test per folder: one sequence
//! at a time, batched in chunks, from the prefix cache, and through the kernels of the GPU.
//! `cargo test --test devices golden::granite -- --exact` runs one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    NumLogprobs, PositionLogprobs, RequestOutput, RowKey, SamplingParams,
};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig,
};
use vllm_batch::engine::checkpoint::ARCHITECTURES;
use vllm_batch::engine::checkpoint::families::find;
use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::execute::model_executor::gpu_needs_of;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

use crate::gpu;

macro_rules! families {
    ($($family:ident)*) => {
        /// The folders of `testdata/golden` that have a test.
        const FAMILIES: &[&str] = &[$(stringify!($family)),*];

        $(
            #[test]
            fn $family() {
                agrees_with_transformers(stringify!($family));
            }
        )*
    };
}

families! {
    afmoe
    apertus
    aquila
    arcee
    aria
    aria_text
    awq
    axk1
    axk1_unbiased
    aya_vision
    bailing_hybrid
    bailing_moe
    bailing_moe_sums
    bailing_moe_v2
    bamba
    biogpt
    bloom
    bloom_three_heads
    bnb_fp4
    bnb_int8
    bnb_nf4
    codegen
    cohere
    cohere2
    cohere2_moe
    cohere2_moe_rms
    cohere2_vision
    cohere_qk_norm
    ct_fp8
    ct_int4
    ct_int8
    ct_mixed
    ct_mxfp4
    ct_nvfp4
    ctrl
    cwm
    dbrx
    dbrx_sums
    decilm
    deepseek_moe
    deepseek_v2
    deepseek_v2_lite
    deepseek_v3
    deepseek_v32
    deepseek_v32_sparse
    deepseek_vl
    deepseek_vl2
    deepseek_vl2_tiny
    dots1
    dots_ocr
    ernie4_5
    ernie4_5_moe
    ettin
    ettin_biases
    exaone
    exaone4
    exaone4_5
    exaone_moe
    falcon_40b
    falcon_7b
    falcon_h1
    falcon_h1_norm
    falcon_mamba
    falcon_one_norm
    falcon_refined_web
    falcon_rw
    flex_olmo
    fp8
    fp8_static
    fp8_ue8m0
    gemma
    gemma2
    gemma3
    gemma3_multimodal
    gemma3_published
    gemma3n
    gemma3n_wrapped
    gemma4
    gemma4_e2b
    gemma4_moe
    gemma4_unified
    gemma4_unified_text
    glm
    glm4
    glm46v
    glm4_moe
    glm4_moe_lite
    glm4v
    glm4v_moe
    glm_moe_dsa
    glm_moe_dsa_sparse
    glm_ocr
    got_ocr2
    gpt2
    gpt_bigcode
    gpt_neo
    gpt_neox
    gpt_neox_japanese
    gpt_neox_serial
    gpt_oss
    gpt_oss_mxfp4
    gptj
    gptq
    gptq_asym
    gptq_v2
    granite
    granite_hybrid
    granite_hybrid_dense
    granite_moe
    granite_moe_shared
    granite_moe_swa
    granite_swa
    granite_vision
    helium
    hunyuan_dense
    hunyuan_moe
    hy_v3
    hyperclovax
    hyperclovax_plain
    hyperclovax_vision
    idefics3
    internlm2
    internlm3
    internvl
    internvl_chat
    internvl_published
    iquestcoder
    jais2
    jamba
    jamba_dense
    kimi_k25
    kimi_linear
    kimi_vl
    laguna
    laguna_values
    lfm2
    lfm2_bias
    lfm2_moe
    lfm2_vl
    lfm3
    lighton_ocr
    llama2
    llama3
    llama4
    llama4_wrapped
    llama_bias
    llama_dynamic
    llama_yarn
    llava
    llava_next
    llava_next_saved
    llava_onevision
    llava_saved
    longcat_flash
    mamba
    mamba2
    mellum
    mimo
    mimo_v2
    minicpm
    minicpm3
    minimax_m2
    minimax_m3
    minimax_m3_wrapped
    ministral
    ministral3
    ministral3_multimodal
    mistral
    mistral3
    mistral4
    mistral_nemo
    mixtral
    modelopt_fp8
    modelopt_nvfp4
    molmo2
    molmo2_o
    mpt
    mpt_published
    muse_glimmer
    nanochat
    nemotron
    nemotron3_latent
    nemotron3_nano
    nemotron_h
    olmo
    olmo2
    olmo3
    olmo_hybrid
    olmo_hybrid_rope
    olmoe
    openai_gpt
    opt
    opt350
    orion
    ovis2
    paddleocr_vl
    paligemma
    paligemma2
    pangu_embedded
    persimmon
    phi
    phi3
    phi4_mini
    phi4_multimodal
    phi4_multimodal_untied
    phi4mm
    phimoe
    pixtral
    qianfan_ocr
    qwen2
    qwen2_5_vl
    qwen2_dynamic
    qwen2_moe
    qwen2_vl
    qwen2_window
    qwen3
    qwen3_5
    qwen3_5_moe
    qwen3_5_moe_multimodal
    qwen3_5_multimodal
    qwen3_moe
    qwen3_moe_sums
    qwen3_next
    qwen3_vl
    qwen3_vl_moe
    sarvam_mla
    sarvam_moe
    seed_oss
    smollm3
    smolvlm
    solar
    solar_open
    stablelm
    stablelm_parallel
    starcoder2
    step3p5
    step3p7
    telechat3
    telechat3_yarn
    vault_gemma
    vipllava
    xglm
    youtu
    youtu_plain_q
    zamba2
    zamba2_adapters
}

/// The same model as transformers 4 wrote it, in some folders.
const OLD_CONFIG: &str = "config_v4.json";

/// Of a logprob, on the CPU and on the shim.
const TOLERANCE: f32 = 1e-4;

/// Of a logprob on a GPU, whose library of matrix products sums in an order of its own.
const GPU_TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    transformers: String,
    max_new_tokens: u32,
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    text: String,
    prompt_token_ids: Vec<u32>,
    output_token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    top: Vec<Vec<(u32, f32)>>,
    prompt_logprobs: Vec<Option<f32>>,
    text_out: Option<String>,
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden")
}

/// Folders of golden models. What begins with a dot is the shared tokenizers, or what a generator
/// that was killed has left.
fn folders() -> Vec<String> {
    let listing = std::fs::read_dir(golden_dir()).expect("testdata/golden is committed");
    let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

fn read_golden(family: &str) -> Golden {
    let path = golden_dir().join(family).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn engine_config(family: &str, scheduler: SchedulerConfig, device: &DeviceConfig) -> EngineConfig {
    let model = ModelConfig {
        model_dir: golden_dir().join(family),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(256), ..CacheConfig::default() };
    let device = device.clone();
    EngineConfig { model, scheduler, cache, device, ..EngineConfig::default() }
}

fn params(golden: &Golden, prompt_logprobs: Option<NumLogprobs>) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens: Some(golden.max_new_tokens),
        ignore_eos: true,
        logprobs: Some(NumLogprobs::Top(5)),
        prompt_logprobs,
        ..SamplingParams::default()
    }
}

/// Outputs by prompt.
fn run(
    engine: &mut Engine,
    golden: &Golden,
    prompt_logprobs: Option<NumLogprobs>,
) -> Vec<RequestOutput> {
    let processor = Arc::clone(&engine.input_processor());
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let key = RowKey(index as u64);
        let text = Prompt::Text(prompt.text.clone());
        let request = processor.process(index as u64, text, params(golden, prompt_logprobs), key);
        engine.add_request(request.unwrap_or_else(|error| panic!("{:?}: {error:?}", prompt.text)));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

fn assert_close(got: f32, expected: f32, what: &str) {
    let tolerance = if gpu::is_real() { GPU_TOLERANCE } else { TOLERANCE };
    assert!((got - expected).abs() < tolerance, "{what}: {got}, transformers has {expected}");
}

/// Whether the tokenizer decodes byte tokens by runs: one invalid byte turns its whole run into
/// U+FFFD, so that the text of a prefix is no prefix of the text, and a stream (vLLM's and ours)
/// differs by design.
fn has_byte_fallback(family: &str) -> bool {
    let path = golden_dir().join(family).join("tokenizer.json");
    let tokenizer: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    tokenizer["model"]["byte_fallback"] == true
}

fn check(family: &str, byte_fallback: bool, prompt: &GoldenPrompt, output: &RequestOutput) {
    let name = format!("{family}, prompt {:?}", prompt.text);
    assert_eq!(output.prompt_token_ids, prompt.prompt_token_ids, "{name}: prompt ids");
    let completion = &output.outputs[0];
    assert_eq!(completion.token_ids, prompt.output_token_ids, "{name}: greedy tokens");
    let logprobs = completion.logprobs.as_ref().unwrap();
    for (step, position) in logprobs.iter().enumerate() {
        assert_close(
            position.token.logprob,
            prompt.logprobs[step],
            &format!("{name}, step {step}"),
        );
        for ((id, expected), got) in prompt.top[step].iter().zip(&position.top) {
            // Equal probabilities may swap places; their values may not differ.
            assert_close(got.logprob, *expected, &format!("{name}, step {step}, top {id}"));
        }
    }
    let sum: f64 = prompt.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
    assert!((completion.cumulative_logprob.unwrap() - sum).abs() < 1e-2, "{name}: sum");
    if let Some(prompt_logprobs) = &output.prompt_logprobs {
        check_prompt(&name, prompt, prompt_logprobs);
    }
    if let Some(text) = &prompt.text_out
        && !(byte_fallback && text.contains('\u{FFFD}'))
    {
        // Bytes that are no whole character yet at the end are never emitted (as in vLLM).
        let trimmed = |text: &str| text.trim_end_matches('\u{FFFD}').to_owned();
        assert_eq!(trimmed(&completion.text), trimmed(text), "{name}: text");
    }
}

fn check_prompt(name: &str, prompt: &GoldenPrompt, got: &[Option<PositionLogprobs>]) {
    assert_eq!(got.len(), prompt.prompt_logprobs.len(), "{name}");
    for (position, (got, expected)) in got.iter().zip(&prompt.prompt_logprobs).enumerate() {
        let what = format!("{name}, prompt token {position}");
        match (got, expected) {
            (None, None) => assert_eq!(position, 0),
            (Some(got), Some(expected)) => assert_close(got.token.logprob, *expected, &what),
            _ => panic!("{what}: {got:?}, transformers has {expected:?}"),
        }
    }
}

fn agrees_with_transformers(family: &str) {
    let cpu = DeviceConfig::default();
    let alone = SchedulerConfig { max_num_seqs: Some(1), ..SchedulerConfig::default() };
    check_all(family, "alone", engine_config(family, alone, &cpu));
    let chunks = SchedulerConfig { max_num_batched_tokens: Some(19), ..SchedulerConfig::default() };
    check_all(family, "in chunks", engine_config(family, chunks.clone(), &cpu));
    if golden_dir().join(family).join(OLD_CONFIG).exists() {
        let folder = folder_with_old_config(family);
        let mut config = engine_config(family, SchedulerConfig::default(), &cpu);
        config.model.model_dir = folder.path().to_owned();
        check_all(family, "config.json of transformers 4", config);
    }
    let Some(gpu) = gpu::device(7) else { return };
    let summary = ModelSummary::read(&engine_config(family, chunks, &cpu).model).unwrap();
    if let Some(part) = gpu_needs_of(&summary.spec).without_kernels {
        return println!("SKIP: no kernel computes {part}");
    }
    let chunks = SchedulerConfig { max_num_batched_tokens: Some(40), ..SchedulerConfig::default() };
    let config = engine_config(family, chunks, &gpu);
    check_all(family, "kernels of the GPU", config);
}

/// A folder whose config.json is the one that transformers 4 wrote; its other files are links.
fn folder_with_old_config(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden_dir().join(family)).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let name = match name.to_str().unwrap() {
            "config.json" => continue,
            OLD_CONFIG => "config.json",
            name => name,
        };
        std::os::unix::fs::symlink(path, folder.path().join(name)).unwrap();
    }
    folder
}

/// The golden prompts twice in one engine: first with prompt logprobs, which read no cached
/// prefix; then without, from the prefix cache.
fn check_all(family: &str, how: &str, config: EngineConfig) {
    let mut engine = Engine::load(&config).unwrap_or_else(|error| panic!("{family}: {error}"));
    let golden = read_golden(family);
    let name = format!("{family}, {how}");
    let byte_fallback = has_byte_fallback(family);
    for prompt_logprobs in [Some(NumLogprobs::Top(0)), None] {
        let outputs = run(&mut engine, &golden, prompt_logprobs);
        assert_eq!(outputs.len(), golden.prompts.len());
        for (prompt, output) in golden.prompts.iter().zip(&outputs) {
            check(&name, byte_fallback, prompt, output);
        }
        let cached = outputs.iter().any(|output| output.num_cached_tokens > 0);
        assert_eq!(cached, prompt_logprobs.is_none(), "{name}: tokens of the prefix cache");
    }
    println!("{name}: {} prompts equal transformers {}", golden.prompts.len(), golden.transformers);
}

#[test]
fn tensors_for_media_are_counted_in_a_note() {
    let cpu = DeviceConfig::default();
    let mut config = engine_config("mistral3", SchedulerConfig::default(), &cpu);
    config.model.language_model_only = true;
    let engine = Engine::load(&config).unwrap();
    let note = "24 tensors of the model are left unused: they are for images or sounds";
    assert_eq!(engine.info().notes, [note]);
}

#[test]
fn tensors_of_k_and_v_that_no_layer_reads_are_counted_in_a_note() {
    let cpu = DeviceConfig::default();
    let engine = Engine::load(&engine_config("gemma4", SchedulerConfig::default(), &cpu)).unwrap();
    let note = "3 tensors of the model are left unused: they are of K and V that layers take from \
                others, or of a part that is not computed";
    assert_eq!(engine.info().notes, [note]);
}

#[test]
fn every_folder_has_a_test() {
    assert_eq!(folders(), FAMILIES);
}

#[test]
fn every_architecture_has_a_golden_model() {
    let family = |folder: &String| {
        let path = golden_dir().join(folder).join("config.json");
        let text = std::fs::read_to_string(path).unwrap();
        let config = HfConfig::parse(&text, folder).unwrap();
        find(config.architectures().unwrap()[0]).map(|known| known.name)
    };
    // Those that hear have theirs elsewhere (tests/engine/hearing.rs, sounds.rs).
    let heard = std::fs::read_dir(golden_dir().join("../golden_hearing")).unwrap();
    let heard = heard.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<_> = heard.map(|name| format!("../golden_hearing/{name}")).collect();
    folders.push("../golden_sounds/english".to_owned());
    folders.extend(self::folders());
    let families: Vec<_> = folders.iter().filter_map(family).collect();
    for architecture in ARCHITECTURES.iter().map(|known| known.name) {
        let has = families.contains(&architecture);
        assert!(has, "{architecture} has no model under testdata/golden");
    }
}
