//! `Connector`: runs a `ConnectorSpec`, from rows of a tower's stream to embeddings of a decoder's
//! tokens, all of a step at once.

use std::ops::Range;

use super::loading::Loader;
use super::tower::Tower;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{
    AttentionPool, ConnectorSpec, ConnectorStep, ConvolutionSpec, GroupPool,
};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Activation, Ids, LinearWeight, MixedRows, NormWeight, QkvHeads};

/// A loaded connector.
#[derive(Debug)]
pub(super) struct Connector {
    /// Patches of a token.
    num_merged: usize,
    /// Streams that the row of a patch is made of.
    num_states: usize,
    steps: Vec<Step>,
    /// (the decoder's hidden_size, width of the steps' rows)
    last: LinearWeight,
}

/// A step, in the spec's terms.
#[derive(Debug)]
enum Step {
    ClassToken,
    AttentionPool(Pool),
    TileMean,
    GroupPool(GroupedPool),
    Keep,
    Norm(NormWeight),
    Merge,
    MeanPool,
    Standardize(ops::Standardization),
    /// (outputs, inputs)
    Linear(LinearWeight),
    Convolve(Convolution),
    Softmax,
    Activate(Activation),
    Gate(Activation),
}

/// A convolution over squares of rows.
#[derive(Debug)]
struct Convolution {
    /// (outputs, 9 * width): of what is around a row, place after place.
    weight: LinearWeight,
    side: usize,
    stride: usize,
    /// The row of each place of a tile.
    rows: Vec<u32>,
}

impl Convolution {
    fn load(loader: &mut Loader<'_>, spec: &ConvolutionSpec) -> Result<Self, EngineError> {
        let ConvolutionSpec { ref linear, side, stride, by_token } = *spec;
        let merged = by_token.unwrap_or(1);
        let row = |place: usize| {
            let (y, x) = (place / side, place % side);
            let tokens = match by_token {
                None => return place as u32,
                Some(_) => y / merged * (side / merged) + x / merged,
            };
            (tokens * merged * merged + y % merged * merged + x % merged) as u32
        };
        let rows = (0..side * side).map(row).collect();
        Ok(Self { weight: loader.linear(linear)?, side, stride, rows })
    }
}

/// Attention of one query over the patches of a tile.
#[derive(Debug)]
struct Pool {
    /// (width)
    query: Vec<f32>,
    /// (3 * width, width)
    qkv: LinearWeight,
    num_heads: usize,
}

/// Attention of means of groups of patches over the patches of each.
#[derive(Debug)]
struct GroupedPool {
    /// (width of queries, width of rows)
    q: LinearWeight,
    /// (widths of keys and of values, width of rows)
    kv: LinearWeight,
    heads: QkvHeads,
}

impl GroupedPool {
    fn load(loader: &mut Loader<'_>, spec: &GroupPool) -> Result<Self, EngineError> {
        let (q, kv) = (loader.linear(&spec.q)?, loader.linear(&spec.kv)?);
        Ok(Self { q, kv, heads: spec.heads })
    }

    /// A row of each group of rows of `x`, in the last of these buffers.
    fn run<'a>(
        &self,
        device: &Device,
        (x, groups): (&Tensor, &MixedRows),
        narrowed: &mut Option<Tensor>,
        [means, q, kv, pooled]: [&'a mut Tensor; 4],
    ) -> &'a mut Tensor {
        let num_groups = groups.num_rows();
        means.reshape(num_groups, x.width());
        ops::fill_zero(device, means, num_groups);
        ops::add_mixed_rows(device, groups, x, means);
        q.reshape(num_groups, self.q.shape().0);
        ops::linear(device, input(device, means, narrowed), &self.q, q);
        kv.reshape(x.num_rows(), self.kv.shape().0);
        ops::linear(device, input(device, x, narrowed), &self.kv, kv);
        pooled.reshape(num_groups, self.q.shape().0);
        ops::group_attention(device, groups, (q, kv), self.heads, pooled);
        pooled
    }
}

impl Pool {
    fn load(loader: &mut Loader<'_>, spec: &AttentionPool) -> Result<Self, EngineError> {
        let AttentionPool { query, qkv, num_heads } = spec;
        let (device, learned) = (loader.device, loader.row(query)?);
        let qkv = loader.linear(qkv)?;
        let mut products = device.tensor(1, qkv.shape().0, Precision::Activation)?;
        products.set_num_rows(1);
        ops::linear(device, &learned, &qkv, &mut products);
        let query = products.row(0)[..learned.width()].to_vec();
        Ok(Self { query, qkv, num_heads: *num_heads })
    }

