//! From matrices as files hold them to panels.

use vllm_batch_base::matrix::{SourceMatrix, SourceRows};
use vllm_batch_device::Cpu;
use vllm_batch_device::pages::Pages;
use vllm_batch_device::tensor::SharedMut;

use crate::gemm::panel::PanelElement;

/// Panels of all rows; lanes past the last row, and what fills a last pair, are zero.
pub(super) fn pack<E: PanelElement>(
    cpu: &Cpu,
    source: &SourceRows<'_>,
    panel_width: usize,
) -> Pages<E> {
    let (n, k) = (source.num_rows(), source.num_columns());
    let num_panels = n.div_ceil(panel_width);
    let panel_len = panel_width * k.next_multiple_of(2);
    let mut panels = cpu.loaded_pages(num_panels * panel_len);
    let shared = SharedMut::new(&mut panels);
    cpu.pool.run(num_panels, &|_, panel| {
        // SAFETY: each item writes its own panel.
        let out = unsafe { shared.slice(panel * panel_len, panel_len) };
        // Blocks of columns, so that the part of the panel that all lanes write stays in the cache.
        for first in (0..k).step_by(PACK_COLUMNS) {
            let columns = first..(first + PACK_COLUMNS).min(k);
            for lane in 0..panel_width.min(n - panel * panel_width) {
                let (part, row) = source.locate(panel * panel_width + lane);
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
    if let Some(bytes) = part.bytes_of(E::DTYPE, row, columns.clone()) {
        for (column, bytes) in columns.zip(bytes.chunks_exact(size_of::<E>())) {
            panel[E::index(column, lane, panel_width)] = E::from_le_bytes(bytes);
        }
        return;
    }
    let mut values = [0.0; PACK_COLUMNS];
    let values = &mut values[..columns.len()];
    part.read_row(row, columns.clone(), values);
    for (column, &value) in columns.zip(&*values) {
        panel[E::index(column, lane, panel_width)] = E::from_f32(value);
    }
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
