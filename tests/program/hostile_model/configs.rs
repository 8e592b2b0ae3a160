//! config.json, generation_config.json and tokenizer_config.json that no model has.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{Folder, prompt};

const FILES: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

#[test]
fn files_that_are_no_json_objects_are_refused_by_name() {
    let folder = Folder::new();
    let huge = format!("{{\"x\": \"{}\"}}", "x".repeat(17 << 20));
    for name in FILES {
        let good = folder.read(name);
        let cut = good[..good.len() / 2].to_vec();
        for (what, bytes) in [
            ("empty", Vec::new()),
            ("cut", cut),
            ("list", b"[]".to_vec()),
            ("text", b"\"a\"".to_vec()),
            ("null", b"null".to_vec()),
            ("not UTF-8", b"{\"a\": \"\xff\"}".to_vec()),
            ("deep", b"{\"a\":".repeat(100_000)),
            ("NaN", b"{\"a\": NaN}".to_vec()),
            ("binary", vec![0; 4096]),
            ("huge", huge.clone().into_bytes()),
        ] {
            if what == "huge" && name == "tokenizer.json" {
                continue;
            }
            folder.write(name, bytes);
            folder.run(&[prompt("a")], &[]).assert_refused(&format!("{name}: {what}"), name);
        }
        let path = folder.model(name);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        folder.run(&[prompt("a")], &[]).assert_refused(name, name);
        fs::remove_dir(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        folder.run(&[prompt("a")], &[]).assert_refused(name, name);
        fs::remove_file(&path).unwrap();
        folder.write(name, good);
    }
}

#[test]
fn sizes_and_numbers_that_no_model_has_are_refused() {
    let folder = Folder::new();
    let config = folder.json("config.json");
    let keys = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ];
    let mut cases: Vec<(&str, Value)> = Vec::new();
    for key in keys {
        let wrong =
            [json!(0), json!(-1), json!(1u64 << 63), json!(u32::MAX), json!("x"), json!(1e300)];
        cases.extend(wrong.into_iter().map(|value| (key, value)));
    }
    let rope = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    let linear = json!({"rope_type": "linear", "factor": 1e300, "rope_theta": 1e4});
    cases.extend([
        ("head_dim", json!(3)),
        ("num_key_value_heads", json!(2)),
        ("num_hidden_layers", json!(2)),
        ("num_hidden_layers", json!(5000)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!(1e39)),
        ("rms_norm_eps", json!("x")),
        ("rope_parameters", rope(0.0)),
        ("rope_parameters", rope(-1.0)),
        ("rope_parameters", json!({"rope_type": "x\u{1b}[2J\n"})),
        ("rope_parameters", linear),
        ("hidden_act", json!("x".repeat(100_000))),
        ("tie_word_embeddings", json!("yes")),
        ("attention_bias", json!(1)),
        ("attention_bias", json!(true)),
        ("dtype", json!("int8")),
        ("architectures", json!([])),
        ("architectures", json!("LlamaForCausalLM")),
        ("architectures", json!(["x".repeat(100_000)])),
        ("eos_token_id", json!("</s>")),
        ("eos_token_id", json!(-1)),
        ("quantization_config", json!({"quant_method": "x\n"})),
    ]);
    fs::remove_file(folder.model("generation_config.json")).unwrap();
    for (key, value) in cases {
        let mut config = config.clone();
        config[key] = value.clone();
        folder.write("config.json", config.to_string());
        let what = format!("{key}: {:.40}", value.to_string());
        // Without weights, whose shapes would give it away.
        for flags in [&[][..], &["--load-format", "dummy"]] {
            let shapes_differ = ["num_hidden_layers", "attention_bias"].contains(&key)
                && [json!(2), json!(true)].contains(&value);
            if !shapes_differ || flags.is_empty() {
                folder.run(&[prompt("a")], flags).assert_refused(&what, "");
            }
        }
    }
}