    /// A row of each tile, whose rows of `x` these are, in the last of these buffers.
    fn run<'a>(
        &self,
        device: &Device,
        (x, tiles): (&Tensor, &[Range<usize>]),
        narrowed: &mut Option<Tensor>,
        [products, pooled]: [&'a mut Tensor; 2],
    ) -> &'a mut Tensor {
        products.reshape(x.num_rows(), self.qkv.shape().0);
        ops::linear(device, input(device, x, narrowed), &self.qkv, products);
        ops::attention_pool(device, (&self.query, self.num_heads), (products, tiles), pooled);
        pooled
    }
}

impl Convolution {
    /// Its outputs of the squares of `x`, in the last of these buffers.
    fn run<'a>(
        &self,
        device: &Device,
        x: &Tensor,
        narrowed: &mut Option<Tensor>,
        [around, product]: [&'a mut Tensor; 2],
    ) -> &'a mut Tensor {
        let Self { weight, side, stride, rows } = self;
        ops::gather_around(device, (x, rows), (*side, *stride), around);
        product.reshape(around.num_rows(), weight.shape().0);
        ops::linear(device, input(device, around, narrowed), weight, product);
        product
    }
}

/// What its steps work in, for up to T patches.
#[derive(Debug)]
pub(super) struct ConnectorBuffers {
    /// (T, width): patches by tokens.
    patches: Tensor,
    /// The same, or means of them, as linear layers read them; None: they read the stream's type.
    narrowed: Option<Tensor>,
    /// (T, outputs) of each product but the last, of means and of gates; (T / patches of a token,
    /// outputs) where those are one row; (tiles, outputs) where all patches of one are.
    outputs: Vec<Tensor>,
    /// Rows that the last product is added to.
    kept: Option<Tensor>,
    /// (T / patches of a token, hidden_size)
    tokens: Tensor,
}

