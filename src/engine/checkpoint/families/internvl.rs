//! InternVL 2.5 and later: a text model of another family, and a tower with layer scale, whose
//! patches are brought together by squares (pixel shuffle) before an MLP makes tokens of them. In
//! the layout of transformers, and in that of its own code (`InternVLChatModel`). Qianfan-OCR has
//! the keys of the one and the tensors of the other.

use serde_json::{Value, json};

use super::vision::{self, IMAGE_TENSORS, VisionDefaults, VisionKeys, image_token_id, text_part};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, GridFit,
    GridPositions, ImageText, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpan, NormSpec,
    QkNormOrder, QkNormSpec, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, NormKind};

/// What the connector's norm has, whose epsilon no file says.
const CONNECTOR_EPS: f32 = 1e-5;

/// Defaults of `InternVLVisionConfig`.
const DEFAULTS: VisionDefaults = VisionDefaults {
    hidden_size: 1024,
    intermediate_size: 4096,
    num_layers: 24,
    num_heads: 16,
    image_size: 448,
    patch_size: 14,
    layer_norm_eps: 1e-6,
    activation: Activation::Gelu,
};

/// What the norms of q and k have there, whatever the others have.
const QK_EPS: f32 = 1e-6;

/// Names of a tower's tensors.
struct Names {
    /// Before all of them but the connector's.
    tower: &'static str,
    /// Before a layer's number.
    layers: &'static str,
    class_token: &'static str,
    positions: &'static str,
    patches: &'static str,
    /// Before attention and before the MLP.
    norms: [&'static str; 2],
    /// q, k and v, in as many tensors.
    qkv: &'static [&'static str],
    qk_norms: [&'static str; 2],
    out: &'static str,
    /// Factors of what attention and the MLP add.
    scales: [&'static str; 2],
    /// Behind the last layer, in towers that have it.
    final_norm: Option<&'static str>,
    /// The norm and the two products.
    connector: [&'static str; 3],
}

/// Those of transformers.
const NAMES: Names = Names {
    tower: "model.vision_tower",
    layers: "encoder.layer",
    class_token: "embeddings.cls_token",
    positions: "embeddings.position_embeddings",
    patches: "embeddings.patch_embeddings.projection",
    norms: ["layernorm_before", "layernorm_after"],
    qkv: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    qk_norms: ["attention.q_norm", "attention.k_norm"],
    out: "attention.projection_layer",
    scales: ["lambda_1", "lambda_2"],
    final_norm: Some("layernorm"),
    connector: [
        "model.multi_modal_projector.layer_norm",
        "model.multi_modal_projector.linear_1",
        "model.multi_modal_projector.linear_2",
    ],
};

/// Those of InternVL's own code.
const CHAT_NAMES: Names = Names {
    tower: "vision_model",
    layers: "encoder.layers",
    class_token: "embeddings.class_embedding",
    positions: "embeddings.position_embedding",
    patches: "embeddings.patch_embedding",
    norms: ["norm1", "norm2"],
    qkv: &["attn.qkv"],
    qk_norms: ["attn.q_norm", "attn.k_norm"],
    out: "attn.proj",
    scales: ["ls1", "ls2"],
    final_norm: None,
    connector: ["mlp1.0", "mlp1.1", "mlp1.3"],
};

/// Prefixes of those, for those who run the model for text alone.
const CHAT_TENSORS: &[&str] = &["mlp1.", "vision_model."];

/// Defaults of its `InternVisionConfig`.
const CHAT_DEFAULTS: VisionDefaults = VisionDefaults {
    hidden_size: 3200,
    intermediate_size: 12_800,
    num_layers: 48,
    num_heads: 25,
    image_size: 224,
    patch_size: 14,
    layer_norm_eps: 1e-6,
    activation: Activation::Gelu,
};

/// Keys of experts that its towers do not have, of which some files say much all the same.
const OF_EXPERTS: &[&str] = &[
    "capacity_factor",
    "eval_capacity_factor",
    "laux_allreduce",
    "moe_coeff_ratio",
    "moe_intermediate_size",
    "moe_output_scale",
    "noisy_gate_policy",
    "num_experts",
    "num_routed_experts",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "use_residual",
    "use_rts",
    "use_weighted_residual",
];

/// What differs between towers besides their sizes.
struct Form {
    norms: NormKind,
    has_qkv_biases: bool,
    /// Epsilon of the norms of q and k, if there are any.
    qk_eps: Option<f32>,
    /// There is a norm behind the last layer.
    has_final_norm: bool,
    /// Patches of the side of a token.
    merge_size: usize,
    projector_activation: Activation,
    image_token_id: TokenId,
}

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    // Tokens of a tile, which are counted.
    config.root().ignore(&["image_seq_length"]);
    text_part(config, "qwen2", IMAGE_TENSORS)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    vision::section(config)?.expect("model_type", "internvl_vision")?;
    tower_of(config, &NAMES, false)
}

/// The text part of Qianfan-OCR.
pub(super) fn qianfan_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    qianfan_tower(config)?;
    // Tokens of a tile, which are counted.
    config.root().ignore(&["image_seq_length"]);
    text_part(config, "qwen3", CHAT_TENSORS)
}

/// The tower of Qianfan-OCR.
pub(super) fn qianfan_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "qianfan_ocr_vision")?;
    // No file has a norm at the end, nor norms of q and k.
    keys.expect("use_mean_pooling", true)?;
    keys.expect("use_qk_norm", false)?;
    // Of training.
    keys.ignore(&["drop_path_rate"]);
    let tower = tower_of(config, &CHAT_NAMES, true)?;
    let ImageText::Enclosed { start, end } = tower.text else { return Ok(tower) };
    Ok(TowerSpec { text: ImageText::EnclosedMark { start, end }, ..tower })
}

