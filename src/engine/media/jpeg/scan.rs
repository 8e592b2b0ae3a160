//! Scans: which blocks they code, in which order; sequential blocks become samples at once.

use super::bits::Bits;
use super::frame::Frame;
use super::huffman::Table;
use super::idct::{idct, idct_flat};
use super::progressive::{Band, Progressive};
use super::segments::FrameKind;
use super::{MediaError, damaged};

/// Scans of a file: progressive ones have ten or so. Each costs time for all blocks.
const MAX_SCANS: usize = 256;

/// Places of coefficients, in the order of the file.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// What has been decoded of a component.
#[derive(Default)]
pub(super) struct Plane {
    /// `[blocks_down * 8, blocks_across * 8]`
    pub(super) samples: Vec<u8>,
    /// `[blocks_down, blocks_across]`, of a progressive frame.
    pub(super) coefficients: Vec<[i16; 64]>,
    /// The table as it was at the component's first scan.
    quantization: Option<[u16; 64]>,
}

/// Tables and planes, from segment to segment.
#[derive(Default)]
pub(super) struct Decoder {
    frame: Option<Frame>,
    quantization: [Option<[u16; 64]>; 4],
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
    restart_interval: usize,
    planes: Vec<Plane>,
    num_scans: usize,
}

/// What a scan does with its blocks.
pub(super) trait BlockCoder {
    /// Decodes the block of the scan's component `part` that lies at a place of its plane.
    fn block(&mut self, bits: &mut Bits, part: usize, at: (usize, usize))
    -> Result<(), MediaError>;

    /// An interval ended.
    fn restart(&mut self);
}

impl Decoder {
    pub(super) fn start_frame(
        &mut self,
        kind: FrameKind,
        segment: &[u8],
        num_bytes: usize,
    ) -> Result<(), MediaError> {
        if self.frame.is_some() {
            return Err(damaged("a second frame"));
        }
        let frame = Frame::parse(kind, segment)?;
        if !frame.fits_in(num_bytes) {
            return Err(damaged("it has more pixels than its bytes can hold"));
        }
        for component in &frame.components {
            let num_blocks = component.blocks_across * component.blocks_down;
            let mut plane = Plane::default();
            match kind {
                FrameKind::Sequential => plane.samples = vec![0; num_blocks * 64],
                FrameKind::Progressive => plane.coefficients = vec![[0; 64]; num_blocks],
            }
            self.planes.push(plane);
        }
        self.frame = Some(frame);
        Ok(())
    }

    pub(super) fn read_quantization(&mut self, mut segment: &[u8]) -> Result<(), MediaError> {
        while let Some((&first, rest)) = segment.split_first() {
            let len = if first >> 4 == 0 { 64 } else { 128 };
            if first & 15 > 3 || first >> 4 > 1 || rest.len() < len {
                return Err(damaged("a quantization table out of range"));
            }
            let mut table = [0; 64];
            for (index, &place) in ZIGZAG.iter().enumerate() {
                table[usize::from(place)] = match len {
                    64 => u16::from(rest[index]),
                    _ => u16::from_be_bytes([rest[index * 2], rest[index * 2 + 1]]),
                };
            }
            self.quantization[usize::from(first & 15)] = Some(table);
            segment = &rest[len..];
        }
        Ok(())
    }

    pub(super) fn read_huffman(&mut self, mut segment: &[u8]) -> Result<(), MediaError> {
        while let [first, rest @ ..] = segment {
            let short = || damaged("a short table of codes");
            let counts: &[u8; 16] = rest.first_chunk().ok_or_else(short)?;
            let num_symbols: usize = counts.iter().map(|&count| usize::from(count)).sum();
            let symbols = rest.get(16..16 + num_symbols).ok_or_else(short)?;
            let table = Table::new(counts, symbols)?;
            match (first >> 4, usize::from(first & 15)) {
                (0, index @ 0..=3) => self.dc[index] = Some(table),
                (1, index @ 0..=3) => self.ac[index] = Some(table),
                _ => return Err(damaged("a table of codes out of range")),
            }
            segment = &rest[16 + num_symbols..];
        }
        Ok(())
    }

