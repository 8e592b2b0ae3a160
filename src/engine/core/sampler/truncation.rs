//! min-p, top-k and top-p. Each keeps the tokens above a threshold on the logit, so their
//! intersection is one threshold and the vocabulary is never sorted.

use super::SamplingParams;
use super::reduce::{for_each_chunk_reaching, kth_largest, weight};

/// Ranges of logits by which top-p adds up mass: 32 nats below the maximum, then one for the rest,
/// whose weights of at most e^-32 hardly ever decide.
const BUCKETS: usize = 1024;
const BUCKETS_PER_NAT: f32 = 32.0;
/// Values that are looked at together for one that is kept.
const GROUP: usize = 16;

/// The tokens that may be drawn, by ascending token id.
#[derive(Clone, Copy, Debug)]
pub struct Survivors<'a> {
    /// Their logits over temperature. Where `ids` is None: the whole row, masked tokens at -inf.
    pub(super) values: &'a [f32],
    /// Their token ids; None: a token's id is its index.
    pub(super) ids: Option<&'a [u32]>,
    /// Largest of `values`, finite.
    pub(super) max: f32,
}

impl Survivors<'_> {
    /// Token id of an entry of `values`.
    pub(super) fn token_id(&self, index: usize) -> u32 {
        self.ids.map_or(index as u32, |ids| ids[index])
    }

    /// Their ids, ascending; a masked token is none of them.
    pub fn token_ids(&self) -> Vec<u32> {
        let is_alive = |&index: &usize| self.values[index] > f32::NEG_INFINITY;
        (0..self.values.len()).filter(is_alive).map(|index| self.token_id(index)).collect()
    }
}

/// Buffers of `truncate`.
#[derive(Debug, Default)]
pub(super) struct TruncationScratch {
    /// Logits of the survivors.
    values: Vec<f32>,
    /// Ids of the survivors.
    ids: Vec<u32>,
    /// Candidates of top-p, and of the logprobs' top list.
    pub(super) keys: Vec<RankKey>,
    /// (BUCKETS) of top-p.
    bucket_masses: Vec<f64>,
    /// Candidates of `kth_largest`.
    pub(super) selection: Vec<f32>,
}

/// A token such that ascending order is most likely first, ties by lower index: the logit's bits,
/// mapped to descending integers, above the index. Integers sort and select much faster than pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankKey(u64);

impl RankKey {
    pub(super) fn new(value: f32, index: u32) -> Self {
        // Adding 0 turns -0 into 0: they are equal logits and must tie.
        let bits = (value + 0.0).to_bits();
        let is_negative = bits >> 31 == 1;
        let descending = if is_negative { bits } else { !bits & 0x7FFF_FFFF };
        Self(u64::from(descending) << 32 | u64::from(index))
    }

    pub(super) fn value(self) -> f32 {
        let descending = (self.0 >> 32) as u32;
        let is_negative = descending >> 31 == 1;
        f32::from_bits(if is_negative { descending } else { !descending & 0x7FFF_FFFF })
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }
}

/// The last token that is kept, in the order of `RankKey`.
#[derive(Clone, Copy)]
struct Cut {
    value: f32,
    index: u32,
}

impl Cut {
    fn keeps(self, value: f32, index: u32) -> bool {
        (value > self.value) | ((value == self.value) & (index <= self.index))
    }
}

/// min-p, then top-k among those, then top-p with probabilities renormalized over those.
/// `logits` were divided by the temperature; `max` is their finite maximum.
#[inline(always)]
pub(super) fn truncate<'a>(
    logits: &'a [f32],
    max: f32,
    params: &SamplingParams,
    scratch: &'a mut TruncationScratch,
) -> Survivors<'a> {
    let TruncationScratch { values, ids, keys, bucket_masses, selection } = scratch;
    // What min-p keeps are the largest values, so top-k among them is top-k of the row.
    let top_k = params.top_k as usize;
    let is_top_k = top_k > 0 && top_k < logits.len();
    let kth = if is_top_k { kth_largest(logits, top_k, selection) } else { f32::NEG_INFINITY };
    let floor = kth.max(min_p_floor(max, params.min_p));
    let is_cut = floor > f32::NEG_INFINITY;
    if is_cut {
        collect(logits, Cut { value: floor, index: u32::MAX }, values, ids);
    }
    if params.top_p >= 1.0 {
        return match is_cut {
            true => Survivors { values, ids: Some(ids), max },
            false => Survivors { values: logits, ids: None, max },
        };
    }
    let top_p = f64::from(params.top_p);
    if is_cut {
        let cut = top_p_cut(values, max, top_p, bucket_masses, keys);
        retain(cut, values, ids);
    } else {
        let cut = top_p_cut(logits, max, top_p, bucket_masses, keys);
        collect(logits, cut, values, ids);
    }
    Survivors { values, ids: Some(ids), max }
}

