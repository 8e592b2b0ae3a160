//! `MediaTable`: the media of requests that are under way, each once. Knows no request and no step.
//!
//! Each token of a medium has an id of its own above every vocabulary, so that the prefix cache
//! compares media as it compares tokens. Ids are the low bits of numbers that never come again;
//! the bits above them are an epoch, and requests of different epochs share no prefix.

mod ahead;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ahead::Decoders;
use vllm_batch_checkpoint::spec::SoundShape;
use vllm_batch_media::{
    Company, Features, Header, ImageProcessor, Layout, MediaError, MediaId, MediaKind, Medium,
    Patches, SoundProcessor,
};

/// The least id of a token of a medium.
pub const FIRST_ID: u32 = 1 << 31;
/// Ids of an epoch.
const NUM_IDS: u64 = 1 << 31;

/// Identities that are remembered after their requests, for prefixes that come again.
const MAX_KNOWN: usize = 1 << 20;

/// From decoded media to what towers read, as one model wants it.
#[derive(Clone, Debug, Default)]
pub struct Processors {
    /// Of images; None: the model sees nothing.
    pub images: Option<ImageProcessor>,
    /// Of sounds; None: it hears nothing.
    pub sounds: Option<SoundReader>,
}

/// From sounds to frames, and how many tokens each has.
#[derive(Clone, Debug)]
pub struct SoundReader {
    /// From samples to frames.
    pub processor: SoundProcessor,
    /// States and tokens of a sound.
    pub shape: SoundShape,
    /// Positions that the states of every sound have, where these are no tokens of a prompt
    /// (Whisper).
    pub num_positions: Option<usize>,
}

/// What a sound is in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundForm {
    /// Placeholders.
    pub num_tokens: usize,
    /// Rows that the tower gives.
    pub num_rows: usize,
}

impl SoundReader {
    /// What a sound of so many samples at the processor's rate is.
    fn form(&self, num_samples: u64) -> Result<SoundForm, MediaError> {
        self.processor.check(num_samples)?;
        let num_tokens = self.shape.num_tokens(self.processor.num_heard(num_samples));
        match self.num_positions {
            Some(num_positions) => {
                Ok(SoundForm { num_tokens: num_positions, num_rows: num_tokens })
            }
            None if num_tokens == 0 => Err(MediaError::Unsupported(format!(
                "it has {:.3} seconds, which the model does not hear; help: leave it out",
                num_samples as f64 / f64::from(self.processor.rate())
            ))),
            None => Ok(SoundForm { num_tokens, num_rows: num_tokens }),
        }
    }

    /// Bytes of the frames of such a sound.
    fn num_bytes(&self, num_samples: u64) -> usize {
        let Self { processor, .. } = self;
        processor.num_filled(num_samples) * processor.num_mels() * size_of::<f32>()
    }
}

/// What a medium becomes in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaForm {
    /// An image: tiles, patches and tokens.
    Image(Layout),
    /// A sound.
    Sound(SoundForm),
}

/// What a tower reads of a medium.
#[derive(Clone, Debug)]
pub enum TowerInput {
    /// Of an image.
    Patches(Patches),
    /// Of a sound.
    Features(Features),
}

impl Processors {
    /// Of a model that sees, and hears nothing.
    pub fn of_images(images: ImageProcessor) -> Self {
        Self { images: Some(images), sounds: None }
    }
}

impl MediaForm {
    /// Whether it is a sound.
    pub fn is_sound(&self) -> bool {
        matches!(self, Self::Sound(_))
    }

    /// Placeholders in a prompt.
    pub fn num_tokens(&self) -> usize {
        match self {
            Self::Image(layout) => layout.num_tokens(),
            Self::Sound(sound) => sound.num_tokens,
        }
    }

    /// How an image is cut.
    ///
    /// # Panics
    /// It is none.
    pub fn layout(&self) -> Layout {
        match self {
            Self::Image(layout) => *layout,
            Self::Sound(_) => unreachable!("images alone are cut"),
        }
    }
}

impl TowerInput {
    /// Of an image.
    ///
    /// # Panics
    /// It is none.
    pub fn patches(self) -> Patches {
        match self {
            Self::Patches(patches) => patches,
            Self::Features(_) => unreachable!("images alone have patches"),
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Patches(patches) => patches.num_bytes(),
            Self::Features(features) => size_of_val(&features.values[..]),
        }
    }
}

/// The media of requests that are under way. Shared by the threads that read rows and by engines.
#[derive(Debug)]
pub struct MediaTable {
    processors: Processors,
    max_input_bytes: usize,
    table_token: Option<u32>,
    state: Mutex<State>,
    decoders: Decoders,
    /// Prompts that were numbered.
    num_prompts: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next medium's first token.
    next: u64,
    /// Media of this epoch.
    known: HashMap<Key, Known>,
    under_way: HashMap<u64, Weak<TableMedium>>,
    /// Bytes that wait for a tower.
    input_bytes: usize,
}

/// A medium, and what it is among those of its prompt, where that changes how it is cut.
type Key = (MediaId, Company);

#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    /// Its pixels could be decoded.
    is_sound: bool,
}

