//! Molmo 2: Qwen3 or OLMo 3 under names of its own, and a tower of SigLIP's shape without a norm
//! behind it. Patches of overlapping tiles are pooled by attention, through the streams of two
//! layers, and tokens of an image see each other. Names are those of the published files, which
//! transformers writes too.

use super::vision::side_of_square;
use crate::hf_config::{HfConfig, LayerType, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, Bidirectional, BlockNorms, ConnectorSpec, ConnectorStep,
    DecoderSpec, EmbeddingSpec, GridFit, GridPositions, GroupPool, ImageText, LayerSpec,
    LinearSpec, MarksSpec, MlpForm, MlpSpec, NormSpan, NormSpec, OutputSpec, QkNormSpec, QkvHeads,
    RopeScaling, RopeSpec, RowOrder, Stage, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// Prefixes of tensors of the tower and of what makes tokens of its patches.
const IMAGE_TENSORS: &[&str] = &["model.vision_backbone."];

/// What the names of the text part begin with, of the tower, and of what pools its patches.
const TEXT: &str = "model.transformer";
const VIT: &str = "model.vision_backbone.image_vit";
const POOLING: &str = "model.vision_backbone.image_pooling_2d";
const PROJECTOR: &str = "model.vision_backbone.image_projector";

/// Keys of parts that change nothing: of training, and how attention is computed.
const OF_PARTS: &[&str] = &[
    "attention_dropout",
    "attn_implementation",
    "dtype",
    "float32_attention",
    "image_feature_dropout",
    "initializer_range",
    "model_type",
    "residual_dropout",
    "torch_dtype",
];

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    config.root().expect("tie_word_embeddings", false)?;
    // That of the text part counts.
    config.root().ignore(&["vocab_size"]);
    let text = config.text_part();
    let keys = text.root();
    keys.expect("tie_word_embeddings", false)?;
    keys.expect("use_qk_norm", true)?;
    keys.ignore(&["embedding_dropout", "residual_dropout"]);
    let hidden = text.hidden_size()?;
    let eps = eps(&keys)?;
    let ropes = ropes(text)?;
    let is_scaled = scaled_layers(text)?;
    let layers = is_scaled.into_iter().enumerate().map(|(index, is_scaled)| {
        let rope = if is_scaled { 0 } else { 1 };
        layer(text, (index, rope), eps)
    });
    let lm_head = text.lm_head("lm_head", false)?;
    let norm = NormSpec::rms(format!("{TEXT}.ln_f"), hidden, eps);
    let mut embedding = EmbeddingSpec::of(table(config)?);
    embedding.of_media = IMAGE_TENSORS;
    Ok(DecoderSpec {
        max_model_len: ropes[0].scaling.context_len(text.max_position_embeddings()?),
        embedding,
        layers: layers.collect::<Result<_, _>>()?,
        ropes,
        output: OutputSpec::new(norm, lm_head),
        stage: Stage::WHOLE,
    })
}

fn eps(keys: &Section<'_>) -> Result<f32, EngineError> {
    Ok(keys.number_of(&["rms_norm_eps", "layer_norm_eps"])?.unwrap_or(1e-6) as f32)
}

/// The table of tokens: that of the words, and that of marks and patches behind it. transformers 5
/// writes its rows in two halves.
fn table(config: &HfConfig) -> Result<LinearSpec, EngineError> {
    let text = config.text_part();
    let (words, others) = (text.vocab_size()?, text.root().size_or("additional_vocab_size", 128)?);
    let num_rows = words + others;
    let first = match config.root().value("vision_config") {
        None => words,
        Some(_) => num_rows.div_ceil(2),
    };
    let parts = [("embedding", first), ("new_embedding", num_rows - first)];
    let parts = parts.map(|(part, rows)| (format!("{TEXT}.wte.{part}"), rows));
    Ok(LinearSpec::stacked(parts, text.hidden_size()?).as_parameters())
}

/// The rotary embedding as it is stretched, and as it is not.
fn ropes(text: &HfConfig) -> Result<Vec<RopeSpec>, EngineError> {
    let rope = text.rope_of(LayerType::Full, 10_000.0)?;
    let plain = RopeSpec { scaling: RopeScaling::None, ..rope.clone() };
    Ok(vec![rope, plain])
}

