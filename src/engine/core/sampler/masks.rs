//! Tokens that may not be sampled get a logit of -inf: allow-list, bad words, `min_tokens`.
//! And `logit_bias`, which only shifts.

use super::reduce::sum_weights;
use super::{SampleTask, TokenMask};

/// Applies the masks and the bias in vLLM's order; false when there was nothing to apply.
pub(super) fn apply_masks(logits: &mut [f32], task: &SampleTask, saved: &mut Vec<f32>) -> bool {
    let params = task.params;
    if let Some(allowed) = &params.allowed_token_ids {
        mask_all_but(logits, allowed, saved);
    }
    forbidden_ids(task).for_each(|id| mask(logits, id));
    for &(id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    params.allowed_token_ids.is_some()
        || !task.bad_words_token_ids.is_empty()
        || forbids_stops(task)
        || !params.logit_bias.is_empty()
}

/// Tokens without their bit get -inf, and so do those past the last word; then all but timestamps,
/// where these are likelier together.
pub(super) fn apply_token_mask(logits: &mut [f32], mask: TokenMask<'_>) {
    let TokenMask { words, weighed, .. } = mask;
    let mut chunks = logits.chunks_mut(32);
    for (&word, chunk) in words.iter().zip(&mut chunks) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in chunk.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    chunks.for_each(|chunk| chunk.fill(f32::NEG_INFINITY));
    if let Some(first) = weighed
        && let Some((others, weighed)) = logits.split_at_mut_checked(first as usize)
        && log_of_sum(weighed) > f64::from(max_of(others))
    {
        others.fill(f32::NEG_INFINITY);
    }
}

fn max_of(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The logarithm of the sum of the exponentials.
fn log_of_sum(logits: &[f32]) -> f64 {
    match max_of(logits) {
        f32::NEG_INFINITY => f64::NEG_INFINITY,
        max => f64::from(max) + sum_weights(logits, max).ln(),
    }
}

/// An id beyond the row cannot be sampled anyway (tokenizers may have more ids than the model).
fn mask(logits: &mut [f32], id: u32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

fn mask_all_but(logits: &mut [f32], allowed: &[u32], saved: &mut Vec<f32>) {
    let get = |&id: &u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    saved.clear();
    saved.extend(allowed.iter().map(get));
    logits.fill(f32::NEG_INFINITY);
    for (&id, &value) in allowed.iter().zip(saved.iter()) {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = value;
        }
    }
}

fn forbids_stops(task: &SampleTask) -> bool {
    task.num_output_tokens() < task.params.min_tokens as usize
}

/// The last token of each bad word whose tokens before it end the output, and the stop tokens as
/// long as there are fewer than `min_tokens`.
pub fn forbidden_ids<'a>(task: &SampleTask<'a>) -> impl Iterator<Item = u32> {
    let (output, stop_ids) = (task.output_token_ids, task.stop_ids);
    let of_word = move |word: &'a Vec<u32>| {
        let (&last, before) = word.split_last()?;
        output.ends_with(before).then_some(last)
    };
    let stops = stop_ids.eos_token_id.iter().chain(&stop_ids.stop_token_ids).copied();
    let stops = forbids_stops(task).then_some(stops).into_iter().flatten();
    task.bad_words_token_ids.iter().filter_map(of_word).chain(stops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_come_where_they_are_likelier_together() {
        let mask = |weighed| TokenMask { words: &[0b11_1111], only: None, weighed };
        let of = |logits: [f32; 6], weighed| {
            let mut logits = logits;
            apply_token_mask(&mut logits, mask(weighed));
            logits
        };
        // Together 2.1 and 1.1, against 2.
        let (more, less) = ([2.0, 0.0, 1.0, 1.0, 1.0, -9.0], [2.0, 0.0, 0.0, 0.0, 0.0, -9.0]);
        assert_eq!(of(more, Some(2))[..3], [f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0]);
        assert_eq!(of(less, Some(2)), less);
        assert_eq!(of(more, None), more);
    }
}
