//! Gemma 3n (text): Gemma 4's layers with K and V of earlier ones and inputs of their own, around
//! four streams that layers mix (AltUp), a branch beside attention (LAuReL), and gates of which the
//! first layers keep the largest.

use serde_json::{Value, json};

use super::gemma4::{self, Heads};
use super::llama;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{
    ActivationSpec, BranchSpec, DecoderSpec, LayerSpec, LinearSpec, MixingSpec, NormSpec,
    StreamsSpec,
};
use vllm_batch_base::EngineError;

/// The spec of a Gemma 3n text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume(config);
    let root = config.root();
    // Of training; scores are not scaled, whatever the file says.
    root.ignore(&["altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"]);
    let slides = config.sliding_layers(5)?;
    let heads = Heads::alike(config, slides)?;
    let ropes = vec![
        config.rope_with(LayerType::Full, RopeDefaults::new(1e6, 1.0))?,
        config.rope_with(LayerType::Sliding, RopeDefaults::new(1e4, 1.0))?,
    ];
    // max_position_embeddings is the stretched length already.
    let ropes = (ropes, config.max_position_embeddings()?);
    let (widths, cutoffs) = (inner_widths(config)?, cutoffs(config)?);
    let num_streams = root.size("altup_num_inputs")?;
    let layer = |index: usize| {
        let mlp = (widths[index], cutoffs[index]);
        layer(config, &heads, (index, num_streams), mlp)
    };
    let mut spec = llama::around_with(config, gemma4::DEFAULTS, ropes, layer)?;
    let hidden = spec.hidden_size();
    let embedding = &mut spec.embedding;
    embedding.scale = Some(gemma4::scale_of(hidden));
    embedding.of_layers = gemma4::layer_inputs(config, hidden, widths.len())?;
    let Some(inputs) = &mut embedding.of_layers else {
        return Err(config.error("`hidden_size_per_layer_input` of 0 is not supported"));
    };
    // Those of tokens of images and sounds.
    inputs.first_row_behind = true;
    let streams = |part: &str| {
        let name = |index| format!("model.altup_{part}.{index}");
        let layers = 0..num_streams.saturating_sub(1).min(MAX_NAMED);
        layers.map(|index| LinearSpec::new(name(index), hidden, hidden)).collect()
    };
    embedding.streams = Some(StreamsSpec {
        active: root.optional_size("altup_active_idx")?.unwrap_or(0),
        into: streams("projections"),
        out_of: streams("unembed_projections"),
    });
    spec.output.soft_cap = root.number("final_logit_softcapping")?.map(|cap| cap as f32);
    Ok(spec)
}

/// More streams than are supported, before there is a name of each.
const MAX_NAMED: usize = 64;

/// Defaults of the class for keys that the file leaves out.
fn assume(config: &HfConfig) {
    config.assume(&[
        ("altup_num_inputs", json!(4)),
        ("final_logit_softcapping", json!(30.0)),
        ("head_dim", json!(256)),
        ("hidden_size", json!(2048)),
        ("hidden_size_per_layer_input", json!(256)),
        ("intermediate_size", json!(16_384)),
        ("laurel_rank", json!(64)),
        ("max_position_embeddings", json!(32_768)),
        ("num_attention_heads", json!(8)),
        ("num_hidden_layers", json!(35)),
        ("num_key_value_heads", json!(2)),
        ("num_kv_shared_layers", json!(15)),
        ("rms_norm_eps", json!(1e-6)),
        ("rope_local_base_freq", json!(10_000.0)),
        ("sliding_window", json!(512)),
        ("vocab_size", json!(262_400)),
        ("vocab_size_per_layer_input", json!(262_144)),
    ]);
}

/// Inner widths of the MLPs of all layers: one number, or one of each.
fn inner_widths(config: &HfConfig) -> Result<Vec<usize>, EngineError> {
    let num_layers = config.num_layers()?;
    let Some(Value::Array(list)) = config.root().value("intermediate_size") else {
        return Ok(vec![config.intermediate_size()?; num_layers]);
    };
    let widths = list.iter().map(|width| width.as_u64().map(|width| width as usize));
    let widths = widths.collect::<Option<Vec<_>>>().filter(|widths| widths.len() == num_layers);
    widths.ok_or_else(|| config.error("`intermediate_size` has not one size per layer"))
}