/// Of each layer, whether its rotary embedding is stretched.
fn scaled_layers(text: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let num_layers = text.num_layers()?;
    let Some(scaled) = text.root().numbers("rope_scaling_layers")? else {
        return Ok(vec![true; num_layers]);
    };
    Ok((0..num_layers).map(|index| scaled.contains(&(index as f64))).collect())
}

fn layer(
    text: &HfConfig,
    (index, rope): (usize, usize),
    eps: f32,
) -> Result<LayerSpec, EngineError> {
    let (keys, heads) = (text.root(), text.heads()?);
    let (hidden, inner) = (text.hidden_size()?, text.intermediate_size()?);
    let name = |part: &str| format!("{TEXT}.blocks.{index}.{part}");
    let norm = |part: &str| NormSpec::rms(name(part), hidden, eps);
    let norms = |part: &str| match keys.flag("norm_after")?.unwrap_or(false) {
        true => Ok::<_, EngineError>(BlockNorms::after(norm(part))),
        false => Ok(BlockNorms::before(norm(part))),
    };
    let has_bias = match keys.flag("qkv_bias")? {
        Some(has_bias) => has_bias,
        None => text.attention_bias()?,
    };
    let num_outputs = heads.q_width() + 2 * heads.kv_width();
    let qkv = LinearSpec::new(name("self_attn.att_proj"), num_outputs, hidden).with_bias(has_bias);
    let out = LinearSpec::new(name("self_attn.attn_out"), hidden, heads.q_width());
    let attention = AttentionSpec {
        rope: Some(rope),
        qk_norm: Some(qk_norm(text, index, (heads, eps))?),
        ..AttentionSpec::new(norms("attn_norm")?, heads, qkv, out)
    };
    let mlp = MlpSpec {
        norms: norms("ff_norm")?,
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(text.activation()?),
        up: LinearSpec::new(name("mlp.ff_proj"), 2 * inner, hidden)
            .in_order(RowOrder::second_half_first(2 * inner)),
        down: LinearSpec::new(name("mlp.ff_out"), hidden, inner),
    };
    Ok(LayerSpec::new(attention, mlp))
}

/// Norms of each head, or of all of q and all of k.
fn qk_norm(
    text: &HfConfig,
    index: usize,
    (heads, eps): (QkvHeads, f32),
) -> Result<QkNormSpec, EngineError> {
    let norm = |part: &str, width| {
        NormSpec::rms(format!("{TEXT}.blocks.{index}.self_attn.{part}"), width, eps)
    };
    match text.root().text("qk_norm_type")?.unwrap_or("qwen3") {
        "qwen3" => {
            let width = heads.head_dim;
            Ok(QkNormSpec::per_head(norm("q_norm", width), norm("k_norm", width)))
        }
        "olmo" => {
            let norms = (norm("q_norm", heads.q_width()), norm("k_norm", heads.kv_width()));
            let norms = QkNormSpec::per_head(norms.0, norms.1);
            Ok(QkNormSpec { span: NormSpan::AllHeads, ..norms })
        }
        other => Err(text.error(format!("`qk_norm_type` {} is not supported", quoted(other)))),
    }
}

/// Sizes of the tower.
struct Vit {
    width: usize,
    inner: usize,
    num_layers: usize,
    heads: QkvHeads,
    has_bias: bool,
    eps: f32,
    activation: Activation,
    patch_size: usize,
    side: usize,
}

/// Patches of the side of a token: what its image processor pools.
const POOLING_SIDE: usize = 2;

fn heads(config: &HfConfig, keys: &Section<'_>) -> Result<QkvHeads, EngineError> {
    // All files have them, and the text part has some of the same names.
    let num_heads = keys.size("num_attention_heads")?;
    let num_kv_heads = keys.size("num_key_value_heads")?;
    config.check_kv_heads(num_heads, num_kv_heads)?;
    let head_dim = keys.size("head_dim")?;
    config.checked(QkvHeads { num_heads, num_kv_heads, head_dim })
}

