//! SplitMix64 (Steele, Lea and Flood, 2014).

/// Step of the state from one number to the next.
pub const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of a state: states that differ in any bit have numbers that look unrelated.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_published_ones() {
        let numbers =
            [1u64, 2, 3].map(|index| mix(1234567u64.wrapping_add(index.wrapping_mul(GAMMA))));
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }
}
