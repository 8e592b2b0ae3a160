//! The tensors of an adapter's file, sorted by modules and held against each other and the config.

use std::collections::BTreeMap;

use super::config::AdapterConfig;
use super::names::{Role, TensorName};
use super::{AdapterKind, AdapterModule, BaseCopy};
use crate::spec::NamedShape;
use crate::weights::MappedFiles;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// Tensors of a module, by what they are.
#[derive(Debug, Default)]
pub(super) struct ModuleTensors {
    /// A and B, or the weight and the bias.
    pub first: Option<NamedShape>,
    pub second: Option<NamedShape>,
    kind: Option<AdapterKind>,
}

/// All tensors of the file, by the modules that they are of.
pub(super) fn sorted_tensors(
    weights: &MappedFiles,
    config: &AdapterConfig,
) -> Result<(BTreeMap<String, ModuleTensors>, Vec<BaseCopy>), EngineError> {
    let mut modules: BTreeMap<String, ModuleTensors> = BTreeMap::new();
    let (mut copies, mut adapter) = (Vec::new(), None);
    for (tensor, shape) in weights.shapes() {
        let of_tensor = |text| weights.error(format!("tensor {}: {text}", quoted(tensor)));
        let name = TensorName::parse(tensor, &config.heads).map_err(of_tensor)?;
        let stored = (tensor.to_owned(), shape.to_vec());
        weights.check_values(&stored)?;
        let module = name.module.to_owned();
        if name.role == Role::Base {
            let &[rows, columns] = shape else {
                return Err(of_tensor("a copy of the base's weight is a matrix".to_owned()));
            };
            copies.push(BaseCopy { name: module, shape: [rows, columns], tensor: stored.0 });
            continue;
        }
        let has_adapter = !matches!(name.role, Role::Weight | Role::Bias);
        if has_adapter && *adapter.get_or_insert(name.adapter) != name.adapter {
            let text = "the file has tensors of several adapters; one adapter is read";
            return Err(of_tensor(text.to_owned()));
        }
        modules.entry(module).or_default().add(name.role, stored).map_err(of_tensor)?;
    }
    Ok((modules, copies))
}

impl ModuleTensors {
    fn add(&mut self, role: Role, tensor: NamedShape) -> Result<(), String> {
        let kind = match role {
            Role::A | Role::B => AdapterKind::Linear,
            Role::EmbeddingA | Role::EmbeddingB => AdapterKind::Embedding,
            Role::Weight | Role::Bias => AdapterKind::Saved { bias: false },
            Role::Base => unreachable!("no tensor of an adapter"),
        };
        if *self.kind.get_or_insert(kind) != kind {
            return Err("the module has tensors of another kind of adapter as well".to_owned());
        }
        let place = match role {
            Role::A | Role::EmbeddingA | Role::Weight => &mut self.first,
            _ => &mut self.second,
        };
        match place.replace(tensor) {
            None => Ok(()),
            Some((other, _)) => Err(format!("{} is the same of its module", quoted(&other))),
        }
    }

    /// The module of these tensors, if they fit each other and the config.
    pub(super) fn checked(
        &self,
        name: String,
        rank_and_scale: (usize, f32),
        max_rank: usize,
    ) -> Result<AdapterModule, String> {
        match self.kind {
            Some(AdapterKind::Saved { .. }) | None => self.checked_whole(name),
            Some(kind) => {
                let module = self.checked_pair(name, kind, rank_and_scale)?;
                match module.rank <= max_rank {
                    true => Ok(module),
                    false => Err(format!(
                        "module {}: rank {rank} is above {max_rank}; give `settings.max_lora_rank` {rank}",
                        quoted(&module.name),
                        rank = module.rank
                    )),
                }
            }
        }
    }

    fn checked_whole(&self, name: String) -> Result<AdapterModule, String> {
        let Some((weight, shape)) = &self.first else {
            return Err(format!("module {}: it has a bias and no weight", quoted(&name)));
        };
        let &[num_outputs @ (1..), num_inputs @ (1..)] = &shape[..] else {
            let shape = quoted(&format!("{shape:?}"));
            return Err(format!("tensor {}: shape {shape} is none of a layer", quoted(weight)));
        };
        if let Some((bias, shape)) = &self.second
            && shape[..] != [num_outputs]
        {
            let shape = quoted(&format!("{shape:?}"));
            let bias = quoted(bias);
            return Err(format!("tensor {bias}: shape {shape}, its weight has {num_outputs} rows"));
        }
        let kind = AdapterKind::Saved { bias: self.second.is_some() };
        Ok(AdapterModule { name, kind, rank: 0, scale: 1.0, num_inputs, num_outputs })
    }

    fn checked_pair(
        &self,
        name: String,
        kind: AdapterKind,
        (rank, scale): (usize, f32),
    ) -> Result<AdapterModule, String> {
        let (a, b) = match (&self.first, &self.second) {
            (Some(a), Some(b)) => (a, b),
            (Some((tensor, _)), None) => return Err(alone(tensor, "B")),
            (None, Some((tensor, _))) => return Err(alone(tensor, "A")),
            (None, None) => unreachable!("a module has tensors"),
        };
        let of_tensor = |tensor: &NamedShape, text: &str| {
            let shape = quoted(&format!("{:?}", tensor.1));
            format!("tensor {}: shape {shape}, {text}", quoted(&tensor.0))
        };
        let &[rank_of_a, num_inputs @ (1..)] = &a.1[..] else {
            return Err(of_tensor(a, "A is a matrix of (rank, inputs)"));
        };
        let &[num_outputs @ (1..), rank_of_b] = &b.1[..] else {
            return Err(of_tensor(b, "B is a matrix of (outputs, rank)"));
        };
        if rank_of_a != rank {
            let text = format!("the rank of its module is {rank} by `r` and `rank_pattern`");
            return Err(of_tensor(a, &text));
        }
        if rank_of_b != rank {
            return Err(of_tensor(b, &format!("A of its module has rank {rank}")));
        }
        Ok(AdapterModule { name, kind, rank, scale, num_inputs, num_outputs })
    }
}

fn alone(tensor: &str, other: &str) -> String {
    format!("tensor {}: its module has no {other}", quoted(tensor))
}
