//! Limits of models: sizes that would overflow or take all memory, numbers that make every result
//! NaN. A config.json is not trusted.

use super::spec::{
    AttentionSpec, ChoiceSpec, ChoiceUnit, ConnectorSpec, DecoderSpec, EncoderSpec, ExpertsSpec,
    LayerSpec, LinearSpec, QkvHeads, RecurrentSpec, SoundTowerSpec, TowerSpec,
};
use vllm_batch_base::layers::{DeltaHeads, Reach, Routing, ScanShape, SelectiveShape, Weighted};

/// Sizes up to these: several times those of the largest published models. Products of any that
/// belong together stay below 2^63.
const MAX_VOCAB_SIZE: usize = 1 << 24;
const MAX_WIDTH: usize = 1 << 20;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
/// Most streams beside each other, which kernels hold.
const MAX_STREAMS: usize = 4;
/// Most taps of a convolution over tokens.
const MAX_TAPS: usize = 16;
/// Most layers; checked before there is one value per layer.
pub(super) const MAX_LAYERS: usize = 1 << 12;
const MAX_CONTEXT: usize = 1 << 24;
/// Experts of all layers together; each has names.
const MAX_EXPERTS: usize = 1 << 17;
/// Pixels of the side of an image that a vision tower was made for, and of a patch.
pub(super) const MAX_IMAGE_SIZE: usize = 1 << 14;
const MAX_PATCH_SIZE: usize = 1 << 8;
/// Frames of a patch.
const MAX_FRAMES: usize = 1 << 4;
/// States of a sound.
const MAX_STATES: usize = 1 << 14;
/// Patches of the side of a token.
const MAX_MERGE_SIZE: usize = 1 << 4;
/// Groups of experts: routing has a bit of each.
const MAX_EXPERT_GROUPS: usize = 64;

/// Refuses heads that no model has; checked before there is a value per head or row.
///
/// # Errors
/// A number is out of range; the text names it.
pub(super) fn check_heads(heads: QkvHeads) -> Result<(), String> {
    check_sizes(&[
        ("number of attention heads", heads.num_heads, MAX_HEADS),
        ("head_dim", heads.head_dim, MAX_HEAD_DIM),
    ])
}

/// Refuses heads of a delta rule that no model has; checked before there is a value per row.
///
/// # Errors
/// A number is out of range; the text names it.
pub(super) fn check_delta_heads(heads: DeltaHeads) -> Result<(), String> {
    let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = heads;
    check_sizes(&[
        ("number of key heads of linear attention", num_k_heads, MAX_HEADS),
        ("number of value heads of linear attention", num_v_heads, MAX_HEADS),
        ("key head's width of linear attention", k_dim, MAX_HEAD_DIM),
        ("value head's width of linear attention", v_dim, MAX_HEAD_DIM),
    ])?;
    match num_v_heads.is_multiple_of(num_k_heads) {
        true => Ok(()),
        false => Err(format!(
            "{num_v_heads} value heads of linear attention cannot share {num_k_heads} key heads"
        )),
    }
}

/// Refuses more experts than any model has; checked before there is a value per expert.
///
/// # Errors
/// The number is out of range.
pub(super) fn check_num_experts(num_experts: usize, num_layers: usize) -> Result<(), String> {
    check_sizes(&[("number of experts", num_experts, MAX_EXPERTS / num_layers.max(1))])
}

/// Refuses a recurrence that no model has; checked before there is a value per head or row.
///
/// # Errors
/// A number is out of range, or heads cannot share groups evenly.
pub(super) fn check_scan(scan: ScanShape) -> Result<(), String> {
    let ScanShape { num_heads, head_dim, num_groups, state_size } = scan;
    check_sizes(&[
        ("number of heads of a recurrence", num_heads, MAX_HEADS),
        ("width of a recurrence's heads", head_dim, MAX_HEAD_DIM),
        ("number of groups of a recurrence", num_groups, num_heads),
        ("width of a recurrence's state", state_size, MAX_HEAD_DIM),
    ])?;
    match num_heads.is_multiple_of(num_groups) {
        true => Ok(()),
        false => Err(format!("{num_heads} heads cannot share {num_groups} groups")),
    }
}

