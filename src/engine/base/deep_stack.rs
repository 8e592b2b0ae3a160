//! A thread with a large stack, for crates that recurse over what a row brings: schemas, grammars.
//! What they are given is limited by counts that this stack holds. It is made once: a thread for
//! each row could be refused in a bad moment.

use std::fmt;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::Builder;

use super::machine;
use crate::contained::contain;

/// Stack of the thread. Only what is used takes memory. The limits of schemas and grammars are
/// measured against it, in a debug build: at most 10 KiB a level.
const STACK_BYTES: usize = 256 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Runs closures one after the other on its thread, which is started for the first of them and ends
/// when this is dropped.
#[derive(Default)]
pub struct DeepStack {
    jobs: OnceLock<Sender<Job>>,
}

impl fmt::Debug for DeepStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeepStack")
    }
}

impl DeepStack {
    /// The closure's result; None if it panicked.
    ///
    /// # Panics
    /// The system refuses the thread ([`machine::Refused`]).
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let jobs = self.jobs.get_or_init(start);
        let (answer, result) = sync_channel(1);
        let job: Job = Box::new(move || drop(answer.send(contain(job))));
        jobs.send(job).expect("the thread lives as long as this");
        result.recv().expect("the thread answers every job")
    }
}

fn start() -> Sender<Job> {
    let (jobs, received) = channel::<Job>();
    let work = move || received.into_iter().for_each(|job| job());
    let thread = Builder::new().name("deep stack".to_owned()).stack_size(STACK_BYTES);
    machine::started(thread.spawn(work));
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(levels: u32) -> u32 {
        let here = std::hint::black_box([1_u8; 1 << 12]);
        if levels == 0 { 0 } else { depth(levels - 1) + u32::from(here[levels as usize % 4096]) }
    }

    #[test]
    fn jobs_have_much_stack_and_may_panic() {
        let stack = DeepStack::default();
        assert_eq!(stack.run(|| depth(20_000)), Some(20_000));
        assert_eq!(stack.run(|| -> u32 { panic!("a fault of a crate") }), None);
        assert_eq!(stack.run(|| 5), Some(5));
    }
}
