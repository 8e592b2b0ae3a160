//! `Ahead`: images at URLs of rows that come next, fetched on threads while the rows before them
//! are read. What is fetched does not depend on it: whoever needs an image waits for it, or fetches
//! it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Fault;
use super::urls::{Failure, Fetcher};
use vllm_batch_base::machine;
use vllm_batch_media::Limits;

/// Threads that fetch.
const NUM_THREADS: usize = 16;

/// Bytes of the largest image that is fetched ahead. A larger one waits for its row.
const MAX_IMAGE: u64 = 16 << 20;

/// Bytes that may wait for their rows before no more is asked for.
const MAX_WAITING: usize = 256 << 20;

/// An image that rows ahead need.
struct Slot {
    /// How often rows that were not read need it.
    num_rows: usize,
    state: State,
}

enum State {
    /// Nobody has begun.
    Queued,
    Running,
    Done(Result<Arc<Vec<u8>>, Failure>),
}

#[derive(Default)]
struct Shared {
    slots: Mutex<HashMap<String, Slot>>,
    /// A slot has another state, or is gone.
    changed: Condvar,
}

/// Images of rows that come next.
pub(super) struct Ahead {
    fetcher: Arc<Fetcher>,
    shared: Arc<Shared>,
    /// Where threads take from what is asked for. None: no thread was needed so far.
    queue: Option<Sender<String>>,
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ahead").field("fetcher", &self.fetcher).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches what nobody has begun, once there is room for it.
    fn run(&self, fetcher: &Fetcher, url: &str) {
        let mut slots = self.lock();
        loop {
            let is_full = num_waiting(&slots) >= MAX_WAITING;
            match slots.get_mut(url) {
                Some(Slot { state: State::Queued, .. }) if is_full => {}
                Some(slot) if matches!(slot.state, State::Queued) => {
                    slot.state = State::Running;
                    break;
                }
                // A row has taken it, or has no need of it any more.
                _ => return,
            }
            slots = self.changed.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
        drop(slots);
        let fetched = fetcher.fetch(url, MAX_IMAGE).map(Arc::new);
        if let Some(slot) = self.lock().get_mut(url) {
            slot.state = State::Done(fetched);
        }
        self.changed.notify_all();
    }
}

/// Bytes that wait for their rows.
fn num_waiting(slots: &HashMap<String, Slot>) -> usize {
    let done = |slot: &Slot| match &slot.state {
        State::Done(Ok(bytes)) => bytes.len(),
        _ => 0,
    };
    slots.values().map(done).sum()
}

impl Ahead {
    pub(super) fn new(fetcher: Fetcher) -> Self {
        Self { fetcher: Arc::new(fetcher), shared: Arc::default(), queue: None }
    }

    /// Who asks.
    pub(super) fn fetcher(&self) -> &Arc<Fetcher> {
        &self.fetcher
    }

    /// Whether more may be asked for.
    pub(super) fn has_room(&self) -> bool {
        num_waiting(&self.shared.lock()) < MAX_WAITING
    }

    /// Asks for an image that a row will need.
    pub(super) fn ask(&mut self, url: &str) {
        let mut slots = self.shared.lock();
        if let Some(slot) = slots.get_mut(url) {
            slot.num_rows += 1;
            return;
        }
        slots.insert(url.to_owned(), Slot { num_rows: 1, state: State::Queued });
        drop(slots);
        let (fetcher, shared) = (&self.fetcher, &self.shared);
        let queue = self.queue.get_or_insert_with(|| start(fetcher, shared));
        // Without threads the row fetches it.
        let _ = queue.send(url.to_owned());
    }

    /// The image at a URL, for a row that is read now.
    pub(super) fn take(&self, url: &str) -> Result<Arc<Vec<u8>>, Fault> {
        let mut slots = self.shared.lock();
        let found = loop {
            let Some(slot) = slots.get_mut(url) else { break None };
            match &slot.state {
                State::Running => {
                    slots = self.shared.changed.wait(slots).unwrap_or_else(PoisonError::into_inner);
                }
                State::Queued => {
                    slot.state = State::Running;
                    break None;
                }
                State::Done(fetched) => break Some(fetched.clone()),
            }
        };
        drop(slots);
        let fetched = match found {
            Some(Err(Failure::More(_))) | None => {
                let fetched = self.fetcher.fetch(url, Limits::default().max_bytes).map(Arc::new);
                if let Some(slot) = self.shared.lock().get_mut(url) {
                    slot.state = State::Done(fetched.clone());
                }
                fetched
            }
            Some(fetched) => fetched,
        };
        fetched.map_err(|failure| failure.into_fault(url))
    }

    /// Forgets images of a row that was read, unless rows behind it need them.
    pub(super) fn release(&self, urls: &[String]) {
        let mut slots = self.shared.lock();
        for url in urls {
            let Some(slot) = slots.get_mut(url) else { continue };
            slot.num_rows -= 1;
            if slot.num_rows == 0 {
                slots.remove(url);
            }
        }
        drop(slots);
        self.shared.changed.notify_all();
    }
}

impl Drop for Ahead {
    /// Threads that wait for room have nothing to wait for.
    fn drop(&mut self) {
        self.shared.lock().clear();
        self.shared.changed.notify_all();
    }
}

/// Threads that fetch what is asked for until nobody asks any more.
fn start(fetcher: &Arc<Fetcher>, shared: &Arc<Shared>) -> Sender<String> {
    let (sender, receiver) = channel::<String>();
    let receiver: Arc<Mutex<Receiver<String>>> = Arc::new(Mutex::new(receiver));
    for _ in 0..NUM_THREADS {
        let (fetcher, shared) = (Arc::clone(fetcher), Arc::clone(shared));
        let receiver = Arc::clone(&receiver);
        machine::started(std::thread::Builder::new().spawn(move || {
            loop {
                let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(url) = next else { return };
                shared.run(&fetcher, &url);
            }
        }));
    }
    sender
}