impl Connector {
    /// `num_merged`: patches of a token, each of so many streams beside each other. `added`: to
    /// each of its rows.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        spec: &ConnectorSpec,
        (num_merged, num_states): (usize, usize),
        added: Option<&[f32]>,
    ) -> Result<Self, EngineError> {
        let steps = spec.steps.iter().map(|step| {
            Ok(match step {
                // The rows that it is given are those.
                ConnectorStep::ClassToken => Step::ClassToken,
                ConnectorStep::AttentionPool(pool) => {
                    Step::AttentionPool(Pool::load(loader, pool)?)
                }
                ConnectorStep::TileMean => Step::TileMean,
                ConnectorStep::GroupPool(pool) => Step::GroupPool(GroupedPool::load(loader, pool)?),
                ConnectorStep::Keep => Step::Keep,
                ConnectorStep::Norm(norm) => Step::Norm(loader.one_norm(norm)?),
                ConnectorStep::Merge => Step::Merge,
                ConnectorStep::MeanPool => Step::MeanPool,
                ConnectorStep::Standardize { factor, shift, scale } => {
                    Step::Standardize(loader.standardization(*factor, (shift, scale))?)
                }
                ConnectorStep::Linear(linear) => Step::Linear(loader.linear(linear)?),
                ConnectorStep::Convolve(convolution) => {
                    Step::Convolve(Convolution::load(loader, convolution)?)
                }
                ConnectorStep::Softmax => Step::Softmax,
                ConnectorStep::Activate(activation) => Step::Activate(*activation),
                ConnectorStep::Gate(activation) => Step::Gate(*activation),
            })
        });
        let steps = steps.collect::<Result<_, EngineError>>()?;
        let (device, dtype) = (loader.device, loader.dtype);
        let last = loader.packed(&spec.last, |rows, bias| {
            assert!(bias.is_none() || added.is_none(), "one of them");
            LinearWeight::load(device, dtype, rows, bias.or(added.map(<[f32]>::to_vec)))
        })?;
        Ok(Self { num_merged, num_states, steps, last })
    }

    /// Makes the device ready to run every product over up to so many patches.
    ///
    /// # Errors
    /// It cannot run one.
    pub(super) fn prepare(
        &self,
        device: &Device,
        max_num_patches: usize,
    ) -> Result<(), EngineError> {
        let products = self.steps.iter().flat_map(|step| match step {
            Step::Linear(weight) => vec![weight],
            Step::Convolve(convolution) => vec![&convolution.weight],
            Step::AttentionPool(pool) => vec![&pool.qkv],
            Step::GroupPool(pool) => vec![&pool.q, &pool.kv],
            _ => Vec::new(),
        });
        let activation = device.activation_dtype();
        let mut products = products.chain([&self.last]);
        products.try_for_each(|weight| weight.prepare(device, activation, max_num_patches))
    }

    /// What it makes of rows (num_rows, width) in the place of means of patches.
    ///
    /// # Errors
    /// The device has no memory, or cannot run a product.
    pub(super) fn of_pooled(&self, device: &Device, rows: &Tensor) -> Result<Tensor, EngineError> {
        let num_rows = rows.num_rows();
        self.prepare(device, num_rows)?;
        let tensor = |width| {
            let num_padded = device.padded_rows(num_rows);
            let mut tensor = device.tensor(num_padded, width, Precision::Activation)?;
            tensor.set_num_rows(num_rows);
            Ok::<_, EngineError>(tensor)
        };
        let mut x = tensor(rows.width())?;
        ops::replace_rows(device, rows.rows_from(0), x.rows_from_mut(0), num_rows);
        let product = |x: &Tensor, weight: &LinearWeight| {
            let mut out = tensor(weight.shape().0)?;
            ops::linear(device, x, weight, &mut out);
            // What is read is there until it was.
            device.check()?;
            Ok::<_, EngineError>(out)
        };
        for step in &self.steps {
            match step {
                Step::MeanPool => {}
                Step::Norm(norm) => ops::norm_in_place(device, &mut x, norm),
                Step::Linear(weight) => x = product(&x, weight)?,
                Step::Activate(activation) => ops::activate(device, *activation, &mut x),
                _ => unreachable!("a connector of means has no such step"),
            }
        }
        product(&x, &self.last)
    }

    /// Embeddings of the tokens whose patches these rows of the stream are, one token after the
    /// other. `tiles`: which of the rows are those of each tile; `groups`: of each token, where
    /// tiles share tokens.
    pub(super) fn run<'a>(
        &self,
        device: &Device,
        (stream, by_token): (&Tensor, Ids<'_>),
        (tiles, groups): (&[Range<usize>], &MixedRows),
        buffers: &'a mut ConnectorBuffers,
    ) -> &'a mut Tensor {
        let ConnectorBuffers { patches, narrowed, outputs, kept, tokens } = buffers;
        let mut outputs = outputs.iter_mut();
        let (num_rows, width) = (by_token.host.len() / self.num_states, stream.width());
        patches.reshape(by_token.host.len(), width);
        ops::gather_rows(device, stream, by_token, patches);
        patches.reshape(num_rows, width * self.num_states);
        let mut x = patches;
        for step in &self.steps {
            match step {
                Step::ClassToken => {}
                Step::AttentionPool(pool) => {
                    let mut next = || outputs.next().expect("two for each");
                    let buffers = [next(), next()];
                    x = pool.run(device, (x, tiles), narrowed, buffers);
                }
                Step::TileMean => {
                    let Some(means) = outputs.next() else { unreachable!("one for each") };
                    assert!(tiles.windows(2).all(|pair| pair[0].len() == pair[1].len()));
                    means.reshape(tiles.len(), x.width());
                    ops::mean_rows(device, x, means);
                    x = means;
                }
                Step::GroupPool(pool) => {
                    let mut next = || outputs.next().expect("four for each");
                    let buffers = [next(), next(), next(), next()];
                    x = pool.run(device, (x, groups), narrowed, buffers);
                }
                Step::Keep => {
                    let Some(kept) = &mut *kept else { unreachable!("there is room for it") };
                    kept.reshape(x.num_rows(), x.width());
                    ops::copy(device, x, kept);
                }
                Step::Norm(norm) => ops::norm_in_place(device, x, norm),
                Step::Merge => {
                    x.reshape(x.num_rows() / self.num_merged, x.width() * self.num_merged);
                }
                Step::MeanPool => {
                    let Some(means) = outputs.next() else { unreachable!("one for each") };
                    means.reshape(x.num_rows() / self.num_merged, x.width());
                    ops::mean_rows(device, x, means);
                    x = means;
                }
                Step::Standardize(weights) => ops::standardize(device, weights, x),
                Step::Linear(weight) => {
                    let Some(product) = outputs.next() else { unreachable!("one for each") };
                    product.reshape(x.num_rows(), weight.shape().0);
                    ops::linear(device, input(device, x, narrowed), weight, product);
                    x = product;
                }
                Step::Convolve(convolution) => {
                    let mut next = || outputs.next().expect("two for each");
                    let buffers = [next(), next()];
                    x = convolution.run(device, x, narrowed, buffers);
                }
                Step::Softmax => ops::softmax_rows(device, x),
                Step::Activate(activation) => ops::activate(device, *activation, x),
                Step::Gate(activation) => {
                    let Some(gated) = outputs.next() else { unreachable!("one for each") };
                    gated.reshape(x.num_rows(), x.width() / 2);
                    ops::activate_and_mul(device, *activation, x, gated);
                    x = gated;
                }
            }
        }
        tokens.set_num_rows(x.num_rows());
        ops::linear(device, input(device, x, narrowed), &self.last, tokens);
        if let Some(kept) = kept {
            ops::add(device, tokens, kept);
        }
        tokens
    }
}

