//! Scans of a progressive frame: a band of coefficients, or one bit more of them.

use super::bits::Bits;
use super::frame::Frame;
use super::huffman::Table;
use super::scan::{BlockCoder, Part, Plane, ZIGZAG, dc_difference};
use super::{MediaError, damaged};

/// Which coefficients a scan has, and which bits of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Bits below this one were not in the scans before; 0 is the first scan.
    pub(super) high: u32,
    /// Bits below this one come later.
    pub(super) low: u32,
}

impl Band {
    pub(super) fn is_right(&self, num_components: usize) -> bool {
        let is_band = match self.start {
            0 => self.end == 0,
            start => start <= self.end && self.end < 64 && num_components == 1,
        };
        is_band && self.low <= 13 && (self.high == 0 || self.high == self.low + 1)
    }
}

pub(super) struct Progressive<'a> {
    frame: &'a Frame,
    parts: &'a [Part],
    dc: Vec<Table>,
    ac: Vec<Table>,
    band: Band,
    planes: &'a mut [Plane],
    last_dc: [i32; 4],
    /// Blocks to come without anything new in this band.
    end_of_band_run: u32,
}

impl<'a> Progressive<'a> {
    pub(super) fn new(
        frame: &'a Frame,
        parts: &'a [Part],
        (dc, ac): (Vec<Table>, Vec<Table>),
        band: Band,
        planes: &'a mut [Plane],
    ) -> Self {
        let (last_dc, end_of_band_run) = ([0; 4], 0);
        Progressive { frame, parts, dc, ac, band, planes, last_dc, end_of_band_run }
    }
}

impl BlockCoder for Progressive<'_> {
    fn block(
        &mut self,
        bits: &mut Bits,
        part: usize,
        at: (usize, usize),
    ) -> Result<(), MediaError> {
        let component = self.parts[part].component;
        let across = self.frame.components[component].blocks_across;
        let block = &mut self.planes[component].coefficients[at.1 * across + at.0];
        let (band, run) = (self.band, &mut self.end_of_band_run);
        match (band.start, band.high) {
            (0, 0) => {
                let difference = dc_difference(&self.dc[part], bits)?;
                self.last_dc[part] = self.last_dc[part].wrapping_add(difference);
                block[0] = (self.last_dc[part] << band.low) as i16;
                Ok(())
            }
            (0, _) => {
                block[0] |= (bits.take(1)? << band.low) as i16;
                Ok(())
            }
            (_, 0) => first_of_band(&self.ac[part], bits, band, run, block),
            _ => refine_band(&self.ac[part], bits, band, run, block),
        }
    }

    fn restart(&mut self) {
        self.last_dc = [0; 4];
        self.end_of_band_run = 0;
    }
}

/// How many blocks end here, this one among them.
fn read_run(bits: &mut Bits, size: u32) -> Result<u32, MediaError> {
    let below = if size == 0 { 0 } else { bits.take(size)? as u32 };
    Ok((1 << size) + below)
}

fn first_of_band(
    table: &Table,
    bits: &mut Bits,
    band: Band,
    end_of_band_run: &mut u32,
    block: &mut [i16; 64],
) -> Result<(), MediaError> {
    if *end_of_band_run > 0 {
        *end_of_band_run -= 1;
        return Ok(());
    }
    let mut place = band.start;
    while place <= band.end {
        let symbol = table.decode(bits)?;
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            place += run as usize;
            if place > band.end {
                return Err(damaged("a block with too much in it"));
            }
            let value = bits.take_signed(size)?;
            block[usize::from(ZIGZAG[place])] = (value << band.low) as i16;
            place += 1;
        } else if run == 15 {
            place += 16;
        } else {
            *end_of_band_run = read_run(bits, run)? - 1;
            break;
        }
    }
    Ok(())
}

fn refine_band(
    table: &Table,
    bits: &mut Bits,
    band: Band,
    end_of_band_run: &mut u32,
    block: &mut [i16; 64],
) -> Result<(), MediaError> {
    let one = 1_i16 << band.low;
    let mut place = band.start;
    while *end_of_band_run == 0 && place <= band.end {
        let symbol = table.decode(bits)?;
        let (mut run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let value = match size {
            0 if run < 15 => {
                *end_of_band_run = read_run(bits, run)?;
                break;
            }
            0 => 0,
            1 => {
                if bits.take(1)? == 1 {
                    one
                } else {
                    -one
                }
            }
            _ => return Err(damaged("a refinement of more than a bit")),
        };
        // Coefficients that are known get their bit on the way; the run counts those that are not.
        while place <= band.end {
            let known = &mut block[usize::from(ZIGZAG[place])];
            if *known != 0 {
                refine(known, one, bits)?;
            } else if run == 0 {
                *known = value;
                place += 1;
                break;
            } else {
                run -= 1;
            }
            place += 1;
        }
    }
    if *end_of_band_run > 0 {
        for &at in &ZIGZAG[place..band.end + 1] {
            let known = &mut block[usize::from(at)];
            if *known != 0 {
                refine(known, one, bits)?;
            }
        }
        *end_of_band_run -= 1;
    }
    Ok(())
}

fn refine(known: &mut i16, one: i16, bits: &mut Bits) -> Result<(), MediaError> {
    if bits.take(1)? == 1 && *known & one == 0 {
        *known = if *known > 0 { known.wrapping_add(one) } else { known.wrapping_sub(one) };
    }
    Ok(())
}
