//! The body of a model, with the texts that wait for it. Which of both kinds a model has is decided
//! by what it is, and no flag changes it: so no byte depends on a cache.

use std::sync::Arc;

use super::cached_texts::CachedTexts;
use super::loading::Devices;
use super::pooler::Pooler;
use super::request::TextTokens;
use super::shared_texts::{Reader, TextKey};
use super::whole_texts::WholeTexts;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::media_table::MediaTable;
use crate::stats::EngineStats;
use vllm_batch_api::pooling::{Pooled, PoolingParams};
use vllm_batch_api::request::{LoraId, RequestError};
use vllm_batch_base::EngineError;

/// A body.
pub(super) enum Body {
    /// Texts go through it in one piece.
    Whole(Box<WholeTexts>),
    /// Texts go through it in pieces, and those that begin alike share what that costs.
    Cached(Box<CachedTexts>),
}

/// A text of a request.
pub(super) struct Text {
    /// Whose it is.
    pub reader: Reader,
    /// Its tokens.
    pub tokens: TextTokens,
    /// Others may ask for it too.
    pub shared: Option<Arc<TextKey>>,
    /// What was asked of it.
    pub params: Arc<PoolingParams>,
    /// The adapter that it is computed with.
    pub lora: Option<LoraId>,
}

/// A text with what it became.
pub(super) type Done = (Text, Result<Pooled, RequestError>);

impl Body {
    /// Queues a text.
    pub(super) fn add(&mut self, text: Text) {
        match self {
            Body::Whole(body) => body.add(text),
            Body::Cached(body) => body.add(text),
        }
    }

    /// Keeps the texts that are as asked.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        match self {
            Body::Whole(body) => body.retain(is_kept),
            Body::Cached(body) => body.retain(is_kept),
        }
    }

    /// Whether texts wait.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        match self {
            Body::Whole(body) => body.has_unfinished_texts(),
            Body::Cached(body) => body.has_unfinished_texts(),
        }
    }

    /// Runs a step; returns the texts that are done with it.
    ///
    /// # Errors
    /// The device failed, or memory does not suffice.
    pub(super) fn step(
        &mut self,
        devices: &Devices,
        pooler: &Pooler,
    ) -> Result<Vec<Done>, EngineError> {
        match self {
            Body::Whole(body) => body.step(devices, pooler),
            Body::Cached(body) => body.step(devices, pooler),
        }
    }

    /// Texts may have images of this table from now on, if the body sees any.
    pub(super) fn set_media_table(&mut self, table: Arc<MediaTable>) {
        match self {
            Body::Whole(_) => {}
            Body::Cached(body) => body.set_media_table(table),
        }
    }

    /// The adapters that texts may name.
    pub(super) fn loras(&self) -> &ResidentLoras {
        match self {
            Body::Whole(body) => body.loras(),
            Body::Cached(body) => body.loras(),
        }
    }

    /// Counters since load, and the present queue lengths.
    pub(super) fn stats(&self) -> EngineStats {
        match self {
            Body::Whole(body) => body.stats(),
            Body::Cached(body) => body.stats(),
        }
    }
}
