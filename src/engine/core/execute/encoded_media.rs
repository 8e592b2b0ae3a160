//! `EncodedMedia`: what towers make of the media of steps, when a step first needs it, and
//! as long as there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::model::decoder::GivenRows;
use super::model::sound_tower::SoundTower;
use super::model::tower::Tower;
use super::tower_cache::TowerCache;
use crate::media_table::{MediaForm, MediaTable, TowerInput};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig};
use vllm_batch_checkpoint::spec::{Bidirectional, SoundTowerSpec, TowerSpec};
use vllm_batch_checkpoint::weights::Checkpoint;
use vllm_batch_device::{Device, Tensor};
use vllm_batch_media::{Features, Patches};
use vllm_batch_ops::BandTables;
use vllm_batch_ops::batch::{Batch, MediaRows};

/// Bytes of embeddings when no size is given: vLLM's `mm_processor_cache_gb`.
const CACHE_BYTES: u64 = 4 << 30;
/// Part of a GPU's memory that they take at most when no size is given.
const CACHE_PART: u64 = 32;

/// The towers that a model has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Towers<'a> {
    /// What makes embeddings of images.
    pub images: Option<&'a TowerSpec>,
    /// What makes states of sounds.
    pub sounds: Option<&'a SoundTowerSpec>,
}

/// Towers, and the embeddings that they made.
pub struct EncodedMedia {
    images: Option<Tower>,
    sounds: Option<SoundTower>,
    cache: TowerCache,
    source: Option<Source>,
    num_encoded: u64,
    encode_time: Duration,
}

/// Where media come from.
struct Source {
    table: Arc<MediaTable>,
    /// Numbers of the bytes of images.
    numbers: Option<Box<BandTables>>,
}

/// Media that are encoded together.
#[derive(Default)]
struct Together {
    /// Of images, then of sounds.
    numbers: [Vec<u64>; 2],
    images: Vec<Patches>,
    sounds: Vec<Features>,
    num_patches: usize,
    num_states: usize,
}

impl EncodedMedia {
    /// Loads the towers of a checkpoint that was checked. Nothing is encoded yet. None: the model
    /// has none.
    ///
    /// # Errors
    /// As [`Tower::load`].
    pub(crate) fn load(
        config: &EngineConfig,
        towers: Towers<'_>,
        (dtype, device): (DType, &Device),
        checkpoint: &mut Checkpoint,
    ) -> Result<Option<Self>, EngineError> {
        let images = match towers.images {
            Some(spec) => Some(Tower::load(spec.clone(), dtype, device, checkpoint)?),
            None => None,
        };
        let sounds = match towers.sounds {
            Some(spec) => Some(SoundTower::load(spec.clone(), dtype, device, checkpoint)?),
            None => None,
        };
        if images.is_none() && sounds.is_none() {
            return Ok(None);
        }
        let of_gpu = device.memory_of_gpu()?.map_or(u64::MAX, |bytes| bytes / CACHE_PART);
        let usual = CACHE_BYTES.min(of_gpu);
        let cache = TowerCache::new(config.cache.tower_cache_bytes.unwrap_or(usual));
        let (source, num_encoded, encode_time) = Default::default();
        Ok(Some(Self { images, sounds, cache, source, num_encoded, encode_time }))
    }

    /// Tokens of an image, or of a prompt, attend to all of it.
    pub(super) fn are_whole(&self) -> bool {
        let is_whole = |tower: &Tower| tower.spec().bidirectional != Bidirectional::None;
        self.images.as_ref().is_some_and(is_whole)
    }

    /// Most bytes of what the tower made.
    pub(super) fn max_bytes(&self) -> u64 {
        self.cache.max_bytes()
    }

    /// Media encoded since load, and what that took.
    pub(crate) fn encoded(&self) -> (u64, Duration) {
        (self.num_encoded, self.encode_time)
    }

    /// Steps may have media of this table from now on.
    pub(crate) fn set_table(&mut self, table: Arc<MediaTable>) {
        let of_images = table.processors().images.as_ref();
        let numbers = of_images.map(|images| Box::new(images.normalization().tables()));
        self.source = Some(Source { table, numbers });
    }

