//! Rotary embeddings as data: the frequencies of a kind of layer.

use std::f64::consts::PI;

/// A rotary embedding (transformers, `modeling_rope_utils.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Values of a head that turn: the first ones.
    pub rotary_dim: usize,
    /// Stretching of frequencies for longer contexts.
    pub scaling: RopeScaling,
    /// (rotary_dim / 2) what turns each pair of values, where tokens have positions on several
    /// axes. Empty: there is one, and frequencies follow each other.
    pub axes: Vec<AxisFrequency>,
}

/// What turns a pair of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisFrequency {
    /// Which of a token's three positions.
    pub axis: u8,
    /// Which of the frequencies of the rotary embedding.
    pub frequency: u16,
}

impl AxisFrequency {
    /// Frequencies that follow each other, as many on each axis as it has: one axis after the
    /// other, or by turns, as long as each of the two behind the first has any.
    pub fn sections(sections: [usize; 3], is_interleaved: bool) -> Vec<Self> {
        let len: usize = sections.iter().sum();
        let axis = |index: usize| match (is_interleaved, index % 3) {
            (false, _) if index < sections[0] => 0,
            (false, _) if index < sections[0] + sections[1] => 1,
            (false, _) => 2,
            (true, axis) if axis > 0 && index < 3 * sections[axis] => axis,
            (true, _) => 0,
        };
        let of_pair = |index| Self { axis: axis(index) as u8, frequency: index as u16 };
        (0..len).map(of_pair).collect()
    }

    /// Every second frequency from these on: of rows, and behind them of columns.
    pub fn rows_and_columns(num_frequencies: usize, first: [u16; 2]) -> Vec<Self> {
        let of_axis = |axis: u8| {
            let frequencies = first[usize::from(axis)]..num_frequencies as u16;
            frequencies.step_by(2).map(move |frequency| Self { axis, frequency })
        };
        of_axis(0).chain(of_axis(1)).collect()
    }
}

/// Stretching of rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No stretching.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below original / this are high frequencies.
        high_freq_factor: f64,
        /// Context length of the first training.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al., 2023).
    Yarn(Yarn),
    /// LongRoPE (Ding et al., 2024): one divisor per frequency.
    LongRope(LongRope),
    /// A base that grows with the context, chosen once for a run by its `max_model_len`: at each
    /// length anew, as transformers does it, K in the cache would be wrong.
    Dynamic {
        /// The factor of the context.
        factor: f64,
        /// Context length up to which nothing is stretched.
        max_position_embeddings: f64,
    },
    /// Gemma 4: a part of the frequencies of the whole head turn, the rest stand still.
    Proportional {
        /// Frequencies that turn.
        num_turning: usize,
        /// The divisor.
        factor: f64,
    },
}

/// YaRN's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The divisor of low frequencies.
    pub factor: f64,
    /// Turns over the original context above which a frequency is kept.
    pub beta_fast: f64,
    /// Turns below which it is divided.
    pub beta_slow: f64,
    /// The ramp between begins and ends at whole frequencies.
    pub truncate: bool,
    /// Context length of the first training.
    pub original_max_position_embeddings: f64,
    /// Factor of sine and cosine.
    pub attention_factor: f64,
}

/// LongRoPE's parameters. Which divisors hold is chosen once for a run by its `max_model_len`, as
/// in vLLM.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors of runs whose `max_model_len` is at most the original context, (rotary_dim / 2).
    pub short_factor: Vec<f64>,
    /// Divisors of longer ones, (rotary_dim / 2).
    pub long_factor: Vec<f64>,
    /// Context length of the first training.
    pub original_max_position_embeddings: f64,
    /// Factor of sine and cosine.
    pub attention_factor: f64,
}

/// Parameters of a rotary table.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// (rotary_dim / 2) radians per position.
    pub inv_freq: Vec<f32>,
    /// Factor of sine and cosine.
    pub factor: f32,
}

impl RopeSpec {
    /// Tokens have positions on several axes.
    pub fn has_axes(&self) -> bool {
        !self.axes.is_empty()
    }

    /// The frequencies of a run with this context length.
    pub fn frequencies(&self, max_model_len: usize) -> Frequencies {
        let (dim, len) = (self.rotary_dim as f64, max_model_len as f64);
        let theta = match self.scaling {
            RopeScaling::Dynamic { factor, max_position_embeddings: max } if len > max => {
                self.theta * (factor * len / max - (factor - 1.0)).powf(dim / (dim - 2.0))
            }
            _ => self.theta,
        };
        let plain = |i: usize| 1.0 / theta.powf(2.0 * i as f64 / dim);
        let stretched = |i: usize| match &self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => plain(i),
            RopeScaling::Linear { factor } => plain(i) / factor,
            RopeScaling::Llama3 { .. } => self.scaling.stretch_llama3(plain(i)),
            RopeScaling::Yarn(yarn) => {
                let kept = yarn.kept_share(i, dim, theta);
                plain(i) / yarn.factor * (1.0 - kept) + plain(i) * kept
            }
            RopeScaling::LongRope(rope) => plain(i) / rope.factors(len)[i],
            RopeScaling::Proportional { num_turning, .. } if i >= *num_turning => 0.0,
            RopeScaling::Proportional { factor, .. } => plain(i) / factor,
        };
        let factor = match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            RopeScaling::LongRope(rope) => rope.attention_factor,
            _ => 1.0,
        };
        let inv_freq = match &self.axes[..] {
            [] => (0..self.rotary_dim / 2).map(|i| stretched(i) as f32).collect(),
            axes => axes.iter().map(|pair| stretched(pair.frequency.into()) as f32).collect(),
        };
        Frequencies { inv_freq, factor: factor as f32 }
    }

    /// Choice for a run by its context length, if there was one.
    pub fn choice(&self, max_model_len: usize) -> Option<String> {
        let len = max_model_len as f64;
        match &self.scaling {
            RopeScaling::LongRope(rope) if rope.long_factor == rope.short_factor => None,
            RopeScaling::LongRope(rope) => {
                let original = rope.original_max_position_embeddings;
                let which = if len > original { "long" } else { "short" };
                Some(format!(
                    "rotary embeddings have longrope's {which} factors: `settings.max_model_len` is \
                     {max_model_len}, the model was first trained for {original}"
                ))
            }
            RopeScaling::Dynamic { max_position_embeddings: max, .. } if len > *max => {
                Some(format!(
                    "rotary embeddings are stretched for `settings.max_model_len` {max_model_len} in every \
                     row; up to {max} they would not be"
                ))
            }
            _ => None,
        }
    }
}

