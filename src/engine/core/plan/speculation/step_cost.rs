//! `StepCost`: how long steps take by their tokens, and how many a step with drafts should have.
//!
//! A step reads all weights, however few tokens it has, so the first tokens beside the known ones
//! cost little. From some number on, the knee, each costs its share. Where that is depends on the
//! model, the machine and who else computes on it, so it is looked for during the run.

use std::time::Duration;

/// Steps are told apart by how many tokens they have: up to 1, up to 2, and so on.
const CLASSES: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Times of a class that are kept. Their lower quartile is taken: a step that waited for another
/// program, or read a long prompt for a draft model, takes longer, and none takes shorter.
const NUM_KEPT: usize = 9;

/// Fewer times say nothing.
const NUM_NEEDED: usize = 5;

/// Steps after which a class that was not seen is forgotten. Rows are longer by then; and what was
/// given up in a noisy minute is tried again.
const MAX_AGE: u64 = 512;

/// How often a draft is right, at least: `Pace` gives fewer to a row whose drafts are wrong.
const RIGHT: f64 = 0.5;

/// What is gained by leaving the device's own number of tokens must be more than noise.
const GAIN: f64 = 1.1;

/// A step of each class: its seconds, and its tokens.
type Times = [Option<(f64, usize)>; CLASSES.len()];

/// The last times of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// With the tokens of each.
    times: [(Duration, usize); NUM_KEPT],
    /// Those that it had, kept or not.
    num_times: usize,
    /// Number of the step that was seen last.
    last: u64,
}

impl Class {
    fn take_in(&mut self, took: (Duration, usize), step: u64) {
        if step - self.last > MAX_AGE {
            self.num_times = 0;
        }
        self.times[self.num_times % NUM_KEPT] = took;
        self.num_times += 1;
        self.last = step;
    }

    fn time(&self, step: u64) -> Option<(f64, usize)> {
        let num_times = self.num_times.min(NUM_KEPT);
        if num_times < NUM_NEEDED || step - self.last > MAX_AGE {
            return None;
        }
        let mut times = self.times;
        let times = &mut times[..num_times];
        times.sort_unstable();
        let (time, num_tokens) = times[num_times / 4];
        Some((time.as_secs_f64().max(1e-9), num_tokens))
    }
}

/// Times of steps that only sample, drafts included.
#[derive(Clone, Debug, Default)]
pub struct StepCost {
    classes: [Class; CLASSES.len()],
    num_steps: u64,
}

impl StepCost {
    /// Takes in a step of so many tokens, all of which gave logits.
    pub fn take_in(&mut self, num_tokens: usize, took: Duration) {
        self.num_steps += 1;
        if let Some(class) = class_of(num_tokens) {
            self.classes[class].take_in((took, num_tokens), self.num_steps);
        }
    }

    /// Most tokens of a step of so many rows that has drafts. `of_device` is what is taken as long
    /// as nothing is known, and where something else is hardly better.
    pub fn max_step_tokens(&self, num_rows: usize, of_device: usize) -> usize {
        let times = std::array::from_fn(|class| self.classes[class].time(self.num_steps));
        max_step_tokens(num_rows, of_device, &times)
    }
}

/// None: it is longer than any step with drafts.
fn class_of(num_tokens: usize) -> Option<usize> {
    CLASSES.iter().position(|&most| num_tokens <= most)
}

