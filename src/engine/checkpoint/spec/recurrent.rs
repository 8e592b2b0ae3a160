//! `RecurrentSpec`: blocks that go from token to token with a state, as data.

use super::{BlockNorms, DeltaNetSpec, LinearSpec, MambaSpec, NamedShape, NormSpec, SelectiveSpec};

/// A block that keeps a state of the tokens before, in the place of attention or beside it.
#[derive(Clone, Debug, PartialEq)]
pub enum RecurrentSpec {
    /// A gated sum over the last few tokens.
    ShortConv(Box<ShortConvSpec>),
    /// Mamba 1.
    Selective(Box<SelectiveSpec>),
    /// Mamba 2.
    Mamba(Box<MambaSpec>),
    /// A gated delta rule.
    DeltaNet(Box<DeltaNetSpec>),
}

/// out(c * conv(b * x)), where `inputs` gives b, c and x, and conv sums over the last few tokens,
/// value by value (LFM2).
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// (3 * hidden_size, hidden_size): b, c, x.
    pub inputs: LinearSpec,
    /// The sums, of hidden_size values.
    pub taps: TapsSpec,
    /// (hidden_size, hidden_size)
    pub out: LinearSpec,
}

/// Weights of sums over the last few tokens, value by value.
#[derive(Clone, Debug, PartialEq)]
pub struct TapsSpec {
    /// The names before `.weight` (width, 1, taps) and `.bias` (width), each with the values of a
    /// token that are its own, which follow each other.
    pub parts: Vec<(String, usize)>,
    /// Tokens that a sum is over.
    pub num_taps: usize,
    /// The sums have biases.
    pub bias: bool,
}

/// Most tokens of a convolution that a GPU's kernel takes.
const MAX_GPU_TAPS: usize = 16;
/// Most rows of a state that a GPU's kernels take: the widths of B, or of k.
const MAX_GPU_STATE_ROWS: usize = 1024;

fn without_gpu_kernels(num_taps: usize, num_state_rows: usize) -> Option<&'static str> {
    if num_taps > MAX_GPU_TAPS {
        return Some("convolutions over more than 16 tokens");
    }
    (num_state_rows > MAX_GPU_STATE_ROWS).then_some("states of more than 1024 rows")
}

impl TapsSpec {
    /// Sums of one tensor, without biases.
    pub fn new(name: impl Into<String>, width: usize, num_taps: usize) -> Self {
        Self { parts: vec![(name.into(), width)], num_taps, bias: false }
    }

    /// The same, with or without biases.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Values of a token.
    pub fn width(&self) -> usize {
        self.parts.iter().map(|(_, width)| width).sum()
    }

    /// The weights of the sums.
    pub fn weights(&self) -> impl Iterator<Item = NamedShape> {
        let of = |(name, width): &(String, usize)| {
            (format!("{name}.weight"), vec![*width, 1, self.num_taps])
        };
        self.parts.iter().map(of)
    }

    /// Their biases, if there are any.
    pub fn biases(&self) -> impl Iterator<Item = NamedShape> {
        let parts = self.parts.iter().filter(|_| self.bias);
        parts.map(|(name, width)| (format!("{name}.bias"), vec![*width]))
    }

    /// Values that a sequence keeps of the tokens before.
    pub fn state_width(&self) -> usize {
        (self.num_taps - 1) * self.width()
    }
}

impl RecurrentSpec {
    /// Where it normalizes.
    pub fn norms(&self) -> &BlockNorms {
        match self {
            Self::ShortConv(conv) => &conv.norms,
            Self::Selective(block) => &block.norms,
            Self::Mamba(mamba) => &mamba.norms,
            Self::DeltaNet(net) => &net.norms,
        }
    }

    /// The same, to be changed.
    pub fn norms_mut(&mut self) -> &mut BlockNorms {
        match self {
            Self::ShortConv(conv) => &mut conv.norms,
            Self::Selective(block) => &mut block.norms,
            Self::Mamba(mamba) => &mut mamba.norms,
            Self::DeltaNet(net) => &mut net.norms,
        }
    }

    /// Linear layers: the first one, from whose outputs all else is computed, and the last one.
    pub fn linears(&self) -> [&LinearSpec; 2] {
        match self {
            Self::ShortConv(conv) => [&conv.inputs, &conv.out],
            Self::Selective(block) => [&block.inputs, &block.out],
            Self::Mamba(mamba) => [&mamba.inputs, &mamba.out],
            Self::DeltaNet(net) => [&net.inputs, &net.out],
        }
    }

