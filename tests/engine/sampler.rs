//! The sampler against a literal reference, against its distributions, and against itself.

use vllm_batch::engine::api::request::{NumLogprobs, PositionLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::core::request::StopIds;
use vllm_batch::engine::core::sampler::draw::uniform;
use vllm_batch::engine::core::sampler::{
    RowResult, RowTask, SampleTask, SamplerScratch, run_row, surviving_token_ids,
};

/// Seeded numbers for the tests themselves (xorshift64*), unrelated to the sampler's.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 32) as usize) % bound
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn tokens(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab_size) as u32).collect()
    }
}

/// What a `SampleTask` borrows.
#[derive(Clone, Debug, Default)]
struct Case {
    params: SamplingParams,
    prompt: Vec<u32>,
    output: Vec<u32>,
    stop_ids: StopIds,
    bad_words: Vec<Vec<u32>>,
    row_key: u64,
    engine_seed: u64,
    sample_index: u32,
}

impl Case {
    fn of(params: SamplingParams) -> Self {
        Self { params, ..Self::default() }
    }

    fn task(&self) -> SampleTask<'_> {
        SampleTask {
            params: &self.params,
            prompt_token_ids: &self.prompt,
            output_token_ids: &self.output,
            stop_ids: &self.stop_ids,
            bad_words_token_ids: &self.bad_words,
            row_key: RowKey(self.row_key),
            num_drafts: 0,
            sampled_row: None,
            request_id: 0,
            engine_seed: self.engine_seed,
            sample_index: self.sample_index,
            token_mask: None,
        }
    }

    fn run(&self, row: &[f32], scratch: &mut SamplerScratch) -> RowResult {
        run_row(&mut row.to_vec(), &RowTask::Sample(self.task()), scratch)
    }

    fn survivors(&self, row: &[f32]) -> Result<Vec<u32>, RowResult> {
        surviving_token_ids(&mut row.to_vec(), &self.task(), &mut SamplerScratch::default())
    }

    fn sampled(&self, row: &[f32], scratch: &mut SamplerScratch) -> u32 {
        match self.run(row, scratch) {
            RowResult::Sampled { token_id, .. } => token_id,
            other => panic!("no token: {other:?}"),
        }
    }
}

// ---- the reference: every step spelled out, full sorts, f64 probabilities ----

/// Masks, bias and penalties, as the tables of vLLM give them.
fn reference_logits(row: &[f32], case: &Case) -> Vec<f32> {
    let params = &case.params;
    let mut logits = row.to_vec();
    for (id, logit) in logits.iter_mut().enumerate() {
        let id = id as u32;
        let is_allowed = params.allowed_token_ids.as_ref().is_none_or(|ids| ids.contains(&id));
        let is_bad_word = case.bad_words.iter().any(|word| {
            let (last, before) = (word[word.len() - 1], &word[..word.len() - 1]);
            last == id
                && case.output.len() >= before.len()
                && &case.output[case.output.len() - before.len()..] == before
        });
        let is_stop =
            case.stop_ids.eos_token_id == Some(id) || case.stop_ids.stop_token_ids.contains(&id);
        let is_early_stop = is_stop && case.output.len() < params.min_tokens as usize;
        if !is_allowed || is_bad_word || is_early_stop {
            *logit = f32::NEG_INFINITY;
        }
        for &(biased, bias) in &params.logit_bias {
            *logit += if biased == id { bias } else { 0.0 };
        }
        let count = case.output.iter().filter(|&&token| token == id).count();
        if count > 0 || case.prompt.contains(&id) {
            *logit = match *logit > 0.0 {
                true => *logit / params.repetition_penalty,
                false => *logit * params.repetition_penalty,
            };
        }
        *logit -= params.frequency_penalty * count as f32;
        *logit -= if count > 0 { params.presence_penalty } else { 0.0 };
    }
    logits
}

