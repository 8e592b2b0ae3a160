//! Zamba 2: blocks of Mamba 2, before some of which blocks that they share read the embeddings
//! beside the stream.

use serde_json::json;

use super::llama::{self, Defaults};
use super::mamba::{self, Blocks};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, GateOrder, LayerSpec, LinearSpec,
    LowRankSpec, MemorySpec, MlpForm, MlpSpec, NormSpec, QkvHeads,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ScanShape};

/// The epsilon of norms of groups, whatever `rms_norm_eps` is.
const GROUP_EPS: f32 = 1e-5;

/// Values that all uses of shared blocks have in common.
struct Shared {
    hidden: usize,
    inner: usize,
    heads: QkvHeads,
    eps: f32,
    rank: usize,
    has_qkv_adapters: bool,
    bias: bool,
    activation: Activation,
    rope: Option<usize>,
}

/// Llama's frame around the recurrence.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let (hidden, num_heads) = (config.hidden_size()?, config.num_heads()?);
    config.assume(&[
        ("head_dim", json!(2 * hidden / num_heads.max(1))),
        ("intermediate_size", json!(4 * hidden)),
    ]);
    let defaults = Defaults { rms_norm_eps: 1e-5, is_tied: true, ..Defaults::LLAMA };
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let (blocks, shared) = (blocks(config)?, shared(config, eps)?);
    let max_model_len = root.size_or("max_position_embeddings", 4096)?;
    let ropes = match shared.rope {
        Some(_) => vec![config.rope_of(LayerType::Full, defaults.rope_theta)?],
        None => {
            root.ignore(&["rope_parameters", "rope_scaling", "rope_theta"]);
            Vec::new()
        }
    };
    let is_hybrid = hybrid_layers(config)?;
    let num_blocks = root.size_or("num_mem_blocks", 1)?;
    let mut uses: Vec<usize> = Vec::new();
    let mut spec = llama::around_with(config, defaults, (ropes, max_model_len), |index| {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norms = |name| BlockNorms::before(NormSpec::rms(name, hidden, eps));
        if !is_hybrid[index] {
            let recurrent = blocks.block(&name("mamba"), norms(name("input_layernorm")));
            return Ok(LayerSpec { recurrent: Some(recurrent), ..LayerSpec::default() });
        }
        let norms = norms(name("mamba_decoder.input_layernorm"));
        let recurrent = Some(blocks.block(&name("mamba_decoder.mamba"), norms));
        let number = uses.len();
        let owner = uses.get(number % num_blocks).copied().filter(|_| number >= num_blocks);
        uses.push(index);
        let block = format!("model.layers.{}.shared_transformer", owner.unwrap_or(index));
        let out = LinearSpec::new(name("linear"), hidden, hidden);
        Ok(LayerSpec {
            attention: Some(shared.attention(&block)),
            memory: Some(shared.memory(&block, number, (owner, out))),
            recurrent,
            ..LayerSpec::default()
        })
    })?;
    spec.output.norm = Some(NormSpec::rms("model.final_layernorm", hidden, eps));
    Ok(spec)
}

fn blocks(config: &HfConfig) -> Result<Blocks, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let inner = root.size_or("mamba_expand", 2)?.saturating_mul(hidden);
    let num_heads = root.size_or("n_mamba_heads", 8)?;
    let head_dim = inner / num_heads;
    root.expect("mamba_headdim", head_dim)?;
    if num_heads.saturating_mul(head_dim) != inner {
        let text = format!("{num_heads} heads of {head_dim} are not the {inner} values of a scan");
        return Err(config.error(text));
    }
    root.expect("use_conv_bias", true)?;
    // Of training, of kernels, of how much is computed at once, of prompts; and the least that dt
    // begins as, by which transformers bounds dt of prompts: vLLM does not.
    root.ignore(&[
        "chunk_size",
        "num_logits_to_keep",
        "time_step_floor",
        "time_step_max",
        "time_step_min",
        "use_mamba_kernels",
        "use_mem_eff_path",
    ]);
    Blocks {
        hidden,
        scan: ScanShape {
            num_heads,
            head_dim,
            num_groups: root.size_or("mamba_ngroups", 1)?,
            state_size: root.size_or("mamba_d_state", 64)?,
        },
        num_taps: root.size_or("mamba_d_conv", 4)?,
        has_conv_bias: true,
        has_bias: [root.flag("add_bias_linear")?.unwrap_or(false); 2],
        activation: Activation::Silu,
        dt_bounds: mamba::dt_bounds(config)?,
        norm: Some((GROUP_EPS, GateOrder::BeforeNorm)),
    }
    .checked(config)
}

