//! `LayerFile`: layers behind a model whose weights are in a folder or a file of their own.

use std::path::{Path, PathBuf};

use crate::execute::model::head::Head;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{LoadFormat, ModelConfig};
use vllm_batch_checkpoint::spec::{HeadActivation, HeadLayer, HeadSpec, LinearSpec, NamedShape};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::Device;

/// The layer of lexical weights, in the model's folder: FlagEmbedding's `sparse_linear`.
pub const LEXICAL_LAYER: &str = "sparse_linear.pt";

/// The layer of vectors of tokens: FlagEmbedding's `colbert_linear`.
pub const TOKEN_LAYER: &str = "colbert_linear.pt";

/// What the layer is called, in all such files.
const NAME: &str = "linear";

/// A linear layer with an activation, and where its weights are.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFile {
    /// A folder of weight files, or a file of torch.save with the tensors of the layer alone.
    path: PathBuf,
    /// What it computes.
    pub(super) layer: HeadLayer,
}

impl LayerFile {
    /// A linear layer (outputs, inputs) with a bias.
    pub(super) fn new(path: PathBuf, (outputs, inputs): (usize, usize)) -> Self {
        let linear = LinearSpec::new(NAME, outputs, inputs).with_bias(true);
        Self { path, layer: HeadLayer::new(linear) }
    }

    /// The same, with or without a bias, and with this activation.
    pub(super) fn with(mut self, bias: bool, activation: Option<HeadActivation>) -> Self {
        self.layer.linear.bias = bias;
        self.layer.activation = activation;
        self
    }

    /// Values of what it reads.
    pub(super) fn inputs(&self) -> usize {
        self.layer.linear.k
    }

    /// Values of what it makes.
    pub(super) fn outputs(&self) -> usize {
        self.layer.linear.n()
    }

    /// Its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = NamedShape> + '_ {
        self.layer.linear.tensors()
    }

    /// Reads and packs the weights, or makes them up.
    ///
    /// # Errors
    /// A tensor is missing, unused or has another shape, or memory does not suffice.
    pub(super) fn load(&self, device: &Device, config: &ModelConfig) -> Result<Head, EngineError> {
        let mut checkpoint = match config.load_format {
            LoadFormat::Auto if self.path.is_dir() => {
                Checkpoint::open(&self.path, config.on_lost_file)?
            }
            LoadFormat::Auto => Checkpoint::of_module(&self.path, NAME, config.on_lost_file)?,
            LoadFormat::Dummy => Checkpoint::dummy(config.seed),
        };
        checkpoint.check(&self.tensors().collect::<Vec<_>>(), &[])?;
        let spec = HeadSpec { layers: vec![self.layer.clone()] };
        let head = Head::load(&spec, device, &mut checkpoint)?;
        checkpoint.finish()?;
        Ok(head)
    }
}

/// A layer of one of these names, from states of this width to so many values, if it is there.
pub(super) fn layer_of(
    dir: &Path,
    name: &str,
    (outputs, width): (usize, usize),
) -> Option<LayerFile> {
    let path = dir.join(name);
    // A link to nothing is there: loading says what is wrong with it.
    let is_there = path.symlink_metadata().is_ok();
    is_there.then(|| LayerFile::new(path, (outputs, width)))
}
