//! From a spec and a checkpoint to packed weights on a device.

use super::spec::{DecoderSpec, LayerSpec, NormPlacement};
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::device::{Device, Tensor};
use crate::engine::ops::{LinearWeight, NormKind, NormWeight, RotaryTable, StepLimits};

/// All weights of a decoder. Shapes are in the spec's terms.
#[derive(Debug)]
pub(super) struct DecoderWeights {
    /// (vocab_size, embedding width); also the output layer when tied.
    pub embed_tokens: LinearWeight,
    /// (num_rows, hidden_size)
    pub embed_positions: Option<Tensor>,
    /// (hidden_size, embedding width)
    pub project_in: Option<LinearWeight>,
    /// (embedding width, hidden_size)
    pub project_out: Option<LinearWeight>,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Option<NormWeight>,
    /// (vocab_size, embedding width) unless tied, or narrower than the table.
    pub lm_head: Option<LinearWeight>,
    pub ropes: Vec<RotaryTable>,
}

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub spec: LayerSpec,
    pub attention_norm: NormWeight,
    /// q, k and v stacked: ((num_heads + 2 * num_kv_heads) * head_dim, hidden_size)
    pub qkv_proj: LinearWeight,
    /// (head_dim)
    pub qk_norm: Option<(NormWeight, NormWeight)>,
    /// (hidden_size, num_heads * head_dim)
    pub out_proj: LinearWeight,
    pub attention_post_norm: Option<NormWeight>,
    pub mlp_norm: NormWeight,
    /// gate and up stacked: (2 * intermediate_size, hidden_size), or up alone.
    pub up_proj: LinearWeight,
    /// (hidden_size, intermediate_size)
    pub down_proj: LinearWeight,
    pub mlp_post_norm: Option<NormWeight>,
}

impl DecoderWeights {
    /// Makes the device ready to run every linear layer.
    ///
    /// # Errors
    /// It cannot run one.
    pub(super) fn prepare(&self, device: &Device, limits: StepLimits) -> Result<(), EngineError> {
        let activation = device.activation_dtype();
        let projections = [&self.project_in, &self.project_out].into_iter().flatten();
        let of_layers = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.qkv_proj, &layer.out_proj, &layer.up_proj, &layer.down_proj]);
        for weight in projections.chain(of_layers) {
            weight.prepare(device, activation, limits.max_num_tokens)?;
        }
        let head = self.lm_head.as_ref().unwrap_or(&self.embed_tokens);
        head.prepare(device, DType::Float32, limits.max_num_logits)
    }
}

/// Reads, packs and checks all weights.
///
/// # Errors
/// A tensor is missing, has another shape, or is there without being asked for.
pub(super) fn load(
    spec: &DecoderSpec,
    dtype: DType,
    device: &Device,
    mut checkpoint: Checkpoint,
    max_model_len: usize,
) -> Result<DecoderWeights, EngineError> {
    let mut loader = Loader { spec, dtype, device, checkpoint: &mut checkpoint };
    let prefix = spec.names.prefix;
    let embed_dim = spec.embedding.projected_from.unwrap_or(spec.hidden_size);
    let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
    // The two largest come first: what is being packed is in memory twice, and little else is there
    // yet.
    let embed_tokens =
        loader.linear(&[(format!("{prefix}embed_tokens"), vocab)], embed_dim, false)?;
    let lm_head = match spec.tie_word_embeddings {
        // The table is looked up in full precision.
        true => embed_tokens.int8_copy(device)?,
        false => {
            let head = loader.linear(&[("lm_head".to_owned(), vocab)], embed_dim, false)?;
            Some(head.int8_copy(device)?.unwrap_or(head))
        }
    };
    let weights = DecoderWeights {
        embed_tokens,
        lm_head,
        embed_positions: loader.embed_positions()?,
        project_in: loader.projection(&format!("{prefix}project_in"), hidden, embed_dim)?,
        project_out: loader.projection(&format!("{prefix}project_out"), embed_dim, hidden)?,
        layers: (0..spec.layers.len())
            .map(|index| loader.layer(index))
            .collect::<Result<_, _>>()?,
        final_norm: match spec.has_final_norm {
            true => Some(loader.norm(&format!("{prefix}{}", spec.names.final_norm), hidden)?),
            false => None,
        },
        ropes: spec
            .ropes
            .iter()
            .map(|rope| {
                let inv_freq = rope.inv_freq(spec.attention.head_dim);
                RotaryTable::on_device(device, inv_freq, max_model_len)
            })
            .collect::<Result<_, _>>()?,
    };
    checkpoint.finish()?;
    Ok(weights)
}

