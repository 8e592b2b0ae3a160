//! `Patience`: how long a process may take over what it is asked, by the time that processors spend
//! on it. So a page is drawn or given up whatever else the machine does.

use std::time::{Duration, Instant};

/// How many times as long it may take by the clock: it may wait for a processor, or do nothing.
const MOST_BY_CLOCK: u32 = 20;

/// Linux counts times of processes in so many steps of a second, on every processor.
const STEPS_PER_SECOND: u32 = 100;

const STEP: Duration = Duration::from_millis(1000 / STEPS_PER_SECOND as u64);

/// How long a process may take, from now on.
pub(super) struct Patience {
    limit: Duration,
    process: u32,
    began: Instant,
    used_before: Option<Duration>,
}

impl Patience {
    pub(super) fn new(limit: Duration, process: u32) -> Self {
        Self { limit, process, began: Instant::now(), used_before: used(process) }
    }

    /// How long it may be waited for before this is asked again; None: it has had its time.
    pub(super) fn left(&self) -> Option<Duration> {
        let by_clock = self.began.elapsed();
        // Of what is done soon nothing is looked up.
        if by_clock < self.limit {
            return Some(self.limit - by_clock);
        }
        let left = self.limit.checked_sub(self.used().unwrap_or(by_clock))?;
        let most_by_clock = self.limit.saturating_mul(MOST_BY_CLOCK);
        Some(left.min(most_by_clock.checked_sub(by_clock)?).max(STEP))
    }

    /// What processors have spent on it since.
    fn used(&self) -> Option<Duration> {
        used(self.process)?.checked_sub(self.used_before?)
    }
}

/// What processors have spent on a process, all in all.
fn used(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    used_in(&stat)
}

/// The same of Linux's line about it: of user and system.
fn used_in(stat: &str) -> Option<Duration> {
    // A name may have spaces and brackets.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut steps = || fields.next()?.parse::<u32>().ok();
    Some(STEP * steps()?.checked_add(steps()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_processors_is_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 158 0 0 0 250 50 9 9 20 0 1 0 99";
        assert_eq!(used_in(stat), Some(Duration::from_secs(3)));
        assert_eq!(used_in("7 (a"), None);
    }

    #[test]
    fn a_process_that_waits_has_used_nothing() {
        let mut cat = std::process::Command::new("cat");
        let mut child = cat.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let patience = Patience::new(Duration::from_millis(20), child.id());
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(40) {
            std::thread::yield_now();
        }
        assert!(patience.left().is_some(), "twice the time by the clock, and none of a processor");
        let over = Patience { began: Instant::now() - Duration::from_secs(1), ..patience };
        assert_eq!(over.left(), None, "it does nothing");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
