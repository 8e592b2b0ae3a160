//! How long things are, by count: memory grows with the lengths that occur, not with the rows.

use std::collections::BTreeMap;

/// The shortest class of a histogram holds lengths up to this.
const SHORTEST_CLASS: usize = 16;

/// Lengths in tokens, and how often each occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    counts: BTreeMap<usize, u64>,
}

/// A class of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Shortest length in it.
    pub min: usize,
    /// Longest length in it.
    pub max: usize,
    /// How many have one of these lengths.
    pub count: u64,
}

impl Lengths {
    /// Adds `count` of one length.
    pub fn add(&mut self, length: usize, count: u64) {
        *self.counts.entry(length).or_default() += count;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(&length, count)| length as u64 * count).sum()
    }

    /// The mean; 0 of nothing.
    pub fn mean(&self) -> f64 {
        self.total() as f64 / self.count().max(1) as f64
    }

    /// The longest; 0 of nothing.
    pub fn max(&self) -> usize {
        self.counts.last_key_value().map_or(0, |(&length, _)| length)
    }

    /// The smallest length that `percent` of them do not exceed; 0 of nothing.
    pub fn percentile(&self, percent: u64) -> usize {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map_or(0, |(&length, _)| length)
    }

    /// Each length with its count, shortest first.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().map(|(&length, &count)| (length, count))
    }

    /// Classes that double in width, from the first to the last that holds any.
    pub fn classes(&self) -> Vec<Class> {
        let (mut classes, mut min, mut max) = (Vec::new(), 1, SHORTEST_CLASS);
        while min <= self.max() && !self.counts.is_empty() {
            let count = self.counts.range(min..=max).map(|(_, count)| count).sum();
            classes.push(Class { min, max, count });
            (min, max) = (max + 1, max * 2);
        }
        let first = classes.iter().position(|class| class.count > 0).unwrap_or(0);
        classes.split_off(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double_and_hold_every_length() {
        let mut lengths = Lengths::default();
        for length in [40, 41, 64, 65, 65, 500] {
            lengths.add(length, 1);
        }
        let classes = lengths.classes();
        let text: Vec<_> = classes.iter().map(|c| (c.min, c.max, c.count)).collect();
        assert_eq!(text, [(33, 64, 3), (65, 128, 2), (129, 256, 0), (257, 512, 1)]);
        assert_eq!((lengths.count(), lengths.total(), lengths.max()), (6, 775, 500));
        assert_eq!((lengths.percentile(50), lengths.percentile(90)), (64, 500));
        assert_eq!(Lengths::default().classes(), []);
        assert_eq!(Lengths::default().percentile(50), 0);
    }
}
