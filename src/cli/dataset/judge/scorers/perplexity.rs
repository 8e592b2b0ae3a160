//! The log-likelihood of a text, per word and per byte, as lm-evaluation-harness sums it up.

use serde::Deserialize;

/// What a row says of its text (`loglikelihood`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Loglikelihood {
    /// Natural logarithm of the probability of the whole text.
    pub logprob: f64,
    /// Runs between white space.
    pub num_words: f64,
    /// Of UTF-8.
    pub num_bytes: f64,
}

impl Loglikelihood {
    /// The text is as likely as this many bits per byte say, less than nothing, so that more is
    /// better; None of an empty text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        (self.num_bytes > 0.0).then(|| self.logprob / (self.num_bytes * std::f64::consts::LN_2))
    }

    /// The same of both texts.
    pub fn add(&mut self, other: &Self) {
        self.logprob += other.logprob;
        self.num_words += other.num_words;
        self.num_bytes += other.num_bytes;
    }

    /// The measures of all texts together, by their names in lm-evaluation-harness.
    pub fn measures(&self) -> [(&'static str, f64); 3] {
        [
            ("bits_per_byte", -self.logprob / (self.num_bytes * std::f64::consts::LN_2)),
            ("byte_perplexity", (-self.logprob / self.num_bytes).exp()),
            ("word_perplexity", (-self.logprob / self.num_words).exp()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_of_sums() {
        let mut all = Loglikelihood::default();
        for (logprob, num_words, num_bytes) in [(-8.0, 2.0, 10.0), (-4.0, 1.0, 6.0)] {
            all.add(&Loglikelihood { logprob, num_words, num_bytes });
        }
        let [bits, bytes, words] = all.measures().map(|(_, value)| value);
        assert_eq!((bytes, words), (0.75f64.exp(), 4f64.exp()));
        assert!((bits - 0.75 / 2f64.ln()).abs() < 1e-15);
        assert_eq!(Loglikelihood::default().bits_per_byte(), None);
    }
}
