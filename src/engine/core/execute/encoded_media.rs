//! `EncodedMedia`: what a vision tower makes of the media of steps, when a step first needs it, and
//! as long as there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::model::decoder::GivenRows;
use super::model::tower::Tower;
use super::tower_cache::TowerCache;
use crate::media_table::MediaTable;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig};
use vllm_batch_checkpoint::spec::{Bidirectional, TowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::Device;
use vllm_batch_ops::BandTables;
use vllm_batch_ops::batch::{Batch, MediaRows};

/// Bytes of embeddings when no size is given: vLLM's `mm_processor_cache_gb`.
const CACHE_BYTES: u64 = 4 << 30;
/// Part of a GPU's memory that they take at most when no size is given.
const CACHE_PART: u64 = 32;

/// A tower, and the embeddings that it made.
pub struct EncodedMedia {
    tower: Tower,
    cache: TowerCache,
    source: Option<Source>,
    num_encoded: u64,
    encode_time: Duration,
}

/// Where patches come from.
struct Source {
    table: Arc<MediaTable>,
    /// Their numbers.
    numbers: Box<BandTables>,
}

impl EncodedMedia {
    /// Loads the tower of a checkpoint that was checked. Nothing is encoded yet.
    ///
    /// # Errors
    /// As [`Tower::load`].
    pub(crate) fn load(
        config: &EngineConfig,
        spec: &TowerSpec,
        (dtype, device): (DType, &Device),
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, EngineError> {
        let tower = Tower::load(spec.clone(), dtype, device, checkpoint)?;
        let of_gpu = device.memory_of_gpu()?.map_or(u64::MAX, |bytes| bytes / CACHE_PART);
        let usual = CACHE_BYTES.min(of_gpu);
        let cache = TowerCache::new(config.cache.tower_cache_bytes.unwrap_or(usual));
        Ok(Self { tower, cache, source: None, num_encoded: 0, encode_time: Duration::ZERO })
    }

    /// Tokens of an image, or of a prompt, attend to all of it.
    pub(super) fn are_whole(&self) -> bool {
        self.tower.spec().bidirectional != Bidirectional::None
    }

    /// Most bytes of what the tower made.
    pub(super) fn max_bytes(&self) -> u64 {
        self.cache.max_bytes()
    }

    /// Images encoded since load, and what that took.
    pub(crate) fn encoded(&self) -> (u64, Duration) {
        (self.num_encoded, self.encode_time)
    }

    /// Steps may have media of this table from now on.
    pub(crate) fn set_table(&mut self, table: Arc<MediaTable>) {
        let numbers = Box::new(table.processor().normalization().tables());
        self.source = Some(Source { table, numbers });
    }

    /// Encodes the media of a step that are not there: together, though with the patches of few
    /// more at a time than the tower takes at once. Those that cannot be read again are lost, and
    /// zeros.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// There is no table, or no request has one of the media.
    pub(crate) fn encode(&mut self, device: &Device, batch: &Batch) -> Result<(), EngineError> {
        let Self { tower, cache, source, num_encoded, encode_time } = self;
        let missing = cache.begin_step(batch.media.iter().map(|rows| rows.medium));
        let Some(source) = source else { unreachable!("a step of media has a table of them") };
        let begun = Instant::now();
        let mut missing = missing.into_iter();
        loop {
            let (mut numbers, mut images, mut num_patches) = (Vec::new(), Vec::new(), 0);
            while num_patches < Tower::STEP_PATCHES
                && let Some(number) = missing.next()
            {
                let medium = source.table.get(number).expect("a request has what its steps have");
                match medium.take_patches() {
                    Ok(patches) => {
                        num_patches += patches.layout.num_patches();
                        numbers.push(number);
                        images.push(patches);
                    }
                    Err(error) => {
                        cache.insert(number, tower.zeros(device, medium.layout())?);
                        medium.lose(error);
                    }
                }
            }
            if images.is_empty() {
                *encode_time += begun.elapsed();
                return Ok(());
            }
            *num_encoded += images.len() as u64;
            let rows = tower.encode(device, &images, &source.numbers)?;
            numbers.into_iter().zip(rows).for_each(|(number, rows)| cache.insert(number, rows));
        }
    }

    /// The row of a medium of the step that was encoded last, where the tower gives one.
    ///
    /// # Panics
    /// It gives several, or is on a GPU.
    pub(crate) fn vector(&self, medium: u64) -> &[f32] {
        let rows = self.cache.rows(medium);
        assert_eq!(rows.num_rows(), 1, "an image is one row");
        rows.values()
    }

    /// The rows of a step that was encoded last.
    pub(super) fn rows_of<'a>(&'a self, batch: &'a Batch) -> Vec<GivenRows<'a>> {
        let given = |media: &'a MediaRows| {
            let (rows, num_kinds) = (self.cache.rows(media.medium), self.tower.rows_per_token());
            let num_tokens = rows.num_rows() / num_kinds;
            let first = media.first_token as usize;
            let of_kind = |kind: usize| rows.rows_from(kind * num_tokens + first);
            GivenRows {
                rows: media.rows.start as usize..media.rows.end as usize,
                from: of_kind(0),
                deep: (1..num_kinds).map(of_kind).collect(),
            }
        };
        batch.media.iter().map(given).collect()
    }
}
