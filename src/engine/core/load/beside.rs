//! Loading the tokenizer beside the model.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::worker::loading_thread;
use vllm_batch_base::EngineError;
use vllm_batch_base::machine::{has_address_limit, no_thread};
use vllm_batch_device::memory;

/// `beside`, where there may be a tokenizer already.
pub(crate) fn beside_tokenizer<A: Send, B>(
    known: Option<A>,
    tokenizer: &(dyn Fn() -> Result<A, EngineError> + Sync),
    model: impl FnOnce(&Arc<AtomicBool>) -> B,
) -> (Result<A, EngineError>, B) {
    match known {
        Some(known) => (Ok(known), model(&Arc::default())),
        None => beside(tokenizer, model),
    }
}

/// Runs `tokenizer` on a thread of its own while `model` runs on this one. `model` is told when
/// the other has failed: nobody waits for weights that will not be used.
fn beside<A: Send, B>(
    tokenizer: &(dyn Fn() -> Result<A, EngineError> + Sync),
    model: impl FnOnce(&Arc<AtomicBool>) -> B,
) -> (Result<A, EngineError>, B) {
    let given_up = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let run = || {
            let loaded = tokenizer();
            given_up.store(loaded.is_err(), Relaxed);
            loaded
        };
        let thread = match loading_thread("tokenizer".to_owned()).spawn_scoped(scope, run) {
            Ok(thread) => thread,
            Err(error) => {
                given_up.store(true, Relaxed);
                return (Err(no_thread(&error).into()), model(&given_up));
            }
        };
        let join = || thread.join().expect("a panic ends the process in its hook");
        // The KV cache takes a share of what is left. Where little is left, that may not depend on
        // which of the two is faster.
        let (tokenizer, model) = match has_address_limit() {
            true => (join(), model(&given_up)),
            false => {
                let model = model(&given_up);
                (join(), model)
            }
        };
        memory::release_freed();
        (tokenizer, model)
    })
}
