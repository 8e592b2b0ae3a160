//! Tensors of a model: each is named once, in a `LinearSpec`, a `NormSpec` or an
//! `ActivationSpec`. Whatever lists, checks, loads, counts or makes them up goes over these.

use std::ops::Add;
use std::sync::Arc;

use super::{ExpertsSpec, LayerSpec, RowOrder, Share};
use vllm_batch_base::layers::{Activation, NormKind};

/// A tensor's name in a checkpoint, and its shape.
pub type NamedShape = (String, Vec<usize>);

/// Number of parameters of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// All of them.
    pub all: u64,
    /// Those that one token is computed with: of experts the ones that it goes to.
    pub active: u64,
}

impl Parameters {
    /// Parameters of these tensors, among them those of the experts of these layers.
    pub(super) fn of(tensors: &[NamedShape], layers: &[LayerSpec]) -> Self {
        let size = |(_, shape): &NamedShape| shape.iter().map(|n| *n as u64).product::<u64>();
        let all = tensors.iter().map(size).sum();
        let idle = |experts: &ExpertsSpec| {
            let linears = experts.experts.iter().flat_map(|expert| [&expert.up, &expert.down]);
            let of_all: u64 = linears.map(LinearSpec::num_parameters).sum();
            let num = experts.experts.len() as u64;
            of_all / num * num.saturating_sub(experts.routing.num_chosen() as u64)
        };
        let idle: u64 = layers.iter().filter_map(LayerSpec::experts).map(idle).sum();
        Self { all, active: all - idle }
    }
}

impl Add for Parameters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, active: self.active + other.active }
    }
}

/// A linear layer (out = x Wᵀ + b) or an embedding table.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearSpec {
    /// The tensors whose rows, one after the other, are those of W as stored.
    pub parts: Vec<Part>,
    /// Inputs, columns of W: of those of the tensors what `share` says.
    pub k: usize,
    /// Every part has a bias, but for those that lack it.
    pub bias: bool,
    /// Layout of a part in the file.
    pub layout: Layout,
    /// Stored row of each row of W and of each bias.
    pub order: RowOrder,
    /// Rows or columns of W, where ranks share the layer; `None`: all.
    pub share: Option<Share>,
    /// Modules with the least and the largest value of the inputs and outputs of each part, which
    /// are bounded so (Gemma 4's towers); empty: they are not.
    pub bounded: Vec<String>,
    /// Columns of W are divided by their lengths, or by this where it is more (Ling 1).
    pub least_length: Option<f32>,
}

/// One tensor of a linear layer, or one of several matrices that a tensor holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's name, without `suffixes`.
    pub name: String,
    /// Number of outputs.
    pub rows: usize,
    /// Suffixes of the names of its weight and its bias.
    pub suffixes: [&'static str; 2],
    /// Matrix within the tensor; `None`: it has the tensor alone.
    pub slice: Option<Slice>,
    /// It has no bias where the other parts of its layer have one.
    pub lacks_bias: bool,
}

/// One of several matrices of one shape that a tensor stacks: (count, ..).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the matrix.
    pub index: usize,
    /// Number of matrices.
    pub count: usize,
    /// The tensor has their rows one after the other: (count * rows, ..) (DBRX).
    pub is_flat: bool,
}

impl Part {
    /// A tensor alone, whose weight and bias are called as a module's are.
    pub fn new(name: impl Into<String>, rows: usize) -> Self {
        Self {
            name: name.into(),
            rows,
            suffixes: [".weight", ".bias"],
            slice: None,
            lacks_bias: false,
        }
    }

    /// The same, without a bias whatever the others of its layer have.
    pub fn without_bias(self) -> Self {
        Self { lacks_bias: true, ..self }
    }

    /// The name of its weight.
    pub fn weight_name(&self) -> String {
        format!("{}{}", self.name, self.suffixes[0])
    }

    /// A shape of this part in the shape of its tensor.
    fn of_tensor(&self, shape: Vec<usize>) -> Vec<usize> {
        match self.slice {
            Some(Slice { count, is_flat: true, .. }) => {
                let (first, rest) = shape.split_first().expect("of a matrix or of a vector");
                [count * first].into_iter().chain(rest.iter().copied()).collect()
            }
            slice => slice.iter().map(|slice| slice.count).chain(shape).collect(),
        }
    }

