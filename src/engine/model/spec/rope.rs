//! Rotary embeddings as data: the frequencies of a kind of layer.

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// How frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// Stretching of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
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
}

impl RopeSpec {
    /// (head_dim / 2) radians per position.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        let plain = |i: usize| 1.0 / self.theta.powf(2.0 * i as f64 / head_dim as f64);
        (0..head_dim / 2).map(|i| self.scaling.stretch(plain(i)) as f32).collect()
    }
}

impl RopeScaling {
    fn stretch(&self, inv_freq: f64) -> f64 {
        match *self {
            RopeScaling::None => inv_freq,
            RopeScaling::Linear { factor } => inv_freq / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let turns = original * inv_freq / (2.0 * std::f64::consts::PI);
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
            }
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
        let wavelength = |length: f64| 2.0 * std::f64::consts::PI / length;
        assert_eq!(scaling.stretch(wavelength(100.0)), wavelength(100.0));
        assert_eq!(scaling.stretch(wavelength(10_000.0)), wavelength(10_000.0) / 8.0);
        let middle = wavelength(8192.0 / 2.5);
        assert!((scaling.stretch(middle) / middle - (0.5 / 8.0 + 0.5)).abs() < 1e-12);
    }
}
