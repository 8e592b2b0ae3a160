//! `PoolingRequest`: texts whose vectors or classes are asked for, tokenized.

use std::sync::Arc;

use crate::request::MediaRun;
use vllm_batch_api::compared::Compared;
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::request::{LoraId, Precedence};

/// Texts with their parameters, ready to run.
#[derive(Clone, Debug)]
pub struct PoolingRequest {
    /// Caller's number of the request; outputs carry it back.
    pub request_id: u64,
    /// Tokens of each text: none is empty, or longer than the model takes.
    pub texts: Vec<TextTokens>,
    /// What is asked is how some of them compare: places of two texts for each score.
    pub comparisons: Vec<(usize, usize)>,
    /// What was compared.
    pub compared: Option<Arc<Compared>>,
    /// Validated parameters.
    pub params: Arc<PoolingParams>,
    /// The adapter that it is computed with. None: the model alone.
    pub lora: Option<LoraId>,
    /// Who goes before whom.
    pub precedence: Precedence,
}

/// Tokens of a text, or of two that are read together, and of images in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TextTokens {
    /// Their ids; placeholders where images are.
    pub ids: Vec<u32>,
    /// Images, by position.
    pub media: Vec<MediaRun>,
    /// The type (segment) of each; empty: all are of the first.
    pub types: Vec<u32>,
    /// The first of them that a vector leaves out; not all.
    pub num_skipped: usize,
}

impl From<Vec<u32>> for TextTokens {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }
}