    pub(super) fn read_restart_interval(&mut self, segment: &[u8]) -> Result<(), MediaError> {
        let &[high, low] = segment else { return Err(damaged("a restart interval")) };
        self.restart_interval = usize::from(u16::from_be_bytes([high, low]));
        Ok(())
    }

    /// Decodes a scan, and says how many of `data`'s bytes it takes.
    pub(super) fn decode_scan(&mut self, segment: &[u8], data: &[u8]) -> Result<usize, MediaError> {
        self.num_scans += 1;
        if self.num_scans > MAX_SCANS {
            return Err(damaged("more scans than pictures have"));
        }
        let frame = self.frame.as_ref().ok_or_else(|| damaged("a scan without a frame"))?;
        let (parts, band) = parse_scan(frame, segment)?;
        for part in &parts {
            let plane = &mut self.planes[part.component];
            if plane.quantization.is_none() {
                let table = self.quantization[frame.components[part.component].table];
                plane.quantization = Some(table.ok_or_else(|| damaged("no quantization table"))?);
            }
        }
        let table = |tables: &'_ [Option<Table>; 4], index: usize| {
            tables[index].clone().ok_or_else(|| damaged("a table of codes is missing"))
        };
        let needs = |is_dc: bool| match frame.kind {
            FrameKind::Sequential => true,
            FrameKind::Progressive if is_dc => band.start == 0 && band.high == 0,
            FrameKind::Progressive => band.start > 0,
        };
        let (mut dc, mut ac) = (Vec::new(), Vec::new());
        for part in &parts {
            if needs(true) {
                dc.push(table(&self.dc, part.dc)?);
            }
            if needs(false) {
                ac.push(table(&self.ac, part.ac)?);
            }
        }
        let mut bits = Bits::new(data);
        let (interval, planes) = (self.restart_interval, self.planes.as_mut_slice());
        let last_dc = [0; 4];
        match frame.kind {
            FrameKind::Sequential => {
                let mut coder = Sequential { frame, parts: &parts, dc, ac, last_dc, planes };
                walk(frame, &parts, interval, &mut bits, &mut coder)?;
            }
            FrameKind::Progressive => {
                let mut coder = Progressive::new(frame, &parts, (dc, ac), band, planes);
                walk(frame, &parts, interval, &mut bits, &mut coder)?;
            }
        }
        Ok(bits.end())
    }

    /// The frame, and the samples of all its components.
    pub(super) fn finish(mut self) -> Result<(Frame, Vec<Vec<u8>>), MediaError> {
        let frame = self.frame.ok_or_else(|| damaged("no frame"))?;
        let mut planes = Vec::new();
        for (component, plane) in frame.components.iter().zip(&mut self.planes) {
            let table = plane.quantization.ok_or_else(|| damaged("a component without a scan"))?;
            if frame.kind == FrameKind::Progressive {
                let coefficients = std::mem::take(&mut plane.coefficients);
                plane.samples = vec![0; coefficients.len() * 64];
                for (index, block) in coefficients.iter().enumerate() {
                    let across = component.blocks_across;
                    let at = (index % across, index / across);
                    put_block(&mut plane.samples, across, at, &idct(block, &table));
                }
            }
            planes.push(std::mem::take(&mut plane.samples));
        }
        Ok((frame, planes))
    }
}

/// A component of a scan, and its tables.
pub(super) struct Part {
    pub(super) component: usize,
    dc: usize,
    ac: usize,
}

