//! Tokens that may not be sampled get a logit of -inf: allow-list, bad words, `min_tokens`.
//! And `logit_bias`, which only shifts.

use super::SampleTask;

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

/// Tokens without their bit get -inf, and so do those past the last word.
pub(super) fn apply_token_mask(logits: &mut [f32], words: &[u32]) {
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
