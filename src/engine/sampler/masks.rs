//! Tokens that may not be sampled get a logit of -inf: allow-list, bad words, `min_tokens`.
//! And `logit_bias`, which only shifts.

use super::SampleTask;

/// Applies the masks and the bias in vLLM's order; false when there was nothing to apply.
pub(super) fn apply_masks(logits: &mut [f32], task: &SampleTask, saved: &mut Vec<f32>) -> bool {
    let params = task.params;
    let masks_stops = task.output_token_ids.len() < params.min_tokens as usize;
    if let Some(allowed) = &params.allowed_token_ids {
        mask_all_but(logits, allowed, saved);
    }
    for word in task.bad_words_token_ids {
        mask_bad_word(logits, word, task.output_token_ids);
    }
    if masks_stops {
        for &id in task.stop_ids.eos_token_id.iter().chain(&task.stop_ids.stop_token_ids) {
            mask(logits, id);
        }
    }
    for &(id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    params.allowed_token_ids.is_some()
        || !task.bad_words_token_ids.is_empty()
        || masks_stops
        || !params.logit_bias.is_empty()
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

/// Bans the word's last token when the output ends with the ones before it.
fn mask_bad_word(logits: &mut [f32], word: &[u32], output: &[u32]) {
    if let Some((&last, before)) = word.split_last()
        && output.ends_with(before)
    {
        mask(logits, last);
    }
}
