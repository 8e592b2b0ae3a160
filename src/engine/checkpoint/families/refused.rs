//! Configs that say that something else is computed than what the spec would have: each is refused.

use serde_json::{Value, json};

use crate::decoder_spec;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;

/// A Llama-shaped file of 2 layers with other keys besides.
fn spec(architecture: &str, keys: Value) -> Result<DecoderSpec, String> {
    let mut config = json!({
        "architectures": [architecture], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 256, "initializer_range": 0.02,
        "intermediate_size": 512, "max_position_embeddings": 4096, "model_type": "any",
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 1000
    });
    let Value::Object(keys) = keys else { panic!("{keys} is no object") };
    config.as_object_mut().unwrap().extend(keys);
    let config = HfConfig::parse(&config.to_string(), "config.json").unwrap();
    decoder_spec(&config).map_err(|error| error.to_string())
}

#[test]
fn keys_that_say_that_something_else_is_computed_are_refused() {
    let block = |attention: Value, ffn: Value| json!({"attention": attention, "ffn": ffn});
    let usual = block(json!({"n_heads_in_group": 2}), json!({"ffn_mult": 2.0}));
    let deci = |other: Value| json!({"block_configs": [usual, other]});
    for (architecture, keys, key) in [
        ("ApertusForCausalLM", json!({}), "`rope_scaling` is missing"),
        ("CwmForCausalLM", json!({}), "`rope_scaling` is missing"),
        (
            "DeciLMForCausalLM",
            deci(block(json!({"n_heads_in_group": 2, "window_length": 8}), json!({"no_op": true}))),
            "block_configs[1].attention.window_length",
        ),
        (
            "DeciLMForCausalLM",
            deci(block(json!({"no_op": true}), json!({"replace_with_linear": true}))),
            "`block_configs[1].ffn.replace_with_linear` of `true`",
        ),
        (
            "DeciLMForCausalLM",
            deci(block(json!({"n_heads_in_group": 3}), json!({"no_op": true}))),
            "4 attention heads are no groups of 3",
        ),
        (
            "DeciLMForCausalLM",
            deci(block(json!({"n_heads_in_group": 2}), json!({"ffn_mult": 1e300}))),
            "intermediate size",
        ),
        ("Ernie4_5ForCausalLM", json!({"compression_ratio": 2.0}), "`compression_ratio`"),
        (
            "Gemma4ForCausalLM",
            json!({"use_bidirectional_attention": "all"}),
            "`use_bidirectional_attention`",
        ),
        (
            "Gemma4ForCausalLM",
            json!({"num_kv_shared_layers": 2}),
            "layer 0 has no layer to take K and V from",
        ),
        (
            "Gemma4ForCausalLM",
            json!({"vocab_size_per_layer_input": 999}),
            "inputs of layers of 999 tokens are fewer than the vocabulary",
        ),
        ("GraniteForCausalLM", json!({"logits_scaling": 0.0}), "factor of logits"),
        ("HunYuanDenseV1ForCausalLM", json!({"use_cla": true}), "`use_cla`"),
        ("IQuestCoderForCausalLM", json!({"use_sliding_window": true}), "`use_sliding_window`"),
        ("MiniCPMForCausalLM", json!({"sparse_config": {"dense_len": 8192}}), "sparse_config"),
        ("Phi3ForCausalLM", json!({"lm_head_bias": true}), "`lm_head_bias`"),
        ("Qwen3_5ForCausalLM", json!({"attn_output_gate": false}), "`attn_output_gate`"),
        ("Qwen3_5ForCausalLM", json!({"linear_num_value_heads": 24}), "24 value heads of linear"),
        ("Qwen3_5ForCausalLM", json!({"output_gate_type": "sigmoid"}), "`output_gate_type`"),
        (
            "Qwen3NextForCausalLM",
            json!({"full_attention_interval": 2, "layer_types": ["full_attention", "full_attention"]}),
            "`layer_types` disagrees",
        ),
        ("SmolLM3ForCausalLM", json!({"no_rope_layers": [1]}), "`no_rope_layers`"),
        ("SolarForCausalLM", json!({}), "`bskcn_tv`"),
        (
            "SolarForCausalLM",
            json!({"bskcn_tv": [0.9, 0.8], "bskcn_3": [1]}),
            "layer 1 should add one kept stream",
        ),
    ] {
        let error = spec(architecture, keys).expect_err(architecture);
        assert!(error.contains(key), "{architecture}: {error}");
    }
}

#[test]
fn every_list_of_types_agrees_with_the_key_that_says_which_layers_attend() {
    let [first, second] = [["attention", "mamba"], ["mamba", "attention"]];
    for (key, other) in [("layer_types", "layers_block_type"), ("layers_block_type", "layer_types")]
    {
        let jamba = json!({"attn_layer_period": 2, "attn_layer_offset": 0});
        for (architecture, mut keys, by) in [
            ("JambaForCausalLM", jamba, "`attn_layer_period`"),
            ("BambaForCausalLM", json!({"attn_layer_indices": [0]}), "`attn_layer_indices`"),
        ] {
            keys[key] = json!(first);
            keys[other] = json!(second);
            let error = spec(architecture, keys).unwrap_err();
            assert!(error.contains(&format!("`{other}` disagrees with {by}")), "{error}");
        }
    }
}