/// A medium of requests that are under way.
#[derive(Debug)]
pub struct TableMedium {
    number: u64,
    form: MediaForm,
    company: Company,
    medium: Arc<Medium>,
    /// Decoded already, where there was room.
    input: Mutex<Option<TowerInput>>,
    lost: OnceLock<MediaError>,
    table: Arc<MediaTable>,
}

impl MediaTable {
    /// An empty table. What waits for a tower takes `max_input_bytes` at most; that of further
    /// media is made once more.
    pub fn new(processors: Processors, max_input_bytes: usize) -> Self {
        let (table_token, state, decoders, num_prompts) = Default::default();
        Self { processors, max_input_bytes, table_token, state, decoders, num_prompts }
    }

    /// The same, where tokens of images have the rows of this one in tables by token.
    pub fn with_table_token(self, id: Option<u32>) -> Self {
        Self { table_token: id, ..self }
    }

    /// From decoded media to what towers read, and from headers to sizes.
    pub fn processors(&self) -> &Processors {
        &self.processors
    }

    /// Numbers of the media of one request, all of one epoch. Each is decoded once, to know that it
    /// can be.
    ///
    /// # Errors
    /// The index of a medium that cannot be used, and why.
    pub fn place(
        self: &Arc<Self>,
        media: &[Arc<Medium>],
    ) -> Result<Vec<Arc<TableMedium>>, (usize, MediaError)> {
        let forms = self.forms(media);
        let forms = forms.enumerate().map(|(at, form)| form.map_err(|error| (at, error)));
        let forms: Vec<_> = forms.collect::<Result<_, _>>()?;
        let placed = self.numbered(media, &forms);
        for (at, (medium, is_sound)) in placed.iter().enumerate() {
            if !is_sound {
                medium.decode_once().map_err(|error| (at, error))?;
            }
        }
        Ok(placed.into_iter().map(|(medium, _)| medium).collect())
    }

    /// Begins to decode media of a request that comes soon, on threads of their own. It is of use
    /// while what is returned is kept. Those that cannot be used are left to [`Self::place`].
    pub fn decode_ahead(self: &Arc<Self>, media: &[Arc<Medium>]) -> Vec<Arc<TableMedium>> {
        let Ok(forms) = self.forms(media).collect::<Result<Vec<_>, _>>() else {
            return Vec::new();
        };
        let placed = self.numbered(media, &forms);
        for (medium, is_sound) in &placed {
            if !is_sound {
                self.decoders.ask(medium);
            }
        }
        placed.into_iter().map(|(medium, _)| medium).collect()
    }

    /// Those of the media of one request.
    fn forms(&self, media: &[Arc<Medium>]) -> impl Iterator<Item = Result<MediaForm, MediaError>> {
        let company = self.company(media);
        media.iter().map(move |medium| self.form(medium.header(), company))
    }

    fn form(&self, header: &Header, company: Company) -> Result<MediaForm, MediaError> {
        let Processors { images, sounds } = &self.processors;
        match header {
            Header::Image(header) => {
                let images = images.as_ref().ok_or_else(|| unread("image"))?;
                images.tokens(header, company).map(MediaForm::Image)
            }
            Header::Sound(header) => {
                let sounds = sounds.as_ref().ok_or_else(|| unread("recording"))?;
                sounds.form(header.num_samples_at(sounds.processor.rate())).map(MediaForm::Sound)
            }
        }
    }

    /// What the images of a prompt are among each other.
    fn company(&self, media: &[Arc<Medium>]) -> Company {
        let images = media.iter().filter(|medium| medium.kind() == MediaKind::Image);
        let processor = self.processors.images.as_ref();
        processor.map_or(Company::None, |processor| processor.company(images.count()))
    }

    /// The media with their numbers, and whether each could be decoded before.
    fn numbered(
        self: &Arc<Self>,
        media: &[Arc<Medium>],
        forms: &[MediaForm],
    ) -> Vec<(Arc<TableMedium>, bool)> {
        let company = self.company(media);
        let mut state = self.state();
        // At the most: an epoch holds all media of a request.
        let num_tokens: u64 = forms.iter().map(|form| form.num_tokens() as u64).sum();
        if state.next % NUM_IDS + num_tokens > NUM_IDS {
            state.next = state.next.next_multiple_of(NUM_IDS);
            state.known.clear();
        }
        if state.known.len() >= MAX_KNOWN {
            state.known.clear();
        }
        let placed = media.iter().zip(forms).map(|(medium, form)| {
            let key = (medium.id(), company);
            let known = state.known.get(&key).copied().unwrap_or_else(|| {
                let known = Known { number: state.next, is_sound: false };
                state.next += form.num_tokens() as u64;
                state.known.insert(key, known);
                known
            });
            let under_way = state.under_way.get(&known.number).and_then(Weak::upgrade);
            let placed = under_way.unwrap_or_else(|| {
                let placed = Arc::new(TableMedium {
                    number: known.number,
                    form: *form,
                    company,
                    medium: Arc::clone(medium),
                    input: Mutex::default(),
                    lost: OnceLock::new(),
                    table: Arc::clone(self),
                });
                state.under_way.insert(known.number, Arc::downgrade(&placed));
                placed
            });
            (placed, known.is_sound)
        });
        placed.collect()
    }

