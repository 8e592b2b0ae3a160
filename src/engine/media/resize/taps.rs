//! The weights of an axis, and sums with them.

use std::f64::consts::PI;

use super::{Backend, Filter};

/// Bits behind the point of Pillow's weights, and the most of torchvision's.
const MAX_BITS: u32 = 22;

/// For each place of the new axis: which pixels of the old one count, and how much.
pub(super) struct Taps {
    /// The first pixel, and where its weight is.
    places: Vec<(usize, usize)>,
    /// Weights of all places, times two to the power of `bits`.
    weights: Vec<i32>,
    bits: u32,
}

impl Taps {
    pub(super) fn new(from: usize, to: usize, filter: Filter, backend: Backend) -> Self {
        let scale = from as f64 / to as f64;
        let filter_scale = scale.max(1.0);
        let support = filter.support() * filter_scale;
        let (mut places, mut exact) = (Vec::with_capacity(to), Vec::new());
        for place in 0..to {
            let center = (place as f64 + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            places.push((first, exact.len()));
            let start = exact.len();
            exact.extend(
                (first..end)
                    .map(|at| filter.weight((at as f64 - center + 0.5) * (1.0 / filter_scale))),
            );
            let sum: f64 = exact[start..].iter().sum();
            if sum != 0.0 {
                exact[start..].iter_mut().for_each(|weight| *weight /= sum);
            }
        }
        let bits = match backend {
            Backend::Pillow => MAX_BITS,
            Backend::Torchvision => torchvision_bits(&exact),
        };
        let one = f64::from(1_u32 << bits);
        let weights = exact.iter().map(|weight| rounded(weight * one)).collect();
        Taps { places, weights, bits }
    }

    /// The first pixel of a place, and the weights from it on.
    pub(super) fn at(&self, place: usize) -> (usize, &[i32]) {
        let (first, start) = self.places[place];
        let end = self.places.get(place + 1).map_or(self.weights.len(), |&(_, end)| end);
        (first, &self.weights[start..end])
    }

    fn half(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// A row, `[width, 3]`, to its new width.
    pub(super) fn along_row(&self, from: &[u8], to: &mut [u8]) {
        let from = from.as_chunks::<3>().0;
        for (place, to) in to.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (first, weights) = self.at(place);
            let mut sums = [self.half(); 3];
            for (pixel, &weight) in from[first..].iter().zip(weights) {
                for (sum, &sample) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(sample);
                }
            }
            *to = sums.map(|sum| (sum >> self.bits).clamp(0, 255) as u8);
        }
    }

    /// The sum of rows, each with its weight.
    pub(super) fn over_rows<'a>(
        &self,
        rows: impl Iterator<Item = (&'a i32, &'a [u8])>,
        sums: &mut Vec<i32>,
        to: &mut [u8],
    ) {
        sums.clear();
        sums.resize(to.len(), self.half());
        for (&weight, row) in rows {
            for (sum, &sample) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(sample);
            }
        }
        for (to, &sum) in to.iter_mut().zip(sums.iter()) {
            *to = (sum >> self.bits).clamp(0, 255) as u8;
        }
    }
}

/// Half away from zero.
fn rounded(weight: f64) -> i32 {
    if weight < 0.0 { (weight - 0.5) as i32 } else { (weight + 0.5) as i32 }
}

/// As many bits as keep the largest weight of an axis in 16.
fn torchvision_bits(weights: &[f64]) -> u32 {
    let largest = weights.iter().fold(0.0, |largest: f64, &weight| largest.max(weight));
    let fits = |bits: u32| (0.5 + largest * f64::from(1_u32 << (bits + 1))) as i64 <= 0x7fff;
    (0..MAX_BITS).take_while(|&bits| fits(bits)).count() as u32
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let away = x.abs();
        match self {
            Filter::Bilinear if away < 1.0 => 1.0 - away,
            Filter::Bicubic if away < 1.0 => ((A + 2.0) * away - (A + 3.0)) * away * away + 1.0,
            Filter::Bicubic if away < 2.0 => (((away - 5.0) * away + 8.0) * away - 4.0) * A,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}
