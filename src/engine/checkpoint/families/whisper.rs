//! Whisper: an encoder of sounds, and a decoder each of whose layers attends to its states.

use super::vision::{LayerNames, PlainLayer};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    BlockNorms, CONV_TAPS, ConvSpec, CrossSpec, DecoderSpec, EmbeddingSpec, FrameConvs, LayerSpec,
    LearnedPositions, LinearSpec, NormSpec, OutputSpec, QkvHeads, SoundFront, SoundPositions,
    SoundTowerSpec, SourceSpec, Stage,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// PyTorch's LayerNorm default; neither Whisper nor models that hear have a key for it.
pub(super) const LAYER_NORM_EPS: f32 = 1e-5;

/// Parts of a layer.
pub(super) const LAYER_NAMES: LayerNames = LayerNames {
    norms: ["self_attn_layer_norm", "final_layer_norm"],
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    up: "fc1",
    down: "fc2",
};

/// Frames for each state: the stride of the second convolution.
pub(super) const STRIDE: usize = 2;

/// Sizes of one of the two halves, or of an encoder of the same shape.
pub(super) struct Half {
    /// What the names of its tensors begin with.
    pub(super) name: &'static str,
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) num_layers: usize,
    pub(super) heads: QkvHeads,
    pub(super) activation: Activation,
}

impl Half {
    /// `key`: what the names of its keys begin with.
    fn read(config: &HfConfig, key: &str, name: &'static str) -> Result<Self, EngineError> {
        let root = config.root();
        let key = |part: &str| format!("{key}_{part}");
        let width = root.size("d_model")?;
        let num_heads = root.size(&key("attention_heads"))?;
        let head_dim = width / num_heads;
        let activation = root.text("activation_function")?;
        let num_layers = root.size(&key("layers"))?;
        limits::check_tower_layers(num_layers).map_err(|text| config.error(text))?;
        Ok(Self {
            name,
            width,
            inner: root.size(&key("ffn_dim"))?,
            num_layers,
            heads: config.checked(QkvHeads { num_heads, num_kv_heads: num_heads, head_dim })?,
            activation: config.activation_named_or(activation, Activation::Gelu)?,
        })
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    pub(super) fn norm(&self, part: &str) -> NormSpec {
        NormSpec::layer(self.name(part), self.width, LAYER_NORM_EPS)
    }

    fn linear(&self, part: &str, n: usize, k: usize) -> LinearSpec {
        LinearSpec::new(self.name(part), n, k).with_bias(true)
    }

    /// These projections of a block, of which keys have no bias.
    fn projections(&self, block: &str, parts: &[&str]) -> LinearSpec {
        let named =
            parts.iter().map(|part| (self.name(&format!("{block}.{part}")), self.heads.q_width()));
        let mut stacked = LinearSpec::stacked(named, self.width).with_bias(true);
        for (part, name) in stacked.parts.iter_mut().zip(parts) {
            part.lacks_bias = *name == "k_proj";
        }
        stacked
    }

    /// Its layers, without what attends to sounds.
    fn layers(&self) -> Vec<LayerSpec> {
        let Self { width, inner, heads, activation, .. } = *self;
        let layer = PlainLayer { width, inner, heads, eps: LAYER_NORM_EPS, activation };
        let mut layers = layer.named_layers(&self.name("layers"), self.num_layers, &LAYER_NAMES);
        layers.iter_mut().for_each(drop_key_bias);
        layers
    }

    /// The encoder that it is, of chunks of so many states.
    pub(super) fn tower(
        &self,
        config: &HfConfig,
        num_mels: usize,
        num_states: usize,
    ) -> Result<SoundTowerSpec, EngineError> {
        limits::check_sounds(num_mels, num_states).map_err(|text| config.error(text))?;
        let table = LinearSpec::new(self.name("embed_positions"), num_states, self.width);
        Ok(SoundTowerSpec {
            num_mels,
            num_frames: num_states * STRIDE,
            front: self.front(num_mels),
            positions: Some(SoundPositions::Learned(table)),
            rope: None,
            layers: self.layers(),
            final_norm: Some(self.norm("layer_norm")),
            tokens: None,
            unused: &[],
        })
    }

    /// The convolutions before its layers.
    pub(super) fn front(&self, num_mels: usize) -> SoundFront {
        let conv = |part: &str, inputs, stride| ConvSpec {
            linear: self.linear(part, self.width, CONV_TAPS * inputs).of_taps(CONV_TAPS),
            stride,
            activation: Activation::Gelu,
        };
        let convs = vec![conv("conv1", num_mels, 1), conv("conv2", self.width, STRIDE)];
        SoundFront::Frames(FrameConvs { convs, is_cut: false })
    }

    fn cross(&self, index: usize, source: SourceSpec) -> CrossSpec {
        let of_layer = |part: &str| format!("layers.{index}.{part}");
        let block = of_layer("encoder_attn");
        CrossSpec {
            norms: BlockNorms::before(self.norm(&of_layer("encoder_attn_layer_norm"))),
            heads: self.heads,
            q: self.projections(&block, &["q_proj"]),
            kv: self.projections(&block, &["k_proj", "v_proj"]),
            out: self.linear(&of_layer("encoder_attn.out_proj"), self.width, self.heads.q_width()),
            source,
        }
    }
}

/// Makes a layer's keys ones without a bias.
pub(super) fn drop_key_bias(layer: &mut LayerSpec) {
    let attention = layer.attention.as_mut().expect("each has one");
    attention.qkv.parts[1].lacks_bias = true;
}

/// The decoder. Its prompts begin with the positions of a sound.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Its keys are this file's too.
    let source = SourceSpec::new(sound_tower(config)?.num_states());
    root.expect("is_encoder_decoder", true)?;
    root.expect("use_weighted_layer_sum", false)?;
    // Of training and of classifiers, what generation_config.json has, the number of layers that
    // is read as `decoder_layers`, and what the class does not read.
    root.ignore(&[
        "apply_spec_augment",
        "begin_suppress_tokens",
        "classifier_proj_size",
        "decoder_layerdrop",
        "encoder_layerdrop",
        "forced_decoder_ids",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        "max_length",
        "median_filter_width",
        "num_hidden_layers",
        "scale_embedding",
    ]);
    let half = Half::read(config, "decoder", "model.decoder")?;
    let (vocab, num_tokens) = (config.vocab_size()?, root.size("max_target_positions")?);
    let layers = half.layers().into_iter().enumerate();
    let layers =
        layers.map(|(index, layer)| LayerSpec { cross: Some(half.cross(index, source)), ..layer });
    let table = LinearSpec::new(half.name("embed_positions"), num_tokens, half.width);
    let tokens = LinearSpec::new(half.name("embed_tokens"), vocab, half.width);
    Ok(DecoderSpec {
        max_model_len: source.num_positions.saturating_add(num_tokens),
        embedding: EmbeddingSpec {
            positions: Some(LearnedPositions { table, offset: 0 }),
            ..EmbeddingSpec::of(tokens)
        },
        layers: layers.collect(),
        ropes: Vec::new(),
        output: OutputSpec::new(half.norm("layer_norm"), config.lm_head("proj_out", true)?),
        stage: Stage::WHOLE,
    })
}

/// The encoder.
pub(super) fn sound_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let root = config.root();
    let half = Half::read(config, "encoder", "model.encoder")?;
    half.tower(config, root.size("num_mel_bins")?, root.size("max_source_positions")?)
}
