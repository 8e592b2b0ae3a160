//! `TextQueue`: texts that go through a body whole, in the order in which steps take them.

use std::collections::VecDeque;

use super::body::Text;
use vllm_batch_api::request::RequestClass;

/// Steps of which the first text is one of a batch in one, while others wait too: the floor of
/// `plan/scheduler/floor.rs`, where a text takes one step.
const FLOOR: u64 = 10;

/// Texts by precedence, then as they came.
#[derive(Default)]
pub(super) struct TextQueue {
    texts: VecDeque<Text>,
    /// Steps that began while texts of both classes waited.
    num_steps: u64,
}

impl TextQueue {
    pub(super) fn push(&mut self, text: Text) {
        let own = text.precedence;
        let place = self.texts.partition_point(|other| other.precedence <= own);
        self.texts.insert(place, text);
    }

    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        self.texts.retain(is_kept);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// How many are of a batch.
    pub(super) fn len_of_batch(&self) -> usize {
        self.texts.len() - self.first_of_batch()
    }

    fn first_of_batch(&self) -> usize {
        self.texts.partition_point(|text| text.precedence.class < RequestClass::Batch)
    }

    /// The texts of a step: the next ones for as long as `takes` takes them.
    pub(super) fn take(&mut self, mut takes: impl FnMut(&Text) -> bool) -> Vec<Text> {
        let first_of_batch = self.first_of_batch();
        let has_both = 0 < first_of_batch && first_of_batch < self.texts.len();
        self.num_steps += u64::from(has_both);
        let mut taken = Vec::new();
        if has_both && self.num_steps.is_multiple_of(FLOOR) && takes(&self.texts[first_of_batch]) {
            taken.extend(self.texts.remove(first_of_batch));
        }
        while self.texts.front().is_some_and(&mut takes) {
            taken.extend(self.texts.pop_front());
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vllm_batch_api::request::Precedence;

    fn text(number: u64, precedence: Precedence) -> Text {
        let (tokens, params) = (vec![1].into(), Arc::default());
        Text { reader: (number, 0), tokens, shared: None, params, lora: None, precedence }
    }

    /// Numbers of the texts of a step of so many.
    fn take(queue: &mut TextQueue, num: usize) -> Vec<u64> {
        let mut left = num;
        let taken = queue.take(|_| {
            let takes = left > 0;
            left -= usize::from(takes);
            takes
        });
        taken.into_iter().map(|text| text.reader.0).collect()
    }

    #[test]
    fn who_is_waited_for_goes_first_then_by_priority_then_as_they_came() {
        let mut queue = TextQueue::default();
        let online = Precedence::default();
        queue.push(text(0, Precedence::BATCH));
        queue.push(text(1, online.with_priority(1)));
        queue.push(text(2, Precedence::BATCH.with_priority(-1)));
        queue.push(text(3, online));
        queue.push(text(4, online));
        assert_eq!((queue.len(), queue.len_of_batch()), (5, 2));
        assert_eq!(take(&mut queue, 2), [3, 4]);
        assert_eq!(take(&mut queue, 9), [1, 2, 0]);
        assert!(queue.is_empty());
    }

    #[test]
    fn one_step_of_ten_begins_with_a_row_of_a_batch() {
        let mut queue = TextQueue::default();
        for number in 0..20 {
            queue.push(text(number, Precedence::default()));
            queue.push(text(100 + number, Precedence::BATCH));
        }
        let steps: Vec<_> = (0..20).flat_map(|_| take(&mut queue, 1)).collect();
        let expected: Vec<_> = (0..9).chain([100]).chain(9..18).chain([101]).collect();
        assert_eq!(steps, expected);
        assert_eq!(take(&mut queue, 3), [18, 19, 102]);
    }
}
