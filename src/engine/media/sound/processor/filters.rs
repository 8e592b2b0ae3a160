//! Bands of the mel scale, as `mel_filter_bank` of transformers makes them with the scale and the
//! norm of Slaney.

/// Weights of the frequencies of a band, all others being zero.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filter {
    first: usize,
    weights: Vec<f64>,
}

/// The highest frequency, whatever the rate.
const MAX_HERTZ: f64 = 8000.0;

/// The frequency and the mel where the scale is a logarithm from.
const MIN_LOG: (f64, f64) = (1000.0, 15.0);

/// Bands of a spectrum of so many samples.
pub(super) fn slaney(num_mels: usize, n_fft: usize, rate: u32) -> Vec<Filter> {
    let most = mel(MAX_HERTZ);
    let edge = |at: usize| hertz(most * at as f64 / (num_mels + 1) as f64);
    let edges: Vec<f64> = (0..num_mels + 2).map(edge).collect();
    let frequency = |bin: usize| bin as f64 * f64::from(rate / 2) / (n_fft / 2) as f64;
    let band = |edges: &[f64]| {
        let &[low, centre, high] = edges else { unreachable!("windows of three") };
        let weight = |bin| {
            let up = (frequency(bin) - low) / (centre - low);
            let down = (high - frequency(bin)) / (high - centre);
            let weight = up.min(down).max(0.0) * 2.0 / (high - low);
            f64::from(weight as f32)
        };
        let weights: Vec<f64> = (0..=n_fft / 2).map(weight).collect();
        let first = weights.iter().position(|weight| *weight > 0.0).unwrap_or_default();
        let end = weights.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
        Filter { first, weights: weights[first..end].to_vec() }
    };
    edges.windows(3).map(band).collect()
}

impl Filter {
    pub(super) fn sum(&self, power: &[f64]) -> f64 {
        power[self.first..].iter().zip(&self.weights).map(|(power, weight)| power * weight).sum()
    }
}

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn mel(hertz: f64) -> f64 {
    let (min_hertz, min_mel) = MIN_LOG;
    match hertz >= min_hertz {
        true => min_mel + (hertz / min_hertz).ln() / log_step(),
        false => 3.0 * hertz / 200.0,
    }
}

fn hertz(mel: f64) -> f64 {
    let (min_hertz, min_mel) = MIN_LOG;
    match mel >= min_mel {
        true => min_hertz * (log_step() * (mel - min_mel)).exp(),
        false => 200.0 * mel / 3.0,
    }
}
