//! A loaded head: from states to classes, or to vectors of another width. In f32 whatever the dtype
//! of the body, as vLLM has it (`head_dtype`).

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};
use vllm_batch_base::pooling::TokenMethod;
use vllm_batch_checkpoint::spec::{EncoderSpec, HeadActivation, HeadLayer, HeadSpec, OutputSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{LinearWeight, NormWeight};

/// The weights of a `HeadSpec`.
#[derive(Debug)]
pub struct Head {
    layers: Vec<Layer>,
}

/// A linear layer that an adapter has whole.
#[derive(Clone, Debug)]
pub struct SavedLinear {
    /// Which layer of the head.
    pub layer: usize,
    /// (outputs, inputs), row-major
    pub weight: Vec<f32>,
    /// (outputs)
    pub bias: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Layer {
    linear: LinearWeight,
    /// Outputs of `linear`.
    width: usize,
    activation: Option<HeadActivation>,
    norm: Option<NormWeight>,
}

impl Layer {
    /// A linear layer of values (outputs, inputs) in row-major order.
    fn of_values(
        device: &Device,
        values: &[f32],
        (width, inputs): (usize, usize),
        bias: Option<Vec<f32>>,
    ) -> Result<Self, EngineError> {
        let rows = [SourceMatrix::new(width, inputs, SourceValues::Slice(values))].into();
        let linear = LinearWeight::load(device, DType::Float32, &rows, bias)?;
        Ok(Self { linear, width, activation: None, norm: None })
    }
}

impl Head {
    /// Reads and packs the weights.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or memory does not suffice.
    pub fn load(
        spec: &HeadSpec,
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        Self::load_with(spec, &[], device, checkpoint)
    }

    /// The same with modules that an adapter has in the place of those of the model.
    ///
    /// # Errors
    /// As `load`.
    ///
    /// # Panics
    /// A module has another shape than its layer.
    pub fn load_with(
        spec: &HeadSpec,
        saved: &[SavedLinear],
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let mut loader = Loader { dtype: DType::Float32, device, checkpoint };
        let layer = |(index, layer): (usize, &HeadLayer)| {
            let HeadLayer { linear, activation, norm } = layer;
            let saved = saved.iter().find(|saved| saved.layer == index);
            let of_model = match saved {
                None => Layer {
                    linear: loader.linear(linear)?,
                    width: linear.n(),
                    activation: None,
                    norm: None,
                },
                Some(SavedLinear { weight, bias, .. }) => {
                    Layer::of_values(device, weight, (linear.n(), linear.k), bias.clone())?
                }
            };
            Ok(Layer { activation: *activation, norm: loader.norm(norm.as_ref())?, ..of_model })
        };
        let layers = spec.layers.iter().enumerate().map(layer);
        let layers = layers.collect::<Result<_, EngineError>>()?;
        Ok(Self { layers })
    }

    /// What makes classes of a language model: the logits of tokens, or how much that of the second
    /// of two is above that of the first.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or memory does not suffice.
    ///
    /// # Panics
    /// The model has no output layer, a token is none of its words, or a difference is not of two.
    pub fn of_tokens(
        body: &EncoderSpec,
        (ids, method): (&[u32], TokenMethod),
        device: &Device,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let (output, words) = body.output.as_ref().zip(body.words()).expect("it gives logits");
        let OutputSpec { scale, soft_cap, .. } = *output;
        let mut loader = Loader { dtype: DType::Float32, device, checkpoint };
        let (rows, bias) = loader.rows(words)?;
        let mut values = vec![0.0; ids.len() * words.k];
        for (&id, row) in ids.iter().zip(values.chunks_exact_mut(words.k)) {
            rows.read_row(id as usize, row);
        }
        drop(rows);
        loader.checkpoint.release();
        let mut bias = bias.map(|all| ids.iter().map(|&id| all[id as usize]).collect::<Vec<_>>());
        let scaled = bias.iter_mut().flatten().chain(&mut values);
        scaled.for_each(|value| *value *= scale.unwrap_or(1.0));
        let logits = Layer::of_values(device, &values, (ids.len(), words.k), bias)?;
        let activation = soft_cap.map(HeadActivation::Capped);
        let mut layers = vec![Layer { activation, ..logits }];
        if method == TokenMethod::Difference {
            assert_eq!(ids.len(), 2, "a difference is of two");
            layers.push(Layer::of_values(device, &[-1.0, 1.0], (1, 2), None)?);
        }
        Ok(Self { layers })
    }

    /// The same with the layers of another behind it.
    pub fn followed_by(mut self, next: Head) -> Self {
        self.extend(next);
        self
    }

    /// The layers of another follow.
    pub fn extend(&mut self, next: Head) {
        self.layers.extend(next.layers);
    }

    /// What becomes of rows (R, width): (R, outputs of the last layer), each a function of its own
    /// row.
    ///
    /// # Errors
    /// Memory does not suffice.
    ///
    /// # Panics
    /// The rows have another width than the first layer.
    pub fn forward(&self, device: &Device, rows: Tensor) -> Result<Tensor, EngineError> {
        self.layers.iter().try_fold(rows, |rows, layer| {
            let Layer { linear, width, activation, norm } = layer;
            let mut out = device.tensor(rows.num_rows(), *width, Precision::Full)?;
            ops::linear(device, &rows, linear, &mut out);
            match activation {
                None => {}
                Some(HeadActivation::Known(activation)) => {
                    ops::activate(device, *activation, &mut out);
                }
                Some(HeadActivation::Capped(cap)) => ops::soft_cap(device, *cap, &mut out),
            }
            if let Some(norm) = norm {
                ops::norm_in_place(device, &mut out, norm);
            }
            Ok(out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::layers::Activation;
    use vllm_batch_checkpoint::spec::{LinearSpec, NormSpec};

    #[test]
    fn layers_follow_each_other_and_rows_do_not_see_each_other() {
        let device = Device::cpu(Some(2));
        let layer = |name: &str, n, k| HeadLayer::new(LinearSpec::new(name, n, k).with_bias(true));
        let normed = HeadLayer {
            norm: Some(NormSpec::layer("norm", 24, 1e-5)),
            ..layer("b", 24, 40).activated(HeadActivation::Known(Activation::Relu))
        };
        let first = layer("a", 40, 24).activated(HeadActivation::TANH);
        let spec = HeadSpec { layers: vec![first, normed, layer("c", 3, 24)] };
        assert_eq!((spec.width(), spec.tensors().count()), (Some(3), 8));
        let mut checkpoint = Checkpoint::dummy(5);
        let head = Head::load(&spec, &device, &mut checkpoint).unwrap();
        let row = |row: usize| -> Vec<f32> {
            (0..24).map(|i| ((row * 31 + i * 7) % 17) as f32 * 0.3 - 2.0).collect()
        };
        let forward = |rows: Vec<f32>| {
            let out = head.forward(&device, Tensor::from_vec(rows, 24)).unwrap();
            assert_eq!(out.width(), 3);
            out.values().to_vec()
        };
        let all = forward((0..50).flat_map(row).collect());
        let alone: Vec<f32> = (0..50).flat_map(|index| forward(row(index))).collect();
        assert_eq!(all, alone);
        assert!(all.iter().all(|value| value.is_finite()) && all[..3] != all[3..6]);
    }
}
