//! Texts that go through a body in one piece, packed without padding and without a cache: of models
//! whose tokens see those after them, or all of whose states count.

use std::sync::Arc;
use std::time::Instant;

use super::body::{Done, Text};
use super::loading::Devices;
use super::pooler::{Asked, Pooler};
use super::request::TextTokens;
use super::text_queue::TextQueue;
use crate::execute::encoded_media::EncodedMedia;
use crate::execute::model::encoder::Encoder;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use crate::stats::EngineStats;
use vllm_batch_api::pooling::Pooled;
use vllm_batch_api::request::RequestError;
use vllm_batch_base::EngineError;
use vllm_batch_ops::batch::{Batch, LoraRows, MediaRows};

/// An encoder, and the texts that wait for it.
pub(super) struct WholeTexts {
    encoder: Encoder,
    /// What makes embeddings of images among their tokens.
    media: Option<EncodedMedia>,
    waiting: TextQueue,
    /// Segments that the model knows.
    num_token_types: usize,
    /// Tokens of a step, unless it is one text.
    max_num_tokens: usize,
    max_num_seqs: usize,
    /// Different adapters of a step.
    max_loras: usize,
    /// Refilled by every step.
    batch: Batch,
    stats: EngineStats,
}

impl WholeTexts {
    /// None wait yet. `num_token_types`: segments that the model knows.
    pub(super) fn new(
        encoder: Encoder,
        media: Option<EncodedMedia>,
        num_token_types: usize,
        sizes: &StepSizes,
    ) -> Self {
        Self {
            encoder,
            media,
            waiting: TextQueue::default(),
            num_token_types,
            max_num_tokens: sizes.max_num_batched_tokens,
            max_num_seqs: sizes.max_num_seqs,
            max_loras: sizes.max_loras,
            batch: Batch::default(),
            stats: EngineStats::default(),
        }
    }

    /// As `Body::add`.
    pub(super) fn add(&mut self, text: Text) {
        self.stats.images.add(&text.tokens.media);
        self.waiting.push(text);
    }

    /// As `Body::set_media_table`.
    pub(super) fn set_media_table(&mut self, table: Arc<MediaTable>) {
        if let Some(media) = &mut self.media {
            media.set_table(table);
        }
    }

    /// As `Body::retain`.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        self.waiting.retain(is_kept);
    }

    /// As `Body::has_unfinished_texts`.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// As `Body::step`, of as many texts as a step takes.
    pub(super) fn step(
        &mut self,
        devices: &Devices,
        pooler: &Pooler,
    ) -> Result<Vec<Done>, EngineError> {
        let clock = Instant::now();
        let texts = self.take_texts();
        self.fill_batch(&texts);
        self.encoder.reserve(&devices.body, self.batch.input_ids.len())?;
        let scheduled = clock.elapsed();
        let places = self.batch.query_start_loc.windows(2);
        let asked = texts.iter().zip(places).map(|(text, place)| Asked {
            start: place[0] as usize,
            end: place[1] as usize,
            ids: &text.tokens.ids,
            num_skipped: text.tokens.num_skipped,
            params: &text.params,
            lora: text.lora,
        });
        let mut asked: Vec<_> = asked.collect();
        // What no vector depends on need not come from a GPU.
        let only_rows = pooler.only_rows(&asked);
        if only_rows.is_some() {
            for (row, text) in asked.iter_mut().enumerate() {
                *text = Asked { start: row, end: row + 1, num_skipped: 0, ..*text };
            }
        }
        self.batch.logits_indices = only_rows.unwrap_or_default();
        let given = match &mut self.media {
            Some(media) if !self.batch.media.is_empty() => {
                media.encode(&devices.body, &self.batch)?;
                media.rows_of(&self.batch)
            }
            _ => Vec::new(),
        };
        let states = self.encoder.forward(&devices.body, &self.batch, &given)?;
        let pooled = pooler.texts(&devices.host, states, &asked)?;
        let stats = &mut self.stats;
        stats.num_steps += 1;
        stats.num_computed_tokens += self.batch.input_ids.len() as u64;
        stats.time.schedule += scheduled;
        stats.time.execute += clock.elapsed() - scheduled;
        let done = texts.into_iter().zip(pooled);
        Ok(done.map(|(text, pooled)| of_sound_media(text, pooled)).collect())
    }

    /// As `Body::loras`.
    pub(super) fn loras(&self) -> &ResidentLoras {
        self.encoder.loras()
    }

    /// As `Body::stats`.
    pub(super) fn stats(&self) -> EngineStats {
        let (num_waiting, num_waiting_batch) = (self.waiting.len(), self.waiting.len_of_batch());
        let stats = EngineStats { num_waiting, num_waiting_batch, ..self.stats };
        let stats = stats.with_loras(self.encoder.loras().counts());
        match &self.media {
            None => stats,
            Some(media) => stats.with_encoded(media.encoded()),
        }
    }

    /// The next texts of a step, those without an adapter first and those of each adapter together.
    fn take_texts(&mut self) -> Vec<Text> {
        let Self { waiting, max_num_seqs, max_num_tokens, max_loras, .. } = self;
        let (mut num_texts, mut num_tokens, mut loras) = (0, 0, Vec::new());
        let mut texts = waiting.take(|text| {
            let with_it = num_tokens + text.tokens.ids.len();
            if num_texts == *max_num_seqs || (num_texts > 0 && with_it > *max_num_tokens) {
                return false;
            }
            if let Some(lora) = text.lora.filter(|lora| !loras.contains(lora)) {
                if loras.len() == *max_loras {
                    return false;
                }
                loras.push(lora);
            }
            (num_texts, num_tokens) = (num_texts + 1, with_it);
            true
        });
        if !loras.is_empty() {
            texts.sort_by_key(|text: &Text| text.lora);
        }
        texts
    }

    fn fill_batch(&mut self, texts: &[Text]) {
        let Batch { input_ids, positions, token_types, query_start_loc, loras, media, .. } =
            &mut self.batch;
        input_ids.clear();
        positions.clear();
        token_types.clear();
        query_start_loc.clear();
        query_start_loc.push(0);
        loras.clear();
        media.clear();
        for Text { tokens: TextTokens { ids, types, media: runs, .. }, lora, .. } in texts {
            let first = input_ids.len() as u32;
            input_ids.extend_from_slice(ids);
            positions.extend(0..ids.len() as u32);
            media.extend(runs.iter().map(|run| MediaRows {
                medium: run.medium.number(),
                first_token: run.first_token,
                rows: first + run.positions.start as u32..first + run.positions.end as u32,
            }));
            // A model of one segment was trained on pairs without them.
            if self.num_token_types > 1 {
                token_types.extend_from_slice(types);
            }
            token_types.resize(input_ids.len(), 0);
            let end = input_ids.len() as u32;
            query_start_loc.push(end);
            // No layer behind the body is adapted.
            LoraRows::add(loras, *lora, first..end, 0..0);
        }
    }
}

/// What a text became, or why one of its images could not be read again.
fn of_sound_media(text: Text, pooled: Pooled) -> Done {
    let lost = text.tokens.media.iter().find_map(|run| run.medium.lost());
    let result = match lost {
        None => Ok(pooled),
        Some(error) => Err(RequestError::new(error.code(), error.to_string())),
    };
    (text, result)
}
