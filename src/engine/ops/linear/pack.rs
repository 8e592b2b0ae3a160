//! From matrices as files hold them to panels.

use half::{bf16, f16};

use crate::engine::config::DType;
use crate::engine::device::pages::Pages;
use crate::engine::device::split_mix::{GAMMA, mix};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::thread_pool::ThreadPool;

use crate::engine::ops::gemm::panel::PanelElement;

/// A matrix that can be read element by element: bytes of a weight file, or made up.
#[derive(Clone, Copy, Debug)]
pub struct SourceMatrix<'a> {
    /// Rows: outputs of a linear layer.
    pub num_rows: usize,
    /// Columns: its inputs.
    pub num_columns: usize,
    /// Where values come from.
    pub values: SourceValues<'a>,
}

/// Where the values of a `SourceMatrix` come from.
#[derive(Clone, Copy, Debug)]
pub enum SourceValues<'a> {
    /// Little-endian elements, row-major, of any alignment.
    Bytes(DType, &'a [u8]),
    /// Uniform in [-scale, scale], a pure function of seed and index.
    Random {
        /// Seed of this tensor.
        seed: u64,
        /// Largest absolute value.
        scale: f32,
    },
    /// One value everywhere.
    Constant(f32),
    /// Row-major values.
    Slice(&'a [f32]),
}

impl<'a> SourceMatrix<'a> {
    /// Elements of a weight file.
    ///
    /// # Panics
    /// The bytes are not as many as the shape asks for.
    pub fn from_bytes(num_rows: usize, num_columns: usize, dtype: DType, bytes: &'a [u8]) -> Self {
        assert_eq!(bytes.len(), num_rows * num_columns * dtype.size_bytes());
        Self { num_rows, num_columns, values: SourceValues::Bytes(dtype, bytes) }
    }

    /// Seeded random values.
    pub fn random(num_rows: usize, num_columns: usize, seed: u64, scale: f32) -> Self {
        Self { num_rows, num_columns, values: SourceValues::Random { seed, scale } }
    }

    /// One element.
    #[inline(always)]
    pub fn value(&self, row: usize, column: usize) -> f32 {
        let index = row * self.num_columns + column;
        match self.values {
            SourceValues::Bytes(DType::Float32, bytes) => {
                let at = index * 4;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
            SourceValues::Bytes(DType::BFloat16, bytes) => {
                bf16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32()
            }
            SourceValues::Bytes(DType::Float16, bytes) => {
                f16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32()
            }
            SourceValues::Random { seed, scale } => scale * uniform(seed, index as u64),
            SourceValues::Constant(value) => value,
            SourceValues::Slice(values) => values[index],
        }
    }

    /// Little-endian elements of `dtype` from element `first` on, as many as `out` has room for.
    pub(super) fn write_as(&self, dtype: DType, first: usize, out: &mut [u8]) {
        let size = dtype.size_bytes();
        for (index, bytes) in (first..).zip(out.chunks_exact_mut(size)) {
            let value = self.value(index / self.num_columns, index % self.num_columns);
            match dtype {
                DType::Float32 => bytes.copy_from_slice(&value.to_le_bytes()),
                DType::BFloat16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                DType::Float16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            }
        }
    }

    /// All values in row-major order.
    pub fn to_vec(&self) -> Vec<f32> {
        let rows = 0..self.num_rows;
        rows.flat_map(|row| (0..self.num_columns).map(move |column| self.value(row, column)))
            .collect()
    }
}

/// Uniform in [-1, 1): number `index` of SplitMix64.
fn uniform(seed: u64, index: u64) -> f32 {
    let z = mix(seed.wrapping_add((index + 1).wrapping_mul(GAMMA)));
    (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Panels of all rows of `parts`; lanes past the last row, and what fills a last pair, are zero.
pub(super) fn pack<E: PanelElement>(
    pool: &ThreadPool,
    parts: &[SourceMatrix<'_>],
    panel_width: usize,
) -> Pages<E> {
    let k = parts[0].num_columns;
    let n: usize = parts.iter().map(|part| part.num_rows).sum();
    let num_panels = n.div_ceil(panel_width);
    let panel_len = panel_width * k.next_multiple_of(2);
    let mut panels = Pages::zeroed_huge(num_panels * panel_len);
    let shared = SharedMut::new(&mut panels);
    pool.run(num_panels, &|_, panel| {
        // SAFETY: each item writes its own panel.
        let out = unsafe { shared.slice(panel * panel_len, panel_len) };
        // Blocks of columns, so that the part of the panel that all lanes write stays in the cache.
        for first in (0..k).step_by(PACK_COLUMNS) {
            let columns = first..(first + PACK_COLUMNS).min(k);
            for lane in 0..panel_width.min(n - panel * panel_width) {
                let (part, row) = locate(parts, panel * panel_width + lane);
                pack_lane(part, (row, columns.clone()), out, (lane, panel_width));
            }
        }
    });
    panels
}

/// Inputs of a panel that are packed at a time.
const PACK_COLUMNS: usize = 256;

/// Some columns of one row into its lane of a panel.
fn pack_lane<E: PanelElement>(
    part: &SourceMatrix<'_>,
    (row, columns): (usize, std::ops::Range<usize>),
    panel: &mut [E],
    (lane, panel_width): (usize, usize),
) {
    if let SourceValues::Bytes(dtype, bytes) = part.values
        && dtype == E::DTYPE
    {
        let size = dtype.size_bytes();
        let start = row * part.num_columns;
        let bytes = &bytes[(start + columns.start) * size..(start + columns.end) * size];
        for (column, bytes) in columns.zip(bytes.chunks_exact(size)) {
            panel[E::index(column, lane, panel_width)] = E::from_le_bytes(bytes);
        }
        return;
    }
    for column in columns {
        panel[E::index(column, lane, panel_width)] = E::from_f32(part.value(row, column));
    }
}

/// Panels of bf16 as words of two inputs each.
pub(super) fn pairs_as_words(panels: &[bf16]) -> &[u32] {
    // SAFETY: any bits are a u32.
    let (before, words, after) = unsafe { panels.align_to::<u32>() };
    assert!(before.is_empty() && after.is_empty(), "panels begin at a page");
    words
}

/// Which part holds row `row` of the stacked parts, and where.
fn locate<'a, 'b>(parts: &'b [SourceMatrix<'a>], mut row: usize) -> (&'b SourceMatrix<'a>, usize) {
    for part in parts {
        if row < part.num_rows {
            return (part, row);
        }
        row -= part.num_rows;
    }
    unreachable!("row {row} is past the last part")
}

/// One panel, widened: (k, width).
pub(super) fn widen_panel<E: PanelElement>(
    panels: &[E],
    panel: usize,
    (k, width): (usize, usize),
    out: &mut [f32],
) {
    let panel_len = width * k.next_multiple_of(2);
    let panel = &panels[panel * panel_len..][..panel_len];
    for (column, row) in out.chunks_exact_mut(width).enumerate() {
        for (lane, value) in row.iter_mut().enumerate() {
            *value = panel[E::index(column, lane, width)].to_f32();
        }
    }
}

/// One row of the packed matrix, widened.
pub(super) fn copy_row<E: PanelElement>(
    panels: &[E],
    row: usize,
    panel_width: usize,
    out: &mut [f32],
) {
    let panel_len = panel_width * out.len().next_multiple_of(2);
    let panel = &panels[row / panel_width * panel_len..][..panel_len];
    for (column, value) in out.iter_mut().enumerate() {
        *value = panel[E::index(column, row % panel_width, panel_width)].to_f32();
    }
}
