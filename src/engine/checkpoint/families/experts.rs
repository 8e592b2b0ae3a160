//! Shared by families with experts: sizes, names, and the usual ways to choose experts.

use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    DecoderSpec, ExpertSpec, ExpertsSpec, FeedForwardSpec, LinearSpec, SharedExpertSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{
    Activation, ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK,
};

/// Gate, up and down as most families call them.
pub(super) const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// True where each expert has tensors of its own, gate and up apart: as GGUF files are read.
pub(crate) const EXPERTS_APART: &str = "experts_apart";

/// Sizes of the experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Number of experts.
    pub num: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of inner values.
    pub inner: usize,
}

impl Sizes {
    /// Experts with the number of one of these keys, and the width of another.
    pub(super) fn read(config: &HfConfig, num: &[&str], inner: &str) -> Result<Self, EngineError> {
        Self::read_for(config, config.num_layers()?, num, inner)
    }

    /// The same where a list says how many layers there are.
    pub(super) fn read_for(
        config: &HfConfig,
        num_layers: usize,
        num: &[&str],
        inner: &str,
    ) -> Result<Self, EngineError> {
        let (root, hidden) = (config.root(), config.hidden_size()?);
        let num = root.size_of(num)?;
        limits::check_num_experts(num, num_layers).map_err(|text| config.error(text))?;
        Ok(Self { num, hidden, inner: root.size(inner)? })
    }

    /// The router of this name.
    pub(super) fn router(self, name: String) -> LinearSpec {
        LinearSpec::new(name, self.num, self.hidden)
    }

    /// Experts whose matrices are tensors of their own: `name.N.` and then these parts.
    pub(super) fn experts(self, name: &str, parts: [&str; 3]) -> Vec<ExpertSpec> {
        let of = |index| parts.map(|part| format!("{name}.{index}.{part}"));
        (0..self.num).map(|index| ExpertSpec::new(of(index), self.hidden, self.inner)).collect()
    }

    /// The same where experts have no gates: up and down.
    pub(super) fn experts_without_gates(self, name: &str, parts: [&str; 2]) -> Vec<ExpertSpec> {
        let of = |index| parts.map(|part| format!("{name}.{index}.{part}"));
        (0..self.num).map(|index| ExpertSpec::plain(of(index), self.hidden, self.inner)).collect()
    }

    /// A block whose router is `name.gate`, and whose experts are `name.experts.N.` and then these
    /// parts.
    pub(super) fn block(
        self,
        name: &str,
        parts: [&str; 3],
        (routing, activation): (&Routing, Activation),
    ) -> ExpertsSpec {
        let router = self.router(format!("{name}.gate"));
        ExpertsSpec {
            experts: self.experts(&format!("{name}.experts"), parts),
            ..ExpertsSpec::new(router, routing.clone(), activation)
        }
    }

    /// The same as DeepSeek V3 has it: experts chosen by sigmoids have a bias of the choice, beside
    /// so many of all tokens.
    pub(super) fn block_of_deepseek(
        self,
        name: &str,
        (routing, activation): (&Routing, Activation),
        num_shared: usize,
    ) -> ExpertsSpec {
        let bias = (format!("{name}.gate.e_score_correction_bias"), vec![self.num]);
        let has_bias = matches!(routing, Routing::TopK(best) if best.score == Score::Sigmoid);
        ExpertsSpec {
            choice_bias: has_bias.then_some(bias),
            shared: self.shared(&format!("{name}.shared_experts"), num_shared),
            ..self.block(name, PROJECTIONS, (routing, activation))
        }
    }

    /// `num` experts of all tokens: one MLP, as wide as they are together, `name.` and then the
    /// usual parts.
    pub(super) fn shared(self, name: &str, num: usize) -> Option<SharedExpertSpec> {
        let mlp = || shared(name, self.hidden, num * self.inner);
        (num > 0).then(|| SharedExpertSpec { mlp: mlp(), gate: None })
    }

    /// Experts that stand together in two tensors: one of all gates and ups, (experts, 2 * inner,
    /// hidden), and one of all downs.
    pub(super) fn stacked(self, gate_up: &str, down: &str) -> Vec<ExpertSpec> {
        let Self { num, hidden, inner } = self;
        let expert = |index| ExpertSpec {
            up: LinearSpec::new(gate_up, 2 * inner, hidden).sliced(index, num),
            down: LinearSpec::new(down, hidden, inner).sliced(index, num),
        };
        (0..num).map(expert).collect()
    }
}

/// An MLP of all tokens, `name.` and then the usual parts.
pub(super) fn shared(name: &str, hidden: usize, inner: usize) -> ExpertSpec {
    ExpertSpec::new(PROJECTIONS.map(|part| format!("{name}.{part}")), hidden, inner)
}

/// The best by a softmax over all: their probabilities, or each one's share of theirs.
pub(super) fn by_softmax(num: usize, is_share: bool) -> Routing {
    let weight = if is_share { ExpertWeight::SHARE } else { ExpertWeight::Score };
    Routing::TopK(TopK { num, score: Score::Softmax, groups: None, weight, scale: 1.0 })
}

/// The best by the router's numbers, weighed by a softmax over them alone.
pub(super) fn by_softmax_of_chosen(num: usize) -> Routing {
    let (score, weight) = (Score::Logits, ExpertWeight::Softmax);
    Routing::TopK(TopK { num, score, groups: None, weight, scale: 1.0 })
}

/// Shares of the sum as DeepSeek V3 has them.
pub(super) const SHARE: ExpertWeight = ExpertWeight::Share { added: 1e-20, at_least: 0.0 };