    /// Encodes the media of a step that are not there: together, though with few more at a time
    /// than a tower takes at once. Those that cannot be read again are lost, and zeros.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// There is no table, or no request has one of the media.
    pub(crate) fn encode(&mut self, device: &Device, batch: &Batch) -> Result<(), EngineError> {
        let missing = self.cache.begin_step(batch.media.iter().map(|rows| rows.medium));
        let begun = Instant::now();
        let mut missing = missing.into_iter();
        loop {
            let together = self.next_together(device, &mut missing)?;
            if together.is_empty() {
                self.encode_time += begun.elapsed();
                return Ok(());
            }
            self.encode_together(device, together)?;
        }
    }

    /// The next of the media that are missing.
    fn next_together(
        &mut self,
        device: &Device,
        missing: &mut impl Iterator<Item = u64>,
    ) -> Result<Together, EngineError> {
        let Some(source) = &self.source else {
            unreachable!("a step of media has a table of them")
        };
        let mut together = Together::default();
        while together.num_patches < Tower::STEP_PATCHES
            && together.num_states < SoundTower::STEP_STATES
            && let Some(number) = missing.next()
        {
            let medium = source.table.get(number).expect("a request has what its steps have");
            match medium.take_input() {
                Ok(TowerInput::Patches(patches)) => together.add_image(number, patches),
                Ok(TowerInput::Features(features)) => {
                    let tower = self.sounds.as_ref();
                    let num_states = tower.map_or(0, |tower| tower.num_states(&features));
                    together.add_sound(number, features, num_states);
                }
                Err(error) => {
                    let zeros = self.zeros(device, medium.form())?;
                    self.cache.insert(number, zeros);
                    medium.lose(error);
                }
            }
        }
        Ok(together)
    }

    fn encode_together(&mut self, device: &Device, all: Together) -> Result<(), EngineError> {
        let Together { numbers: [of_images, of_sounds], images, sounds, .. } = all;
        let tables = self.source.as_ref().and_then(|source| source.numbers.as_deref());
        let mut rows = Vec::new();
        if let (Some(tower), Some(tables)) = (&mut self.images, tables)
            && !images.is_empty()
        {
            rows.extend(tower.encode(device, &images, tables)?);
        }
        if let Some(tower) = &mut self.sounds
            && !sounds.is_empty()
        {
            rows.extend(tower.encode(device, &sounds)?);
        }
        assert_eq!(rows.len(), images.len() + sounds.len(), "a medium has a tower of its kind");
        self.num_encoded += rows.len() as u64;
        let numbers = of_images.into_iter().chain(of_sounds);
        numbers.zip(rows).for_each(|(number, rows)| self.cache.insert(number, rows));
        Ok(())
    }

    /// Zeros in the place of what a medium would be.
    fn zeros(&self, device: &Device, form: MediaForm) -> Result<Tensor, EngineError> {
        match (form, &self.images, &self.sounds) {
            (MediaForm::Image(layout), Some(tower), _) => tower.zeros(device, layout),
            (MediaForm::Sound(sound), _, Some(tower)) => tower.zeros(device, sound.num_rows),
            _ => unreachable!("a medium has a tower of its kind"),
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
    pub(crate) fn rows_of<'a>(&'a self, batch: &'a Batch) -> Vec<GivenRows<'a>> {
        let given = |media: &'a MediaRows| {
            let (rows, num_kinds) = (self.cache.rows(media.medium), self.num_kinds(media.medium));
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

    /// Rows of each token of a medium.
    fn num_kinds(&self, medium: u64) -> usize {
        let medium = self.source.as_ref().and_then(|source| source.table.get(medium));
        match medium.map(|medium| medium.form()) {
            Some(MediaForm::Sound(_)) => 1,
            _ => self.images.as_ref().map_or(1, Tower::rows_per_token),
        }
    }
}

impl Together {
    fn is_empty(&self) -> bool {
        self.images.is_empty() && self.sounds.is_empty()
    }

    fn add_image(&mut self, number: u64, patches: Patches) {
        self.num_patches += patches.layout.num_patches();
        self.numbers[0].push(number);
        self.images.push(patches);
    }

    fn add_sound(&mut self, number: u64, features: Features, num_states: usize) {
        self.num_states += num_states;
        self.numbers[1].push(number);
        self.sounds.push(features);
    }
}
