//! Configs as transformers 5.24 writes them (`testdata/saved_configs.jsonl`): the default one of
//! every class passes the guard of keys, and a golden model's means what it meant before.

use std::path::Path;

use serde_json::{Value, json};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::ModelConfig;
use vllm_batch::engine::base::hf_overrides::HfOverrides;
use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::checkpoint::model_files::ModelFiles;
use vllm_batch::engine::checkpoint::own_head;
use vllm_batch::engine::checkpoint::quantization::QuantizationConfig;
use vllm_batch::engine::checkpoint::spec::{BesideTable, DecoderSpec, EncoderSpec};
use vllm_batch::engine::checkpoint::{
    ARCHITECTURES, classifier, decoder_spec, encoder_spec, matryoshka_dimensions,
};

use super::pooled::testdata;

#[derive(Debug, PartialEq)]
enum Spec {
    Decoder(Box<DecoderSpec>),
    Encoder(Box<EncoderSpec>),
}

fn spec(config: &HfConfig, folder: &Path) -> Result<Spec, EngineError> {
    QuantizationConfig::read(config, folder)?;
    let names = config.architectures()?;
    if names.iter().any(|name| ARCHITECTURES.iter().any(|known| known.name == *name)) {
        return decoder_spec(config).map(|spec| Spec::Decoder(Box::new(spec)));
    }
    matryoshka_dimensions(config)?;
    classifier(config, None)?;
    encoder_spec(config).map(|spec| Spec::Encoder(Box::new(spec)))
}

