//! From rows of codes to panels.

use std::ops::Range;

use super::layout::{CodePanels, Layout, PanelKind};
use vllm_batch_base::matrix::{CodeKind, Levels, Scales, UNIT};
use vllm_batch_base::matrix::{CodedMatrix, RowScales};
use vllm_batch_base::matrix::{SourceMatrix, SourceRows};
use vllm_batch_device::Cpu;
use vllm_batch_device::tensor::SharedMut;

/// The code of NaN among floats of 8 bits, but for its sign: kernels do not know it.
const FLOAT8_NAN: u8 = 0x7f;

impl CodePanels {
    /// Panels of `width` lanes of all rows, where codes can stay as they are in some of them.
    /// A panel whose rows have codes of several kinds, or none, holds f32.
    pub(crate) fn pack(cpu: &Cpu, rows: &SourceRows<'_>, width: usize) -> Option<Self> {
        let (n, k) = (rows.num_rows(), rows.num_columns());
        let (kinds, by_panel) = kinds_of_panels(rows, (k, width));
        if kinds.iter().all(|kind| *kind == PanelKind::Dense) {
            return None;
        }
        let mut num_words = 0;
        let mut panels = Vec::with_capacity(by_panel.len());
        for kind in by_panel {
            panels.push((kind, num_words));
            num_words += kinds[kind].num_words(k, width);
        }
        let mut words = cpu.loaded_pages(num_words);
        let shared = SharedMut::new(&mut words);
        cpu.pool.run(panels.len(), &|_, index| {
            let (kind, first) = panels[index];
            let kind = &kinds[kind];
            // SAFETY: each item writes its own panel.
            let words = unsafe { shared.slice(first, kind.num_words(k, width)) };
            for lane in 0..width.min(n - index * width) {
                let (matrix, row) = rows.locate(index * width + lane);
                match (kind, matrix.coded(row)) {
                    (PanelKind::Codes(kind, layout), Some((coded, row))) => {
                        Lane { kind, layout, k, width, lane }.pack((coded, row), words);
                    }
                    _ => pack_dense((matrix, row), words, (lane, width)),
                }
            }
        });
        Some(Self { width, k, kinds, panels, words })
    }
}