/// (token id, unnormalized probability) of the survivors by ascending id; empty when none is left.
fn reference_survivors(row: &[f32], case: &Case) -> Vec<(u32, f64)> {
    let params = &case.params;
    let logits = reference_logits(row, case);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Vec::new();
    }
    if params.temperature == 0.0 {
        let first = logits.iter().position(|&logit| logit == max).expect("the maximum is there");
        return vec![(first as u32, 1.0)];
    }
    let scaled = |logit: f32| logit / params.temperature;
    let mut alive: Vec<(f32, u32, f64)> = logits
        .iter()
        .enumerate()
        .map(|(id, &logit)| {
            let probability = (f64::from(scaled(logit)) - f64::from(scaled(max))).exp();
            (scaled(logit), id as u32, probability)
        })
        .filter(|token| token.0 > f32::NEG_INFINITY)
        .collect();
    alive.retain(|token| token.2 >= f64::from(params.min_p));
    // Ascending, among equal logits the higher id first.
    alive.sort_by(|a, b| a.0.partial_cmp(&b.0).expect("no NaN").then(b.1.cmp(&a.1)));
    let top_k = params.top_k as usize;
    if top_k > 0 && top_k < alive.len() {
        let kth = alive[alive.len() - top_k].0;
        alive.retain(|token| token.0 >= kth);
    }
    if params.top_p < 1.0 {
        let total: f64 = alive.iter().map(|token| token.2).sum();
        let dropped_mass = (1.0 - f64::from(params.top_p)) * total;
        let mut cumulative = 0.0;
        let mut dropped = 0;
        for token in &alive[..alive.len() - 1] {
            cumulative += token.2;
            if cumulative > dropped_mass {
                break;
            }
            dropped += 1;
        }
        alive.drain(..dropped);
    }
    alive.sort_by_key(|token| token.1);
    // Weights that underflow to 0 survive a mask but can never be drawn.
    alive.into_iter().map(|(_, id, probability)| (id, probability)).collect()
}

fn reference_draw(survivors: &[(u32, f64)], uniform: f64) -> u32 {
    let target = uniform * survivors.iter().map(|token| token.1).sum::<f64>();
    let mut cumulative = 0.0;
    for &(id, probability) in survivors {
        cumulative += probability;
        if cumulative > target {
            return id;
        }
    }
    survivors[survivors.len() - 1].0
}

fn assert_logprobs(row: &[f32], got: &PositionLogprobs, token_id: u32, wanted: usize) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (row[a as usize], row[b as usize]);
        y.partial_cmp(&x).expect("no NaN").then(a.cmp(&b))
    });
    assert_eq!(got.token.token_id, token_id);
    let top: Vec<u32> = got.top.iter().map(|token| token.token_id).collect();
    assert_eq!(top, order[..wanted.min(row.len())]);
    for token in got.top.iter().take(25).chain([&got.token]) {
        let logit = row[token.token_id as usize];
        let want = f64::from(logit) - f64::from(max) - sum.ln();
        let error = (f64::from(token.logprob) - want).abs();
        assert!(f64::from(token.logprob) == want || error < 1e-5, "{token:?} is not {want}");
        let rank = row.iter().filter(|&&other| other >= logit).count();
        assert_eq!(token.rank as usize, rank);
    }
}

// ---- random rows and parameters ----

fn random_row(rng: &mut TestRng, vocab_size: usize) -> Vec<f32> {
    let kind = rng.below(5);
    let spread = [0.5, 3.0, 12.0][rng.below(3)];
    let mut logit = |_| {
        let bell = (0..4).map(|_| rng.unit() - 0.5).sum::<f32>() * spread;
        match kind {
            0 => bell,
            1 => bell.round() * 0.5,
            2 if rng.one_in(5) => f32::NEG_INFINITY,
            3 if rng.one_in(200) => bell + 10.0,
            // Both zeros: equal logits that differ in their bits.
            4 => [0.0, -0.0, 1.0, bell][rng.below(4)],
            _ => bell - 20.0,
        }
    };
    let mut row: Vec<f32> = (0..vocab_size).map(&mut logit).collect();
    if row.iter().all(|&x| x == f32::NEG_INFINITY) {
        row[0] = -1.0;
    }
    row
}