    /// Bias of the part.
    pub fn bias(&self) -> NamedShape {
        (format!("{}{}", self.name, self.suffixes[1]), self.of_tensor(vec![self.rows]))
    }
}

/// Layout of a matrix in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// (outputs, inputs)
    #[default]
    Rows,
    /// (inputs, outputs): GPT-2's `Conv1D`.
    Transposed,
    /// (outputs, 3, size, size): a convolution over patches of an image that do not overlap.
    Patches {
        /// (outputs, 3, frames, size, size): patches have so many frames.
        frames: Option<usize>,
        /// Pixels of a patch's side.
        size: usize,
    },
    /// (outputs, inputs), where inputs are the values of several rows, and those of a channel of
    /// all of them are beside each other: a convolution over squares of patches.
    ByChannel {
        /// How many rows.
        num_merged: usize,
        /// How many axes the rows have in the tensor, all as long: none where it is flattened, two
        /// of a square (outputs, channels, side, side), one of frames (outputs, channels, frames).
        num_axes: usize,
    },
    /// (side, side, inputs): outputs are the places of a square, row after row.
    Places {
        /// Of the square.
        side: usize,
    },
    /// (outputs, inputs), where inputs are the samples of a patch, frame after frame: (frames, 3,
    /// size, size).
    ByFrame {
        /// How many frames.
        num_frames: usize,
    },
}

impl Layout {
    /// The stored column of each of so many columns; None: they are as stored.
    pub fn columns(self, num_columns: usize) -> Option<Arc<[u32]>> {
        match self {
            Self::ByChannel { num_merged, .. } => {
                let width = num_columns / num_merged;
                let column = |index: usize| (index % width * num_merged + index / width) as u32;
                Some((0..num_columns).map(column).collect())
            }
            Self::ByFrame { num_frames } => {
                let len = num_columns / (3 * num_frames);
                let column = |index: usize| {
                    let (band, frame) = (index / len / num_frames, index / len % num_frames);
                    ((frame * 3 + band) * len + index % len) as u32
                };
                Some((0..num_columns).map(column).collect())
            }
            Self::Rows | Self::Transposed | Self::Patches { .. } | Self::Places { .. } => None,
        }
    }
}

impl LinearSpec {
    /// A layer of one tensor (n, k), without a bias.
    pub fn new(name: impl Into<String>, n: usize, k: usize) -> Self {
        Self::stacked([(name.into(), n)], k)
    }

    /// A layer of several tensors (name, rows), without biases.
    pub fn stacked(parts: impl IntoIterator<Item = (String, usize)>, k: usize) -> Self {
        let parts = parts.into_iter().map(|(name, rows)| Part::new(name, rows)).collect();
        let (layout, order) = (Layout::Rows, RowOrder::as_stored());
        let (bounded, least_length) = (Vec::new(), None);
        Self { parts, k, bias: false, layout, order, share: None, bounded, least_length }
    }

    /// The rows of a tensor (count, rows, k), one matrix after the other.
    pub fn of_stack(name: impl Into<String>, count: usize, (rows, k): (usize, usize)) -> Self {
        let name = name.into();
        let mut stack = Self::stacked((0..count).map(|_| (name.clone(), rows)), k);
        for (index, part) in stack.parts.iter_mut().enumerate() {
            part.slice = Some(Slice { index, count, is_flat: false });
        }
        stack
    }