/// The best of all by sigmoids, to which a bias may be added.
pub(super) fn by_sigmoid_of_all(num: usize, weight: ExpertWeight, scale: f32) -> Routing {
    Routing::TopK(TopK { num, score: Score::Sigmoid, groups: None, weight, scale })
}

/// As DeepSeek V3 chooses: the best by sigmoids, to which a bias may be added, from the groups with
/// the best two, by shares of the sum and a factor.
pub(super) fn by_sigmoid(config: &HfConfig, is_share: bool) -> Result<Routing, EngineError> {
    by_groups(config, Score::Sigmoid, is_share)
}

/// The same by other scores.
pub(super) fn by_groups(
    config: &HfConfig,
    score: Score,
    is_share: bool,
) -> Result<Routing, EngineError> {
    let root = config.root();
    let count = |key| root.optional_size(key).map(|count| count.unwrap_or(1));
    let (num_groups, num_kept) = (count("n_group")?, count("topk_group")?);
    let groups = ExpertGroups { num: num_groups, num_kept, score: GroupScore::BestTwo };
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(is_share);
    Ok(Routing::TopK(TopK {
        num: num_of_token(config)?,
        score,
        // One group is all experts.
        groups: (num_groups != 1 || num_kept != 1).then_some(groups),
        weight: match is_share {
            true => SHARE,
            false => ExpertWeight::Score,
        },
        scale: root.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
    }))
}

/// DeepSeek's experts, from layer `first_k_dense_replace` on: routed ones, chosen with a bias, and
/// some of all tokens. Further layers that predict further tokens are left out.
pub(super) fn set_of_deepseek(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    routing: &Routing,
) -> Result<(), EngineError> {
    let root = config.root();
    let sizes = Sizes::read(config, NUM_EXPERTS, "moe_intermediate_size")?;
    let is_sparse = sparse_behind(config, 0)?;
    root.number_of(NUM_SHARED)?;
    let num_shared = NUM_SHARED.iter().find(|key| root.value(key).is_some());
    let num_shared = num_shared.map_or(Ok(None), |key| root.optional_size(key))?.unwrap_or(0);
    root.expect("moe_layer_freq", 1)?;
    let num_further = root.optional_size("num_nextn_predict_layers")?.unwrap_or(0);
    spec.output.of_further_tokens = further_layers(config, num_further)?;
    let activation = config.activation()?;
    set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            sizes.block_of_deepseek(&name, (routing, activation), num_shared)
        },
    );
    Ok(())
}

/// Names of so many layers after the last one, which predict further tokens.
pub(super) fn further_layers(
    config: &HfConfig,
    num_further: usize,
) -> Result<Vec<String>, EngineError> {
    limits::check_num_further(num_further).map_err(|text| config.error(text))?;
    let num_layers = config.num_layers()?;
    let further = num_layers..num_layers + num_further;
    Ok(further.map(|number| format!("model.layers.{number}.")).collect())
}

/// Which layers have experts: by `mlp_layer_types`, else as the family has it.
pub(super) fn sparse_layers(
    config: &HfConfig,
    is_sparse: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, EngineError> {
    match config.layers_by_type("mlp_layer_types", &["sparse"], &["dense"])? {
        Some(layers) => Ok(layers),
        None => Ok((0..config.num_layers()?).map(is_sparse).collect()),
    }
}

/// Number of DeepSeek's routed experts, in the words of its kin.
const NUM_EXPERTS: &[&str] = &["n_routed_experts", "num_local_experts", "num_experts"];

/// Number of its experts of all tokens.
pub(super) const NUM_SHARED: &[&str] = &["n_shared_experts", "num_shared_experts"];

/// The file says which layers have experts.
pub(super) fn says_which_are_sparse(config: &HfConfig) -> bool {
    ["first_k_dense_replace", "mlp_layer_types"]
        .iter()
        .any(|key| config.root().value(key).is_some())
}

/// Which layers have experts: by `mlp_layer_types`, else from `first_k_dense_replace` on, or from
/// this one.
pub(super) fn sparse_behind(config: &HfConfig, default: usize) -> Result<Vec<bool>, EngineError> {
    let first = config.root().optional_size("first_k_dense_replace")?;
    let is_sparse = sparse_layers(config, |index| index >= first.unwrap_or(default))?;
    let agrees =
        |first: usize| is_sparse.iter().enumerate().all(|(i, sparse)| *sparse == (i >= first));
    match first.is_none_or(agrees) {
        true => Ok(is_sparse),
        false => Err(config.error("`mlp_layer_types` and `first_k_dense_replace` disagree")),
    }
}

/// `num_experts_per_tok`
pub(super) fn num_of_token(config: &HfConfig) -> Result<usize, EngineError> {
    config.root().size("num_experts_per_tok")
}

/// Replaces the MLPs of some layers by experts, which normalize where the MLPs did.
pub(super) fn set(
    spec: &mut DecoderSpec,
    is_sparse: impl Fn(usize) -> bool,
    experts: impl Fn(usize) -> ExpertsSpec,
) {
    let layers = spec.layers.iter_mut().enumerate().filter(|(index, _)| is_sparse(*index));
    for (index, layer) in layers {
        let norms = layer.feed_forward.as_ref().map(FeedForwardSpec::norms).cloned();
        let experts = ExpertsSpec { norms: norms.unwrap_or_default(), ..experts(index) };
        layer.feed_forward = Some(experts.into());
    }
}
