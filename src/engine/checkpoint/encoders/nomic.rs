//! NomicBERT: BERT with rotary positions, a gated MLP and fused q, k and v. Its own code and
//! transformers have different keys in config.json, and the same names of tensors.

use super::bert::{after_sum, norm, token_types};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{
    ActivationSpec, AttentionSpec, EncoderSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Keys of other ways to compute the same, or of the table's size before padding.
const OF_OTHERS: &[&str] = &[
    "dense_seq_output",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "pad_vocab_size_multiple",
    "parallel_block_tied_norm",
    "qkv_proj_bias",
    "reorder_and_upcast_attn",
    "use_xentropy",
];

/// The spec of a NomicBERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    for key in ["causal", "parallel_block", "prenorm", "rotary_emb_interleaved", "use_rms_norm"] {
        root.expect(key, false)?;
    }
    for key in ["mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"] {
        root.expect(key, false)?;
    }
    root.expect("scale_attn_by_inverse_layer_idx", false)?;
    root.expect("scale_attn_weights", true)?;
    root.ignore(OF_OTHERS);
    let base = root.number("rotary_emb_base")?.unwrap_or(1000.0);
    let part = root.number("rotary_emb_fraction")?.unwrap_or(1.0);
    if root.value("rotary_emb_scale_base").is_some() {
        return Err(config.error("`rotary_emb_scale_base` is not supported"));
    }
    // Beyond the trained length the factor stretches the embedding, anew for each length.
    root.ignore(&["rotary_scaling_factor"]);
    let num_positions = config.max_position_embeddings()?;
    let trained = root.optional_size("max_trained_positions")?.unwrap_or(num_positions);
    let hidden = config.hidden_size()?;
    let name = |part: &str| format!("bert.embeddings.{part}");
    let tokens = LinearSpec::new(name("word_embeddings"), config.vocab_size()?, hidden);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    let layers = layers.collect::<Result<_, _>>()?;
    Ok(EncoderSpec {
        token_types: token_types(config, name("token_type_embeddings"), 2)?,
        embed_norm: Some(norm(config, "bert.emb_ln".to_owned())?),
        ropes: vec![config.rope_with(LayerType::Full, RopeDefaults::new(base, part))?],
        of_heads: &["pooler.", "bert.pooler.", "cls."],
        ..EncoderSpec::new(num_positions.min(trained), tokens, layers)
    })
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("bert.encoder.layers.{index}.{part}");
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let attention = AttentionSpec::new(
        after_sum(norm(config, name("norm1"))?),
        heads,
        LinearSpec::new(name("attn.Wqkv"), heads.qkv_width(), hidden),
        LinearSpec::new(name("attn.out_proj"), hidden, heads.q_width()),
    );
    let root = config.root();
    let inner = root.size_of(&["intermediate_size", "n_inner"])?;
    let activation = match root.text("activation_function")? {
        Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        _ => config.activation_or(Activation::Silu)?,
    };
    let up = ["mlp.fc12", "mlp.fc11"].map(|part| (name(part), inner));
    let mlp = MlpSpec {
        norms: after_sum(norm(config, name("norm2"))?),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::stacked(up, hidden),
        down: LinearSpec::new(name("mlp.fc2"), hidden, inner),
    };
    Ok(LayerSpec::new(AttentionSpec { rope: Some(0), ..attention }, mlp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder_spec;

    fn spec(keys: &str) -> Result<EncoderSpec, String> {
        let text = format!(r#"{{"architectures": ["NomicBertModel"], "vocab_size": 64, {keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        encoder_spec(&config).map_err(|error| error.to_string())
    }

    const PUBLISHED: &str = r#""n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2,
        "n_positions": 640, "max_trained_positions": 160, "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "prenorm": false,
        "layer_norm_epsilon": 1e-12, "rotary_scaling_factor": 2"#;

    #[test]
    fn both_kinds_of_keys_say_the_same() {
        let of_transformers = r#""hidden_size": 32, "num_attention_heads": 4, "head_dim": 8,
            "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 160,
            "hidden_act": "silu", "layer_norm_eps": 1e-12,
            "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}"#;
        assert_eq!(spec(PUBLISHED), spec(of_transformers));
        assert_eq!(spec(PUBLISHED).unwrap().max_model_len, 160);
    }

    #[test]
    fn experts_and_other_orders_are_refused() {
        for key in [r#""prenorm": true"#, r#""causal": true"#, r#""num_experts": 8"#] {
            let name = key.split('"').nth(1).unwrap();
            let keys = PUBLISHED.replace(r#""prenorm": false"#, key);
            let error = spec(&keys).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