/// The same of Mamba 1; checked before there is a value per channel.
///
/// # Errors
/// A number is out of range, or channels cannot share groups evenly.
pub(super) fn check_selective(shape: SelectiveShape) -> Result<(), String> {
    let SelectiveShape { num_channels, num_groups, rank, state_size } = shape;
    check_sizes(&[
        ("number of channels of a recurrence", num_channels, MAX_WIDTH),
        ("number of groups of a recurrence", num_groups, MAX_HEADS),
        ("number of values that dt is made of", rank, MAX_WIDTH),
        ("width of a recurrence's state", state_size, MAX_HEAD_DIM),
    ])?;
    match num_channels.is_multiple_of(num_groups) {
        true => Ok(()),
        false => Err(format!("{num_channels} channels cannot share {num_groups} groups")),
    }
}

/// Refuses more layers that predict further tokens than any model has; each has a name.
///
/// # Errors
/// The number is out of range.
pub(super) fn check_num_further(num_layers: usize) -> Result<(), String> {
    match num_layers <= MAX_LAYERS {
        true => Ok(()),
        false => Err(format!("{num_layers} layers of further tokens are not supported")),
    }
}

/// Refuses a grid of patches that no vision tower has; checked before sizes are made of it.
///
/// # Errors
/// A number is out of range; the text names it.
pub(super) fn check_tower_grid(
    patch_size: usize,
    image_size: usize,
    merge_size: usize,
) -> Result<(), String> {
    check_sizes(&[
        ("size of images of a vision tower", image_size, MAX_IMAGE_SIZE),
        ("size of patches of a vision tower", patch_size, MAX_PATCH_SIZE.min(image_size)),
        ("side of an image's token in patches", merge_size, MAX_MERGE_SIZE),
    ])
}

/// Refuses patches of more frames than any vision tower has.
///
/// # Errors
/// The number is out of range.
pub(super) fn check_tower_frames(num_frames: usize) -> Result<(), String> {
    check_sizes(&[("number of frames of an image's patch", num_frames, MAX_FRAMES)])
}

/// Refuses more positions of an axis than any vision tower has.
///
/// # Errors
/// The number is out of range.
pub(super) fn check_tower_positions(num_positions: usize) -> Result<(), String> {
    check_sizes(&[("number of positions of a vision tower", num_positions, MAX_IMAGE_SIZE)])
}

/// Refuses more layers than any vision tower has; checked before there is one value per layer.
///
/// # Errors
/// The number is out of range.
pub(super) fn check_tower_layers(num_layers: usize) -> Result<(), String> {
    check_sizes(&[("number of layers of a vision tower", num_layers, MAX_LAYERS)])
}

/// Refuses a vision tower that no model has.
///
/// # Errors
/// It has a size or a number out of range; the text names it.
pub(super) fn check_tower(spec: &TowerSpec) -> Result<(), String> {
    check_sizes(&[
        ("width of a vision tower", spec.width(), MAX_WIDTH),
        ("width of an image's patch", spec.patches.k, MAX_WIDTH),
        ("intermediate size of a vision tower", inner_width(&spec.layers), MAX_WIDTH),
    ])?;
    for linear in spec.connectors().flat_map(ConnectorSpec::linears) {
        check_sizes(&[("width of an image's token in patches", linear.k, MAX_WIDTH)])?;
    }
    check_heads(spec.heads())?;
    let mut ropes = spec.rope.iter().map(|rope| rope.frequencies(0));
    if !ropes.all(|rope| rope.inv_freq.iter().all(is_frequency)) {
        return Err("the frequencies of its vision tower are out of range".to_owned());
    }
    match spec.norms().all(|norm| (0.0..=1.0).contains(&norm.eps)) {
        true => Ok(()),
        false => Err("its vision tower's epsilon of norms is out of range".to_owned()),
    }
}

/// Refuses sounds that no model hears; checked before sizes are made of them.
///
/// # Errors
/// A number is out of range; the text names it.
pub(super) fn check_sounds(num_mels: usize, num_states: usize) -> Result<(), String> {
    check_sizes(&[
        ("number of mel bins", num_mels, MAX_WIDTH),
        ("number of states of a sound", num_states, MAX_STATES),
    ])
}