fn random_case(rng: &mut TestRng, vocab_size: usize) -> Case {
    let mut case = Case { row_key: rng.next(), engine_seed: rng.next(), ..Case::default() };
    case.sample_index = rng.below(4) as u32;
    let (prompt_len, output_len) = (rng.below(20), rng.below(20));
    case.prompt = rng.tokens(prompt_len, vocab_size);
    case.output = rng.tokens(output_len, vocab_size);
    case.stop_ids.eos_token_id = rng.one_in(2).then(|| rng.below(vocab_size) as u32);
    case.stop_ids.stop_token_ids = rng.tokens(rng.0 as usize % 3, vocab_size);
    let params = &mut case.params;
    params.temperature = [0.0, 0.01, 0.7, 1.0, 1.0, 2.0, 0.05 + rng.unit()][rng.below(7)];
    if rng.one_in(2) {
        params.top_p = [0.05, 0.5, 0.9, 0.95, 0.999_999, 0.01 + 0.98 * rng.unit()][rng.below(6)];
    }
    if rng.one_in(2) {
        params.top_k = [1, 2, 5, 50, 300, vocab_size as u32][rng.below(6)];
    }
    if rng.one_in(3) {
        params.min_p = [1.0, 0.5, 0.05, 1e-3, rng.unit()][rng.below(5)];
    }
    if rng.one_in(3) {
        params.repetition_penalty = [1.1, 0.5, 2.0][rng.below(3)];
    }
    if rng.one_in(3) {
        params.frequency_penalty = 4.0 * rng.unit() - 2.0;
    }
    if rng.one_in(3) {
        params.presence_penalty = 4.0 * rng.unit() - 2.0;
    }
    if rng.one_in(4) {
        params.min_tokens = rng.below(30) as u32;
    }
    if rng.one_in(4) {
        params.logit_bias = vec![(rng.below(vocab_size) as u32, 20.0 * rng.unit() - 10.0)];
    }
    if rng.one_in(4) {
        let count = 1 + rng.below(vocab_size.min(40));
        params.allowed_token_ids = Some(rng.tokens(count, vocab_size));
    }
    if rng.one_in(4) {
        case.bad_words = (1..4).map(|length| rng.tokens(length, vocab_size)).collect();
        if let Some(&last) = case.output.last() {
            case.bad_words.push(vec![last, rng.below(vocab_size) as u32]);
        }
    }
    if rng.one_in(3) {
        let top = NumLogprobs::Top(rng.below(21) as u32);
        case.params.logprobs = Some(if rng.one_in(4) { NumLogprobs::All } else { top });
    }
    case
}

#[test]
fn sampler_equals_the_literal_reference() {
    let mut rng = TestRng(0x5EED);
    let mut scratch = SamplerScratch::default();
    let (mut sampled, mut contradictory) = (0, 0);
    for (vocab_size, rounds) in [(1, 200), (2, 1500), (7, 4000), (1000, 1500), (50_257, 60)] {
        for round in 0..rounds {
            let row = random_row(&mut rng, vocab_size);
            let case = random_case(&mut rng, vocab_size);
            let want = reference_survivors(&row, &case);
            let context = format!("vocabulary {vocab_size}, round {round}: {case:?}");
            let result = case.run(&row, &mut scratch);
            assert_eq!(result, case.run(&row, &mut SamplerScratch::default()), "{context}");
            if want.is_empty() {
                assert_eq!(result, RowResult::NoTokenAllowed, "{context}");
                contradictory += 1;
                continue;
            }
            let ids: Vec<u32> = want.iter().map(|token| token.0).collect();
            assert_eq!(case.survivors(&row).expect("tokens are left"), ids, "{context}");
            let RowResult::Sampled { token_id, logprobs } = result else {
                panic!("{result:?}: {context}");
            };
            assert_eq!(token_id, reference_draw(&want, uniform(&case.task())), "{context}");
            assert_eq!(logprobs.is_some(), case.params.logprobs.is_some());
            match case.params.logprobs {
                Some(NumLogprobs::Top(n)) => {
                    assert_logprobs(&row, &logprobs.expect("asked for"), token_id, n as usize);
                }
                Some(NumLogprobs::All) => {
                    assert_logprobs(&row, &logprobs.expect("asked for"), token_id, vocab_size);
                }
                None => {}
            }
            sampled += 1;
        }
    }
    assert!(sampled > 6000, "only {sampled} of the random cases had a token left");
    assert!(contradictory > 50, "only {contradictory} cases forbade every token");
}