/// The kinds that there are, and which of them each panel is.
fn kinds_of_panels(
    rows: &SourceRows<'_>,
    (k, width): (usize, usize),
) -> (Vec<PanelKind>, Vec<usize>) {
    let n = rows.num_rows();
    let mut kinds = vec![PanelKind::Dense];
    // Rows of one matrix follow each other, but where an order mixes them.
    let mut last: Option<(*const SourceMatrix<'_>, usize)> = None;
    let mut kind_of = |row: usize| -> usize {
        let (matrix, row) = rows.locate(row);
        if let Some((of, kind)) = last
            && std::ptr::eq(of, matrix)
        {
            return kind;
        }
        let kind = matrix.coded(row).map(|(coded, _)| coded.kind());
        let kind = match kind.filter(CodeKind::is_supported) {
            None => PanelKind::Dense,
            Some(kind) => {
                let layout = Layout::new(&kind, k, width);
                PanelKind::Codes(kind, layout)
            }
        };
        let index = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        last = Some((matrix, index));
        index
    };
    let mut panel_kind = |panel: usize| {
        let lanes = panel * width..((panel + 1) * width).min(n);
        let first = kind_of(lanes.start);
        let is_one = lanes.clone().all(|row| kind_of(row) == first);
        if is_one && !has_float8_nan(rows, lanes) { first } else { 0 }
    };
    let panels = (0..n.div_ceil(width)).map(&mut panel_kind).collect();
    (kinds, panels)
}

/// Whether one of the rows has floats of 8 bits that are no number.
fn has_float8_nan(rows: &SourceRows<'_>, lanes: Range<usize>) -> bool {
    let mut codes = Vec::new();
    lanes.into_iter().any(|row| {
        let (matrix, row) = rows.locate(row);
        let coded = matrix.coded(row).filter(|(coded, _)| coded.kind().levels == Levels::Float8);
        coded.is_some_and(|(coded, row)| {
            codes.resize(rows.num_columns(), 0);
            coded.read_codes(row, 0..rows.num_columns(), &mut codes);
            codes.iter().any(|code| code & FLOAT8_NAN == FLOAT8_NAN)
        })
    })
}

/// A row of f32 into its lane.
fn pack_dense(
    (matrix, row): (&SourceMatrix<'_>, usize),
    words: &mut [u32],
    (lane, width): (usize, usize),
) {
    const COLUMNS: usize = 256;
    let k = matrix.num_columns;
    let mut values = [0.0; COLUMNS];
    for first in (0..k).step_by(COLUMNS) {
        let columns = first..(first + COLUMNS).min(k);
        let values = &mut values[..columns.len()];
        matrix.read_row(row, columns.clone(), values);
        for (column, value) in columns.zip(values) {
            words[column * width + lane] = value.to_bits();
        }
    }
}

/// A lane of a panel of codes.
struct Lane<'a> {
    kind: &'a CodeKind,
    layout: &'a Layout,
    k: usize,
    width: usize,
    lane: usize,
}

impl Lane<'_> {
    fn pack(&self, (coded, row): (&dyn CodedMatrix, usize), words: &mut [u32]) {
        let Self { k, layout, .. } = *self;
        let mut codes = vec![0; k.next_multiple_of(UNIT)];
        coded.read_codes(row, 0..k, &mut codes[..k]);
        self.pack_codes(&codes, &mut words[layout.codes.clone()]);

        // Groups of 16 may have a last one that is only there to fill its unit.
        let num_groups = k.div_ceil(layout.group);
        let has_offsets = matches!(self.kind.levels, Levels::Zeros | Levels::Minima);
        let has_super_minima = !layout.super_minima.is_empty();
        let mut scales = vec![0; num_groups];
        let mut offsets = vec![0; if has_offsets { num_groups } else { 0 }];
        let mut supers = vec![0; layout.num_supers];
        let mut super_minima = vec![0; if has_super_minima { layout.num_supers } else { 0 }];
        let room = RowScales {
            scales: &mut scales,
            offsets: &mut offsets,
            supers: &mut supers,
            super_minima: &mut super_minima,
        };
        coded.read_scales(row, room);
        if self.kind.scales == (Scales::Super { signed: true }) {
            // Kernels take 128 off.
            scales.iter_mut().for_each(|scale| *scale ^= 0x80);
        }
        let num_bytes = self.kind.scales.num_bytes();
        self.put(&scales, num_bytes, &mut words[layout.scales.clone()]);
        self.put(&offsets, self.kind.offset_bytes(), &mut words[layout.offsets.clone()]);
        for (values, section) in [(supers, &layout.supers), (super_minima, &layout.super_minima)] {
            let values: Vec<u32> = values.into_iter().map(u32::from).collect();
            self.put(&values, 2, &mut words[section.clone()]);
        }
    }

    /// Whole units of codes into the section of codes.
    fn pack_codes(&self, codes: &[u8], words: &mut [u32]) {
        let Self { width, lane, .. } = *self;
        let bits = self.kind.bits as usize;
        for (unit, codes) in codes.chunks_exact(UNIT).enumerate() {
            let first = unit * bits * width + lane;
            let mut first_row = 0;
            let mut low_bit = 0;
            for plane in planes(self.kind.bits) {
                let mask = ((1u32 << plane) - 1) as u8;
                let num_quads = 8 / plane as usize;
                for (index, code) in codes.iter().enumerate() {
                    let (quad, byte) = (index / 4, index % 4);
                    let shift = plane as usize * (quad % num_quads) + 8 * byte;
                    let row = first_row + quad / num_quads;
                    let field = u32::from(code >> low_bit & mask);
                    words[first + row * width] |= field << shift;
                }
                first_row += plane as usize;
                low_bit += plane;
            }
        }
    }

    /// The lane's values of a section whose elements have so many bytes.
    fn put(&self, values: &[u32], num_bytes: usize, words: &mut [u32]) {
        for (group, &value) in values.iter().enumerate() {
            let at = (group * self.width + self.lane) * num_bytes;
            words[at / 4] |= value << (8 * (at % 4));
        }
    }
}

/// Bits of the planes of a code, the low ones first.
fn planes(bits: u32) -> impl Iterator<Item = u32> {
    [8, 4, 2, 1].into_iter().filter(move |plane| bits & plane != 0)
}
