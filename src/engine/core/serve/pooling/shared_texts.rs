//! Texts that rows compare: each is computed once while it is known, whoever asks. A vector is a
//! function of its text, so what is kept here changes no byte.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::request::TextTokens;
use vllm_batch_api::pooling::{Pooled, PoolingParams};
use vllm_batch_api::request::LoraId;

/// Bytes of texts and vectors that are kept.
const MAX_BYTES: usize = 64 << 20;

/// What a vector is a function of, within a run. It holds no image.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct TextKey {
    ids: Vec<u32>,
    types: Vec<u32>,
    num_skipped: usize,
    /// The number of each run's medium, its first token, and its first position.
    media: Vec<(u64, u32, usize)>,
    lora: Option<LoraId>,
    dimensions: Option<usize>,
    use_activation: Option<bool>,
}

impl TextKey {
    pub(super) fn new(tokens: &TextTokens, lora: Option<LoraId>, params: &PoolingParams) -> Self {
        let TextTokens { ids, media, types, num_skipped } = tokens;
        let runs = media.iter();
        let runs = runs.map(|run| (run.medium.number(), run.first_token, run.positions.start));
        Self {
            ids: ids.clone(),
            types: types.clone(),
            num_skipped: *num_skipped,
            media: runs.collect(),
            lora,
            dimensions: params.dimensions,
            use_activation: params.use_activation,
        }
    }
}

/// A place for a vector: the number of a request, and which of its texts.
pub(super) type Reader = (u64, usize);

/// What is known of texts.
#[derive(Debug)]
pub(super) struct SharedTexts {
    known: HashMap<Arc<TextKey>, State>,
    /// Those with a vector, the oldest first.
    computed: VecDeque<Arc<TextKey>>,
    num_bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
enum State {
    /// It will be computed, for these.
    Waiting(Vec<Reader>),
    Computed(Arc<Pooled>),
}

/// What becomes of a text that is asked for.
pub(super) enum Known {
    /// Its vector is there.
    Computed(Arc<Pooled>),
    /// It waits already; the reader will be among those of its vector.
    Waits,
    /// It is not known: the caller computes it.
    No,
}

impl Default for SharedTexts {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl SharedTexts {
    fn new(max_bytes: usize) -> Self {
        Self { known: HashMap::new(), computed: VecDeque::new(), num_bytes: 0, max_bytes }
    }

    /// Asks for the vector of a text.
    pub(super) fn ask(&mut self, key: &Arc<TextKey>, reader: Reader) -> Known {
        match self.known.get_mut(key) {
            Some(State::Computed(vector)) => Known::Computed(Arc::clone(vector)),
            Some(State::Waiting(readers)) => {
                readers.push(reader);
                Known::Waits
            }
            None => {
                self.known.insert(Arc::clone(key), State::Waiting(vec![reader]));
                Known::No
            }
        }
    }

    /// A request is gone: texts that nobody else waits for are forgotten.
    pub(super) fn leave(&mut self, request_id: u64) {
        self.known.retain(|_, state| match state {
            State::Computed(_) => true,
            State::Waiting(readers) => {
                readers.retain(|(reader, _)| *reader != request_id);
                !readers.is_empty()
            }
        });
    }

    /// Whether a text is there, or somebody waits for it.
    pub(super) fn is_known(&self, key: &TextKey) -> bool {
        self.known.contains_key(key)
    }

    /// Forgets a text that has no vector. Returns who waits for it.
    ///
    /// # Panics
    /// Nobody asked for it.
    pub(super) fn failed(&mut self, key: &Arc<TextKey>) -> Vec<Reader> {
        match self.known.remove(key) {
            Some(State::Waiting(readers)) => readers,
            _ => panic!("a text fails for those who asked"),
        }
    }

    /// Keeps a vector, and forgets the oldest ones that there is no room for. Returns who waits for
    /// it.
    ///
    /// # Panics
    /// Nobody asked for it.
    pub(super) fn computed(&mut self, key: &Arc<TextKey>, vector: Arc<Pooled>) -> Vec<Reader> {
        self.num_bytes += num_bytes(key, &vector);
        self.computed.push_back(Arc::clone(key));
        let before = self.known.insert(Arc::clone(key), State::Computed(vector));
        while self.num_bytes > self.max_bytes
            && let Some(oldest) = self.computed.pop_front()
        {
            if let Some(State::Computed(vector)) = self.known.remove(&oldest) {
                self.num_bytes -= num_bytes(&oldest, &vector);
            }
        }
        match before {
            Some(State::Waiting(readers)) => readers,
            _ => panic!("a text is computed once, for those who asked"),
        }
    }
}

/// With what the tables take for an entry, about.
fn num_bytes(key: &TextKey, pooled: &Pooled) -> usize {
    4 * (key.ids.len() + pooled.values().count()) + 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(token: u32) -> Arc<TextKey> {
        key_of(token, None)
    }

    fn key_of(token: u32, dimensions: Option<usize>) -> Arc<TextKey> {
        let params = PoolingParams { dimensions, ..PoolingParams::default() };
        Arc::new(TextKey::new(&vec![token].into(), None, &params))
    }

    fn number(value: f32) -> Arc<Pooled> {
        Arc::new(Pooled::Vector(vec![value]))
    }

    #[test]
    fn a_text_is_computed_once_for_all_who_ask() {
        let mut texts = SharedTexts::default();
        let cut = key_of(7, Some(1));
        let of_lora = Some(LoraId(0));
        let adapted = Arc::new(TextKey::new(&vec![7].into(), of_lora, &PoolingParams::default()));
        assert!(matches!(texts.ask(&key(7), (1, 0)), Known::No));
        assert!(matches!(texts.ask(&key(7), (2, 3)), Known::Waits));
        assert!(matches!(texts.ask(&cut, (3, 0)), Known::No));
        assert!(matches!(texts.ask(&adapted, (5, 0)), Known::No));
        assert_eq!(texts.computed(&key(7), number(0.5)), [(1, 0), (2, 3)]);
        let Known::Computed(vector) = texts.ask(&key(7), (4, 0)) else { panic!() };
        assert_eq!(vector, number(0.5));
    }

    #[test]
    fn a_text_is_forgotten_when_the_last_who_waits_leaves() {
        let mut texts = SharedTexts::default();
        for reader in [(1, 0), (2, 0), (1, 1)] {
            texts.ask(&key(7), reader);
        }
        texts.ask(&key(8), (3, 0));
        texts.computed(&key(8), number(0.5));
        texts.leave(1);
        texts.leave(3);
        assert!(texts.is_known(&key(7)) && texts.is_known(&key(8)));
        texts.leave(2);
        assert!(!texts.is_known(&key(7)));
        assert!(matches!(texts.ask(&key(7), (4, 0)), Known::No));
    }

    #[test]
    fn the_oldest_vectors_make_room() {
        let mut texts = SharedTexts::new(3 * num_bytes(&key(0), &number(0.0)));
        for token in 0..5 {
            texts.ask(&key(token), (0, 0));
            texts.computed(&key(token), number(0.0));
            // Of five there is room for three.
            assert!(texts.known.len() <= 3 && texts.computed.len() <= 3);
        }
        assert!(matches!(texts.ask(&key(4), (0, 0)), Known::Computed(_)));
        assert!(matches!(texts.ask(&key(1), (0, 0)), Known::No));
        // What waits is never forgotten.
        for token in 10..20 {
            texts.ask(&key(token), (0, 0));
            texts.computed(&key(token), number(0.0));
        }
        assert_eq!(texts.computed(&key(1), number(0.0)), [(0, 0)]);
    }
}
