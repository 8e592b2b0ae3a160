//! Attention blocks of DeepSeek V2's kind, which DeepSeek V3, Kimi, GLM-4.7-Flash, MiniCPM3 and
//! Youtu have too.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, LatentDims, LatentQuerySpec, LatentSpec, LatentUpSpec,
    LayerSpec, LinearSpec, NormSpec, OutputGate, QkvHeads, RowOrder,
};
use vllm_batch_base::EngineError;

/// The epsilon of norms of latents, whatever `rms_norm_eps` is.
const LATENT_EPS: f32 = 1e-6;

/// Llama's layers around such blocks.
pub(super) fn around(
    config: &HfConfig,
    defaults: Defaults,
    blocks: &LatentBlocks,
) -> Result<DecoderSpec, EngineError> {
    let inner = config.intermediate_size()?;
    llama::around(config, defaults, |index| {
        let attention = blocks.block(config, defaults, index)?;
        Ok(LayerSpec::new(attention, llama::mlp(config, defaults, (index, inner))?))
    })
}

/// True where what leads from latents to K and to V are tensors of their own: as GGUF files are
/// read.
pub(crate) const LATENT_UPS_APART: &str = "latent_ups_apart";

/// Storage order of the rotated part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turning {
    /// Values i and i + half (MiniCPM3).
    Halves,
    /// Values 2i and 2i + 1.
    Pairs,
}

/// Values that all blocks of a config share.
pub(super) struct LatentBlocks {
    dims: LatentDims,
    num_heads: usize,
    /// Rank of the latent of q; `None`: there is no latent.
    q_rank: Option<usize>,
    /// Where rows are of q, and of what `qkv` gives. One for all blocks: it has a value per row.
    q_order: RowOrder,
    qkv_order: RowOrder,
    scale: f32,
    bias: bool,
    ups_are_apart: bool,
    /// The name of a block and of its last linear layer.
    names: [&'static str; 2],
    /// The name of what gates of heads are made by.
    gates: Option<&'static str>,
}

impl LatentBlocks {
    /// As the file's `rope_interleave` has it, which is true where it does not say.
    pub(super) fn interleaved(config: &HfConfig) -> Result<Self, EngineError> {
        match config.root().flag("rope_interleave")?.unwrap_or(true) {
            true => Self::of(config, Turning::Pairs),
            false => Self::of(config, Turning::Halves),
        }
    }

    /// Blocks of a family that always rotates like this.
    pub(super) fn of(config: &HfConfig, turning: Turning) -> Result<Self, EngineError> {
        let root = config.root();
        let num_heads = config.num_heads()?;
        root.expect("num_key_value_heads", num_heads)?;
        let v = root.optional_size("v_head_dim")?;
        let dims = LatentDims {
            rope: root.size("qk_rope_head_dim")?,
            nope: root.size("qk_nope_head_dim")?,
            rank: root.size("kv_lora_rank")?,
            v: v.unwrap_or(config.hidden_size()? / num_heads),
        };
        let of_attention = QkvHeads { num_heads, num_kv_heads: 1, head_dim: dims.key() };
        for heads in [of_attention, QkvHeads { head_dim: dims.q(), ..of_attention }] {
            limits::check_heads(heads).map_err(|text| config.error(text))?;
        }
        if !dims.rope.is_multiple_of(2) {
            let text = format!("a qk_rope_head_dim of {} is not supported", dims.rope);
            return Err(config.error(text));
        }
        root.expect("qk_head_dim", dims.q())?;
        root.expect("q_head_dim", dims.q())?;
        let q_rank = root.optional_size("q_lora_rank")?;
        let bias = config.attention_bias()?;
        if bias && q_rank.is_none() {
            return Err(config.error("`attention_bias` without `q_lora_rank` is not supported"));
        }
        let scale = config.yarn_score_factor()? / (dims.q() as f64).sqrt();
        let ups_are_apart = root.flag(LATENT_UPS_APART)?.unwrap_or(false);
        let is_in_pairs = turning == Turning::Pairs;
        let q_order = dims.q_order(num_heads, is_in_pairs);
        let (first_order, first) = match q_rank {
            None => (q_order.clone(), num_heads * dims.q()),
            Some(rank) => (RowOrder::as_stored(), rank),
        };
        let qkv_order = first_order.and(first, (&dims.key_order(is_in_pairs), dims.key()));
        let scale = scale as f32;
        let names = ["self_attn", "o_proj"];
        let gates = None;
        Ok(Self {
            dims,
            num_heads,
            q_rank,
            q_order,
            qkv_order,
            scale,
            bias,
            ups_are_apart,
            names,
            gates,
        })
    }

    /// The same under other names of a block and of its last linear layer.
    pub(super) fn named(self, names: [&'static str; 2]) -> Self {
        Self { names, ..self }
    }

    /// The same with a gate of what each head gives, by the tensor of this name.
    pub(super) fn with_gates_of_heads(self, name: &'static str) -> Self {
        let Self { dims, num_heads, q_rank, .. } = self;
        let num_others = q_rank.unwrap_or(num_heads * dims.q()) + dims.key();
        let qkv_order = self.qkv_order.and(num_others, (&RowOrder::as_stored(), num_heads));
        Self { gates: Some(name), qkv_order, ..self }
    }

    /// The block of a layer.
    pub(super) fn block(
        &self,
        config: &HfConfig,
        defaults: Defaults,
        index: usize,
    ) -> Result<AttentionSpec, EngineError> {
        let Self { dims, num_heads, q_rank, scale, bias, ups_are_apart, .. } = *self;
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let [block, last] = self.names;
        let of_block = |part: &str| name(&format!("{block}.{part}"));
        let hidden = config.hidden_size()?;
        let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
        let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
        let latent_norm = |part, width| NormSpec::rms(of_block(part), width, LATENT_EPS);
        let q_width = num_heads * dims.q();
        let (first, q) = match q_rank {
            None => ((of_block("q_proj"), q_width), None),
            Some(rank) => {
                let up = LinearSpec::new(of_block("q_b_proj"), q_width, rank);
                let norm = latent_norm("q_a_layernorm", rank);
                let q = LatentQuerySpec { norm, up: up.in_order(self.q_order.clone()) };
                ((of_block("q_a_proj"), rank), Some(q))
            }
        };
        let qkv =
            LinearSpec::stacked([first, (of_block("kv_a_proj_with_mqa"), dims.key())], hidden);
        let heads = QkvHeads { num_heads, num_kv_heads: 1, head_dim: dims.key() };
        let out = LinearSpec::new(of_block(last), hidden, num_heads * dims.v).with_bias(bias);
        let up = |part, of_head, k| LinearSpec::new(of_block(part), num_heads * of_head, k);
        let up = match ups_are_apart {
            false => LatentUpSpec::Together(up("kv_b_proj", dims.nope + dims.v, dims.rank)),
            true => LatentUpSpec::Apart {
                keys: up("k_b_proj", dims.rank, dims.nope),
                values: up("v_b_proj", dims.v, dims.rank),
            },
        };
        let norm = latent_norm("kv_a_layernorm", dims.rank);
        let latent = LatentSpec { q, norm, up, dims };
        let mut block = AttentionSpec::new(
            norms,
            heads,
            qkv.with_bias(bias).in_order(self.qkv_order.clone()),
            out,
        );
        if let Some(gates) = self.gates {
            block.gate_by(of_block(gates), OutputGate::OF_HEADS);
        }
        Ok(AttentionSpec { latent: Some(latent), rope: Some(0), scale, ..block })
    }
}
