//! The frame: size, components, and how their blocks lie.

use super::segments::FrameKind;
use super::{MediaError, damaged, unsupported};

/// One component, and how many samples and blocks it has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Samples across in the space in which the frame has `max_h`.
    pub(super) h: usize,
    pub(super) v: usize,
    pub(super) table: usize,
    /// Samples that are of the image.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Blocks with what fills the last units up.
    pub(super) blocks_across: usize,
    pub(super) blocks_down: usize,
}

impl Component {
    /// Blocks that hold a sample of the image: those of a scan of this component alone.
    pub(super) fn own_blocks(&self) -> (usize, usize) {
        (self.width.div_ceil(8), self.height.div_ceil(8))
    }
}

/// The frame's header.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) max_h: usize,
    pub(super) max_v: usize,
    pub(super) components: Vec<Component>,
}

impl Frame {
    pub(super) fn parse(kind: FrameKind, segment: &[u8]) -> Result<Self, MediaError> {
        let &[precision, h1, h0, w1, w0, count, ref rest @ ..] = segment else {
            return Err(damaged("a short frame"));
        };
        let count = usize::from(count);
        if rest.len() != count * 3 {
            return Err(damaged("a frame of another length"));
        }
        if precision != 8 {
            return Err(unsupported(&format!("{precision} bits for each sample")));
        }
        let width = usize::from(u16::from_be_bytes([w1, w0]));
        let height = usize::from(u16::from_be_bytes([h1, h0]));
        if height == 0 {
            return Err(unsupported("its height behind the pixels"));
        }
        if width == 0 {
            return Err(damaged("no columns"));
        }
        if ![1, 3, 4].contains(&count) {
            return Err(unsupported(&format!("{count} components")));
        }
        let mut components = Vec::new();
        for part in rest.chunks_exact(3) {
            let (h, v) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) || part[2] > 3 {
                return Err(damaged("a component out of range"));
            }
            let (id, table) = (part[0], usize::from(part[2]));
            components.push(Component { id, h, v, table, ..Component::default() });
        }
        let max_h = components.iter().map(|component| component.h).max().unwrap_or(1);
        let max_v = components.iter().map(|component| component.v).max().unwrap_or(1);
        let mut frame = Frame { kind, width, height, max_h, max_v, components };
        let (units_across, units_down) = frame.units();
        for component in &mut frame.components {
            if max_h % component.h != 0 || max_v % component.v != 0 {
                return Err(unsupported("samples that are no whole multiple of others"));
            }
            component.width = (width * component.h).div_ceil(max_h);
            component.height = (height * component.v).div_ceil(max_v);
            component.blocks_across = units_across * component.h;
            component.blocks_down = units_down * component.v;
        }
        Ok(frame)
    }

    /// Units of a scan of all components.
    pub(super) fn units(&self) -> (usize, usize) {
        (self.width.div_ceil(self.max_h * 8), self.height.div_ceil(self.max_v * 8))
    }

    /// Whether so many bytes can hold the blocks: each takes a bit for each of its two codes, and
    /// in a progressive frame one.
    pub(super) fn fits_in(&self, num_bytes: usize) -> bool {
        let blocks = |component: &Component| {
            let (across, down) = component.own_blocks();
            across * down
        };
        let num_blocks: usize = self.components.iter().map(blocks).sum();
        num_blocks <= num_bytes.saturating_mul(8)
    }
}
