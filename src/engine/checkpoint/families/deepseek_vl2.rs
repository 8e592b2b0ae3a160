//! DeepSeek-VL2 in the layout of its own code: DeepSeek V2 beside SigLIP of timm. Tiles and the
//! whole image are laid out with an embedding behind each row and one between them; squares of
//! patches, which may stand out over the edge of a tile, go through an MLP.

use serde_json::{Value, json};

use super::deepseek;
use super::vision::{self, LayerNames, PlainLayer};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, GridFit, GridPositions, ImageText, LinearSpec,
    NormSpec, QkvHeads, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Its prompts, which no file has a template of: as `processing_deepseek_vl_v2.py` of its own code
/// makes them of messages.
pub(super) const CHAT_TEMPLATE: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- set content -%}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<image>' -}}
{%- if not loop.last and not (loop.nextitem.text or '').startswith('\\n') -%}{{- '\\n' -}}{%- endif -%}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endset -%}
{%- if message.role == 'user' -%}{{- '<|User|>: ' + content | trim + '\\n\\n<|Assistant|>:' -}}
{%- elif message.role == 'assistant' -%}{{- content | trim + eos_token -}}
{%- elif message.role == 'system' and loop.first -%}{{- content | trim -}}
{%- else -%}{{- raise_exception('DeepSeek-VL2 takes messages of users and assistants, and a system message before them') -}}
{%- endif -%}
{%- endfor -%}";

/// Prefixes of tensors of images, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] = &["image_newline", "projector.", "view_seperator", "vision."];

/// Epsilon of all norms of timm's towers.
const EPS: f32 = 1e-6;

const LAYER: LayerNames = LayerNames {
    norms: ["norm1", "norm2"],
    qkv: &["attn.qkv"],
    out: "attn.proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Their keys are this file's too.
    tower(config)?;
    processor(config)?;
    let mut spec = deepseek::vl2(config.text_part())?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// What the configuration of an image processor would be.
pub(super) fn processor(config: &HfConfig) -> Result<Value, EngineError> {
    let sizes = config.root().list("candidate_resolutions")?;
    let sizes = sizes.ok_or_else(|| config.error("`candidate_resolutions` is missing"))?;
    Ok(json!({ "image_processor_type": "DeepseekVLV2Processor", "candidate_resolutions": sizes }))
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    root.expect("global_view_pos", "head")?;
    if root.text("tile_tag")? != Some("2D") {
        return Err(config.error("a `tile_tag` other than `2D` is not supported"));
    }
    let projector = Projector::read(config)?;
    let keys = vision::section(config)?;
    keys.expect("class_token", false)?;
    keys.expect("global_pool", "map")?;
    keys.expect("ignore_head", true)?;
    // Of a head that nobody reads, and of training.
    keys.ignore(&[
        "deterministic",
        "num_classes",
        "num_recomputing_layers",
        "use_checkpoint",
        "weight_init",
    ]);
    let (width, num_heads) = (keys.size_or("width", 1024)?, keys.size_or("heads", 16)?);
    let (patch_size, image_size) =
        (keys.size_or("patch_size", 16)?, keys.size_or("image_size", 384)?);
    let num_layers = keys.size_or("layers", 24)?;
    limits::check_tower_grid(patch_size, image_size, projector.merge_size)
        .and_then(|()| limits::check_tower_layers(num_layers))
        .map_err(|text| config.error(text))?;
    if !width.is_multiple_of(num_heads) {
        return Err(
            config.error(format!("a tower of width {width} has no {num_heads} equal heads"))
        );
    }
    let heads = QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads };
    // `int` of Python.
    let inner = (width as f64 * keys.number("mlp_ratio")?.unwrap_or(4.0)) as usize;
    let layer = PlainLayer { width, inner, heads, eps: EPS, activation: Activation::GeluTanh };
    let name = |part: &str| format!("vision.{part}");
    let layers = layer.named_layers(&name("blocks"), num_layers, &LAYER);
    let patches = LinearSpec::of_patches(name("patch_embed.proj"), width, patch_size);
    let side = image_size / patch_size;
    // (1, positions, width)
    let table = LinearSpec::of_stack(name("pos_embed"), 1, (side * side, width)).as_parameters();
    let (text, token) = (ImageText::Bare, TokenId::OfText("<image>"));
    let (connector, n) = (projector.connector(config, width)?, config.text_part().hidden_size()?);
    Ok(TowerSpec {
        merge_size: projector.merge_size,
        overhangs: true,
        positions: Some(GridPositions { table, side, fit: GridFit::OwnAlone }),
        final_norm: Some(NormSpec::layer(name("norm"), width, EPS)),
        newline: Some(("image_newline".to_owned(), vec![n])),
        separator: Some(("view_seperator".to_owned(), vec![n])),
        unused: vec![name("attn_pool.")],
        ..TowerSpec::new(token, text, patch_size, patches.with_bias(true), layers, connector)
    })
}

/// What makes tokens of squares of patches.
struct Projector<'a> {
    keys: Option<Section<'a>>,
    merge_size: usize,
    depth: usize,
    /// Width between its products.
    inner: usize,
}

