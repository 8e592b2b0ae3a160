//! What configs are read as, and what is refused.

use super::*;

fn read(quantization: &str) -> Result<QuantizationConfig, String> {
    let text = format!(r#"{{"quantization_config": {quantization}}}"#);
    let config = HfConfig::parse(&text, "config.json").unwrap();
    let read = QuantizationConfig::read(&config, Path::new("nowhere"));
    let read = read.map_err(|error| error.to_string())?;
    config.refuse_unread().map_err(|error| error.to_string())?;
    Ok(read.expect("there is a config"))
}

fn layer<'a>(name: &'a str) -> Module<'a> {
    Module { names: [name, name], place: Place::Layer }
}

#[test]
fn formats_that_are_not_read_are_refused_by_name() {
    for (config, parts) in [
        (r#"{"quant_method": "quark"}"#.to_owned(), ["`quark`", "not supported"]),
        (r#"{"quant_method": "quark"}"#.to_owned(), ["`quark`", "not supported"]),
        (r#"{"bits": 4}"#.to_owned(), ["`quant_method`", "missing"]),
        (r#"{"quant_method": "gptq", "bits": 5}"#.to_owned(), ["`5 bit`", "gptq"]),
        (
            r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}"#.to_owned(),
            ["`marlin`", "gptq"],
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 0}"#.to_owned(),
            ["`group_size` of 0", "not supported"],
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": 1e300}"#.to_owned(),
            ["`group_size` of 1", "not supported"],
        ),
        (r#"{"quant_method": "gptq", "bits": 4, "rotation": "x"}"#.to_owned(), ["rotation", ""]),
        (
            r#"{"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {"codes": 1}}}"#.to_owned(),
            ["dynamic.+:a.codes", ""],
        ),
        (
            r#"{"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}"#.to_owned(),
            ["`(`", "no pattern"],
        ),
        (
            r#"{"quant_method": "awq", "bits": 4, "version": "gemv_fast"}"#.to_owned(),
            ["`gemv_fast`", "awq"],
        ),
        (
            r#"{"quant_method": "awq", "bits": 4, "zero_point": false}"#.to_owned(),
            ["zero_point", "not supported"],
        ),
        (
            r#"{"quant_method": "fp8", "fmt": "e5m2"}"#.to_owned(),
            ["`quantization_config.fmt`", "not supported"],
        ),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [128]}"#.to_owned(),
            ["`weight_block_size`", "two sides"],
        ),
        (
            r#"{"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}"#.to_owned(),
            ["`W4A16_AWQ`", "modelopt"],
        ),
        (
            r#"{"load_in_4bit": true, "bnb_4bit_quant_storage": "bfloat16"}"#.to_owned(),
            ["bnb_4bit_quant_storage", "not supported"],
        ),
        (r#"{"load_in_4bit": true, "load_in_8bit": true}"#.to_owned(), ["load_in_4bit", "one of"]),
    ] {
        assert_refused(&config, parts);
    }
}

fn assert_refused(config: &str, parts: [&str; 2]) {
    let error = read(config).err().unwrap_or_else(|| panic!("{config} is read"));
    assert!(parts.iter().all(|part| error.contains(part)), "{config}: {error}");
}

#[test]
fn parts_of_compressed_tensors_that_are_not_read_are_refused_by_name() {
    let groups = |weights: &str, more: &str| {
        format!(
            r#"{{"quant_method": "compressed-tensors", "format": "pack-quantized", {more}
            "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {weights}}}}}}}"#
        )
    };
    let int4 = r#"{"num_bits": 4, "group_size": 128, "strategy": "group"}"#;
    for (config, parts) in [
        (groups(int4, r#""sparsity_config": {"format": "24"},"#), ["`sparsity_config`", ""]),
        (
            groups(int4, r#""quantization_status": "calibration","#),
            ["`calibration`", "not supported"],
        ),
        (groups(int4, r#""format": "marlin-24","#), ["marlin-24", "compressed-tensors"]),
        (groups(r#"{"num_bits": 9, "strategy": "channel"}"#, ""), ["int9", ""]),
        (groups(r#"{"num_bits": 4, "strategy": "attn_head"}"#, ""), ["attn_head", ""]),
        (
            groups(r#"{"num_bits": 8, "strategy": "block", "block_structure": [0, 4]}"#, ""),
            ["`block_structure`", "two sides"],
        ),
    ] {
        assert_refused(&config, parts);
    }
}

#[test]
fn more_rules_than_any_model_has_are_refused() {
    let names = |number| vec![r#""a""#; number].join(",");
    let config =
        |number| format!(r#"{{"quant_method": "fp8", "ignored_layers": [{}]}}"#, names(number));
    assert!(read(&config(MAX_RULES)).unwrap_err().contains("too many"));
    read(&config(100)).unwrap();
}

#[test]
fn modules_are_quantized_by_the_rules_of_their_format() {
    let head = Module { names: ["lm_head"; 2], place: Place::Head };
    let elsewhere = Module { names: ["model.project_in"; 2], place: Place::Elsewhere };
    let q_proj = layer("model.layers.1.self_attn.q_proj");
    let mlp = layer("model.layers.1.mlp.up_proj");
    let groups = |ignored: &str| {
        format!(
            r#"{{"quant_method": "compressed-tensors", "format": "int-quantized",
            "ignore": {ignored},
            "config_groups": {{"g": {{"targets": ["Linear"], "weights": {{"strategy": "channel"}}}},
            "h": {{"targets": ["re:.*mlp"], "weights": null}}}}}}"#
        )
    };
    for (config, expected) in [
        (r#"{"quant_method": "gptq", "bits": 4}"#.to_owned(), [false, false, true, true]),
        (
            r#"{"quant_method": "gptq", "bits": 4, "lm_head": true,
            "dynamic": {"-:.*\\.1\\..*q_proj": {}, ".*q_proj": {"bits": 8}},
            "modules_in_block_to_quantize": [["self_attn.k_proj"], ["mlp.up_proj"]]}"#
                .to_owned(),
            [true, false, false, true],
        ),
        (
            r#"{"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["q_pro"]}"#.to_owned(),
            [false, false, false, true],
        ),
        // A name counts before the class.
        (groups("[]"), [true, true, true, false]),
        (groups(r#"["lm_head", "re:.*q_proj$"]"#), [false, true, false, false]),
        (
            r#"{"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp"]}"#
                .to_owned(),
            [false, true, true, false],
        ),
        (
            r#"{"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_*", "*.mlp.*"]}"#
                .to_owned(),
            [false, true, true, false],
        ),
        (r#"{"load_in_4bit": true}"#.to_owned(), [false, true, true, true]),
        (
            r#"{"load_in_8bit": true, "llm_int8_skip_modules": ["mlp.up_proj"]}"#.to_owned(),
            [true, true, true, false],
        ),
    ] {
        let read = read(&config).unwrap();
        let modules = [head, elsewhere, q_proj, mlp];
        let found = modules.map(|module| read.scheme(&module).unwrap().is_some());
        assert_eq!(found, expected, "{config}");
    }
}

/// Keys as published models have them.
const PUBLISHED: [&str; 8] = [
    r#"{"bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.01, "desc_act": false,
    "group_size": 128, "model_file_base_name": null, "model_name_or_path": null,
    "quant_method": "gptq", "static_groups": false, "sym": true, "true_sequential": true}"#,
    r#"{"batch_size": 1, "bits": 4, "block_name_to_quantize": "model.layers", "damp_percent": 0.1,
    "dataset": "c4", "desc_act": true, "disable_exllama": false, "group_size": 128,
    "max_input_length": null, "model_seqlen": 4096, "module_name_preceding_first_block":
    ["model.embed_tokens"], "pad_token_id": null, "quant_method": "gptq", "sym": true,
    "tokenizer": null, "true_sequential": true, "use_cuda_fp16": true}"#,
    r#"{"bits": 4, "group_size": 128, "modules_to_not_convert": null, "quant_method": "awq",
    "version": "gemm", "zero_point": true}"#,
    r#"{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head",
    "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"]}"#,
    r#"{"config_groups": {"group_0": {"input_activations": {"actorder": null,
    "block_structure": null, "dynamic": true, "group_size": null, "num_bits": 8,
    "observer": "memoryless", "observer_kwargs": {}, "strategy": "token", "symmetric": true,
    "type": "int"}, "output_activations": null, "targets": ["Linear"], "weights":
    {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
    "num_bits": 8, "observer": "minmax", "observer_kwargs": {}, "strategy": "channel",
    "symmetric": true, "type": "int"}}}, "format": "int-quantized",
    "global_compression_ratio": 1.24, "ignore": ["lm_head"], "kv_cache_scheme": null,
    "quant_method": "compressed-tensors", "quantization_status": "frozen", "sparsity_config":
    {"format": "dense", "global_sparsity": 0.1, "registry_requires_subclass": false,
    "sparsity_structure": "unstructured"}}"#,
    r#"{"config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "input_activations":
    {"actorder": null, "dynamic": "local", "group_size": 16, "num_bits": 4, "observer": "minmax",
    "observer_kwargs": {}, "strategy": "tensor_group", "symmetric": true, "type": "float"},
    "output_activations": null, "targets": ["Linear"], "weights": {"dynamic": false,
    "group_size": 16, "num_bits": 4, "observer": "minmax", "observer_kwargs": {},
    "scale_dtype": "torch.float8_e4m3fn", "strategy": "tensor_group", "symmetric": true,
    "type": "float", "zp_dtype": null}}}, "format": "nvfp4-pack-quantized",
    "global_compression_ratio": null, "ignore": ["lm_head"], "kv_cache_scheme": null,
    "quant_method": "compressed-tensors", "quantization_status": "compressed",
    "sparsity_config": {}, "transform_config": {}, "version": "0.12.2"}"#,
    r#"{"config_groups": {"group_0": {"input_activations": {"dynamic": false, "num_bits": 4,
    "type": "float", "group_size": 16}, "targets": ["Linear"]}}, "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.37.0"}, "quant_algo": "NVFP4",
    "quant_method": "modelopt"}"#,
    r#"{"_load_in_4bit": true, "_load_in_8bit": false, "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": true, "llm_int8_enable_fp32_cpu_offload": false,
    "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": ["lm_head",
    "multi_modal_projector", "model.layers.1.mlp"], "llm_int8_threshold": 6.0,
    "load_in_4bit": true, "load_in_8bit": false, "quant_method": "bitsandbytes"}"#,
];

