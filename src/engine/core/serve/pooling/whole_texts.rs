//! Texts that go through a body in one piece, packed without padding and without a cache: of models
//! whose tokens see those after them, or all of whose states count.

use std::collections::VecDeque;
use std::time::Instant;

use super::body::{Done, Text};
use super::loading::Devices;
use super::pooler::{Asked, Pooler};
use super::request::TextTokens;
use crate::execute::model::encoder::Encoder;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::load::step_sizes::StepSizes;
use crate::stats::EngineStats;
use vllm_batch_base::EngineError;
use vllm_batch_ops::batch::{Batch, LoraRows};

/// An encoder, and the texts that wait for it.
pub(super) struct WholeTexts {
    encoder: Encoder,
    /// In the order in which they came.
    waiting: VecDeque<Text>,
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
    pub(super) fn new(encoder: Encoder, num_token_types: usize, sizes: &StepSizes) -> Self {
        Self {
            encoder,
            waiting: VecDeque::new(),
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
        self.waiting.push_back(text);
    }

    /// As `Body::retain`.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        self.waiting.retain(is_kept);
    }

    /// As `Body::has_unfinished_texts`.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// As `Body::step`, of as many texts as a step takes, first come, first served.
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
        let states = self.encoder.forward(&devices.body, &self.batch)?;
        let pooled = pooler.texts(&devices.host, states, &asked)?;
        let stats = &mut self.stats;
        stats.num_steps += 1;
        stats.num_computed_tokens += self.batch.input_ids.len() as u64;
        stats.time.schedule += scheduled;
        stats.time.execute += clock.elapsed() - scheduled;
        Ok(texts.into_iter().zip(pooled.into_iter().map(Ok)).collect())
    }

    /// As `Body::loras`.
    pub(super) fn loras(&self) -> &ResidentLoras {
        self.encoder.loras()
    }

    /// As `Body::stats`.
    pub(super) fn stats(&self) -> EngineStats {
        let stats = EngineStats { num_waiting: self.waiting.len(), ..self.stats };
        stats.with_loras(self.encoder.loras().counts())
    }

    /// The next texts of a step, those without an adapter first and those of each adapter together.
    fn take_texts(&mut self) -> Vec<Text> {
        let (mut texts, mut num_tokens, mut loras) = (Vec::new(), 0, Vec::new());
        while texts.len() < self.max_num_seqs
            && let Some(text) = self.waiting.front()
            && (texts.is_empty() || num_tokens + text.tokens.ids.len() <= self.max_num_tokens)
        {
            if let Some(lora) = text.lora.filter(|lora| !loras.contains(lora)) {
                if loras.len() == self.max_loras {
                    break;
                }
                loras.push(lora);
            }
            num_tokens += text.tokens.ids.len();
            texts.extend(self.waiting.pop_front());
        }
        if !loras.is_empty() {
            texts.sort_by_key(|text: &Text| text.lora);
        }
        texts
    }

    fn fill_batch(&mut self, texts: &[Text]) {
        let Batch { input_ids, positions, token_types, query_start_loc, loras, .. } =
            &mut self.batch;
        input_ids.clear();
        positions.clear();
        token_types.clear();
        query_start_loc.clear();
        query_start_loc.push(0);
        loras.clear();
        for Text { tokens: TextTokens { ids, types, .. }, lora, .. } in texts {
            let first = input_ids.len() as u32;
            input_ids.extend_from_slice(ids);
            positions.extend(0..ids.len() as u32);
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
