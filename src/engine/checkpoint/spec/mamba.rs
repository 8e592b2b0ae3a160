//! `MambaSpec`: a block of Mamba 2, as data.

use super::{BlockNorms, LinearSpec, NamedShape, NormSpec, TapsSpec};
use vllm_batch_base::layers::{Activation, ScanShape};

/// out(norm(y, z)), where `inputs` gives z, x, B, C and dt, sums over the last few tokens change x,
/// B and C, and the scan makes y of all but z.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// Where it normalizes.
    pub norms: BlockNorms,
    /// Sizes of the scan.
    pub scan: ScanShape,
    /// (`scan.row_width()`, hidden_size): z, x, B, C, dt.
    pub inputs: LinearSpec,
    /// Factors of z, x, B, C and dt (Falcon-H1).
    pub factors: Option<[f32; 5]>,
    /// The sums, of x, B and C.
    pub taps: TapsSpec,
    /// Activation of the sums.
    pub activation: Activation,
    /// The names of log(-A), D and the bias of dt, (heads) each.
    pub parameters: [String; 3],
    /// The least and the most that dt is after its softplus.
    pub dt_bounds: [f32; 2],
    /// The norm of y; None: y is multiplied by silu(z) alone.
    pub gated_norm: Option<GatedNormSpec>,
    /// (hidden_size, heads * head_dim)
    pub out: LinearSpec,
}

/// A norm of values that are multiplied by the silu of others.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNormSpec {
    /// (heads * head_dim)
    pub norm: NormSpec,
    /// Groups of values that are normalized together.
    pub num_groups: usize,
    /// When they are multiplied.
    pub order: GateOrder,
}

/// When normalized values are multiplied by their gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// norm(y * silu(z))
    BeforeNorm,
    /// norm(y) * silu(z)
    AfterNorm,
}

impl MambaSpec {
    /// Factors of all columns of what `inputs` gives.
    pub fn column_factors(&self) -> Option<Vec<f32>> {
        let (inner, shared) =
            (self.scan.inner_width(), self.scan.num_groups * self.scan.state_size);
        let widths = [inner, inner, shared, shared, self.scan.num_heads];
        let of_part = |(width, factor)| std::iter::repeat_n(factor, width);
        Some(widths.into_iter().zip(self.factors?).flat_map(of_part).collect())
    }

    /// The tensors of log(-A), D and the bias of dt.
    pub fn parameters(&self) -> [NamedShape; 3] {
        let tensor = |name: &String| (name.clone(), vec![self.scan.num_heads]);
        self.parameters.each_ref().map(tensor)
    }
}
