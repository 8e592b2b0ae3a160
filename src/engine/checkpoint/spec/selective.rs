//! `SelectiveSpec`: a block of Mamba 1, as data.

use super::{BlockNorms, LinearSpec, NamedShape, NormSpec, TapsSpec};
use vllm_batch_base::layers::{Activation, SelectiveShape};

/// out(y * silu(z)), where `inputs` gives x and z, sums over the last few tokens change x, further
/// linear layers make dt, B and C of x, and the scan makes y of them.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Sizes of the scan.
    pub shape: SelectiveShape,
    /// (2 * channels, hidden_size): x, z.
    pub inputs: LinearSpec,
    /// The sums, of x.
    pub taps: TapsSpec,
    /// Activation of the sums.
    pub activation: Activation,
    /// (rank + 2 * state_size, channels): what dt is made of, B and C.
    pub choice: LinearSpec,
    /// Norms of what dt is made of, of B and of C, if there are any.
    pub choice_norms: Option<[NormSpec; 3]>,
    /// (channels, rank): to dt, without its bias.
    pub dt: LinearSpec,
    /// The names of log(-A), D and the bias of dt.
    pub parameters: [String; 3],
    /// (hidden_size, channels)
    pub out: LinearSpec,
}

impl SelectiveSpec {
    /// The tensors of log(-A), D and the bias of dt.
    pub fn parameters(&self) -> [NamedShape; 3] {
        let SelectiveShape { num_channels, state_size, .. } = self.shape;
        let [a_log, skip, dt_bias] = self.parameters.clone();
        let of_channels = |name| (name, vec![num_channels]);
        [(a_log, vec![num_channels, state_size]), of_channels(skip), of_channels(dt_bias)]
    }
}
