//! Blocks that keep a state of the tokens before: their weights, and what they compute between
//! their first and their last linear layer.

use super::delta_net::DeltaNetWeights;
use super::inner_buffers::InnerBuffers;
use super::loading::{BlockNormWeights, Loader};
use super::selective::SelectiveBlock;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Heads};
use vllm_batch_checkpoint::spec::{GateOrder, MambaSpec, RecurrentSpec};
use vllm_batch_device::{Device, StateLayerMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    AdaptedLinear, Columns, ConvColumns, ConvTaps, Gate, LinearWeight, NormWeight, ScanWeights,
    Step, WeightValues,
};

/// Weights of a block that keeps a state.
#[derive(Debug)]
pub(super) struct RecurrentWeights {
    pub norms: BlockNormWeights,
    pub inputs: AdaptedLinear,
    taps: ConvTaps,
    form: Form,
    pub out: AdaptedLinear,
}

/// What blocks differ in.
#[derive(Debug)]
enum Form {
    ShortConv,
    Selective(Box<SelectiveBlock>),
    Mamba(Box<MambaWeights>),
    DeltaNet(Box<DeltaNetWeights>),
}

/// What a block of Mamba 2 has besides.
#[derive(Debug)]
struct MambaWeights {
    /// Of all columns of the products.
    factors: Option<WeightValues>,
    activation: Activation,
    scan: ScanWeights,
    /// With the heads that it normalizes one by one.
    norm: Option<(NormWeight, Heads, GateOrder)>,
}

impl Loader<'_> {
    /// The weights of a block that keeps a state.
    pub(super) fn recurrent(
        &mut self,
        spec: &RecurrentSpec,
    ) -> Result<RecurrentWeights, EngineError> {
        let taps = self.vectors(spec.taps().weights(), 0.3)?;
        let biases = self.vectors(spec.taps().biases(), 0.01)?;
        let biases = spec.taps().bias.then_some(biases);
        let [inputs, out] = spec.linears();
        Ok(RecurrentWeights {
            norms: self.norms(spec.norms())?,
            inputs: self.layer_linear(inputs)?.into(),
            taps: ConvTaps::new(self.device, spec.taps().width(), &taps, biases)?,
            form: match spec {
                RecurrentSpec::ShortConv(_) => Form::ShortConv,
                RecurrentSpec::Selective(block) => {
                    Form::Selective(Box::new(self.selective(block)?))
                }
                RecurrentSpec::Mamba(mamba) => Form::Mamba(Box::new(self.mamba(mamba)?)),
                RecurrentSpec::DeltaNet(net) => Form::DeltaNet(Box::new(self.delta_net(net)?)),
            },
            out: self.layer_linear(out)?.into(),
        })
    }

    fn mamba(&mut self, spec: &MambaSpec) -> Result<MambaWeights, EngineError> {
        let [decay, skip, dt_bias] = spec.parameters();
        let decay = self.checkpoint.vector(&decay, 0.0)?;
        let width = spec.scan.inner_width();
        let norm = match &spec.gated_norm {
            None => None,
            Some(gated) => {
                let num_heads = gated.num_groups;
                let heads = Heads { start: 0, num_heads, head_dim: width / num_heads };
                self.norm(Some(&gated.norm))?.map(|norm| (norm, heads, gated.order))
            }
        };
        let held = |values| WeightValues::on_device(self.device, values);
        Ok(MambaWeights {
            factors: spec.column_factors().map(held).transpose()?,
            activation: spec.activation,
            scan: ScanWeights {
                shape: spec.scan,
                decay: held(decay.iter().map(|log| -f64::from(*log).exp() as f32).collect())?,
                skip: held(self.checkpoint.vector(&skip, 1.0)?)?,
                dt_bias: held(self.checkpoint.vector(&dt_bias, -3.0)?)?,
                dt_bounds: spec.dt_bounds,
            },
            norm,
        })
    }
}

impl RecurrentWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        let inner = match &self.form {
            Form::Selective(block) => Some([&block.choice, &block.dt]),
            Form::DeltaNet(net) => net.low_rank.as_ref().map(|[a, z]| [a, z]),
            Form::ShortConv | Form::Mamba(_) => None,
        };
        [&self.inputs.weight, &self.out.weight].into_iter().chain(inner.into_iter().flatten())
    }

    /// mixed = what the block makes of its first products, which are changed on the way, and of its
    /// states.
    pub(super) fn mix(
        &self,
        device: &Device,
        (products, step): (&mut Tensor, Step<'_>),
        states: StateLayerMut<'_>,
        (buffers, mixed): (&mut InnerBuffers, &mut Tensor),
    ) {
        mixed.reshape(step.num_rows(), self.out.weight.shape().1);
        match &self.form {
            Form::ShortConv => {
                let width = mixed.width();
                let columns =
                    ConvColumns { first: 2 * width, gates: Some([0, width]), activation: None };
                ops::causal_conv(device, (products, step), &self.taps, states, columns);
                let outputs = (&*products, Columns::run(2 * width, width));
                ops::copy_columns(device, outputs, (mixed, Columns::run(0, width)));
            }
            Form::Selective(block) => {
                block.mix(device, &self.taps, (products, step), states, (buffers, mixed));
            }
            Form::DeltaNet(net) => {
                net.mix(device, &self.taps, (products, step), states, (buffers, mixed));
            }
            Form::Mamba(mamba) => {
                self.scan(device, mamba, (products, step), states, mixed);
                mamba.gate(device, products, mixed);
            }
        }
    }

    /// mixed = y of a block of Mamba 2.
    fn scan(
        &self,
        device: &Device,
        mamba: &MambaWeights,
        (products, step): (&mut Tensor, Step<'_>),
        mut states: StateLayerMut<'_>,
        mixed: &mut Tensor,
    ) {
        let columns = ConvColumns {
            first: mamba.scan.shape.inner_width(),
            gates: None,
            activation: Some(mamba.activation),
        };
        if let Some(factors) = &mamba.factors {
            ops::scale_columns(device, products, factors);
        }
        ops::causal_conv(device, (products, step), &self.taps, states.reborrow(), columns);
        let states = (states, self.taps.state_len());
        ops::mamba_scan(device, (products, step), &mamba.scan, states, mixed);
    }
}

impl MambaWeights {
    /// mixed = its norm with silu(z), where z are the first columns of the products.
    fn gate(&self, device: &Device, products: &Tensor, mixed: &mut Tensor) {
        let gate = |mixed: &mut Tensor| {
            ops::gate_columns(device, mixed, (products, 0), Gate::Silu);
        };
        match &self.norm {
            None => gate(mixed),
            Some((norm, heads, GateOrder::BeforeNorm)) => {
                gate(mixed);
                ops::norm_heads(device, mixed, *heads, norm);
            }
            Some((norm, heads, GateOrder::AfterNorm)) => {
                ops::norm_heads(device, mixed, *heads, norm);
                gate(mixed);
            }
        }
    }
}
