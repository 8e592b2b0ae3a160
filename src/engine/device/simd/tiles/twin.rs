//! Products of bf16 with the bits of AMX, by AVX-512.
//!
//! TDPBF16PS takes what is denormal for zero, whatever the thread's settings say. Here they have to
//! say so, for as long as a product takes; the compiler must not know of it, so the product is
//! assembly as a whole.

use std::arch::asm;

use super::{TILE_COLUMNS, TileBlock};

/// Rows whose sums fit the registers.
const MAX_ROWS: usize = 4;

/// MXCSR: exceptions are masked, denormal inputs and results are zeros, rounding is to nearest.
pub(super) const FLUSH: u32 = 0x1f80 | 1 << 15 | 1 << 6;

/// The product of some rows, from `$x` on, by the panel. A row's registers are its sums, its even
/// and its odd products, each for both halves of the columns; then come its inputs and its sums in
/// memory.
macro_rules! product {
    ($block:ident, $x:ident, $panel:ident, $sums:ident,
     $(($c0:literal $c1:literal $e0:literal $e1:literal $o0:literal $o1:literal
        $inputs:literal $at:literal))*) => {{
        let mut saved = 0u32;
        asm!(
            "# rows are {stride} apart, the fourth {stride3} from the first",
            "stmxcsr [{saved}]",
            "ldmxcsr [{flush}]",
            "vpternlogd zmm30, zmm30, zmm30, 0xff",
            "vpslld zmm30, zmm30, 16",
            $(
                concat!("vpxord zmm", $c0, ", zmm", $c0, ", zmm", $c0),
                concat!("vpxord zmm", $c1, ", zmm", $c1, ", zmm", $c1),
            )*
            "test {first:e}, {first:e}",
            "jnz 2f",
            $(
                concat!("vmovups zmm", $c0, ", [{sums} + ", $at, "]"),
                concat!("vmovups zmm", $c1, ", [{sums} + ", $at, " + 64]"),
            )*
            "2:",
            $(
                concat!("vpxord zmm", $e0, ", zmm", $e0, ", zmm", $e0),
                concat!("vpxord zmm", $e1, ", zmm", $e1, ", zmm", $e1),
                concat!("vpxord zmm", $o0, ", zmm", $o0, ", zmm", $o0),
                concat!("vpxord zmm", $o1, ", zmm", $o1, ", zmm", $o1),
            )*
            "mov {left:e}, 16",
            "3:",
            "vmovdqu32 zmm26, [{panel}]",
            "vmovdqu32 zmm27, [{panel} + 64]",
            "vpslld zmm24, zmm26, 16",
            "vpslld zmm25, zmm27, 16",
            "vpandd zmm26, zmm26, zmm30",
            "vpandd zmm27, zmm27, zmm30",
            $(
                concat!("vpbroadcastd zmm29, dword ptr ", $inputs),
                "vpslld zmm28, zmm29, 16",
                "vpandd zmm29, zmm29, zmm30",
                concat!("vfmadd231ps zmm", $e0, ", zmm28, zmm24"),
                concat!("vfmadd231ps zmm", $e1, ", zmm28, zmm25"),
                concat!("vfmadd231ps zmm", $o0, ", zmm29, zmm26"),
                concat!("vfmadd231ps zmm", $o1, ", zmm29, zmm27"),
            )*
            "add {x}, 4",
            "add {panel}, 128",
            "dec {left:e}",
            "jnz 3b",
            $(
                concat!("vaddps zmm", $e0, ", zmm", $e0, ", zmm", $o0),
                concat!("vaddps zmm", $e1, ", zmm", $e1, ", zmm", $o1),
                concat!("vaddps zmm", $c0, ", zmm", $c0, ", zmm", $e0),
                concat!("vaddps zmm", $c1, ", zmm", $c1, ", zmm", $e1),
            )*
            "dec {steps}",
            "jnz 2b",
            $(
                concat!("vmovups [{sums} + ", $at, "], zmm", $c0),
                concat!("vmovups [{sums} + ", $at, " + 64], zmm", $c1),
            )*
            "ldmxcsr [{saved}]",
            saved = in(reg) &mut saved,
            flush = in(reg) &FLUSH,
            first = in(reg) u32::from($block.is_first),
            sums = in(reg) $sums,
            x = inout(reg) $x => _,
            stride = in(reg) 4 * $block.row_stride,
            stride3 = in(reg) 12 * $block.row_stride,
            panel = inout(reg) $panel => _,
            steps = inout(reg) $block.num_steps => _,
            left = out(reg) _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _,
            options(nostack),
        );
    }};
}

/// The block by a panel; `sums` are (rows of all tiles, 32 columns).
///
/// # Safety
/// As `ConfiguredTiles::multiply_bf16`, with tiles of `rows` rows. The CPU has AVX-512 F.
pub(super) unsafe fn bf16(block: &TileBlock, panel: *const u32, rows: usize, sums: *mut f32) {
    for tile in 0..block.num_tiles {
        for first in (0..rows).step_by(MAX_ROWS) {
            let x = block.rows[tile].wrapping_add(first * block.row_stride);
            let sums = sums.wrapping_add((tile * rows + first) * TILE_COLUMNS);
            // SAFETY: the caller's promise; the sums have room for all tiles.
            unsafe { some_rows(block, x, (panel, sums), MAX_ROWS.min(rows - first)) };
        }
    }
}

/// # Safety
/// As `bf16`, of the 1 to 4 rows from `x` on.
#[target_feature(enable = "avx512f")]
unsafe fn some_rows(
    block: &TileBlock,
    x: *const u32,
    (panel, sums): (*const u32, *mut f32),
    num_rows: usize,
) {
    // SAFETY: the caller's promise; settings are what they were when the assembly ends.
    unsafe {
        match num_rows {
            1 => product!(block, x, panel, sums, (0 1 8 9 16 17 "[{x}]" "0")),
            2 => product!(block, x, panel, sums,
                (0 1 8 9 16 17 "[{x}]" "0")
                (2 3 10 11 18 19 "[{x} + {stride}]" "128")),
            3 => product!(block, x, panel, sums,
                (0 1 8 9 16 17 "[{x}]" "0")
                (2 3 10 11 18 19 "[{x} + {stride}]" "128")
                (4 5 12 13 20 21 "[{x} + 2*{stride}]" "256")),
            _ => product!(block, x, panel, sums,
                (0 1 8 9 16 17 "[{x}]" "0")
                (2 3 10 11 18 19 "[{x} + {stride}]" "128")
                (4 5 12 13 20 21 "[{x} + 2*{stride}]" "256")
                (6 7 14 15 22 23 "[{x} + {stride3}]" "384")),
        }
    }
}