/// `x` as linear layers read it.
fn input<'a>(device: &Device, x: &'a Tensor, narrowed: &'a mut Option<Tensor>) -> &'a Tensor {
    match narrowed {
        Some(narrowed) if x.dtype() != narrowed.dtype() => {
            narrowed.reshape(x.num_rows(), x.width());
            ops::copy(device, x, narrowed);
            narrowed
        }
        _ => x,
    }
}

impl ConnectorBuffers {
    /// What the connector gave last.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// Buffers for so many patches, rows of this width.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        connector: &Connector,
        (max_num_patches, width): (usize, usize),
    ) -> Result<Self, EngineError> {
        // A product reads as many rows as a GPU pads it to, merged ones too.
        let num_merged = connector.num_merged;
        let patch_width = width * connector.num_states;
        let room = |num_rows: usize| num_merged * device.padded_rows(num_rows.div_ceil(num_merged));
        let tensor = |num_rows, width, precision| device.tensor(room(num_rows), width, precision);
        let (mut num_rows, mut width) = (max_num_patches, patch_width);
        let (mut outputs, mut kept) = (Vec::new(), None);
        for step in &connector.steps {
            match step {
                Step::AttentionPool(Pool { qkv, .. }) => {
                    outputs.push(tensor(num_rows, qkv.shape().0, Precision::Activation)?);
                    num_rows = num_rows.min(Tower::STEP_TEXTS);
                    outputs.push(tensor(num_rows, width, Precision::Activation)?);
                }
                Step::TileMean => {
                    num_rows = num_rows.min(Tower::STEP_TEXTS);
                    outputs.push(tensor(num_rows, width, Precision::Full)?);
                }
                Step::GroupPool(GroupedPool { q, kv, .. }) => {
                    outputs.push(tensor(num_rows, width, Precision::Full)?);
                    for outputs_of in [q, kv, q] {
                        let width = outputs_of.shape().0;
                        outputs.push(tensor(num_rows, width, Precision::Activation)?);
                    }
                    width = q.shape().0;
                }
                Step::Keep => kept = Some(tensor(num_rows, width, Precision::Activation)?),
                Step::Merge => (num_rows, width) = (num_rows / num_merged, width * num_merged),
                Step::MeanPool => {
                    num_rows /= num_merged;
                    outputs.push(tensor(num_rows, width, Precision::Full)?);
                }
                Step::Linear(weight) => {
                    (width, _) = weight.shape();
                    outputs.push(tensor(num_rows, width, Precision::Activation)?);
                }
                Step::Convolve(Convolution { weight, stride, .. }) => {
                    (width, _) = weight.shape();
                    num_rows /= stride * stride;
                    // As large as it has to be.
                    outputs.push(Tensor::zeros(0, 1));
                    outputs.push(tensor(num_rows, width, Precision::Activation)?);
                }
                Step::Gate(_) => {
                    width /= 2;
                    outputs.push(tensor(num_rows, width, Precision::Activation)?);
                }
                Step::ClassToken
                | Step::Norm(_)
                | Step::Standardize(_)
                | Step::Softmax
                | Step::Activate(_) => {}
            }
        }
        // The stream's type, whose rows it takes.
        let patches = tensor(max_num_patches, patch_width, Precision::Full)?;
        let narrowed = match device.activation_dtype() {
            DType::Float32 => None,
            _ => Some(tensor(max_num_patches, patch_width, Precision::Activation)?),
        };
        let tokens = device.tensor(num_rows, connector.last.shape().0, Precision::Activation)?;
        Ok(Self { patches, narrowed, outputs, kept, tokens })
    }
}
