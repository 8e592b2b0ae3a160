//! AMX: whether it is there, its configuration, its products.
//!
//! The compiler knows nothing of tile registers. So a product is one piece of assembly, with its
//! sums in memory before and after; the configuration alone outlives it, and nothing else touches
//! that.
//! Instructions are as in Intel's manual, volume 2, and the order of a configuration's bytes as in
//! volume 1, 18.2.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

use super::{TILE_ROWS, TileBlock};

/// Bytes of a row of a tile.
const ROW_BYTES: u16 = 64;

/// Bytes that are asked for at once.
const LINE_BYTES: usize = 64;

/// CPUID leaf 7, EDX: bf16, tiles, int8.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// CPUID leaf 1, ECX: the system uses XSAVE.
const OSXSAVE: u32 = 1 << 27;

/// XCR0: the system saves the configuration and the tiles.
const TILE_STATE: u64 = 0b11 << 17;

/// Whether the CPU has tiles of bf16 and int8, and the system lets this process use them: all of
/// its threads, from then on.
pub(super) fn is_available() -> bool {
    has_tiles() && request_tiles()
}

fn has_tiles() -> bool {
    /// # Safety
    /// The system uses XSAVE.
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller's promise.
        unsafe { _xgetbv(0) }
    }
    let has_features = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES;
    // SAFETY: OSXSAVE says that the system uses XSAVE.
    has_features && __cpuid(1).ecx & OSXSAVE != 0 && unsafe { xcr0() } & TILE_STATE == TILE_STATE
}

#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: it sets a permission of this process, and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Sums in tiles 0 to 3 and rows of inputs in 4 and 5 have `rows` rows, panels in 6 and 7 have 16.
///
/// # Safety
/// The unit is available; a tile has 1 to 16 rows.
pub(super) unsafe fn configure(rows: usize) {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes_per_row: [0; 16],
        rows: [0; 16],
    };
    for tile in 0..8 {
        config.bytes_per_row[tile] = ROW_BYTES;
        config.rows[tile] = if tile < 6 { rows as u8 } else { TILE_ROWS as u8 };
    }
    // SAFETY: the caller's promise.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags)) }
}

/// The system need not save this thread's tiles any more.
///
/// # Safety
/// The unit is available.
pub(super) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, preserves_flags)) }
}

/// A product of tiles of rows by the instruction $dot: for each its place in memory, the tile and
/// the address of its rows, the tiles and the address of its sums. Each step asks for its lines of
/// `next` while products, which take 16 cycles each, are under way.
macro_rules! product {
    ($dot:literal, $block:ident, $sums:ident,
     $(($at:literal $a:literal $rows:ident $c0:literal $c1:literal $to:ident))*) => {
        asm!(
            "test {first:e}, {first:e}",
            "jnz 2f",
            $(
                concat!("tileloadd tmm", $c0, ", [{", stringify!($to), "} + {cs}]"),
                concat!("tileloadd tmm", $c1, ", [{", stringify!($to), "} + {cs} + 64]"),
            )*
            "jmp 3f",
            "2:",
            $(
                concat!("tilezero tmm", $c0),
                concat!("tilezero tmm", $c1),
            )*
            "3:",
            "tileloadd tmm6, [{b} + {cs}]",
            "tileloadd tmm7, [{b} + {cs} + 64]",
            $(
                concat!("tileloadd tmm", $a, ", [{", stringify!($rows), "} + {stride}]"),
                concat!($dot, " tmm", $c0, ", tmm", $a, ", tmm6"),
                concat!($dot, " tmm", $c1, ", tmm", $a, ", tmm7"),
                concat!("add {", stringify!($rows), "}, 64"),
            )*
            "mov {left}, {lines}",
            "jmp 5f",
            "4:",
            "prefetcht0 [{next}]",
            "add {next}, 64",
            "dec {left}",
            "5:",
            "test {left}, {left}",
            "jnz 4b",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 3b",
            $(
                concat!("tilestored [{", stringify!($to), "} + {cs}], tmm", $c0),
                concat!("tilestored [{", stringify!($to), "} + {cs} + 64], tmm", $c1),
            )*
            first = in(reg) u32::from($block.is_first),
            cs = in(reg) 128usize,
            stride = in(reg) $block.row_stride * 4,
            b = inout(reg) $block.panel => _,
            steps = inout(reg) $block.num_steps => _,
            next = inout(reg) $block.next.0 => _,
            lines = in(reg) $block.next.1.div_ceil(LINE_BYTES),
            left = out(reg) _,
            $(
                $to = in(reg) $sums[$at],
                $rows = inout(reg) $block.rows[$at] => _,
            )*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// `bf16` and `int8` differ in one instruction.
macro_rules! kernel {
    ($name:ident, $dot:literal) => {
        /// The block by its panel; `sums` are the first of two tiles by 32 columns.
        ///
        /// # Safety
        /// As `ConfiguredTiles::multiply_bf16`, with tiles of `rows` rows.
        pub(super) unsafe fn $name(block: &TileBlock, rows: usize, sums: *mut u32) {
            let sums = [sums, sums.wrapping_add(rows * super::TILE_COLUMNS)];
            // SAFETY: the caller's promise; sums have room for both tiles.
            unsafe {
                match block.num_tiles {
                    1 => product!($dot, block, sums, (0 4 a0 0 1 c0)),
                    _ => product!($dot, block, sums, (0 4 a0 0 1 c0)(1 5 a1 2 3 c1)),
                }
            }
        }
    };
}

kernel!(bf16, "tdpbf16ps");
kernel!(int8, "tdpbssd");
