//! What a model's tensors are: each is named once, in a `LinearSpec`, a `NormSpec` or a table of
//! positions. Whatever lists, checks, loads, counts or makes them up goes over these.

use crate::engine::ops::NormKind;

/// A tensor's name in a checkpoint, and its shape.
pub type NamedShape = (String, Vec<usize>);

/// A linear layer (out = x Wᵀ + b) or an embedding table.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// The tensors whose rows, one after the other, are those of W.
    pub parts: Vec<Part>,
    /// Inputs, columns of W.
    pub k: usize,
    /// Every part has a bias.
    pub bias: bool,
}

/// One tensor of a linear layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name, without `.weight` and `.bias`.
    pub name: String,
    /// Its outputs.
    pub rows: usize,
}

impl LinearSpec {
    /// A layer of one tensor (n, k), without a bias.
    pub fn new(name: impl Into<String>, n: usize, k: usize) -> Self {
        Self::stacked([(name.into(), n)], k)
    }

    /// A layer of several tensors (name, rows), without biases.
    pub fn stacked(parts: impl IntoIterator<Item = (String, usize)>, k: usize) -> Self {
        let parts = parts.into_iter().map(|(name, rows)| Part { name, rows }).collect();
        Self { parts, k, bias: false }
    }

    /// The same, with or without biases.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Outputs, rows of W.
    pub fn n(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Elements of W.
    pub fn num_weights(&self) -> f64 {
        self.n() as f64 * self.k as f64
    }

    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.weights().chain(self.biases())
    }

    /// The tensors that W is made of.
    pub fn weights(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let weight = |part: &Part| (format!("{}.weight", part.name), vec![part.rows, self.k]);
        self.parts.iter().map(weight)
    }

    /// The biases of all parts, if it has them.
    pub fn biases(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let bias = |part: &Part| (format!("{}.bias", part.name), vec![part.rows]);
        self.parts.iter().filter(|_| self.bias).map(bias)
    }
}

/// A normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Its tensor's name, without `.weight` and `.bias`.
    pub name: String,
    /// Values that are normalized together.
    pub width: usize,
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// What is added to the stored weight: 1 in Gemma.
    pub weight_offset: f32,
    /// There is a bias.
    pub bias: bool,
}

impl NormSpec {
    /// RMSNorm with a weight.
    pub fn rms(name: impl Into<String>, width: usize, eps: f32) -> Self {
        let (kind, name) = (NormKind::Rms, name.into());
        Self { name, width, kind, eps, weight_offset: 0.0, bias: false }
    }

    /// LayerNorm with a weight and a bias.
    pub fn layer(name: impl Into<String>, width: usize, eps: f32) -> Self {
        Self { kind: NormKind::Layer, bias: true, ..Self::rms(name, width, eps) }
    }

    /// The same norm of other values.
    pub fn renamed(&self, name: impl Into<String>, width: usize) -> Self {
        Self { name: name.into(), width, ..self.clone() }
    }

    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> {
        [self.weight()].into_iter().chain(self.bias())
    }

    /// Its weight.
    pub fn weight(&self) -> NamedShape {
        (format!("{}.weight", self.name), vec![self.width])
    }

    /// Its bias, if it has one.
    pub fn bias(&self) -> Option<NamedShape> {
        self.bias.then(|| (format!("{}.bias", self.name), vec![self.width]))
    }
}