/// Either, with these names of tensors, and biases of q, k and v where the file does not say.
fn tower_of(
    config: &HfConfig,
    names: &Names,
    has_qkv_biases: bool,
) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let keys = vision::section(config)?;
    keys.expect("use_mask_token", false)?;
    keys.expect("use_absolute_position_embeddings", true)?;
    // Of training.
    keys.ignore(&["initializer_factor", "layer_scale_init_value", "projection_dropout"]);
    root.expect("vision_feature_layer", -1)?;
    root.expect("vision_feature_select_strategy", "default")?;
    let has_qk_norms = keys.flag("use_qk_norm")?.unwrap_or(false);
    let is_mean = keys.flag("use_mean_pooling")?.unwrap_or(true);
    let activation = root.text("projector_hidden_act")?;
    let form = Form {
        norms: norm_kind(config, &keys, NormKind::Layer)?,
        has_qkv_biases: keys.flag("attention_bias")?.unwrap_or(has_qkv_biases),
        qk_eps: has_qk_norms.then_some(QK_EPS),
        has_final_norm: !is_mean,
        merge_size: merge_size(config)?,
        projector_activation: config.activation_named_or(activation, Activation::Gelu)?,
        image_token_id: image_token_id(config, "image_token_id", 151_667)?,
    };
    let vision = VisionKeys::read(config, DEFAULTS, form.merge_size)?;
    of_names(config, names, &vision, &form)
}

/// The text part of a file of InternVL's own code.
pub(super) fn chat_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Their keys are this file's too.
    chat_tower(config)?;
    chat_processor(config)?;
    let root = config.root();
    root.expect("use_backbone_lora", 0)?;
    root.expect("use_llm_lora", 0)?;
    // The name of a conversation in that code, which the tokenizer's template has.
    root.ignore(&["template", "system_message"]);
    text_part(config, "qwen2", CHAT_TENSORS)
}