/// Refuses a tower of sounds that no model has.
///
/// # Errors
/// It has a size or a number out of range; the text names it.
pub(super) fn check_sound_tower(spec: &SoundTowerSpec) -> Result<(), String> {
    check_sizes(&[
        ("width of a tower of sounds", spec.width(), MAX_WIDTH),
        ("intermediate size of a tower of sounds", inner_width(&spec.layers), MAX_WIDTH),
        ("width of what a tower of sounds gives", spec.out_width(), MAX_WIDTH),
        ("states of a token of a sound", spec.shape().num_merged, MAX_STATES),
    ])?;
    check_heads(spec.heads())
}

fn is_frequency(value: &f32) -> bool {
    value.is_finite() && *value >= 0.0
}

/// Refuses experts that cannot be chosen as the spec says.
fn check_experts(spec: &ExpertsSpec) -> Result<(), String> {
    let num_experts = spec.num();
    if spec.num_identities > MAX_EXPERTS || spec.num_identities > 0 && spec.latent.is_some() {
        return Err(format!("{} experts that give what they read", spec.num_identities));
    }
    if let Some(latent) = &spec.latent {
        check_sizes(&[("width that experts read", latent.into.n(), MAX_WIDTH)])?;
    }
    let num_chosen = spec.routing.num_chosen();
    check_sizes(&[("number of experts of a token", num_chosen, num_experts)])?;
    if spec.weighted == Weighted::Inputs && num_chosen != 1 {
        return Err(
            "inputs of several experts of a token that have weights are not supported".into()
        );
    }
    let (factor, groups) = match &spec.routing {
        Routing::SparseMixer { jitter } => (*jitter, None),
        Routing::TopK(best) => (best.scale, best.groups),
    };
    if !factor.is_finite() || factor < 0.0 {
        return Err("its factor of experts is out of range".to_owned());
    }
    let Some(groups) = groups else { return Ok(()) };
    check_sizes(&[
        ("number of groups of experts", groups.num, MAX_EXPERT_GROUPS),
        ("number of groups that experts are chosen from", groups.num_kept, groups.num),
    ])?;
    let width = num_experts / groups.num;
    match num_experts.is_multiple_of(groups.num) && num_chosen <= groups.num_kept * width {
        true => Ok(()),
        false => Err(format!(
            "{num_chosen} of {num_experts} experts cannot be chosen from {} of {} groups",
            groups.num_kept, groups.num
        )),
    }
}

/// (what, size, most)
fn check_sizes(sizes: &[(&str, usize, usize)]) -> Result<(), String> {
    match sizes.iter().find(|(_, size, max)| !(1..=*max).contains(size)) {
        Some((what, size, max)) => {
            let article = if what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            Err(format!("{article} {what} of {size} is not supported: expected 1 to {max}"))
        }
        None => Ok(()),
    }
}

fn inner_width(layers: &[LayerSpec]) -> usize {
    layers.iter().map(LayerSpec::inner_width).max().unwrap_or(0)
}

/// Refuses an encoder that no model is.
///
/// # Errors
/// It has a size or a number out of range; the text names it.
pub(super) fn check_encoder(spec: &EncoderSpec) -> Result<(), String> {
    // `check` has seen it as a decoder, whose layers may lack what those of encoders have.
    if spec.needs_cache.is_some() {
        return Ok(());
    }
    // Then its tower is all that there is, which `check_tower` sees.
    if !spec.reads_texts {
        return Ok(());
    }
    check_sizes(&[
        ("vocabulary", spec.vocab_size(), MAX_VOCAB_SIZE),
        ("hidden size", spec.hidden_size(), MAX_WIDTH),
        ("intermediate size", inner_width(&spec.layers), MAX_WIDTH),
        ("number of layers", spec.layers.len(), MAX_LAYERS),
        ("context length", spec.max_model_len, MAX_CONTEXT),
    ])?;
    let heads = spec.heads();
    check_heads(heads)?;
    if spec.attentions().any(|attention| attention.heads.head_dim != heads.head_dim) {
        return Err("layers whose heads differ in width are not supported".to_owned());
    }
    let types = spec.token_types.as_ref().map_or(1, LinearSpec::n);
    check_sizes(&[("number of token types", types, MAX_WIDTH)])?;
    let slopes: Vec<_> = spec.attentions().map(|attention| &attention.alibi_slopes).collect();
    if slopes.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err("layers whose slopes of ALiBi differ are not supported".to_owned());
    }
    let mut ropes = spec.ropes.iter().map(|rope| rope.frequencies(spec.max_model_len));
    for (what, is_good) in [
        ("norm's epsilon", spec.norms().all(|norm| (0.0..=1.0).contains(&norm.eps))),
        ("rotary embedding", ropes.all(|rope| rope.inv_freq.iter().all(is_frequency))),
    ] {
        if !is_good {
            return Err(format!("its {what} is out of range"));
        }
    }
    Ok(())
}

