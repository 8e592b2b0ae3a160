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
use vllm_batch_media::{
    Company, Header, ImageHeader, ImageProcessor, Layout, MediaError, MediaId, Medium, Patches,
};

/// The least id of a token of a medium.
pub const FIRST_ID: u32 = 1 << 31;
/// Ids of an epoch.
const NUM_IDS: u64 = 1 << 31;

/// Identities that are remembered after their requests, for prefixes that come again.
const MAX_KNOWN: usize = 1 << 20;

/// The media of requests that are under way. Shared by the threads that read rows and by engines.
#[derive(Debug)]
pub struct MediaTable {
    processor: ImageProcessor,
    max_patch_bytes: usize,
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
    /// Bytes of patches that wait for a tower.
    patch_bytes: usize,
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
    layout: Layout,
    company: Company,
    medium: Arc<Medium>,
    /// Decoded already, where there was room.
    patches: Mutex<Option<Patches>>,
    lost: OnceLock<MediaError>,
    table: Arc<MediaTable>,
}

impl MediaTable {
    /// An empty table. Patches that wait for a tower take `max_patch_bytes` at most; those of
    /// further images are made once more.
    pub fn new(processor: ImageProcessor, max_patch_bytes: usize) -> Self {
        let (table_token, state, decoders, num_prompts) = Default::default();
        Self { processor, max_patch_bytes, table_token, state, decoders, num_prompts }
    }

    /// The same, where tokens of images have the rows of this one in tables by token.
    pub fn with_table_token(self, id: Option<u32>) -> Self {
        Self { table_token: id, ..self }
    }

    /// From decoded images to patches, and from headers to sizes.
    pub fn processor(&self) -> &ImageProcessor {
        &self.processor
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
        let layouts = self.layouts(media);
        let layouts = layouts.enumerate().map(|(at, layout)| layout.map_err(|error| (at, error)));
        let layouts: Vec<_> = layouts.collect::<Result<_, _>>()?;
        let placed = self.numbered(media, &layouts);
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
        let Ok(layouts) = self.layouts(media).collect::<Result<Vec<_>, _>>() else {
            return Vec::new();
        };
        let placed = self.numbered(media, &layouts);
        for (medium, is_sound) in &placed {
            if !is_sound {
                self.decoders.ask(medium);
            }
        }
        placed.into_iter().map(|(medium, _)| medium).collect()
    }

    /// Those of the media of one request.
    fn layouts(&self, media: &[Arc<Medium>]) -> impl Iterator<Item = Result<Layout, MediaError>> {
        let company = self.processor.company(media.len());
        media.iter().map(move |medium| match medium.header() {
            Header::Image(header) => self.processor.tokens(header, company),
            Header::Sound(_) => {
                Err(MediaError::Unsupported("the model sees, and does not hear".to_owned()))
            }
        })
    }

    /// The media with their numbers, and whether each could be decoded before.
    fn numbered(
        self: &Arc<Self>,
        media: &[Arc<Medium>],
        layouts: &[Layout],
    ) -> Vec<(Arc<TableMedium>, bool)> {
        let company = self.processor.company(media.len());
        let mut state = self.state();
        // At the most: an epoch holds all media of a request.
        let num_tokens: u64 = layouts.iter().map(|layout| layout.num_tokens() as u64).sum();
        if state.next % NUM_IDS + num_tokens > NUM_IDS {
            state.next = state.next.next_multiple_of(NUM_IDS);
            state.known.clear();
        }
        if state.known.len() >= MAX_KNOWN {
            state.known.clear();
        }
        let placed = media.iter().zip(layouts).map(|(medium, layout)| {
            let key = (medium.id(), company);
            let known = state.known.get(&key).copied().unwrap_or_else(|| {
                let known = Known { number: state.next, is_sound: false };
                state.next += layout.num_tokens() as u64;
                state.known.insert(key, known);
                known
            });
            let under_way = state.under_way.get(&known.number).and_then(Weak::upgrade);
            let placed = under_way.unwrap_or_else(|| {
                let placed = Arc::new(TableMedium {
                    number: known.number,
                    layout: *layout,
                    company,
                    medium: Arc::clone(medium),
                    patches: Mutex::default(),
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

    /// How many tiles, patches and tokens it becomes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Id of its first token, above every vocabulary. Those of the others follow it.
    pub fn first_token_id(&self) -> u32 {
        FIRST_ID + (self.number % NUM_IDS) as u32
    }

    /// Requests of different epochs may share ids, and nothing else.
    pub fn epoch(&self) -> u32 {
        (self.number / NUM_IDS) as u32
    }

    /// Its patches, for the tower. They are not kept.
    ///
    /// # Errors
    /// The bytes cannot be read again, or have changed.
    pub fn take_patches(&self) -> Result<Patches, MediaError> {
        match self.take() {
            Some(patches) => Ok(patches),
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

    fn decode(&self) -> Result<Patches, MediaError> {
        self.table.processor.patches(&self.medium.decode_image()?, self.company)
    }

    fn key(&self) -> Key {
        (self.medium.id(), self.company)
    }

    /// Bytes of its pixels.
    fn num_decoded_bytes(&self) -> u64 {
        let pixels = |header: &ImageHeader| u64::from(header.width) * u64::from(header.height);
        3 * self.medium.header().image().map_or(0, pixels)
    }

    /// Its patches may wait for a tower.
    fn has_room(&self) -> bool {
        let needed = self.table.processor.num_patch_bytes(self.layout);
        self.table.state().patch_bytes + needed <= self.table.max_patch_bytes
    }

    fn is_sound(&self) -> bool {
        let state = self.table.state();
        let known = state.known.get(&self.key());
        known.is_some_and(|known| known.number == self.number && known.is_sound)
    }

    fn decode_once(&self) -> Result<(), MediaError> {
        // Held meanwhile, so that others who need it wait.
        let mut kept = self.patches.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_sound() {
            return Ok(());
        }
        let patches = self.decode()?;
        let num_bytes = patches.num_bytes();
        let mut state = self.table.state();
        if let Some(known) = state.known.get_mut(&self.key()) {
            known.is_sound = true;
        }
        if kept.is_none() && state.patch_bytes + num_bytes <= self.table.max_patch_bytes {
            state.patch_bytes += num_bytes;
            *kept = Some(patches);
        }
        Ok(())
    }

    fn take(&self) -> Option<Patches> {
        let patches = self.patches.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.table.state().patch_bytes -= patches.num_bytes();
        Some(patches)
    }
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