#[test]
fn keys_of_published_models_are_known() {
    for config in PUBLISHED {
        let read = read(config).unwrap_or_else(|error| panic!("{error}"));
        let q_proj = layer("model.layers.1.self_attn.q_proj");
        assert!(read.scheme(&q_proj).unwrap().is_some(), "{}", read.description());
        let head = Module { names: ["lm_head"; 2], place: Place::Head };
        assert!(read.scheme(&head).unwrap().is_none(), "{}", read.description());
    }
}

#[test]
fn a_format_is_said_in_words() {
    for (config, description, activations) in [
        (
            r#"{"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true}"#,
            "gptq 4 bit, a scale for each output, act order",
            None,
        ),
        (r#"{"quant_method": "awq", "w_bit": 4}"#, "awq 4 bit, groups of 128", None),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [128, 64]}"#,
            "fp8, blocks of 128 x 64",
            Some("fp8, by their largest values"),
        ),
        (
            r#"{"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights":
            {"num_bits": 8, "type": "float", "strategy": "channel"}, "input_activations":
            {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}}"#,
            "compressed-tensors float-quantized fp8, a scale for each output",
            Some("fp8, by their largest values"),
        ),
        (
            r#"{"load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true}"#,
            "bitsandbytes nf4, double quantized",
            None,
        ),
    ] {
        let read = read(config).unwrap();
        assert_eq!((read.description(), read.activations()), (description, activations));
    }
}