impl Vit {
    fn read(config: &HfConfig, keys: &Section<'_>) -> Result<Self, EngineError> {
        keys.expect("num_channels", 3)?;
        keys.ignore(OF_PARTS);
        let patch_size = keys.size_of_or(&["patch_size", "image_patch_size"], 14)?;
        let key = match keys.value("image_size") {
            Some(_) => "image_size",
            None => "image_default_input_size",
        };
        let image_size = side_of_square(config, keys, key, 378)?;
        let num_layers = keys.size("num_hidden_layers")?;
        limits::check_tower_grid(patch_size, image_size, POOLING_SIDE)
            .and_then(|()| limits::check_tower_layers(num_layers))
            .map_err(|text| config.error(text))?;
        let side = image_size / patch_size;
        let names = ["num_position_embeddings", "image_num_pos"];
        let num_positions = keys.size_of_or(&names, side * side)?;
        if num_positions != side * side {
            return Err(config.error(format!(
                "`image_num_pos` of {num_positions} is not that of {side}x{side} patches"
            )));
        }
        Ok(Self {
            width: keys.size("hidden_size")?,
            inner: keys.size("intermediate_size")?,
            num_layers,
            heads: heads(config, keys)?,
            has_bias: keys.flag("attention_bias")?.unwrap_or(true),
            eps: keys.number("layer_norm_eps")?.unwrap_or(1e-6) as f32,
            activation: config
                .activation_named_or(keys.text("hidden_act")?, Activation::GeluTanh)?,
            patch_size,
            side,
        })
    }

    fn layer(&self, index: usize) -> LayerSpec {
        let Self { width, inner, heads, has_bias, eps, activation, .. } = *self;
        let name = |part: &str| format!("{VIT}.transformer.resblocks.{index}.{part}");
        let norm = |part| BlockNorms::before(NormSpec::layer(name(part), width, eps));
        let linear = |part, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
        let (q, kv) = (heads.q_width(), heads.kv_width());
        let qkv = [("attention.wq", q), ("attention.wk", kv), ("attention.wv", kv)];
        let qkv = LinearSpec::stacked(qkv.map(|(part, n)| (name(part), n)), width);
        let out = linear("attention.wo", width, q).with_bias(has_bias);
        let attention =
            AttentionSpec::new(norm("attention_norm"), heads, qkv.with_bias(has_bias), out);
        let mlp = MlpSpec {
            norms: norm("ffn_norm"),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(activation),
            up: linear("feed_forward.w1", inner, width),
            down: linear("feed_forward.w2", width, inner),
        };
        LayerSpec::new(attention, mlp)
    }
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let (own, published) = (root.section("vision_config")?, root.section("vit_config")?);
    let keys = own.as_ref().or(published.as_ref());
    let keys = keys.ok_or_else(|| config.error("`vision_config` is missing"))?;
    let vit = Vit::read(config, keys)?;
    let adapter = root.section("adapter_config")?;
    let adapter = adapter.ok_or_else(|| config.error("`adapter_config` is missing"))?;
    let states = states(config, &adapter, vit.num_layers)?;
    let num_used = states.iter().copied().max().unwrap_or(0);
    // Files of the published kind do not have the layers behind.
    let behind = if published.is_some() { num_used..num_used } else { num_used..vit.num_layers };
    let connector = connector(config, &adapter, (vit.width, states.len()))?;
    let (marks, image_token_id) = marks(config)?;
    let table = LinearSpec::new(format!("{VIT}.positional_embedding"), vit.side.pow(2), vit.width);
    let num_samples = 3 * vit.patch_size.pow(2);
    // Bands of a pixel are stored beside each other.
    let patches = LinearSpec::new(format!("{VIT}.patch_embedding"), vit.width, num_samples);
    let layers = (0..num_used).map(|index| vit.layer(index)).collect();
    let text = ImageText::Marked { shown: "<|image|>" };
    Ok(TowerSpec {
        merge_size: POOLING_SIDE,
        bidirectional: Bidirectional::Images,
        positions: Some(GridPositions {
            table: table.as_parameters(),
            side: vit.side,
            fit: GridFit::OwnAlone,
        }),
        states,
        marks: Some(marks),
        unused: behind.map(|index| format!("{VIT}.transformer.resblocks.{index}.")).collect(),
        ..TowerSpec::new(
            TokenId::Known(image_token_id),
            text,
            vit.patch_size,
            patches.with_bias(true).by_channel(3),
            layers,
            connector,
        )
    })
}