/// The number of tokens, of those that were seen, with which a step of so many rows gives the most
/// tokens a second; one class more, where the largest of them was worth more than the one before.
fn max_step_tokens(num_rows: usize, of_device: usize, times: &Times) -> usize {
    let Some(first) = class_of(num_rows) else { return of_device };
    let speed = |class: usize| {
        let (time, num_tokens) = times[class]?;
        let num_drafts = num_tokens.saturating_sub(num_rows) as f64;
        Some((num_rows as f64 + RIGHT * num_drafts) / time)
    };
    let seen = || (first..CLASSES.len()).filter_map(|class| Some((class, speed(class)?)));
    // What comes nearest to the device's own number. Without drafts it says nothing of them.
    let usual = seen().rfind(|&(class, _)| class > first && CLASSES[class] <= of_device);
    let fastest = seen().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (Some((usual, usual_speed)), Some((fastest, best_speed))) = (usual, fastest) else {
        return of_device;
    };
    let fastest = if best_speed > GAIN * usual_speed { fastest } else { usual };
    if fastest < usual {
        // What lies between is not known to be slower until it was seen.
        let slower = seen().find(|&(class, _)| class > fastest).map_or(usual, |(class, _)| class);
        return CLASSES[slower - 1];
    }
    let largest = seen().next_back().filter(|&(class, _)| class == fastest);
    let before = seen().rfind(|&(class, _)| class < fastest);
    let rises = matches!((largest, before), (Some((_, a)), Some((_, b))) if a > GAIN * b);
    let next = CLASSES.get(fastest + 1).filter(|_| rises);
    of_device.max(*next.unwrap_or(&CLASSES[fastest]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: usize = 24;

    /// What is chosen for so many rows, after steps of all numbers of tokens chosen before,
    /// up to `per_row` drafts each, and of none.
    fn chosen(
        (num_rows, per_row, of_device): (usize, usize, usize),
        mut seconds: impl FnMut(usize) -> f64,
    ) -> usize {
        let mut cost = StepCost::default();
        for turn in 0..400 {
            let most = cost.max_step_tokens(num_rows, of_device).min(num_rows * (1 + per_row));
            let num_tokens = num_rows + most.saturating_sub(num_rows) * (turn % 5) / 4;
            cost.take_in(num_tokens, Duration::from_secs_f64(seconds(num_tokens)));
        }
        cost.max_step_tokens(num_rows, of_device)
    }

    #[test]
    fn without_evidence_it_is_the_devices_number() {
        assert_eq!(StepCost::default().max_step_tokens(1, CPU), CPU);
        let mut cost = StepCost::default();
        for _ in 0..100 {
            cost.take_in(4, Duration::from_millis(10));
        }
        assert_eq!(cost.max_step_tokens(4, CPU), CPU, "nothing was guessed");
        for _ in 0..NUM_NEEDED - 1 {
            cost.take_in(8, Duration::from_millis(100));
        }
        assert_eq!(cost.max_step_tokens(4, CPU), CPU, "too few");
        assert_eq!(cost.max_step_tokens(500, CPU), CPU, "more than any step with drafts");
    }

    #[test]
    fn where_tokens_cost_nothing_it_grows_to_the_end() {
        assert_eq!(chosen((16, 128, CPU), |_| 0.02), 128);
        assert_eq!(chosen((1, 128, CPU), |_| 0.02), 128);
        assert_eq!(chosen((1, 128, 128), |_| 0.02), 128);
    }

    #[test]
    fn a_cost_for_each_token_beside_that_of_the_weights_leaves_it() {
        // SmolLM2-135M on two cores: every second draft is right, and costs what it brings.
        let seconds = |num_tokens: usize| 0.006 + 0.001 * num_tokens as f64;
        for num_rows in [1, 2, 4, 8, 16] {
            assert_eq!(chosen((num_rows, 128, CPU), seconds), CPU, "{num_rows} rows");
        }
    }

    #[test]
    fn it_falls_and_grows_to_the_knee() {
        let beyond = |knee: usize| {
            move |num_tokens: usize| 0.01 + 0.01 * num_tokens.saturating_sub(knee) as f64
        };
        for num_rows in [1, 4] {
            assert_eq!(chosen((num_rows, 128, CPU), beyond(8)), 8, "{num_rows} rows");
            assert_eq!(chosen((num_rows, 128, 128), beyond(64)), 64, "{num_rows} rows");
        }
        assert!((32..=48).contains(&chosen((4, 128, CPU), beyond(32))));
        // Beyond the knee nothing is gained by drafts.
        assert_eq!(chosen((16, 128, CPU), beyond(4)), 16);
    }

    #[test]
    fn fewer_drafts_than_there_is_room_for_say_nothing_of_more() {
        assert_eq!(chosen((1, 5, CPU), |_| 0.01), CPU);
        assert_eq!(chosen((1, 5, 128), |_| 0.01), 128);
    }

    #[test]
    fn noise_changes_nothing() {
        let mut turn = 0;
        // One of six steps waits for another program, a hundred times as long.
        let mut noisy = |seconds: f64| {
            turn += 1;
            seconds * [1.0, 1.04, 100.0, 0.98, 1.02, 1.0][turn % 6]
        };
        let cpu = |num_tokens: usize| 0.006 + 0.001 * num_tokens as f64;
        assert_eq!(chosen((4, 128, CPU), |num_tokens| noisy(cpu(num_tokens))), CPU);
        let knee = |num_tokens: usize| 0.01 + 0.01 * num_tokens.saturating_sub(8) as f64;
        assert_eq!(chosen((4, 128, CPU), |num_tokens| noisy(knee(num_tokens))), 8);
        assert_eq!(chosen((4, 128, CPU), |_| noisy(0.01)), 128);
    }

    #[test]
    fn what_was_given_up_is_tried_again() {
        let mut cost = StepCost::default();
        let mut steps = |num_tokens: usize, millis: u64, num_steps: u64| {
            for _ in 0..num_steps {
                cost.take_in(num_tokens, Duration::from_millis(millis));
            }
            cost.max_step_tokens(4, CPU)
        };
        steps(4, 10, 9);
        let slower = [(24, 16), (16, 12), (12, 8), (8, 6), (6, 4)];
        for (num_tokens, most) in slower {
            assert_eq!(steps(num_tokens, 1000, 9), most, "what lies between was not seen");
        }
        assert_eq!(steps(4, 10, MAX_AGE - 36), 4);
        assert_eq!(steps(4, 10, MAX_AGE), CPU);
        assert_eq!(steps(24, 1000, 1), CPU, "what it took then is forgotten");
    }
}
