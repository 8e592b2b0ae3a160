//! Random numbers of a seed.

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    /// Uniform in 0..=max.
    pub fn up_to(&mut self, max: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % (max as u64 + 1)) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.up_to(times - 1) == 0
    }
}
