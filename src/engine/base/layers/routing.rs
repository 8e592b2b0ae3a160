//! Routing of tokens to experts, as values.

/// Rule that chooses experts.
#[derive(Clone, Debug, PartialEq)]
pub enum Routing {
    /// The best by their scores.
    TopK(TopK),
    /// Two experts, each with its share of those that are nearly as good (Phi-3.5-MoE, as it is
    /// outside of training): transformers' `sparsemixer`.
    SparseMixer {
        /// Experts are nearly as good where they are behind by up to twice this share.
        jitter: f32,
    },
}

/// The best by their scores.
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    /// Number of experts of a token.
    pub num: usize,
    /// Function of the router's logits.
    pub score: Score,
    /// Experts are chosen from some groups of them alone.
    pub groups: Option<ExpertGroups>,
    /// Weight of each expert.
    pub weight: ExpertWeight,
    /// A factor of the weights.
    pub scale: f32,
}

/// Scores of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// The router's numbers.
    Logits,
    /// Their softmax.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// Groups of neighbours, the best of which experts are chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups, of equally many experts.
    pub num: usize,
    /// Number of groups that are kept.
    pub num_kept: usize,
    /// Score of a group.
    pub score: GroupScore,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The score of their best expert (DeepSeek V2).
    Best,
    /// The sum of the scores of their best two (DeepSeek V3).
    BestTwo,
}

/// The weights of those that are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertWeight {
    /// Their scores.
    Score,
    /// Their shares of the sum of their scores: score / max(sum + added, at_least).
    Share {
        /// Added to the sum.
        added: f32,
        /// The least that they are divided by.
        at_least: f32,
    },
    /// The softmax of their scores.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
}

/// What the weights of experts are factors of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighted {
    /// What experts give.
    #[default]
    Outputs,
    /// What they read; each token has one of them (Llama 4).
    Inputs,
}

impl ExpertWeight {
    /// Shares of the plain sum.
    pub const SHARE: Self = Self::Share { added: 0.0, at_least: 0.0 };
}

impl Routing {
    /// Experts of a token.
    pub fn num_chosen(&self) -> usize {
        match self {
            Self::TopK(best) => best.num,
            Self::SparseMixer { .. } => 2,
        }
    }
}