    /// Linear layers between these two, in the order in which they are computed.
    pub fn inner_linears(&self) -> impl Iterator<Item = &LinearSpec> {
        match self {
            Self::Selective(block) => Some([&block.choice, &block.dt]),
            Self::DeltaNet(net) => net.low_rank.as_ref().map(|gates| [&gates.a, &gates.z]),
            Self::ShortConv(_) | Self::Mamba(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// Sums over the last few tokens.
    pub fn taps(&self) -> &TapsSpec {
        match self {
            Self::ShortConv(conv) => &conv.taps,
            Self::Selective(block) => &block.taps,
            Self::Mamba(mamba) => &mamba.taps,
            Self::DeltaNet(net) => &net.taps,
        }
    }

    /// Factors of parts of what its first linear layer gives.
    pub fn factors(&self) -> Option<[f32; 5]> {
        match self {
            Self::Mamba(mamba) => mamba.factors,
            Self::ShortConv(_) | Self::Selective(_) | Self::DeltaNet(_) => None,
        }
    }

    /// Norms of values within the block.
    pub fn inner_norms(&self) -> impl Iterator<Item = &NormSpec> {
        let (one, several) = match self {
            Self::ShortConv(_) => (None, None),
            Self::Selective(block) => (None, block.choice_norms.as_ref()),
            Self::Mamba(mamba) => (mamba.gated_norm.as_ref().map(|gated| &gated.norm), None),
            Self::DeltaNet(net) => (Some(&net.norm), None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Tensors that belong to no linear layer and no norm.
    pub fn other_tensors(&self) -> Vec<NamedShape> {
        let taps = self.taps();
        let of_taps = taps.weights().chain(taps.biases());
        match self {
            Self::ShortConv(_) => of_taps.collect(),
            Self::Selective(block) => of_taps.chain(block.parameters()).collect(),
            Self::Mamba(mamba) => of_taps.chain(mamba.parameters()).collect(),
            Self::DeltaNet(net) => of_taps.chain(net.gate_tensors()).collect(),
        }
    }

    /// Values that a sequence keeps of the tokens before: those of the sums first.
    pub fn state_width(&self) -> usize {
        let of_taps = self.taps().state_width();
        match self {
            Self::ShortConv(_) => of_taps,
            Self::Selective(block) => of_taps + block.shape.state_len(),
            Self::Mamba(mamba) => of_taps + mamba.scan.state_len(),
            Self::DeltaNet(net) => of_taps + net.heads.state_width(),
        }
    }

    /// Operations of a token, without those of the linear layers.
    pub fn num_operations(&self) -> f64 {
        let taps = self.taps();
        let of_taps = 2.0 * (taps.num_taps * taps.width()) as f64;
        match self {
            Self::ShortConv(_) => of_taps,
            // The same as Mamba 2, with a rate of its own for each value.
            Self::Selective(block) => of_taps + 6.0 * block.shape.state_len() as f64,
            // Of a value of the state: a decay, an input that is added, and its share of y.
            Self::Mamba(mamba) => of_taps + 5.0 * mamba.scan.state_len() as f64,
            Self::DeltaNet(net) => of_taps + net.heads.num_operations(),
        }
    }

    /// Part without kernels for a GPU, in words: kernels hold recurrent states in registers.
    pub fn without_gpu_kernels(&self) -> Option<&'static str> {
        let num_rows = match self {
            Self::ShortConv(_) => 0,
            Self::Selective(block) => block.shape.state_size,
            Self::Mamba(mamba) => mamba.scan.state_size,
            Self::DeltaNet(net) => net.heads.k_dim,
        };
        without_gpu_kernels(self.taps().num_taps, num_rows)
    }

    /// Name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ShortConv(_) => "a short convolution",
            Self::Selective(_) => "a recurrence of Mamba 1",
            Self::Mamba(_) => "a recurrence of Mamba 2",
            Self::DeltaNet(_) => "a delta net",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_a_gpus_registers_is_named() {
        let of_taps = |num_taps| {
            let linear = |n| LinearSpec::new("linear".to_owned(), n, 8);
            RecurrentSpec::ShortConv(Box::new(ShortConvSpec {
                norms: BlockNorms::default(),
                inputs: linear(24),
                taps: TapsSpec::new("conv", 8, num_taps),
                out: linear(8),
            }))
        };
        assert_eq!(of_taps(16).without_gpu_kernels(), None);
        let refused = of_taps(17).without_gpu_kernels();
        assert_eq!(refused, Some("convolutions over more than 16 tokens"));
        let refused = without_gpu_kernels(4, MAX_GPU_STATE_ROWS + 1);
        assert_eq!(refused, Some("states of more than 1024 rows"));
    }
}
