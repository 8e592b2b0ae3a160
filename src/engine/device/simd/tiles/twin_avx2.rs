//! Products of bf16 with the bits of AMX, by AVX2: as `twin`, in registers of half the size, of
//! which there are half as many. So a product is of one or two rows by half of the columns, and
//! sums are in memory between steps.

use std::arch::asm;

use super::twin::FLUSH;
use super::{TILE_COLUMNS, TileBlock};

/// Rows whose sums of a step fit the registers, beside those of half of the columns.
const MAX_ROWS: usize = 2;

/// The product of some rows, from `$x` on, by half of the panel. A row's registers are its even and
/// its odd products, each for both halves of the columns; then come its inputs and its sums in
/// memory.
macro_rules! product {
    ($block:ident, $x:ident, $panel:ident, $sums:ident,
     $(($e0:literal $e1:literal $o0:literal $o1:literal $inputs:literal $at:literal))*) => {{
        let mut saved = 0u32;
        asm!(
            "# rows are {stride} apart",
            "stmxcsr [{saved}]",
            "ldmxcsr [{flush}]",
            "vpcmpeqd ymm15, ymm15, ymm15",
            "vpslld ymm15, ymm15, 16",
            "2:",
            $(
                concat!("vpxor ymm", $e0, ", ymm", $e0, ", ymm", $e0),
                concat!("vpxor ymm", $e1, ", ymm", $e1, ", ymm", $e1),
                concat!("vpxor ymm", $o0, ", ymm", $o0, ", ymm", $o0),
                concat!("vpxor ymm", $o1, ", ymm", $o1, ", ymm", $o1),
            )*
            "mov {left:e}, 16",
            "3:",
            "vmovdqu ymm10, [{panel}]",
            "vmovdqu ymm11, [{panel} + 32]",
            "vpslld ymm8, ymm10, 16",
            "vpslld ymm9, ymm11, 16",
            "vpand ymm10, ymm10, ymm15",
            "vpand ymm11, ymm11, ymm15",
            $(
                concat!("vpbroadcastd ymm13, dword ptr ", $inputs),
                "vpslld ymm12, ymm13, 16",
                "vpand ymm13, ymm13, ymm15",
                concat!("vfmadd231ps ymm", $e0, ", ymm12, ymm8"),
                concat!("vfmadd231ps ymm", $e1, ", ymm12, ymm9"),
                concat!("vfmadd231ps ymm", $o0, ", ymm13, ymm10"),
                concat!("vfmadd231ps ymm", $o1, ", ymm13, ymm11"),
            )*
            "add {x}, 4",
            "add {panel}, 128",
            "dec {left:e}",
            "jnz 3b",
            $(
                concat!("vaddps ymm", $e0, ", ymm", $e0, ", ymm", $o0),
                concat!("vaddps ymm", $e1, ", ymm", $e1, ", ymm", $o1),
                concat!("vmovups ymm12, [{sums} + ", $at, "]"),
                concat!("vmovups ymm13, [{sums} + ", $at, " + 32]"),
                concat!("vaddps ymm12, ymm12, ymm", $e0),
                concat!("vaddps ymm13, ymm13, ymm", $e1),
                concat!("vmovups [{sums} + ", $at, "], ymm12"),
                concat!("vmovups [{sums} + ", $at, " + 32], ymm13"),
            )*
            "dec {steps}",
            "jnz 2b",
            "ldmxcsr [{saved}]",
            saved = in(reg) &mut saved,
            flush = in(reg) &FLUSH,
            sums = in(reg) $sums,
            x = inout(reg) $x => _,
            stride = in(reg) 4 * $block.row_stride,
            panel = inout(reg) $panel => _,
            steps = inout(reg) $block.num_steps => _,
            left = out(reg) _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm15") _,
            options(nostack),
        );
    }};
}

/// The block by a panel; `sums` are (rows of all tiles, 32 columns).
///
/// # Safety
/// As `ConfiguredTiles::multiply_bf16`, with tiles of `rows` rows. The CPU has AVX2 and FMA.
pub(super) unsafe fn bf16(block: &TileBlock, panel: *const u32, rows: usize, sums: *mut f32) {
    if block.is_first {
        // SAFETY: the sums have room for all tiles.
        unsafe { sums.write_bytes(0, block.num_tiles * rows * TILE_COLUMNS) };
    }
    for tile in 0..block.num_tiles {
        for first in (0..rows).step_by(MAX_ROWS) {
            let x = block.rows[tile].wrapping_add(first * block.row_stride);
            for column in [0, TILE_COLUMNS / 2] {
                let at = (tile * rows + first) * TILE_COLUMNS + column;
                let of_columns = (panel.wrapping_add(column), sums.wrapping_add(at));
                // SAFETY: the caller's promise; the sums have room for all tiles.
                unsafe { some_rows(block, x, of_columns, MAX_ROWS.min(rows - first)) };
            }
        }
    }
}

/// # Safety
/// As `bf16`, of the 1 or 2 rows from `x` on; `panel` and `sums` begin at a column.
#[target_feature(enable = "avx2,fma")]
unsafe fn some_rows(
    block: &TileBlock,
    x: *const u32,
    (panel, sums): (*const u32, *mut f32),
    num_rows: usize,
) {
    // SAFETY: the caller's promise; settings are what they were when the assembly ends.
    unsafe {
        match num_rows {
            1 => product!(block, x, panel, sums, (0 1 2 3 "[{x}]" "0")),
            _ => product!(block, x, panel, sums,
                (0 1 2 3 "[{x}]" "0")
                (4 5 6 7 "[{x} + {stride}]" "128")),
        }
    }
}
