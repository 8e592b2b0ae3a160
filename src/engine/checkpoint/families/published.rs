//! Keys of config.json as checkpoints were published with them: those of first versions of the
//! code and of transformers 4.

use crate::decoder_spec;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, RopeScaling, Wiring};

/// Keys that all of these have. Sizes are small.
const SIZES: &str = r#""hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "vocab_size": 32, "use_cache": true, "attention_dropout": 0.0, "torch_dtype": "bfloat16""#;

fn spec(architecture: &str, keys: &str) -> Result<DecoderSpec, String> {
    let text = format!(r#"{{"architectures": ["{architecture}"], {SIZES}, {keys}}}"#);
    decoder_spec(&HfConfig::parse(&text, "config.json").unwrap()).map_err(|e| e.to_string())
}

fn windows(spec: &DecoderSpec) -> Vec<Option<usize>> {
    spec.attentions().map(|attention| attention.reach.window()).collect()
}

fn ropes(spec: &DecoderSpec) -> Vec<Option<usize>> {
    spec.attentions().map(|attention| attention.rope).collect()
}

#[test]
fn command_r_has_its_context_in_model_max_length() {
    let keys = r#""layer_norm_eps": 1e-5, "logit_scale": 0.0625, "model_max_length": 512,
        "rope_theta": 8e6, "use_qk_norm": true, "pretraining_tp": 1"#;
    let spec = spec("CohereForCausalLM", keys).unwrap();
    assert_eq!(spec.max_model_len, 512);
    assert_eq!(spec.output.scale, Some(0.0625));
    assert!(spec.output.lm_head.is_none());
    let norms = spec.attentions().next().unwrap().qk_norm.as_ref().unwrap();
    let k = norms.k.as_ref().unwrap();
    assert_eq!((&norms.q.shape, &k.shape), (&vec![4, 16], &vec![2, 16]));
}

#[test]
fn command_r7b_has_keys_of_the_first_code() {
    let keys = r#""cache_implementation": "hybrid", "head_dim": 16, "layer_norm_eps": 1e-5,
        "layer_switch": 4, "logit_scale": 0.25, "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000,
        "rotary_pct": 1.0, "sliding_window": 8, "sliding_window_pattern": 4,
        "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
        "use_parallel_embedding": false, "use_qk_norm": false"#;
    let spec_of = |keys: &str| spec("Cohere2ForCausalLM", keys);
    let spec = spec_of(keys).unwrap();
    assert_eq!(windows(&spec), [Some(8), Some(8), Some(8), None]);
    assert_eq!(ropes(&spec), [Some(0), Some(0), Some(0), None]);
    let other = spec_of(&keys.replace("local_attn_first", "global_attn_first")).unwrap_err();
    assert!(other.contains("`order_of_interleaved_layers`"), "{other}");
    let other = spec_of(&keys.replace(r#""layer_switch": 4"#, r#""layer_switch": 2"#)).unwrap_err();
    assert!(other.contains("disagree"), "{other}");
}

#[test]
fn exaone4_turns_all_layers_where_none_slides() {
    let keys = r#""rms_norm_eps": 1e-5, "rope_theta": 1e6"#;
    let spec_of = |more: &str| spec("Exaone4ForCausalLM", &format!("{keys}, {more}"));
    let whole = r#""sliding_window": null, "sliding_window_pattern": null"#;
    let whole = spec_of(whole).unwrap();
    assert_eq!(windows(&whole), [None; 4]);
    assert_eq!(ropes(&whole), [Some(0); 4]);
    let types = r#""layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
        "full_attention"], "sliding_window": 8, "sliding_window_pattern": "LLLG""#;
    let sliding = spec_of(types).unwrap();
    assert_eq!(windows(&sliding), [Some(8), Some(8), Some(8), None]);
    assert_eq!(ropes(&sliding), [Some(0), Some(0), Some(0), None]);
    let letters = spec_of(r#""sliding_window": 8, "sliding_window_pattern": "LLLG""#);
    assert!(letters.unwrap_err().contains("`sliding_window_pattern`"));
}

#[test]
fn half_of_a_head_turns_where_glm_nemotron_and_phi_do_not_say() {
    let keys = r#""head_dim": 16, "rms_norm_eps": 1.5625e-7"#;
    for (architecture, keys) in [
        ("GlmForCausalLM", keys),
        ("Glm4ForCausalLM", keys),
        ("NemotronForCausalLM", r#""norm_eps": 1e-5, "hidden_act": "relu2""#),
        ("PhiForCausalLM", r#""layer_norm_eps": 1e-5, "hidden_act": "gelu_new""#),
    ] {
        let spec = spec(architecture, keys).unwrap();
        assert_eq!(spec.ropes[0].rotary_dim, 8, "{architecture}");
    }
    let glm = spec("GlmForCausalLM", keys).unwrap();
    assert!(glm.attentions().all(|attention| attention.qkv.bias && !attention.out.bias));
    assert!(spec("GlmForCausalLM", r#""head_dim": 16"#).unwrap_err().contains("`rms_norm_eps`"));
}

#[test]
fn olmo3_of_transformers_4_stretches_full_layers_alone() {
    let keys = r#""rms_norm_eps": 1e-6, "rope_theta": 500000, "sliding_window": 8,
        "rope_scaling": {"attention_factor": 1.2, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
        "original_max_position_embeddings": 8, "rope_type": "yarn"}"#;
    let spec = spec("Olmo3ForCausalLM", keys).unwrap();
    let [full, sliding] = &spec.ropes[..] else { panic!("two kinds of layers") };
    assert!(matches!(full.scaling, RopeScaling::Yarn(_)));
    assert_eq!(sliding.scaling, RopeScaling::None);
    assert_eq!((full.theta, sliding.theta), (5e5, 5e5));
    assert_eq!(windows(&spec), [Some(8), Some(8), Some(8), None]);
    assert_eq!(ropes(&spec), [Some(1), Some(1), Some(1), Some(0)]);
    assert_eq!(spec.max_model_len, 64);
}

#[test]
fn stablelm_2_12b_is_parallel_and_norms_each_head() {
    let keys = r#""hidden_dropout": 0.0, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25,
        "qk_layernorm": true, "rope_theta": 10000, "rotary_scaling_factor": 1.0,
        "use_norm_bias": false, "use_parallel_residual": true, "use_qkv_bias": false"#;
    let spec = spec("StableLmForCausalLM", keys).unwrap();
    assert!(spec.layers.iter().all(|layer| layer.wiring == Wiring::Parallel));
    let norms = spec.attentions().next().unwrap().qk_norm.as_ref().unwrap();
    assert_eq!(norms.q.parts[3], "model.layers.0.self_attn.q_layernorm.norms.3");
    assert_eq!((norms.q.parts.len(), norms.k.as_ref().unwrap().parts.len()), (4, 2));
    assert_eq!(spec.ropes[0].rotary_dim, 4);
}

#[test]
fn starcoder2_has_two_names_of_its_activation_and_epsilon() {
    let keys = r#""activation_function": "gelu", "hidden_act": "gelu_pytorch_tanh",
        "attention_softmax_in_fp32": true, "embedding_dropout": 0.1, "layer_norm_epsilon": 1e-5,
        "mlp_type": "default", "norm_epsilon": 1e-5, "norm_type": "layer_norm",
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "scale_attn_weights": true,
        "scale_attention_softmax_in_fp32": true, "sliding_window": 8, "use_bias": true"#;
    let spec_of = |keys: &str| spec("Starcoder2ForCausalLM", keys);
    let spec = spec_of(keys).unwrap();
    assert_eq!(windows(&spec), [Some(8); 4]);
    assert!(spec.layer_linears().all(|linear| linear.bias));
    let rms = spec_of(&keys.replace(r#""layer_norm""#, r#""rms_norm""#)).unwrap_err();
    assert!(rms.contains("`norm_type`"), "{rms}");
}

#[test]
fn a_tied_phi_is_refused() {
    let keys = r#""layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "tie_word_embeddings": true"#;
    assert!(spec("PhiForCausalLM", keys).unwrap_err().contains("`tie_word_embeddings`"));
}
