//! `Pace`: how many drafts a row is worth, by what became of its earlier ones.

/// Tokens without drafts after the first failure.
const FIRST_WAIT: usize = 8;

/// Most of them: what a try costs is then little beside what was sampled since the last one.
const LONGEST_WAIT: usize = 128;

/// Tokens until a row is asked again that nobody could guess at.
const PAUSE: usize = 4;

/// One row's. It begins with as many drafts as any row may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Most drafts of a step; at least 1.
    most: usize,
    /// Tokens until it has drafts again.
    wait: usize,
    /// Of the next failure.
    next_wait: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { most: usize::MAX, wait: 0, next_wait: FIRST_WAIT }
    }
}

impl Pace {
    /// Most drafts of the next step, of which no row has more than `per_row`.
    pub fn most(&self, per_row: usize) -> usize {
        if self.wait > 0 { 0 } else { self.most.min(per_row) }
    }

    /// Nothing was guessed: the row has no drafts for a while.
    pub fn pause(&mut self) {
        self.wait = PAUSE;
    }

    /// Takes in a step: its drafts, how many of them were right, and the tokens that it gave.
    pub fn take_in(&mut self, num_drafts: usize, num_right: usize, num_new: usize) {
        if num_drafts == 0 {
            self.wait = self.wait.saturating_sub(num_new);
            return;
        }
        if num_right > 0 {
            self.next_wait = FIRST_WAIT;
        }
        if num_right == num_drafts {
            self.most = self.most.max(num_drafts).saturating_mul(2);
        } else if num_right * 2 < num_drafts {
            self.most = (self.most.min(num_drafts) / 2).max(1);
            if num_right == 0 && num_drafts == 1 {
                self.wait = self.next_wait;
                self.next_wait = (2 * self.next_wait).min(LONGEST_WAIT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_halve_it_to_a_wait_that_grows_and_hits_double_it() {
        let mut pace = Pace::default();
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(pace.most(8));
            pace.take_in(pace.most(8), 0, 1);
        }
        seen.push(pace.most(8));
        assert_eq!(seen, [8, 4, 2, 1]);
        for wait in [8, 16, 32, 64, 128, 128] {
            pace.take_in(1, 0, 1);
            pace.take_in(0, 0, wait - 1);
            assert_eq!(pace.most(8), 0, "a wait of {wait}");
            pace.take_in(0, 0, 1);
            assert_eq!(pace.most(8), 1, "a wait of {wait}");
        }
        for most in [2, 4, 8, 8] {
            let num_drafts = pace.most(8);
            pace.take_in(num_drafts, num_drafts, num_drafts + 1);
            assert_eq!(pace.most(8), most);
        }
        pace.pause();
        assert_eq!(pace.most(8), 0);
        pace.take_in(0, 0, 4);
        pace.take_in(8, 4, 5);
        assert_eq!(pace.most(8), 8, "half of them were right");
        pace.take_in(8, 3, 4);
        assert_eq!(pace.most(8), 4);
    }
}