    /// A layer of a table and a bias of another module, by their names.
    pub fn of_table(names: [&'static str; 2], n: usize, k: usize) -> Self {
        let mut layer = Self::new("", n, k).with_bias(true);
        layer.parts[0].suffixes = names;
        layer
    }

    /// The same, with or without biases.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The same, with bounds of inputs and outputs in these modules, one for each part.
    pub fn bounded_by(self, bounded: Vec<String>) -> Self {
        assert_eq!(bounded.len(), self.parts.len());
        Self { bounded, ..self }
    }

    /// The same, stored (inputs, outputs).
    pub fn transposed(self) -> Self {
        Self { layout: Layout::Transposed, ..self }
    }

    /// The same over several rows, with the values of a channel of all of them beside each other.
    pub fn by_channel(self, num_merged: usize) -> Self {
        Self { layout: Layout::ByChannel { num_merged, num_axes: 0 }, ..self }
    }

    /// The same over the samples of a patch of so many frames, frame after frame.
    pub fn by_frame(self, num_frames: usize) -> Self {
        Self { layout: Layout::ByFrame { num_frames }, ..self }
    }

    /// The same over a square of this side, not flattened.
    pub fn of_squares(self, side: usize) -> Self {
        let layout = Layout::ByChannel { num_merged: side * side, num_axes: 2 };
        Self { layout, ..self }
    }

    /// The same over so many frames: a convolution.
    pub fn of_taps(self, num_taps: usize) -> Self {
        Self { layout: Layout::ByChannel { num_merged: num_taps, num_axes: 1 }, ..self }
    }

    /// The same of a table of the places of a square of this side.
    pub fn of_places(self, side: usize) -> Self {
        Self { layout: Layout::Places { side }, ..self }
    }

    /// A layer over the samples of patches of an image, without biases.
    pub fn of_patches(name: impl Into<String>, n: usize, size: usize) -> Self {
        let layer = Self::new(name, n, 3 * size * size);
        Self { layout: Layout::Patches { frames: None, size }, ..layer }
    }

    /// The same over the samples of patches of so many frames, which follow each other in a band.
    pub fn of_frames(self, num_frames: usize) -> Self {
        let Layout::Patches { size, .. } = self.layout else { unreachable!("patches have frames") };
        let layout = Layout::Patches { frames: Some(num_frames), size };
        Self { layout, k: self.k * num_frames, ..self }
    }

    /// The same, with its rows stored in this order.
    pub fn in_order(self, order: RowOrder) -> Self {
        Self { order, ..self }
    }

    /// The same, each part of which is one of `count` in its tensor.
    pub fn sliced(mut self, index: usize, count: usize) -> Self {
        let slice = Slice { index, count, is_flat: false };
        self.parts.iter_mut().for_each(|part| part.slice = Some(slice));
        self
    }

    /// The same where their rows stand one after the other.
    pub fn sliced_flat(mut self, index: usize, count: usize) -> Self {
        let slice = Slice { index, count, is_flat: true };
        self.parts.iter_mut().for_each(|part| part.slice = Some(slice));
        self
    }

    /// The same, whose parts are parameters of a module: the name alone, and with `_bias`.
    pub fn as_parameters(mut self) -> Self {
        self.parts.iter_mut().for_each(|part| part.suffixes = ["", "_bias"]);
        self
    }

    /// The same, whose parts are parameters of a module: `_weight` and `_bias` behind the name.
    pub fn in_its_module(mut self) -> Self {
        self.parts.iter_mut().for_each(|part| part.suffixes = ["_weight", "_bias"]);
        self
    }

    /// Outputs, rows of W.
    pub fn n(&self) -> usize {
        let rows = self.share.as_ref().and_then(|share| share.rows.as_ref());
        rows.map_or_else(|| self.parts.iter().map(|part| part.rows).sum(), |rows| rows.len())
    }

    /// Elements of W.
    pub fn num_weights(&self) -> f64 {
        self.n() as f64 * self.k as f64
    }

    /// Elements of W and of its biases, its own alone where tensors have those of others too.
    fn num_parameters(&self) -> u64 {
        self.n() as u64 * (self.k as u64 + u64::from(self.bias))
    }

    /// Tensors of the layer.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.weights().chain(self.biases()).chain(self.bounded.iter().flat_map(|m| bounds_of(m)))
    }

    /// The tensors that W is made of, each with its whole shape.
    pub fn weights(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let k = self.share.as_ref().map_or(self.k, |share| share.whole_k);
        self.parts.iter().map(move |part| {
            let shape = match self.layout {
                Layout::ByChannel { num_merged, num_axes: 2 } => {
                    let side = num_merged.isqrt();
                    vec![part.rows, k / num_merged, side, side]
                }
                Layout::ByChannel { num_merged, num_axes: 1 } => {
                    vec![part.rows, k / num_merged, num_merged]
                }
                Layout::Rows | Layout::ByFrame { .. } | Layout::ByChannel { .. } => {
                    vec![part.rows, k]
                }
                Layout::Transposed => vec![k, part.rows],
                Layout::Places { side } => vec![side, side, k],
                Layout::Patches { frames, size } => {
                    let bands = [part.rows, 3].into_iter().chain(frames);
                    bands.chain([size, size]).collect()
                }
            };
            (part.weight_name(), part.of_tensor(shape))
        })
    }

