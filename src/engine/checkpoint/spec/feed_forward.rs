//! Feed-forward blocks: an MLP, or a mixture of experts.

use super::{ActivationSpec, BlockNorms, LinearSpec, NamedShape, NormSpec};
use vllm_batch_base::layers::{Activation, Routing, Weighted};

pub use vllm_batch_base::layers::MlpForm;

/// Feed-forward block of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// All tokens go through one MLP.
    Mlp(Box<MlpSpec>),
    /// A router chooses some of many MLPs for each token.
    Experts(Box<ExpertsSpec>),
}

/// An MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Whether `up` has a gate.
    pub form: MlpForm,
    /// The activation.
    pub activation: ActivationSpec,
    /// (inner width, hidden_size), or gate and up, one after the other.
    pub up: LinearSpec,
    /// (hidden_size, inner width)
    pub down: LinearSpec,
}

/// A mixture of experts. Each expert is an MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Where the block normalizes.
    pub norms: BlockNorms,
    /// (experts, hidden_size): a number of each expert, those that give what they read too. It is
    /// computed in f32.
    pub router: LinearSpec,
    /// Bias of the scores when experts are chosen.
    pub choice_bias: Option<NamedShape>,
    /// Files may lack the bias: it is 0 then (A.X K1).
    pub lacks_bias_as_zeros: bool,
    /// From those numbers to the experts of a token and their weights.
    pub routing: Routing,
    /// (experts): the weights are multiplied by these.
    pub weight_factors: Option<NamedShape>,
    /// What the weights are factors of.
    pub weighted: Weighted,
    /// Whether experts have gates, that of all tokens too.
    pub form: MlpForm,
    /// The activation of all experts.
    pub activation: Activation,
    /// That of the expert of all tokens, where it is another.
    pub shared_activation: Option<Activation>,
    /// All of them.
    pub experts: Vec<ExpertSpec>,
    /// Experts behind these that give what they read (LongCat).
    pub num_identities: usize,
    /// What they read and give is narrower than the stream.
    pub latent: Option<ExpertLatentSpec>,
    /// Shared expert of all tokens.
    pub shared: Option<SharedExpertSpec>,
    /// That and the experts normalize apart.
    pub apart: Option<ApartNorms>,
}

/// Norms of a block whose two parts, the MLP of all tokens and the experts, have their own besides
/// those of the block:
/// after(mlp_after(mlp(before(x))) + experts_after(experts(experts_before(x)))).
#[derive(Clone, Debug, PartialEq)]
pub struct ApartNorms {
    /// Norm of the MLP's output.
    pub mlp_after: NormSpec,
    /// Norm of the router's input, of the stream.
    pub router: NormSpec,
    /// Norm of the experts' input, of the stream.
    pub experts_before: NormSpec,
    /// Norm of the experts' output.
    pub experts_after: NormSpec,
}

/// Layers around the experts that are chosen: back(experts(into(x))). The router and the expert of
/// all tokens read x.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLatentSpec {
    /// (latent width, hidden_size)
    pub into: LinearSpec,
    /// (hidden_size, latent width): of the weighted sum of experts.
    pub back: LinearSpec,
}

/// Experts beside a layer's MLP that read what it reads. What they give goes into a slot of kept
/// streams, for a later layer to add (LongCat).
#[derive(Clone, Debug, PartialEq)]
pub struct LateExperts {
    /// The block of experts, which normalizes where the MLP does.
    pub block: FeedForwardSpec,
    /// The slot.
    pub slot: usize,
}

/// An expert.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSpec {
    /// (2 * inner width, hidden_size): gate and up, one after the other; or up alone.
    pub up: LinearSpec,
    /// (hidden_size, inner width)
    pub down: LinearSpec,
}

impl ExpertSpec {
    /// Expert of gate, up and down, a tensor each.
    pub fn new([gate, up, down]: [String; 3], hidden: usize, inner: usize) -> Self {
        Self {
            up: LinearSpec::stacked([(gate, inner), (up, inner)], hidden),
            down: LinearSpec::new(down, hidden, inner),
        }
    }

    /// Expert without a gate.
    pub fn plain([up, down]: [String; 2], hidden: usize, inner: usize) -> Self {
        Self { up: LinearSpec::new(up, inner, hidden), down: LinearSpec::new(down, hidden, inner) }
    }

    /// The same, whose tensors are named without `.weight`.
    pub fn as_parameters(self) -> Self {
        Self { up: self.up.as_parameters(), down: self.down.as_parameters() }
    }

    /// The same, with or without biases.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { up: self.up.with_bias(bias), down: self.down.with_bias(bias) }
    }
}

/// An expert of all tokens, which is added to those that are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpertSpec {
    /// MLP with the experts' activation.
    pub mlp: ExpertSpec,
    /// (1, hidden_size): its outputs are multiplied by the sigmoid of this (Qwen2-MoE).
    pub gate: Option<LinearSpec>,
}

impl From<MlpSpec> for FeedForwardSpec {
    fn from(mlp: MlpSpec) -> Self {
        Self::Mlp(Box::new(mlp))
    }
}

impl From<ExpertsSpec> for FeedForwardSpec {
    fn from(experts: ExpertsSpec) -> Self {
        Self::Experts(Box::new(experts))
    }
}

