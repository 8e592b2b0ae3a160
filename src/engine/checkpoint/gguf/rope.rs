//! The rotary embedding of a GGUF file: keys, and tensors of divisors, to `rope_theta` and
//! `rope_scaling` of config.json.

use std::f64::consts::PI;

use serde_json::{Value, json};

use super::config::Config;
use super::names::Moved;
use crate::spec::RowOrder;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::QkvHeads;

/// llama.cpp's base where a file has none.
const BASE: f64 = 10_000.0;

impl Config<'_> {
    /// `rope_theta`, `partial_rotary_factor`, `rope_scaling`.
    pub(super) fn rope(&mut self) -> Result<(), String> {
        let theta = self.keys.float("rope.freq_base")?.unwrap_or(BASE);
        self.set("rope_theta", theta);
        self.rotary_part()?;
        if let Some(scaling) = self.rope_scaling(theta)? {
            self.set("rope_scaling", scaling);
        }
        Ok(())
    }

    /// `partial_rotary_factor`: llama.cpp rotates whole heads where the file does not say.
    pub(super) fn rotary_part(&mut self) -> Result<(), String> {
        let head_dim = self.head_dim()?;
        let rotary_dim = self.keys.optional_size("rope.dimension_count")?.unwrap_or(head_dim);
        self.set("partial_rotary_factor", rotary_dim as f64 / head_dim as f64);
        Ok(())
    }

    /// How frequencies are stretched.
    pub(super) fn rope_scaling(&self, theta: f64) -> Result<Option<Value>, String> {
        let keys = &self.keys;
        // That the weights were trained with it.
        keys.ignore(&["rope.scaling.finetuned"]);
        let old_factor = keys.float("rope.scale_linear")?;
        let factor = keys.float("rope.scaling.factor")?.or(old_factor).filter(|f| *f != 0.0);
        let original = keys.optional_size("rope.scaling.original_context_length")?;
        let attention_factor = keys.float("rope.scaling.attn_factor")?;
        if let Some(divisors) = keys.vector("rope_freqs.weight") {
            return Ok(Some(of_divisors(divisors, theta, keys.size("context_length")?)));
        }
        let (long, short) =
            (keys.vector("rope_factors_long.weight"), keys.vector("rope_factors_short.weight"));
        if let Some((long, short)) = long.zip(short) {
            keys.ignore(&["rope.scaling.type"]);
            return Ok(Some(json!({"rope_type": "longrope",
                "long_factor": shortest(long), "short_factor": shortest(short),
                "original_max_position_embeddings": original,
                "attention_factor": attention_factor})));
        }
        match (keys.text("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None | Some("linear"), None | Some(1.0)) => Ok(None),
            (None | Some("linear"), Some(factor)) => {
                Ok(Some(json!({"rope_type": "linear", "factor": factor})))
            }
            (Some("yarn"), Some(factor)) => {
                if keys.float("rope.scaling.yarn_ext_factor")?.is_some_and(|f| f != 1.0) {
                    return Err("rope.scaling.yarn_ext_factor is not supported".to_owned());
                }
                // llama.cpp's converter writes transformers' factor of sine and cosine here, which
                // is above 1, or vLLM's factor of that factor, which is not.
                let given = keys.float("rope.scaling.yarn_attn_factor")?;
                let (whole, part) = (given.filter(|f| *f > 1.0), given.filter(|f| *f <= 1.0));
                Ok(Some(json!({"rope_type": "yarn", "factor": factor,
                    "original_max_position_embeddings": original,
                    "attention_factor": whole, "attn_factor": part,
                    "beta_fast": keys.float("rope.scaling.yarn_beta_fast")?,
                    "beta_slow": keys.float("rope.scaling.yarn_beta_slow")?})))
            }
            (Some(other), _) => {
                Err(format!("rope scaling {} without its numbers is not supported", quoted(other)))
            }
        }
    }
}

/// Where rows of q and k go whose rotary pairs are halves of what turns, and neighbours in
/// transformers.
pub(super) fn from_halves(heads: QkvHeads, rotary_dim: usize) -> Vec<(&'static str, Moved)> {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let moved = |(part, num_heads)| {
        let order = RowOrder::heads_in_pairs(num_heads, head_dim, rotary_dim).inverse();
        Some((part, Moved::Rows(order.rows()?.clone())))
    };
    [("attn_q", num_heads), ("attn_k", num_kv_heads)].into_iter().filter_map(moved).collect()
}

/// Numbers of 32 bits with the fewest digits, as config.json has them.
pub(super) fn shortest(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| number.to_string().parse().unwrap_or(f64::NAN)).collect()
}

/// Llama 3's scaling where the divisors are those of its usual numbers: then frequencies have the
/// bits of the original model. Else the divisors themselves.
fn of_divisors(divisors: &[f32], theta: f64, context_len: u64) -> Value {
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let llama3 = llama3_divisors(f64::from(factor), theta, divisors.len());
    let is_close = |(divisor, expected): (&f32, f64)| {
        (f64::from(*divisor) - expected).abs() <= 1e-4 * expected
    };
    match divisors.iter().zip(llama3).all(is_close) {
        true => json!({"rope_type": "llama3", "factor": shortest(&[factor])[0],
            "low_freq_factor": LOW_FREQ_FACTOR, "high_freq_factor": HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": ORIGINAL_LEN}),
        false => {
            let divisors = shortest(divisors);
            json!({"rope_type": "longrope", "attention_factor": 1.0, "long_factor": divisors,
                "short_factor": divisors, "original_max_position_embeddings": context_len})
        }
    }
}

/// What all models with Llama 3's scaling have.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
const ORIGINAL_LEN: f64 = 8192.0;

/// llama.cpp's `conversion/llama.py`, `generate_extra_tensors`.
fn llama3_divisors(factor: f64, theta: f64, len: usize) -> impl Iterator<Item = f64> {
    (0..len).map(move |index| {
        let frequency = theta.powf(-(index as f64) / len as f64);
        let turns = ORIGINAL_LEN * frequency / (2.0 * PI);
        let smooth = (turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR);
        let smooth = smooth.clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / factor + smooth)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_is_known_by_its_divisors() {
        let divisors: Vec<f32> = llama3_divisors(32.0, 5e5, 32).map(|d| d as f32).collect();
        assert_eq!((divisors[0], divisors[31]), (1.0, 32.0));
        let scaling = of_divisors(&divisors, 5e5, 131_072);
        assert_eq!((&scaling["rope_type"], &scaling["factor"]), (&json!("llama3"), &json!(32.0)));
        for (theta, changed) in [(5e5, 7), (1e6, 0)] {
            let mut divisors = divisors.clone();
            divisors[changed] *= 1.001;
            let scaling = of_divisors(&divisors, theta, 131_072);
            assert_eq!(scaling["rope_type"], json!("longrope"));
            assert_eq!(scaling["short_factor"], json!(shortest(&divisors)));
        }
    }
}
