//! From bytes to the numbers of a tower, with the roundings of transformers.

use crate::resize::Backend;

/// Scale, mean and deviation of each band. A band has 256 values, so a table holds all.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalization {
    /// What a byte is multiplied with, if anything.
    pub(super) rescale_factor: Option<f64>,
    /// Means and deviations of red, green and blue, if there are any.
    pub(super) mean_and_std: Option<([f64; 3], [f64; 3])>,
    /// The model makes -1 to 1 of 0 to 1.
    pub(super) is_centred: bool,
    pub(super) backend: Backend,
}

impl Normalization {
    /// The number of each byte, for red, green and blue.
    pub fn tables(&self) -> [[f32; 256]; 3] {
        let mut tables = [[0.0; 256]; 3];
        for (band, table) in tables.iter_mut().enumerate() {
            for (byte, number) in table.iter_mut().enumerate() {
                let value = self.number(byte as u8, band);
                *number = if self.is_centred { 2.0 * (value - 0.5) } else { value };
            }
        }
        tables
    }

    fn number(&self, byte: u8, band: usize) -> f32 {
        let value = f32::from(byte);
        match (self.mean_and_std, self.rescale_factor, self.backend) {
            (None, None, _) => value,
            (None, Some(factor), Backend::Torchvision) => value * factor as f32,
            (None, Some(factor), Backend::Pillow) => (f64::from(byte) * factor) as f32,
            // Fused: mean and deviation are brought to the scale of bytes.
            (Some((mean, std)), factor, Backend::Torchvision) => {
                let scale = factor.map_or(1.0, |factor| (1.0 / factor) as f32);
                (value - mean[band] as f32 * scale) / (std[band] as f32 * scale)
            }
            (Some((mean, std)), factor, Backend::Pillow) => {
                let value = (f64::from(byte) * factor.unwrap_or(1.0)) as f32;
                (value - mean[band] as f32) / std[band] as f32
            }
        }
    }
}