impl RopeScaling {
    /// The context length of a model that has these `max_position_embeddings` (vLLM,
    /// `_get_and_verify_max_len`): some configs give the stretched length, others do not.
    pub fn context_len(&self, max_position_embeddings: usize) -> usize {
        let stretched = match self {
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. } => {
                max_position_embeddings as f64 * factor
            }
            RopeScaling::Yarn(yarn) => yarn.original_max_position_embeddings * yarn.factor,
            _ => return max_position_embeddings,
        };
        stretched as usize
    }

    fn stretch_llama3(&self, inv_freq: f64) -> f64 {
        let &RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        } = self
        else {
            return inv_freq;
        };
        let turns = original * inv_freq / (2.0 * PI);
        let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
    }
}

impl Yarn {
    /// Share of frequency i that is kept.
    fn kept_share(&self, i: usize, dim: f64, theta: f64) -> f64 {
        // The frequency that turns so often over the original context.
        let frequency = |turns: f64| {
            let original = self.original_max_position_embeddings;
            dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (frequency(self.beta_fast), frequency(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        1.0 - ((i as f64 - low) / width).clamp(0.0, 1.0)
    }
}

impl LongRope {
    fn factors(&self, max_model_len: f64) -> &[f64] {
        match max_model_len > self.original_max_position_embeddings {
            true => &self.long_factor,
            false => &self.short_factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_divides_low_keeps_high_and_ramps_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let wavelength = |length: f64| 2.0 * PI / length;
        let stretch = |inv_freq| scaling.stretch_llama3(inv_freq);
        assert_eq!(stretch(wavelength(100.0)), wavelength(100.0));
        assert_eq!(stretch(wavelength(10_000.0)), wavelength(10_000.0) / 8.0);
        let middle = wavelength(8192.0 / 2.5);
        assert!((stretch(middle) / middle - (0.5 / 8.0 + 0.5)).abs() < 1e-12);
    }

    #[test]
    fn longrope_and_dynamic_are_chosen_by_the_context_of_the_run() {
        let scaling = RopeScaling::LongRope(LongRope {
            short_factor: vec![1.0, 2.0],
            long_factor: vec![4.0, 8.0],
            original_max_position_embeddings: 64.0,
            attention_factor: 1.5,
        });
        let rope = RopeSpec { theta: 100.0, rotary_dim: 4, scaling, axes: Vec::new() };
        let expected = |inv_freq: [f32; 2]| Frequencies { inv_freq: inv_freq.into(), factor: 1.5 };
        assert_eq!(rope.frequencies(64), expected([1.0, 0.05]));
        assert_eq!(rope.frequencies(65), expected([0.25, 0.0125]));
        assert!(rope.choice(65).unwrap().contains("long factors"));

        let scaling = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 64.0 };
        assert_eq!(scaling.context_len(64), 128);
        let rope = RopeSpec { theta: 100.0, rotary_dim: 4, scaling, axes: Vec::new() };
        assert_eq!(rope.frequencies(64).inv_freq, [1.0, 0.1]);
        assert_eq!(rope.choice(64), None);
        // theta * (2 * 128 / 64 - 1)^2 = 900.
        assert_eq!(rope.frequencies(128).inv_freq, [1.0, 1.0 / 30.0]);
    }

    #[test]
    fn proportional_turns_some_frequencies_of_the_whole_head() {
        let scaling = RopeScaling::Proportional { num_turning: 2, factor: 2.0 };
        let rope = RopeSpec { theta: 16.0, rotary_dim: 8, scaling, axes: Vec::new() };
        assert_eq!(rope.frequencies(64).inv_freq, [0.5, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn pairs_may_have_frequencies_in_another_order() {
        let mut rope =
            RopeSpec { theta: 16.0, rotary_dim: 8, scaling: RopeScaling::None, axes: Vec::new() };
        let plain = rope.frequencies(64);
        rope.axes = AxisFrequency::sections([1, 2, 1], false);
        assert_eq!(rope.frequencies(64), plain);
        let pair = |axis, frequency| AxisFrequency { axis, frequency };
        rope.axes = vec![pair(0, 0), pair(0, 2), pair(1, 0), pair(1, 2)];
        assert_eq!(rope.frequencies(64).inv_freq, [1.0, 0.25, 1.0, 0.25]);
    }

    #[test]
    fn sections_are_one_after_the_other_or_by_turns() {
        let axes = |sections, is_interleaved| {
            let pairs = AxisFrequency::sections(sections, is_interleaved);
            assert!(pairs.iter().zip(0..).all(|(pair, index)| pair.frequency == index));
            pairs.iter().map(|pair| pair.axis).collect::<Vec<_>>()
        };
        assert_eq!(axes([2, 3, 3], false), [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(axes([4, 2, 2], true), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(axes([3, 3, 2], true), [0, 1, 2, 0, 1, 2, 0, 1]);
    }
}