/// Within all limits, and yet more than any machine has: refused before it is allocated.
#[test]
fn weights_larger_than_the_memory_are_refused() {
    let folder = Folder::new();
    let mut config = folder.json("config.json");
    config["hidden_size"] = json!(1 << 19);
    config["num_hidden_layers"] = json!(4000);
    folder.write("config.json", config.to_string());
    let run = folder.run(&[prompt("a")], &["--load-format", "dummy"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.starts_with("error[config]: the weights take "), "{}", run.stderr);
}

#[test]
fn windows_and_caps_of_nothing_are_refused() {
    for (family, key, value) in [
        ("mistral", "sliding_window", json!(0)),
        ("gemma2", "sliding_window", json!(0)),
        ("gemma2", "query_pre_attn_scalar", json!(0)),
        ("gemma2", "query_pre_attn_scalar", json!(-4)),
        ("gemma2", "final_logit_softcapping", json!(0.0)),
        ("gemma2", "attn_logit_softcapping", json!(-1.0)),
        ("gemma2", "layer_types", json!(["x"])),
        ("gemma2", "layer_types", json!("x")),
        ("opt", "word_embed_proj_dim", json!(0)),
        ("opt", "ffn_dim", json!(0)),
        ("cohere", "logit_scale", json!(1e300)),
        ("cohere", "model_max_length", json!(0)),
        ("cohere", "num_attention_heads", json!(u32::MAX)),
        ("cohere2", "sliding_window", json!(0)),
        ("cohere2", "sliding_window_pattern", json!(-1)),
        ("exaone4", "layer_types", json!(null)),
        ("glm", "partial_rotary_factor", json!(0)),
        ("olmo", "clip_qkv", json!(0)),
        ("olmo2", "rms_norm_eps", json!(0)),
        ("persimmon", "num_attention_heads", json!(u32::MAX)),
        ("persimmon", "rope_percent", json!(1.0)),
        ("stablelm", "rotary_scaling_factor", json!(2.0)),
    ] {
        let folder = Folder::new();
        let golden = std::path::Path::new(super::MODEL).with_file_name(family);
        let mut config: Value =
            serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
        config[key] = value.clone();
        folder.write("config.json", config.to_string());
        let flags = ["--load-format", "dummy"];
        folder.run(&[prompt("a")], &flags).assert_refused(&format!("{family} {key} {value}"), "");
    }
}

#[test]
fn sampling_defaults_of_another_type_are_refused() {
    let folder = Folder::new();
    for (key, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_p", json!([])),
        ("top_k", json!(1.5)),
        ("top_k", json!(-7)),
        ("max_new_tokens", json!(1u64 << 63)),
        ("repetition_penalty", json!(true)),
        ("eos_token_id", json!(1.5)),
        ("eos_token_id", json!([2, "x"])),
        ("eos_token_id", json!(u64::MAX)),
        ("eos_token_id", json!((0..1025).collect::<Vec<u32>>())),
    ] {
        folder.write("generation_config.json", json!({key: value}).to_string());
        let wanted = format!("generation_config.json: `{key}` should be");
        folder.run(&[prompt("a")], &[]).assert_refused(&format!("{key}: {value}"), &wanted);
    }
    // One id is one id, however often it is there.
    let repeated: Vec<u32> = (0..300_000).map(|index| index % 1024).collect();
    for harmless in [json!({"top_k": -1, "temperature": null}), json!({"eos_token_id": repeated})] {
        folder.write("generation_config.json", harmless.to_string());
        assert_eq!(folder.run(&[prompt("a")], &[]).code, Some(0));
    }
}

#[test]
fn tokenizer_configs_of_another_shape_do_no_harm() {
    let folder = Folder::new();
    for (key, value) in [
        ("bos_token", json!(["<s>"])),
        ("bos_token", json!({"content": 7})),
        ("added_tokens_decoder", json!({"-1": {"content": "x"}, "99999999999": {}})),
        ("added_tokens_decoder", json!([1, 2])),
        ("added_tokens_decoder", json!({"4294967295": {"content": "x"}})),
        ("chat_template", json!(7)),
        ("chat_template", json!([{"name": 1}])),
        ("model_max_length", json!(1e30)),
    ] {
        let mut config = folder.json("tokenizer_config.json");
        config[key] = value.clone();
        let good = folder.read("tokenizer_config.json");
        folder.write("tokenizer_config.json", config.to_string());
        let run = folder.run(&[prompt("a")], &[]);
        folder.write("tokenizer_config.json", good);
        match run.code {
            Some(0) => assert_eq!(run.codes(), [""], "{key}: {value}"),
            _ => run.assert_refused(&format!("{key}: {value}"), "error[model"),
        }
    }
}
