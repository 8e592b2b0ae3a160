//! Components with fewer samples than pixels, widened as libjpeg's "fancy" upsampling does.

use super::frame::{Component, Frame};

/// Rows of a component at the image's size, made one at a time.
pub(super) struct Upsampler<'a> {
    samples: &'a [u8],
    stride: usize,
    width: usize,
    height: usize,
    factor_h: usize,
    factor_v: usize,
    /// Sums of two rows, of h2v2.
    sums: Vec<u16>,
}

impl<'a> Upsampler<'a> {
    pub(super) fn new(frame: &Frame, component: &Component, samples: &'a [u8]) -> Self {
        Upsampler {
            samples,
            stride: component.blocks_across * 8,
            width: component.width,
            height: component.height,
            factor_h: frame.max_h / component.h,
            factor_v: frame.max_v / component.v,
            sums: Vec::new(),
        }
    }

    fn row(&self, row: usize) -> &'a [u8] {
        &self.samples[row * self.stride..][..self.width]
    }

    /// The nearer row of samples, and the one on the other side of image row `y`. Beyond the edge
    /// there is the edge again.
    fn two_rows(&self, y: usize) -> (&'a [u8], &'a [u8]) {
        let near = y / 2;
        let far = match y % 2 {
            0 => near.saturating_sub(1),
            _ => (near + 1).min(self.height - 1),
        };
        (self.row(near), self.row(far))
    }

    /// Row `y` of the image into `out`, which has room for whole samples.
    pub(super) fn upsample(&mut self, y: usize, out: &mut Vec<u8>) {
        out.clear();
        match (self.factor_h, self.factor_v) {
            (1, 1) => out.extend_from_slice(self.row(y)),
            (2, 1) if self.width > 2 => h2v1(self.row(y), out),
            (2, 2) if self.width > 2 => {
                let (near, far) = self.two_rows(y);
                let sums =
                    near.iter().zip(far).map(|(&near, &far)| 3 * u16::from(near) + u16::from(far));
                self.sums.clear();
                self.sums.extend(sums);
                h2v2(&self.sums, out);
            }
            (1, 2) => {
                let (near, far) = self.two_rows(y);
                let bias = 1 + (y % 2) as u16;
                out.extend(near.iter().zip(far).map(|(&near, &far)| {
                    ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8
                }));
            }
            (factor_h, factor_v) => {
                let row = self.row(y / factor_v).iter();
                out.extend(row.flat_map(|&sample| std::iter::repeat_n(sample, factor_h)));
            }
        }
    }
}

/// Two pixels of each sample, three quarters of it and one of its neighbour.
fn h2v1(row: &[u8], out: &mut Vec<u8>) {
    let wide = |index: usize| u16::from(row[index]);
    let last = row.len() - 1;
    out.push(row[0]);
    out.push(((3 * wide(0) + wide(1) + 2) >> 2) as u8);
    for window in row.windows(3) {
        let [before, here, after] = [window[0], window[1], window[2]].map(u16::from);
        out.push(((3 * here + before + 1) >> 2) as u8);
        out.push(((3 * here + after + 2) >> 2) as u8);
    }
    out.push(((3 * wide(last) + wide(last - 1) + 1) >> 2) as u8);
    out.push(row[last]);
}

/// As `h2v1`, over sums that weigh four.
fn h2v2(sums: &[u16], out: &mut Vec<u8>) {
    let last = sums.len() - 1;
    out.push(((4 * sums[0] + 8) >> 4) as u8);
    out.push(((3 * sums[0] + sums[1] + 7) >> 4) as u8);
    for window in sums.windows(3) {
        let &[before, here, after] = window else { continue };
        out.push(((3 * here + before + 8) >> 4) as u8);
        out.push(((3 * here + after + 7) >> 4) as u8);
    }
    out.push(((3 * sums[last] + sums[last - 1] + 8) >> 4) as u8);
    out.push(((4 * sums[last] + 7) >> 4) as u8);
}