#[test]
fn layers_that_a_format_cannot_divide_are_refused() {
    let needs = |config: &str, shape| {
        let scheme = read(config).unwrap().scheme(&layer("a")).unwrap().unwrap();
        scheme.needs(shape).map(|needs| needs[0].shapes.clone())
    };
    assert!(needs(r#"{"quant_method": "awq", "bits": 4}"#, (12, 32)).is_err());
    let nvfp4 = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#;
    assert!(needs(nvfp4, (8, 24)).is_err());
    assert_eq!(needs(nvfp4, (8, 32)).unwrap(), [vec![8, 16]]);
    let gptq = r#"{"quant_method": "gptq", "bits": 3, "group_size": 1048576}"#;
    assert_eq!(needs(gptq, (8, 64)).unwrap(), [vec![6, 8]]);
}

#[test]
fn lists_of_groups_are_checked() {
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": true}"#;
    let scheme = read(config).unwrap().scheme(&layer("a")).unwrap().unwrap();
    let matrix = |groups: [i32; 16]| {
        let list: Vec<u8> = groups.into_iter().flat_map(i32::to_le_bytes).collect();
        let tensor = |bytes| StoredTensor { dtype: safetensors::Dtype::I32, bytes };
        let scales = StoredTensor { dtype: safetensors::Dtype::F32, bytes: &[0; 64] };
        let tensors = vec![
            ("qweight", tensor(&[0; 64])),
            ("qzeros", tensor(&[0; 8])),
            ("scales", scales),
            ("g_idx", tensor(&list)),
        ];
        let tensors = ModuleTensors { name: "a".to_owned(), tensors };
        scheme.matrix((8, 16), &tensors).map(drop)
    };
    matrix([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
    for wrong in [2, -1, i32::MIN, i32::MAX] {
        let mut groups = [1; 16];
        groups[7] = wrong;
        let error = matrix(groups).unwrap_err();
        assert!(error.contains("tensor a.g_idx") && error.contains(&wrong.to_string()), "{error}");
    }
}
