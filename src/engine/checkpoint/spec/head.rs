//! `HeadSpec`: what a head computes of a state, as data. `model/head.rs` runs it.

use super::{LinearSpec, NamedShape, NormSpec};
use vllm_batch_base::layers::Activation;

/// Layers of a classifier, a projection or the like, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// The outputs of each are the inputs of the next.
    pub layers: Vec<HeadLayer>,
}

/// norm(activation(linear(x)))
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLayer {
    /// (outputs, inputs)
    pub linear: LinearSpec,
    /// Activation of the sums; `None`: the sums are the outputs.
    pub activation: Option<HeadActivation>,
    /// Norm of the outputs.
    pub norm: Option<NormSpec>,
}

/// An activation of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadActivation {
    /// One that bodies have too.
    Known(Activation),
    /// cap * tanh(x / cap)
    Capped(f32),
}

impl HeadActivation {
    /// The hyperbolic tangent.
    pub const TANH: Self = Self::Capped(1.0);
}

impl HeadLayer {
    /// A linear layer alone.
    pub fn new(linear: LinearSpec) -> Self {
        Self { linear, activation: None, norm: None }
    }

    /// The same with an activation.
    pub fn activated(self, activation: HeadActivation) -> Self {
        Self { activation: Some(activation), ..self }
    }
}

impl HeadSpec {
    /// All tensors: what a checkpoint is held against, and what is loaded.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.layers.iter().flat_map(|layer| {
            let of_norm = layer.norm.iter().flat_map(NormSpec::tensors);
            layer.linear.tensors().chain(of_norm)
        })
    }

    /// Values that it makes of a state; None: there are no layers.
    pub fn width(&self) -> Option<usize> {
        self.layers.last().map(|layer| layer.linear.n())
    }
}
