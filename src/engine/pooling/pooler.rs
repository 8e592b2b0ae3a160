//! From the states of a text's tokens to its vector: pure functions, in one order.

use super::{Pooling, PoolingParams, PoolingType};

impl Pooling {
    /// The vector of a text, whose tokens have these states (tokens, width): pooled, cut to its
    /// `dimensions`, normalized, in this order as in vLLM.
    pub(super) fn vector(&self, states: &[f32], width: usize, params: &PoolingParams) -> Vec<f32> {
        let mut vector = match self.pooling_type {
            PoolingType::Cls => states[..width].to_vec(),
            PoolingType::Last => states[states.len() - width..].to_vec(),
            PoolingType::Mean => mean(states, width),
        };
        vector.truncate(params.dimensions.unwrap_or(width));
        if params.normalize.unwrap_or(self.normalize) {
            normalize(&mut vector);
        }
        vector
    }
}

/// Sums over tokens upward, in f32, divided by their number.
fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f32; width];
    for state in states.chunks_exact(width) {
        sums.iter_mut().zip(state).for_each(|(sum, value)| *sum += value);
    }
    let num_tokens = (states.len() / width) as f32;
    sums.iter_mut().for_each(|sum| *sum /= num_tokens);
    sums
}

/// Divides by the length, which is 1e-12 at least, as PyTorch's `normalize` has it.
fn normalize(vector: &mut [f32]) {
    let squares = vector.iter().map(|value| f64::from(*value) * f64::from(*value));
    let length = squares.sum::<f64>().sqrt().max(1e-12) as f32;
    vector.iter_mut().for_each(|value| *value /= length);
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [f32; 6] = [3.0, 4.0, 1.0, 2.0, 0.5, 0.0];

    fn vector(pooling_type: PoolingType, params: PoolingParams) -> Vec<f32> {
        let pooling = Pooling { pooling_type, ..Pooling::default() };
        pooling.vector(&STATES, 2, &params)
    }

    #[test]
    fn each_type_takes_its_tokens() {
        let raw = || PoolingParams { normalize: Some(false), ..PoolingParams::default() };
        assert_eq!(vector(PoolingType::Cls, raw()), [3.0, 4.0]);
        assert_eq!(vector(PoolingType::Last, raw()), [0.5, 0.0]);
        assert_eq!(vector(PoolingType::Mean, raw()), [1.5, 2.0]);
    }

    #[test]
    fn a_vector_is_cut_before_it_is_normalized() {
        let one = PoolingParams { dimensions: Some(1), ..PoolingParams::default() };
        assert_eq!(vector(PoolingType::Cls, one), [1.0]);
        assert_eq!(vector(PoolingType::Cls, PoolingParams::default()), [0.6, 0.8]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
    }
}