/// Streams that are pooled: behind how many layers.
fn states(
    config: &HfConfig,
    adapter: &Section<'_>,
    num_layers: usize,
) -> Result<Vec<usize>, EngineError> {
    let layers = match adapter.numbers("vision_feature_layer")? {
        Some(layers) => layers,
        None => adapter.numbers("vit_layers")?.unwrap_or(vec![24.0, 18.0]),
    };
    let num = num_layers as i64;
    let is_layer = |layer: &f64| layer.fract() == 0.0 && (-num..num).contains(&(*layer as i64));
    match !layers.is_empty() && layers.iter().all(is_layer) {
        true => {
            Ok(layers.iter().map(|layer| (*layer as i64).rem_euclid(num) as usize + 1).collect())
        }
        false => {
            Err(config
                .error(format!("`vit_layers` should be of the {num} layers of the vision tower")))
        }
    }
}

/// From the patches of a token, with so many streams of this width each, to its embedding.
fn connector(
    config: &HfConfig,
    adapter: &Section<'_>,
    (width, num_states): (usize, usize),
) -> Result<ConnectorSpec, EngineError> {
    let hidden = config.text_part().hidden_size()?;
    adapter.expect("pooling_attention_mask", true)?;
    adapter.expect("text_hidden_size", hidden)?;
    adapter.ignore(OF_PARTS);
    let (own, heads) = (adapter.size("hidden_size")?, heads(config, adapter)?);
    if own != width {
        return Err(config.error(format!(
            "`adapter_config.hidden_size` of {own} is not that of the vision tower"
        )));
    }
    let (has_bias, mlp_bias) = (
        adapter.flag("attention_bias")?.unwrap_or(true),
        adapter.flag("mlp_bias")?.unwrap_or(false),
    );
    let inner = adapter.size("intermediate_size")?;
    let width = width * num_states;
    let of_pooling = |part: &str| format!("{POOLING}.{part}");
    let of_projector = |part: &str| format!("{PROJECTOR}.{part}");
    let (q, kv) = (heads.q_width(), heads.kv_width());
    let pool = GroupPool {
        q: LinearSpec::new(of_pooling("wq"), q, width).with_bias(has_bias),
        kv: LinearSpec::stacked([(of_pooling("wk"), kv), (of_pooling("wv"), kv)], width)
            .with_bias(has_bias),
        heads,
    };
    let gated = [(of_projector("w1"), inner), (of_projector("w3"), inner)];
    let steps = vec![
        ConnectorStep::GroupPool(pool),
        ConnectorStep::Linear(LinearSpec::new(of_pooling("wo"), own, q).with_bias(has_bias)),
        ConnectorStep::Linear(LinearSpec::stacked(gated, own).with_bias(mlp_bias)),
        ConnectorStep::Gate(
            config.activation_named_or(adapter.text("hidden_act")?, Activation::Silu)?,
        ),
    ];
    Ok(ConnectorSpec { steps, last: LinearSpec::new(of_projector("w2"), hidden, inner) })
}

