//! Which engine takes a request: the one with the least left to do, where a beginning that an
//! engine has seen counts as work done. Of numbers alone; no byte of a row depends on it.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use vllm_batch_api::request::LoraId;

/// Tokens of the shortest beginning that is remembered; each further one is twice as long.
const FIRST_PIECE: usize = 32;
/// How many tokens of imbalance a known token of a beginning is worth. Engines that have much to do
/// are seldom idle for it, so it is more than one.
const STICKINESS: i64 = 4;
/// Beginnings that are remembered. The oldest is forgotten first.
const MAX_BEGINNINGS: usize = 1 << 16;

/// Remembers who has seen which beginnings.
#[derive(Debug, Default)]
pub(super) struct Router {
    /// Of the hash of a beginning, a bit for each engine.
    seen_by: HashMap<u64, u64>,
    oldest: VecDeque<u64>,
}

/// What is known of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Tokens of its requests that are not finished.
    pub num_tokens: usize,
    /// It takes another request.
    pub has_room: bool,
}

impl Router {
    /// The engine that takes a request of these prompts, which it then has seen. None: there is no
    /// room anywhere.
    pub(super) fn place(
        &mut self,
        prompts: &[&[u32]],
        lora: Option<LoraId>,
        engines: &[Load],
    ) -> Option<usize> {
        let first = prompts.first().copied().unwrap_or_default();
        let beginnings = beginnings(first, lora);
        let known = |engine: usize| {
            let is_known = |hash| self.seen_by.get(hash).is_some_and(|by| by >> engine & 1 == 1);
            let known = beginnings.iter().filter(|(_, hash)| is_known(hash));
            known.map(|&(len, _)| len).max().unwrap_or(0)
        };
        let cost = |engine: usize| {
            let num_tokens = engines[engine].num_tokens as i64;
            (num_tokens - STICKINESS * known(engine) as i64, num_tokens, engine)
        };
        let with_room = (0..engines.len()).filter(|&engine| engines[engine].has_room);
        let engine = with_room.min_by_key(|&engine| cost(engine))?;
        for (_, hash) in beginnings {
            let oldest = &mut self.oldest;
            *self.seen_by.entry(hash).or_insert_with(|| {
                oldest.push_back(hash);
                0
            }) |= 1 << engine;
        }
        while self.oldest.len() > MAX_BEGINNINGS {
            let hash = self.oldest.pop_front().expect("there are many");
            self.seen_by.remove(&hash);
        }
        Some(engine)
    }
}

/// Lengths and hashes of a prompt's beginnings. What an adapter computes is its own.
fn beginnings(prompt: &[u32], lora: Option<LoraId>) -> Vec<(usize, u64)> {
    let mut hasher = DefaultHasher::new();
    lora.hash(&mut hasher);
    let (mut found, mut from, mut to) = (Vec::new(), 0, FIRST_PIECE);
    while to <= prompt.len() {
        prompt[from..to].hash(&mut hasher);
        found.push((to, hasher.finish()));
        (from, to) = (to, 2 * to);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(num_tokens: &[usize]) -> Vec<Load> {
        num_tokens.iter().map(|&num_tokens| Load { num_tokens, has_room: true }).collect()
    }

    fn prompt(of: u32, len: usize) -> Vec<u32> {
        vec![of; len]
    }

    #[test]
    fn the_engine_with_the_least_to_do_takes_what_none_has_seen() {
        let mut router = Router::default();
        assert_eq!(router.place(&[&prompt(1, 100)], None, &loads(&[30, 20, 20])), Some(1));
        assert_eq!(router.place(&[&prompt(2, 100)], None, &loads(&[0, 20, 20])), Some(0));
        assert_eq!(router.place(&[], None, &loads(&[9, 8])), Some(1));
    }

    #[test]
    fn rows_of_one_beginning_stay_together_until_the_imbalance_is_too_large() {
        let mut router = Router::default();
        let mut row = prompt(1, 64);
        row.extend([7; 20]);
        assert_eq!(router.place(&[&row], None, &loads(&[0, 0])), Some(0));
        let mut other = prompt(1, 64);
        other.extend([8; 20]);
        // Sixty-four tokens are known: worth 256.
        assert_eq!(router.place(&[&other], None, &loads(&[256, 0])), Some(1), "no longer");
        let mut router = Router::default();
        router.place(&[&row], None, &loads(&[0, 0]));
        assert_eq!(router.place(&[&other], None, &loads(&[255, 0])), Some(0));
        assert_eq!(router.place(&[&prompt(2, 84)], None, &loads(&[255, 0])), Some(1));
        // Another adapter has seen nothing of it.
        assert_eq!(router.place(&[&other], Some(LoraId(0)), &loads(&[100, 0])), Some(1));
    }

    #[test]
    fn the_longest_known_beginning_decides() {
        let mut router = Router::default();
        let shallow: Vec<u32> = prompt(1, 32).into_iter().chain(prompt(2, 96)).collect();
        let deep: Vec<u32> = prompt(1, 32).into_iter().chain(prompt(3, 96)).collect();
        assert_eq!(router.place(&[&shallow], None, &loads(&[0, 1])), Some(0));
        assert_eq!(router.place(&[&deep], None, &loads(&[999, 0])), Some(1));
        assert_eq!(router.place(&[&deep], None, &loads(&[0, 100])), Some(1));
        assert_eq!(router.place(&[&shallow], None, &loads(&[100, 0])), Some(0));
    }

    #[test]
    fn a_full_engine_takes_nothing() {
        let mut router = Router::default();
        let row = prompt(1, 64);
        router.place(&[&row], None, &loads(&[0, 5]));
        let mut engines = loads(&[0, 500]);
        engines[0].has_room = false;
        assert_eq!(router.place(&[&row], None, &engines), Some(1));
        engines[1].has_room = false;
        assert_eq!(router.place(&[&row], None, &engines), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut router = Router::default();
        for of in 0..2 * MAX_BEGINNINGS as u32 {
            router.place(&[&prompt(of, FIRST_PIECE)], None, &loads(&[0, 0]));
        }
        assert_eq!(router.seen_by.len(), MAX_BEGINNINGS);
        assert_eq!(router.oldest.len(), MAX_BEGINNINGS);
    }
}
