//! `SparseSpec`: what makes sparse vectors, in place of a pooling.

use super::layer_file::{LEXICAL_LAYER, LayerFile, layer_of};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::ModelConfig;
use vllm_batch_checkpoint as checkpoint;
use vllm_batch_checkpoint::encoders::MaskedLmSpec;
use vllm_batch_checkpoint::hf_config::HfConfig;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::spec::EncoderSpec;

/// How sparse vectors are made.
#[derive(Clone, Debug, PartialEq)]
pub enum SparseSpec {
    /// Of numbers of all words of the vocabulary.
    Splade(Box<SpladeSpec>),
    /// Of a layer that gives each token of a text its weight.
    Lexical(Box<LayerFile>),
}

impl SparseSpec {
    /// How often the logarithm of 1 + x is taken of a weight.
    pub fn num_logs(&self) -> usize {
        match self {
            SparseSpec::Splade(splade) => splade.num_logs,
            SparseSpec::Lexical(_) => 0,
        }
    }

    /// The tensors that make numbers of words, by their names.
    pub fn words(&self) -> Option<String> {
        let head = &self.splade()?.head;
        let names = head.words.weights().map(|(name, _)| name);
        Some(names.chain([head.bias.0.clone()]).collect::<Vec<_>>().join(", "))
    }

    pub(super) fn splade(&self) -> Option<&SpladeSpec> {
        match self {
            SparseSpec::Splade(splade) => Some(splade),
            SparseSpec::Lexical(_) => None,
        }
    }
}

/// How weights of all words are made.
#[derive(Clone, Debug, PartialEq)]
pub struct SpladeSpec {
    /// What gives a token's number for each word.
    pub head: MaskedLmSpec,
    /// How often the logarithm of 1 + x is taken of the largest.
    pub num_logs: usize,
}

/// What makes sparse vectors, where the files or a flag ask for them.
pub(super) fn read(
    config: &ModelConfig,
    num_logs: Option<usize>,
    hf_config: &HfConfig,
    (spec, files): (&EncoderSpec, &ModelFiles),
) -> Result<Option<SparseSpec>, EngineError> {
    let lexical = match files {
        ModelFiles::Folder(folder) => layer_of(folder, LEXICAL_LAYER, (1, spec.hidden_size())),
        ModelFiles::Gguf(_) => None,
    };
    match (num_logs, lexical) {
        (None, _) if !config.sparse => return Ok(None),
        // The modules of a SPLADE model say what they are.
        (None, Some(layer)) => return Ok(Some(SparseSpec::Lexical(Box::new(layer)))),
        _ => {}
    }
    match checkpoint::masked_lm(hf_config, spec, || files.stored(config))? {
        Some(head) => {
            let num_logs = num_logs.unwrap_or(1);
            Ok(Some(SparseSpec::Splade(Box::new(SpladeSpec { head, num_logs }))))
        }
        None => Err(EngineError::Model(format!(
            "{}: sparse vectors are made with the head of a masked language model \
             (`BertForMaskedLM`, ...) or with a layer in {LEXICAL_LAYER}, and there is neither",
            config.model_dir.display()
        ))),
    }
}
