//! Indices and their colours.

use crate::rgb::on_white;

/// Colours over white, by index. Those that a file does not have are black, as in Pillow.
pub(super) struct Palette([[u8; 3]; 256]);

impl Palette {
    /// Colours of three bytes, and what covers each of them; the rest are opaque.
    pub(super) fn new(colours: &[u8], alphas: &[u8]) -> Self {
        let mut palette = [[0; 3]; 256];
        for (entry, colour) in palette.iter_mut().zip(colours.as_chunks::<3>().0) {
            *entry = *colour;
        }
        for (entry, &alpha) in palette.iter_mut().zip(alphas) {
            *entry = entry.map(|sample| on_white(sample, alpha));
        }
        Palette(palette)
    }

    /// A ramp of grey.
    pub(super) fn grey() -> Self {
        let mut palette = [[0; 3]; 256];
        for (index, entry) in palette.iter_mut().enumerate() {
            *entry = [index as u8; 3];
        }
        Palette(palette)
    }

    /// White in the place of an index.
    pub(super) fn with_transparent(mut self, index: u8) -> Self {
        self.0[usize::from(index)] = [255; 3];
        self
    }

    pub(super) fn colour(&self, index: u8) -> [u8; 3] {
        self.0[usize::from(index)]
    }
}

/// The samples of a row of `bits` (1, 2, 4 or 8) each, the highest first.
pub(super) fn unpack(row: &[u8], bits: u32) -> impl Iterator<Item = u8> + '_ {
    let mask = 0xff >> (8 - bits);
    row.iter()
        .flat_map(move |&byte| (1..=8 / bits).map(move |place| (byte >> (8 - place * bits)) & mask))
}