/// Tokens of a block of a choice, at most.
const MAX_CHOSEN_BLOCK: usize = 1024;

/// Checks what says which tokens a block's tokens attend to.
fn check_choice(attention: &AttentionSpec, choice: &ChoiceSpec) -> Result<(), String> {
    let has_latent = attention.latent.as_ref().is_some_and(|latent| latent.q.is_some());
    let Some(indexer) = &choice.indexer else { return Ok(()) };
    let ChoiceUnit::Block(len) = choice.unit else {
        return match has_latent && indexer.q.is_some() {
            true => Ok(()),
            false => Err("an indexer without a latent of q is not supported".to_owned()),
        };
    };
    check_sizes(&[("number of tokens of a block that is chosen", len, MAX_CHOSEN_BLOCK)])?;
    if !len.is_multiple_of(16) || !choice.num_chosen.is_multiple_of(len) {
        let text = format!("blocks of {len} tokens to choose: give a multiple of 16");
        return Err(text);
    }
    let QkvHeads { num_heads, head_dim, .. } = indexer.heads;
    if num_heads != attention.heads.num_kv_heads {
        let of_kv = attention.heads.num_kv_heads;
        return Err(format!("{num_heads} heads of an indexer for {of_kv} K and V heads"));
    }
    match attention.reach == Reach::All && indexer.q.is_none() && head_dim > 0 {
        true => Ok(()),
        false => Err("blocks that are chosen of a window are not supported".to_owned()),
    }
}

/// Refuses a spec that no model has.
///
/// # Errors
/// It has a size or a number out of range; the text names it.
pub(super) fn check(spec: &DecoderSpec) -> Result<(), String> {
    let attends = spec.attentions().next().is_some();
    let goes_on = spec.recurrents().next().is_some();
    if attends || !goes_on {
        check_heads(spec.heads())?;
    }
    let has_mlps = spec.layers.iter().any(|layer| layer.feed_forward.is_some());
    if has_mlps || !goes_on {
        check_sizes(&[("intermediate size", inner_width(&spec.layers), MAX_WIDTH)])?;
    }
    check_sizes(&[
        ("vocabulary", spec.vocab_size(), MAX_VOCAB_SIZE),
        ("hidden size", spec.hidden_size(), MAX_WIDTH),
        ("width of embeddings", spec.embedding.tokens.k, MAX_WIDTH),
        ("number of layers", spec.layers.len(), MAX_LAYERS),
        ("context length", spec.max_model_len, MAX_CONTEXT),
    ])?;
    spec.experts().try_for_each(check_experts)?;
    check_layers(spec)?;
    check_numbers(spec)
}

