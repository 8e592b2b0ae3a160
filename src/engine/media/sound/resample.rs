//! Another rate, by torchaudio's filter in 64 bits: a sinc of six zero crossings under a Hann
//! window, cut off at 0.99 of the lower rate's half.

use std::f64::consts::PI;

/// Zero crossings on each side.
const WIDTH: f64 = 6.0;

/// Where the filter cuts off, of the lower rate's half.
const ROLLOFF: f64 = 0.99;

/// Samples that there are at another rate.
pub(super) fn num_samples(count: u64, from: u32, to: u32) -> u64 {
    let (from, to) = reduced(from, to);
    (count * to).div_ceil(from)
}

fn reduced(from: u32, to: u32) -> (u64, u64) {
    let (mut a, mut b) = (u64::from(from), u64::from(to));
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (u64::from(from) / a, u64::from(to) / a)
}

/// The taps of one phase: where they begin, from the sample that the output's time falls on.
struct Phase {
    first: i64,
    taps: Vec<f32>,
}

/// Samples at another rate. Those before the first and behind the last are zero.
pub(super) fn resample(values: &[f32], from: u32, to: u32) -> Vec<f32> {
    let count = num_samples(values.len() as u64, from, to) as usize;
    let (from, to) = reduced(from, to);
    let base = from.min(to) as f64 * ROLLOFF;
    let num_phases = to.min(count as u64);
    let phases: Vec<Phase> =
        (0..num_phases).map(|phase| Phase::new(phase, (from, to), base)).collect();
    let mut output = Vec::with_capacity(count);
    for at in 0..count as u64 {
        let (block, phase) = (at / to, &phases[(at % to) as usize]);
        let first = (block * from) as i64 + phase.first;
        let skipped = (-first).clamp(0, phase.taps.len() as i64) as usize;
        let samples = values.get((first + skipped as i64) as usize..).unwrap_or_default();
        let mut sum = 0.0f32;
        for (sample, tap) in samples.iter().zip(&phase.taps[skipped..]) {
            sum += sample * tap;
        }
        output.push(sum);
    }
    output
}

impl Phase {
    fn new(phase: u64, (from, to): (u64, u64), base: f64) -> Self {
        let (from, start) = (from as f64, phase as f64 / to as f64);
        let centre = start * from;
        let reach = WIDTH * from / base;
        let first = (centre - reach).ceil() as i64;
        let last = (centre + reach).floor() as i64;
        let tap = |index: i64| {
            let time = ((index as f64 / from - start) * base).clamp(-WIDTH, WIDTH);
            let window = (time * PI / WIDTH / 2.0).cos().powi(2);
            let time = time * PI;
            let sinc = if time == 0.0 { 1.0 } else { time.sin() / time };
            (sinc * window * base / from) as f32
        };
        Phase { first, taps: (first..=last).map(tap).collect() }
    }
}
