//! Tiles of rows.

use super::panel::PanelElement;
use super::tile::max_heights;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

/// So many rows by panels of halves take any number of inputs: nothing of a panel is kept.
pub(crate) fn num_short_rows(isa: Isa, is_narrow: bool) -> usize {
    2 * max_heights(isa, is_narrow).0
}

/// Rows cut into tiles, for any number of panels.
///
/// The first tile is short where it widens the panel for the others: that takes registers. Two
/// short ones each widen for themselves: that costs less than to leave the wide panel, twice a
/// panel of halves, in the L2 cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    pub(super) isa: Isa,
    /// Panels are one vector wide, not two.
    pub(super) is_narrow: bool,
    pub(super) num_tiles: usize,
    /// The tile that leaves the panel for the others, or none; then the others, as even as they can
    /// be, the taller ones first.
    pub(super) groups: [Tiles; 3],
}

/// Tiles of one height, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub first_row: usize,
    pub height: usize,
    pub num: usize,
}

impl Tiling {
    /// For panels of E.
    pub(crate) fn new<E: PanelElement>(isa: Isa, is_narrow: bool, num_rows: usize) -> Self {
        let (max_widening, max_height) = max_heights(isa, is_narrow);
        let keeps = !E::IS_WIDE && num_rows > num_short_rows(isa, is_narrow);
        let (num_keeping, max_height) = match (keeps, E::IS_WIDE) {
            (true, _) => (max_widening, max_height),
            (false, true) => (0, max_height),
            (false, false) => (0, max_widening),
        };
        let num_others = num_rows - num_keeping;
        let num = num_others.div_ceil(max_height);
        let (height, num_taller) = (num_others / num, num_others % num);
        let taller = Tiles { first_row: num_keeping, height: height + 1, num: num_taller };
        let first_row = num_keeping + num_taller * taller.height;
        let shorter = Tiles { first_row, height, num: num - num_taller };
        let first = Tiles { first_row: 0, height: num_keeping, num: keeps.into() };
        let num_tiles = num + usize::from(keeps);
        Self { isa, is_narrow, num_tiles, groups: [first, taller, shorter] }
    }

    /// Whether the first tile widens for others, so that pieces of a panel are worth joining.
    pub(crate) fn keeps(&self) -> bool {
        self.groups[0].num > 0
    }

    /// Outputs of a panel.
    pub(super) fn width(&self) -> usize {
        self.isa.num_lanes() * if self.is_narrow { 1 } else { 2 }
    }
}