/// Refuses layers that do not go together.
fn check_layers(spec: &DecoderSpec) -> Result<(), String> {
    let is_of_none = |attention: &AttentionSpec| match attention.reach {
        Reach::All => None,
        Reach::Window(len) => (len == 0).then_some("sliding window"),
        Reach::Chunk(len) => (len == 0).then_some("chunk of attention"),
    };
    if let Some(what) = spec.attentions().find_map(is_of_none) {
        return Err(format!("a {what} of 0 tokens is not supported"));
    }
    for taps in spec.recurrents().map(RecurrentSpec::taps) {
        check_sizes(&[
            ("number of taps", taps.num_taps, MAX_TAPS),
            ("width of a convolution", taps.width(), MAX_WIDTH),
        ])?;
    }
    for attention in spec.attentions() {
        let Some(choice) = &attention.choice else { continue };
        check_sizes(&[(
            "number of tokens that a token attends to",
            choice.num_chosen,
            MAX_CONTEXT,
        )])?;
        check_choice(attention, choice)?;
    }
    if let Some(streams) = &spec.embedding.streams {
        check_sizes(&[
            ("number of streams", streams.num(), MAX_STREAMS),
            ("active stream, counted from 1", streams.active + 1, streams.num()),
        ])?;
    }
    for branch in spec.layers.iter().filter_map(|layer| layer.branch.as_ref()) {
        check_sizes(&[("rank of a branch", branch.left.n(), MAX_WIDTH)])?;
    }
    for memory in spec.layers.iter().filter_map(|layer| layer.memory.as_ref()) {
        check_sizes(&[
            ("intermediate size", memory.mlp.down.k, MAX_WIDTH),
            ("rank of adapters", memory.up_adapter.up.k, MAX_WIDTH),
        ])?;
    }
    if let Some(inputs) = &spec.embedding.of_layers {
        let (rows, most) = (inputs.table.n(), MAX_VOCAB_SIZE);
        check_sizes(&[
            ("vocabulary of inputs of layers", rows, most),
            ("width of inputs of layers", inputs.table.k, MAX_WIDTH),
        ])?;
        if rows < spec.vocab_size() && !inputs.first_row_behind {
            return Err(format!("inputs of layers of {rows} tokens are fewer than the vocabulary"));
        }
    }
    Ok(())
}

/// Refuses factors and bounds that are no numbers to compute with.
fn check_numbers(spec: &DecoderSpec) -> Result<(), String> {
    // Both choices of those that depend on the run's context.
    let frequencies = |len: usize| spec.ropes.iter().map(move |rope| rope.frequencies(len));
    let frequencies: Vec<_> = frequencies(1).chain(frequencies(spec.max_model_len)).collect();
    let inv_freq = frequencies.iter().flat_map(|frequencies| &frequencies.inv_freq);
    let is_finite = |number: f32| number.is_finite();
    let is_positive = |number: f32| number.is_finite() && number > 0.0;
    for (what, is_good) in [
        ("norm's epsilon", spec.norms().all(|norm| (0.0..=1.0).contains(&norm.eps))),
        ("factor of attention scores", spec.attentions().all(|a| is_positive(a.scale))),
        (
            "soft cap of attention scores",
            spec.attentions().all(|a| a.soft_cap.is_none_or(is_positive)),
        ),
        ("factor of logits", spec.output.scale.is_none_or(is_finite)),
        ("factor of embeddings", spec.embedding.scale.is_none_or(|scale| is_finite(scale.factor))),
        ("factor of a norm", spec.norms().all(|norm| is_positive(norm.weight_factor))),
        (
            "factor of the residual stream",
            spec.layers.iter().all(|layer| layer.residual_scale.is_none_or(is_finite)),
        ),
        (
            "factor of what a block adds",
            spec.layers.iter().flat_map(|layer| layer.scales.all()).all(is_finite),
        ),
        (
            "factor of a recurrence's inputs",
            spec.recurrents().filter_map(RecurrentSpec::factors).flatten().all(is_finite),
        ),
        (
            "share of an earlier stream",
            spec.layers
                .iter()
                .flat_map(|l| l.keeps.iter().chain(&l.adds))
                .all(|kept| is_finite(kept.factor)),
        ),
        ("bound of q, k and v", spec.attentions().all(|a| a.clip_qkv.is_none_or(is_positive))),
        (
            "factor of positions",
            spec.attentions().filter_map(|a| a.position_scale).all(|scale| {
                let original = scale.original_max_position_embeddings;
                is_finite(scale.beta) && is_finite(scale.offset) && is_positive(original)
            }),
        ),
        (
            "slope of ALiBi",
            spec.attentions()
                .filter_map(|a| a.alibi_slopes.as_ref())
                .flatten()
                .all(|s| is_positive(*s)),
        ),
        ("factor of a rotary embedding", frequencies.iter().all(|f| is_positive(f.factor))),
        ("soft cap of logits", spec.output.soft_cap.is_none_or(is_positive)),
        ("rotary embedding", inv_freq.into_iter().all(|value| value.is_finite() && *value >= 0.0)),
    ] {
        if !is_good {
            return Err(format!("its {what} is out of range"));
        }
    }
    Ok(())
}
