//! Qwen2.5-VL: Qwen2 with positions on three axes, and a tower with RMSNorm, gated MLPs with
//! biases, and windows in most layers. EXAONE 4.5: EXAONE 4, and such a tower whose heads share
//! keys and values. HyperCLOVA X of 32B: HyperCLOVA X, and the tower with a product behind it.

use serde_json::json;

use super::qwen_vision::{self, QwenVision, name};
use super::{exaone4, hyperclovax, qwen2_vl};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, BlockNorms, DecoderSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec,
    TowerSpec, WindowsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

const EPS: f32 = 1e-6;

/// The text part, whose keys are at the top of early files.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    qwen2_vl::text_part(config)
}

/// The text part of EXAONE 4.5, with layers that predict further tokens, which are left out.
pub(super) fn exaone4_5(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    exaone4_5_tower(config)?;
    let mut spec = qwen_vision::text_part_without_axes(config, exaone4::spec)?;
    spec.output.of_further_tokens.push("mtp.".to_owned());
    Ok(spec)
}

/// The text part of HyperCLOVA X of 32B, which has one axis.
pub(super) fn hyperclovax(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its class says so, of all of the model.
    config.text_part().assume(&[("tie_word_embeddings", json!(true))]);
    // Its keys are this file's too.
    hyperclovax_tower(config)?;
    let mut spec = qwen_vision::text_part_without_axes(config, hyperclovax::spec)?;
    spec.embedding.of_media =
        &["model.projector.", "model.vision_model.", "model.vision_projector."];
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let vision = QwenVision::read(config, ("hidden_size", 3584), [14, 32, 16])?;
    tower_of(config, vision)
}

/// The tower of EXAONE 4.5.
pub(super) fn exaone4_5_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let mut vision = QwenVision::read(config, ("hidden_size", 3584), [14, 32, 16])?;
    let (num_heads, num_kv_heads) =
        (vision.heads.num_heads, vision.keys.size_or("num_key_value_heads", 8)?);
    if !num_heads.is_multiple_of(num_kv_heads) {
        return Err(config.error(format!(
            "`vision_config` has {num_heads} heads, which cannot share {num_kv_heads}"
        )));
    }
    vision.heads.num_kv_heads = num_kv_heads;
    vision.default_token = 67;
    tower_of(config, vision)
}

/// The tower of HyperCLOVA X of 32B.
pub(super) fn hyperclovax_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let text = config.text_part();
    let mut vision = QwenVision::read(config, ("hidden_size", 3584), [14, 32, 16])?;
    vision.default_token = 128_060;
    let (width, hidden_size) = (vision.keys.size_or("out_hidden_size", 3584)?, text.hidden_size()?);
    vision.projector = Some(LinearSpec::new("model.projector", hidden_size, width).with_bias(true));
    let scale = hyperclovax::spec(text)?.embedding.scale.map(|scale| scale.factor);
    Ok(TowerSpec { scale, ..tower_of(config, vision)? })
}

fn tower_of(config: &HfConfig, vision: QwenVision<'_>) -> Result<TowerSpec, EngineError> {
    let inner = vision.keys.size_or("intermediate_size", 3420)?;
    let hidden_size = vision.keys.size_or("out_hidden_size", 3584)?;
    let activation =
        config.activation_named_or(vision.keys.text("hidden_act")?, Activation::Silu)?;
    let width = vision.width;
    let layer = |index: usize| {
        let prefix = name(&format!("blocks.{index}"));
        let part = |part: &str| format!("{prefix}.{part}");
        let norm = |name| BlockNorms::before(NormSpec::rms(part(name), width, EPS));
        let up = ["mlp.gate_proj", "mlp.up_proj"].map(|name| (part(name), inner));
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(activation),
            up: LinearSpec::stacked(up, width).with_bias(true),
            down: LinearSpec::new(part("mlp.down_proj"), width, inner).with_bias(true),
        };
        LayerSpec::new(vision.attention(&prefix, norm("norm1")), mlp)
    };
    let layers = (0..vision.num_layers).map(layer).collect();
    let norm = NormSpec::rms(name("merger.ln_q"), width, EPS);
    let connector = qwen2_vl::merger(&vision, norm, hidden_size);
    let windows = Some(windows(config, &vision)?);
    Ok(TowerSpec { windows, ..vision.tower(config, layers, connector)? })
}

