//! `Decoders`: threads that decode images of requests that come next. What becomes of an image does
//! not depend on them: whoever needs one that they have not begun decodes it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};

use vllm_batch_base::machine;

use super::TableMedium;

/// Threads at most.
const MAX_THREADS: usize = 16;

/// Bytes of pixels that are decoded at a time, unless a single image has more.
const MAX_DECODED: u64 = 512 << 20;

/// Where media are asked for. The threads begin with the first, and end with this.
#[derive(Debug, Default)]
pub(super) struct Decoders(OnceLock<Mutex<Sender<Weak<TableMedium>>>>);

/// Bytes of pixels that are decoded now.
#[derive(Debug, Default)]
struct Decoding {
    num_bytes: Mutex<u64>,
    is_less: Condvar,
}

impl Decoders {
    /// Asks for one. It is not decoded if nobody has it any more.
    pub(super) fn ask(&self, medium: &Arc<TableMedium>) {
        let queue = self.0.get_or_init(|| Mutex::new(start()));
        // Without threads whoever needs it decodes it.
        let _ = queue.lock().unwrap_or_else(PoisonError::into_inner).send(Arc::downgrade(medium));
    }
}

/// Half of the machine's threads: the others compute.
fn start() -> Sender<Weak<TableMedium>> {
    let (sender, receiver) = channel();
    let receiver: Arc<Mutex<Receiver<Weak<TableMedium>>>> = Arc::new(Mutex::new(receiver));
    let decoding = Arc::<Decoding>::default();
    let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..(num_cores / 2).clamp(1, MAX_THREADS) {
        let (receiver, decoding) = (Arc::clone(&receiver), Arc::clone(&decoding));
        let thread = std::thread::Builder::new().name("decoder".to_owned());
        machine::started(thread.spawn(move || {
            loop {
                let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(medium) = next else { return };
                if let Some(medium) = medium.upgrade() {
                    decoding.run(&medium);
                }
            }
        }));
    }
    sender
}

impl Decoding {
    /// Decodes a medium, once there is room for its pixels. Who needs it says what is wrong.
    fn run(&self, medium: &TableMedium) {
        if !medium.has_room() {
            return;
        }
        let needed = medium.num_decoded_bytes();
        let mut num_bytes = self.num_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        while *num_bytes > 0 && *num_bytes + needed > MAX_DECODED {
            num_bytes = self.is_less.wait(num_bytes).unwrap_or_else(PoisonError::into_inner);
        }
        *num_bytes += needed;
        drop(num_bytes);
        let _ = medium.decode_once();
        *self.num_bytes.lock().unwrap_or_else(PoisonError::into_inner) -= needed;
        self.is_less.notify_all();
    }
}
