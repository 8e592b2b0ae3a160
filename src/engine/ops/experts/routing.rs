//! Experts of a token and their weights: a pure function of the router's logits of that token.
//!
//! Equal numbers go to the lower expert, where `torch.topk` leaves the order open. Sums over a
//! token's experts go upward by their numbers.

use crate::{VectorOp, map_in_place};
use vllm_batch_base::layers::{ExpertGroups, ExpertWeight, GroupScore, Routing, Score, TopK};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};

/// An expert of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    /// Expert of the token.
    pub expert: u32,
    /// Factor of its outputs.
    pub weight: f32,
}

/// Chooses by the router's `logits`, of which scores are made. `bias` is added to the scores
/// where they are compared; `keys` is for what is compared. What is `chosen` is in order of
/// experts.
///
/// # Panics
/// Lengths do not fit.
pub(super) fn choose(
    routing: &Routing,
    isa: Isa,
    (logits, keys): (&mut [f32], &mut [f32]),
    bias: Option<&[f32]>,
    chosen: &mut [Chosen],
) {
    assert_eq!(chosen.len(), routing.num_chosen());
    match routing {
        Routing::TopK(best) => choose_best(best, isa, (logits, keys), bias, chosen),
        Routing::SparseMixer { jitter } => sparse_mixer(isa, *jitter, (logits, keys), chosen),
    }
}

fn choose_best(
    best: &TopK,
    isa: Isa,
    (scores, keys): (&mut [f32], &mut [f32]),
    bias: Option<&[f32]>,
    chosen: &mut [Chosen],
) {
    dispatch(isa, Scored { score: best.score, values: scores });
    keys.copy_from_slice(scores);
    for (key, bias) in keys.iter_mut().zip(bias.unwrap_or_default()) {
        *key += bias;
    }
    if let Some(groups) = best.groups {
        keep_best(groups, keys);
    }
    for index in 0..chosen.len() {
        let expert = take_best(keys, &chosen[..index]);
        chosen[index] = Chosen { expert: expert as u32, weight: scores[expert] };
    }
    chosen.sort_unstable_by_key(|chosen| chosen.expert);
    weigh(best, isa, chosen, keys);
}

/// From scores to weights; `values` is for what is in between.
fn weigh(best: &TopK, isa: Isa, chosen: &mut [Chosen], values: &mut [f32]) {
    match best.weight {
        ExpertWeight::Score => {}
        ExpertWeight::Share { added, at_least } => {
            let sum: f32 = chosen.iter().map(|chosen| chosen.weight).sum();
            let sum = (sum + added).max(at_least);
            chosen.iter_mut().for_each(|chosen| chosen.weight /= sum);
        }
        ExpertWeight::Softmax => weigh_by(Score::Softmax, isa, chosen, values),
        ExpertWeight::Sigmoid => weigh_by(Score::Sigmoid, isa, chosen, values),
    }
    chosen.iter_mut().for_each(|chosen| chosen.weight *= best.scale);
}

/// Scores of the weights of those that are chosen alone.
fn weigh_by(score: Score, isa: Isa, chosen: &mut [Chosen], values: &mut [f32]) {
    let values = &mut values[..chosen.len()];
    values.iter_mut().zip(&*chosen).for_each(|(value, of)| *value = of.weight);
    dispatch(isa, Scored { score, values });
    chosen.iter_mut().zip(values).for_each(|(chosen, value)| chosen.weight = *value);
}

/// Rules out the experts of all groups but the best.
fn keep_best(groups: ExpertGroups, keys: &mut [f32]) {
    let ExpertGroups { num, num_kept, score } = groups;
    let width = keys.len() / num;
    let of_group = |keys: &[f32]| {
        let mut best = [f32::NEG_INFINITY; 2];
        for &key in keys {
            match key {
                key if key > best[0] => best = [key, best[0]],
                key if key > best[1] => best[1] = key,
                _ => {}
            }
        }
        match score {
            GroupScore::Best => best[0],
            GroupScore::BestTwo => best[0] + best[1],
        }
    };
    let is_ruled_out = |keys: &[f32], group: usize| {
        let own = of_group(&keys[group * width..][..width]);
        let is_better = |other: usize| {
            let score = of_group(&keys[other * width..][..width]);
            score > own || score == own && other < group
        };
        (0..num).filter(|&other| is_better(other)).count() >= num_kept
    };
    // Keys change when all groups were compared. More groups than bits are refused.
    let ruled_out =
        (0..num).fold(0u64, |bits, group| bits | u64::from(is_ruled_out(keys, group)) << group);
    for (group, keys) in keys.chunks_exact_mut(width).enumerate() {
        if ruled_out >> group & 1 == 1 {
            keys.fill(f32::NEG_INFINITY);
        }
    }
}