/// Its tower.
pub(super) fn chat_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let keys = vision::section(config)?;
    keys.expect("model_type", "intern_vit_6b")?;
    keys.expect("use_moe", false)?;
    vision::require_sizes(&keys)?;
    // Of training.
    keys.ignore(&["drop_path_rate", "initializer_factor"]);
    keys.ignore(OF_EXPERTS);
    root.expect("select_layer", -1)?;
    let version = root.text("ps_version")?.unwrap_or("v1");
    if version != "v2" {
        let text = format!("`ps_version` of `{version}` is not supported; v2 is");
        return Err(config.error(text));
    }
    let has_qk_norms = keys.flag("qk_normalization")?.unwrap_or(true);
    let has_qkv_biases = keys.flag("qkv_bias")?.unwrap_or(false);
    let norms = norm_kind(config, &keys, NormKind::Rms)?;
    let merge_size = merge_size(config)?;
    let vision = VisionKeys::read(config, CHAT_DEFAULTS, merge_size)?;
    let form = Form {
        norms,
        has_qkv_biases,
        qk_eps: has_qk_norms.then_some(vision.eps),
        has_final_norm: false,
        merge_size,
        projector_activation: Activation::Gelu,
        image_token_id: TokenId::OfText("<IMG_CONTEXT>"),
    };
    of_names(config, &CHAT_NAMES, &vision, &form)
}

/// What the configuration of its image processor would be, in the words of transformers:
/// config.json says how images are cut.
pub(super) fn chat_processor(config: &HfConfig) -> Result<Value, EngineError> {
    let root = config.root();
    let tower = chat_tower(config)?;
    let side = tower.positions.map_or(0, |positions| positions.side) * tower.patch_size;
    root.expect("force_image_size", side)?;
    root.expect("pad2square", false)?;
    let is_cut = root.flag("dynamic_image_size")?.unwrap_or(false);
    let [min, max] = [("min_dynamic_patch", 1), ("max_dynamic_patch", 6)]
        .map(|(key, default)| root.size_or(key, default));
    let has_whole = root.flag("use_thumbnail")?.unwrap_or(false);
    if is_cut && !has_whole {
        return Err(config.error("`use_thumbnail` of false is not supported; true is"));
    }
    Ok(json!({
        "image_processor_type": "GotOcr2ImageProcessor",
        "crop_to_patches": is_cut,
        "min_patches": min?,
        "max_patches": max?,
        "size": {"height": side, "width": side},
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }))
}

/// Patches of the side of a token.
fn merge_size(config: &HfConfig) -> Result<usize, EngineError> {
    let ratio = config.root().number("downsample_ratio")?.unwrap_or(0.5);
    let side = 1.0 / ratio;
    match side.fract() == 0.0 && (1.0..=256.0).contains(&side) {
        true => Ok(side as usize),
        false => Err(config.error(format!("`downsample_ratio` of {ratio} makes no whole tokens"))),
    }
}

/// Norms of the layers.
fn norm_kind(
    config: &HfConfig,
    keys: &Section<'_>,
    default: NormKind,
) -> Result<NormKind, EngineError> {
    match keys.text("norm_type")? {
        None => Ok(default),
        Some("layer_norm") => Ok(NormKind::Layer),
        Some("rms_norm") => Ok(NormKind::Rms),
        Some(other) => Err(config.error(format!(
            "`vision_config.norm_type` of `{other}` is not supported; layer_norm and rms_norm are"
        ))),
    }
}

/// A tower whose tensors have these names.
fn of_names(
    config: &HfConfig,
    names: &Names,
    vision: &VisionKeys,
    form: &Form,
) -> Result<TowerSpec, EngineError> {
    let VisionKeys { patch_size, width, eps, num_layers, .. } = *vision;
    let (side, merge_size) = (vision.side(), form.merge_size);
    if !side.is_multiple_of(merge_size) {
        return Err(config.error(format!(
            "`downsample_ratio` makes tokens of {merge_size}x{merge_size} patches, and tiles have \
             {side}x{side}"
        )));
    }
    let hidden_size = config.text_part().hidden_size()?;
    let name = |part: &str| format!("{}.{part}", names.tower);
    // One of one: the tensor is (1, positions, width).
    let positions = LinearSpec::new(name(names.positions), 1 + side * side, width);
    let patches = LinearSpec::of_patches(name(names.patches), width, patch_size);
    let [norm, first, last] = names.connector;
    let merged = merge_size * merge_size * width;
    let product = |name, k| LinearSpec::new(name, hidden_size, k).with_bias(true);
    let connector = ConnectorSpec {
        steps: vec![
            ConnectorStep::Merge,
            ConnectorStep::Norm(NormSpec::layer(norm, merged, CONNECTOR_EPS)),
            ConnectorStep::Linear(product(first, merged)),
            ConnectorStep::Activate(form.projector_activation),
        ],
        last: product(last, hidden_size),
    };
    let text =
        ImageText::Enclosed { start: TokenId::OfText("<img>"), end: TokenId::OfText("</img>") };
    let layers = (0..num_layers).map(|index| layer(names, vision, form, index)).collect();
    let patches = patches.with_bias(true);
    Ok(TowerSpec {
        merge_size,
        class_token: Some((name(names.class_token), vec![1, 1, width])),
        positions: Some(GridPositions {
            table: positions.sliced(0, 1).as_parameters(),
            side,
            fit: GridFit::OwnAlone,
        }),
        final_norm: names
            .final_norm
            .filter(|_| form.has_final_norm)
            .map(|part| NormSpec::layer(name(part), width, eps)),
        ..TowerSpec::new(form.image_token_id, text, patch_size, patches, layers, connector)
    })
}