struct Loader<'a> {
    spec: &'a DecoderSpec,
    dtype: DType,
    device: &'a Device,
    checkpoint: &'a mut Checkpoint,
}

impl Loader<'_> {
    /// One packed weight of stacked parts (name without `.weight`, rows).
    fn linear(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
        bias: bool,
    ) -> Result<LinearWeight, EngineError> {
        let mut biases = Vec::new();
        if bias {
            for (name, rows) in parts {
                biases.extend(self.checkpoint.vector(&format!("{name}.bias"), *rows, 0.01)?);
            }
        }
        let names: Vec<_> =
            parts.iter().map(|(name, rows)| (format!("{name}.weight"), *rows)).collect();
        let matrices = self.checkpoint.matrices(&names, columns)?;
        let weight =
            LinearWeight::load(self.device, self.dtype, &matrices, bias.then_some(biases))?;
        // Else every weight would be in memory twice when the last one is packed.
        self.checkpoint.release();
        Ok(weight)
    }

    /// OPT-350m's projections, which only exist where the embedding has another width.
    fn projection(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<LinearWeight>, EngineError> {
        match self.spec.embedding.projected_from {
            None => Ok(None),
            Some(_) => self.linear(&[(name.to_owned(), rows)], columns, false).map(Some),
        }
    }

    fn embed_positions(&mut self) -> Result<Option<Tensor>, EngineError> {
        let Some(positions) = self.spec.embedding.positions else { return Ok(None) };
        let name = format!("{}embed_positions.weight", self.spec.names.prefix);
        let width = self.spec.hidden_size;
        let values = self.checkpoint.matrix(&name, positions.num_rows, width)?.to_vec();
        self.device.upload(values, width).map(Some)
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<NormWeight, EngineError> {
        let norm = self.spec.norm;
        let mut weight = self.checkpoint.vector(&format!("{name}.weight"), width, 1.0)?;
        if norm.unit_offset {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        let bias = match norm.kind {
            NormKind::Rms => None,
            NormKind::Layer => {
                Some(self.checkpoint.vector(&format!("{name}.bias"), width, 0.01)?)
            }
        };
        let weight = self.device.upload(weight, width)?;
        let bias = bias.map(|bias| self.device.upload(bias, width)).transpose()?;
        Ok(NormWeight { kind: norm.kind, eps: norm.eps, weight, bias })
    }

    fn layer(&mut self, index: usize) -> Result<LayerWeights, EngineError> {
        let (spec, device) = (self.spec, self.device);
        let (attention, mlp, names) = (spec.attention, spec.mlp, spec.names);
        let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
        let head_dim = attention.head_dim;
        let (q, kv) = (attention.num_heads * head_dim, attention.num_kv_heads * head_dim);
        let name = |part: &str| format!("{}layers.{index}.{part}", names.prefix);
        let attn = |part: &str| name(&format!("self_attn.{part}"));
        let qkv = [(attn("q_proj"), q), (attn("k_proj"), kv), (attn("v_proj"), kv)];
        let up = (name(names.up_proj), inner);
        let ups = if mlp.gated { vec![(name(names.gate_proj), inner), up] } else { vec![up] };
        let sandwich = spec.norm_placement == NormPlacement::Sandwich;
        let mut post_norm = |part: &str| match sandwich {
            true => self.norm(&name(part), hidden).map(Some),
            false => Ok(None),
        };
        let attention_post_norm = post_norm(names.attention_post_norm)?;
        let mlp_post_norm = post_norm(names.mlp_post_norm)?;
        Ok(LayerWeights {
            spec: spec.layers[index],
            attention_norm: self.norm(&name(names.attention_norm), hidden)?,
            qkv_proj: self.linear(&qkv, hidden, attention.qkv_bias)?.quantize(device)?,
            qk_norm: match attention.qk_norm {
                true => Some((
                    self.norm(&attn("q_norm"), head_dim)?,
                    self.norm(&attn("k_norm"), head_dim)?,
                )),
                false => None,
            },
            out_proj: self
                .linear(&[(name(names.out_proj), hidden)], q, attention.out_bias)?
                .quantize(device)?,
            attention_post_norm,
            mlp_norm: self.norm(&name(names.mlp_norm), hidden)?,
            up_proj: self.linear(&ups, hidden, mlp.bias)?.quantize(device)?,
            down_proj: self
                .linear(&[(name(names.down_proj), hidden)], inner, mlp.bias)?
                .quantize(device)?,
            mlp_post_norm,
        })
    }
}