impl FeedForwardSpec {
    /// The MLP, if it is one.
    pub fn mlp(&self) -> Option<&MlpSpec> {
        match self {
            Self::Mlp(mlp) => Some(mlp),
            Self::Experts(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn mlp_mut(&mut self) -> Option<&mut MlpSpec> {
        match self {
            Self::Mlp(mlp) => Some(mlp),
            Self::Experts(_) => None,
        }
    }

    /// The experts, if it has some.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Self::Mlp(_) => None,
            Self::Experts(experts) => Some(experts),
        }
    }

    /// The same, to be changed.
    pub fn experts_mut(&mut self) -> Option<&mut ExpertsSpec> {
        match self {
            Self::Mlp(_) => None,
            Self::Experts(experts) => Some(experts),
        }
    }

    /// Where it normalizes.
    pub fn norms(&self) -> &BlockNorms {
        match self {
            Self::Mlp(mlp) => &mlp.norms,
            Self::Experts(experts) => &experts.norms,
        }
    }

    /// The same, to be changed.
    pub fn norms_mut(&mut self) -> &mut BlockNorms {
        match self {
            Self::Mlp(mlp) => &mut mlp.norms,
            Self::Experts(experts) => &mut experts.norms,
        }
    }

    /// Linear layers of the block.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let mlp = self.mlp().into_iter().flat_map(|mlp| [&mlp.up, &mlp.down]);
        mlp.chain(self.experts().into_iter().flat_map(ExpertsSpec::linears))
    }

    /// The widest inner values.
    pub fn inner_width(&self) -> usize {
        match self {
            Self::Mlp(mlp) => mlp.down.k,
            Self::Experts(experts) => experts.mlps().map(|mlp| mlp.down.k).max().unwrap_or(0),
        }
    }

    /// Tensors that belong to no linear layer and no norm.
    pub(super) fn other_tensors(&self) -> Vec<NamedShape> {
        match self {
            Self::Mlp(mlp) => mlp.activation.tensors(),
            Self::Experts(experts) => {
                let bias = experts.choice_bias.iter().filter(|_| !experts.lacks_bias_as_zeros);
                bias.chain(&experts.weight_factors).cloned().collect()
            }
        }
    }
}

impl ExpertsSpec {
    /// Experts chosen by the router alone. Norms and experts are still to be named.
    pub fn new(router: LinearSpec, routing: Routing, activation: Activation) -> Self {
        Self {
            norms: BlockNorms::default(),
            router,
            choice_bias: None,
            lacks_bias_as_zeros: false,
            routing,
            weight_factors: None,
            weighted: Weighted::Outputs,
            form: MlpForm::Gated,
            activation,
            shared_activation: None,
            experts: Vec::new(),
            num_identities: 0,
            latent: None,
            shared: None,
            apart: None,
        }
    }

    /// Experts that are chosen from.
    pub fn num(&self) -> usize {
        self.experts.len() + self.num_identities
    }

    /// The bias of the choice, where a file may lack it, and what it is then.
    pub(super) fn optional_bias(&self) -> Option<(NamedShape, f32)> {
        let bias = self.choice_bias.as_ref().filter(|_| self.lacks_bias_as_zeros)?;
        Some((bias.clone(), 0.0))
    }

    /// The layers of all experts, one after the other: ups, and downs.
    ///
    /// # Panics
    /// Experts are not alike.
    pub fn stacked(&self) -> ExpertSpec {
        let stack = |of: fn(&ExpertSpec) -> &LinearSpec| {
            let first = of(&self.experts[0]);
            let alike = |one: &LinearSpec| {
                (one.k, one.bias, one.layout, &one.order)
                    == (first.k, first.bias, first.layout, &first.order)
                    && one.share.is_none()
                    && one.bounded.is_empty()
            };
            assert!(self.experts.iter().all(|expert| alike(of(expert))), "experts are alike");
            let parts = self.experts.iter().flat_map(|expert| of(expert).parts.iter().cloned());
            let order = first.order.of_each(self.experts.len());
            LinearSpec { parts: parts.collect(), order, ..first.clone() }
        };
        ExpertSpec { up: stack(|expert| &expert.up), down: stack(|expert| &expert.down) }
    }

    /// Norms beside those of the block.
    pub fn inner_norms(&self) -> impl Iterator<Item = &NormSpec> {
        self.apart.iter().flat_map(|apart| {
            let ApartNorms { mlp_after, router, experts_before, experts_after } = apart;
            [mlp_after, router, experts_before, experts_after]
        })
    }

    /// All its MLPs, the shared one first.
    pub fn mlps(&self) -> impl Iterator<Item = &ExpertSpec> {
        self.shared.iter().map(|shared| &shared.mlp).chain(&self.experts)
    }

    /// Linear layers of the experts, and around them.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        let latent = self.latent.iter().flat_map(|latent| [&latent.into, &latent.back]);
        let gate = self.shared.iter().filter_map(|shared| shared.gate.as_ref());
        let mlps = self.mlps().flat_map(|mlp| [&mlp.up, &mlp.down]);
        std::iter::once(&self.router).chain(gate).chain(latent).chain(mlps)
    }
}