/// Least logit whose probability is at least `min_p` times that of the maximum; -inf when off.
fn min_p_floor(max: f32, min_p: f32) -> f32 {
    if min_p <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let floor = f64::from(max) + f64::from(min_p).ln();
    let rounded = floor as f32;
    if f64::from(rounded) < floor { rounded.next_up() } else { rounded }
}

/// Copies out what the cut keeps, by ascending id.
#[inline(always)]
fn collect(logits: &[f32], cut: Cut, values: &mut Vec<f32>, ids: &mut Vec<u32>) {
    values.clear();
    ids.clear();
    for_each_chunk_reaching(logits, cut.value, |start, chunk| {
        let mut kept = values.len();
        values.resize(kept + chunk.len(), 0.0);
        ids.resize(kept + chunk.len(), 0);
        for (number, group) in chunk.chunks(GROUP).enumerate() {
            if !group.iter().fold(false, |any, &value| any | (value >= cut.value)) {
                continue;
            }
            // Every value is written and the dropped ones overwritten: near the cut, a branch would
            // be mispredicted at every other token.
            for (offset, &value) in group.iter().enumerate() {
                let id = (start + number * GROUP + offset) as u32;
                (values[kept], ids[kept]) = (value, id);
                kept += usize::from(cut.keeps(value, id));
            }
        }
        values.truncate(kept);
        ids.truncate(kept);
    });
}

/// Drops from the survivors what the cut, in terms of their indices, does not keep.
#[inline(always)]
fn retain(cut: Cut, values: &mut Vec<f32>, ids: &mut Vec<u32>) {
    let mut kept = 0;
    for index in 0..values.len() {
        if cut.keeps(values[index], index as u32) {
            values[kept] = values[index];
            ids[kept] = ids[index];
            kept += 1;
        }
    }
    values.truncate(kept);
    ids.truncate(kept);
}

/// Where top-p cuts. vLLM sorts ascending and drops while the cumulative probability is <= 1 - p,
/// never the last. Seen from above, a token stays when the mass of all before it is < p. Masses of
/// narrow ranges of logits tell in which range that happens; only its tokens are sorted. Of equal
/// logits the higher index goes first (vLLM leaves their order to an unstable sort).
#[inline(always)]
fn top_p_cut(
    values: &[f32],
    max: f32,
    top_p: f64,
    bucket_masses: &mut Vec<f64>,
    keys: &mut Vec<RankKey>,
) -> Cut {
    add_bucket_masses(values, max, bucket_masses);
    // Summed in the order in which `above` grows, so that `above` does reach the nucleus.
    let nucleus = top_p * bucket_masses.iter().fold(0.0, |sum, mass| sum + mass);
    let (mut above, mut boundary) = (0.0, 0);
    while above + bucket_masses[boundary] < nucleus {
        above += bucket_masses[boundary];
        boundary += 1;
    }
    // One bucket's width of margin against rounding: the bucket is compared, not the floor.
    let is_last = boundary == BUCKETS - 1;
    let depth = if is_last { f32::INFINITY } else { (boundary + 1) as f32 / BUCKETS_PER_NAT };
    keys.clear();
    for_each_chunk_reaching(values, max - depth, |start, chunk| {
        for (offset, &value) in chunk.iter().enumerate() {
            if bucket(value, max) == boundary {
                keys.push(RankKey::new(value, (start + offset) as u32));
            }
        }
    });
    keys.sort_unstable();
    let mut last = keys[0];
    for &key in keys.iter() {
        if above >= nucleus {
            break;
        }
        last = key;
        above += weight(key.value(), max);
    }
    Cut { value: last.value(), index: last.index() }
}

/// (BUCKETS) sum of the weights in each bucket, by ascending index.
#[inline(always)]
fn add_bucket_masses(values: &[f32], max: f32, bucket_masses: &mut Vec<f64>) {
    bucket_masses.clear();
    bucket_masses.resize(BUCKETS, 0.0);
    for chunk in values.chunks(64) {
        // Apart from the additions, so that the compiler can vectorize the exponentials.
        let mut weights = [0.0; 64];
        let mut buckets = [0; 64];
        for ((weight_of, bucket_of), &value) in weights.iter_mut().zip(&mut buckets).zip(chunk) {
            *weight_of = weight(value, max);
            *bucket_of = bucket(value, max) as u32;
        }
        for (&bucket_of, &weight_of) in buckets.iter().zip(&weights).take(chunk.len()) {
            bucket_masses[bucket_of as usize] += weight_of;
        }
    }
}

/// Range of logits that a value is in: 0 at the maximum, never less for a smaller value.
#[inline(always)]
fn bucket(value: f32, max: f32) -> usize {
    let depth = (max - value) * BUCKETS_PER_NAT;
    let last = (BUCKETS - 1) as f32;
    let clamped = if depth < last { depth } else { last };
    // Adding 2^23 rounds to an integer and leaves it in the low mantissa bits.
    ((clamped + 8_388_608.0).to_bits() & 0x007F_FFFF) as usize
}
