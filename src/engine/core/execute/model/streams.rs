//! Streams beside each other: made of the embedding, mixed around layers, and one again in the end.

use super::layer_inputs::{LayerInputs, SideBlockWeights};
use super::loading::{LayerWeights, Loader};
use super::stream::Stream;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::{
    DecoderSpec, LayerSpec, MixingSpec, SideBlockSpec, Stage, StreamsSpec,
};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{LinearWeight, NormWeight, WeightValues};

/// Weights of what makes streams, and one of them.
#[derive(Debug)]
pub(super) struct StreamsWeights {
    into: Vec<LinearWeight>,
    out_of: Vec<LinearWeight>,
}

impl StreamsWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        self.into.iter().chain(&self.out_of)
    }
}

/// Weights of how a layer mixes them.
#[derive(Debug)]
pub(super) struct MixingWeights {
    norm: NormWeight,
    router: LinearWeight,
    prediction: LinearWeight,
    correction: LinearWeight,
    side_scale: Option<WeightValues>,
}

impl Loader<'_> {
    /// The weights of what makes streams, and one of them, as far as a stage does.
    pub(super) fn streams(
        &mut self,
        spec: &StreamsSpec,
        stage: Stage,
    ) -> Result<StreamsWeights, EngineError> {
        let mut all = |specs: &[_], are_here| -> Result<Vec<_>, EngineError> {
            let specs = if are_here { specs } else { &[] };
            specs.iter().map(|spec| self.linear(spec)).collect()
        };
        let into = all(&spec.into, stage.is_first)?;
        Ok(StreamsWeights { into, out_of: all(&spec.out_of, stage.is_last)? })
    }

    /// The weights of how a layer mixes them.
    pub(super) fn mixing(&mut self, spec: &MixingSpec) -> Result<MixingWeights, EngineError> {
        let factors = spec.side_scale.as_ref();
        let factors = factors.map(|tensor| self.checkpoint.vector(tensor, 1.0)).transpose()?;
        let on_device = |factors| WeightValues::on_device(self.device, factors);
        Ok(MixingWeights {
            side_scale: factors.map(on_device).transpose()?,
            norm: self.the_norm(&spec.norm)?,
            router: self.exact(&spec.router)?,
            prediction: self.exact(&spec.prediction)?,
            correction: self.exact(&spec.correction)?,
        })
    }
}

/// The streams of a step, N of H values, for steps of T tokens.
#[derive(Debug)]
pub(super) struct Streams {
    active: usize,
    /// (T, N * H)
    values: Tensor,
    /// (T, H) what linear layers read, and what the router reads.
    input: Tensor,
    /// (T, H) what linear layers give.
    product: Tensor,
    /// (T, N)
    kinds: Tensor,
    /// (T, N * N), or (T, N)
    weights: Tensor,
}