    /// A number that no prompt had before.
    pub fn next_prompt(&self) -> u64 {
        self.num_prompts.fetch_add(1, Ordering::Relaxed)
    }

    /// The medium of a number, while a request has it.
    pub fn get(&self, number: u64) -> Option<Arc<TableMedium>> {
        self.state().under_way.get(&number).and_then(Weak::upgrade)
    }

    #[cfg(test)]
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        self.state().next = epoch * NUM_IDS;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableMedium {
    /// The number of its first token. No other token of the table ever has it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The token whose rows of tables its tokens have; None: those of the placeholder.
    pub fn table_token(&self) -> Option<u32> {
        self.table.table_token
    }

    /// What it becomes in a prompt.
    pub fn form(&self) -> MediaForm {
        self.form
    }

    /// Id of its first token, above every vocabulary. Those of the others follow it.
    pub fn first_token_id(&self) -> u32 {
        FIRST_ID + (self.number % NUM_IDS) as u32
    }

    /// Requests of different epochs may share ids, and nothing else.
    pub fn epoch(&self) -> u32 {
        (self.number / NUM_IDS) as u32
    }

    /// What its tower reads. It is not kept.
    ///
    /// # Errors
    /// The bytes cannot be read again, or have changed.
    pub fn take_input(&self) -> Result<TowerInput, MediaError> {
        match self.take() {
            Some(input) => Ok(input),
            None => self.decode(),
        }
    }

    /// Says that it cannot be read again. Requests that have it fail, and its number, whose cached
    /// tokens are no image's, does not come again.
    pub fn lose(&self, error: MediaError) {
        let mut state = self.table.state();
        if state.known.get(&self.key()).is_some_and(|known| known.number == self.number) {
            state.known.remove(&self.key());
        }
        drop(state);
        self.lost.get_or_init(|| error);
    }

    /// Why it could not be read again, if it could not.
    pub fn lost(&self) -> Option<&MediaError> {
        self.lost.get()
    }

    fn decode(&self) -> Result<TowerInput, MediaError> {
        let Processors { images, sounds } = &self.table.processors;
        match (self.form, images, sounds) {
            (MediaForm::Image(_), Some(images), _) => {
                images.patches(&self.medium.decode_image()?, self.company).map(TowerInput::Patches)
            }
            (MediaForm::Sound(_), _, Some(sounds)) => {
                sounds.processor.features(&self.medium.decode_sound()?).map(TowerInput::Features)
            }
            _ => unreachable!("it has a form of its processor"),
        }
    }

    fn key(&self) -> Key {
        (self.medium.id(), self.company)
    }

    /// Bytes of its pixels or samples.
    fn num_decoded_bytes(&self) -> u64 {
        match self.medium.header() {
            Header::Image(header) => 3 * u64::from(header.width) * u64::from(header.height),
            Header::Sound(header) => size_of::<f32>() as u64 * header.num_samples,
        }
    }

    /// What its tower reads may wait for it.
    fn has_room(&self) -> bool {
        let Processors { images, sounds } = &self.table.processors;
        let of_images = |layout| images.as_ref().map_or(0, |images| images.num_patch_bytes(layout));
        let needed = match (self.form, self.medium.header()) {
            (MediaForm::Image(layout), _) => of_images(layout),
            (MediaForm::Sound(_), Header::Sound(header)) => sounds.as_ref().map_or(0, |sounds| {
                sounds.num_bytes(header.num_samples_at(sounds.processor.rate()))
            }),
            (MediaForm::Sound(_), Header::Image(_)) => 0,
        };
        self.table.state().input_bytes + needed <= self.table.max_input_bytes
    }

    fn is_sound(&self) -> bool {
        let state = self.table.state();
        let known = state.known.get(&self.key());
        known.is_some_and(|known| known.number == self.number && known.is_sound)
    }

    fn decode_once(&self) -> Result<(), MediaError> {
        // Held meanwhile, so that others who need it wait.
        let mut kept = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_sound() {
            return Ok(());
        }
        let input = self.decode()?;
        let num_bytes = input.num_bytes();
        let mut state = self.table.state();
        if let Some(known) = state.known.get_mut(&self.key()) {
            known.is_sound = true;
        }
        if kept.is_none() && state.input_bytes + num_bytes <= self.table.max_input_bytes {
            state.input_bytes += num_bytes;
            *kept = Some(input);
        }
        Ok(())
    }

    fn take(&self) -> Option<TowerInput> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.table.state().input_bytes -= input.num_bytes();
        Some(input)
    }
}

fn unread(what: &str) -> MediaError {
    MediaError::Unsupported(format!("the model takes no {what}"))
}

impl Drop for TableMedium {
    fn drop(&mut self) {
        self.take();
        let mut state = self.table.state();
        // Another may have come in its place.
        if state.under_way.get(&self.number).is_some_and(|other| other.strong_count() == 0) {
            state.under_way.remove(&self.number);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