impl<'a> Projector<'a> {
    fn read(config: &'a HfConfig) -> Result<Self, EngineError> {
        let keys = config.root().section("projector_config")?;
        let size = |key: &str, default: usize| match &keys {
            Some(keys) => keys.size_or(key, default),
            None => Ok(default),
        };
        if let Some(keys) = &keys {
            keys.expect("projector_type", "downsample_mlp_gelu")?;
            keys.expect("token_pooling", false)?;
        }
        let hidden_size = config.text_part().hidden_size()?;
        let (merge_size, depth) = (size("downsample_ratio", 2)?, size("depth", 2)?);
        let inner = size("mlp_ratio", 1)?.saturating_mul(hidden_size);
        if size("n_embed", 2048)? != hidden_size {
            return Err(config.error("`projector_config.n_embed` is not the text's `hidden_size`"));
        }
        match (2..=64).contains(&depth) && inner <= u32::MAX as usize {
            true => Ok(Self { keys, merge_size, depth, inner }),
            false => Err(config.error(format!(
                "a projector of {depth} products of width {inner} is not supported"
            ))),
        }
    }

    /// The MLP, whose activations are modules of their own. The values of a channel of all patches
    /// of a token stand beside each other.
    fn connector(&self, config: &HfConfig, width: usize) -> Result<ConnectorSpec, EngineError> {
        let input = self.keys.as_ref().map_or(Ok(1152), |keys| keys.size_or("input_dim", 1152))?;
        if input != width {
            return Err(config.error(format!(
                "`projector_config.input_dim` of {input} is not the tower's width of {width}"
            )));
        }
        let Self { merge_size, depth, inner, .. } = *self;
        let num_merged = merge_size * merge_size;
        let linear = |index: usize, n, k| {
            LinearSpec::new(format!("projector.layers.{}", 2 * index), n, k).with_bias(true)
        };
        let activate = || ConnectorStep::Activate(Activation::Gelu);
        let first = linear(0, inner, width * num_merged).by_channel(num_merged);
        let mut steps = vec![ConnectorStep::Merge, ConnectorStep::Linear(first), activate()];
        for index in 1..depth - 1 {
            steps.extend([ConnectorStep::Linear(linear(index, inner, inner)), activate()]);
        }
        let last = linear(depth - 1, config.text_part().hidden_size()?, inner);
        Ok(ConnectorSpec { steps, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str, text: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["DeepseekVLV2ForCausalLM"], {top}
            "candidate_resolutions": [[384, 384], [384, 768]],
            "vision_config": {{{vision} "mlp_ratio": 3.7362, "width": 1152, "patch_size": 14}},
            "language_config": {{{text} "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2,
            "vocab_size": 9, "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1, "q_lora_rank": null}}}}"#
        );
        specs_of(&text)
    }

    const PARTS: &str = r#""tile_tag": "2D", "projector_config": {"n_embed": 32},"#;
    const GREEDY: &str = r#""topk_method": "greedy","#;

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (_, tower) = specs(PARTS, "", GREEDY).unwrap();
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("vision.pos_embed"), [1, 729, 1152]);
        assert_eq!(shape("vision.blocks.23.mlp.fc1.weight"), [4304, 1152]);
        assert_eq!(shape("projector.layers.0.weight"), [32, 4608]);
        assert_eq!((shape("image_newline"), shape("view_seperator")), (vec![32], vec![32]));
        assert_eq!(tensors.len(), 3 + 24 * 12 + 2 + 4 + 2);
        let deep = PARTS.replace("32", r#"32, "depth": 3, "mlp_ratio": 2"#);
        let tensors = specs(&deep, "", GREEDY).unwrap().1.tensors();
        assert_eq!(shape_of(&tensors, "projector.layers.2.weight"), [64, 64]);
        assert_eq!(shape_of(&tensors, "projector.layers.4.weight"), [32, 64]);
    }

    #[test]
    fn its_text_has_latents_or_heads_and_either_routing() {
        let latent = specs(PARTS, "", GREEDY).unwrap().0;
        assert!(latent.attentions().all(|attention| attention.latent.is_some()));
        let tiny = r#""use_mla": false, "kv_lora_rank": null, "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0, "v_head_dim": 0, "lm_head": true, "rm_head": false,"#;
        let plain = specs(PARTS, "", &format!("{GREEDY}{tiny}")).unwrap().0;
        assert!(plain.attentions().all(|attention| attention.latent.is_none()));
        assert!(plain.experts().all(|experts| experts.choice_bias.is_none()));
        let v3 = r#""topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,"#;
        let biased = specs(PARTS, "", v3).unwrap().0;
        assert!(biased.experts().all(|experts| experts.choice_bias.is_some()));
        assert_eq!(biased.max_model_len, 2048);
    }

    #[test]
    fn what_no_code_computes_is_refused() {
        let projector = |keys: &str| PARTS.replace("32", &format!("32, {keys}"));
        for (top, vision, text, expected) in [
            (PARTS.replace("2D", "1D"), "", GREEDY, "`tile_tag`"),
            (format!(r#""global_view_pos": "tail", {PARTS}"#), "", GREEDY, "`global_view_pos`"),
            (projector(r#""token_pooling": true"#), "", GREEDY, "`projector_config.token_pooling`"),
            (projector(r#""depth": 1"#), "", GREEDY, "a projector of 1 products"),
            (projector(r#""input_dim": 1024"#), "", GREEDY, "`projector_config.input_dim`"),
            (PARTS.replace("32", "16"), "", GREEDY, "`projector_config.n_embed`"),
            (PARTS.to_owned(), r#""class_token": true,"#, GREEDY, "`vision_config.class_token`"),
            (PARTS.to_owned(), r#""heads": 7,"#, GREEDY, "no 7 equal heads"),
            (PARTS.to_owned(), "", r#""topk_method": "gready","#, "`topk_method`"),
        ] {
            let error = specs(&top, vision, text).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