fn layer(names: &Names, vision: &VisionKeys, form: &Form, index: usize) -> LayerSpec {
    let VisionKeys { width, inner, heads, eps, activation, .. } = *vision;
    let name = |part: &str| format!("{}.{}.{index}.{part}", names.tower, names.layers);
    let norms = |block: usize| {
        let norm = match form.norms {
            NormKind::Rms => NormSpec::rms(name(names.norms[block]), width, eps),
            NormKind::Layer => NormSpec::layer(name(names.norms[block]), width, eps),
        };
        BlockNorms::before(norm).with_layer_scale(name(names.scales[block]), width)
    };
    let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
    let rows = 3 * width / names.qkv.len();
    let qkv = LinearSpec::stacked(names.qkv.iter().map(|part| (name(part), rows)), width)
        .with_bias(form.has_qkv_biases);
    let mut attention = AttentionSpec::new(norms(0), heads, qkv, linear(names.out, width, width));
    attention.qk_norm = form.qk_eps.map(|eps| {
        let [q, k] = names.qk_norms.map(|part| NormSpec::rms(name(part), width, eps));
        QkNormSpec { q, k: Some(k), span: NormSpan::AllHeads, order: QkNormOrder::BeforeRotation }
    });
    let mlp = MlpSpec {
        norms: norms(1),
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(activation),
        up: linear("mlp.fc1", inner, width),
        down: linear("mlp.fc2", width, inner),
    };
    LayerSpec::new(attention, mlp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};
    use crate::{decoder_spec, tower_spec};

    fn specs(top: &str, vision: &str, text: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["InternVLForConditionalGeneration"], "image_token_id": 8, {top}
            "vision_config": {{{vision} "hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "patch_size": [8, 8], "image_size": [32, 32],
            "intermediate_size": 40}}, "text_config": {{"model_type": "{text}", "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "max_position_embeddings": 64, "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_tensors_of_its_form() {
        let (_, tower) = specs("", "", "qwen2").unwrap();
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.vision_tower.embeddings.cls_token"), [1, 1, 24]);
        assert_eq!(shape("model.vision_tower.embeddings.position_embeddings"), [1, 17, 24]);
        assert_eq!(shape("model.vision_tower.encoder.layer.1.lambda_2"), [24]);
        assert_eq!(shape("model.multi_modal_projector.layer_norm.bias"), [96]);
        assert_eq!(shape("model.multi_modal_projector.linear_1.weight"), [32, 96]);
        assert_eq!(tensors.len(), 4 + 2 * (3 + 2 + 4 + 4 + 2) + 6);
        let keys = r#""use_qk_norm": true, "attention_bias": true, "norm_type": "rms_norm",
            "use_mean_pooling": false,"#;
        let (decoder, tower) = specs(r#""downsample_ratio": 0.25,"#, keys, "qwen3").unwrap();
        assert_eq!((tower.merge_size, tower.connector.n()), (4, decoder.hidden_size()));
        let tensors = tower.tensors();
        assert_eq!(tensors.len(), 4 + 2 * (6 + 2 + 4 + 2 + 2 + 2) + 2 + 6);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    fn chat(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec, Value), String> {
        let text = format!(
            r#"{{"architectures": ["InternVLChatModel"], {top} "vision_config": {{{vision}
            "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 8,
            "image_size": 32, "intermediate_size": 40}}, "llm_config": {{"model_type": "internlm2",
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": 9}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
        let tower = tower_spec(&config).map_err(|error| error.to_string())?;
        let processor = crate::image_processor(&config).map_err(|error| error.to_string())?;
        Ok((decoder, tower.expect("a tower"), processor.expect("a processor of its own")))
    }

    #[test]
    fn files_of_its_own_code_are_the_same_under_other_names() {
        let keys = r#""ps_version": "v2", "dynamic_image_size": true, "use_thumbnail": true,
            "max_dynamic_patch": 12,"#;
        let (decoder, tower, processor) = chat(keys, "").unwrap();
        assert_eq!(tower.image_token_id, TokenId::OfText("<IMG_CONTEXT>"));
        let (tiles, side) = (&processor["max_patches"], &processor["size"]["width"]);
        assert_eq!((tiles, side), (&json!(12), &json!(32)));
        let tensors = tower.tensors();
        let qkv = "vision_model.encoder.layers.1.attn.qkv.weight";
        assert!(tensors.contains(&(qkv.into(), vec![72, 24])));
        assert_eq!(tensors.len(), 4 + 2 * (1 + 2 + 4 + 2 + 2 + 2) + 6);
        assert!(decoder.tensors().iter().any(|(name, _)| name == "model.tok_embeddings.weight"));
        for (top, vision, expected) in [
            ("", "", "`ps_version` of `v1`"),
            (r#""ps_version": "v2", "select_layer": -4,"#, "", "`select_layer`"),
            (r#""ps_version": "v2", "force_image_size": 448,"#, "", "`force_image_size`"),
            (r#""ps_version": "v2", "dynamic_image_size": true,"#, "", "`use_thumbnail`"),
            (r#""ps_version": "v2","#, r#""use_moe": true,"#, "`vision_config.use_moe`"),
        ] {
            let error = chat(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, text, expected) in [
            (r#""downsample_ratio": 0.3,"#, "", "qwen2", "`downsample_ratio` of 0.3"),
            (r#""downsample_ratio": 0.2,"#, "", "qwen2", "tokens of 5x5 patches"),
            (r#""downsample_ratio": 0,"#, "", "qwen2", "`downsample_ratio` of 0"),
            (r#""vision_feature_layer": -2,"#, "", "qwen2", "`vision_feature_layer`"),
            ("", r#""norm_type": "batch_norm","#, "qwen2", "`vision_config.norm_type`"),
            ("", r#""use_mask_token": true,"#, "qwen2", "`vision_config.use_mask_token`"),
            ("", "", "opt", "a text part of type `opt` is not supported"),
        ] {
            let error = specs(top, vision, text).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }

    #[test]
    fn qianfan_has_keys_of_one_layout_and_tensors_of_the_other() {
        let tower = |vision: &str| {
            let text = format!(
                r#"{{"architectures": ["QianfanOCRForConditionalGeneration"], "image_token_id": 8,
                "vision_config": {{{vision} "hidden_size": 24, "intermediate_size": 40,
                "num_attention_heads": 3, "num_hidden_layers": 1, "image_size": [32, 32],
                "patch_size": [8, 8]}}, "text_config": {{"hidden_size": 32,
                "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 8, "num_hidden_layers": 1, "max_position_embeddings": 64,
                "vocab_size": 9}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            let tower = crate::tower_spec(&config).map_err(|error| error.to_string());
            tower.map(|tower| tower.expect("a tower"))
        };
        let spec = tower("").unwrap();
        assert!(matches!(spec.text, ImageText::EnclosedMark { .. }), "{:?}", spec.text);
        let names: Vec<_> = spec.tensors().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"vision_model.encoder.layers.0.attn.qkv.bias".to_owned()));
        for (vision, expected) in [
            (r#""use_mean_pooling": false,"#, "`vision_config.use_mean_pooling`"),
            (r#""use_qk_norm": true,"#, "`vision_config.use_qk_norm`"),
            (r#""model_type": "internvl_vision","#, "`vision_config.model_type`"),
        ] {
            let error = tower(vision).unwrap_err();
            assert!(error.contains(expected), "{vision}: {error}");
        }
    }
}
