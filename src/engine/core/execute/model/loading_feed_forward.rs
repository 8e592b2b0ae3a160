//! Weights of feed-forward blocks: MLPs, and experts with what decides among them.

use super::loading::{
    ApartNormWeights, ExpertLatentWeights, FeedForwardWeights, Loader, MlpWeights,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Activation;
use vllm_batch_base::matrix::SourceRows;
use vllm_batch_checkpoint::spec::{
    ActivationSpec, ApartNorms, ExpertLatentSpec, ExpertSpec, ExpertsSpec, FeedForwardSpec,
    LinearSpec, MlpSpec, NamedShape,
};
use vllm_batch_ops::{ExpertWeights, Experts, ExpertsWeight, LinearWeight};

impl Loader<'_> {
    /// The weights of a block.
    pub(super) fn feed_forward(
        &mut self,
        spec: &FeedForwardSpec,
    ) -> Result<FeedForwardWeights, EngineError> {
        let norms = self.norms(spec.norms())?;
        let experts = match spec {
            FeedForwardSpec::Mlp(mlp) => {
                let mlp = Some(self.mlp(mlp)?);
                let (gate, experts, latent, apart) = (None, None, None, None);
                return Ok(FeedForwardWeights { norms, mlp, gate, experts, latent, apart });
            }
            FeedForwardSpec::Experts(experts) => experts,
        };
        let shared = experts.shared.as_ref();
        let gate = shared.and_then(|shared| shared.gate.as_ref());
        let activation = experts.shared_activation.unwrap_or(experts.activation);
        let mlp = match shared {
            None => None,
            Some(shared) => {
                let up = self.layer_linear(&shared.mlp.up)?.into();
                let down = self.layer_linear(&shared.mlp.down)?.into();
                Some(MlpWeights { form: experts.form, activation, cutoff: None, up, down })
            }
        };
        Ok(FeedForwardWeights {
            norms,
            mlp,
            gate: gate.map(|gate| self.exact(gate)).transpose()?,
            experts: Some(self.experts(experts)?),
            latent: experts.latent.as_ref().map(|spec| self.expert_latent(spec)).transpose()?,
            apart: experts.apart.as_ref().map(|spec| self.apart_norms(spec)).transpose()?,
        })
    }

    fn expert_latent(
        &mut self,
        spec: &ExpertLatentSpec,
    ) -> Result<ExpertLatentWeights, EngineError> {
        let (into, back) = (self.layer_linear(&spec.into)?, self.layer_linear(&spec.back)?);
        Ok(ExpertLatentWeights { into, back })
    }

    fn apart_norms(&mut self, spec: &ApartNorms) -> Result<ApartNormWeights, EngineError> {
        Ok(ApartNormWeights {
            mlp_after: self.the_norm(&spec.mlp_after)?,
            router: self.the_norm(&spec.router)?,
            experts_before: self.the_norm(&spec.experts_before)?,
            experts_after: self.the_norm(&spec.experts_after)?,
        })
    }

    fn experts(&mut self, spec: &ExpertsSpec) -> Result<ExpertsWeight, EngineError> {
        let (bias, factors) = (spec.choice_bias.as_ref(), spec.weight_factors.as_ref());
        let weight = ExpertsWeight {
            router: self.exact(&spec.router)?,
            choice_bias: bias.map(|bias| self.choice_bias(spec, bias)).transpose()?,
            routing: spec.routing.clone(),
            weight_factors: factors
                .map(|tensor| self.checkpoint.vector(tensor, 1.0))
                .transpose()?,
            weighted: spec.weighted,
            form: spec.form,
            activation: spec.activation,
            experts: self.experts_of_device(spec)?,
            num_identities: spec.num_identities,
            on_gpu: None,
        };
        weight.prepared(self.device)
    }

    fn choice_bias(
        &mut self,
        spec: &ExpertsSpec,
        bias: &NamedShape,
    ) -> Result<Vec<f32>, EngineError> {
        match spec.lacks_bias_as_zeros {
            true => self.checkpoint.vector_or(bias, 0.0),
            false => self.checkpoint.vector(bias, 0.0),
        }
    }

    fn experts_of_device(&mut self, spec: &ExpertsSpec) -> Result<Experts, EngineError> {
        let (device, dtype, num_experts) = (self.device, self.dtype, spec.experts.len());
        if !Experts::are_stacked(device) {
            let apart = spec.experts.iter().map(|ExpertSpec { up, down }| {
                let (up, down) = (self.layer_linear(up)?, self.layer_linear(down)?);
                Ok(ExpertWeights { up, down })
            });
            return Ok(Experts::Apart(apart.collect::<Result<_, EngineError>>()?));
        }
        let load = |rows: &SourceRows<'_>, bias| {
            LinearWeight::load_experts(device, dtype, rows, (bias, num_experts))
        };
        let ExpertSpec { up, down } = spec.stacked();
        let (up, down) = (self.packed(&up, load)?, self.packed(&down, load)?);
        Ok(Experts::Stacked(Box::new(ExpertWeights { up, down })))
    }

    /// A weight of few rows in f32, whatever the others are: it decides what others count.
    pub(super) fn exact(&mut self, spec: &LinearSpec) -> Result<LinearWeight, EngineError> {
        let device = self.device;
        self.packed(spec, |rows, bias| LinearWeight::load(device, DType::Float32, rows, bias))
    }

    fn mlp(&mut self, spec: &MlpSpec) -> Result<MlpWeights, EngineError> {
        let mut cutoff = None;
        let activation = match &spec.activation {
            ActivationSpec::Known(activation) => *activation,
            ActivationSpec::OfLargest(activation, deviations) => {
                cutoff = Some(*deviations);
                *activation
            }
            ActivationSpec::XIelu(_) => {
                let mut values = self.vectors(spec.activation.tensors().into_iter(), 0.5)?;
                for (tensor, default) in spec.activation.optional_tensors() {
                    values.extend(self.checkpoint.vector_or(&tensor, default)?);
                }
                Activation::xielu(values[0], values[1], values[2], values[3])
            }
        };
        Ok(MlpWeights {
            form: spec.form,
            activation,
            cutoff,
            up: self.adapted_linear(&spec.up)?,
            down: self.adapted_linear(&spec.down)?,
        })
    }
}
