//! Matrices whose products show any other order of summation in the bits of the result.

use super::key::GemmType;
use vllm_batch_base::split_mix::{GAMMA, mix};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A value of about the normal distribution, times a power of two up to 2^spread or down to
    /// 2^-spread. Never 0.
    pub fn value(&mut self, spread: u32) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xFFFF).sum();
        let normal = (sum as f32 - 131_070.5) / 37_837.0;
        let exponent = (self.next() % u64::from(2 * spread + 1)) as i32 - spread as i32;
        normal * (exponent as f32).exp2()
    }

    /// A random matching of 0..k.
    pub fn pairs(&mut self, k: usize) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..k).collect();
        for i in (1..k).rev() {
            order.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
        order.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
    }
}

/// Rows of x and rows of w.
pub(super) struct Adversary {
    /// (num_x, k)
    pub x: Vec<u8>,
    /// (num_w, k)
    pub w: Vec<u8>,
}

impl Adversary {
    /// Exponents vary widely. Every second row cancels: it holds each value twice, at the places of
    /// a matching that x and w share, in x with both signs. The product of two such rows is exactly
    /// 0, so what is computed is nothing but the roundings along the way.
    pub(super) fn new(num_x: usize, num_w: usize, k: usize, kind: GemmType) -> Self {
        let mut random = Random(0x5EED ^ (k as u64) << 16);
        let pairs = random.pairs(k);
        let mut rows = |count: usize, sign: f32| {
            let mut bytes = Vec::with_capacity(count * k * kind.bytes());
            let mut row = vec![0.0; k];
            for index in 0..count {
                row.fill_with(|| random.value(spread(kind)));
                if index % 2 == 0 {
                    pairs.iter().for_each(|&(a, b)| row[b] = sign * row[a]);
                }
                row.iter().for_each(|&value| encode(value, kind, &mut bytes));
            }
            bytes
        };
        Self { x: rows(num_x, -1.0), w: rows(num_w, 1.0) }
    }
}

/// Spread of exponents: as much as sums of f16 allow, and all that E4M3 has.
fn spread(kind: GemmType) -> u32 {
    match kind {
        GemmType::Bf16 | GemmType::F32 => 5,
        GemmType::F16 => 2,
        GemmType::Fp8E4m3 => 6,
    }
}

/// Appends a value, cut to the type's precision and to the range of its normal numbers.
pub(super) fn encode(value: f32, kind: GemmType, out: &mut Vec<u8>) {
    let bits = value.to_bits();
    let small = |exponent_bits: u32, mantissa_bits: u32| {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let exponent = (bits >> 23 & 0xFF) as i32 - 127 + bias;
        let exponent = exponent.clamp(1, (1 << exponent_bits) - 2) as u32;
        let mantissa = (bits & 0x7F_FFFF) >> (23 - mantissa_bits);
        (bits >> 31) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa
    };
    match kind {
        GemmType::Bf16 => out.extend_from_slice(&(small(8, 7) as u16).to_le_bytes()),
        GemmType::F16 => out.extend_from_slice(&(small(5, 10) as u16).to_le_bytes()),
        GemmType::F32 => out.extend_from_slice(&bits.to_le_bytes()),
        GemmType::Fp8E4m3 => out.push(small(4, 3) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_to_each_type() {
        let bytes = |value, kind| {
            let mut out = Vec::new();
            encode(value, kind, &mut out);
            out
        };
        assert_eq!(bytes(-1.5, GemmType::Bf16), 0xBFC0_u16.to_le_bytes());
        assert_eq!(bytes(-1.5, GemmType::F16), 0xBE00_u16.to_le_bytes());
        assert_eq!(bytes(-1.5, GemmType::Fp8E4m3), [0xBC]);
        assert_eq!(bytes(-1.5, GemmType::F32), (-1.5_f32).to_le_bytes());
        // The largest E4M3 would be next to its NaN.
        assert_eq!(bytes(1e9, GemmType::Fp8E4m3)[0] >> 3, 14);
        assert_eq!(bytes(1e-9, GemmType::Fp8E4m3)[0] >> 3, 1);
    }

    #[test]
    fn cancelling_rows_have_a_product_of_zero_that_depends_on_the_order() {
        let k = 512;
        let data = Adversary::new(2, 2, k, GemmType::F32);
        let floats = |bytes: &[u8]| -> Vec<f32> {
            let words = bytes.chunks_exact(4);
            words.map(|word| f32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
        };
        let (x, w) = (floats(&data.x), floats(&data.w));
        let products: Vec<f32> = x[..k].iter().zip(&w[..k]).map(|(x, w)| x * w).collect();
        assert!(products.iter().map(|&p| f64::from(p)).sum::<f64>().abs() < 1e-6);
        let (low, high) = products.split_at(k / 2);
        let forward: f32 = products.iter().sum();
        let halves = low.iter().sum::<f32>() + high.iter().sum::<f32>();
        assert_ne!(forward.to_bits(), halves.to_bits());
    }
}