fn lines() -> Vec<Value> {
    let text = std::fs::read_to_string(testdata("saved_configs.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Default configs that are refused, and why: transformers makes no model of the first three.
const REFUSED: &[(&str, &str)] = &[
    ("DeepseekV2ForCausalLM", "`num_experts_per_tok` is missing"),
    ("Dots1ForCausalLM", "`num_experts_per_tok` is missing"),
    ("Glm4MoeForCausalLM", "a rotary embedding of 0.5 of a head_dim of 42"),
    ("CLIPModel", "`vision_config` is missing"),
    ("Siglip2Model", "`vision_config` is missing"),
    ("SiglipModel", "`vision_config` is missing"),
    ("AyaVisionForConditionalGeneration", "`vision_config` is missing"),
    ("Cohere2VisionForConditionalGeneration", "`vision_config` is missing"),
    ("DeepseekVLForConditionalGeneration", "`vision_config` is missing"),
    ("Exaone4_5_ForConditionalGeneration", "`vision_config` is missing"),
    ("Gemma3ForConditionalGeneration", "`vision_config` is missing"),
    ("Glm46VForConditionalGeneration", "`vision_config` is missing"),
    ("Glm4vForConditionalGeneration", "`vision_config` is missing"),
    ("Glm4vMoeForConditionalGeneration", "`vision_config` is missing"),
    ("GlmOcrForConditionalGeneration", "`vision_config` is missing"),
    ("Lfm2VlForConditionalGeneration", "`vision_config` is missing"),
    ("Molmo2ForConditionalGeneration", "`vision_config` is missing"),
    ("Ovis2ForConditionalGeneration", "`vision_config` is missing"),
    ("MuseGlimmerForConditionalGeneration", "`vision_config` is missing"),
    ("HyperCLOVAXVisionV2ForConditionalGeneration", "`vision_config` is missing"),
    ("QianfanOCRForConditionalGeneration", "`vision_config` is missing"),
    ("PaddleOCRVLForConditionalGeneration", "`vision_config` is missing"),
    ("PaliGemmaForConditionalGeneration", "`vision_config` is missing"),
    ("Phi4MultimodalForCausalLM", "`vision_config` is missing"),
    ("InternVLForConditionalGeneration", "`vision_config` is missing"),
    ("Kimi_K25ForConditionalGeneration", "`vision_config` is missing"),
    ("LightOnOcrForConditionalGeneration", "`vision_config` is missing"),
    ("LlavaForConditionalGeneration", "`vision_config` is missing"),
    ("LlavaOnevisionForConditionalGeneration", "`vision_config` is missing"),
    ("LlavaNextForConditionalGeneration", "`vision_config` is missing"),
    ("Mistral3ForConditionalGeneration", "`vision_config` is missing"),
    ("VipLlavaForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen2VLForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen2_5_VLForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen3VLForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen3VLMoeForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen3_5ForConditionalGeneration", "`vision_config` is missing"),
    ("Qwen3_5MoeForConditionalGeneration", "`vision_config` is missing"),
    ("Idefics3ForConditionalGeneration", "`image_token_id` of 128257 is not in a vocabulary"),
    ("Siglip2Model", "`vision_config` is missing"),
    ("SiglipModel", "`vision_config` is missing"),
    ("SmolVLMForConditionalGeneration", "`image_token_id` of 128257 is not in a vocabulary"),
];

#[test]
fn the_default_config_of_every_class_is_read() {
    let (mut num_read, mut refused) = (0, Vec::new());
    for line in lines() {
        let Some(name) = line["architecture"].as_str() else { continue };
        let config = HfConfig::parse(&line["config"].to_string(), name).unwrap();
        match spec(&config, Path::new("")) {
            Ok(_) => num_read += 1,
            Err(error) => {
                let text = error.to_string();
                let is_known = |(of, why): &&(&str, &str)| *of == name && text.contains(why);
                refused.extend((!REFUSED.iter().any(|known| is_known(&known))).then_some(text));
            }
        }
    }
    assert!(refused.is_empty() && num_read > 100, "{num_read}, and\n{}", refused.join("\n"));
}

#[test]
fn a_config_that_is_saved_again_means_the_same() {
    let (mut num_read, mut other) = (0, Vec::new());
    for line in lines() {
        let Some(name) = line["folder"].as_str() else { continue };
        if name == "golden/gpt_oss_mxfp4" {
            // A null `rope_scaling` beside a base: transformers 4 stretches nothing, 5 does.
            continue;
        }
        let folder = testdata(name);
        let files = ModelFiles::Folder(folder.clone());
        let model = ModelConfig { model_dir: folder.clone(), ..ModelConfig::default() };
        let of = |overrides| {
            let config = HfConfig::open(&files, &overrides)?;
            let spec = spec(&config, &folder)?;
            let Spec::Decoder(spec) = spec else { return Ok(spec) };
            // Where only the class says that the output layer is the table, the files decide.
            let mut spec = own_head::of_decoder(*spec, &config, || files.stored(&model))?;
            spec.output.beside_table = BesideTable::Nothing;
            Ok::<_, EngineError>(Spec::Decoder(Box::new(spec)))
        };
        let over = HfOverrides::parse(&line["over"].to_string()).unwrap();
        let before = of(HfOverrides::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        match of(over) {
            Ok(after) if after == before => num_read += 1,
            Ok(_) => other.push(format!("{name}: another spec by {}", line["over"])),
            Err(error) => other.push(error.to_string()),
        }
    }
    assert!(other.is_empty() && num_read > 150, "{num_read}, and\n{}", other.join("\n"));
}

#[test]
fn keys_that_change_nothing_are_read_beside_all_others() {
    let files = ModelFiles::Folder(testdata("golden/llama3"));
    let plain = HfConfig::open(&files, &HfOverrides::default()).unwrap();
    let plain = decoder_spec(&plain).unwrap();
    for over in [
        r#"{"_experts_implementation": "eager", "model_name": "a", "model_max_length": 4096}"#,
        r#"{"ignore_keys_at_rope_validation": [], "transformers_js_config": {"dtype": "q4"}}"#,
        r#"{"num_nextn_predict_layers": 1, "num_mtp_layers": 0, "mtp_num_hidden_layers": 1}"#,
    ] {
        let config = HfConfig::open(&files, &HfOverrides::parse(over).unwrap()).unwrap();
        assert_eq!(decoder_spec(&config).unwrap(), plain, "{over}");
    }
}

#[test]
fn gpt_oss_stretches_where_the_file_does_not_say_how() {
    let text = std::fs::read_to_string(testdata("golden/gpt_oss/config.json")).unwrap();
    let plain: Value = serde_json::from_str(&text).unwrap();
    let of = |rope: Value| {
        let mut keys = plain.as_object().unwrap().clone();
        keys.retain(|key, _| !key.starts_with("rope_"));
        keys.extend(rope.as_object().unwrap().clone());
        let config = HfConfig::parse(&Value::Object(keys).to_string(), "config.json").unwrap();
        decoder_spec(&config).unwrap_or_else(|error| panic!("{rope}: {error}")).ropes
    };
    // The class has no base in it, and takes 150,000.
    let yarn = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096, "rope_theta": 150_000.0});
    let whole = of(json!({"rope_parameters": yarn}));
    for rope in [
        json!({}),
        json!({"rope_parameters": null}),
        json!({"rope_parameters": null, "rope_scaling": null}),
    ] {
        assert_eq!(of(rope.clone()), whole, "{rope}");
    }
    assert_ne!(of(json!({"rope_scaling": null, "rope_theta": 150_000.0})), whole);
    assert_ne!(of(json!({"rope_parameters": {"rope_type": "default"}})), whole);
}

#[test]
fn layers_are_named_by_numbers_of_any_width() {
    let of = |keys: &str| {
        let files = ModelFiles::Folder(testdata("golden/gemma4"));
        let over = HfOverrides::parse(&format!(r#"{{"per_layer_config": {keys}}}"#)).unwrap();
        decoder_spec(&HfConfig::open(&files, &over).unwrap()).map_err(|error| error.to_string())
    };
    let files = ModelFiles::Folder(testdata("golden/gemma4"));
    let config = HfConfig::open(&files, &HfOverrides::default());
    let text = std::fs::read_to_string(testdata("golden/gemma4/config.json")).unwrap();
    let keys: Value = serde_json::from_str(&text).unwrap();
    let Some(layers) = keys["per_layer_config"].as_object() else {
        panic!("the golden model has widths of layers")
    };
    let padded = |width| {
        let keys = layers.iter().map(|(name, layer)| (format!("{name:0>width$}"), layer.clone()));
        Value::Object(keys.collect()).to_string()
    };
    let plain = decoder_spec(&config.unwrap()).unwrap();
    assert_eq!(of(&padded(2)), Ok(plain.clone()));
    assert_eq!(of(&padded(3)), Ok(plain));
    let (name, layer) = layers.iter().next().unwrap();
    let twice = of(&json!({ name.clone(): layer, format!("0{name}"): layer }).to_string());
    assert!(twice.unwrap_err().contains("`per_layer_config` has"));
}

/// How a quantized config is read, in words.
fn quantization(over: &str) -> Result<String, String> {
    let folder = testdata("golden/llama2");
    let files = ModelFiles::Folder(folder.clone());
    let config = HfConfig::open(&files, &HfOverrides::parse(over).unwrap()).unwrap();
    let read = QuantizationConfig::read(&config, &folder).map_err(|error| error.to_string())?;
    decoder_spec(&config).map_err(|error| error.to_string())?;
    Ok(read.expect("it is quantized").description().to_owned())
}

#[test]
fn keys_of_auto_round_are_those_of_the_format_that_it_saves() {
    let with = |more: &str| {
        quantization(&format!(
            r#"{{"quantization_config": {{"quant_method": "gptq", "bits": 4, "group_size": 128,
            "sym": true, "data_type": "int", "autoround_version": "0.9.0", "iters": 200,
            "provider": "auto-round", "low_gpu_mem_usage": true, "nsamples": 128, "lr": null,
            "enable_quanted_input": false, "to_quant_block_names": "model.layers",
            "act_bits": 16, "super_bits": null, "extra_config": {{}}{more}}}}}"#
        ))
    };
    for more in ["", r#", "packing_format": "auto_round:auto_gptq""#, r#", "amp": true"#] {
        assert_eq!(with(more).unwrap(), "gptq 4 bit, groups of 128", "{more}");
    }
    for (more, expected) in [
        (r#", "packing_format": "auto_round:auto_awq""#, "auto_round:auto_awq"),
        (r#", "act_bits": 8"#, "act_bits"),
        (r#", "super_bits": 6"#, "super_bits"),
        (r#", "data_type": "mx_fp""#, "data_type"),
        (r#", "extra_config": {"lm_head": {"bits": 8}}"#, "extra_config"),
        (r#", "of_tomorrow": 1"#, "of_tomorrow"),
    ] {
        let error = with(more).expect_err(more);
        assert!(error.contains(expected), "{more}: {error}");
    }
}

#[test]
fn weights_of_mlx_are_refused_by_name() {
    let mlx = r#"{"group_size": 64, "bits": 4, "mode": "affine"}"#;
    for over in [
        format!(r#"{{"quantization": {mlx}}}"#),
        format!(r#"{{"quantization": {mlx}, "quantization_config": {mlx}}}"#),
        format!(r#"{{"quantization_config": {mlx}}}"#),
    ] {
        let error = quantization(&over).expect_err(&over);
        assert!(error.contains("quantized by MLX"), "{over}: {error}");
    }
    let other = quantization(
        r#"{"quantization": {"a": 1}, "quantization_config":
        {"quant_method": "awq", "bits": 4}}"#,
    );
    assert!(other.unwrap_err().contains("`quantization` is not known"));
}
