//! Images whose vectors are what a tower gives of each by itself: no prompt has them.

use std::sync::Arc;
use std::time::Instant;

use super::body::{Done, Text};
use super::loading::Devices;
use super::pooler::Pooler;
use super::text_queue::TextQueue;
use crate::execute::encoded_media::EncodedMedia;
use crate::media_table::MediaTable;
use crate::stats::EngineStats;
use vllm_batch_api::pooling::Pooled;
use vllm_batch_api::request::RequestError;
use vllm_batch_base::EngineError;
use vllm_batch_ops::batch::{Batch, MediaRows};

/// A tower, and the images that wait for it.
pub(super) struct Pictures {
    media: EncodedMedia,
    waiting: TextQueue,
    max_num_seqs: usize,
    /// Refilled by every step.
    batch: Batch,
    stats: EngineStats,
}

impl Pictures {
    /// None wait yet.
    pub(super) fn new(media: EncodedMedia, max_num_seqs: usize) -> Self {
        let (batch, stats) = Default::default();
        Self { media, waiting: TextQueue::default(), max_num_seqs, batch, stats }
    }

    /// As `Body::set_media_table`.
    pub(super) fn set_media_table(&mut self, table: Arc<MediaTable>) {
        self.media.set_table(table);
    }

    /// As `Body::add`.
    pub(super) fn add(&mut self, text: Text) {
        self.stats.images.add(&text.tokens.media);
        self.waiting.push(text);
    }

    /// As `Body::retain`.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        self.waiting.retain(is_kept);
    }

    /// As `Body::has_unfinished_texts`.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// As `Body::step`, of as many images as a step takes texts.
    pub(super) fn step(
        &mut self,
        devices: &Devices,
        pooler: &Pooler,
    ) -> Result<Vec<Done>, EngineError> {
        let clock = Instant::now();
        let mut num_images = 0;
        let images = self.waiting.take(|_| {
            num_images += 1;
            num_images <= self.max_num_seqs
        });
        self.batch.media.clear();
        self.batch.media.extend(images.iter().zip(0..).map(|(image, row)| MediaRows {
            medium: image.tokens.media[0].medium.number(),
            first_token: 0,
            rows: row..row + 1,
        }));
        self.media.encode(&devices.body, &self.batch)?;
        let done = images.into_iter().map(|image| {
            let vector = self.pooled(&image, pooler);
            (image, vector)
        });
        let done: Vec<_> = done.collect();
        self.stats.num_steps += 1;
        self.stats.num_computed_tokens += done.len() as u64;
        self.stats.time.execute += clock.elapsed();
        Ok(done)
    }

    /// What an image of the step became.
    fn pooled(&self, image: &Text, pooler: &Pooler) -> Result<Pooled, RequestError> {
        let medium = &image.tokens.media[0].medium;
        if let Some(error) = medium.lost() {
            return Err(RequestError::new(error.code(), error.to_string()));
        }
        if image.lora.is_some() {
            let message = "lora: an adapter is of the model's texts, and the row is an image";
            return Err(RequestError::new("invalid_parameter", message));
        }
        let row = self.media.vector(medium.number());
        Ok(pooler.ended(row, row.len(), &image.params))
    }

    /// As `Body::stats`.
    pub(super) fn stats(&self) -> EngineStats {
        let (num_waiting, num_waiting_batch) = (self.waiting.len(), self.waiting.len_of_batch());
        let stats = EngineStats { num_waiting, num_waiting_batch, ..self.stats };
        stats.with_encoded(self.media.encoded())
    }
}