fn windows(config: &HfConfig, vision: &QwenVision<'_>) -> Result<WindowsSpec, EngineError> {
    let pixels = vision.keys.size_or("window_size", 112)?;
    let side = pixels / vision.merge_size / vision.patch_size;
    if side == 0 {
        return Err(config.error(format!("a `window_size` of {pixels} has no token")));
    }
    let wrong = "`fullatt_block_indexes` should be a list of layers";
    let is_whole = match vision.keys.list("fullatt_block_indexes")? {
        None => (0..vision.num_layers).map(|index| [7, 15, 23, 31].contains(&index)).collect(),
        Some(list) => {
            let mut is_whole = vec![false; vision.num_layers];
            for index in list {
                let index = index.as_u64().ok_or_else(|| config.error(wrong))? as usize;
                *is_whole.get_mut(index).ok_or_else(|| config.error(wrong))? = true;
            }
            is_whole
        }
    };
    Ok(WindowsSpec { side, is_whole, is_filled: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};
    use crate::tower_spec;

    fn specs(vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 8,
            "vision_config": {{{vision} "num_heads": 2, "hidden_size": 16, "out_hidden_size": 32}},
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
            "rope_scaling": {{"type": "mrope", "mrope_section": [2, 3, 3]}},
            "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_windows() {
        let (_, tower) = specs("").unwrap();
        let windows = tower.windows.as_ref().unwrap();
        let whole: Vec<_> = (0..32).filter(|index| windows.is_whole[*index]).collect();
        assert_eq!((windows.side, whole), (4, vec![7, 15, 23, 31]));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.visual.blocks.31.mlp.up_proj.weight"), [3420, 16]);
        assert_eq!(shape("model.visual.merger.ln_q.weight"), [16]);
        assert_eq!(tensors.len(), 1 + 32 * 12 + 5);
        let (_, tower) = specs(r#""depth": 2, "fullatt_block_indexes": [1],"#).unwrap();
        assert_eq!(tower.windows.unwrap().is_whole, [false, true]);
    }

    #[test]
    fn towers_of_others_share_keys_and_have_a_product_behind() {
        let read = |architecture: &str, vision: &str| {
            let text = format!(
                r#"{{"architectures": ["{architecture}"], "image_token_id": 8, "vision_config":
                {{{vision} "num_heads": 4, "hidden_size": 16, "depth": 1}}, "text_config":
                {{"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
                "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
                "max_position_embeddings": 64, "vocab_size": 9}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            let tower = tower_spec(&config).map_err(|error| error.to_string());
            tower.map(|tower| tower.expect("a tower"))
        };
        let exaone = "Exaone4_5_ForConditionalGeneration";
        let shared = r#""out_hidden_size": 32, "num_key_value_heads": "#;
        let tower = read(exaone, &format!("{shared} 2,")).unwrap();
        assert_eq!(
            (tower.heads().num_kv_heads, tower.attentions().next().unwrap().qkv.n()),
            (2, 32)
        );
        let error = read(exaone, &format!("{shared} 3,")).unwrap_err();
        assert!(error.contains("4 heads, which cannot share 3"), "{error}");
        let tower = read("HyperCLOVAXVisionV2ForConditionalGeneration", "").unwrap();
        assert_eq!((tower.connector.last.k, tower.connector.n()), (3584, 32));
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (vision, expected) in [
            (r#""window_size": 27,"#, "a `window_size` of 27 has no token"),
            (r#""fullatt_block_indexes": [32],"#, "`fullatt_block_indexes` should be"),
            (r#""fullatt_block_indexes": ["all"],"#, "`fullatt_block_indexes` should be"),
            (r#""intermediate_size": 4000000,"#, "intermediate size of a vision tower"),
        ] {
            let error = specs(vision).unwrap_err();
            assert!(error.contains(expected), "{vision}: {error}");
        }
    }
}
