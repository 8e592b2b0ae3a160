//! Qwen3-VL: Qwen3 with positions on three axes by turns, and a tower with mixtures of learned
//! positions, some of whose layers give what is added behind the decoder's first layers
//! (deepstack).

use serde_json::json;

use super::qwen_vision::{self, QwenVision, name};
use super::{BuildSpec, qwen3, qwen3_moe};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AxisFrequency, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, DeepSpec,
    GridFit, GridPositions, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

const EPS: f32 = 1e-6;

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    with_tower(config, &tower(config)?, (qwen3::spec, [24, 20, 20]))
}

/// The text part with experts.
pub(super) fn spec_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    experts_with_tower(config, &tower(config)?)
}

/// The same beside another tower, whose keys are this file's too.
pub(super) fn experts_with_tower(
    config: &HfConfig,
    tower: &TowerSpec,
) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    // Its class computes so, and has no key for it.
    text.assume(&[("norm_topk_prob", json!(true))]);
    text.root().expect("norm_topk_prob", true)?;
    with_tower(config, tower, (qwen3_moe::spec, [24, 20, 20]))
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    tower_with(config, &[8, 16, 24])
}

/// The text part as this family has it, with these sections where the file does not say; the
/// tower's keys are this file's too.
pub(super) fn with_tower(
    config: &HfConfig,
    tower: &TowerSpec,
    (build, sections): (BuildSpec, [usize; 3]),
) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    let spec = qwen_vision::text_part(config, build, &AxisFrequency::sections(sections, true))?;
    let num_deep = tower.deep.len();
    if num_deep > spec.layers.len() {
        return Err(config.error(format!(
            "{num_deep} layers of `deepstack_visual_indexes` are more than the text part has"
        )));
    }
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(section) = text.root().section(key)? else { continue };
        let is_by_turns = section.flag("mrope_interleaved")? == Some(true);
        if section.value("mrope_section").is_some() && !is_by_turns {
            return Err(config.error("`mrope_interleaved` should be true, as its class computes"));
        }
    }
    Ok(spec)
}

/// What the parts are called that make embeddings of patches.
#[derive(Clone, Copy)]
pub(super) struct MergerNames {
    /// Those of layers that go further into the decoder.
    pub(super) deep: &'static str,
    pub(super) norm: &'static str,
    pub(super) first: &'static str,
    pub(super) last: &'static str,
}

const MERGERS: MergerNames = MergerNames {
    deep: "deepstack_merger_list",
    norm: "norm",
    first: "linear_fc1",
    last: "linear_fc2",
};

/// A tower of which these layers go further into the decoder where the file does not say.
pub(super) fn tower_with(
    config: &HfConfig,
    deep_layers: &[usize],
) -> Result<TowerSpec, EngineError> {
    tower_named(config, deep_layers, MERGERS)
}

/// The same with other names.
pub(super) fn tower_named(
    config: &HfConfig,
    deep_layers: &[usize],
    names: MergerNames,
) -> Result<TowerSpec, EngineError> {
    let vision = QwenVision::read(config, ("hidden_size", 1152), [16, 27, 16])?;
    let inner = vision.keys.size_or("intermediate_size", 4304)?;
    let hidden_size = vision.keys.size_or("out_hidden_size", 3584)?;
    let activation =
        config.activation_named_or(vision.keys.text("hidden_act")?, Activation::GeluTanh)?;
    let width = vision.width;
    let layer = |index: usize| {
        let prefix = name(&format!("blocks.{index}"));
        let part = |part: &str| format!("{prefix}.{part}");
        let norm = |name| BlockNorms::before(NormSpec::layer(part(name), width, EPS));
        let linear = |name, n, k| LinearSpec::new(part(name), n, k).with_bias(true);
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(activation),
            up: linear("mlp.linear_fc1", inner, width),
            down: linear("mlp.linear_fc2", width, inner),
        };
        LayerSpec::new(vision.attention(&prefix, norm("norm1")), mlp)
    };
    let layers = (0..vision.num_layers).map(layer).collect();
    let merged = width * vision.merge_size * vision.merge_size;
    let merger = |prefix: &str, is_normed_first: bool| {
        let linear = |part: &str, n| {
            LinearSpec::new(name(&format!("{prefix}.{part}")), n, merged).with_bias(true)
        };
        let norm = name(&format!("{prefix}.{}", names.norm));
        let mut steps = match is_normed_first {
            true => {
                vec![ConnectorStep::Norm(NormSpec::layer(norm, width, EPS)), ConnectorStep::Merge]
            }
            false => {
                vec![ConnectorStep::Merge, ConnectorStep::Norm(NormSpec::layer(norm, merged, EPS))]
            }
        };
        steps.push(ConnectorStep::Linear(linear(names.first, merged)));
        steps.push(ConnectorStep::Activate(Activation::Gelu));
        ConnectorSpec { steps, last: linear(names.last, hidden_size) }
    };
    let deep = layers_of_deep(config, &vision, deep_layers)?.into_iter().enumerate().map(
        |(index, layer)| DeepSpec {
            layer,
            connector: merger(&format!("{}.{index}", names.deep), false),
        },
    );
    let deep = deep.collect();
    let tower = vision.tower(config, layers, merger("merger", true))?;
    Ok(TowerSpec {
        patches: tower.patches.with_bias(true),
        positions: Some(positions(config, &vision)?),
        deep,
        ..tower
    })
}

