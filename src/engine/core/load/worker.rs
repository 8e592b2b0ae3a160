//! `Worker`: a thread that loads something which stays there, and then takes orders.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use vllm_batch_base::EngineError;
use vllm_batch_base::machine::no_thread;

/// Stack of a thread that loads: as much as the main thread has.
const LOADING_STACK: usize = 8 << 20;

/// A thread that is given orders `O` once it has loaded, of which it says `L`, or why it has not.
/// Dropped, it gets no further ones, and is waited for.
pub(crate) struct Worker<O, L, E = EngineError> {
    orders: Option<Sender<O>>,
    /// Locked, since threads share what has workers.
    loaded: Mutex<Receiver<Result<L, E>>>,
    thread: Option<JoinHandle<()>>,
}

impl<O, L, E> Worker<O, L, E>
where
    O: Send + 'static,
    L: Send + 'static,
    E: From<EngineError> + Send + 'static,
{
    /// Begins to load, what stays on the thread too, which `serve` is then given. That returns when
    /// nobody gives orders any more, or it cannot go on.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start<S>(
        name: String,
        load: impl FnOnce() -> Result<(L, S), E> + Send + 'static,
        serve: impl FnOnce(S, &Receiver<O>) + Send + 'static,
    ) -> Result<Self, EngineError> {
        let (orders, incoming) = channel();
        let (loaded_sender, loaded) = channel();
        let run = move || match load() {
            Err(error) => drop(loaded_sender.send(Err(error))),
            Ok((what, stays)) => {
                if loaded_sender.send(Ok(what)).is_ok() {
                    serve(stays, &incoming);
                }
            }
        };
        let thread = loading_thread(name).spawn(run).map_err(|error| no_thread(&error))?;
        Ok(Self { orders: Some(orders), loaded: Mutex::new(loaded), thread: Some(thread) })
    }

    /// Where it takes orders. One that an ended thread gets is lost.
    pub(crate) fn orders(&self) -> &Sender<O> {
        self.orders.as_ref().expect("it is there until the drop")
    }

    /// Waits until it is loaded; to be asked once.
    ///
    /// # Errors
    /// It cannot be.
    pub(crate) fn loaded(&self) -> Result<L, E> {
        let ended = || EngineError::Device("its thread has ended while it loaded".to_owned());
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.recv().unwrap_or_else(|_| Err(ended().into()))
    }

    /// Whether its thread has ended, which only a failure makes it do.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl<O, L, E> Drop for Worker<O, L, E> {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// A thread that loads something.
pub(super) fn loading_thread(name: String) -> Builder {
    Builder::new().name(name).stack_size(LOADING_STACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(worker: &Worker<u32, (), EngineError>) -> String {
        let error = worker.loaded().unwrap_err().to_string();
        while !worker.has_ended() {
            std::thread::yield_now();
        }
        assert!(worker.orders().send(1).is_err(), "nobody takes it");
        error
    }

    #[test]
    fn one_that_is_dropped_has_served_all_orders() {
        let (served, sum) = channel();
        let serve = move |first: u32, incoming: &Receiver<u32>| {
            served.send(first + incoming.iter().sum::<u32>()).unwrap();
        };
        let load = || Ok(("loaded", 7));
        let worker = Worker::<_, _>::start("adds".to_owned(), load, serve).unwrap();
        assert_eq!(worker.loaded().unwrap(), "loaded");
        [1, 2, 3].into_iter().for_each(|order| worker.orders().send(order).unwrap());
        assert!(!worker.has_ended());
        drop(worker);
        assert_eq!(sum.try_recv(), Ok(13));
    }

    #[test]
    fn one_that_is_not_loaded_says_why_and_ends() {
        let serve = |(): (), _: &Receiver<u32>| panic!("nothing is loaded");
        let fails = || Err(EngineError::Device("no such device".to_owned()));
        let worker = Worker::start("fails".to_owned(), fails, serve).unwrap();
        assert!(ended(&worker).contains("no such device"));
        let panics = || panic!("on purpose");
        let worker = Worker::start("panics".to_owned(), panics, serve).unwrap();
        assert!(ended(&worker).contains("its thread has ended while it loaded"));
    }
}