/// The expert with the largest key that is not taken yet, which has none from then on. Where no key
/// is a number, it is the first that is not taken.
fn take_best(keys: &mut [f32], taken: &[Chosen]) -> usize {
    let (mut best, mut largest) = (None, f32::NEG_INFINITY);
    for (expert, &key) in keys.iter().enumerate() {
        if key > largest {
            (best, largest) = (Some(expert), key);
        }
    }
    let is_free = |expert: &usize| taken.iter().all(|taken| taken.expert as usize != *expert);
    let best = best.or_else(|| (0..keys.len()).find(is_free)).expect("more experts than chosen");
    keys[best] = f32::NEG_INFINITY;
    best
}

/// transformers' `sparsemixer`: the second expert is chosen without the first, and so is its
/// weight.
fn sparse_mixer(
    isa: Isa,
    jitter: f32,
    (logits, keys): (&mut [f32], &mut [f32]),
    chosen: &mut [Chosen],
) {
    for index in 0..chosen.len() {
        let (rest, chosen) = chosen.split_at_mut(index);
        keys.copy_from_slice(logits);
        rest.iter().for_each(|taken| keys[taken.expert as usize] = f32::NEG_INFINITY);
        let expert = take_best(keys, rest);
        let best = logits[expert];
        // The others that are nearly as good, behind the best one.
        let mut num = 1;
        for other in (0..logits.len()).filter(|&other| other != expert) {
            let is_taken = rest.iter().any(|taken| taken.expert as usize == other);
            let is_behind = (best - logits[other]) / logits[other].abs().max(best) > 2.0 * jitter;
            if !is_taken && !is_behind {
                keys[num] = logits[other];
                num += 1;
            }
        }
        keys[0] = best;
        dispatch(isa, Scored { score: Score::Softmax, values: &mut keys[..num] });
        chosen[0] = Chosen { expert: expert as u32, weight: keys[0] };
    }
    chosen.sort_unstable_by_key(|chosen| chosen.expert);
}

/// From the router's numbers to scores, in place.
struct Scored<'a> {
    score: Score,
    values: &'a mut [f32],
}

impl Kernel for Scored<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { score, values } = self;
        // SAFETY: dispatched for this CPU.
        unsafe {
            match score {
                Score::Logits => {}
                Score::Sigmoid => map_in_place::<V>(values, Sigmoid),
                Score::Softmax => {
                    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    map_in_place::<V>(values, ExpFrom(largest));
                    let sum: f32 = values.iter().sum();
                    values.iter_mut().for_each(|value| *value /= sum);
                }
            }
        }
    }
}

/// 1 / (1 + e^-x).
#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl<V: Vector> VectorOp<V> for Sigmoid {
    #[inline(always)]
    unsafe fn apply(&self, x: V, _: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.sigmoid() }
    }
}

/// e^(x - this).
#[derive(Clone, Copy)]
struct ExpFrom(f32);