/// `deepstack_visual_indexes`, in order.
fn layers_of_deep(
    config: &HfConfig,
    vision: &QwenVision<'_>,
    default: &[usize],
) -> Result<Vec<usize>, EngineError> {
    let Some(list) = vision.keys.list("deepstack_visual_indexes")? else {
        return Ok(default.iter().copied().filter(|layer| *layer < vision.num_layers).collect());
    };
    let layers = list.iter().map(|index| index.as_u64().map(|index| index as usize));
    let layers = layers.collect::<Option<Vec<_>>>().filter(|layers| {
        layers.is_sorted_by(|a, b| a < b)
            && layers.last().is_none_or(|last| *last < vision.num_layers)
    });
    layers.ok_or_else(|| {
        config.error("`deepstack_visual_indexes` should be a list of layers, in their order")
    })
}

fn positions(config: &HfConfig, vision: &QwenVision<'_>) -> Result<GridPositions, EngineError> {
    let num = vision.keys.size_or("num_position_embeddings", 2304)?;
    let side = num.isqrt();
    if side * side != num {
        return Err(config.error(format!("`num_position_embeddings` of {num} is no square")));
    }
    let table = LinearSpec::new(name("pos_embed"), num, vision.width);
    Ok(GridPositions { table, side, fit: GridFit::Between })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    const MROPE: &str =
        r#""rope_scaling": {"mrope_section": [4, 2, 2], "mrope_interleaved": true},"#;

    fn specs(text: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 8,
            "vision_config": {{{vision} "num_heads": 2, "hidden_size": 16, "out_hidden_size": 32}},
            "text_config": {{"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, {text}
            "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64,
            "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs(MROPE, "").unwrap();
        let axes: Vec<_> = decoder.ropes[0].axes.iter().map(|pair| pair.axis).collect();
        assert_eq!(axes, [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!((tower.patch_size, tower.layers.len()), (16, 27));
        let layers: Vec<_> = tower.deep.iter().map(|deep| deep.layer).collect();
        assert_eq!((layers, tower.positions.as_ref().unwrap().side), (vec![8, 16, 24], 48));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.visual.patch_embed.proj.bias"), [16]);
        assert_eq!(shape("model.visual.pos_embed.weight"), [2304, 16]);
        assert_eq!(shape("model.visual.merger.norm.weight"), [16]);
        assert_eq!(shape("model.visual.deepstack_merger_list.2.norm.weight"), [64]);
        assert_eq!(shape("model.visual.blocks.26.mlp.linear_fc1.weight"), [4304, 16]);
        assert_eq!(tensors.len(), 2 + 1 + 27 * 12 + 4 * 6);
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        let contiguous = r#""rope_scaling": {"mrope_section": [4, 2, 2]},"#;
        for (text, vision, expected) in [
            ("", "", "`mrope_section` is missing"),
            (contiguous, "", "`mrope_interleaved` should be true"),
            (MROPE, r#""num_position_embeddings": 8,"#, "of 8 is no square"),
            (MROPE, r#""deepstack_visual_indexes": [2, 1],"#, "in their order"),
            (MROPE, r#""deepstack_visual_indexes": [27],"#, "in their order"),
            (MROPE, r#""deepstack_visual_indexes": [0, 1, 2, 3],"#, "4 layers of"),
        ] {
            let error = specs(text, vision).unwrap_err();
            assert!(error.contains(expected), "{text} {vision}: {error}");
        }
    }
}
