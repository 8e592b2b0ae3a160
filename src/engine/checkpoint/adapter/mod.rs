//! LoRA adapters: the folders that peft writes, read strictly. y = base(x) + scale * B (A x) for
//! each module that has A and B.
//!
//! This module knows files and names, and `places` where in a model they are. Nothing here
//! computes but `merged`, while weights are loaded.

mod config;
mod folder;
mod merged;
mod module_tensors;
mod names;
mod places;
#[cfg(test)]
mod places_tests;
mod targets;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::spec::NamedShape;
use crate::weights::MappedFiles;
use config::AdapterConfig;
pub use merged::MergedAdapter;
use module_tensors::{ModuleTensors, sorted_tensors};
pub use places::{
    LoraBlock, LoraPlace, LoraPlaces, PartOutputs, PlacedAdapter, PlacedHead, PlacedModule,
};
use targets::Targets;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::OnLostFile;

/// The file of tensors in an adapter's folder.
const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// An adapter's folder: what its config says, and its tensors, not read yet.
#[derive(Debug)]
pub struct AdapterFiles {
    weights: MappedFiles,
    /// By name.
    modules: Vec<AdapterModule>,
    /// The tensors of each.
    tensors: Vec<ModuleTensors>,
    copies: Vec<BaseCopy>,
    targets: Targets,
}

/// One module that an adapter changes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterModule {
    /// As transformers names it in the model: `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Kind of change that the adapter has for it.
    pub kind: AdapterKind,
    /// Rows of A; 0 where the module is saved whole.
    pub rank: usize,
    /// alpha / rank, or alpha / sqrt(rank): computed in f64, rounded once. 1 where the module is
    /// saved whole.
    pub scale: f32,
    /// Columns of A, or of the weight; of a table its rows.
    pub num_inputs: usize,
    /// Rows of B, or of the weight; of a table its width.
    pub num_outputs: usize,
}

/// Change of an adapter to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A and B of a linear layer.
    Linear,
    /// A and B of a table that is looked up.
    Embedding,
    /// Weight that replaces the base's.
    Saved {
        /// And its bias.
        bias: bool,
    },
}

/// The matrices of a module, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterMatrices {
    /// (rank, inputs)
    pub a: Vec<f32>,
    /// (outputs, rank)
    pub b: Vec<f32>,
}

/// A module that is saved whole.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedModule {
    /// (outputs, inputs), row-major.
    pub weight: Vec<f32>,
    /// (outputs)
    pub bias: Option<Vec<f32>>,
}

/// A copy of the base's weight. peft writes it beside the adapters of tables. The base has to have
/// the same, or the adapter is of another one.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseCopy {
    /// The module, as transformers names it.
    pub name: String,
    /// (rows, columns)
    pub shape: [usize; 2],
    tensor: String,
}

impl AdapterFiles {
    /// Reads an adapter's config and the header of its tensors. Ranks are at most `max_rank`.
    ///
    /// # Errors
    /// A file is missing or corrupt, or the adapter has what is not computed.
    pub fn open(
        dir: &Path,
        max_rank: usize,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        folder::refuse_missing_files(dir)?;
        let config = AdapterConfig::open(dir)?;
        let weights = MappedFiles::of_file(&dir.join(WEIGHTS_FILE), on_lost_file)?;
        let (found, copies) = sorted_tensors(&weights, &config)?;
        if found.is_empty() {
            return Err(weights.error("it has no tensors of an adapter"));
        }
        let (mut modules, mut tensors) = (Vec::new(), Vec::new());
        for (name, of_module) in found {
            let rank_and_scale = config.rank_and_scale(&name)?;
            let module = of_module.checked(name, rank_and_scale, max_rank);
            let module = module.map_err(|text| weights.error(text))?;
            if !matches!(module.kind, AdapterKind::Saved { .. }) {
                config.targets.check(&module.name).map_err(|text| weights.error(text))?;
            }
            modules.push(module);
            tensors.push(of_module);
        }
        Ok(Self { weights, modules, tensors, copies, targets: config.targets })
    }

    /// The modules that it changes, by name.
    pub fn modules(&self) -> &[AdapterModule] {
        &self.modules
    }

    /// Refuses names of `target_modules` that are modules of the model, without tensors.
    fn check_targets<'a>(
        &'a self,
        of_model: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), EngineError> {
        let of_adapter = self.modules.iter().map(|module| module.name.as_str());
        self.targets.check_all(of_model, of_adapter).map_err(|text| self.error(text))
    }

    /// Copies of the base's weights, by name.
    pub fn copies(&self) -> &[BaseCopy] {
        &self.copies
    }

    /// A (rank, inputs) and B (outputs, rank) of a module.
    ///
    /// # Errors
    /// The file has changed since it was opened.
    ///
    /// # Panics
    /// It is no module of this adapter, or is saved whole.
    pub fn read(&self, module: &AdapterModule) -> Result<AdapterMatrices, EngineError> {
        let tensors = self.tensors_of(module);
        let is_saved = matches!(module.kind, AdapterKind::Saved { .. });
        assert!(!is_saved, "{} has no A and B", module.name);
        let values = |tensor: &Option<NamedShape>| {
            self.weights.values(tensor.as_ref().expect("checked at open"))
        };
        Ok(AdapterMatrices { a: values(&tensors.first)?, b: values(&tensors.second)? })
    }

    /// A module that is saved whole.
    ///
    /// # Errors
    /// The file has changed since it was opened.
    ///
    /// # Panics
    /// It is no module of this adapter, or is not saved whole.
    pub fn read_saved(&self, module: &AdapterModule) -> Result<SavedModule, EngineError> {
        let tensors = self.tensors_of(module);
        let is_saved = matches!(module.kind, AdapterKind::Saved { .. });
        assert!(is_saved, "{} has A and B", module.name);
        let weight = self.weights.values(tensors.first.as_ref().expect("checked at open"))?;
        let bias = tensors.second.as_ref().map(|bias| self.weights.values(bias));
        Ok(SavedModule { weight, bias: bias.transpose()? })
    }

    /// A copy of the base's weight: (rows, columns), row-major.
    ///
    /// # Errors
    /// The file has changed since it was opened.
    pub fn read_copy(&self, copy: &BaseCopy) -> Result<Vec<f32>, EngineError> {
        self.weights.values(&(copy.tensor.clone(), copy.shape.to_vec()))
    }

    /// An error about the file of tensors.
    pub fn error(&self, text: impl std::fmt::Display) -> EngineError {
        self.weights.error(text)
    }

    fn tensors_of(&self, module: &AdapterModule) -> &ModuleTensors {
        let index = self.modules.binary_search_by(|known| known.name.cmp(&module.name));
        &self.tensors[index.expect("a module of this adapter")]
    }
}