fn parse_scan(frame: &Frame, segment: &[u8]) -> Result<(Vec<Part>, Band), MediaError> {
    let bad = || damaged("the header of a scan");
    let (&count, rest) = segment.split_first().ok_or_else(bad)?;
    let count = usize::from(count);
    if !(1..=4).contains(&count) || rest.len() != count * 2 + 3 {
        return Err(bad());
    }
    let mut parts: Vec<Part> = Vec::new();
    for pair in rest[..count * 2].chunks_exact(2) {
        let component = frame.components.iter().position(|component| component.id == pair[0]);
        let component = component.ok_or_else(bad)?;
        let (dc, ac) = (usize::from(pair[1] >> 4), usize::from(pair[1] & 15));
        if dc > 3 || ac > 3 || parts.iter().any(|part| part.component == component) {
            return Err(bad());
        }
        parts.push(Part { component, dc, ac });
    }
    let [start, end, bits] = rest[count * 2..] else { return Err(bad()) };
    let band = Band {
        start: usize::from(start),
        end: usize::from(end),
        high: u32::from(bits >> 4),
        low: u32::from(bits & 15),
    };
    let is_right = frame.kind == FrameKind::Sequential || band.is_right(count);
    if is_right { Ok((parts, band)) } else { Err(bad()) }
}

/// Goes through the blocks of a scan in the order of the file.
fn walk(
    frame: &Frame,
    parts: &[Part],
    interval: usize,
    bits: &mut Bits,
    coder: &mut impl BlockCoder,
) -> Result<(), MediaError> {
    let (units_across, units_down) = match parts {
        [part] => frame.components[part.component].own_blocks(),
        _ => frame.units(),
    };
    for unit in 0..units_across * units_down {
        if interval > 0 && unit > 0 && unit % interval == 0 {
            bits.restart(unit / interval - 1)?;
            coder.restart();
        }
        let (unit_x, unit_y) = (unit % units_across, unit / units_across);
        if parts.len() == 1 {
            coder.block(bits, 0, (unit_x, unit_y))?;
            continue;
        }
        for (part, Part { component, .. }) in parts.iter().enumerate() {
            let (h, v) = (frame.components[*component].h, frame.components[*component].v);
            for block in 0..h * v {
                let at = (unit_x * h + block % h, unit_y * v + block / h);
                coder.block(bits, part, at)?;
            }
        }
    }
    Ok(())
}

struct Sequential<'a> {
    frame: &'a Frame,
    parts: &'a [Part],
    dc: Vec<Table>,
    ac: Vec<Table>,
    last_dc: [i32; 4],
    planes: &'a mut [Plane],
}

impl BlockCoder for Sequential<'_> {
    fn block(
        &mut self,
        bits: &mut Bits,
        part: usize,
        at: (usize, usize),
    ) -> Result<(), MediaError> {
        let component = self.parts[part].component;
        let across = self.frame.components[component].blocks_across;
        let plane = &mut self.planes[component];
        let quantization = plane.quantization.as_ref().expect("set at the scan's start");
        let mut coefficients = [0; 64];
        self.last_dc[part] = self.last_dc[part].wrapping_add(dc_difference(&self.dc[part], bits)?);
        coefficients[0] = self.last_dc[part] as i16;
        let (ac, mut place, mut is_flat) = (&self.ac[part], 1, true);
        while place < 64 {
            let symbol = ac.decode(bits)?;
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if run < 15 {
                    break;
                }
                place += 16;
                continue;
            }
            place += run;
            let at = ZIGZAG.get(place).ok_or_else(|| damaged("a block with too much in it"))?;
            coefficients[usize::from(*at)] = bits.take_signed(size)? as i16;
            is_flat = false;
            place += 1;
        }
        let samples = match is_flat {
            true => [idct_flat(coefficients[0], quantization[0]); 64],
            false => idct(&coefficients, quantization),
        };
        put_block(&mut plane.samples, across, at, &samples);
        Ok(())
    }

    fn restart(&mut self) {
        self.last_dc = [0; 4];
    }
}

/// How a block's first coefficient differs from the one before.
pub(super) fn dc_difference(table: &Table, bits: &mut Bits) -> Result<i32, MediaError> {
    let size = table.decode(bits)?;
    if size > 15 {
        return Err(damaged("a first coefficient out of range"));
    }
    bits.take_signed(u32::from(size))
}

fn put_block(samples: &mut [u8], across: usize, at: (usize, usize), block: &[u8; 64]) {
    let stride = across * 8;
    let first = at.1 * 8 * stride + at.0 * 8;
    for (row, values) in block.chunks_exact(8).enumerate() {
        samples[first + row * stride..][..8].copy_from_slice(values);
    }
}