/// The marks of an image, as `Joined` of the image processor numbers them, and the token that
/// stands for one of its own.
fn marks(config: &HfConfig) -> Result<(MarksSpec, u32), EngineError> {
    let root = config.root();
    // Of videos, and of a kind of tokens that no processor writes.
    root.ignore(&[
        "frame_end_token_id",
        "frame_start_token_id",
        "image_high_res_id",
        "image_low_res_id",
        "use_frame_special_tokens",
    ]);
    let table = table(config)?;
    let num_tokens = table.n();
    let token =
        |key: &str, default: usize| {
            let id = root.optional_size(key)?.unwrap_or(default);
            match id < num_tokens {
                true => Ok(id as u32),
                false => Err(config
                    .error(format!("`{key}` of {id} is not in a table of {num_tokens} tokens"))),
            }
        };
    let patch = token("image_patch_id", 151_938)?;
    // transformers 5 writes no key for it.
    let column = token("image_col_id", patch as usize + 1)?;
    let ids = vec![
        token("low_res_image_start_token_id", 151_940)?,
        token("image_start_token_id", 151_936)?,
        column,
        token("image_end_token_id", 151_937)?,
    ];
    let rows = ids.iter().chain([&patch]).map(|id| *id as usize);
    Ok((MarksSpec { table: table.of_rows(rows), ids, is_added: true }, patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn config(top: &str, text: &str, adapter: &str) -> String {
        format!(
            r#"{{"architectures": ["Molmo2ForConditionalGeneration"], {top}
            "image_start_token_id": 50, "image_end_token_id": 51, "image_patch_id": 52,
            "low_res_image_start_token_id": 54, "vit_config": {{"hidden_size": 16,
            "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 20, "num_hidden_layers": 27, "image_patch_size": 8,
            "image_default_input_size": [40, 40]}}, "adapter_config": {{{adapter}
            "hidden_size": 16, "head_dim": 8, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": 12}}, "text_config": {{{text}
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3,
            "max_position_embeddings": 64, "vocab_size": 50, "additional_vocab_size": 8}}}}"#
        )
    }

    fn specs(top: &str, text: &str, adapter: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        specs_of(&config(top, text, adapter))
    }

    #[test]
    fn a_tower_has_the_layers_that_are_read_and_marks_of_the_table() {
        let (decoder, tower) = specs("", "", r#""vit_layers": [-3, -9],"#).unwrap();
        assert_eq!((tower.layers.len(), &tower.states[..]), (25, &[25, 19][..]));
        assert!(tower.unused.is_empty());
        let marks = tower.marks.as_ref().unwrap();
        assert_eq!((&marks.ids[..], marks.table.n()), (&[54, 50, 53, 51][..], 5));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        let pooling = "model.vision_backbone.image_pooling_2d";
        assert_eq!(shape(&format!("{pooling}.wq.weight")), [16, 32]);
        assert_eq!(shape(&format!("{pooling}.wv.weight")), [8, 32]);
        assert_eq!(shape("model.vision_backbone.image_vit.positional_embedding"), [25, 16]);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
        let tensors = decoder.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.transformer.wte.new_embedding"), [8, 32]);
        assert_eq!((shape("lm_head.weight"), decoder.vocab_size()), (vec![50, 32], 58));
        // As transformers 5 writes them.
        let saved = config("", "", "").replace("vit_config", "vision_config");
        let (decoder, tower) = specs_of(&saved).unwrap();
        assert_eq!(tower.unused.len(), 2);
        let tensors = decoder.tensors();
        assert_eq!(shape_of(&tensors, "model.transformer.wte.embedding"), [29, 32]);
    }

    #[test]
    fn some_layers_are_stretched() {
        let yarn = r#""rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "rope_scaling_layers": [1],"#;
        let (decoder, _) = specs("", yarn, "").unwrap();
        let ropes: Vec<_> = decoder.attentions().map(|attention| attention.rope).collect();
        assert_eq!(ropes, [Some(1), Some(0), Some(1)]);
        assert_eq!(decoder.ropes[1].scaling, RopeScaling::None);
    }

    #[test]
    fn what_is_not_computed_is_refused() {
        for (top, text, adapter, expected) in [
            (r#""image_col_id": 58,"#, "", "", "`image_col_id` of 58"),
            ("", r#""qk_norm_type": "other","#, "", "`qk_norm_type` `other`"),
            ("", r#""use_qk_norm": false,"#, "", "`use_qk_norm`"),
            ("", r#""tie_word_embeddings": true,"#, "", "`tie_word_embeddings`"),
            ("", "", r#""vit_layers": [27],"#, "`vit_layers`"),
            ("", "", r#""vit_layers": [],"#, "`vit_layers`"),
            (
                "",
                "",
                r#""pooling_attention_mask": false,"#,
                "`adapter_config.pooling_attention_mask",
            ),
            ("", "", r#""text_hidden_size": 31,"#, "`adapter_config.text_hidden_size"),
            ("", "", r#""pooling": 1,"#, "`adapter_config.pooling` is not known"),
        ] {
            let error = specs(top, text, adapter).unwrap_err();
            assert!(error.contains(expected), "{top} {text} {adapter}: {error}");
        }
    }
}
