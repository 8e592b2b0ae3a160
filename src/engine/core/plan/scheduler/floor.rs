//! `Floor`: what rows of a batch keep while somebody's requests have work too, so that they come to
//! an end however many ask: a tenth of the places, of the KV blocks and of the tokens of a step.
//!
//! Ten phases go round, and the remainder of the tenth goes to the last of them: of 4 places the
//! batch has one in four phases of ten, of one place it has that in the last phase.
//!
//! ```text
//! phase           0 1 2 3 4 5 6 7 8 9 | 0 1 ...    each of `NUM_STEPS` steps that have both
//! of 4 places     . . . . . . x x x x | . .
//! of 25 places    2 2 2 2 2 3 3 3 3 3 | 2 2
//! ```
//!
//! In the last phase the first row of a batch has its place whatever it needs: steps are counted
//! once it has it, and the phase does not end before a row of the batch has gone on. So a prompt of
//! many steps gets to its first token even where nothing of it is cached, and no row starves.

/// Steps of a phase.
const NUM_STEPS: u64 = 64;
/// Phases of a round: the share of a batch is one of so many.
const NUM_PHASES: u64 = 10;

/// The clock of the phases.
#[derive(Debug, Default)]
pub(super) struct Floor {
    /// Steps in which both classes had work, less those for which the last phase waited.
    num_steps: u64,
    /// A row of a batch has gone on since the last phase began.
    has_moved: bool,
}

impl Floor {
    fn phase(&self) -> u64 {
        self.num_steps / NUM_STEPS % NUM_PHASES
    }

    /// The batch's share of so many.
    pub(super) fn share(&self, of: usize) -> usize {
        (of + self.phase() as usize) / NUM_PHASES as usize
    }

    /// Whether the first row of a batch has its place, whatever it needs.
    pub(super) fn is_last_phase(&self) -> bool {
        self.phase() == NUM_PHASES - 1
    }

    /// Whether this is the last phase, and no row of a batch has gone on in it.
    pub(super) fn waits(&self) -> bool {
        self.is_last_phase() && !self.has_moved
    }

    /// A row of a batch has gone on.
    pub(super) fn moved(&mut self) {
        self.has_moved = true;
    }

    /// A step in which both classes have work.
    pub(super) fn count_step(&mut self) {
        let next = self.num_steps + 1;
        if next.is_multiple_of(NUM_STEPS * NUM_PHASES) && !self.has_moved {
            return;
        }
        self.num_steps = next;
        if self.is_last_phase() && next.is_multiple_of(NUM_STEPS) {
            self.has_moved = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_a_tenth_in_the_course_of_a_round() {
        for of in [0, 1, 4, 9, 10, 25, 256, 8192] {
            let mut floor = Floor::default();
            let mut sum = 0;
            for _ in 0..NUM_STEPS * NUM_PHASES {
                sum += floor.share(of);
                floor.moved();
                floor.count_step();
            }
            assert_eq!(sum, of * NUM_STEPS as usize, "of {of}");
        }
    }

    #[test]
    fn the_last_phase_ends_once_a_row_has_gone_on() {
        let mut floor = Floor::default();
        for _ in 0..3 * NUM_STEPS * NUM_PHASES {
            floor.count_step();
        }
        assert!(floor.waits() && floor.share(1) == 1);
        floor.moved();
        assert!(!floor.waits() && floor.is_last_phase());
        floor.count_step();
        assert!(!floor.is_last_phase() && floor.share(1) == 0);
        (0..(NUM_PHASES - 1) * NUM_STEPS).for_each(|_| floor.count_step());
        assert!(floor.waits(), "that it went on in the round before does not count");
    }
}
