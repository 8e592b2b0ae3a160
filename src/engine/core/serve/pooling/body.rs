//! The body of a model, with the texts that wait for it. Which of both kinds a model has is decided
//! by what it is, and no flag changes it: so no byte depends on a cache.

use std::sync::Arc;

use super::cached_texts::CachedTexts;
use super::loading::Devices;
use super::pictures::Pictures;
use super::pooler::Pooler;
use super::request::TextTokens;
use super::shared_texts::{Reader, TextKey};
use super::whole_texts::WholeTexts;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::media_table::MediaTable;
use crate::stats::EngineStats;
use vllm_batch_api::pooling::{Pooled, PoolingParams};
use vllm_batch_api::request::{LoraId, Precedence, RequestError};
use vllm_batch_base::EngineError;

/// A body.
pub(super) struct Body {
    pub texts: Texts,
    /// Of a model with a tower of its own for images.
    pub pictures: Option<Pictures>,
}

/// What reads texts.
pub(super) enum Texts {
    /// Texts go through it in one piece.
    Whole(Box<WholeTexts>),
    /// Texts go through it in pieces, and those that begin alike share what that costs.
    Cached(Box<CachedTexts>),
    /// There are none: every row is an image. An adapter has no place in it.
    None(Box<ResidentLoras>),
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
    /// Who goes before whom. Of a text that others ask for too, that of the first who did.
    pub precedence: Precedence,
}

/// A text with what it became.
pub(super) type Done = (Text, Result<Pooled, RequestError>);

impl Body {
    /// Queues a text.
    pub(super) fn add(&mut self, text: Text) {
        match (&mut self.texts, &mut self.pictures) {
            (_, Some(pictures)) if !text.tokens.media.is_empty() => pictures.add(text),
            (Texts::Whole(body), _) => body.add(text),
            (Texts::Cached(body), _) => body.add(text),
            (Texts::None(_), _) => unreachable!("the input processor refuses texts"),
        }
    }

    /// Keeps the texts that are as asked.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        match &mut self.texts {
            Texts::Whole(body) => body.retain(is_kept),
            Texts::Cached(body) => body.retain(is_kept),
            Texts::None(_) => {}
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.retain(is_kept);
        }
    }

    /// Whether texts wait.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        let of_pictures = self.pictures.as_ref().is_some_and(Pictures::has_unfinished_texts);
        of_pictures || self.texts.has_unfinished_texts()
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
        let mut done = match &mut self.texts {
            texts if !texts.has_unfinished_texts() => Vec::new(),
            Texts::Whole(body) => body.step(devices, pooler)?,
            Texts::Cached(body) => body.step(devices, pooler)?,
            Texts::None(_) => Vec::new(),
        };
        if let Some(pictures) = self.pictures.as_mut().filter(|seen| seen.has_unfinished_texts()) {
            done.extend(pictures.step(devices, pooler)?);
        }
        Ok(done)
    }

    /// Texts may have images of this table from now on, if the body sees any.
    pub(super) fn set_media_table(&mut self, table: Arc<MediaTable>) {
        match (&mut self.texts, &mut self.pictures) {
            (_, Some(pictures)) => pictures.set_media_table(table),
            (Texts::Cached(body), None) => body.set_media_table(table),
            (Texts::Whole(body), None) => body.set_media_table(table),
            (Texts::None(_), None) => {}
        }
    }

    /// The adapters that texts may name.
    pub(super) fn loras(&self) -> &ResidentLoras {
        match &self.texts {
            Texts::Whole(body) => body.loras(),
            Texts::Cached(body) => body.loras(),
            Texts::None(loras) => loras,
        }
    }

    /// Counters since load, and the present queue lengths.
    pub(super) fn stats(&self) -> EngineStats {
        let of_texts = match &self.texts {
            Texts::Whole(body) => body.stats(),
            Texts::Cached(body) => body.stats(),
            Texts::None(_) => EngineStats::default(),
        };
        match &self.pictures {
            None => of_texts,
            Some(pictures) => of_texts.beside(pictures.stats()),
        }
    }
}

impl Texts {
    fn has_unfinished_texts(&self) -> bool {
        match self {
            Texts::Whole(body) => body.has_unfinished_texts(),
            Texts::Cached(body) => body.has_unfinished_texts(),
            Texts::None(_) => false,
        }
    }
}
