//! `TextLayers`: layers over whole texts, or over the tiles of images. Tokens of one attend to each
//! other alone, in the same pass, without a cache. What encoders and towers have in common.

use super::loading::{AttentionWeights, LayerWeights};
use super::stream::{Stream, begin_heads, scale_q};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{AttentionSpec, LayerSpec};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    EncoderAttentionShape, EncoderScratch, QkvHeads, RelativeBias, RotaryTable, SquaresScratch,
    Step, TextLimits,
};

/// What attention works in, for steps of up to T tokens.
#[derive(Debug)]
pub(super) struct TextBuffers {
    /// (T, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv: Tensor,
    /// (T, num_heads * head_dim)
    attended: Tensor,
    scratch: EncoderScratch,
    squares: SquaresScratch,
}

impl TextBuffers {
    /// Buffers for steps in these limits through these layers, which have heads in these numbers at
    /// most.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        (device, dtype): (&Device, DType),
        layers: &[LayerSpec],
        heads: QkvHeads,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let attentions = || layers.iter().filter_map(|layer| layer.attention.as_ref());
        let widest = |of: fn(&AttentionSpec) -> usize| attentions().map(of).max().unwrap_or(0);
        // What is bounded is no input yet.
        let has_squares = attentions().any(|attention| attention.squares.is_some());
        let is_input = !layers.iter().any(LayerSpec::is_bounded) && !has_squares;
        let precision = match is_input && attentions().all(|a| a.v_dim().is_multiple_of(2)) {
            true => Precision::Attended(dtype),
            false => Precision::Activation,
        };
        let per_token = |width, precision| device.tensor(limits.max_num_tokens, width, precision);
        Ok(Self {
            qkv: per_token(widest(|attention| attention.qkv.n()), Precision::Activation)?,
            attended: per_token(widest(|attention| attention.out.k), precision)?,
            scratch: EncoderScratch::new((device, dtype), heads, limits)?,
            squares: SquaresScratch::default(),
        })
    }
}

/// Layers, and one step that goes through them.
pub(super) struct TextLayers<'a> {
    pub device: &'a Device,
    pub layers: (&'a [LayerSpec], &'a [LayerWeights]),
    /// Rotary embeddings that layers refer to.
    pub ropes: &'a [RotaryTable],
    /// Added to scores.
    pub bias: Option<&'a RelativeBias>,
    /// A token sees those up to it alone, and itself.
    pub is_causal: bool,
    /// Windows in texts. A window's tokens lie beside each other.
    pub windows: Option<TextWindows<'a>>,
    pub step: Step<'a>,
}

/// Windows of tokens that see each other alone.
pub(super) struct TextWindows<'a> {
    /// The same rows; windows are its texts.
    pub step: Step<'a>,
    /// Layers in which whole texts are seen all the same.
    pub is_whole: &'a [bool],
}

impl TextLayers<'_> {
    /// Brings the stream behind the last layer, all of it added.
    pub(super) fn run(&self, stream: &mut Stream, buffers: &mut TextBuffers) {
        let (specs, weights) = self.layers;
        for (index, layer) in specs.iter().zip(weights).enumerate() {
            let windows = self.windows.as_ref().filter(|windows| !windows.is_whole[index]);
            let seen = windows.map_or(self.step, |windows| windows.step);
            stream.layer(self.device, layer, |stream, _| {
                if let (Some(spec), Some(weights)) = (&layer.0.attention, &layer.1.attention) {
                    self.attention((spec, weights), seen, (stream, buffers));
                }
            });
        }
        stream.settle(self.device);
    }

    /// `seen`: the step, with texts in which tokens see each other.
    fn attention(
        &self,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        seen: Step<'_>,
        (stream, buffers): (&mut Stream, &mut TextBuffers),
    ) {
        let device = self.device;
        let TextBuffers { qkv, attended, scratch, squares } = buffers;
        stream.qkv(device, (spec, weights), qkv, None);
        if let Some(own) = &weights.squares {
            attended.reshape(qkv.num_rows(), spec.out.k);
            own.attend(device, (qkv, seen), (squares, scratch), attended);
            return stream.last_product(device, attended, &weights.out);
        }
        let rope = spec.rope.map(|rope| &self.ropes[rope]);
        let left = begin_heads(device, (spec, weights), rope, seen, qkv);
        ops::rotate_texts(device, (qkv, spec.heads), left, seen, scratch);
        scale_q(device, spec, seen, qkv);
        // Chunks are refused. A decoder counts the token itself.
        let window = spec.reach.window();
        let (before, after) = match self.is_causal {
            true => (window.map(|window| window - 1), Some(0)),
            false => (window, window),
        };
        let AttentionSpec { heads, scale, soft_cap, .. } = *spec;
        let shape =
            EncoderAttentionShape { heads, scale, soft_cap, before, after, bias: self.bias };
        attended.reshape(seen.num_rows(), spec.out.k);
        ops::encoder_attention(device, (qkv, seen), shape, scratch, attended);
        stream.last_product(device, attended, &weights.out);
    }
}