impl Streams {
    /// Room for them; None: the model has one stream.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        num_tokens: usize,
    ) -> Result<Option<Self>, EngineError> {
        let Some(streams) = &spec.embedding.streams else { return Ok(None) };
        let (num, hidden) = (streams.num(), spec.hidden_size());
        let full = |width| device.tensor(num_tokens, width, Precision::Full);
        let per_token = || device.tensor(num_tokens, hidden, Precision::Activation);
        Ok(Some(Self {
            active: streams.active,
            values: full(num * hidden)?,
            input: per_token()?,
            product: per_token()?,
            kinds: full(num)?,
            weights: full(num * num)?,
        }))
    }

    /// What later stages go on with.
    pub(super) fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// Makes those of a step, whose embeddings are the stream.
    pub(super) fn begin(&mut self, device: &Device, weights: &StreamsWeights, embedded: &Tensor) {
        let Self { values, input, product, .. } = self;
        values.set_num_rows(embedded.num_rows());
        ops::put_first_stream(device, embedded, values);
        for (index, layer) in weights.into.iter().enumerate() {
            product_of(device, (embedded, layer), input, product);
            ops::set_stream(device, values, index + 1, product);
        }
    }

    /// Before a layer: mixes all, and makes the active one the stream.
    pub(super) fn predict(&mut self, device: &Device, mixing: &MixingWeights, stream: &mut Stream) {
        let active = (&self.values, self.active);
        ops::take_stream(device, active, None, &mut stream.residual);
        self.weigh(device, mixing, &mixing.prediction, &mut stream.residual);
        ops::predict_streams(device, &mut self.values, &self.weights);
        let active = (&self.values, self.active);
        ops::take_stream(device, active, None, &mut stream.residual);
    }

    /// Behind a layer: all grow with what the stream has become, and by the layer's side block.
    pub(super) fn correct(
        &mut self,
        device: &Device,
        mixing: &MixingWeights,
        side: Option<(&mut LayerInputs, (usize, &SideBlockSpec), &SideBlockWeights)>,
        stream: &mut Stream,
    ) {
        stream.settle(device);
        self.weigh(device, mixing, &mixing.correction, &mut stream.residual);
        let news = (&stream.residual, &self.weights);
        ops::correct_streams(device, &mut self.values, self.active, news);
        let Some((inputs, block, weights)) = side else { return };
        let active = (&self.values, self.active);
        ops::take_stream(device, active, mixing.side_scale.as_ref(), &mut stream.residual);
        inputs.side_block(device, block, weights, stream);
        ops::add_to_streams(device, &mut self.values, &stream.delta);
        stream.has_delta = false;
    }

    /// In the end the stream is the mean of all.
    pub(super) fn end(&mut self, device: &Device, weights: &StreamsWeights, stream: &mut Stream) {
        let Self { values, input, product, .. } = self;
        for (index, layer) in weights.out_of.iter().enumerate() {
            ops::take_stream(device, (&*values, index + 1), None, &mut stream.residual);
            product_of(device, (&stream.residual, layer), input, product);
            ops::set_stream(device, values, index + 1, product);
        }
        ops::mean_streams(device, values, &mut stream.residual);
    }

    /// weights = what this layer gives of the kinds of x.
    fn weigh(
        &mut self,
        device: &Device,
        mixing: &MixingWeights,
        layer: &LinearWeight,
        x: &mut Tensor,
    ) {
        let Self { input, kinds, weights, .. } = self;
        ops::add_norm(device, x, None, &mixing.norm, input);
        ops::mixing_weights(device, input, (&mixing.router, layer), kinds, weights);
    }
}

/// product = the layer of x, which is rounded as linear layers read it.
fn product_of(
    device: &Device,
    (x, layer): (&Tensor, &LinearWeight),
    input: &mut Tensor,
    product: &mut Tensor,
) {
    input.set_num_rows(x.num_rows());
    product.set_num_rows(x.num_rows());
    match device.activation_dtype() {
        DType::Float32 => ops::linear(device, x, layer, product),
        _ => {
            ops::copy(device, x, input);
            ops::linear(device, input, layer, product);
        }
    }
}

/// Runs a layer over the active one of the streams, if there are some: `run` runs it.
pub(super) fn around_layer(
    device: &Device,
    (index, spec, weights): (usize, &LayerSpec, &LayerWeights),
    (streams, inputs): (Option<&mut Streams>, &mut Option<LayerInputs>),
    stream: &mut Stream,
    run: impl FnOnce(&mut Stream),
) {
    let side = inputs.as_mut().zip(spec.side.as_ref()).zip(weights.side.as_ref());
    let side = side.map(|((inputs, block), weights)| (inputs, (index, block), weights));
    match (streams, &weights.mixing) {
        (Some(streams), Some(mixing)) => {
            streams.predict(device, mixing, stream);
            run(stream);
            streams.correct(device, mixing, side, stream);
        }
        _ => {
            run(stream);
            if let Some((inputs, block, weights)) = side {
                inputs.side_block(device, block, weights, stream);
            }
        }
    }
}