#[test]
fn sampler_prompt_logprobs_are_of_the_raw_row() {
    let mut rng = TestRng(77);
    let mut scratch = SamplerScratch::default();
    for vocab_size in [1, 2, 7, 1000] {
        for wanted in [0, 1, 5, 20] {
            let row = random_row(&mut rng, vocab_size);
            let target = rng.below(vocab_size) as u32;
            let num_logprobs = NumLogprobs::Top(wanted);
            let task = RowTask::PromptLogprobs { target, num_logprobs };
            match run_row(&mut row.clone(), &task, &mut scratch) {
                RowResult::PromptLogprobs(got) => {
                    assert_logprobs(&row, &got, target, wanted as usize);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn sampler_reports_rows_without_meaning() {
    let mut scratch = SamplerScratch::default();
    let params = SamplingParams::default();
    let greedy = SamplingParams { temperature: 0.0, ..params.clone() };
    let masked = [f32::NEG_INFINITY; 3];
    for broken in [[1.0, f32::NAN, 2.0], [1.0, f32::INFINITY, 2.0], [f32::NAN; 3], masked] {
        for params in [&params, &greedy] {
            let result = Case::of(params.clone()).run(&broken, &mut scratch);
            assert_eq!(result, RowResult::NonFinite);
        }
        let task = RowTask::PromptLogprobs { target: 0, num_logprobs: NumLogprobs::All };
        assert_eq!(run_row(&mut broken.clone(), &task, &mut scratch), RowResult::NonFinite);
    }
    // Finite logits that temperature takes out of the range of f32.
    let cold = SamplingParams { temperature: 0.01, ..params };
    assert_eq!(Case::of(cold).run(&[1e38, 0.0], &mut scratch), RowResult::NonFinite);
    let mut case = Case::of(SamplingParams { allowed_token_ids: Some(vec![1]), ..greedy });
    assert_eq!(case.sampled(&[5.0, 1.0, 2.0], &mut scratch), 1);
    case.bad_words = vec![vec![1]];
    assert_eq!(case.run(&[5.0, 1.0, 2.0], &mut scratch), RowResult::NoTokenAllowed);
}

// ---- distributions ----

const DRAWS: usize = 120_000;
/// Critical values of chi-squared at 0.1 % for 1 to 9 degrees of freedom.
const CRITICAL: [f64; 9] = [10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322, 26.124, 27.877];
const ROW: [f32; 10] = [0.3, 1.9, -0.7, 1.9, 0.0, -2.5, 1.1, 2.3, -1.2, 0.8];

/// Chi-squared of the draws of a case whose key `vary` changes from draw to draw, against the
/// reference's probabilities, with (number of survivors - 1) degrees of freedom.
fn assert_distribution(mut case: Case, survivors: usize, vary: impl Fn(&mut Case, usize)) {
    let want = reference_survivors(&ROW, &case);
    assert_eq!(want.len(), survivors);
    let total: f64 = want.iter().map(|token| token.1).sum();
    let mut scratch = SamplerScratch::default();
    let mut counts = [0usize; ROW.len()];
    for draw in 0..DRAWS {
        vary(&mut case, draw);
        counts[case.sampled(&ROW, &mut scratch) as usize] += 1;
    }
    let mut statistic = 0.0;
    for &(id, weight) in &want {
        let expected = weight / total * DRAWS as f64;
        statistic += (counts[id as usize] as f64 - expected).powi(2) / expected;
        counts[id as usize] = 0;
    }
    assert_eq!(counts, [0; ROW.len()], "tokens that should not be drawn were");
    let critical = CRITICAL[survivors - 2];
    assert!(statistic < critical, "chi-squared {statistic} >= {critical}: {:?}", case.params);
}

fn by_row_key(case: &mut Case, draw: usize) {
    case.row_key = draw as u64;
}

#[test]
fn sampler_draws_follow_temperature_whatever_the_key() {
    for temperature in [0.5, 1.0, 2.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        assert_distribution(Case::of(params), 10, by_row_key);
    }
    let case = Case::of(SamplingParams::default());
    assert_distribution(case.clone(), 10, |case, draw| case.sample_index = draw as u32);
    assert_distribution(case.clone(), 10, |case, draw| case.engine_seed = draw as u64);
    assert_distribution(case.clone(), 10, |case, draw| case.params.seed = Some(draw as u64));
    let step = |case: &mut Case, _| case.output.push(0);
    assert_distribution(case, 10, step);
}

#[test]
fn sampler_draws_follow_truncation_and_penalties() {
    let base = SamplingParams::default();
    let top_k = SamplingParams { top_k: 3, ..base.clone() };
    assert_distribution(Case::of(top_k), 3, by_row_key);
    // The second of the three most likely is tied with the third, so two may mean three.
    let tied = SamplingParams { top_k: 2, ..base.clone() };
    assert_distribution(Case::of(tied), 3, by_row_key);
    let top_p = SamplingParams { top_p: 0.9, ..base.clone() };
    assert_distribution(Case::of(top_p), 6, by_row_key);
    let min_p = SamplingParams { min_p: 0.2, ..base.clone() };
    assert_distribution(Case::of(min_p), 5, by_row_key);
    let mut penalized = Case::of(SamplingParams {
        repetition_penalty: 1.5,
        frequency_penalty: 0.4,
        presence_penalty: -0.3,
        temperature: 0.8,
        ..base
    });
    (penalized.prompt, penalized.output) = (vec![7, 5, 5], vec![1, 1, 2]);
    assert_distribution(penalized, 10, by_row_key);
}

#[test]
fn sampler_uniforms_of_neighbours_are_independent() {
    // Pairs of adjacent positions in a 16 x 16 table: 255 degrees of freedom, 330.52 at 0.1 %.
    const PAIRS: usize = 200_000;
    for neighbour in 0..3 {
        let mut case = Case::of(SamplingParams::default());
        let mut counts = [0usize; 256];
        for pair in 0..PAIRS {
            case.row_key = 2 * pair as u64;
            let first = uniform(&case.task());
            let mut other = case.clone();
            match neighbour {
                0 => other.row_key += 1,
                1 => other.sample_index += 1,
                _ => other.output.push(0),
            }
            let second = uniform(&other.task());
            assert!((0.0..1.0).contains(&first));
            counts[(first * 16.0) as usize * 16 + (second * 16.0) as usize] += 1;
        }
        let expected = PAIRS as f64 / 256.0;
        let statistic: f64 =
            counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        assert!(statistic < 330.52, "neighbour {neighbour}: chi-squared {statistic}");
    }
}

// ---- keys ----

/// Sixteen draws from a flat vocabulary of 50 000: two unrelated streams never agree.
fn stream(mut case: Case) -> Vec<u32> {
    let row = vec![0.0; 50_000];
    let mut scratch = SamplerScratch::default();
    for _ in 0..16 {
        let token = case.sampled(&row, &mut scratch);
        case.output.push(token);
    }
    case.output
}

#[test]
fn sampler_streams_depend_on_their_key_alone() {
    let base = Case { row_key: 11, engine_seed: 5, ..Case::default() };
    let want = stream(base.clone());
    assert_eq!(want, stream(base.clone()));
    let mut seen = vec![want];
    for change in 0..6 {
        let mut case = base.clone();
        match change {
            0 => case.row_key = 12,
            1 => case.row_key = 11 << 32,
            2 => case.engine_seed = 6,
            3 => case.sample_index = 1,
            4 => case.params.seed = Some(5),
            _ => case.params.seed = Some(6),
        }
        let got = stream(case);
        assert!(!seen.contains(&got), "change {change} gave a stream that was there before");
        seen.push(got);
    }
    let seeded = Case::of(SamplingParams { seed: Some(5), ..SamplingParams::default() });
    let elsewhere = Case { row_key: 99, engine_seed: 1234, ..seeded.clone() };
    assert_eq!(stream(seeded.clone()), stream(elsewhere), "a row's own seed is its whole key");
    let sibling = Case { sample_index: 1, ..seeded.clone() };
    assert_ne!(stream(seeded), stream(sibling), "completions of one prompt differ");
}

/// From an independent Philox: counter (position, sample index, row key), key (engine seed); of the
/// first two words the upper 53 bits over 2^53, times 50 000.
const PINNED_UNIFORM: f64 = 0.6504486114989642;
const PINNED_STREAM: [u32; 4] = [32522, 49096, 48597, 22417];

/// The streams are part of what a run promises: the same bytes from every build.
#[test]
fn sampler_stream_is_pinned() {
    let case = Case { row_key: 11, engine_seed: 5, ..Case::default() };
    assert_eq!(uniform(&case.task()), PINNED_UNIFORM);
    assert_eq!(stream(case)[..4], PINNED_STREAM);
}
