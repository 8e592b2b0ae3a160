//! A loaded head: from states to classes, or to vectors of another width. In f32 whatever the dtype
//! of the body, as vLLM has it (`head_dtype`).

use super::loading::Loader;
use super::spec::{HeadActivation, HeadLayer, HeadSpec};
use super::weights::Checkpoint;
use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::device::{Device, Precision, Tensor};
use crate::engine::ops::{self, LinearWeight, NormWeight};

/// The weights of a `HeadSpec`.
#[derive(Debug)]
pub struct Head {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    linear: LinearWeight,
    /// Outputs of `linear`.
    width: usize,
    activation: Option<HeadActivation>,
    norm: Option<NormWeight>,
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
        let mut loader = Loader { dtype: DType::Float32, device, checkpoint };
        let layer = |HeadLayer { linear, activation, norm }: &HeadLayer| {
            Ok(Layer {
                linear: loader.linear(linear)?,
                width: linear.n(),
                activation: *activation,
                norm: loader.norm(norm.as_ref())?,
            })
        };
        let layers = spec.layers.iter().map(layer).collect::<Result<_, EngineError>>()?;
        Ok(Self { layers })
    }

    /// The same with the layers of another behind it.
    pub fn followed_by(mut self, next: Head) -> Self {
        self.layers.extend(next.layers);
        self
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
                // 1 * tanh(x / 1)
                Some(HeadActivation::Tanh) => ops::soft_cap(device, 1.0, &mut out),
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
    use crate::engine::model::spec::{LinearSpec, NormSpec};
    use crate::engine::ops::Activation;

    #[test]
    fn layers_follow_each_other_and_rows_do_not_see_each_other() {
        let device = Device::cpu(Some(2));
        let layer = |name: &str, n, k| HeadLayer::new(LinearSpec::new(name, n, k).with_bias(true));
        let normed = HeadLayer {
            norm: Some(NormSpec::layer("norm", 24, 1e-5)),
            ..layer("b", 24, 40).activated(HeadActivation::Known(Activation::Relu))
        };
        let first = layer("a", 40, 24).activated(HeadActivation::Tanh);
        let spec = HeadSpec { layers: vec![first, normed, layer("c", 3, 24)] };
        assert_eq!((spec.width(), spec.tensors().count()), (Some(3), 8));
        let mut checkpoint = Checkpoint::Dummy { seed: 5 };
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