    /// The biases of all parts, if it has them.
    pub fn biases(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.parts.iter().filter(|part| self.bias && !part.lacks_bias).map(Part::bias)
    }
}

/// The tensors with the least and the largest input and output of a module.
pub fn bounds_of(module: &str) -> [NamedShape; 4] {
    ["input_min", "input_max", "output_min", "output_max"]
        .map(|bound| (format!("{module}.{bound}"), Vec::new()))
}

/// A normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Names of the tensors without `weight_suffix` and `.bias`: one, or one per head (StableLM).
    pub parts: Vec<String>,
    /// Shape of each.
    pub shape: Vec<usize>,
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// Suffix of the name of its weight.
    pub weight_suffix: &'static str,
    /// Offset of the stored weight: 1 in Gemma. `None`: no weight is stored (OLMo 1).
    pub weight_offset: Option<f32>,
    /// Factor of the sum: 1 but in Gemma 4's router.
    pub weight_factor: f32,
    /// There is a bias.
    pub bias: bool,
    /// Stored value of each value.
    pub order: RowOrder,
}

impl NormSpec {
    /// RMSNorm with a weight.
    pub fn rms(name: impl Into<String>, width: usize, eps: f32) -> Self {
        let (parts, shape) = (vec![name.into()], vec![width]);
        Self {
            parts,
            shape,
            kind: NormKind::Rms,
            eps,
            weight_suffix: ".weight",
            weight_offset: Some(0.0),
            weight_factor: 1.0,
            bias: false,
            order: RowOrder::as_stored(),
        }
    }

    /// LayerNorm with a weight and a bias.
    pub fn layer(name: impl Into<String>, width: usize, eps: f32) -> Self {
        Self { kind: NormKind::Layer, bias: true, ..Self::rms(name, width, eps) }
    }

    /// The same, with or without a bias.
    pub fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The same, with a factor of weight + offset.
    pub fn with_weight_offset(self, offset: f32) -> Self {
        Self { weight_offset: Some(offset), ..self }
    }

    /// The same, without a weight.
    pub fn without_weight(self) -> Self {
        Self { weight_offset: None, ..self }
    }

    /// Number of its weights.
    pub fn width(&self) -> usize {
        self.parts.len() * self.shape.iter().product::<usize>()
    }

    /// Tensors of the norm.
    pub fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.weights().chain(self.biases())
    }

    /// Weights, if it has them.
    pub fn weights(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let parts = self.parts.iter().filter(|_| self.weight_offset.is_some());
        parts.map(|name| (format!("{name}{}", self.weight_suffix), self.shape.clone()))
    }

    /// Biases, if it has them.
    pub fn biases(&self) -> impl Iterator<Item = NamedShape> + '_ {
        let parts = self.parts.iter().filter(|_| self.bias);
        parts.map(|name| (format!("{name}.bias"), self.shape.clone()))
    }
}

/// An activation function, or where its parameters are.
#[derive(Clone, Debug, PartialEq)]
pub enum ActivationSpec {
    /// One that has none.
    Known(Activation),
    /// The same of the largest gates: these are less by the mean of a token's and so many of their
    /// standard deviations first, and 0 at least (Gemma 3n).
    OfLargest(Activation, f32),
    /// xIELU (Apertus): the name before `.alpha_p`, `.alpha_n`, `.beta` and `.eps`.
    XIelu(String),
}

impl ActivationSpec {
    /// Tensors of the activation: alpha_p and alpha_n of xIELU.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let Self::XIelu(name) = self else { return Vec::new() };
        ["alpha_p", "alpha_n"].map(|part| (format!("{name}.{part}"), vec![1])).into()
    }

    /// Tensors that a file may lack, and what they are then: beta and eps of xIELU.
    pub fn optional_tensors(&self) -> Vec<(NamedShape, f32)> {
        let Self::XIelu(name) = self else { return Vec::new() };
        let parts = [("beta", 0.5), ("eps", -1e-6)];
        parts.map(|(part, default)| ((format!("{name}.{part}"), vec![]), default)).into()
    }
}