fn shared(config: &HfConfig, eps: f32) -> Result<Shared, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let heads = config.heads()?;
    for key in ["num_key_value_heads", "num_query_groups"] {
        root.expect(key, heads.num_heads)?;
    }
    root.expect("attention_hidden_size", 2 * hidden)?;
    root.expect("attention_head_dim", heads.head_dim)?;
    root.expect("kv_channels", hidden / heads.num_heads)?;
    if heads.q_width() != 2 * hidden {
        return Err(config.error("the heads of attention are not twice as wide as the stream"));
    }
    root.expect("use_long_context", false)?;
    Ok(Shared {
        hidden,
        inner: config.intermediate_size()?,
        heads,
        eps,
        rank: root.size_or("adapter_rank", 128)?,
        has_qkv_adapters: root.flag("use_shared_attention_adapter")?.unwrap_or(false),
        bias: root.flag("add_bias_linear")?.unwrap_or(false),
        activation: config.activation_or(Activation::Gelu)?,
        rope: root.flag("use_mem_rope")?.unwrap_or(false).then_some(0),
    })
}

/// Layers before whose recurrence a shared block is, by their types and by their numbers.
fn hybrid_layers(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let mut found: Option<Vec<bool>> = None;
    for key in ["layers_block_type", "layer_types"] {
        let others = ["mamba", "linear_attention"];
        let Some(hybrid) = config.layers_by_type(key, &["hybrid"], &others)? else { continue };
        if found.as_ref().is_some_and(|found| *found != hybrid) {
            return Err(config.error(format!("`{key}` disagrees with another key")));
        }
        found = Some(hybrid);
    }
    let numbers = root.numbers("hybrid_layer_ids")?;
    let by_number = numbers.map(|numbers| {
        (0..num_layers).map(|index| numbers.contains(&(index as f64))).collect::<Vec<_>>()
    });
    match (found, by_number) {
        (Some(found), Some(other)) if found != other => {
            Err(config.error("`hybrid_layer_ids` disagrees with the list of types"))
        }
        (Some(hybrid), _) | (None, Some(hybrid)) => Ok(hybrid),
        (None, None) => Err(config.error("`hybrid_layer_ids` is missing")),
    }
}

impl Shared {
    /// Attention over the stream and the embeddings, in this block.
    fn attention(&self, block: &str) -> AttentionSpec {
        let Self { hidden, heads, eps, rope, .. } = *self;
        let name = |part: &str| format!("{block}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), 2 * hidden, eps));
        let qkv = ["q_proj", "k_proj", "v_proj"]
            .map(|part| (name(&format!("self_attn.{part}")), heads.q_width()));
        let out = LinearSpec::new(name("self_attn.o_proj"), hidden, heads.q_width());
        let qkv = LinearSpec::stacked(qkv, 2 * hidden);
        let scale = (heads.head_dim as f32 / 2.0).sqrt().recip();
        AttentionSpec { rope, scale, ..AttentionSpec::new(norms, heads, qkv, out) }
    }

    /// What is around attention at use `number` of shared blocks.
    fn memory(
        &self,
        block: &str,
        number: usize,
        (owner, out): (Option<usize>, LinearSpec),
    ) -> MemorySpec {
        let Self { hidden, inner, eps, bias, .. } = *self;
        let name = |part: &str| format!("{block}.{part}");
        let up = LinearSpec::new(name("feed_forward.gate_up_proj"), 2 * inner, hidden);
        let down = LinearSpec::new(name("feed_forward.down_proj"), hidden, inner);
        let of = |part: &str, n: usize, k: usize| {
            let layer = |index: usize, n: usize, k: usize| {
                LinearSpec::new(name(&format!("{part}_adapter_list.{number}.{index}")), n, k)
            };
            LowRankSpec { down: layer(0, self.rank, k), up: layer(1, n, self.rank) }
        };
        let width = 2 * hidden;
        let of_attention =
            ["q", "k", "v"].map(|part| of(&format!("self_attn.linear_{part}"), width, width));
        MemorySpec {
            owner,
            mlp: MlpSpec {
                norms: BlockNorms::before(NormSpec::rms(name("pre_ff_layernorm"), hidden, eps)),
                form: MlpForm::Gated,
                activation: ActivationSpec::Known(self.activation),
                up: up.with_bias(bias),
                down: down.with_bias(bias),
            },
            qkv_adapters: self.has_qkv_adapters.then_some(of_attention),
            up_adapter: of("feed_forward.gate_up_proj", 2 * inner, hidden),
            out,
        }
    }
}