impl<V: Vector> VectorOp<V> for ExpFrom {
    #[inline(always)]
    unsafe fn apply(&self, x: V, _: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.sub(V::splat(self.0)).exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;

    fn choose(routing: &Routing, logits: &[f32], bias: Option<&[f32]>) -> Vec<(u32, f32)> {
        let mut chosen = vec![Chosen::default(); routing.num_chosen()];
        let mut of_all = Isa::all_available().into_iter().map(|isa| {
            let (mut logits, mut keys) = (logits.to_vec(), vec![0.0; logits.len()]);
            super::choose(routing, isa, (&mut logits, &mut keys), bias, &mut chosen);
            chosen.iter().map(|chosen| (chosen.expert, chosen.weight)).collect::<Vec<_>>()
        });
        let first = of_all.next().unwrap();
        assert!(of_all.all(|other| other.iter().zip(&first).all(|(a, b)| a.0 == b.0)));
        first
    }

    fn top_k(num: usize, score: Score, weight: ExpertWeight) -> TopK {
        TopK { num, score, groups: None, weight, scale: 1.0 }
    }

    fn assert_chosen(got: &[(u32, f32)], expected: &[(u32, f32)]) {
        let is_close = |(got, expected): (&(u32, f32), &(u32, f32))| {
            got.0 == expected.0 && (got.1 - expected.1).abs() < 1e-6
        };
        let is_equal = got.len() == expected.len() && got.iter().zip(expected).all(is_close);
        assert!(is_equal, "{got:?}, expected {expected:?}");
    }

    #[test]
    fn weights_are_scores_or_shares_or_a_softmax_of_the_chosen() {
        // e^ln(n) = n: the softmax is 1, 4, 2, 1, 2 tenths.
        let logits = [1.0f32, 4.0, 2.0, 1.0, 2.0].map(f32::ln);
        let of = |score, weight| choose(&Routing::TopK(top_k(2, score, weight)), &logits, None);
        // Experts 2 and 4 are equally good.
        assert_chosen(&of(Score::Softmax, ExpertWeight::Score), &[(1, 0.4), (2, 0.2)]);
        let shares = [(1, 2.0 / 3.0), (2, 1.0 / 3.0)];
        assert_chosen(&of(Score::Softmax, ExpertWeight::SHARE), &shares);
        assert_chosen(&of(Score::Logits, ExpertWeight::Softmax), &shares);
        let at_least = ExpertWeight::Share { added: 0.2, at_least: 1.6 };
        assert_chosen(&of(Score::Softmax, at_least), &[(1, 0.25), (2, 0.125)]);
        // Large ones are apart, though their sigmoids are not.
        let far = [20.0, 40.0, 30.0];
        let best = top_k(1, Score::Logits, ExpertWeight::Sigmoid);
        assert_chosen(&choose(&Routing::TopK(best), &far, None), &[(1, 1.0)]);
        let by_sigmoid = of(Score::Logits, ExpertWeight::Sigmoid);
        assert_chosen(&by_sigmoid, &[(1, 0.8), (2, 2.0 / 3.0)]);
        // n / (n + 1)
        assert_chosen(&of(Score::Sigmoid, ExpertWeight::Score), &[(1, 0.8), (2, 2.0 / 3.0)]);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let routing = TopK { scale: 2.5, ..top_k(1, Score::Sigmoid, ExpertWeight::Score) };
        let bias = [0.0, 0.0, 0.9];
        let chosen = choose(&Routing::TopK(routing), &[1.0, 0.5, 0.0], Some(&bias));
        assert_chosen(&chosen, &[(2, 2.5 * 0.5)]);
    }

    #[test]
    fn groups_are_compared_by_their_best_or_their_best_two() {
        let logits = [0.9, 0.0, 0.1, 0.6, 0.5, 0.4, 0.2, 0.7, 0.3];
        let of = |score| {
            let groups = Some(ExpertGroups { num: 3, num_kept: 1, score });
            let best = top_k(2, Score::Logits, ExpertWeight::Score);
            choose(&Routing::TopK(TopK { groups, ..best }), &logits, None)
        };
        assert_chosen(&of(GroupScore::Best), &[(0, 0.9), (2, 0.1)]);
        assert_chosen(&of(GroupScore::BestTwo), &[(3, 0.6), (4, 0.5)]);
        // Equal groups: the first ones.
        let groups = ExpertGroups { num: 4, num_kept: 2, score: GroupScore::BestTwo };
        let mut keys = [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0];
        keep_best(groups, &mut keys);
        let none = f32::NEG_INFINITY;
        assert_eq!(keys, [1.0, 1.0, 2.0, 2.0, none, none, none, none]);
    }

    #[test]
    fn the_sparse_mixer_weighs_each_among_those_that_are_near_it() {
        // transformers' `sparsemixer` with jitter_eps 0.1: near 2.0 is 1.9 alone, near 1.9 is 1.6.
        let chosen = choose(&Routing::SparseMixer { jitter: 0.1 }, &[0.3, 2.0, 1.6, 1.9], None);
        let first = 1.0 / (1.0 + (-0.1f32).exp() + (-0.4f32).exp());
        let second = 1.0 / (1.0 + (-0.3f32).exp());
        assert_chosen(&chosen, &[(1, first), (3, second)]);
    }

    #[test]
    fn numbers_that_are_none_still_choose_different_experts() {
        let of = |score, weight| Routing::TopK(top_k(3, score, weight));
        for routing in [
            of(Score::Softmax, ExpertWeight::SHARE),
            of(Score::Logits, ExpertWeight::Softmax),
            Routing::SparseMixer { jitter: 0.01 },
        ] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let chosen = choose(&routing, &[value; 4], None);
                assert!(chosen.windows(2).all(|pair| pair[0].0 < pair[1].0), "{chosen:?}");
            }
        }
    }
}