/// By how many standard deviations gates are less in each layer, if they are: of the share that is
/// left out.
fn cutoffs(config: &HfConfig) -> Result<Vec<Option<f32>>, EngineError> {
    let num_layers = config.num_layers()?;
    let shares = match config.root().numbers("activation_sparsity_pattern")? {
        Some(shares) => shares,
        None => {
            let num_sparse = if num_layers > 10 { 10 } else { 0 };
            (0..num_layers).map(|index| if index < num_sparse { 0.95 } else { 0.0 }).collect()
        }
    };
    if shares.len() != num_layers || !shares.iter().all(|share| (0.0..1.0).contains(share)) {
        let text = "`activation_sparsity_pattern` has not one share below 1 per layer";
        return Err(config.error(text));
    }
    let cutoff = |share: &f64| (*share > 0.0).then(|| normal_quantile(*share) as f32);
    Ok(shares.iter().map(cutoff).collect())
}

/// The number of standard deviations that this share of a normal distribution is below: Acklam's
/// approximation, to 9 digits.
fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let of = |numbers: &[f64], x: f64| numbers.iter().fold(0.0, |sum, number| sum * x + number);
    let tail = |share: f64| {
        let x = (-2.0 * share.ln()).sqrt();
        of(&C, x) / of(&D, x)
    };
    match share {
        share if share < 0.02425 => tail(share),
        share if share > 1.0 - 0.02425 => -tail(1.0 - share),
        share => {
            let x = share - 0.5;
            of(&A, x * x) * x / of(&B, x * x)
        }
    }
}

fn layer(
    config: &HfConfig,
    heads: &Heads,
    (index, num_streams): (usize, usize),
    (inner, cutoff): (usize, Option<f32>),
) -> Result<LayerSpec, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let norm = |part: &str| gemma4::norm_of(config, &name(part), hidden);
    let mut mlp = llama::mlp(config, gemma4::DEFAULTS, (index, inner))?;
    mlp.norms = gemma4::sandwich(config, index, gemma4::OF_FEED_FORWARD)?;
    if let (Some(cutoff), ActivationSpec::Known(activation)) = (cutoff, &mlp.activation) {
        mlp.activation = ActivationSpec::OfLargest(*activation, cutoff);
    }
    let mut attention = gemma4::attention(config, heads, index)?;
    attention.norms = gemma4::sandwich(config, index, gemma4::OF_ATTENTION)?;
    attention.is_causal = false;
    let scale = (name("altup.correct_output_scale"), vec![hidden]);
    let is_scaled = root.flag("altup_correct_scale")?.unwrap_or(true);
    if !is_scaled {
        attention.unused.push(scale.0.clone());
    }
    let coefs = |part: &str, n| LinearSpec::new(name(part), n, num_streams);
    let rank = root.size("laurel_rank")?;
    let width = gemma4::inputs_width(config)?;
    Ok(LayerSpec {
        branch: Some(BranchSpec {
            left: LinearSpec::new(name("laurel.linear_left"), rank, hidden),
            right: LinearSpec::new(name("laurel.linear_right"), hidden, rank),
            norm: norm("laurel.post_laurel_norm")?,
            scale: std::f32::consts::FRAC_1_SQRT_2,
        }),
        side: Some(gemma4::side_block(config, index, width)?),
        mixing: Some(MixingSpec {
            norm: NormSpec { weight_factor: 1.0 / hidden as f32, ..norm("altup.router_norm")? },
            router: LinearSpec::new(name("altup.modality_router"), num_streams, hidden),
            prediction: coefs("altup.prediction_coefs", num_streams.saturating_mul(num_streams)),
            correction: coefs("altup.correction_coefs", num_streams),
            side_scale: is_scaled.then_some(scale),
        }),
        ..LayerSpec::new(attention, mlp)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_normal_distribution_are_below_so_many_deviations() {
        // scipy.stats.norm.ppf
        for (share, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_2),
            (0.6, 0.253_347_103_135_799_7),
            (0.99, 2.326_347_874_040_840_8),
            (0.01, -2.326_347_874_040_840_8),
        ] {
            assert!((normal_quantile(share) - expected).abs() < 1e-8, "{share}");
        }
    }
}
